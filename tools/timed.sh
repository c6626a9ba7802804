# timed.sh FILE PHASE COMMAND...: run a command, and note in FILE how many seconds the phase took.
file=$1
phase=$2
shift 2
began=$(date +%s)
"$@"
status=$?
printf '%6d s  %s\n' $(($(date +%s) - began)) "$phase" >> "$file"
exit $status

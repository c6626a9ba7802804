#!/bin/sh
# The service by curl: sh examples/walkthrough.sh [http://127.0.0.1:8000]
# Start one first: fedres serve. What is exported goes to events.jsonl in the folder it is run in.
set -eu
URL=${1:-http://127.0.0.1:8000}

ask() { # METHOD PATH [JSON]: prints the answer, and fails where the service refuses
    if [ $# -eq 3 ]; then
        curl --silent --show-error --fail-with-body -X "$1" "$URL$2" -H 'Content-Type: application/json' -d "$3"
    else
        curl --silent --show-error --fail-with-body -X "$1" "$URL$2"
    fi
}

echo '# a catalogue, so that actions can be named by id alone'
ask PUT /v1/actions '{"put": [
    {"id": "tea", "features": {"hot": true}},
    {"id": "coffee", "features": {"hot": true, "caffeine": 0.9}},
    {"id": "juice", "features": {"hot": false}}]}'

echo '# a decision, and its reward'
REQUEST='{"user": "anna", "context": {"weather": "cold"}, "actions": [{"id": "tea"}, {"id": "coffee"}, {"id": "juice"}]'
EVENT=$(ask POST /v1/rank "$REQUEST}" | sed 's/.*"event_id":"\([^"]*\)".*/\1/')
ask POST "/v1/events/$EVENT/reward" '{"value": 1}'
echo "event $EVENT was rewarded"

echo '# many of them: anna likes tea'
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
    DECISION=$(ask POST /v1/rank "$REQUEST}")
    EVENT=$(echo "$DECISION" | sed 's/.*"event_id":"\([^"]*\)".*/\1/')
    case $DECISION in *'"action":"tea"'*) VALUE=1 ;; *) VALUE=0 ;; esac
    ask POST "/v1/events/$EVENT/reward" "{\"value\": $VALUE}"
done

echo '# why: the score of each action, split into what all users share and what is her own'
ask POST /v1/rank "$REQUEST, \"explain\": true}"
echo

echo '# two at once, one of them without juice'
ask POST /v1/rank/batch "{\"requests\": [$REQUEST}, $REQUEST, \"exclude\": [\"juice\"]}]}"
echo

echo '# two places of a page, no drink twice; a click on the second is the reward of its own event'
PAGE=$(ask POST /v1/rank/slots "$REQUEST, \"slots\": [{\"id\": \"top\"}, {\"id\": \"side\"}]}")
echo "$PAGE"
EVENT=$(echo "$PAGE" | sed 's/.*"id":"side","event_id":"\([^"]*\)".*/\1/')
ask POST "/v1/events/$EVENT/reward" '{"value": 1}'

echo '# a second loop has a model and settings of its own'
ask POST /v1/loops '{"name": "shop", "settings": {"policy": "squarecb", "wait_time": 60}}'
echo
ask PUT /v1/loops/shop/settings '{"policy": "epsilon-greedy", "epsilon": 0.2}'
echo
ask POST /v1/loops/shop/rank '{"actions": [{"id": "book", "features": {}}, {"id": "pen", "features": {}}]}'
echo
ask DELETE /v1/loops/shop

echo '# all decisions as JSON lines, which "fedres evaluate events.jsonl" reads'
ask GET /v1/events > events.jsonl
echo "$(wc -l < events.jsonl) events"

echo '# what other policies would have earned on them'
ask POST /v1/evaluations '{"policies": ["uniform", "constant:tea"], "estimators": ["snips"]}'
echo

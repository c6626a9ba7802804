"""A lock that keeps SQLite from writing, held by another process."""

import subprocess
import sys
from contextlib import contextmanager

WRITE_LOCK = 120  # the byte of the -shm file that SQLite locks to write
HOLD = f"""
import fcntl, sys
file = open(sys.argv[1], "rb")
fcntl.lockf(file, fcntl.LOCK_SH, 1, {WRITE_LOCK})
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def write_lock(store):
    """Hold a read lock, for which the file need only be readable."""
    words = [sys.executable, "-c", HOLD, f"{store}-shm"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield
        process.stdin.close()

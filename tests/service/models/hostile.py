"""A writer that changes blocks as fast as it can, and readers that look for torn ones: a process each."""

import json
import select
import sys
from pathlib import Path

import numpy as np

from fedres.compiling import kernel
from service.models.memory import MemoryReader, MemoryWriter, key_of, read_block

NAMES = ("steady", "moving")


def write(path):
    """Write blocks of changing length, each full of one number, and move and free them, until told to stop."""
    writer, k = MemoryWriter(path), 0
    while True:
        for name in NAMES:
            k += 1
            n_words = 24 if name == "steady" else 8 + k % 90
            if k % 31 == 0 and name == "moving":
                writer.free(key_of("moving"))
            writer.write(key_of(name), np.full(n_words, k, np.uint64).tobytes())
        if k == 2:
            print("ready", flush=True)
        if k % 1_000 == 0 and select.select([sys.stdin], [], [], 0)[0]:
            return


@kernel
def read_often(words, first, second, out, n_reads):
    """Return how many reads were whole and how many were torn, and the newest number.

    A reader that found a block before it was freed may read it again once it is filled anew and not yet shown: the next
    read is then of the number before, two less.
    """
    whole = torn = 0
    last = np.uint64(0)
    for _ in range(n_reads):
        length = read_block(words, first, second, out)
        if length <= 0:
            continue
        is_whole = out[0] + np.uint64(2) >= last and length % 8 == 0
        for k in range(length // 8):
            is_whole &= out[k] == out[0]
        whole, torn, last = whole + is_whole, torn + (not is_whole), out[0]
    return whole, torn, last


def read(path, n_reads):
    reader, out = MemoryReader(path), np.empty(128, np.uint64)
    keys = [key_of(name) for _ in range(2) for name in NAMES]
    print(json.dumps([read_until_changed(reader.words, key, out, n_reads // 4) for key in keys]))


def read_until_changed(words, key, out, n_reads):
    """Read that often, and again if the writer lost its core meanwhile and changed nothing."""
    whole = torn = newest = 0
    while newest <= 1:
        more, more_torn, newest = map(int, read_often(words, *key, out, n_reads))
        whole, torn = whole + more, torn + more_torn
    return whole, torn, newest


if __name__ == "__main__":
    role, file, n = sys.argv[1:]
    if role == "write":
        write(Path(file))
    else:
        read(Path(file), int(n))

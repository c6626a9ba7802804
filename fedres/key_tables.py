"""Hash tables of 32-bit keys, compiled: open addressing, with a secret against keys that are made to collide.

Keys are hashes of names that strangers choose, and CRC-32 is easily steered. So the first slot of a key depends on a
secret, which every table carries behind its slots: processes that share a table share its secret. The order in a table
changes no result and is in no file.

A slot has 1 + the place of a key in an array of keys, 0 if it is empty. Their number is a power of two. Behind them are
the two words of the secret, and how many slots were looked at for a key that was put in, at most.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel, kernel
from fedres.local_learners.adagrad import at

Key = Any  # uint32 inside the kernels

TAIL = 3  # words behind the slots
LONGEST = -1  # the last of them
MOST_PROBES = 256  # of half full tables: by chance no one ever needs so many


def new_secret() -> Array:
    """Return two random words."""
    return np.frombuffer(bytearray(os.urandom(8)), np.uint32)


def empty_table(n_slots: int) -> Array:
    """Return an empty table with a secret of its own."""
    table = np.zeros(n_slots + TAIL, np.uint32)
    table[-TAIL:LONGEST] = new_secret()
    return table


def new_table(n_keys: int) -> Array:
    """Return an empty table for this many keys, half of whose slots stay empty."""
    return empty_table(1 << (2 * n_keys - 1).bit_length())


def slots_in(table: Array) -> int:
    return int(table.size) - TAIL


@inner_kernel
def mixed_word(word: Any) -> Any:
    """Return a number of 64 bits, mixed by the finalizer of SplitMix64."""
    word = (word ^ word >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ word >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return word ^ word >> np.uint64(31)


@inner_kernel
def mixed(table: Array, key: Key) -> Any:
    """Return a number of 64 bits of a key that nobody can predict without the table's secret."""
    n = table.size - TAIL
    secret = np.uint64(table[at(n)]) | np.uint64(table[at(n + 1)]) << np.uint64(32)
    return mixed_word(secret ^ np.uint64(key))


@inner_kernel
def first_slot(table: Array, key: Key) -> Any:
    return np.int64(mixed(table, key) & np.uint64(table.size - TAIL - 1))


@bare_kernel
def find_key(table: Array, keys: Array, key: Key) -> Any:
    """Return the place of a key, −1 if there is none."""
    n, slot = table.size - TAIL, first_slot(table, key)
    for _ in range(n):
        place = np.int64(table[at(slot)]) - 1
        if place < 0:
            return -1
        if keys[at(place)] == key:
            return place
        slot = (slot + 1) & (n - 1)
    return -1


@bare_kernel
def put_key(table: Array, key: Key, place: int) -> None:
    """Put a new key into a table that has room for it."""
    n, slot = table.size - TAIL, first_slot(table, key)
    for probes in range(1, n + 1):
        if table[at(slot)] == 0:
            table[slot] = place + 1
            table[LONGEST] = max(np.int64(table[LONGEST]), probes)
            return
        slot = (slot + 1) & (n - 1)


@kernel
def put_all(table: Array, keys: Array, n: int) -> None:
    for place in range(n):
        put_key(table, keys[place], place)


@bare_kernel
def drop_key(table: Array, keys: Array, key: Key) -> None:
    """Remove an existing key from a table; later keys move up if their lookup would fail otherwise."""
    n, slot = table.size - TAIL, first_slot(table, key)
    for _ in range(n):
        if keys[at(np.int64(table[at(slot)]) - 1)] == key:
            break
        slot = (slot + 1) & (n - 1)
    other = slot
    for _ in range(n):
        other = (other + 1) & (n - 1)
        if table[at(other)] == 0:
            break
        first = first_slot(table, keys[at(np.int64(table[at(other)]) - 1)])
        if (other - first) & (n - 1) >= (other - slot) & (n - 1):
            table[slot] = table[other]
            slot = other
    table[slot] = 0


@inner_kernel
def table_words(n_keys: int) -> int:
    """Return how many words a table for this many keys has."""
    slots = 4
    while slots < 2 * n_keys:
        slots *= 2
    return slots + TAIL


@inner_kernel
def clear(table: Array, like: Array) -> None:
    """Make room to work in an empty table with the secret of another one."""
    table[:] = 0
    for k in range(1, TAIL):
        table[table.size - 1 - k] = like[like.size - 1 - k]

"""Hash tables from keys to places in an array of keys, compiled: open addressing, with a power of two of slots.

A slot has 1 + the place of a key, or 0 if it is empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel, kernel
from fedres.local_learners.adagrad import at

Key = Any  # uint32 inside the kernels


def new_table(n_keys: int) -> Array:
    """Return an empty table for this many keys: at least half of its slots stay empty."""
    return np.zeros(1 << (2 * n_keys - 1).bit_length(), np.int32)


@inner_kernel
def first_slot(key: Key, n_slots: int) -> Any:
    return np.int64((np.uint64(key) * np.uint64(0x9E3779B1) >> np.uint64(12)) & np.uint64(n_slots - 1))


@bare_kernel
def find_key(table: Array, keys: Array, key: Key) -> Any:
    """Return the place of a key, −1 if there is none."""
    slot = first_slot(key, table.size)
    for _ in range(table.size):
        if table[at(slot)] == 0:
            return -1
        if keys[at(table[at(slot)] - 1)] == key:
            return np.int64(table[at(slot)] - 1)
        slot = (slot + 1) & (table.size - 1)
    return -1


@bare_kernel
def put_key(table: Array, key: Key, place: int) -> None:
    """Put a new key into a table that has room for it."""
    slot = first_slot(key, table.size)
    for _ in range(table.size):
        if table[at(slot)] == 0:
            table[slot] = place + 1
            return
        slot = (slot + 1) & (table.size - 1)


@kernel
def put_all(table: Array, keys: Array, n: int) -> None:
    for place in range(n):
        put_key(table, keys[place], place)


@bare_kernel
def drop_key(table: Array, keys: Array, key: Key) -> None:
    """Remove an existing key from a table; later keys move up if their lookup would fail otherwise."""
    mask, slot = table.size - 1, first_slot(key, table.size)
    for _ in range(table.size):
        if keys[at(table[at(slot)] - 1)] == key:
            break
        slot = (slot + 1) & mask
    other = slot
    for _ in range(table.size):
        other = (other + 1) & mask
        if table[at(other)] == 0:
            break
        if (other - first_slot(keys[at(table[at(other)] - 1)], table.size)) & mask >= (other - slot) & mask:
            table[slot] = table[other]
            slot = other
    table[slot] = 0

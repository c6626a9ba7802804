"""Shared memory in which the learner publishes and rankers read: keyed blocks in one mapped file, guarded by seqlocks.

One process writes. A block's first word counts its changes and is odd while it is being written; a reader that sees it
odd, or changed after reading, reads again (fences order accesses on both sides, which matters on ARM). The file is a
large sparse one: room is reserved as it is needed, so a full file system is an error here and not a signal.

Layout, in words of 8 bytes: a header (magic, offset of the index, publications, heartbeat, secret), then blocks. A
block is: change count, two words of key, capacity in words, length in bytes, data. The index is a block whose data are
entries of three words (two of key, one offset) with open addressing; when it fills up, a larger one replaces it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import mmap
import os
import struct
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from fedres.checks import Array
from fedres.compiling import inner_kernel, kernel
from fedres.key_tables import mixed_word

VIRTUAL_BYTES = 1 << 37  # of address space, or as much as is available; memory is used as blocks are allocated
LEAST_VIRTUAL_BYTES = 1 << 30
MAGIC = 0x66726573_6D656D31
# Words of the header.
MAGIC_AT, INDEX_AT, PUBLISHED_AT, HEARTBEAT_AT, SECRET_AT, WAITING_AT = range(6)
FIRST_BLOCK = 512
HEAD = 5  # words of a block before its data
SMALLEST_INDEX = 1 << 10  # entries
ENTRY = 3  # words
RETRIES = 10_000
STEP_BYTES = 1 << 22  # of reserved room
SMALLEST_READ = 512  # words

NOT_FOUND, TORN = -1, -2

_TWO = struct.Struct("<QQ")

Key = tuple[int, int]


def _fence(_: Any) -> Any:
    """Order memory accesses before and after."""

    def code(context: Any, builder: Any, _signature: Any, _arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


fence: Any = intrinsic(_fence)


def key_of(name: str) -> Key:
    """Return the key of a block by its name: 125 bits of a hash, as two numbers that fit int64."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    first, second = _TWO.unpack(digest)
    return first >> 1 | 1, second >> 1  # the first is never 0


def personal_key(loop: str, user: str) -> Key:
    """Return the key of a user's model; ``loop`` is the loop's ``id``."""
    return key_of(f"personal\0{loop}\0{user}")


@inner_kernel
def _first_entry(words: Array, key0: Any, mask: Any) -> Any:
    """Return the first entry that may have a key: without the secret, nobody can find users who collide."""
    return np.int64(mixed_word(words[SECRET_AT] ^ key0)) & mask


@kernel
def find_block(words: Array, first: int, second: int) -> Any:
    """Return the offset of a key's block, ``NOT_FOUND`` if it does not exist."""
    key0, key1 = np.uint64(first), np.uint64(second)
    index = np.int64(words[INDEX_AT])
    fence()
    entries, mask = index + HEAD, (np.int64(words[index + 3]) // ENTRY) - 1
    slot = _first_entry(words, key0, mask)
    for _ in range(mask + 1):
        at = entries + ENTRY * slot
        if words[at] == 0:
            return NOT_FOUND
        if words[at] == key0 and words[at + 1] == key1:
            offset = np.int64(words[at + 2])
            return offset if offset > 0 else NOT_FOUND
        slot = (slot + 1) & mask
    return NOT_FOUND


@kernel
def copy_block(words: Array, offset: int, first: int, second: int, out: Array) -> Any:
    """Copy a block's data to ``out``; return its length in bytes, which may be more than fits, or an error code."""
    key0, key1 = np.uint64(first), np.uint64(second)
    for _ in range(RETRIES):
        before = words[offset]
        fence()
        if before & np.uint64(1):
            continue
        same = words[offset + 1] == key0 and words[offset + 2] == key1
        length = np.int64(words[offset + 4])
        n_words: Any = min((length + 7) // 8, out.size, np.int64(words[offset + 3]))
        for k in range(n_words):
            out[k] = words[offset + HEAD + k]
        fence()
        if words[offset] == before:
            return length if same else NOT_FOUND
    return TORN


@kernel
def read_block(words: Array, first: int, second: int, out: Array) -> Any:
    """Copy the data of a key's block to ``out``, even if it moves meanwhile; return the result of ``copy_block``."""
    for _ in range(RETRIES):
        offset = find_block(words, first, second)
        if offset < 0:
            return NOT_FOUND
        length = copy_block(words, offset, first, second, out)
        if length != NOT_FOUND:  # else the block has moved since the lookup
            return length
    return TORN


@kernel
def begin_change(words: Array, offset: int) -> None:
    words[offset] += np.uint64(1)
    fence()


@kernel
def end_change(words: Array, offset: int) -> None:
    fence()
    words[offset] += np.uint64(1)


@kernel
def write_block(words: Array, offset: int, first: int, second: int, data: Array, length: int) -> None:
    """Replace what a block holds."""
    begin_change(words, offset)
    words[offset + 1], words[offset + 2] = np.uint64(first), np.uint64(second)
    words[offset + 4] = np.uint64(length)
    for k in range(data.size):
        words[offset + HEAD + k] = data[k]
    end_change(words, offset)


@kernel
def _insert(words: Array, index: int, first: int, second: int, offset: int) -> bool:
    """Put a key into the index, which has room for it; return whether that takes a new entry.

    The entry of a freed key is reused. A reader that still looks for the old key may get this block, and detects that
    by the key in the block.
    """
    key0, key1 = np.uint64(first), np.uint64(second)
    mask = (np.int64(words[index + 3]) // ENTRY) - 1
    slot, freed = _first_entry(words, key0, mask), np.int64(-1)
    for _ in range(mask + 1):
        at = index + HEAD + ENTRY * slot
        if words[at] == 0:
            is_new = bool(freed < 0)
            if not is_new:
                at = freed
            words[at + 1], words[at + 2] = key1, np.uint64(offset)
            fence()
            words[at] = key0
            return is_new
        if words[at] == key0 and words[at + 1] == key1:
            words[at + 2] = np.uint64(offset)
            return False
        if words[at + 2] == 0 and freed < 0:
            freed = at
        slot = (slot + 1) & mask
    return False


@kernel
def _remove(words: Array, index: int, first: int, second: int) -> int:
    """Remove an existing key from the index; return how many entries became empty.

    An entry must stay in use while later entries were placed behind it, that is until the next one is empty.
    """
    key0, key1 = np.uint64(first), np.uint64(second)
    mask = (np.int64(words[index + 3]) // ENTRY) - 1
    slot, n_emptied = _first_entry(words, key0, mask), 0
    for _ in range(mask + 1):
        at = index + HEAD + ENTRY * slot
        if words[at] == key0 and words[at + 1] == key1:
            break
        slot = (slot + 1) & mask
    words[index + HEAD + ENTRY * slot + 2] = 0
    if words[index + HEAD + ENTRY * ((slot + 1) & mask)] == 0:
        for _ in range(mask + 1):
            at = index + HEAD + ENTRY * slot
            if words[at] == 0 or words[at + 2] != 0:
                break
            words[at] = 0
            n_emptied += 1
            slot = (slot - 1) & mask
    return n_emptied


@kernel
def _copy_index(words: Array, old: int, new: int) -> int:
    n = 0
    for slot in range(np.int64(words[old + 3]) // ENTRY):
        at = old + HEAD + ENTRY * slot
        if words[at] != 0 and words[at + 2] != 0:
            _insert(words, new, words[at], words[at + 1], words[at + 2])
            n += 1
    return n


def capacity_for(n_words: int) -> int:
    """Return the size class of a block: at most a quarter more than is needed."""
    size = 8
    while size < n_words:
        for capacity in (size + size // 4, size + size // 2, size + 3 * size // 4, 2 * size):
            if capacity >= n_words:
                return capacity
        size *= 2
    return size


class TornRead(Exception):  # noqa: N818
    """A block stays half written: its writer was stopped."""


class MemoryReader:
    """A ranker's view of a published file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        file = os.open(path, os.O_RDONLY)
        try:
            self._map = mmap.mmap(file, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(file)
        self.words: Array = np.frombuffer(self._map, np.uint64)
        if int(self.words[MAGIC_AT]) != MAGIC:
            raise ValueError(f"{path} must hold published models, got something else")

    def read(self, key: Key) -> bytes | None:
        """Return a block's data, None if it does not exist; raise ``TornRead`` if it stays half written."""
        out: Array = np.empty(SMALLEST_READ, np.uint64)
        while (length := read_block(self.words, *key, out)) > 8 * out.size:
            out = np.empty(length // 8 + 1, np.uint64)
        if length == TORN:
            raise TornRead(f"a block of {self.path.name} is half written")
        return None if length < 0 else out.tobytes()[:length]


class MemoryWriter:
    """The learner's side of the file: allocates, writes and frees blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._map = _map(self._file)
        self.words: Array = np.frombuffer(self._map, np.uint64)
        self._reserved = 0
        self._end = FIRST_BLOCK  # of what is allocated, in words
        self._free: dict[int, list[int]] = defaultdict(list)
        self._n_keys = 0
        self._reserve(FIRST_BLOCK)
        self.words[SECRET_AT] = int.from_bytes(os.urandom(8), "little")
        self._make_index(SMALLEST_INDEX)
        self.words[MAGIC_AT] = MAGIC

    def close(self) -> None:
        """Remove the file; readers that have it mapped are not affected."""
        with contextlib.suppress(OSError):
            os.close(self._file)
            self.path.unlink()

    @property
    def used_bytes(self) -> int:
        return 8 * self._end

    def published(self) -> None:
        """Tell readers that something has changed."""
        self.words[PUBLISHED_AT] += np.uint64(1)

    def find(self, key: Key) -> int:
        return int(find_block(self.words, *key))

    def write(self, key: Key, data: bytes) -> None:
        """Write data into the key's block, or into a new one if it is too small."""
        padded = np.frombuffer(data + bytes(-len(data) % 8), np.uint64)
        offset = self.room_for(key, padded.size)
        write_block(self.words, offset, *key, padded, len(data))
        self.show(key, offset)

    def room_for(self, key: Key, n_words: int) -> int:
        """Return the offset of the key's block, or of a new one if that is too small; fill it, then ``show`` it."""
        offset = self.find(key)
        if offset >= 0 and int(self.words[offset + 3]) >= n_words:
            return offset
        return self.allocate(n_words)

    def show(self, key: Key, offset: int) -> None:
        """Publish a filled block in place of the key's previous one."""
        before = self.find(key)
        if before != offset:
            self._put(key, offset)
            if before >= 0:
                self._release(before)

    def free(self, key: Key) -> bool:
        """Remove a key's block and its data; return whether it existed."""
        offset = self.find(key)
        if offset < 0:
            return False
        self._n_keys -= int(_remove(self.words, int(self.words[INDEX_AT]), *key))
        self._release(offset)
        return True

    def make_room(self, n_bytes: int) -> None:
        """Reserve so many bytes beyond those in use; raise ``OSError`` early if the file system is full."""
        self._reserve(self._end + n_bytes // 8)

    def allocate(self, n_words: int) -> int:
        capacity = capacity_for(n_words)
        if self._free[capacity]:
            return self._free[capacity].pop()
        offset = self._end
        self._reserve(offset + HEAD + capacity)
        self._end = offset + HEAD + capacity
        self.words[offset + 3] = capacity
        return offset

    def _release(self, offset: int) -> None:
        capacity = int(self.words[offset + 3])
        begin_change(self.words, offset)
        self.words[offset + 1 : offset + 3] = 0
        self.words[offset + HEAD : offset + HEAD + capacity] = 0
        end_change(self.words, offset)
        self._free[capacity].append(offset)

    def _put(self, key: Key, offset: int) -> None:
        self._n_keys += bool(_insert(self.words, int(self.words[INDEX_AT]), *key, offset))
        if 3 * self._n_keys > 2 * self._n_entries:
            self._make_index(4 * self._n_entries)

    def _make_index(self, n_entries: int) -> None:
        """Move all keys to a larger index; readers may still use the old one, which is not reused."""
        old, index = int(self.words[INDEX_AT]), self._end
        self._reserve(index + HEAD + ENTRY * n_entries)
        self._end = index + HEAD + ENTRY * n_entries
        self.words[index + 3] = ENTRY * n_entries
        if old:
            self._n_keys = int(_copy_index(self.words, old, index))
        self._n_entries = n_entries
        self.words[INDEX_AT] = index

    def _reserve(self, n_words: int) -> None:
        if n_words > self.words.size:
            raise OSError(errno.ENOSPC, f"published models have {self.words.nbytes} bytes of address space", self.path)
        if 8 * n_words > self._reserved:
            size = max(8 * n_words + STEP_BYTES, self._reserved + self._reserved // 8)
            size = min(size, self.words.nbytes)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, self._reserved, size - self._reserved)
            self._reserved = size


def _map(file: int) -> mmap.mmap:
    """Map a file and leave address space for three more: emulators and ``ulimit -v`` may allow less than requested."""
    size = VIRTUAL_BYTES
    while size > LEAST_VIRTUAL_BYTES and not _has_room(file, 4 * size):
        size //= 2
    os.ftruncate(file, size)
    return mmap.mmap(file, size)


def _has_room(file: int, size: int) -> bool:
    try:
        os.ftruncate(file, size)
        mmap.mmap(file, size).close()
    except (OSError, MemoryError):
        return False
    return True

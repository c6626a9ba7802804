"""Finds damage in a write-ahead log of SQLite, which SQLite itself takes for the end of the file.

Every frame has a checksum that continues the one before. Where one does not match, SQLite stops reading: right after a
power cut, when the last commit was not finished, but a flipped bit would silently lose every later commit.
https://www.sqlite.org/fileformat2.html#walformat
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import NamedTuple

_HEADER = struct.Struct(">8I")  # magic, version, page size, sequence number, two salts, two checksums
_FRAME = struct.Struct(">6I")  # page number, pages of the database after a commit (else 0), two salts, two checksums
_MAGIC = {0x377F0682: "<", 0x377F0683: ">"}
_INDEX_HEADER = struct.Struct("=IIIBBHI")  # of the -shm file, up to the number of valid frames
_LOOK_AGAIN_SECONDS = 0.1  # a running service may have been writing

Checksum = tuple[int, int]


class WalDamage(NamedTuple):
    """A frame that does not match its checksum, with commits in or behind it."""

    frame: int  # from 1
    n_commits: int  # number of lost commits
    certain: bool  # False where it may be a commit that a power cut interrupted, which was never acknowledged

    def __str__(self) -> str:
        if self.certain:
            commits = "all commits" if not self.frame else f"{self.n_commits} commits"
            return f"frame {self.frame} does not match its checksum: {commits} in and behind it are lost"
        return (
            f"the last commit (frame {self.frame}) is not whole: expected after a power cut, for it was never "
            "acknowledged, and gone once the service has started and written; otherwise a damaged record was lost"
        )


def wal_damage(database: Path, *, in_use: bool = False) -> WalDamage | None:
    """Return the damage of the write-ahead log beside ``database``, None if it is intact.

    While it is ``in_use``, the -shm file has its end: frames behind it are leftovers.
    """
    damage = _look(database, in_use)
    if damage is not None and in_use:
        time.sleep(_LOOK_AGAIN_SECONDS)
        return damage if _look(database, in_use) == damage else None
    return damage


def _look(database: Path, in_use: bool) -> WalDamage | None:
    try:
        data = database.with_name(database.name + "-wal").read_bytes()
    except FileNotFoundError:
        return None
    damage = damage_of(data)
    if damage is not None and in_use and damage.frame:
        n_frames = _valid_frames(database.with_name(database.name + "-shm"))
        return damage._replace(certain=True) if damage.frame <= n_frames else None
    return damage


def _valid_frames(index: Path) -> int:
    with index.open("rb") as file:
        return int(_INDEX_HEADER.unpack(file.read(_INDEX_HEADER.size))[-1])


def damage_of(data: bytes) -> WalDamage | None:
    """Return the damage in the content of a write-ahead log."""
    if len(data) <= _HEADER.size:
        return None
    magic, _, page_size, _, salt_1, salt_2, *checksum = _HEADER.unpack_from(data)
    order = _MAGIC.get(magic)
    if order is None or _sum(data[:24], (0, 0), order) != tuple(checksum):
        return WalDamage(0, 0, True)
    size = _FRAME.size + page_size
    frames = [data[at : at + size] for at in range(_HEADER.size, len(data) - size + 1, size)]
    state: Checksum = (checksum[0], checksum[1])
    for k, frame in enumerate(frames):
        _, _, *salts, first, second = _FRAME.unpack_from(frame)
        computed = _sum(frame[_FRAME.size :], _sum(frame[:8], state, order), order)
        if salts != [salt_1, salt_2] or computed != (first, second):
            live = [later for later in frames[k:] if _is_live(later, salt_1, salt_2)]
            n_commits = max(_commits(live, start, order) for start in (computed, (first, second)))
            return WalDamage(k + 1, n_commits, n_commits > 1) if n_commits else None
        state = computed
    return None


def _is_live(frame: bytes, salt_1: int, salt_2: int) -> bool:
    """Return whether a frame is no leftover, of which both salts differ."""
    _, _, first, second, *_ = _FRAME.unpack_from(frame)
    return bool(first == salt_1 or second == salt_2)


def _commits(frames: list[bytes], state: Checksum, order: str) -> int:
    """Return how many commits a damaged frame and the unbroken chain behind it have."""
    n_commits = 0
    for k, frame in enumerate(frames):
        _, pages, _, _, first, second = _FRAME.unpack_from(frame)
        if k:
            state = _sum(frame[_FRAME.size :], _sum(frame[:8], state, order), order)
            if state != (first, second):
                break
        n_commits += pages > 0
    return n_commits


def _sum(data: bytes, start: Checksum, order: str) -> Checksum:
    first, second = start
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second

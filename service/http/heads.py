"""Heads of requests as they came before: what the parser found in one, it would find in the same bytes again."""

from __future__ import annotations

from typing import TypeVar

import msgspec

KEPT = 1_000  # heads
LONGEST = 4_000  # bytes of a head that is kept
MOST_DIGITS = 15  # of a length

_LENGTH = b"ength: "

Kept = TypeVar("Kept")


class Way(msgspec.Struct, frozen=True, gc=False):
    """What a head says."""

    path: str  # of the route
    loop: str
    authorization: bytes | None


class Found(msgspec.Struct, frozen=True, gc=False):
    """A request with a known head."""

    way: Way
    start: int  # of its body
    length: int  # of its body


class Heads:
    """The ways of heads that came before, which may differ in the number after ``Content-Length`` alone."""

    def __init__(self) -> None:
        self._ways: dict[bytes, Way] = {}
        self._found: dict[bytes, Found] = {}  # the same heads with lengths that came before

    def find(self, data: bytes) -> Found | None:
        """Return what ``data`` is the beginning of, if it has a whole head and that is known."""
        end = data.find(b"\r\n\r\n")
        head = data[: max(end, 0)]
        found = self._found.get(head)
        if found is None:
            found = self._find(data)
            if found is not None:
                _put(self._found, head, found)
        return found

    def _find(self, data: bytes) -> Found | None:
        split = _split(data)
        if split is None:
            return None
        head, start, length = split
        way = self._ways.get(head)
        return None if way is None else Found(way, start, length)

    def keep(self, data: bytes, way: Way) -> None:
        """Remember the head at the beginning of ``data``, which has its length in one header."""
        split = _split(data)
        if split is None or len(split[0]) > LONGEST or b"\r\ncontent-length: \0" not in split[0].lower():
            return
        _put(self._ways, split[0], way)


def _put(kept: dict[bytes, Kept], key: bytes, value: Kept) -> None:
    if len(kept) >= KEPT:
        kept.clear()
    kept[key] = value


def _split(data: bytes) -> tuple[bytes, int, int] | None:
    """Return the head less the length, and the body's start and length; what replaces the length is in no head."""
    end = data.find(b"\r\n\r\n")
    at = data.find(_LENGTH, 0, end) + len(_LENGTH)
    stop = data.find(b"\r", at, end + 1)
    length = data[at:stop]
    if stop < at or not length.isdigit() or len(length) > MOST_DIGITS:
        return None
    return data[:at] + b"\0" + data[stop:end], end + 4, int(length)

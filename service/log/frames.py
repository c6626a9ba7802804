"""Messages between the log writer and its clients: a length, then msgpack."""

from __future__ import annotations

import struct
from typing import Any, TypeVar

import msgspec

from service.log.protocol import Duplicate, Outcome, Pruning, Refused
from service.log.records import Record

LENGTH = struct.Struct("<I")
LARGEST_FRAME = 1 << 30  # bytes

T = TypeVar("T")


class Append(msgspec.Struct, tag=0, array_like=True, gc=False):
    """Groups of records to be stored, each whole or not at all."""

    id: int
    groups: list[list[Record]]
    epochs: dict[str, int] = {}  # of loops that the sender holds


class Erase(msgspec.Struct, tag=1, array_like=True):
    """A user to be erased, and what the ``erased`` record names: the position of the base, and a token."""

    id: int
    loop: str
    user: str
    base: int
    token: str
    epoch: int | None = None


class Ping(msgspec.Struct, tag=2, array_like=True):
    """Asks whether the store can be written: with ``write``, by a write that is synced."""

    id: int
    write: bool = False


class Scrub(msgspec.Struct, tag=3, array_like=True):
    """Asks that nothing of deleted records is left in any file, and whether that is done: 1, or 0 for not yet."""

    id: int
    ticket: int  # the same until it is done


class Prune(msgspec.Struct, tag=4, array_like=True):
    """Asks to delete some old events; the reply has what comes next as ``after``, and nothing once all is done."""

    id: int
    loop: str
    old: Pruning
    after: int
    epoch: int | None = None


class Done(msgspec.Struct, tag=0, array_like=True, gc=False):
    id: int
    outcomes: list[int | tuple[str, int]]  # a position, or why not and that of the first (-1: no duplicate)


class Failed(msgspec.Struct, tag=1, array_like=True):
    """Nothing of a request was stored."""

    id: int
    code: str
    message: str


Request = Append | Erase | Ping | Scrub | Prune
Reply = Done | Failed

read_request = msgspec.msgpack.Decoder(Request).decode
read_reply = msgspec.msgpack.Decoder(Reply).decode
_encode_into = msgspec.msgpack.Encoder().encode_into


def framed(message: Any) -> bytearray:
    """Return the message as it travels."""
    frame = bytearray(LENGTH.size)
    _encode_into(message, frame, LENGTH.size)
    LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
    return frame


def as_reply(outcome: Outcome) -> int | tuple[str, int]:
    if isinstance(outcome, Refused):
        return str(outcome), outcome.position if isinstance(outcome, Duplicate) else -1
    return outcome


def as_outcome(reply: int | tuple[str, int]) -> Outcome:
    if isinstance(reply, int):
        return reply
    message, first = reply
    return Duplicate(message, first) if first >= 0 else Refused(message)


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that end in ``data``."""
        if self._rest:
            data = self._rest + data
        at, found = 0, []
        while len(data) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data, at)
            if length > LARGEST_FRAME:
                raise ConnectionError(f"a message must have at most {LARGEST_FRAME} bytes, got {length}")
            end = at + LENGTH.size + length
            if end > len(data):
                break
            found.append(data[at + LENGTH.size : end])
            at = end
        self._rest = data[at:]
        return found

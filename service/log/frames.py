"""Messages between the processes of a machine: a length, then the bytes of the message.

Rankers and the learner reach the log writer with them, rankers the learner and their worker processes.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import msgspec

LENGTH = struct.Struct("<I")
LARGEST_FRAME = 1 << 30  # bytes

_encode_into = msgspec.msgpack.Encoder().encode_into


def framed(message: Any) -> bytearray:
    """Return a message as it travels, in msgpack."""
    frame = bytearray(LENGTH.size)
    _encode_into(message, frame, LENGTH.size)
    LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
    return frame


def framed_bytes(body: bytes) -> bytes:
    """Return bytes as they travel."""
    return LENGTH.pack(len(body)) + body


async def read_frame(stream: asyncio.StreamReader) -> bytes:
    """Return the next message of a stream."""
    return await stream.readexactly(_length(await stream.readexactly(LENGTH.size), LARGEST_FRAME))


def receive_frame(receive: Callable[[int], bytes | None], largest: int = LARGEST_FRAME) -> bytes:
    """Return the next message of what returns at most so many bytes, nothing at its end: then raise ``EOFError``."""
    return _exactly(receive, _length(_exactly(receive, LENGTH.size), largest))


def _exactly(receive: Callable[[int], bytes | None], size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = receive(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _length(head: bytes, largest: int) -> int:
    length: int = LENGTH.unpack(head)[0]
    if length > largest:
        raise ConnectionError(f"a message must have at most {largest} bytes, got {length}")
    return length


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that end in ``data``."""
        if self._rest:
            data = self._rest + data
        at, messages = 0, []
        while len(data) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data, at)
            if length > LARGEST_FRAME:
                raise ConnectionError(f"a message must have at most {LARGEST_FRAME} bytes, got {length}")
            end = at + LENGTH.size + length
            if end > len(data):
                break
            messages.append(data[at + LENGTH.size : end])
            at = end
        self._rest = data[at:]
        return messages

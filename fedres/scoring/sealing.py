"""States as bytes with a checksum against damage."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Any

from fedres.checks import Array


def sealed(state: bytes, more: Iterable[bytes] = ()) -> bytes:
    """Return a state, all parts of it, with a checksum; others may have the interpreter after each large part."""
    parts, seal = [state], zlib.crc32(state)
    for part in more:
        parts.append(part)
        seal = zlib.crc32(part, seal)
    return b"".join((*parts, struct.pack("<I", seal)))


def unsealed(state: bytes, mark: bytes, header: struct.Struct) -> tuple[tuple[Any, ...], bytes]:
    """Return the header's fields but the mark, and what lies between header and checksum."""
    if len(state) < header.size + 4 or state[:4] != mark:
        raise ValueError(f"state must start with {mark!r} and a header, got {bytes(state[:12])!r}")
    if zlib.crc32(state[:-4]) != int.from_bytes(state[-4:], "little"):
        raise ValueError(f"state must be undamaged, got {len(state)} bytes that do not match their checksum")
    return header.unpack_from(state)[1:], state[header.size : -4]


def checksum(weights: Array) -> int:
    """Return the CRC-32 of weights as little-endian 32-bit floats."""
    return zlib.crc32(weights.astype("<f4", copy=False).tobytes())


def model_tag(version: int, weights: Array) -> str:
    """Return a tag that is unique to a shared model: a restored store may use a version twice."""
    return f"{version}-{checksum(weights):08x}"

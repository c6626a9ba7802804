"""A bandit as a file: what it learned, who its clients are, and the decisions that wait for their rewards."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bandits.actions import Actions, NamedActions
from fedres.decisions.kalman_state import KalmanRequest
from fedres.scoring.sealing import sealed, unsealed

_MARK = b"FRB1"
_HEADER = struct.Struct("<4s")


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state; a crash leaves the old file or the new one."""
    packer = _Packer()
    body = msgspec.msgpack.encode({"state": packer.pack(state), "actions": packer.actions})
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_bytes(sealed(_HEADER.pack(_MARK) + body))
    temporary.replace(path)


def read(path: Path) -> dict[str, Any]:
    """Return the state that ``write`` wrote; lists are tuples."""
    _, body = unsealed(path.read_bytes(), _MARK, _HEADER)
    saved = msgspec.msgpack.decode(body)
    actions = [Actions(n, dim, _unpack(i, []), _unpack(v, []), stride) for n, dim, i, v, stride in saved["actions"]]
    state: dict[str, Any] = _unpack(saved["state"], actions)
    return state


class _Packer:
    """Turns a state into plain values; actions that are one object stay one."""

    def __init__(self) -> None:
        self.actions: list[Any] = []
        self.places: dict[int, int] = {}

    def pack(self, value: Any) -> Any:
        if isinstance(value, Actions):
            if id(value) not in self.places:
                self.places[id(value)] = len(self.actions)
                n, dim, indices, values, stride = value
                self.actions.append([int(n), int(dim), self.pack(indices), self.pack(values), int(stride)])
            return {"actions": self.places[id(value)]}
        if isinstance(value, NamedActions):
            return {"named": [self.pack(value.ids), [self.pack(column) for column in value.request]]}
        if isinstance(value, np.ndarray):
            return {"dtype": value.dtype.str, "shape": value.shape, "bytes": value.tobytes()}
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, list | tuple | deque):
            return [self.pack(one) for one in value]
        if isinstance(value, dict):
            return {"dict": [[key, self.pack(one)] for key, one in value.items()]}
        if value is None or isinstance(value, str | bytes | int | float):
            return value
        raise ValueError(f"a bandit must have text, numbers or tuples of them as clients to be saved, got {value!r}")


def _unpack(value: Any, actions: list[Actions]) -> Any:
    if isinstance(value, list):
        return tuple(_unpack(one, actions) for one in value)
    if not isinstance(value, dict):
        return value
    if "actions" in value:
        return actions[value["actions"]]
    if "named" in value:
        ids, columns = value["named"]
        return NamedActions(_unpack(ids, actions), KalmanRequest(*_unpack(columns, actions)))
    if "dict" in value:
        return {key: _unpack(one, actions) for key, one in value["dict"]}
    return np.frombuffer(value["bytes"], value["dtype"]).reshape(value["shape"]).copy()

"""Pinned models: the shared model as it was when an experiment began, which decides for the control group.

It is a record in the log, and the settings name its position. So every ranker of every machine uses the same one,
even after restarts and relearning; the learner ignores it.
"""

from __future__ import annotations

import msgspec
import numpy as np

from service.errors import invalid
from service.log.protocol import Log
from service.log.records import PIN, Entry
from service.models.published import Loop, Pinned
from service.models.table import model_kind
from service.settings import Settings


class PinBody(msgspec.Struct, array_like=True):
    """A shared model, the version it had, and how many rewards it had learned."""

    version: int
    n_learned: int
    model: bytes


def pin_body(loop: Loop, model: bytes) -> bytes:
    """Return the body of the record that pins a loop's model."""
    return msgspec.msgpack.encode(PinBody(loop.view.version, loop.n_learned, model))


def read_pinned(log: Log, loop: str, position: int, settings: Settings) -> Pinned:
    """Return the pinned model at a position of the log; refuse if there is none."""
    entries: list[Entry] = log.read(loop, position - 1, 1)
    if not entries or entries[0].position != position or entries[0].kind != PIN:
        raise invalid(f"control.pinned must be the position of a pinned model, got {position}", "control")
    body = msgspec.msgpack.decode(entries[0].body, type=PinBody)
    kind = model_kind(settings)
    weights, _ = kind.from_bytes(settings, body.model).publish(0)
    published = np.array(weights, np.float32)  # the type that rankers use: others would compile kernels again
    return Pinned(position, body.version, body.n_learned, kind.read_published(published))


def wants_pinned(loop: Loop) -> bool:
    """Return whether the control group has a pinned model that this ranker has not read yet."""
    position = loop.view.settings.control.pinned
    return position is not None and (loop.pinned is None or loop.pinned.position != position)

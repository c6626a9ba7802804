"""Pinned models: the shared model as it was when an experiment began, which decides for the control group.

It is a record in the log, and the settings name its position. So every ranker of every machine finds the same one,
whatever was restarted or learned anew; the learner passes it over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from service.errors import ApiError, invalid
from service.log.protocol import Log
from service.log.records import PIN, Entry
from service.models.published import Loop, Pinned
from service.models.table import model_kind
from service.settings import Settings

if TYPE_CHECKING:
    from service.rank.ranker import RankerContext


class PinBody(msgspec.Struct, array_like=True):
    """A shared model, the version it had, and how many rewards it had learned."""

    version: int
    n_learned: int
    model: bytes


def pin_body(loop: Loop, model: bytes) -> bytes:
    """Return what is logged of a loop's model."""
    return msgspec.msgpack.encode(PinBody(loop.view.version, loop.n_learned, model))


def read_pinned(log: Log, loop: str, position: int, settings: Settings) -> Pinned:
    """Return the model that the log has at a position; refuse where there is none."""
    entries: list[Entry] = log.read(loop, position - 1, 1)
    if not entries or entries[0].position != position or entries[0].kind != PIN:
        raise invalid(f"control.pinned must be the position of a pinned model, got {position}", "control")
    body = msgspec.msgpack.decode(entries[0].body, type=PinBody)
    kind = model_kind(settings)
    weights, _ = kind.from_bytes(settings, body.model).publish(0)
    published = np.array(weights, np.float32)  # as rankers have them: other types would compile kernels anew
    return Pinned(position, body.version, body.n_learned, kind.read_published(published))


def wants_pinned(loop: Loop) -> bool:
    """Return whether a model decides that this ranker has not read yet."""
    position = loop.view.settings.control.pinned
    return position is not None and (loop.pinned is None or loop.pinned.position != position)


async def ensure_pinned(context: RankerContext, name: str) -> None:
    """Read the model that decides for a loop's control group, if that is one and it is not read yet."""
    loop = context.loop(name)
    position, settings = loop.view.settings.control.pinned, loop.view.settings
    if position is not None and wants_pinned(loop):
        loop.pinned = await context.look_up(lambda log: read_pinned(log, name, position, settings))


def check_new(settings: Settings) -> None:
    """Refuse a new loop that would compare itself with a model that it does not have."""
    if settings.control.baseline == "pinned":
        message = "control.baseline must not be 'pinned' for a new loop, which has no model yet"
        raise ApiError(422, "invalid_settings", message, "control")

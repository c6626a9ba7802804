"""What to answer while the service does not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from fedres.client.hosted.types import RankRequest, Slot

log = logging.getLogger("fedres.client")

Fallback = Literal["first"] | Callable[[RankRequest], str]


def allowed_ids(request: RankRequest) -> list[str]:
    """Return the ids that may be chosen, in the order they came; refuse a request that leaves none."""
    if isinstance(request.actions, str) or isinstance(request.exclude, str):
        raise ValueError("actions and exclude must be collections of ids, got text")
    excluded = set(request.exclude)
    allowed = [name for name in request.actions if name not in excluded]
    if not allowed:
        raise ValueError(f"exclude must leave at least one action, got {len(request.actions)} actions and none left")
    return allowed


def fall_back(request: RankRequest, fallback: Fallback) -> str:
    """Return the first action that is allowed, or what the function says if that is allowed."""
    allowed = allowed_ids(request)
    if fallback == "first":
        return allowed[0]
    try:
        chosen = fallback(request)
    except Exception:
        log.exception("the fallback failed; the first action is taken")
        return allowed[0]
    if chosen not in allowed:
        log.error("the fallback must return the id of an allowed action, got %r; the first action is taken", chosen)
        return allowed[0]
    return chosen


def fall_back_slots(request: RankRequest, slots: Sequence[Slot], fallback: Fallback) -> list[str]:
    """Return an action for each slot, none of them twice."""
    if not slots:
        raise ValueError("slots must hold at least one slot, got none")
    chosen: list[str] = []
    for slot in slots:
        left = msgspec.structs.replace(request, exclude=[*request.exclude, *slot.exclude, *chosen])
        chosen.append(fall_back(left, fallback))
    return chosen

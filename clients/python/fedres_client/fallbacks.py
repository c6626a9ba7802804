"""Checked requests, and fallback decisions while the service does not reply."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Union

from msgspec.structs import replace

from fedres_client.event_ids import new_event_id
from fedres_client.inputs import Action, action_list, features, identifier, identifiers, user_id
from fedres_client.types import FALLBACK_PREFIX, RankRequest, Slot

log = logging.getLogger("fedres.client")

Fallback = Union[Literal["first"], Callable[[RankRequest], Any]]


class ValidRequest(NamedTuple):
    """A checked request: the fields to send, and the caller's own ids."""

    request: RankRequest
    actions: list[Action]
    excluded: list[str]
    context: dict[str, Any]
    user: str | None

    @property
    def caller_ids(self) -> dict[str, Any]:
        """The caller's ids of actions, by the ids that are sent."""
        return {action.id: action.caller_id for action in self.actions}

    def body(self) -> dict[str, Any]:
        """Return the fields as the service reads them, without those at their defaults."""
        request = self.request
        optional = {
            "user": self.user,
            "context": self.context,
            "exclude": self.excluded,
            "defer": request.defer,
            "explain": request.explain,
        }
        actions = [
            {"id": action.id} if action.features is None else {"id": action.id, "features": action.features}
            for action in self.actions
        ]
        return {"event_id": request.event_id, **{k: v for k, v in optional.items() if v}, "actions": actions}


def check(request: RankRequest) -> ValidRequest:
    """Return a checked request with an event id, so that repeats are the same event; raise if it is invalid."""
    if not isinstance(request, RankRequest):
        raise TypeError(f"a request must be a RankRequest, got {type(request).__name__}")
    actions = action_list(request.actions)
    excluded = identifiers("exclude", request.exclude)
    if set(excluded).issuperset(action.id for action in actions):
        raise ValueError(f"exclude must leave at least one action, got all {len(actions)} of them")
    context = {} if request.context is None else features("context", request.context)
    made = replace(
        request,
        actions=request.actions if hasattr(request.actions, "__len__") else [action.caller_id for action in actions],
        exclude=list(excluded),
        event_id=new_event_id() if request.event_id is None else event_name(request.event_id),
    )
    return ValidRequest(made, actions, excluded, context, user_id(request.user))


def event_name(value: object) -> str:
    """Return the id of a new event."""
    name = identifier("event_id", value)
    if name.startswith(FALLBACK_PREFIX):
        raise ValueError(f"event_id must not begin with {FALLBACK_PREFIX!r}, as those of fallbacks do, got {name!r}")
    return name


def fall_back(valid: ValidRequest, fallback: Fallback) -> Any:
    """Return the caller's id of the first allowed action, or of the function's choice if that is allowed."""
    excluded = set(valid.excluded)
    allowed = {action.id: action.caller_id for action in valid.actions if action.id not in excluded}
    first = next(iter(allowed.values()))
    if fallback == "first":
        return first
    try:
        chosen = fallback(valid.request)
        name = identifier("the fallback's action", chosen)
    except Exception:
        log.exception("the fallback failed; the first action is taken")
        return first
    if name not in allowed:
        log.error("the fallback must return the id of an allowed action, got %r; the first action is taken", chosen)
    return allowed.get(name, first)


def fall_back_slots(valid: ValidRequest, slots: Sequence[Slot], fallback: Fallback) -> list[Any]:
    """Return an action for each slot, none of them twice."""
    if not slots:
        raise ValueError("slots must hold at least one slot, got none")
    chosen: list[Any] = []
    taken: list[str] = []
    for slot in slots:
        excluded = [*valid.excluded, *map(str, slot.exclude), *taken]
        if set(excluded).issuperset(action.id for action in valid.actions):
            raise ValueError(f"actions must leave one for each slot, got none left for slot {slot.id!r}")
        left = valid._replace(excluded=excluded, request=replace(valid.request, exclude=excluded))
        chosen.append(fall_back(left, fallback))
        taken.append(identifier("actions", chosen[-1]))
    return chosen

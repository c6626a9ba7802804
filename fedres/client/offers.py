"""Requests to decide: checked, and written as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres_client.event_ids import LONGEST_ID, new_event_id
from fedres_client.inputs import Actions, Features, Id, action_list, features, identifier, identifiers

_to_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Offer:
    """A request to decide, checked."""

    event_id: str
    context: bytes  # shared with the service
    own_context: bytes  # shared and private features
    actions: list[tuple[str, bytes]]
    allowed: Array
    caller_ids: list[Any]  # the actions' ids as the caller gave them


def make_offer(
    context: Features,
    actions: Actions,
    private: Features | None = None,
    *,
    exclude: Iterable[Id] = (),
    event_id: Id | None = None,
) -> Offer:
    """Return a checked request to decide; raise if it is invalid."""
    event = new_event_id() if event_id is None else checked_name("event_id", event_id)
    excluded = set(identifiers("exclude", exclude))
    listed = action_list(actions)
    allowed = np.array([action.id not in excluded for action in listed])
    if not allowed.any():
        raise ValueError(f"exclude must leave at least one action, got all {len(listed)} of them")
    shared = features("context", context)
    own = _own_context(shared, private)
    encoded = [(checked_name("actions", each.id), _encode(f"actions[{each.id!r}]", each.features)) for each in listed]
    return Offer(event, _encode("context", shared), own, encoded, allowed, [action.caller_id for action in listed])


def checked_name(name: str, value: object) -> str:
    """Return an id as text; refuse an invalid one."""
    text = identifier(name, value)
    if not 1 <= len(text) <= LONGEST_ID:
        raise ValueError(f"{name} must be text of 1 to {LONGEST_ID} characters, got {text!r}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be valid Unicode, got {text!a}") from None
    return text


def _own_context(context: Mapping[str, Any], private: Features | None) -> bytes:
    """Return the local features as JSON: the context and the private ones."""
    if "private" in context:
        raise ValueError("context must not hold 'private': what is private goes into the argument of that name")
    return _encode("private", context if private is None else {**context, "private": features("private", private)})


def _encode(name: str, plain: Features | None) -> bytes:
    """Return features as JSON; an action with only an id has none."""
    try:
        return _to_json(plain or {}).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON: {error}") from None

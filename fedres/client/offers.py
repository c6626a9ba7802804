"""Requests to decide: checked, and written as JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.event_ids import LONGEST_ID, new_event_id

_to_json = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode

Features = Mapping[str, Any]
Actions = Mapping[str, Features] | Sequence[str]


@dataclass(frozen=True, slots=True)
class Offer:
    """A request to decide, checked."""

    event_id: str
    context: bytes  # what the service may see
    own_context: bytes  # and what it may not see with it
    actions: list[tuple[str, bytes]]
    allowed: Array


def make_offer(
    context: Features,
    actions: Actions,
    private: Features | None = None,
    *,
    exclude: Collection[str] = (),
    event_id: str | None = None,
) -> Offer:
    """Return a request to decide, or say what is wrong with it."""
    if event_id is not None:
        check_name("event_id", event_id)
    if isinstance(exclude, str):
        raise ValueError(f"exclude must be a list of ids, got {exclude!r}")
    named = _named(actions)
    allowed = np.array([name not in exclude for name in named])
    if not allowed.any():
        raise ValueError(f"exclude must leave at least one action, got all {len(named)} of them")
    own = _own_context(context, private)
    encoded = [(name, _encode(f"actions[{name!r}]", features)) for name, features in named.items()]
    return Offer(event_id or new_event_id(), _encode("context", context), own, encoded, allowed)


def check_name(name: str, value: object) -> None:
    """Refuse what cannot be an id."""
    if not isinstance(value, str) or not 1 <= len(value) <= LONGEST_ID:
        raise ValueError(f"{name} must be text of 1 to {LONGEST_ID} characters, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be valid Unicode, got {value!a}") from None


def _named(actions: Actions) -> dict[str, Features]:
    """Return actions with their features, at least one, each once."""
    if isinstance(actions, str) or not isinstance(actions, Collection):
        raise ValueError(f"actions must be a mapping or a list of ids, got {actions!r}")
    for name in actions:
        check_name("actions", name)
    named = dict(actions) if isinstance(actions, Mapping) else {name: {} for name in actions}
    if not named:
        raise ValueError("actions must hold at least one action, got none")
    if len(named) < len(actions):
        raise ValueError(f"actions must have different ids, got {list(actions)!r}")
    return named


def _own_context(context: Features, private: Features | None) -> bytes:
    """Return the local features as JSON: the context, and the private ones beside it."""
    if isinstance(context, Mapping) and "private" in context:
        raise ValueError("context must not hold 'private': what is private goes into the argument of that name")
    if private is None:
        return _encode("context", context)
    if not isinstance(private, Mapping):
        raise ValueError(f"private must be a mapping of names to values, got {type(private).__name__}")
    return _encode("private", {**context, "private": private})


def _encode(name: str, features: Features) -> bytes:
    """Return features as JSON."""
    if not isinstance(features, Mapping):
        raise ValueError(f"{name} must be a mapping of names to values, got {type(features).__name__}")
    try:
        return _to_json(features).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} must be JSON: {error}") from None

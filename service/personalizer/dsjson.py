"""Lines of VW's dsjson, which Azure Personalizer exported and rlclientlib writes, as native requests.

Azure wraps the features of a call: ``FromUrl`` has those of the context, ``j`` those of an action, ``i`` its id. They
are unwrapped, so that what is imported and what its clients send have the same names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from bandits.evaluation.values import distribution, logged_probability, number
from service.personalizer.features import merge, native_id
from service.ranking.requests import Action, RankRequest

WRAPPED = ("FromUrl", "j")


class Logged(NamedTuple):
    """A decision that was made elsewhere."""

    request: RankRequest
    action: int
    probabilities: list[float]
    reward: float | None  # None where nothing is to be learned


def read_line(line: bytes) -> Logged:
    """Return a decision; ``ValueError`` says what is wrong with the line."""
    record = _object("the line", msgspec.json.decode(line))
    if "_outcomes" in record:
        raise ValueError("the line must be of one slot, got _outcomes of several")
    context = _object("c", record.get("c"))
    offered = context.get("_multi")
    if not isinstance(offered, list) or not offered:
        raise ValueError(f"c._multi must be a list of actions, got {str(offered)[:40]}")
    actions = [_action(place, _object("_multi", one)) for place, one in enumerate(offered, 1)]
    chosen = _position("_label_Action", record.get("_label_Action"), len(actions))
    event_id = record.get("EventId")
    if not isinstance(event_id, str) or not event_id:
        raise ValueError(f"EventId must be a text, got {event_id!r}")
    about = {"_timestamp": record["Timestamp"]} if isinstance(record.get("Timestamp"), str) else {}
    features = {**_unwrapped({name: value for name, value in context.items() if name != "_multi"}), **about}
    skipped = bool(record.get("_skipLearn"))
    request = RankRequest(
        actions=actions,
        context=msgspec.Raw(msgspec.json.encode(features)),
        event_id=native_id(event_id),
        defer=skipped,
    )
    reward = None if skipped else -number("_label_cost", record.get("_label_cost"))
    return Logged(request, chosen, _probabilities(record, chosen, len(actions)), reward)


def _action(place: int, given: dict[str, Any]) -> Action:
    inner = given.get("i")
    name = given.get("_tag") or (inner.get("id") if isinstance(inner, dict) else None) or str(place)
    features = {key: value for key, value in given.items() if key not in ("_tag", "i")}
    return Action(native_id(str(name)), msgspec.Raw(msgspec.json.encode(_unwrapped(features))))


def _unwrapped(features: dict[str, Any]) -> dict[str, Any]:
    """Return features with lists of objects merged, those of Azure's own namespaces without that name."""
    found: dict[str, Any] = {}
    for name, value in features.items():
        if name.startswith("_"):
            continue
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            value = merge(value)
        if name in WRAPPED and isinstance(value, dict):
            for inner, below in value.items():
                found[inner] = below
        else:
            found[name] = value
    return found


def _probabilities(record: dict[str, Any], chosen: int, n_actions: int) -> list[float]:
    """Return those of all actions; ``p`` is in the order of ``a``, which counts from 1. Without it, the rest is even.

    That of the action taken is ``_label_probability``, whatever ``p`` says.
    """
    own = logged_probability("_label_probability", record.get("_label_probability"))
    given, order = record.get("p"), record.get("a")
    if given is None:
        rest = (1 - own) / max(n_actions - 1, 1)
        return [own if k == chosen else rest for k in range(n_actions)]
    p = distribution("p", given, n_actions)
    if order is None:
        order = list(range(1, n_actions + 1))
    if not isinstance(order, list):
        raise ValueError(f"a must be a list, got {str(order)[:40]}")
    places = [_position("a", one, n_actions) for one in order]
    if sorted(places) != list(range(n_actions)):
        raise ValueError(f"a must name each of {n_actions} actions once, got {str(order)[:100]}")
    by_place = {**dict(zip(places, p, strict=True)), chosen: own}
    return [by_place[k] for k in range(n_actions)]


def _position(name: str, value: Any, n: int) -> int:
    if type(value) is not int or not 1 <= value <= n:
        raise ValueError(f"{name} must be in 1 to {n}, got {str(value)[:40]}")
    return value - 1


def _object(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, got {str(value)[:40]}")
    return value

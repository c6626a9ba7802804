"""Lines of VW's dsjson, which Azure Personalizer exported and rlclientlib writes, as native requests.

Azure wraps the features of a call: ``FromUrl`` has those of the context, ``j`` those of an action, ``i`` its id. They
are unwrapped, so that imported features have the same names as those that clients send. A line of several slots
(``_slots``, ``_outcomes``) is a decision for each of them, as the native call of slots logs it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import field

from bandits.evaluation.logs import dsjson_probabilities
from bandits.evaluation.values import as_object, distribution, logged_probability, number
from service.log.records import Place
from service.plugins.personalizer.features import merge, native_id
from service.rank.requests import Action, RankRequest
from service.rank.slots import LONGEST_CALL_ID, Slot, SlotsRequest, events_of, slot_context

WRAPPED = ("FromUrl", "j")


class Logged(NamedTuple):
    """A decision that was made elsewhere."""

    request: RankRequest
    action: int
    probabilities: list[float]
    reward: float | None  # None if the decision is not to be learned
    timestamp: str | None  # when it was made
    page: Place | None = None  # of a recommended item
    is_feedback: bool = False  # without a decision: it has a reward, and no probabilities

    def dated(self) -> RankRequest:
        """Return the request with its time in the context, but not as a feature.

        Features are hashed without it: the compiled loop does not support names that begin with ``_``.
        """
        if self.timestamp is None:
            return self.request
        rest = bytes(self.request.context)[1:]
        comma = b"" if rest == b"}" else b","
        context = msgspec.Raw(b'{"_timestamp":%b%b%b' % (_encode(self.timestamp), comma, rest))
        return msgspec.structs.replace(self.request, context=context)


class Line(msgspec.Struct):
    """What is read of a line."""

    c: msgspec.Raw = msgspec.Raw(b"null")
    event_id: Any = field(default=None, name="EventId")
    timestamp: Any = field(default=None, name="Timestamp")
    action: Any = field(default=None, name="_label_Action")
    cost: Any = field(default=None, name="_label_cost")
    probability: Any = field(default=None, name="_label_probability")
    a: Any = None  # actions from 1, the likeliest first
    p: Any = None  # their probabilities
    skipped: Any = field(default=None, name="_skipLearn")
    outcomes: Any = field(default=None, name="_outcomes")


_line = msgspec.json.Decoder(Line).decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode, _encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode


def read_line(text: bytes) -> list[Logged]:
    """Return the decisions of a line; raise ``ValueError`` for an invalid line."""
    line = _line(text)
    members = _checked("c", _members, line.c)
    offered = _checked("c._multi", _list, members.get("_multi", b"null"))
    if not offered:
        raise ValueError("c._multi must be a list of actions, got none")
    actions = [_action(place, bytes(action)) for place, action in enumerate(offered, 1)]
    context = _unwrapped({name: _decode(value) for name, value in members.items() if name[:1] != "_"})
    if line.outcomes is None:
        return [_of_one_slot(line, actions, context)]
    slots = _checked("c._slots", _list, members.get("_slots", b"null"))
    return _of_slots(line, actions, context, [as_object("c._slots", _decode(slot)) for slot in slots])


def event_ids(text: bytes) -> list[str]:
    """Return the ids under which the decisions of a line are logged."""
    line = _line(text)
    return [_id_of(line)] if line.outcomes is None else _events_of(line, _outcomes(line))


def _of_one_slot(line: Line, actions: list[Action], context: dict[str, Any]) -> Logged:
    chosen = _position("_label_Action", line.action, 1, len(actions)) - 1
    request = RankRequest(
        actions=actions, context=msgspec.Raw(_encode(context)), event_id=_id_of(line), defer=bool(line.skipped)
    )
    reward = None if line.skipped else -number("_label_cost", line.cost)
    return Logged(request, chosen, _probabilities(line, chosen, len(actions)), reward, _timestamp(line))


def _timestamp(line: Line) -> str | None:
    return line.timestamp if isinstance(line.timestamp, str) else None


def _id_of(line: Line) -> str:
    if not isinstance(line.event_id, str) or not line.event_id:
        raise ValueError(f"EventId must be a text, got {line.event_id!r}")
    return native_id(line.event_id)


def _checked(name: str, decode: Any, text: bytes) -> Any:
    try:
        return decode(text)
    except msgspec.ValidationError as error:
        raise ValueError(f"{name}: {error}") from None


@lru_cache(maxsize=20_000)
def _action(place: int, text: bytes) -> Action:
    """Return an action, cached because catalogues repeat actions."""
    fields = as_object("_multi", _decode(text))
    inner = fields.get("i")
    name = fields.get("_tag") or (inner.get("id") if isinstance(inner, dict) else None) or str(place)
    features = {key: value for key, value in fields.items() if key != "i"}
    return Action(native_id(str(name)), msgspec.Raw(_encode(_unwrapped(features))))


def _unwrapped(features: dict[str, Any]) -> dict[str, Any]:
    """Return features with lists of objects merged, and Azure's own namespaces unwrapped."""
    unwrapped: dict[str, Any] = {}
    for name, value in features.items():
        if name[:1] == "_":
            continue
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            value = merge(value)
        if name in WRAPPED and isinstance(value, dict):
            unwrapped.update(value)
        else:
            unwrapped[name] = value
    return unwrapped


def _probabilities(line: Line, chosen: int, n_actions: int) -> list[float]:
    """Return the probabilities of all actions, by ``a`` (from 1) and ``p``; without ``p``, the others share the rest.

    The action taken has ``_label_probability``, whatever its value in ``p``.
    """
    own = logged_probability("_label_probability", line.probability)
    p = dsjson_probabilities(line.p, line.a, n_actions) or [(1 - own) / max(n_actions - 1, 1)] * n_actions
    return [*p[:chosen], own, *p[chosen + 1 :]]


def _places(name: str, numbers: Any, n_actions: int) -> list[int]:
    """Return different places of actions, from 0."""
    if not isinstance(numbers, list) or not numbers:
        raise ValueError(f"{name} must be a list, got {str(numbers)[:40]}")
    places = [_position(name, place, 0, n_actions - 1) for place in numbers]
    if len(set(places)) < len(places):
        raise ValueError(f"{name} must name each action once, got {str(numbers)[:100]}")
    return places


def _position(name: str, value: Any, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be in {least} to {most}, got {str(value)[:40]}")
    return value


# several slots


def _outcomes(line: Line) -> list[dict[str, Any]]:
    if not isinstance(line.outcomes, list) or not line.outcomes:
        raise ValueError(f"_outcomes must be a list with an outcome for each slot, got {str(line.outcomes)[:40]}")
    return [as_object("_outcomes", outcome) for outcome in line.outcomes]


def _events_of(line: Line, outcomes: list[dict[str, Any]]) -> list[str]:
    """Return the ids of the slots' events: by the line's id, or each its own, as rlclientlib wrote them at first."""
    if line.event_id is not None:
        _id_of(line)
        return events_of(native_id(line.event_id, LONGEST_CALL_ID), len(outcomes))
    ids = [outcome.get("_id") for outcome in outcomes]
    if not all(isinstance(name, str) and name for name in ids) or len(set(ids)) < len(ids):
        raise ValueError("EventId must be a text, or each outcome must have an _id of its own")
    return [native_id(str(name)) for name in ids]


def _of_slots(line: Line, actions: list[Action], context: dict[str, Any], slots: list[dict[str, Any]]) -> list[Logged]:
    outcomes = _outcomes(line)
    if len(slots) != len(outcomes):
        raise ValueError(f"c._slots and _outcomes must be of the same number, got {len(slots)} and {len(outcomes)}")
    whole = SlotsRequest(
        actions=actions,
        slots=[_slot(line, place, slot) for place, slot in enumerate(slots)],
        context=msgspec.Raw(_encode({"slot " if name == "slot" else name: value for name, value in context.items()})),
    )
    logged: list[Logged] = []
    taken: list[int] = []
    for place, (event, outcome) in enumerate(zip(_events_of(line, outcomes), outcomes, strict=True)):
        allowed = _places("_inc", slots[place].get("_inc", list(range(len(actions)))), len(actions))
        free = [k for k in allowed if k not in taken]
        chosen, probabilities = _slot_probabilities(outcome, free, len(actions))
        taken.append(chosen)
        request = RankRequest(
            actions=actions,
            context=slot_context(whole, place),
            exclude=[action.id for action, p in zip(actions, probabilities, strict=True) if p is None],
            event_id=event,
            defer=bool(line.skipped),
        )
        reward = None if line.skipped else -number("_label_cost", outcome.get("_label_cost"))
        logged.append(Logged(request, chosen, [p or 0.0 for p in probabilities], reward, _timestamp(line)))
    return logged


def _slot(line: Line, place: int, fields: dict[str, Any]) -> Slot:
    """Return a slot; its id is its place if the line's ids are new with every call."""
    name = fields.get("_id") if line.event_id is not None else None
    features = _unwrapped(fields)
    if "id" in features:  # the native name of the slot's own
        features["id "] = features.pop("id")
    return Slot(id=native_id(str(name or place + 1)), features=msgspec.Raw(_encode(features)))


def _slot_probabilities(outcome: dict[str, Any], free: list[int], n_actions: int) -> tuple[int, list[float | None]]:
    """Return the action that a slot took and the probabilities of all, None for those not available to it.

    ``_a`` counts from 0 and begins with the action taken. If it has only that action, the others share the rest evenly.
    """
    order, p = outcome.get("_a"), outcome.get("_p")
    if not isinstance(order, list):
        order, p = [order], [p]
    places = _places("_a", order, n_actions)
    if not isinstance(p, list) or len(p) != len(places):
        raise ValueError(f"_p must have one entry for each of {len(places)} actions, got {str(p)[:100]}")
    chosen, own = places[0], logged_probability("_p", p[0])
    if chosen not in free:
        raise ValueError(f"_a must begin with an action that the slot may take, got {chosen}")
    if len(places) == 1:
        others = [k for k in free if k != chosen]
        by_action = {chosen: own, **dict.fromkeys(others, (1 - own) / max(len(others), 1))}
    else:
        by_action = dict(zip(places, distribution("_p", p, len(places)), strict=True))
    return chosen, [by_action.get(k) for k in range(n_actions)]

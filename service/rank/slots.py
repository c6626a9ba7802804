"""Several slots of a page in one call: for each an ordinary decision, less the actions that slots before it took."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated

from msgspec import Meta, Raw, Struct, field
from msgspec.json import encode

from fedres_client.event_ids import LONGEST_ID
from service.errors import ApiError, invalid
from service.hints import about
from service.log.records import Entry, LoggedRank
from service.rank.decide import repeated
from service.rank.requests import Action, Features, Id, Ranked, RankRequest, RankResult, check_actions, check_id

STEPS = 4  # of the event loop, in which a decision is read, decided, stored and returned
LONGEST_CALL_ID = LONGEST_ID - 10  # characters of the id of a call: its events have it, a "~" and the slot's place


class Slot(Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A place for one action, its features, what it must not show, and what it would show without the service."""

    id: Annotated[Id, about("Id of the slot; a feature of its context.")]
    features: Annotated[Features, about("Features of the slot, added to its context.")] = field(default_factory=Raw)
    exclude: Annotated[list[Id], about("Ids of actions that this slot must not show.")] = field(default_factory=list)
    baseline: Annotated[Id | None, about("The action that the slot would show without the service.")] = None


class SlotsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for a decision on each slot of a page, no action twice."""

    actions: Annotated[
        Annotated[list[Action], Meta(min_length=1)],
        about("The actions to choose from; none is shown twice."),
    ]
    slots: Annotated[
        Annotated[list[Slot], Meta(min_length=1)], about("The slots, in the order in which they are filled.")
    ]
    context: Annotated[Features, about("Features of the situation, known before the decision.")] = field(
        default_factory=lambda: Raw(b"{}")
    )
    user: Annotated[
        Id | None,
        about("Id of the user: selects the personal model. Without it, only the shared model decides."),
    ] = None
    event_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=LONGEST_CALL_ID)] | None,
        about("Id of this call, generated if missing; each slot is an event with this id, a ~ and its number."),
    ] = None
    defer: Annotated[bool, about("Do not start the wait for a reward until the event is activated.")] = False


class FilledSlot(Struct):
    """What one slot shows; ``action_id`` is called ``action`` in JSON."""

    id: Annotated[str, about("Id of the slot.")]
    event_id: Annotated[str, about("Id to send the slot's reward to.")]
    action_id: Annotated[str, about("The chosen action.")] = field(name="action")
    probability: Annotated[float, about("Its probability, given the slots before.")]
    ranking: Annotated[list[Ranked], about("All actions, best score first.")]


class SlotsResult(Struct):
    """The filled slots, in the order of the request."""

    event_id: Annotated[str, about("Id of the call.")]
    model_version: Annotated[int, about("Position in the loop's log up to which the models had learned.")]
    slots: Annotated[list[FilledSlot], about("The filled slots, in the order of the request.")]


def events_of(event_id: str, n_slots: int) -> list[str]:
    """Return the event ids of a call's slots.

    They count by place, so that calls with the same id share their first event, whatever the names of their slots.

    >>> events_of("visit", 2)
    ['visit~1', 'visit~2']
    """
    return [f"{event_id}~{place}" for place in range(1, n_slots + 1)]


def check_slots(request: SlotsRequest) -> None:
    """Refuse ids that are too long or come twice, unusable baselines, and slots that cannot all be filled."""
    check_actions(request.actions)
    if request.user is not None:
        check_id("user", request.user)
    if request.event_id is not None:
        check_id("event_id", request.event_id, LONGEST_CALL_ID)
    if not request.slots:
        raise invalid("slots must hold at least one slot, got none", "slots")
    ids = [slot.id for slot in request.slots]
    for place, name in enumerate(ids):
        check_id(f"slots[{place}].id", name)
        if name in ids[:place]:
            raise invalid(f"slots must have different ids, got {name!r} twice", "slots")
        baseline, target = request.slots[place].baseline, f"slots[{place}].baseline"
        if baseline is not None and baseline in request.slots[place].exclude:
            raise invalid(f"{target} must not be excluded, got {baseline!r}", target)
        if baseline is not None and all(action.id != baseline for action in request.actions):
            raise invalid(f"{target} must be one of the actions, got {baseline!r}", target)
    Reserve(request)


class Reserve:
    """Keeps an action in reserve for each unfilled slot, so that no request fails because of earlier draws.

    It matches unfilled slots with actions: a slot may not take an action without which no matching exists.
    """

    def __init__(self, request: SlotsRequest) -> None:
        ids = [action.id for action in request.actions]
        slots = request.slots
        excluded = [set(slot.exclude) for slot in slots]
        allowed = [[name for name in ids if name not in excluded[place]] for place in range(len(slots))]
        # a slot that allows as many actions as there are slots always has one left
        self._tight = {place: names for place, names in enumerate(allowed) if len(names) < len(slots)}
        self._place_of: dict[str, int] = {}  # by action
        for place in self._tight:
            if not self._augment(place, set()):
                message = f"slot {slots[place].id!r} must be left an action by the slots before it"
                raise invalid(f"{message}, got {len(allowed[place])} allowed, which those need", f"slots[{place}]")

    def needed(self, place: int) -> list[str]:
        """Return the actions that the slot at a place must leave to later slots."""
        self._tight.pop(place, None)
        self._place_of = {name: owner for name, owner in self._place_of.items() if owner != place}
        return [name for name in list(self._place_of) if not self._spare(name)]

    def take(self, name: str) -> None:
        """Remove an action from the reserve; no other slot may rely on it."""
        owner = self._place_of.pop(name, None)
        for names in self._tight.values():
            if name in names:
                names.remove(name)
        if owner is not None:
            self._augment(owner, set())

    def _spare(self, name: str) -> bool:
        """Return whether the slot that relies on an action could use another one."""
        before = dict(self._place_of)
        owner = self._place_of.pop(name)
        is_spare = self._augment(owner, {name})
        self._place_of = before
        return is_spare

    def _augment(self, place: int, tried: set[str]) -> bool:
        """Find an action for a slot, of others too if they find one in turn."""
        for name in self._tight[place]:
            if name not in tried:
                tried.add(name)
                owner = self._place_of.get(name)
                if owner is None or self._augment(owner, tried):
                    self._place_of[name] = place
                    return True
        return False


def fill(request: SlotsRequest, event_id: str, answer: Callable[[RankRequest], RankResult]) -> SlotsResult:
    """Return the result of ``answer`` for each slot in turn, without the actions of earlier slots."""
    version, reserve = 0, Reserve(request)
    taken: list[str] = []
    filled: list[FilledSlot] = []
    for place, (slot, event) in enumerate(zip(request.slots, events_of(event_id, len(request.slots)), strict=True)):
        slot_request = RankRequest(
            actions=sorted(request.actions, key=lambda action: action.id != slot.baseline),  # the others stay in order
            context=slot_context(request, place),
            user=request.user,
            exclude=[*slot.exclude, *taken, *reserve.needed(place)],
            event_id=event,
            defer=request.defer,
        )
        try:
            result = answer(slot_request)
        except ApiError as error:
            if error.code != "invalid_features":
                raise
            raise ApiError(error.status, error.code, f"slots[{place}]: {error}", error.target) from None
        taken.append(result.action_id)
        reserve.take(result.action_id)
        filled.append(FilledSlot(slot.id, event, result.action_id, result.probability, result.ranking))
        version = result.model_version
    return SlotsResult(event_id, version, filled)


def filled_before(request: SlotsRequest, event_id: str, logged: Mapping[str, tuple[Entry, LoggedRank]]) -> SlotsResult:
    """Return the stored reply to a repeated request; refuse a different request with this event id."""

    def stored(slot_request: RankRequest) -> RankResult:
        decision = logged.get(slot_request.event_id or "")
        if decision is None:
            missing = slot_request.event_id
            message = f"event_id {event_id!r} was already used with a different request, without {missing!r}"
            raise ApiError(409, "event_exists", message, "event_id")
        return repeated(slot_request, *decision)

    return fill(request, event_id, stored)


async def give_way() -> None:
    """Let small requests take their next steps, before work of some milliseconds."""
    for _ in range(STEPS):
        await asyncio.sleep(0)


def slot_context(request: SlotsRequest, place: int) -> Raw:
    """Return the call's context with the slot's id and features as ``slot``, and in it ``_of``, the number of slots.

    Names that begin with ``_`` are not features; this one distinguishes calls that begin with the same slots.
    """
    slot = request.slots[place]
    about = b'"id":%b,"_of":%d' % (encode(slot.id), len(request.slots))
    own = _joined(about, _inside(f"slots[{place}].features", slot.features))
    return Raw(b"{%b}" % _joined(_inside("context", request.context), b'"slot":{%b}' % own))


def _joined(*members: bytes) -> bytes:
    return b",".join(filter(None, members))


def _inside(target: str, features: Raw) -> bytes:
    """Return the text between the braces of an object; nothing and null count as empty objects."""
    text = bytes(features).strip()
    if text in (b"", b"null"):
        return b""
    if text[:1] != b"{":
        shown = text[:40].decode(errors="replace")
        raise ApiError(422, "invalid_features", f"{target} must be an object, got {shown!a}", target)
    return text[1:-1].strip()

"""Several slots of a page in one call: for each an ordinary decision, less the actions that slots before it took."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

from msgspec import Meta, Raw, Struct, field
from msgspec.json import encode

from fedres.event_ids import LONGEST_ID
from service.errors import ApiError, invalid
from service.log.records import Entry, LoggedRank
from service.ranking.decide import repeated
from service.ranking.requests import Action, Features, Id, Ranked, RankRequest, RankResult, check_actions, check_id

LONGEST_CALL_ID = LONGEST_ID - 10  # characters of the id of a call: its events have it, a "~" and the slot's place


class Slot(Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A place for one action, its features, and what it must not show."""

    id: Id
    features: Features = field(default_factory=Raw)
    exclude: list[Id] = field(default_factory=list)


class SlotsRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for a decision on each slot of a page, no action twice."""

    actions: Annotated[list[Action], Meta(min_length=1)]
    slots: Annotated[list[Slot], Meta(min_length=1)]
    context: Features = field(default_factory=lambda: Raw(b"{}"))
    user: Id | None = None
    event_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_CALL_ID)] | None = None
    defer: bool = False


class FilledSlot(Struct):
    """What one slot shows; ``action_id`` is called ``action`` in JSON."""

    id: str
    event_id: str
    action_id: str = field(name="action")
    probability: float  # given the slots before
    ranking: list[Ranked]  # best score first


class SlotsResult(Struct):
    """The answer: the slots in the order they came and were filled in."""

    event_id: str
    model_version: int
    slots: list[FilledSlot]


def events_of(event_id: str, n_slots: int) -> list[str]:
    """Return the ids of the events of a call's slots.

    By place, since calls with the same id then have their first event in common, whatever their slots are called.

    >>> events_of("visit", 2)
    ['visit~1', 'visit~2']
    """
    return [f"{event_id}~{place}" for place in range(1, n_slots + 1)]


def check_slots(request: SlotsRequest) -> None:
    """Refuse ids that are too long or come twice, and slots that could be left with nothing to show."""
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
    _check_enough(request)


def _check_enough(request: SlotsRequest) -> None:
    """Refuse a slot whose actions those before it could take: no request may fail by what happens to be drawn."""
    ids = {action.id for action in request.actions}
    allowed = [ids.difference(slot.exclude) for slot in request.slots]
    for place, own in enumerate(allowed):
        rivals = sum(not own.isdisjoint(before) for before in allowed[:place])
        if len(own) <= rivals:
            message = f"slot {request.slots[place].id!r} must be left an action by the slots before it"
            raise invalid(f"{message}, got {len(own)} allowed and {rivals} slots that may take them", f"slots[{place}]")


def fill(request: SlotsRequest, event_id: str, answer: Callable[[RankRequest], RankResult]) -> SlotsResult:
    """Return what ``answer`` gives for each slot in turn, the actions of those before it excluded."""
    version = 0
    taken: list[str] = []
    filled: list[FilledSlot] = []
    for place, (slot, event) in enumerate(zip(request.slots, events_of(event_id, len(request.slots)), strict=True)):
        asked = RankRequest(
            actions=request.actions,
            context=_context(request, place),
            user=request.user,
            exclude=[*slot.exclude, *taken],
            event_id=event,
            defer=request.defer,
        )
        given = _answered(place, answer, asked)
        taken.append(given.action_id)
        filled.append(FilledSlot(slot.id, event, given.action_id, given.probability, given.ranking))
        version = given.model_version
    return SlotsResult(event_id, version, filled)


def filled_before(request: SlotsRequest, event_id: str, known: Mapping[str, tuple[Entry, LoggedRank]]) -> SlotsResult:
    """Return the stored answer to a request that is the same as the one it was given for."""

    def stored(asked: RankRequest) -> RankResult:
        found = known.get(asked.event_id or "")
        if found is None:
            message = f"event_id must be new or come with the same request, got {event_id!r} without {asked.event_id!r}"
            raise ApiError(409, "event_exists", message, "event_id")
        return repeated(asked, *found)

    return fill(request, event_id, stored)


def _answered(place: int, answer: Callable[[RankRequest], RankResult], asked: RankRequest) -> RankResult:
    try:
        return answer(asked)
    except ApiError as error:
        if error.code != "invalid_features":
            raise
        raise ApiError(error.status, error.code, f"slots[{place}]: {error}", error.target) from None


def _context(request: SlotsRequest, place: int) -> Raw:
    """Return the call's context with the slot's id and features as ``slot``, and in it ``_of``, the number of slots.

    No name that begins with ``_`` is a feature; this one tells calls apart that begin with the same slots.
    """
    slot = request.slots[place]
    about = b'"id":%b,"_of":%d' % (encode(slot.id), len(request.slots))
    own = _joined(about, _inside(f"slots[{place}].features", slot.features))
    return Raw(b"{%b}" % _joined(_inside("context", request.context), b'"slot":{%b}' % own))


def _joined(*members: bytes) -> bytes:
    return b",".join(filter(None, members))


def _inside(target: str, features: Raw) -> bytes:
    """Return what is between the braces of an object; nothing and null are objects without anything."""
    text = bytes(features).strip()
    if text in (b"", b"null"):
        return b""
    if text[:1] != b"{":
        shown = text[:40].decode(errors="replace")
        raise ApiError(422, "invalid_features", f"{target} must be an object, got {shown!a}", target)
    return text[1:-1].strip()

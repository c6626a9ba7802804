"""How pages are made: candidates of the catalogue are scored together and drawn for one place after the other.

Each place is an ordinary decision with an event of its own, ``page~1``, ``page~2``, ...; all are stored together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from time import monotonic
from typing import Annotated, Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from msgspec import Meta, Raw, Struct, field
from msgspec.json import Decoder as JsonDecoder

from fedres.checks import Array
from fedres.scoring.features import Hashed, Named
from fedres.scoring.flattening import FeatureError
from fedres_client.event_ids import new_event_id
from service.errors import ApiError, invalid
from service.hints import about
from service.log.protocol import Duplicate, Log
from service.log.records import (
    EMPTY,
    RANK,
    Asked,
    DecisionExample,
    Entry,
    LoggedRank,
    Place,
    RecommendBody,
    Record,
    encode,
)
from service.models.protocol import Explained
from service.models.published import Loop, PublishedModels
from service.plugins.recommend.drawing import Drawn, draw_places
from service.plugins.recommend.earnings import Earnings, Popularity
from service.plugins.recommend.filters import matching, nothing_left
from service.plugins.recommend.items import Items
from service.rank.decide import CONTROL, HELD, NO_KEY, invalid_features, joined
from service.rank.explaining import explain_all
from service.rank.ranker import Ranker, RankerContext
from service.rank.requests import Action, Features, Id, PreparedRequest, RankRequest, check_id
from service.rank.slots import LONGEST_CALL_ID, events_of

MOST_PLACES = 100
LONGEST_SEEN = 365 * 86_400.0  # seconds
MOST_PAIRS = 20_000_000  # features of the context times features of all items
MOST_SEEN = 1_000  # of a user's newest events, whose items are left out
FEW_ITEMS = 2_000  # up to which a page is filled in a step of the event loop, and bytes of their ids and features
FEW_BYTES = 400_000
FORGET_SECONDS = 10.0  # between two looks for loops that were deleted
MOST_SEEN_BYTES = 64_000_000  # of the records of these events


T = TypeVar("T")

Seconds = Annotated[float, Meta(gt=0, le=LONGEST_SEEN)]


class RecommendRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for the best items of the catalogue, for a user in a context."""

    n: Annotated[Annotated[int, Meta(ge=1, le=MOST_PLACES)], about("Number of items to show.")] = 10
    user: Annotated[
        Id | None, about("Id of the user: selects the personal model. Without it, only the shared model decides.")
    ] = None
    context: Annotated[Features, about("Features of the situation, known before the decision.")] = field(
        default_factory=lambda: Raw(b"{}")
    )
    filter: Annotated[
        dict[str, Any],
        about("Conditions on attributes, by name; an item must meet all of them."),
    ] = field(default_factory=dict)
    exclude: Annotated[list[Id], about("Ids of items that must not be shown.")] = field(default_factory=list)
    exclude_seen: Annotated[
        bool | Seconds,
        about("Leave out the items that the user has been shown: ever (true), or within this many seconds."),
    ] = False
    event_id: Annotated[
        Annotated[str, Meta(min_length=1, max_length=LONGEST_CALL_ID)] | None,
        about("Id of this page, generated if missing; each place is an event with this id, a ~ and its number."),
    ] = None
    defer: Annotated[bool, about("Do not start the wait for rewards until the events are activated.")] = False
    explain: Annotated[bool, about("Add explanations of the scores to the response.")] = False


class RecommendedItem(Struct, omit_defaults=True):
    """An item in its place; its reward goes to ``event_id``."""

    id: Annotated[str, about("Id of the item.")]
    event_id: Annotated[str, about("Id to send the reward of this place to.")]
    score: Annotated[float, about("Expected reward.")]
    probability: Annotated[float, about("Probability of this item in this place, given the places before.")]
    arm: Annotated[str | None, about("control, treatment or held, if the loop has a control group.", "treatment")] = (
        None
    )


class RecommendResult(Struct, omit_defaults=True):
    """The items of a page, in the order of their places."""

    event_id: Annotated[str, about("Id of the page.")]
    items: Annotated[list[RecommendedItem], about("The items, in the order of their places.")]
    candidates: Annotated[int, about("Items that filter, exclusions and availability left to choose from.")]
    model_version: Annotated[int, about("Position in the loop's log up to which the models had learned.")]
    explanations: Annotated[list[Explained] | None, about("With explain: the parts of each item's score.")] = None


class Recommender:
    """Recommends items of the catalogues of all loops."""

    def __init__(self, context: RankerContext, ranker: Ranker, now: Callable[[], float] = time.time) -> None:
        self._context, self._ranker, self._now = context, ranker, now
        self._items: dict[str, Items] = {}  # by loop
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by loop: who uses its items
        self._forget_at = 0.0
        self.earnings = Earnings(context)

    async def items(self, name: str) -> tuple[Loop, Items]:
        """Return a loop and its items, once all published ones are added; other requests run meanwhile."""
        self._forget_others()
        while True:
            loop = self._context.loop(name)
            items = self._items.get(name)
            if items is None or items.catalogue is not loop.copied:
                items = self._items[name] = Items(loop.copied, self._context.preparer)
            if not items.is_behind:
                return loop, items
            items.take_some()
            await asyncio.sleep(0)

    async def on_items(self, name: str, function: Callable[[Loop, Items], T]) -> T:
        """Return the function's result, on a thread if the catalogue is large; the items do not change meanwhile."""
        copied = self._context.loop(name).copied
        if len(copied.actions) > FEW_ITEMS or copied.n_bytes > FEW_BYTES:
            return await self._context.threads.call(name, partial(self._lend, name), lambda lent: function(*lent))
        async with self._lend(name) as (loop, items):
            return function(loop, items)

    @asynccontextmanager
    async def _lend(self, name: str) -> AsyncIterator[tuple[Loop, Items]]:
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            loop, items = await self.items(name)
            with loop.lend(()) as lent:
                yield lent, items

    def _forget_others(self) -> None:
        """Drop the items of loops that do not exist any more."""
        if monotonic() >= self._forget_at:
            self._forget_at = monotonic() + FORGET_SECONDS
            names = {*self._context.models.names()}
            self._items = {name: items for name, items in self._items.items() if name in names}
            self.earnings.forget_others(names)

    async def recommend(self, name: str, request: RecommendRequest) -> RecommendResult:
        """Return items for a user in a context, once the decisions are durable."""
        _check(request)
        await self._context.until_compiled()
        page = request.event_id or new_event_id()
        if request.event_id is not None:
            logged = await self._ranker.logged_ranks(name, events_of(page, request.n))
            if logged:
                return repeated(request, page, logged)
        seen = await self._seen(name, request)
        loop = self._context.loop(name)
        earned = None if loop.n_learned else await self.earnings.newest(name)
        self._context.quotas.check_pending(loop.view, self._context.all_waiting_bytes)
        self._context.check_user(loop, request.user)
        preparer = self._context.preparer_of(loop)
        [context] = preparer.hash_all([Named("context", None, bytes(request.context) or EMPTY)])
        if isinstance(context, FeatureError):
            raise invalid_features(context)
        at = self._now()
        memory = self._context.models
        filled = await self.on_items(
            name, lambda loop, items: _fill(loop, items, request, page, context, seen, at, earned, memory)
        )
        try:
            await self._context.append(*filled.records)
        except Duplicate:
            return repeated(request, page, await self._ranker.logged_ranks(name, events_of(page, request.n)))
        result = filled.result
        if request.explain:
            actions = [Action(item.id) for item in result.items]
            same = RankRequest(actions=actions, context=request.context, user=request.user)
            prepared = PreparedRequest(same, page, filled.rows, [], 0.0, NO_KEY)
            result.explanations = await explain_all(prepared, self._context.loop(name), self._context.models)
        return result

    async def _seen(self, name: str, request: RecommendRequest) -> list[str]:
        """Return the items most recently shown to a user."""
        seconds, user = request.exclude_seen, request.user
        if seconds is False:
            return []
        if user is None:
            raise invalid("exclude_seen must come with a user, got none", "exclude_seen")
        created_at = self._context.loop(name).view.created_at
        first = 0 if seconds is True else round((self._now() - seconds) * 1e6)
        return await self._context.look_up(name, lambda log: _shown_to(log, name, user, created_at, first))


class FilledPage(NamedTuple):
    """A page before it is stored."""

    result: RecommendResult
    records: list[Record]
    rows: list[Hashed]  # the context, then each item


def _fill(
    loop: Loop,
    items: Items,
    request: RecommendRequest,
    page: str,
    context: Hashed,
    seen: list[str],
    now: float,
    earned: Popularity | None,
    models: PublishedModels,
) -> FilledPage:
    """Draw the items of a page."""
    n_features = items.features()[0].size
    if context.size * n_features > MOST_PAIRS:
        message = f"context features times features of all items must be at most {MOST_PAIRS}"
        raise ApiError(422, "context_too_large", f"{message}, got {context.size} × {n_features}", "context")
    allowed = _candidates(items, request, seen, now)
    popular = earned.of(items) if earned is not None and earned.n_events and not loop.n_learned else None
    source = Asked(
        request.n, min(request.n, int(allowed.sum())), loop.view.catalogue_version, round(now * 1e6),
        Raw(encode(request.filter)), request.exclude, request.exclude_seen, seen, popular is not None,
    )  # fmt: skip
    events = events_of(page, source.places)
    drawn = draw_places(loop, items, context, request.user, models, allowed, events, popular)
    records = [
        _record(loop, items, request, context, event, each, Place(k, each.candidates, None if k > 1 else source))
        for k, (event, each) in enumerate(zip(events, drawn, strict=True), 1)
    ]
    shown = [
        RecommendedItem(items.ids[each.row], event, each.score, each.probability, each.arm)
        for event, each in zip(events, drawn, strict=True)
    ]
    rows = [context, *[items.features_of(each.row) for each in drawn]]
    return FilledPage(RecommendResult(page, shown, drawn[0].candidates, drawn[0].version), records, rows)


def _candidates(items: Items, request: RecommendRequest, seen: Sequence[str], now: float) -> Array:
    """Return which rows may be drawn; refuse the request if there are none."""
    allowed = items.showable(now)
    if request.filter:
        allowed &= matching(items, request.filter)
    for excluded in (request.exclude, seen):
        allowed[[items.rows[each] for each in excluded if each in items.rows]] = False
    if not allowed.any():
        if not items.rows:
            message = "the catalogue must have items: PUT /v1/actions adds them, got none"
            raise ApiError(422, "no_candidates", message)
        raise nothing_left(items, request.filter)
    return allowed


def _check(request: RecommendRequest) -> None:
    if request.user is not None:
        check_id("user", request.user)
    if request.event_id is not None:
        check_id("event_id", request.event_id, LONGEST_CALL_ID)


def _record(
    loop: Loop, items: Items, request: RecommendRequest, context: Hashed, event: str, drawn: Drawn, place: Place
) -> Record:
    """Return the log record of a place: a body for readers, and an example for the learner."""
    body = RecommendBody(
        Raw(bytes(request.context) or EMPTY),
        [items.references[drawn.row]],
        0,
        [drawn.probability],
        [drawn.score],
        drawn.version,
        loop.view.settings_version,
        deferred=request.defer,
        arm=drawn.arm,
        policy_action=0 if drawn.agreed else None,
        page=place,
    )
    taken, is_control = items.features_of(drawn.row), drawn.arm in (CONTROL, HELD)
    example = DecisionExample(
        joined(context, taken),
        body.settings,
        0.0,  # no baseline
        request.defer,
        drawn.agreed,
        is_control,
        None if request.defer or is_control else loop.learn_after,
    )
    return Record(loop.view.name, RANK, event, request.user, example.encode(), encode(body))


class _ShownId(Struct):
    id: str


class _Shown(Struct):
    """Of a decision or feedback, what the user was shown."""

    actions: list[_ShownId]
    action: int
    happened: int | None = None


_decode_shown = JsonDecoder(_Shown).decode


def _shown_to(log: Log, loop: str, user: str, created_at: int, first: int) -> list[str]:
    """Return the items of a user's newest events since a time, including feedback, each once.

    Feedback is logged after it happened, so nothing before the first older record is of that time.
    """
    n_bytes = 0

    def item(entry: Entry) -> str | None:
        nonlocal n_bytes
        n_bytes += len(entry.body)
        if entry.time < first or entry.position <= created_at or n_bytes > MOST_SEEN_BYTES:
            return None
        body = _decode_shown(entry.body)
        return body.actions[body.action].id if (body.happened or entry.time) >= first else ""

    shown = log.newest_of(loop, user, MOST_SEEN, item)
    return [name for name in dict.fromkeys(shown) if name]


def repeated(
    request: RecommendRequest, page: str, ranks: Mapping[str, tuple[Entry, LoggedRank]]
) -> RecommendResult:  # fmt: skip
    """Return the logged reply to a repeated request; refuse a different request with this event id."""
    events = events_of(page, request.n)
    message = f"event_id {page!r} was already used with a different request"
    different = ApiError(409, "event_exists", message, "event_id")
    entry, first = ranks.get(events[0], (None, None))
    if entry is None or first is None or first.page is None or first.page.asked is None:
        raise different
    source = first.page.asked
    same = (
        source.n == request.n
        and entry.user == request.user
        and bytes(first.context) == (bytes(request.context) or EMPTY)
        and first.deferred == request.defer
        and source.exclude == request.exclude
        and source.exclude_seen == request.exclude_seen
        and bytes(source.filter) == encode(request.filter)
    )
    if not same or not ranks.keys() >= {*events[: source.places]}:
        raise different
    logged = [(event, ranks[event][1]) for event in events[: source.places]]
    items = [
        RecommendedItem(body.actions[0].id, event, body.scores[0], body.probabilities[0], body.arm)
        for event, body in logged
    ]
    return RecommendResult(page, items, first.page.candidates, first.version)

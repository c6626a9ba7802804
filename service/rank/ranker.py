"""A ranker: requests in, decisions out. Stateless: it reads the published models and appends to the log.

Requests that arrive in one turn of the event loop are decided together, which halves what each costs, and all records
of a turn, rewards too, leave in one frame. A caller is answered once its record is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar, cast

import msgspec

from fedres.event_ids import new_event_id
from fedres.scoring.features import Hashed, Named, Preparer
from fedres.scoring.flattening import Limits
from service.errors import ApiError, invalid, unavailable
from service.log.protocol import Duplicate, Group, Log, Outcome, Refused, StoreUnavailable
from service.log.records import ACTIVATE, REWARD, Entry, LoggedRank, Record, RewardBody, encode, encode_reward, ranks_in
from service.log.workers import LogWorker, WorkerThread
from service.models.loop_metadata import LoopView
from service.models.memory import find_block, personal_key
from service.models.published import Loop, Models, NotPublished
from service.rank.decide import MOST_EXPLAINED, Decision, decide, repeated
from service.rank.explaining import explain_all
from service.rank.pinned import ensure_pinned, wants_pinned
from service.rank.quotas import Quotas, exceeded
from service.rank.requests import Action, RankRequest, RankResult, check_id, is_plain_id
from service.rank.slots import SlotsRequest, SlotsResult, check_slots, events_of, fill, filled_before
from service.settings import LARGEST_REWARD, Settings

MOST_TOGETHER = 16  # requests decided at once; more would keep the log writer idle, and all callers in step
ACTIONS_TOGETHER = 200  # of the requests that are decided with another one; they take a millisecond or two
POLL_SECONDS = 0.004
PUBLISH_SECONDS = 15.0  # that a change may take to be published
ERASE_SECONDS = 120.0  # the same for an erasure
COMPILE_SECONDS = 120.0  # that a request waits for code that is compiled in the background
LOOK_UP_SECONDS = 10.0  # that a look into the log may take

T = TypeVar("T")


class RankerLog(Protocol):
    """How a ranker reaches the log."""

    @property
    def trouble(self) -> str | None: ...
    def append(
        self, groups: Sequence[Group], futures: Sequence[asyncio.Future[Outcome]] | None = None
    ) -> Sequence[asyncio.Future[Outcome]]: ...


class LearnerQuestions(Protocol):
    """How a ranker asks the learner."""

    async def ask(self, what: str, loop: str = "", since: int = 0) -> Any: ...


class RankerContext:
    """What the parts of a ranker share: models to read, the log to append to and to look things up in, the learner."""

    def __init__(
        self,
        models: Models,
        log: RankerLog,
        learner: LearnerQuestions,
        open_log: Callable[[], Log],
        limits: Limits | None = None,
        only: Collection[str] | None = None,
        quotas: Quotas | None = None,
        new_worker: Callable[[], LogWorker] | None = None,
    ) -> None:
        make = new_worker or (lambda: WorkerThread(self.archive))
        self.reports, self.exports, self.jobs = make(), make(), make()  # none of them waits for the others
        self.quotas = quotas or Quotas()
        self.models, self.log, self.learner = models, log, learner
        self.limits = limits or Limits()
        self.preparer = Preparer(limits=self.limits)
        self._open_log = open_log
        self._only = only
        self._archive: Log | None = None
        self.closed = False
        self.orphaned = False  # the supervisor has died, and the learner ends with it

    def loop(self, name: str) -> Loop:
        """Return a loop as it is published."""
        if self.closed:
            raise ApiError(503, "store_closed", "the service is shutting down")
        try:
            loop = self.models.loop(name)
        except NotPublished as error:
            raise ApiError(503, "starting", f"{error}; try again") from None
        if loop is None:
            self.check_follows(name)
            raise ApiError(404, "unknown_loop", f"loop {name!r} does not exist; create it with POST /v1/loops", "loop")
        return loop

    def check_follows(self, name: str) -> None:
        """Refuse a loop that is left to other machines."""
        if self._only is not None and name not in self._only:
            followed = ", ".join(self._only)
            message = f"loop must be one that this machine follows ({followed}), got {name!r}: ask another machine"
            raise ApiError(421, "not_followed", message, "loop")

    def check_follows_all(self) -> None:
        """Refuse what is about all loops where some are left to other machines."""
        if self._only is not None:
            message = (
                f"this machine follows {', '.join(self._only)} only: ask for each loop, at a machine that follows it"
            )
            raise ApiError(421, "not_followed", message, "loop")

    def archive(self) -> Log:
        """Return the log, for reading; on a thread."""
        if self._archive is None:
            self._archive = self._open_log()
        return self._archive

    async def look_up(self, function: Callable[[Log], T]) -> T:
        """Return what a thread reads in the log."""
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                return await asyncio.to_thread(lambda: function(self.archive()))
        except StoreUnavailable as error:
            raise unavailable(error) from error
        except TimeoutError:
            raise ApiError(503, "store_timeout", f"the log could not be read within {LOOK_UP_SECONDS:g} s") from None

    def check_user(self, loop: Loop, user: str | None) -> None:
        """Refuse a user who would need a model of their own where a loop has too many."""
        view, quotas = loop.view, self.quotas
        if user is None or view.n_users < quotas.users or not view.settings.personal or self.models.memory is None:
            return
        if find_block(self.models.memory.words, *personal_key(view.id, user)) < 0:
            raise exceeded("users", quotas.users, "users with a personal model", view.name)

    async def append(self, *records: Record) -> int:
        """Return the position of the first of records that are stored together."""
        try:
            [future] = self.log.append([records])
            outcome = await future
        except StoreUnavailable as error:
            raise unavailable(error) from error
        if isinstance(outcome, Duplicate):
            raise outcome
        if isinstance(outcome, Refused):
            raise invalid(str(outcome))
        return outcome

    async def append_each(self, records: Sequence[Record]) -> list[int | Duplicate]:
        """Return the position of each record, or that its event has one already, once all are stored."""
        try:
            outcomes = await asyncio.gather(*self.log.append([[record] for record in records]))
        except StoreUnavailable as error:
            raise unavailable(error) from error
        for outcome in outcomes:
            if isinstance(outcome, Refused) and not isinstance(outcome, Duplicate):
                raise invalid(str(outcome))
        return cast(list[int | Duplicate], outcomes)

    async def until(self, published: Callable[[], bool], seconds: float = PUBLISH_SECONDS) -> None:
        """Return once something is published."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not published():
            if self.orphaned or asyncio.get_running_loop().time() > deadline:
                message = "the change is stored, and takes effect once the learner has published it"
                raise ApiError(503, "not_published", message)
            await asyncio.sleep(POLL_SECONDS)

    async def until_compiled(self) -> None:
        """Return once everything is compiled: on a first start, what few requests need follows in the background."""
        deadline = asyncio.get_running_loop().time() + COMPILE_SECONDS
        while self.models.compiling:
            if asyncio.get_running_loop().time() > deadline:
                message = "what this request needs is still being compiled, as on every first start; try again"
                raise ApiError(503, "starting", message)
            await asyncio.sleep(0.1)

    async def append_now(self, record: Record) -> int:
        """Append a change; return its position once it is in force."""
        position = await self.append(record)
        await self.until(lambda: self._position(record.loop) >= position)
        return position

    def _position(self, name: str) -> int:
        try:
            return self.loop(name).view.position
        except ApiError:  # not there, or not whole
            return 0

    async def ask(self, what: str, loop: str = "", since: int = 0) -> Any:
        """Return what the learner says."""
        try:
            return await self.learner.ask(what, loop, since)
        except StoreUnavailable as error:
            raise unavailable(error) from error

    def close(self) -> None:
        self.closed = True
        for worker in (self.reports, self.exports, self.jobs):
            worker.close()
        if self._archive is not None:
            self._archive.close()


class Waiting(msgspec.Struct):
    """A request that waits for its decision, and in the future, for its record to be stored."""

    loop: str
    request: RankRequest
    most_explained: int
    stored: asyncio.Future[Outcome]
    decision: Decision | None = None


class Ranker:
    """Decides, and takes rewards."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context
        self._waiting: list[Waiting] = []  # for the next turn
        self._groups: list[Group] = []  # records that leave with it
        self._futures: list[asyncio.Future[Outcome]] = []  # their outcomes
        self._reading: set[asyncio.Task[None]] = set()  # tasks are kept by nobody else

    async def rank(self, loop: str, request: RankRequest, most_explained: int = MOST_EXPLAINED) -> RankResult:
        """Return an action for a user in a context, once the decision is durable."""
        event_loop = asyncio.get_running_loop()
        if not self._waiting and not self._groups:
            event_loop.call_soon(self._decide_turn)
        waiting = Waiting(loop, request, most_explained, event_loop.create_future())
        self._waiting.append(waiting)
        try:
            outcome = await waiting.stored
        except StoreUnavailable as error:
            raise unavailable(error) from error
        decision = waiting.decision
        assert decision is not None
        if isinstance(outcome, Duplicate):
            result = await self._repeated(loop, request, decision.prepared.event_id)
        elif isinstance(outcome, Refused):
            raise invalid(str(outcome))
        else:
            result = decision.result()
        if request.explain:
            await self._context.until_compiled()
            result.explanations = await explain_all(decision.prepared, self._context.loop(loop), self._context.models)
        return result

    def _decide_turn(self) -> None:
        """Decide what waits, and send all records of this turn in one frame; failures are in the futures."""
        groups, futures, self._groups, self._futures = self._groups, self._futures, [], []
        turn, self._waiting = self._waiting, []
        if len(turn) > 1:
            turn, self._waiting = within_a_turn(turn)
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._decide_turn)
        by_loop: dict[tuple[str, int], list[Waiting]] = {}
        for waiting in turn:
            by_loop.setdefault((waiting.loop, waiting.most_explained), []).append(waiting)
        context, quotas = self._context, self._context.quotas
        fewest_bytes = min(quotas.pending_bytes, quotas.all_pending_bytes)
        for (name, most_explained), some in by_loop.items():
            try:
                loop = context.loop(name)
                view, pinned = loop.view, loop.view.settings.control.pinned
                if view.n_waiting >= quotas.pending_events or view.all_waiting_bytes >= fewest_bytes:
                    quotas.check_pending(view)
                if pinned is not None and wants_pinned(loop):
                    self._decide_later(name, some)
                    continue
                if view.n_users >= quotas.users:
                    some = self._without_new_users(some, loop)
                requests = [waiting.request for waiting in some]
                decisions = decide(requests, loop, context.models, context.preparer, most_explained=most_explained)
                decided = []
                for waiting, decision in zip(some, decisions, strict=True):
                    if isinstance(decision, ApiError):
                        fail([waiting.stored], decision)
                        continue
                    waiting.decision = decision
                    decided.append((decision.record(loop), waiting.stored))
                groups += [[record] for record, _ in decided]
                futures += [stored for _, stored in decided]
            except Exception as error:
                fail([waiting.stored for waiting in some], error)
        if groups:
            try:
                context.log.append(groups, futures)
            except Exception as error:
                fail(futures, error)

    async def reward(
        self,
        loop: str,
        event_id: str,
        value: float | None = None,
        reward_id: str | None = None,
        outcomes: Mapping[str, float] | None = None,
    ) -> None:
        """Store a reward, or named outcomes; they may come before their event, and repeats count once."""
        context, quotas = self._context, self._context.quotas
        view = context.loop(loop).view
        if not is_plain_id(event_id):
            check_id("event_id", event_id)
        records = reward_records(view, event_id, value, reward_id, outcomes)
        if view.all_waiting_bytes >= min(quotas.pending_bytes, quotas.all_pending_bytes):
            quotas.check_reward(view)
        if view.n_early >= quotas.early_events or view.n_early_rewards >= quotas.early_rewards:
            await self._check_early(view, event_id)
        event_loop = asyncio.get_running_loop()
        if not self._waiting and not self._groups:
            event_loop.call_soon(self._decide_turn)
        stored: asyncio.Future[Outcome] = event_loop.create_future()
        self._groups.append(records)
        self._futures.append(stored)
        try:
            outcome = await stored
        except StoreUnavailable as error:
            raise unavailable(error) from error
        if isinstance(outcome, Refused):
            raise invalid(str(outcome))

    async def activate(self, loop: str, event_id: str) -> None:
        """Let a deferred event wait for its reward from now on."""
        view, quotas = self._context.loop(loop).view, self._context.quotas
        check_id("event_id", event_id)
        if view.n_early >= quotas.early_events or view.n_early_rewards >= quotas.early_rewards:
            await self._check_early(view, event_id)
        await self._context.append(Record(loop, ACTIVATE, event_id))

    # What is rare

    async def rank_many(self, loop: str, requests: Sequence[RankRequest]) -> list[RankResult | ApiError]:
        """Return the same as ``rank`` for each of many requests, or why that one was refused.

        Requests of other callers are decided between those of a large batch.
        """
        n_explained = sum(request.explain for request in requests)
        most = MOST_EXPLAINED // max(1, n_explained)  # so that a batch takes no longer than one request
        tasks, n_actions = [], 0
        for request in requests:
            tasks.append(asyncio.ensure_future(self.rank(loop, request, most)))
            n_actions += len(request.actions)
            if n_actions >= ACTIONS_TOGETHER:
                await asyncio.sleep(0)
                n_actions = 0
        results = []
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, ApiError):
                raise result
            results.append(result)
        return results

    async def rank_slots(self, loop: str, request: SlotsRequest) -> SlotsResult:
        """Return an action for each slot of a page, none of them twice; all are stored together or none is."""
        check_slots(request)
        event_id = request.event_id or new_event_id()
        events = events_of(event_id, len(request.slots))
        if request.event_id is not None:
            logged = await self.logged_ranks(loop, events)
            if logged:
                return filled_before(request, event_id, logged)
        try:
            return await self._fill(loop, request, event_id)
        except Duplicate:
            return filled_before(request, event_id, await self.logged_ranks(loop, events))

    async def _fill(self, name: str, request: SlotsRequest, event_id: str) -> SlotsResult:
        context = self._context
        await ensure_pinned(context, name)
        loop = context.loop(name)
        context.quotas.check_pending(loop.view)
        context.check_user(loop, request.user)
        hashed = hashed_actions(request.actions, context.preparer)
        records: list[Record] = []

        def decided(slot_request: RankRequest) -> RankResult:
            [decision] = decide([slot_request], loop, context.models, context.preparer, hashed)
            if isinstance(decision, ApiError):
                raise decision
            records.append(decision.record(loop))
            return decision.result()

        filled = fill(request, event_id, decided)
        await context.append(*records)
        return filled

    async def logged_ranks(self, loop: str, events: list[str]) -> dict[str, tuple[Entry, LoggedRank]]:
        """Return the decisions of events; refuse those of a loop that was deleted."""
        created_at = self._context.loop(loop).view.created_at
        logged = await self._context.look_up(lambda log: ranks_in(log.find(loop, events)))
        for event, (entry, body) in logged.items():
            if body.is_feedback:
                message = f"event_id must be new, got {event!r}: feedback has this id"
                raise ApiError(409, "event_exists", message, "event_id")
            if entry.position <= created_at:
                message = f"event_id must be new, got {event!r}: a deleted loop of the same name has such an event"
                raise ApiError(409, "event_exists", message, "event_id")
        return logged

    async def _repeated(self, loop: str, request: RankRequest, event_id: str) -> RankResult:
        logged = await self.logged_ranks(loop, [event_id])
        if event_id not in logged:
            raise ApiError(409, "event_exists", f"event {event_id!r} is being erased")
        return repeated(request, *logged[event_id])

    def _decide_later(self, name: str, some: Sequence[Waiting]) -> None:
        """Decide once the pinned model is read, which happens once for each ranker and experiment."""

        async def read_and_decide() -> None:
            try:
                await ensure_pinned(self._context, name)
            except Exception as error:
                fail([waiting.stored for waiting in some], error)
                return
            if not self._waiting and not self._groups:
                asyncio.get_running_loop().call_soon(self._decide_turn)
            self._waiting += some

        task = asyncio.ensure_future(read_and_decide())
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    def _without_new_users(self, some: Sequence[Waiting], loop: Loop) -> list[Waiting]:
        """Refuse requests of users who would need a model of their own; return the others."""
        others = []
        for waiting in some:
            try:
                self._context.check_user(loop, waiting.request.user)
                others.append(waiting)
            except ApiError as error:
                fail([waiting.stored], error)
        return others

    async def _check_early(self, view: LoopView, event_id: str) -> None:
        """Where too many rewards came before their event, take only those of events that there are."""
        quotas = self._context.quotas
        logged = await self._context.look_up(lambda log: ranks_in(log.find(view.name, [event_id])))
        if event_id in logged:
            return
        if view.n_early >= quotas.early_events:
            what = "events with a reward that are not decided"
            raise exceeded("early_events", quotas.early_events, what, view.name)
        raise exceeded("early_rewards", quotas.early_rewards, "rewards of events that are not decided", view.name)


def within_a_turn(waiting: Sequence[Waiting]) -> tuple[list[Waiting], list[Waiting]]:
    """Return those that are decided now, and the others: the first, and few enough of those behind it.

    Small requests pass large ones, so that they wait for one of them at most.
    """
    turn, rest, n_actions = [waiting[0]], [], 0
    for each in waiting[1:]:
        if len(turn) < MOST_TOGETHER and n_actions + len(each.request.actions) <= ACTIONS_TOGETHER:
            turn.append(each)
            n_actions += len(each.request.actions)
        else:
            rest.append(each)
    return turn, rest


def fail(futures: Iterable[asyncio.Future[Outcome]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(unavailable(error) if isinstance(error, StoreUnavailable) else error)


def hashed_actions(actions: Sequence[Action], preparer: Preparer) -> dict[str, Hashed]:
    """Return the features that come with actions, hashed, by id: once for all slots.

    What cannot be hashed is left out: deciding says what is wrong with it.
    """
    inline = [action for action in actions if action.features]
    rows = preparer.hash_all([Named("", action.id, bytes(action.features)) for action in inline])
    return {action.id: row for action, row in zip(inline, rows, strict=True) if isinstance(row, Hashed)}


def reward_records(
    view: LoopView, event_id: str, value: float | None, reward_id: str | None, outcomes: Mapping[str, float] | None
) -> list[Record]:
    """Return what is logged of a reward, or of each outcome; refuse what does not suit the loop."""
    settings = view.settings
    if reward_id is not None and not is_plain_id(reward_id):
        check_id("id", reward_id)
    named: list[tuple[float, str | None]] = []
    if settings.formula is not None:
        named = named_outcomes(settings, value, outcomes)
    else:
        low, high = settings.reward_range
        if value is None or outcomes is not None:
            raise invalid("a reward must be a value: the loop's settings have no outcomes", "value")
        if not low <= value <= high:
            raise invalid(f"value must be in [{low:g}, {high:g}], got {value}", "value")
        named.append((float(value), None))
    return [
        Record(
            view.name,
            REWARD,
            event_id,
            None,
            encode_reward(number, reward_id, name),
            encode(RewardBody(number, reward_id, name)),
        )
        for number, name in named
    ]


def named_outcomes(
    settings: Settings, value: float | None, outcomes: Mapping[str, float] | None
) -> list[tuple[float, str | None]]:
    """Return the values and names of outcomes, where the loop's reward is a formula over them."""
    if value is not None or not outcomes:
        raise invalid("a reward must be outcomes and no value: the loop's reward is a formula", "outcomes")
    for name, number in outcomes.items():
        if name not in settings.outcomes:
            raise invalid(f"outcomes must be of {', '.join(settings.outcomes)}, got {name[:100]!r}", "outcomes")
        if not abs(number) <= LARGEST_REWARD:
            raise invalid(f"outcomes must be within ±{LARGEST_REWARD:g}, got {number} for {name!r}", "outcomes")
    return [(float(number), name) for name, number in outcomes.items()]

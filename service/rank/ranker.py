"""A ranker: requests in, decisions out. Stateless: it reads the published models and appends to the log.

Requests that arrive in one turn of the event loop are decided together, which halves the cost of each, and all records
of a turn, rewards too, are sent in one frame. A caller gets the reply once its record is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import msgspec

from fedres.scoring.features import Hashed, Named, Preparer
from fedres.scoring.flattening import LARGEST
from fedres_client.event_ids import new_event_id
from service.errors import ApiError, invalid
from service.log.client import WriterClient
from service.log.protocol import Duplicate, Group, Log, Outcome, Refused, StoreUnavailable, unavailable
from service.log.records import (
    ACTIVATE,
    RANK,
    REWARD,
    Entry,
    LoggedRank,
    Record,
    RewardBody,
    encode,
    encode_reward,
    ranks_in,
    read_reward,
)
from service.log.workers import LogWorker, WorkerThread
from service.logs import log_failure
from service.models.loop_metadata import LoopView
from service.models.memory import find_block, personal_key
from service.models.published import Loop, NotPublished, PublishedModels
from service.rank.decide import Decision, decide, repeated, work_of
from service.rank.explaining import MOST_EXPLAINED, explain_all, explainable
from service.rank.look_ups import LookUps
from service.rank.quotas import Quotas, RewardCounts, exceeded
from service.rank.requests import RankRequest, RankResult, check_id, is_plain_id
from service.rank.slots import SlotsRequest, SlotsResult, check_slots, events_of, fill, filled_before, give_way
from service.rank.threads import FairThreads
from service.settings import LARGEST_REWARD

MOST_TOGETHER = 16  # requests decided at once; more would keep the log writer idle, and all callers in step
ACTIONS_TOGETHER = 200  # of requests decided together with another one; they take a millisecond or two
MOST_WORK = 5_000  # of a step of the event loop, as ``work_of`` estimates it; what is more goes to a thread
DECIDING_THREADS = 2  # for decisions that are more work, of which a loop has one
MOST_DECIDING = 200  # decisions of a loop that wait for it: two batches
POLL_SECONDS = 0.004
# A change may take this long to be published.
PUBLISH_SECONDS = 15.0
ERASE_SECONDS = 120.0  # the same for an erasure
# A request waits this long for code that compiles in the background.
COMPILE_SECONDS = 120.0

T = TypeVar("T")


class LearnerQuestions(Protocol):
    """A ranker's interface to the learner."""

    async def ask(self, what: str, loop: str = "", since: int = 0) -> Any: ...


class RankerContext:
    """State shared by the parts of a ranker: published models, the log for appends and lookups, the learner."""

    def __init__(
        self,
        models: PublishedModels,
        log: WriterClient,
        learner: LearnerQuestions,
        open_log: Callable[[], Log],
        only: Collection[str] | None = None,
        quotas: Quotas | None = None,
        new_worker: Callable[[str], LogWorker] | None = None,
    ) -> None:
        make = new_worker or (lambda _: WorkerThread(self.archive))
        # None of them waits for the others.
        self.reports = make("reports")
        self.exports = make("exports")
        self.jobs = make("jobs")
        self.quotas = quotas or Quotas()
        self.models, self.log, self.learner = models, log, learner
        self.preparer = Preparer()
        self._open_log = open_log
        self._look_ups = LookUps(open_log)
        self.threads = FairThreads("decision", DECIDING_THREADS, 1, MOST_DECIDING)
        self._rewards = RewardCounts()
        self._only = only
        self._archive: Log | None = None
        self.closed = False
        self.orphaned = False  # the supervisor has died, and the learner ends with it

    def preparer_of(self, loop: Loop) -> Preparer:
        """Return what hashes features for a loop, within its own bound on numbers if it has one."""
        largest = loop.view.settings.largest_number
        return self.preparer if largest >= LARGEST else Preparer.within(largest)

    def loop(self, name: str) -> Loop:
        """Return a loop as published."""
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

    @property
    def all_waiting_bytes(self) -> int:
        """Bytes of the events of all loops that wait for their reward, as of the learner's last turn."""
        return self.models.all_waiting_bytes

    def check_follows(self, name: str) -> None:
        """Refuse a loop that this machine does not follow."""
        if self._only is not None and name not in self._only:
            followed = ", ".join(self._only)
            message = f"loop must be one that this machine follows ({followed}), got {name!r}: ask another machine"
            raise ApiError(421, "not_followed", message, "loop")

    def check_follows_all(self) -> None:
        """Refuse requests for all loops if this machine follows only some."""
        if self._only is not None:
            message = (
                f"this machine follows {', '.join(self._only)} only: ask for each loop, at a machine that follows it"
            )
            raise ApiError(421, "not_followed", message, "loop")

    def archive(self) -> Log:
        """Return the log for reading; call this on a thread."""
        if self._archive is None:
            self._archive = self._open_log()
        return self._archive

    async def look_up(self, loop: str, function: Callable[[Log], T]) -> T:
        """Return the result of a function that reads the log on a thread, on the share of a loop ("": the service)."""
        return await self._look_ups.call(loop, function)

    @asynccontextmanager
    async def lend(self, name: str, actions: Sequence[str] = ()) -> AsyncIterator[Loop]:
        """Yield a copy of a loop for a thread, with these actions of its catalogue."""
        with self.loop(name).lend(actions) as loop:
            yield loop

    async def are_repeats(self, view: LoopView, event_id: str, records: Sequence[Record]) -> bool:
        """Count rewards of an event. Return whether it has very many and the log has these; refuse new ones then."""
        most = self.quotas.rewards
        if self._rewards.add(view.id, event_id, len(records)) <= most:
            return False
        keys = self._rewards.stored(view.id, event_id)
        if keys is None:
            entries = await self.look_up(view.name, lambda log: log.rewards_of(view.name, event_id, most))
            keys = frozenset(read_reward(entry.example)[1] for entry in entries if entry.example is not None)
            self._rewards.note(view.id, event_id, len(entries), keys, most)
            if len(entries) < most:
                # Count those that are stored now.
                self._rewards.add(view.id, event_id, len(records))
                return False
        if all(read_reward(record.example or b"")[1] in keys for record in records):
            return True
        raise exceeded("rewards", most, f"rewards of event {event_id!r}", view.name)

    def check_user(self, loop: Loop, user: str | None) -> None:
        """Refuse a user without a personal model if the loop has too many."""
        view, quotas = loop.view, self.quotas
        if user is None or view.n_users < quotas.users or not view.settings.personal or self.models.memory is None:
            return
        if find_block(self.models.memory.words, *personal_key(view.id, user)) < 0:
            raise exceeded("users", quotas.users, "users with a personal model", view.name)

    async def append(self, *records: Record) -> int:
        """Store records together; return the position of the first."""
        [outcome] = await self._append([records])
        if isinstance(outcome, Duplicate):
            raise outcome
        return outcome

    async def append_each(self, records: Sequence[Record]) -> list[int | Duplicate]:
        """Store records; return the position of each, or its ``Duplicate``."""
        return await self._append([[record] for record in records])

    async def _append(self, groups: Sequence[Group]) -> list[int | Duplicate]:
        outcomes = await asyncio.gather(*self.log.append(groups))
        for outcome in outcomes:
            if isinstance(outcome, Refused) and not isinstance(outcome, Duplicate):
                raise invalid(str(outcome))
        return cast(list[int | Duplicate], outcomes)

    async def until(self, published: Callable[[], bool], seconds: float = PUBLISH_SECONDS) -> None:
        """Return once ``published`` returns True."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not published():
            if self.orphaned or asyncio.get_running_loop().time() > deadline:
                message = "the change is stored, and takes effect once the learner has published it"
                raise ApiError(503, "not_published", message)
            await asyncio.sleep(POLL_SECONDS)

    async def until_compiled(self) -> None:
        """Return once everything is compiled: on a first start, code for rarer requests follows in the background."""
        deadline = asyncio.get_running_loop().time() + COMPILE_SECONDS
        while self.models.compiling:
            if asyncio.get_running_loop().time() > deadline:
                message = "what this request needs is still being compiled, as on every first start; try again"
                raise ApiError(503, "starting", message)
            await asyncio.sleep(0.1)

    async def append_now(self, record: Record) -> int:
        """Append a change; return its position once it is in effect."""
        position = await self.append(record)
        await self.until(lambda: self._position(record.loop) >= position)
        return position

    def _position(self, name: str) -> int:
        try:
            return self.loop(name).view.position
        except ApiError:  # missing or incomplete
            return 0

    def close(self) -> None:
        self.closed = True
        for worker in (self.reports, self.exports, self.jobs):
            worker.close()
        self._look_ups.close()
        self.threads.close()
        if self._archive is not None:
            self._archive.close()


class WaitingRequest(msgspec.Struct):
    """A request that waits for its decision; the future is done once its record is stored."""

    loop: str
    request: RankRequest
    most_explained: int
    stored: asyncio.Future[Outcome]
    work: float = 0.0
    decision: Decision | None = None


class Ranker:
    """Decides, and takes rewards."""

    def __init__(self, context: RankerContext) -> None:
        self._context = context
        self._waiting: list[WaitingRequest] = []  # for the next turn
        self._groups: list[Group] = []  # records that leave with it
        self._futures: list[asyncio.Future[Outcome]] = []  # their outcomes
        self._tasks: set[asyncio.Task[None]] = set()  # the event loop keeps no references to tasks
        self._large: dict[str, list[WaitingRequest]] = {}  # with many actions, or of a batch, by loop in turn
        self._filling = asyncio.Lock()  # one page at a time is filled here, so that others wait for one at most

    async def rank(
        self, loop: str, request: RankRequest, most_explained: int = MOST_EXPLAINED, *, in_batch: bool = False
    ) -> RankResult:
        """Return an action for a user in a context, once the decision is durable."""
        event_loop = asyncio.get_running_loop()
        work = work_of(request, self._context.loop(loop))
        waiting = WaitingRequest(loop, request, most_explained, event_loop.create_future(), work)
        if work > MOST_WORK:
            self._start(self._decide_on_thread(waiting))
        elif in_batch or len(request.actions) > ACTIONS_TOGETHER:
            if not self._large:
                self._start(self._decide_large())
            self._large.setdefault(loop, []).append(waiting)
        else:
            if not self._waiting and not self._groups:
                event_loop.call_soon(self._decide_turn)
            self._waiting.append(waiting)
        outcome = await waiting.stored
        decision = waiting.decision
        assert decision is not None
        if isinstance(outcome, Duplicate):
            event_id = decision.prepared.event_id
            logged = await self.logged_ranks(loop, [event_id])
            if event_id not in logged:
                raise ApiError(409, "event_exists", f"event {event_id!r} is being erased")
            result = repeated(request, *logged[event_id])
        elif isinstance(outcome, Refused):
            raise invalid(str(outcome))
        else:
            result = decision.result()
        if request.explain:
            await self._context.until_compiled()
            result.explanations = await explain_all(decision.prepared, self._context.loop(loop), self._context.models)
        return result

    def _decide_turn(self, large: Sequence[WaitingRequest] = ()) -> None:
        """Decide waiting requests, or ``large`` ones, and send all records of this turn in one frame.

        Futures receive the failures.
        """
        groups, futures, self._groups, self._futures = self._groups, self._futures, [], []
        turn = large
        if not large and len(self._waiting) > 1:
            turn, self._waiting = within_a_turn(self._waiting)
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._decide_turn)
        elif not large:
            turn, self._waiting = self._waiting, []
        by_loop: dict[str, list[WaitingRequest]] = {}
        for waiting in turn:
            by_loop.setdefault(waiting.loop, []).append(waiting)
        context, quotas = self._context, self._context.quotas
        is_full = context.all_waiting_bytes >= quotas.all_pending_bytes
        for name, batch in by_loop.items():
            try:
                loop = context.loop(name)
                view = loop.view
                many = view.n_waiting >= quotas.pending_events or view.waiting_bytes >= quotas.pending_bytes
                if many or is_full:
                    quotas.check_pending(view, context.all_waiting_bytes)
                if view.n_users >= quotas.users:
                    batch = self._without_new_users(batch, loop)
                requests = [waiting.request for waiting in batch]
                decisions = decide(requests, loop, context.models, context.preparer_of(loop))
                decided = []
                for waiting, decision in zip(batch, decisions, strict=True):
                    if waiting.request.explain and isinstance(decision, Decision):
                        decision = explainable(decision, loop, waiting.most_explained)
                    if isinstance(decision, ApiError):
                        fail([waiting.stored], decision)
                        continue
                    waiting.decision = decision
                    decided.append((decision.record(loop), waiting.stored))
                groups += [[record] for record, _ in decided]
                futures += [stored for _, stored in decided]
            except Exception as error:
                fail([waiting.stored for waiting in batch], error)
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
        quotas.check_bytes(view, context.all_waiting_bytes, 2)
        if view.n_early >= quotas.early_events or view.n_early_rewards >= quotas.early_rewards:
            await self._check_early(view, event_id)
        if await context.are_repeats(view, event_id, records):
            return
        stored: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._send(records, stored)
        outcome = await stored
        if isinstance(outcome, Refused):
            raise invalid(str(outcome))

    async def activate(self, loop: str, event_id: str) -> None:
        """Let a deferred event wait for its reward from now on."""
        view, quotas = self._context.loop(loop).view, self._context.quotas
        check_id("event_id", event_id)
        if view.n_early >= quotas.early_events or view.n_early_rewards >= quotas.early_rewards:
            await self._check_early(view, event_id)
        await self._context.append(Record(loop, ACTIVATE, event_id))

    # Rare calls

    async def _decide_large(self) -> None:
        """Decide requests with many actions and those of batches, a few of each loop in turn; others in between."""
        while self._large:
            await give_way()
            name = next(iter(self._large))
            turn, others = within_a_turn(self._large.pop(name))
            if others:
                self._large[name] = others  # behind the other loops
            self._decide_turn(turn)

    async def _decide_on_thread(self, waiting: WaitingRequest) -> None:
        """Decide a request with very many features; its record leaves with those of the next turn."""
        context, request = self._context, waiting.request
        try:
            context.quotas.check_pending(context.loop(waiting.loop).view, context.all_waiting_bytes)
            context.check_user(context.loop(waiting.loop), request.user)

            def decided(loop: Loop) -> tuple[Loop, Decision | ApiError]:
                preparer = Preparer.within(loop.view.settings.largest_number)
                [decision] = decide([request], loop, context.models, preparer)
                return loop, decision

            names = [action.id for action in request.actions]
            lend = partial(context.lend, waiting.loop, names)
            loop, decision = await context.threads.call(waiting.loop, lend, decided)
            if request.explain and isinstance(decision, Decision):
                decision = explainable(decision, loop, waiting.most_explained)
            if isinstance(decision, ApiError):
                raise decision
            waiting.decision = decision
            self._send([decision.record(loop)], waiting.stored)
        except Exception as error:
            fail([waiting.stored], error)

    def _send(self, records: Group, stored: asyncio.Future[Outcome]) -> None:
        """Send records with those of the next turn."""
        if not self._waiting and not self._groups:
            asyncio.get_running_loop().call_soon(self._decide_turn)
        self._groups.append(records)
        self._futures.append(stored)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(log_failure)

    async def rank_many(self, loop: str, requests: Sequence[RankRequest]) -> list[RankResult | ApiError]:
        """Return the same as ``rank`` for each of many requests, or why that one was refused."""
        n_explained = sum(request.explain for request in requests)
        most = MOST_EXPLAINED // max(1, n_explained)  # so that a batch takes no longer than one request
        tasks = [asyncio.ensure_future(self.rank(loop, request, most, in_batch=True)) for request in requests]
        results = []
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, StoreUnavailable):
                result = unavailable(result)
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
        context.quotas.check_pending(context.loop(name).view, context.all_waiting_bytes)
        context.check_user(context.loop(name), request.user)

        def filled(loop: Loop) -> tuple[SlotsResult, list[Record]]:
            preparer = Preparer.within(loop.view.settings.largest_number)
            inline = [action for action in request.actions if action.features]
            rows = preparer.hash_all([Named("", action.id, bytes(action.features)) for action in inline])
            # Once for all slots. Actions that cannot be hashed are left out: deciding reports the error.
            hashed = {action.id: row for action, row in zip(inline, rows, strict=True) if isinstance(row, Hashed)}
            records: list[Record] = []

            def decided(slot_request: RankRequest) -> RankResult:
                [decision] = decide([slot_request], loop, context.models, preparer, hashed)
                if isinstance(decision, ApiError):
                    raise decision
                records.append(decision.record(loop))
                return decision.result()

            return fill(request, event_id, decided), records  # at once: by one version of the model

        whole = RankRequest(actions=request.actions, context=request.context)
        if len(request.slots) * work_of(whole, context.loop(name)) > MOST_WORK:
            names = [action.id for action in request.actions]
            result, records = await context.threads.call(name, partial(context.lend, name, names), filled)
        else:
            async with self._filling:
                await give_way()
                result, records = filled(context.loop(name))
        await context.append(*records)
        return result

    async def logged_ranks(self, loop: str, events: list[str]) -> dict[str, tuple[Entry, LoggedRank]]:
        """Return the decisions of events; refuse those of a loop that was deleted."""
        created_at = self._context.loop(loop).view.created_at
        logged = await self._context.look_up(loop, lambda log: ranks_in(log.find(loop, events, RANK)))
        for event, (entry, body) in logged.items():
            if body.is_feedback:
                message = f"event_id must be new, got {event!r}: feedback has this id"
                raise ApiError(409, "event_exists", message, "event_id")
            if entry.position <= created_at:
                message = f"event_id must be new, got {event!r}: a deleted loop of the same name has such an event"
                raise ApiError(409, "event_exists", message, "event_id")
        return logged

    def _without_new_users(self, batch: Sequence[WaitingRequest], loop: Loop) -> list[WaitingRequest]:
        """Refuse requests of users who would need a model of their own; return the others."""
        others = []
        for waiting in batch:
            try:
                self._context.check_user(loop, waiting.request.user)
                others.append(waiting)
            except ApiError as error:
                fail([waiting.stored], error)
        return others

    async def _check_early(self, view: LoopView, event_id: str) -> None:
        """Refuse a reward without an existing event, if too many such rewards are stored already."""
        quotas = self._context.quotas
        if await self._context.look_up(view.name, lambda log: log.find(view.name, [event_id], RANK)):
            return
        if view.n_early >= quotas.early_events:
            what = "events with a reward that are not decided"
            raise exceeded("early_events", quotas.early_events, what, view.name)
        raise exceeded("early_rewards", quotas.early_rewards, "rewards of events that are not decided", view.name)


def within_a_turn(waiting: Sequence[WaitingRequest]) -> tuple[list[WaitingRequest], list[WaitingRequest]]:
    """Return the requests to decide now, the first ones, and the others."""
    n = 1
    n_actions = len(waiting[0].request.actions)
    work = waiting[0].work
    while n < min(len(waiting), MOST_TOGETHER):
        n_actions += len(waiting[n].request.actions)
        work += waiting[n].work
        if n_actions > ACTIONS_TOGETHER or work > MOST_WORK:
            break
        n += 1
    return [*waiting[:n]], [*waiting[n:]]


def fail(futures: Iterable[asyncio.Future[Outcome]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error)


def reward_records(
    view: LoopView, event_id: str, value: float | None, reward_id: str | None, outcomes: Mapping[str, float] | None
) -> list[Record]:
    """Return the record of a reward, or of each outcome; refuse those that do not fit the loop's settings."""
    settings = view.settings
    if reward_id is not None and not is_plain_id(reward_id):
        check_id("id", reward_id)
    named: list[tuple[float, str | None]] = []
    if settings.formula is None:
        low, high = settings.reward_range
        if value is None or outcomes is not None:
            raise invalid("a reward must be a value: the loop's settings have no outcomes", "value")
        if not low <= value <= high:
            raise invalid(f"value must be in [{low:g}, {high:g}], got {value}", "value")
        named.append((float(value), None))
    elif value is not None or not outcomes:
        raise invalid("a reward must be outcomes and no value: the loop's reward is a formula", "outcomes")
    else:
        for name, number in outcomes.items():
            if name not in settings.outcomes:
                raise invalid(f"outcomes must be of {', '.join(settings.outcomes)}, got {name[:100]!r}", "outcomes")
            if not abs(number) <= LARGEST_REWARD:
                raise invalid(f"outcomes must be within ±{LARGEST_REWARD:g}, got {number} for {name!r}", "outcomes")
            named.append((float(number), name))
    records = []
    for number, outcome in named:
        body = encode(RewardBody(number, reward_id, outcome))
        records.append(Record(view.name, REWARD, event_id, None, encode_reward(number, reward_id, outcome), body))
    return records

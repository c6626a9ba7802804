"""A ranker: requests in, decisions out. Stateless: it reads the published models and appends to the log.

Requests that arrive in one turn of the event loop are decided together, which halves what each costs. A caller is
answered once its record is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from fedres.event_ids import new_event_id
from fedres.scoring.features import Hashed, Preparer
from fedres.scoring.flattening import Limits
from service.errors import ApiError, invalid, unavailable
from service.log.protocol import Duplicate, Group, Log, Outcome, Refused, StoreUnavailable
from service.log.records import ACTIVATE, Entry, LoggedRank, Record, ranks_in
from service.log.workers import LogWorker, WorkerThread
from service.models.memory import find_block
from service.models.personal import personal_key
from service.models.published import Loop, Models, NotPublished
from service.models.views import LoopView
from service.rank.asked import Asked, fail, hash_in_pieces, pieces
from service.rank.decide import MOST_EXPLAINED, NOTHING, decide, repeated
from service.rank.explaining import explain_all
from service.rank.pinned import ensure_pinned, wants_pinned
from service.rank.quotas import Quotas, exceeded
from service.rank.requests import RankRequest, RankResult, check_id
from service.rank.rewards import reward_records
from service.rank.slots import SlotsRequest, SlotsResult, check_slots, events_of, fill, filled_before

MOST_TOGETHER = 16  # requests decided at once; more would keep the log writer idle, and all callers in step
POLL_SECONDS = 0.004
PUBLISH_SECONDS = 15.0  # that a change may take to be published
ERASE_SECONDS = 120.0  # the same for an erasure
LOOK_UP_SECONDS = 10.0  # that a look into the log may take

T = TypeVar("T")


class Appender(Protocol):
    """How a ranker reaches the log."""

    @property
    def trouble(self) -> str | None: ...
    def append(
        self, groups: Sequence[Group], futures: Sequence[asyncio.Future[Outcome]] | None = None
    ) -> Sequence[asyncio.Future[Outcome]]: ...


class LearnerQuestions(Protocol):
    """How a ranker asks the learner."""

    async def ask(self, what: str, loop: str = "", since: int = 0) -> Any: ...


class Machine:
    """What the parts of a ranker share: models to read, the log to append to and to look things up in, the learner."""

    def __init__(
        self,
        models: Models,
        log: Appender,
        learner: LearnerQuestions,
        open_log: Callable[[], Log],
        limits: Limits | None = None,
        only: Collection[str] | None = None,
        quotas: Quotas | None = None,
        aside: Callable[[], LogWorker] | None = None,
    ) -> None:
        aside = aside or (lambda: WorkerThread(self.archive))
        self.reports, self.exports, self.jobs = aside(), aside(), aside()  # none of them waits for the others
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
            raise ApiError(404, "unknown_loop", f"loop must be one that exists, got {name!r}", "loop")
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

    async def until(self, published: Callable[[], bool], seconds: float = PUBLISH_SECONDS) -> None:
        """Return once something is published."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not published():
            if self.orphaned or asyncio.get_running_loop().time() > deadline:
                message = "the change is stored, and takes effect once the learner has published it"
                raise ApiError(503, "not_published", message)
            await asyncio.sleep(POLL_SECONDS)

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
        for one in (self.reports, self.exports, self.jobs):
            one.close()
        if self._archive is not None:
            self._archive.close()


class Ranker:
    """Decides, and takes rewards."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._turn: list[Asked] = []
        self._reading: set[asyncio.Task[None]] = set()  # tasks are kept by nobody else

    async def rank(self, loop: str, request: RankRequest) -> RankResult:
        """Return an action for a user in a context, once the decision is durable."""
        asked = Asked(loop, request)
        if not self._turn:
            asyncio.get_running_loop().call_soon(self._decide_turn)
        self._turn.append(asked)
        return await self._answered(asked)

    async def rank_large(self, loop: str, request: RankRequest) -> RankResult:
        """Return the same for a request that would take long at once; other callers are served meanwhile."""
        [result] = await self.rank_many(loop, [request])
        if isinstance(result, ApiError):
            raise result
        return result

    async def rank_many(self, loop: str, requests: Sequence[RankRequest]) -> list[RankResult | ApiError]:
        """Return the same for each of many requests, or why that one was refused.

        Other callers are served between pieces of a large batch, or of a large request.
        """
        n_explained = sum(request.explain for request in requests)
        most = MOST_EXPLAINED // max(1, n_explained)  # so that a batch takes no longer than one request
        asked = [Asked(loop, request) for request in requests]
        async for piece in pieces(asked):
            alone = piece[0].request.actions if len(piece) == 1 else ()
            self._decide(piece, await hash_in_pieces(alone, self._machine.preparer), most)
        results: list[RankResult | ApiError] = []
        async for piece in pieces(asked):
            results += [await self._answered_or_refused(one) for one in piece]
        return results

    async def rank_slots(self, loop: str, request: SlotsRequest) -> SlotsResult:
        """Return an action for each slot of a page, none of them twice; all are stored together or none is."""
        check_slots(request)
        event_id = request.event_id or new_event_id()
        if request.event_id is not None:
            known = await self._ranks_of(loop, request)
            if known:
                return await filled_before(request, event_id, known)
        try:
            return await self._fill(loop, request, event_id)
        except Duplicate:
            return await filled_before(request, event_id, await self._ranks_of(loop, request))

    async def _fill(self, name: str, request: SlotsRequest, event_id: str) -> SlotsResult:
        machine = self._machine
        await ensure_pinned(machine, name)
        hashed = await hash_in_pieces(request.actions, machine.preparer)
        loop = machine.loop(name)
        machine.quotas.check_pending(loop.view)
        machine.check_user(loop, request.user)
        records: dict[str, Record] = {}

        def decided(asked: RankRequest) -> RankResult:
            [decision] = decide([asked], loop, machine.models, machine.preparer, hashed)
            if isinstance(decision, ApiError):
                raise decision
            records[str(asked.event_id)] = decision.record(loop)
            return decision.result()

        filled = await fill(request, event_id, decided)
        await machine.append(*records.values())
        return filled

    async def _ranks_of(self, loop: str, request: SlotsRequest) -> dict[str, tuple[Entry, LoggedRank]]:
        events = events_of(request.event_id or "", len(request.slots))
        return await self._known_ranks(loop, events)

    async def _known_ranks(self, loop: str, events: list[str]) -> dict[str, tuple[Entry, LoggedRank]]:
        """Return the decisions of events; refuse those of a loop that was deleted."""
        since = self._machine.loop(loop).view.since
        known = await self._machine.look_up(lambda log: ranks_in(log.find(loop, events)))
        for event, (entry, _) in known.items():
            if entry.position <= since:
                message = f"event_id must be new, got {event!r}: a deleted loop of the same name has such an event"
                raise ApiError(409, "event_exists", message, "event_id")
        return known

    def _decide_turn(self) -> None:
        asked, self._turn = self._turn[:MOST_TOGETHER], self._turn[MOST_TOGETHER:]
        if self._turn:
            asyncio.get_running_loop().call_soon(self._decide_turn)
        self._decide(asked)

    def _decide(
        self, asked: Sequence[Asked], hashed: Mapping[str, Hashed] = NOTHING, most_explained: int = MOST_EXPLAINED
    ) -> None:
        """Decide requests together, and hand their records to the log; what goes wrong is in the futures."""
        by_loop: dict[str, list[Asked]] = {}
        for one in asked:
            by_loop.setdefault(one.loop, []).append(one)
        machine = self._machine
        for name, some in by_loop.items():
            try:
                loop = machine.loop(name)
                machine.quotas.check_pending(loop.view)
                if wants_pinned(loop):
                    self._decide_later(name, some, most_explained)
                    continue
                if loop.view.n_users >= machine.quotas.users:
                    some = self._without_new_users(some, loop)
                requests = [one.request for one in some]
                decisions = decide(requests, loop, machine.models, machine.preparer, hashed, most_explained)
                groups: list[Group] = []
                futures = []
                for one, decision in zip(some, decisions, strict=True):
                    if isinstance(decision, ApiError):
                        one.future.set_exception(decision)
                        continue
                    one.decision = decision
                    groups.append([decision.record(loop)])
                    futures.append(one.future)
                if groups:
                    machine.log.append(groups, futures)
            except Exception as error:
                fail(some, error)

    def _decide_later(self, name: str, asked: Sequence[Asked], most_explained: int) -> None:
        """Decide once the pinned model is read, which happens once for each ranker and experiment."""

        async def read_and_decide() -> None:
            try:
                await ensure_pinned(self._machine, name)
            except Exception as error:
                fail(asked, error)
            else:
                self._decide(asked, most_explained=most_explained)

        task = asyncio.ensure_future(read_and_decide())
        self._reading.add(task)
        task.add_done_callback(self._reading.discard)

    def _without_new_users(self, asked: Sequence[Asked], loop: Loop) -> list[Asked]:
        """Refuse requests of users who would need a model of their own; return the others."""
        known = []
        for one in asked:
            try:
                self._machine.check_user(loop, one.request.user)
                known.append(one)
            except ApiError as error:
                one.future.set_exception(error)
        return known

    async def _answered(self, asked: Asked) -> RankResult:
        try:
            outcome = await asked.future
        except StoreUnavailable as error:
            raise unavailable(error) from error
        decision, machine = asked.decision, self._machine
        assert decision is not None
        if isinstance(outcome, Duplicate):
            return await self._repeated(asked.loop, asked.request, decision.prepared.event_id)
        if isinstance(outcome, Refused):
            raise invalid(str(outcome))
        result = decision.result()
        if asked.request.explain:
            loop = machine.loop(asked.loop)
            result.explanations = await explain_all(decision.prepared, loop, machine.models)
        return result

    async def _answered_or_refused(self, asked: Asked) -> RankResult | ApiError:
        try:
            return await self._answered(asked)
        except ApiError as error:
            return error

    async def _repeated(self, loop: str, request: RankRequest, event_id: str) -> RankResult:
        known = await self._known_ranks(loop, [event_id])
        if event_id not in known:
            raise ApiError(409, "event_exists", f"event {event_id!r} is being erased")
        return repeated(request, *known[event_id])

    async def reward(
        self,
        loop: str,
        event_id: str,
        value: float | None = None,
        reward_id: str | None = None,
        outcomes: Mapping[str, float] | None = None,
    ) -> None:
        """Store a reward, or named outcomes; they may come before their event, and repeats count once."""
        view = self._machine.loop(loop).view
        check_id("event_id", event_id)
        records = reward_records(view, event_id, value, reward_id, outcomes)
        self._machine.quotas.check_reward(view)
        await self._check_early(view, event_id)
        await self._machine.append(*records)

    async def _check_early(self, view: LoopView, event_id: str) -> None:
        """Where too many rewards came before their event, take only those of events that there are."""
        quotas = self._machine.quotas
        if view.n_early < quotas.early_events and view.n_early_rewards < quotas.early_rewards:
            return
        known = await self._machine.look_up(lambda log: ranks_in(log.find(view.name, [event_id])))
        if event_id in known:
            return
        if view.n_early >= quotas.early_events:
            what = "events with a reward that are not decided"
            raise exceeded("early_events", quotas.early_events, what, view.name)
        raise exceeded("early_rewards", quotas.early_rewards, "rewards of events that are not decided", view.name)

    async def activate(self, loop: str, event_id: str) -> None:
        """Let a deferred event wait for its reward from now on."""
        view = self._machine.loop(loop).view
        check_id("event_id", event_id)
        await self._check_early(view, event_id)
        await self._machine.append(Record(loop, ACTIVATE, event_id))

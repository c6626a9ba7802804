"""The client of a hosted service for programs with threads."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedres_client.base import CONNECTIONS, BaseClient, refuse_former
from fedres_client.calls import PAGE, ServiceCall, identified, observed
from fedres_client.inputs import Actions, Features, Id
from fedres_client.retrying import no_answer, passes, retrying
from fedres_client.rewards import CLOSE_SECONDS
from fedres_client.types import Decision, Event, RankRequest, Recommendation, Slot
from fedres_client.wire import Answer, Failure, Finished, Flow, Wait, advance
from fedres_client.workers import Job, Workers

if TYPE_CHECKING:
    import httpx
    from typing_extensions import Never, Self, Unpack

    from fedres_client.service_types import (
        FeedbackStored,
        LiftReport,
        PopularItem,
        Settings,
        SimilarItem,
        UnmatchedReward,
    )

T = TypeVar("T")


class _Engine(NamedTuple):
    http: httpx.Client
    workers: Workers


class Client(BaseClient):
    """Requests decisions from a service, and sends their rewards in the background.

    >>> client = Client("http://127.0.0.1:8000", timeout=0.3)
    >>> decision = client.rank(user="anna", actions=[{"id": "tea", "features": {"hot": True}}, {"id": "juice"}])
    >>> decision.reward(1.0)
    >>> client.close()

    Without ``url`` and ``key``, it takes those of the environment, FEDRES_URL and FEDRES_KEY. ``timeout``
    is how many seconds a decision may take with all its tries (1 by default). After that, ``fallback``
    decides: "first", or a function from the request to the id of an action. With None, a ``ServiceError`` is raised.
    Rewards wait in a queue of ``queue_limit``, and on disk in the folder ``spool`` if there is one.
    ``observe`` is called after every call. Other arguments: the ``loop``, the ``key``, ``admin_timeout`` for calls
    other than decisions, and ``verify``, an ``ssl.SSLContext`` for a certificate authority of your own.
    A client may be shared by threads, and used after a fork.
    """

    def __enter__(self) -> Self:
        self._connected()  # import now, not within the first decision's deadline
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        raise TypeError("Client is for `with`: for `async with`, take AsyncClient")

    async def __aexit__(self, *_: object) -> None: ...

    def rank(
        self,
        *,
        actions: Actions,
        context: Features | None = None,
        user: Id | None = None,
        exclude: Iterable[Id] = (),
        event_id: Id | None = None,
        defer: bool = False,
        explain: bool = False,
        timeout: float | None = None,
        **former: Never,
    ) -> Decision:
        """Return which action to take.

        ``actions`` is a list of ``{"id": ..., "features": {...}}``, a mapping from ids to features, or a list of ids.
        ``timeout`` is seconds for this call, all tries included.
        """
        refuse_former("rank", former)
        request = RankRequest(
            actions=actions,
            context=context,
            user=user,
            exclude=exclude,
            event_id=event_id,
            defer=defer,
            explain=explain,
        )
        return self._do(self._calls.rank(request, timeout))

    def rank_many(
        self, requests: Iterable[RankRequest], *, timeout: float | None = None, **former: Never
    ) -> list[Decision]:
        """Return a decision for each of at most 100 requests, in one call."""
        refuse_former("rank_many", former)
        return self._do(self._calls.rank_many(requests, timeout))

    def slots(
        self,
        slots: Iterable[Slot | Id],
        *,
        actions: Actions,
        context: Features | None = None,
        user: Id | None = None,
        event_id: Id | None = None,
        defer: bool = False,
        timeout: float | None = None,
        **former: Never,
    ) -> list[Decision]:
        """Return a decision for each slot of a page, no action twice."""
        refuse_former("slots", former)
        request = RankRequest(actions=actions, context=context, user=user, event_id=event_id, defer=defer)
        return self._do(self._calls.slots(request, slots, timeout))

    def recommend(
        self,
        n: int = 10,
        *,
        user: Id | None = None,
        context: Features | None = None,
        filter: Mapping[str, Any] | None = None,
        exclude: Iterable[Id] = (),
        exclude_seen: bool | float = False,
        event_id: Id | None = None,
        defer: bool = False,
        fallback: Iterable[Id] = (),
        timeout: float | None = None,
        **former: Never,
    ) -> list[Recommendation]:
        """Return at most ``n`` items of the catalogue, the first place first.

        ``filter`` is by attributes, such as ``{"genre": ["crime", "comedy"], "price": {"max": 10}}``. ``exclude_seen``
        leaves out items shown to the user, with a number those of so many seconds. If the service does not reply, or
        refuses, these are the items of ``fallback``; if the client's ``fallback`` is None, this raises.
        """
        refuse_former("recommend", former)
        call = self._calls.recommend(
            n=n,
            user=user,
            context=context,
            filter=filter,
            exclude=exclude,
            exclude_seen=exclude_seen,
            event_id=event_id,
            defer=defer,
            fallback=fallback,
            timeout=timeout,
        )
        return self._do(call)

    def settings(self) -> Settings:
        """Return the loop's settings."""
        return self._do(self._calls.settings())

    def replace_settings(self, settings: Settings) -> Settings:
        """Replace all settings, and return those in effect; missing ones get their defaults."""
        return self._do(self._calls.replace_settings(settings))

    def change_settings(self, **changes: Unpack[Settings]) -> Settings:
        """Change some settings, and return those in effect."""
        return self._do(self._calls.change_settings(changes))

    def catalogue(self) -> dict[str, dict[str, Any]]:
        """Return the catalogue: features by id."""
        return self._do(self._calls.catalogue())

    def put_actions(self, actions: Actions, *, retire: Iterable[Id] = ()) -> None:
        """Add or change actions of the catalogue, in any form that ``rank`` takes, and retire some by id."""
        self._do(self._calls.put_actions(actions, retire))

    def popular(self, n: int = 10, *, seconds: float | None = None) -> list[PopularItem]:
        """Return the items that earned most in the last seconds, 30 days by default: ``id``, ``score``, ``events``."""
        return self._do(self._calls.popular(n, seconds))

    def similar(self, item: Id, n: int = 10) -> list[SimilarItem]:
        """Return the items of the catalogue that are most like another one: ``id`` and ``score``."""
        return self._do(self._calls.similar(item, n))

    def feedback(self, events: Iterable[Mapping[str, Any]]) -> FeedbackStored:
        """Send rewards of actions that the service did not choose; return how many events are new and how many existed.

        An event is ``{"action": id, "reward": number}``, and may have ``user``, ``context``, ``event_id`` and ``time``;
        the action may come with features: ``{"id": id, "features": {...}}``. A call takes 500 events.
        """
        return self._do(self._calls.feedback(events))

    def evaluate(
        self, policies: Sequence[str], *, estimators: Sequence[str] = ("snips", "dr"), time_uniform: bool = False
    ) -> dict[str, Any]:
        """Return estimates of policies' rewards on the stored events.

        Intervals hold for one look, with ``time_uniform`` at all looks at the growing log together.
        """
        return self._do(self._calls.evaluate(policies, estimators, time_uniform=time_uniform))

    def lift(self) -> LiftReport:
        """Return how much more the policy earns than its control group."""
        return self._do(self._calls.lift())

    def events(self, *, after: int = 0) -> Iterator[Event]:
        """Yield the stored events behind a position, oldest first; a call that fails is repeated where it stopped."""
        while page := self._do(self._calls.events(after, PAGE)):
            yield from page
            after = page[-1].position

    def unmatched(self) -> list[UnmatchedReward]:
        """Return the newest rewards that do not count, and why."""
        return self._do(self._calls.unmatched())

    def erase(self, user: Id) -> None:
        """Erase a user's model, events and rewards in all loops; this returns once that is done."""
        self._do(self._calls.erase(user))

    def create_loop(self, name: str, settings: Settings | None = None) -> Settings:
        """Make a loop, and return its settings."""
        return self._do(self._calls.create_loop(name, settings or {}))

    def status(self) -> dict[str, Any]:
        """Return the status of the service."""
        return self._do(self._calls.status())

    def flush(self, seconds: float = 5.0) -> bool:
        """Wait until the service has all rewards; return whether it has."""
        return self._rewards.flush(seconds)

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send the remaining rewards for at most ``seconds``; closing twice is allowed."""
        self._connection.is_closed = True
        self._rewards.close(seconds)
        engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            engine.workers.stop(then=engine.http.close)

    def _do(self, call: ServiceCall[T]) -> T:
        self._check_open()
        began = time.monotonic()
        answer = identified(self._answer_to(call), call.request)
        observed(self._observe, call.name, time.monotonic() - began, answer)
        return call.read(answer)

    def _answer_to(self, call: ServiceCall[Any]) -> Answer | Failure:
        with self._attempt(call) as attempt:
            if attempt is None:
                return self._away()
            end = time.monotonic() + call.seconds
            finished: SimpleQueue[Job[Answer | Failure]] = SimpleQueue()
            jobs = [self._start(call, call.seconds, finished, again=not attempt.is_probe)]
            repeat_at = self._repeat_at(call, attempt)
            answer: Answer | Failure = no_answer(call.seconds)
            while jobs:
                try:
                    job = finished.get(timeout=max(0.0, min(end, repeat_at) - time.monotonic()))
                except Empty:
                    now = time.monotonic()
                    if now >= end:
                        break
                    if now >= repeat_at:
                        repeat_at = math.inf
                        if self._calls.availability.may_repeat():
                            jobs.append(self._start(call, end - now, finished, again=False))
                    continue
                jobs.remove(job)
                answer = job.result()
                if not passes(answer):
                    break
            for job in jobs:
                job.abandoned = True
            return answer

    def _start(
        self, call: ServiceCall[Any], seconds: float, finished: SimpleQueue[Job[Answer | Failure]], *, again: bool
    ) -> Job[Answer | Failure]:
        engine = self._connected()
        flow = retrying(call.request, seconds, again=again, clock=time.monotonic)
        return engine.workers.start(lambda: _drive(flow, engine.http), finished)

    def _connected(self) -> _Engine:
        """Return this process's connections and threads: a forked child cannot use its parent's."""
        pid = os.getpid()
        engine: _Engine | None = self._engines.get(pid)
        if engine is None:
            made = _Engine(self._new_http(), Workers(CONNECTIONS))
            engine = self._engines.setdefault(pid, made)
            if engine is not made:  # another thread was first
                made.http.close()
            for parent in self._engines.keys() - {pid}:
                self._engines.pop(parent, None)
        return engine


def _drive(flow: Flow[Answer | Failure], http: httpx.Client) -> Answer | Failure:
    from fedres_client.transport import ask

    step = advance(flow, None)
    while not isinstance(step, Finished):
        if isinstance(step, Wait):
            time.sleep(step.seconds)
            step = advance(flow, None)
        else:
            step = advance(flow, ask(http, step, whole=True))
    answer: Answer | Failure = step.value
    return answer

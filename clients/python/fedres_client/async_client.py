"""The client of a hosted service for programs with an event loop."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from fedres_client.base import CONNECTIONS, BaseClient, refuse_former
from fedres_client.calls import PAGE, ServiceCall, identified, observed
from fedres_client.inputs import Actions, Features, Id
from fedres_client.retrying import no_answer, passes, retrying
from fedres_client.rewards import CLOSE_SECONDS
from fedres_client.types import Decision, Event, RankRequest, Recommendation, Slot
from fedres_client.wire import Answer, Failure, Finished, Request, Wait, advance

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


class AsyncClient(BaseClient):
    """``Client`` for ``async with``; a client belongs to one event loop at a time.

    Rewards need no ``await``: a thread sends them, and ``decision.reward(1.0)`` returns at once. Once its event loop is
    closed, as at the end of ``asyncio.run``, another one may use the client, over new connections.
    """

    async def __aenter__(self) -> Self:
        self._connected()  # import now, not within the first decision's deadline
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        raise TypeError("AsyncClient is for `async with`: for `with`, take Client")

    def __exit__(self, *_: object) -> None: ...

    async def rank(
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
        return await self._do(self._calls.rank(request, timeout))

    async def rank_many(
        self, requests: Iterable[RankRequest], *, timeout: float | None = None, **former: Never
    ) -> list[Decision]:
        """Return a decision for each of at most 100 requests, in one call."""
        refuse_former("rank_many", former)
        return await self._do(self._calls.rank_many(requests, timeout))

    async def slots(
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
        return await self._do(self._calls.slots(request, slots, timeout))

    async def recommend(
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
        return await self._do(call)

    async def settings(self) -> Settings:
        """Return the loop's settings."""
        return await self._do(self._calls.settings())

    async def replace_settings(self, settings: Settings) -> Settings:
        """Replace all settings, and return those in effect; missing ones get their defaults."""
        return await self._do(self._calls.replace_settings(settings))

    async def change_settings(self, **changes: Unpack[Settings]) -> Settings:
        """Change some settings, and return those in effect."""
        return await self._do(self._calls.change_settings(changes))

    async def catalogue(self) -> dict[str, dict[str, Any]]:
        """Return the catalogue: features by id."""
        return await self._do(self._calls.catalogue())

    async def put_actions(self, actions: Actions, *, retire: Iterable[Id] = ()) -> None:
        """Add or change actions of the catalogue, in any form that ``rank`` takes, and retire some by id."""
        await self._do(self._calls.put_actions(actions, retire))

    async def popular(self, n: int = 10, *, seconds: float | None = None) -> list[PopularItem]:
        """Return the items that earned most in the last seconds, 30 days by default: ``id``, ``score``, ``events``."""
        return await self._do(self._calls.popular(n, seconds))

    async def similar(self, item: Id, n: int = 10) -> list[SimilarItem]:
        """Return the items of the catalogue that are most like another one: ``id`` and ``score``."""
        return await self._do(self._calls.similar(item, n))

    async def feedback(self, events: Iterable[Mapping[str, Any]]) -> FeedbackStored:
        """Send rewards of actions that the service did not choose; return how many events are new and how many existed.

        An event is ``{"action": id, "reward": number}``, and may have ``user``, ``context``, ``event_id`` and ``time``;
        the action may come with features: ``{"id": id, "features": {...}}``. A call takes 500 events.
        """
        return await self._do(self._calls.feedback(events))

    async def evaluate(
        self, policies: Sequence[str], *, estimators: Sequence[str] = ("snips", "dr"), time_uniform: bool = False
    ) -> dict[str, Any]:
        """Return estimates of policies' rewards on the stored events.

        Intervals hold for one look, with ``time_uniform`` at all looks at the growing log together.
        """
        return await self._do(self._calls.evaluate(policies, estimators, time_uniform=time_uniform))

    async def lift(self) -> LiftReport:
        """Return how much more the policy earns than its control group."""
        return await self._do(self._calls.lift())

    async def events(self, *, after: int = 0) -> AsyncIterator[Event]:
        """Yield the stored events behind a position, oldest first; a call that fails is repeated where it stopped."""
        while page := await self._do(self._calls.events(after, PAGE)):
            for event in page:
                yield event
            after = page[-1].position

    async def unmatched(self) -> list[UnmatchedReward]:
        """Return the newest rewards that do not count, and why."""
        return await self._do(self._calls.unmatched())

    async def erase(self, user: Id) -> None:
        """Erase a user's model, events and rewards in all loops; this returns once that is done."""
        await self._do(self._calls.erase(user))

    async def create_loop(self, name: str, settings: Settings | None = None) -> Settings:
        """Make a loop, and return its settings."""
        return await self._do(self._calls.create_loop(name, settings or {}))

    async def status(self) -> dict[str, Any]:
        """Return the status of the service."""
        return await self._do(self._calls.status())

    async def flush(self, seconds: float = 5.0) -> bool:
        """Wait until the service has all rewards; return whether it has."""
        return await asyncio.to_thread(self._rewards.flush, seconds)

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send the remaining rewards for at most ``seconds``; closing twice is allowed."""
        self._connection.is_closed = True
        await asyncio.to_thread(self._rewards.close, seconds)
        if self._connection.http is not None and self._connection.event_loop is asyncio.get_running_loop():
            await self._connection.http.aclose()

    async def _do(self, call: ServiceCall[T]) -> T:
        self._check_open()
        began = time.monotonic()
        answer = identified(await self._answer_to(call), call.request)
        observed(self._observe, call.name, time.monotonic() - began, answer)
        return call.read(answer)

    async def _answer_to(self, call: ServiceCall[Any]) -> Answer | Failure:
        with self._attempt(call) as attempt:
            if attempt is None:
                return self._away()
            end = time.monotonic() + call.seconds
            tries = {self._start(call, call.seconds, again=not attempt.is_probe)}
            repeat_at = self._repeat_at(call, attempt)
            answer: Answer | Failure = no_answer(call.seconds)
            try:
                while tries:
                    left = min(end, repeat_at) - time.monotonic()
                    done, _ = await asyncio.wait(tries, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
                    now = time.monotonic()
                    if not done and now >= end:
                        break
                    if not done and now >= repeat_at:
                        repeat_at = math.inf
                        if self._calls.availability.may_repeat():
                            tries.add(self._start(call, end - now, again=False))
                    for task in done:
                        tries.remove(task)
                        answer = task.result()
                        if not passes(answer):
                            return answer
                return answer
            finally:
                for task in tries:
                    task.cancel()

    def _start(self, call: ServiceCall[Any], seconds: float, *, again: bool) -> asyncio.Task[Answer | Failure]:
        self._connected()  # an error of the caller is raised here, and not in the task
        return asyncio.ensure_future(self._tried(call.request, seconds, again=again))

    async def _tried(self, request: Request, seconds: float, *, again: bool) -> Answer | Failure:
        flow = retrying(request, seconds, again=again, clock=time.monotonic)
        step = advance(flow, None)
        try:
            while not isinstance(step, Finished):
                if isinstance(step, Wait):
                    await asyncio.sleep(step.seconds)
                    step = advance(flow, None)
                else:
                    step = advance(flow, await self._try(step))
        except RuntimeError:  # of httpx, which was closed between two tries
            if not self._connection.is_closed:
                raise
            return Failure("the client is closed")
        answer: Answer | Failure = step.value
        return answer

    async def _try(self, request: Request) -> Answer | Failure:
        from fedres_client.transport import ask_async

        async with self._connection.places:
            return await ask_async(self._connected(), request)

    def _connected(self) -> httpx.AsyncClient:
        """Return the connections of this event loop: those of a closed one cannot be used and are abandoned."""
        now = asyncio.get_running_loop()
        made_in = self._connection.event_loop
        if made_in is not now and made_in is not None and not made_in.is_closed():
            raise RuntimeError("an AsyncClient must be used in one event loop: make another one for each")
        if self._connection.http is None or made_in is not now:
            import httpx

            limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
            self._connection.http = httpx.AsyncClient(**self._options, limits=limits)
            # httpx itself would look at all waiting calls for each that ends.
            self._connection.places = asyncio.Semaphore(CONNECTIONS)
            self._connection.event_loop = now
        return self._connection.http

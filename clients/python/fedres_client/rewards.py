"""Sending of rewards: a bounded queue, and a thread that sends batches of them until the service has each."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Union

from fedres_client.backoff import Backoff
from fedres_client.calls import observed
from fedres_client.retrying import FIRST_WAIT, LONGEST_WAIT
from fedres_client.reward_batches import (
    MOST_BYTES,
    MOST_REWARDS,
    NO_PATH,
    Verdict,
    batch_request,
    refusals,
    single_request,
    verdict_on,
)
from fedres_client.types import Observed, RewardStatus, ServiceError
from fedres_client.wire import Answer, Failure, Request, refusal

if TYPE_CHECKING:
    from fedres_client.spool import Spool

log = logging.getLogger("fedres.client")

TRY_SECONDS = 10.0
CLOSE_SECONDS = 5.0  # for which closing sends the rest
HELD_SECONDS = 30.0  # between tries for a loop that accepts no rewards from this client
SINGLE_SECONDS = 300.0  # for which rewards are sent one by one to a service without the route for many
GATHER_SECONDS = 0.05  # between two batches, unless one is full or somebody waits for the last
LATE_SECONDS = 10.0  # of a reward in the queue, after which that is logged
# Closing waits this long for a pending try.
JOIN_SECONDS = 1.0

Ask = Callable[[Request], Union[Answer, Failure]]


class _Queued(NamedTuple):
    number: int  # in the spool, 0 without one
    request: Request
    since: float  # by the monotonic clock

    @property
    def loop(self) -> str:
        return self.request.path.rpartition("/events/")[0]


class _Lane:
    """The queue of one loop."""

    def __init__(self) -> None:
        self.waiting: deque[_Queued] = deque()
        self.due = -math.inf  # when the next batch may be sent
        self.is_held = False  # as the service accepts no rewards of this loop from this client
        self.most = MOST_REWARDS  # in the next batch: fewer, if one of the last batch made the service refuse them all
        self.single_until = -math.inf

    def is_single(self, now: float) -> bool:
        return now < self.single_until


class Rewards:
    """Sends requests in their order, from a thread that starts with the first of them, one batch at a time.

    Beyond ``limit``, the oldest are dropped, whose events have waited longest. Requests refused for good are counted
    and logged. If a loop accepts none from this client, all of that loop are held, and some of them are tried at
    intervals; a spool may have those of other loops. With a spool, requests are on disk until the service has them.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractContextManager[Ask]],
        *,
        limit: int,
        spool: Callable[[], Spool] | None = None,
        observe: Callable[[Observed], None] | None = None,
    ) -> None:
        if limit < 1:
            raise ValueError(f"queue_limit must be at least 1, got {limit}")
        self._connect = connect
        self._limit = limit
        self._open_spool = spool
        self._observe = observe
        self._most = max(1, min(MOST_REWARDS, limit // 2))  # in a batch, so that there is room beside it
        self._spool: Spool | None = None
        self._closed = self._stopping = self._given_up = False
        self._begin()
        _all.add(self)
        if spool is not None:
            with self._changed:
                self._start()
        atexit.register(self.close)

    def _begin(self) -> None:
        """Begin with an empty queue: at first, and in a forked child, whose parent sends the old queue."""
        if self._spool is not None:
            self._spool.let_go()
        self._changed = threading.Condition()
        self._lanes: dict[str, _Lane] = {}  # by loop
        self._under_way: list[_Queued] = []
        self._n_waiting = 0
        self._sent = self._refused = self._dropped = 0
        self._backoff = Backoff(first=FIRST_WAIT, longest=LONGEST_WAIT)
        self._rest_until = -math.inf  # after a failure
        self._tried_at = -math.inf  # when the last batch left
        self._n_flushing = 0
        self._is_late = False  # rewards that wait too long are logged once
        self._ended = False  # the thread has returned
        self._thread: threading.Thread | None = None
        self._spool = None

    def put(self, request: Request) -> None:
        """Send a request in the background; this returns at once."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the client is closed")
            self._start()
            number = 0 if self._spool is None else self._spool.add(request.path, request.body)
            lane = self._append(_Queued(number, request, time.monotonic()))
            self._check_age()
            if len(lane.waiting) in (1, lane.most):
                self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until all is sent or refused; return whether it is."""
        with self._changed:
            self._n_flushing += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._n_left or self._ended, min(seconds, threading.TIMEOUT_MAX))
            self._n_flushing -= 1
            return not self._n_left

    def status(self) -> RewardStatus:
        with self._changed:
            return RewardStatus(self._n_left, self._sent, self._refused, self._dropped, self._age())

    @property
    def _n_left(self) -> int:
        return self._n_waiting + len(self._under_way)

    def _age(self) -> float:
        """Return for how many seconds the oldest reward has waited."""
        heads = [lane.waiting[0].since for lane in self._lanes.values() if lane.waiting]
        heads += [queued.since for queued in self._under_way[:1]]
        return max(0.0, time.monotonic() - min(heads)) if heads else 0.0

    def _check_age(self) -> None:
        """Log once that rewards wait for long, until none does."""
        is_late = self._age() > LATE_SECONDS
        if is_late and not self._is_late:
            log.warning("rewards have waited for %g s to be sent: %d are queued", LATE_SECONDS, self._n_left)
        self._is_late = is_late

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send the rest for so many seconds; the remainder stays in the spool, or is lost. Closing twice is allowed."""
        atexit.unregister(self.close)
        if self._closed:
            return
        with self._changed:
            self._closed = True
            self._rest_until = -math.inf
            for lane in self._lanes.values():
                lane.due = -math.inf  # a last try
        self.flush(seconds)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)
        with self._changed:
            self._give_up()

    def _give_up(self) -> None:
        left = [*self._under_way, *(queued for lane in self._lanes.values() for queued in lane.waiting)]
        if left:
            kept = "" if self._spool is None else "; the spool keeps them"
            log.warning("%d rewards were not sent, the oldest after %.1f s%s", len(left), self._age(), kept)
        self._given_up = True
        self._dropped += sum(self._spool is None or not queued.number for queued in left)
        if self._spool is None:
            self._under_way = []
            self._n_waiting = 0
            self._lanes.clear()
        else:
            self._n_waiting = sum(queued.number > 0 for queued in left)
            self._under_way = []
            self._spool.close()
            self._spool = None

    def _start(self) -> None:
        if self._thread is not None:
            return
        if self._open_spool is not None:
            self._spool = self._open_spool()
            now = time.monotonic()
            for number, path, body in self._spool.take_over():
                headers = {"Content-Type": "application/json"} if body else {}
                self._append(_Queued(number, Request("POST", path, body, headers), now))
        self._thread = threading.Thread(target=self._run, name="fedres rewards", daemon=True)
        self._thread.start()

    def _append(self, queued: _Queued) -> _Lane:
        loop = queued.loop
        lane = self._lanes.get(loop)
        if lane is None:
            lane = self._lanes[loop] = _Lane()
            lane.most = self._most
        lane.waiting.append(queued)
        self._n_waiting += 1
        if self._n_waiting > max(1, self._limit - len(self._under_way)):
            self._drop_oldest()
        return lane

    def _drop_oldest(self) -> None:
        longest = max(self._lanes.values(), key=lambda lane: len(lane.waiting))
        self._forget([longest.waiting.popleft()])
        self._n_waiting -= 1
        if not self._dropped:
            log.error("more than %d rewards wait to be sent: the oldest are dropped", self._limit)
        self._dropped += 1

    def _forget(self, done: Sequence[_Queued]) -> None:
        if self._spool is not None:
            self._spool.remove([queued.number for queued in done])

    # the thread

    def _run(self) -> None:
        with self._connect() as ask:
            while (lane := self._next()) is not None:
                is_single = lane.is_single(time.monotonic())
                began = time.monotonic()
                answer = self._try(ask, is_single)
                observed(self._observe, "rewards", time.monotonic() - began, answer)
                with self._changed:
                    if not self._given_up:
                        self._settle(lane, answer, is_single)
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _next(self) -> _Lane | None:
        """Wait for the next batch, take it from its lane, and return that; None at the end."""
        with self._changed:
            while not self._stopping:
                now = time.monotonic()
                waiting = [lane for lane in self._lanes.values() if lane.waiting]
                lane = min(waiting, key=lambda lane: (self._due(lane, now), lane.waiting[0].since), default=None)
                due = math.inf if lane is None else self._due(lane, now)
                if lane is not None and due <= now:
                    self._take(lane, 1 if lane.is_single(now) else lane.most)
                    self._tried_at = now
                    return lane
                if self._closed and due == math.inf:
                    return None
                self._changed.wait(min(due - now, threading.TIMEOUT_MAX))
            return None

    def _due(self, lane: _Lane, now: float) -> float:
        """Return when a lane's next batch may leave."""
        due = max(lane.due, self._rest_until)
        is_urgent = self._n_flushing or self._closed or lane.is_single(now) or len(lane.waiting) >= lane.most
        return due if is_urgent else max(due, self._tried_at + GATHER_SECONDS)

    def _take(self, lane: _Lane, most: int) -> None:
        n_bytes = 0
        while lane.waiting and len(self._under_way) < most:
            n_bytes += len(lane.waiting[0].request.body) + len(lane.waiting[0].request.path)
            if self._under_way and n_bytes > MOST_BYTES:
                break
            self._under_way.append(lane.waiting.popleft())
        self._n_waiting -= len(self._under_way)

    def _try(self, ask: Ask, is_single: bool) -> Answer | Failure:
        requests = [queued.request for queued in self._under_way]
        if not is_single:
            return ask(batch_request(self._under_way[0].loop, requests, TRY_SECONDS))
        request = single_request(requests[0], TRY_SECONDS)
        return NO_PATH if request is None else ask(request)

    def _settle(self, lane: _Lane, answer: Answer | Failure, is_single: bool) -> None:
        """Count the batch that was under way, or put it back."""
        batch = self._under_way
        self._under_way = []
        verdict = verdict_on(answer, is_single=is_single)
        errors: list[str | None] = [None] * len(batch)
        if verdict is Verdict.STORED and not is_single:
            try:
                errors = refusals(answer.body, len(batch))  # type: ignore[union-attr]
            except ServiceError:
                verdict = Verdict.LATER
        if verdict is Verdict.REFUSED and len(batch) == 1:
            assert isinstance(answer, Answer)
            errors = [f"{answer.status} {refusal(answer).message}"]
            verdict = Verdict.STORED
        if verdict is Verdict.STORED:
            self._count(lane, batch, errors)
        else:
            self._return(lane, batch)
        if verdict is Verdict.LATER:
            wait = answer.retry_after if isinstance(answer, Answer) else 0.0
            self._rest_until = time.monotonic() + self._backoff.failed(wait)
        elif verdict is Verdict.HELD:
            self._hold(lane, batch[0].loop, answer)  # type: ignore[arg-type]
        elif verdict is Verdict.NO_BATCHES:
            log.info("the service has no route for many rewards: they are sent one by one")
            lane.single_until = time.monotonic() + SINGLE_SECONDS
        elif verdict is Verdict.REFUSED:
            lane.most = max(1, len(batch) // 2)  # one of them is the reason: look for it
        self._check_age()

    def _count(self, lane: _Lane, batch: Sequence[_Queued], errors: Sequence[str | None]) -> None:
        """Forget rewards that are stored, or refused for good."""
        self._forget(batch)
        self._backoff.worked()
        lane.most = min(self._most, 2 * lane.most)
        lane.due = -math.inf
        if lane.is_held:
            log.info("the service takes rewards again: %s", batch[0].loop)
            lane.is_held = False
        refused = [(queued, error) for queued, error in zip(batch, errors) if error is not None]
        self._sent += len(batch) - len(refused)
        self._refused += len(refused)
        if refused:
            queued, error = refused[0]
            details = (len(refused), queued.request.path, error)
            log.error("the service refused %d of the rewards and activations; the first, %s: %s", *details)

    def _return(self, lane: _Lane, batch: Sequence[_Queued]) -> None:
        """Put unsent requests back where they came from."""
        lane.waiting.extendleft(reversed(batch))
        self._n_waiting += len(batch)

    def _hold(self, lane: _Lane, loop: str, answer: Answer) -> None:
        """Keep the rewards of a loop that accepts none, and log that once."""
        if not lane.is_held:
            details = (loop, answer.status, refusal(answer).message, HELD_SECONDS)
            log.error("the service takes no rewards: %s: %d %s; they wait, with a try every %g s", *details)
        lane.is_held = True
        lane.due = math.inf if self._closed else time.monotonic() + HELD_SECONDS


_all: weakref.WeakSet[Rewards] = weakref.WeakSet()
_held: list[Rewards] = []  # by the thread that forks


def _hold_all() -> None:
    """Wait until no thread changes a queue or a spool: a fork would copy half-made changes, and locks forever."""
    for rewards in list(_all):
        rewards._changed.acquire()
        _held.append(rewards)


def _release() -> None:
    while _held:
        _held.pop()._changed.release()


def _begin_all() -> None:
    _held.clear()
    for rewards in list(_all):
        rewards._begin()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(before=_hold_all, after_in_parent=_release, after_in_child=_begin_all)

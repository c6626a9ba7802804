"""Sending of rewards: a bounded queue, and a thread that sends one after the other until the service has it."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from fedres.client.hosted.calls import observed
from fedres.client.hosted.retrying import passes, refused, retrying
from fedres.client.hosted.types import Observed, RewardStatus
from fedres.client.wire import Answer, Failure, Finished, Request, Wait, advance, refusal

if TYPE_CHECKING:
    from fedres.client.hosted.spool import Spool

log = logging.getLogger("fedres.client")

TRY_SECONDS = 10.0
CLOSE_SECONDS = 5.0  # for which closing sends the rest
HELD_SECONDS = 30.0  # between tries for a loop that accepts no rewards from this client
JOIN_SECONDS = 1.0  # further limit for a pending try when closing

Ask = Callable[[Request], Answer | Failure]


class _Queued(NamedTuple):
    number: int  # in the spool, 0 without one
    request: Request

    @property
    def loop(self) -> str:
        return self.request.path.rpartition("/events/")[0]


class _Held:
    """Requests of a loop that accepts none from this client: the key is not allowed, or the loop does not exist."""

    def __init__(self) -> None:
        self.waiting: deque[_Queued] = deque()
        self.due = math.inf  # when the first of them is tried next


class Rewards:
    """Sends requests in their order, from a thread that starts with the first of them.

    Beyond ``limit``, the oldest are dropped, whose events have waited longest. Requests refused for good are counted
    and logged. If a loop accepts none from this client, all of that loop are held, and the first of them is tried at
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
        self._connect, self._limit, self._open_spool, self._observe = connect, limit, spool, observe
        self._spool: Spool | None = None
        self._closed = self._stopping = False
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
        self._waiting: deque[_Queued] = deque()
        self._held: dict[str, _Held] = {}  # by loop
        self._under_way = 0
        self._sent = self._refused = self._dropped = 0
        self._woken = threading.Event()
        self._ended = False  # True: the thread has ended
        self._thread: threading.Thread | None = None
        self._spool = None

    def put(self, request: Request) -> None:
        """Send a request in the background; this returns at once."""
        with self._changed:
            if self._closed:
                raise RuntimeError("the client is closed")
            self._start()
            number = 0 if self._spool is None else self._spool.add(request.path, request.body)
            self._append(_Queued(number, request))
            self._changed.notify_all()

    def flush(self, seconds: float) -> bool:
        """Wait until all is sent or refused; return whether it is."""
        with self._changed:
            self._changed.wait_for(lambda: not self._n_left or self._ended, min(seconds, threading.TIMEOUT_MAX))
            return not self._n_left

    def status(self) -> RewardStatus:
        with self._changed:
            return RewardStatus(self._n_left, self._sent, self._refused, self._dropped)

    @property
    def _n_left(self) -> int:
        return len(self._waiting) + self._n_held + self._under_way

    @property
    def _n_held(self) -> int:
        return sum(len(held.waiting) for held in self._held.values())

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Send the rest for so many seconds; the remainder stays in the spool, or is lost. Closing twice is allowed."""
        atexit.unregister(self.close)
        if self._closed:
            return
        with self._changed:
            self._closed = True
            for held in self._held.values():
                held.due = -math.inf  # a last try
            self._changed.notify_all()
        self._woken.set()
        self.flush(seconds)
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._woken.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)
        with self._changed:
            self._give_up()

    def _give_up(self) -> None:
        left = self._n_left
        for held in self._held.values():
            self._waiting.extend(held.waiting)
        self._held.clear()
        if left:
            log.warning("%d rewards were not sent%s", left, "" if self._spool is None else "; the spool keeps them")
        if self._spool is None:
            self._dropped += left
            self._waiting.clear()
        else:
            kept = deque(queued for queued in self._waiting if queued.number)
            self._dropped += len(self._waiting) - len(kept)
            self._waiting = kept
            self._spool.close()
            self._spool = None

    def _start(self) -> None:
        if self._thread is not None:
            return
        if self._open_spool is not None:
            self._spool = self._open_spool()
            for number, path, body in self._spool.take_over():
                headers = {"Content-Type": "application/json"} if body else {}
                self._append(_Queued(number, Request("POST", path, body, headers)))
        self._thread = threading.Thread(target=self._run, name="fedres rewards", daemon=True)
        self._thread.start()

    def _append(self, queued: _Queued) -> None:
        held = self._held.get(queued.loop)
        (self._waiting if held is None else held.waiting).append(queued)
        if len(self._waiting) + self._n_held > self._limit:
            longest = max([self._waiting, *(held.waiting for held in self._held.values())], key=len)
            self._remove(longest.popleft())
            if not self._dropped:
                log.error("more than %d rewards wait to be sent: the oldest are dropped", self._limit)
            self._dropped += 1

    def _remove(self, queued: _Queued) -> None:
        if self._spool is not None:
            self._spool.remove(queued.number)

    # the thread

    def _run(self) -> None:
        with self._connect() as ask:
            while (queued := self._next()) is not None:
                began = time.monotonic()
                answer = self._send(ask, replace(queued.request, seconds=TRY_SECONDS))
                name = queued.request.path.rpartition("/")[2]
                observed(self._observe, name, time.monotonic() - began, answer)
                self._settle(queued, answer)
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _next(self) -> _Queued | None:
        """Wait for the next request to send and return it; None at the end."""
        with self._changed:
            while not self._stopping:
                first = min(
                    (held for held in self._held.values() if held.waiting), key=lambda held: held.due, default=None
                )
                seconds = math.inf if first is None else first.due - time.monotonic()
                lane = self._waiting if first is None or seconds > 0 else first.waiting
                if lane:
                    self._under_way = 1
                    return lane.popleft()
                if self._closed:
                    return None
                self._changed.wait(min(seconds, threading.TIMEOUT_MAX))
            return None

    def _send(self, ask: Ask, request: Request) -> Answer | Failure:
        """Return the final reply, or a failure if the thread ends first."""
        flow = retrying(request, math.inf, clock=time.monotonic)
        answer: Answer | Failure = Failure("it was not tried")
        step = advance(flow, None)
        while not isinstance(step, Finished):
            if isinstance(step, Wait):
                self._woken.wait(step.seconds)
                self._woken.clear()
                if self._stopping:
                    return answer
                step = advance(flow, None)
            else:
                answer = ask(step)
                step = advance(flow, answer)
        return answer

    def _settle(self, queued: _Queued, answer: Answer | Failure) -> None:
        with self._changed:
            self._under_way = 0
            if isinstance(answer, Failure) or passes(answer):
                self._return(queued)
            elif answer.status < 300 or refused(answer):
                self._remove(queued)
                self._count(queued, answer)
                self._resume(queued.loop)
            else:
                self._keep(queued, answer)
            self._changed.notify_all()

    def _return(self, queued: _Queued) -> None:
        """Put an unsent request back where it came from."""
        held = self._held.get(queued.loop)
        (self._waiting if held is None else held.waiting).appendleft(queued)

    def _keep(self, queued: _Queued, answer: Answer) -> None:
        """Keep the rewards of a loop that accepts none, and log that once."""
        if queued.loop not in self._held:
            self._held[queued.loop] = held = _Held()
            held.waiting.extend(one for one in self._waiting if one.loop == queued.loop)
            self._waiting = deque(one for one in self._waiting if one.loop != queued.loop)
            details = (queued.request.path, answer.status, refusal(answer).message, HELD_SECONDS)
            log.error("the service takes no rewards: %s: %d %s; they wait, with a try every %g s", *details)
        held = self._held[queued.loop]
        held.waiting.appendleft(queued)
        held.due = math.inf if self._closed else time.monotonic() + HELD_SECONDS

    def _resume(self, loop: str) -> None:
        """Send the held requests of a loop that accepts rewards again."""
        held = self._held.pop(loop, None)
        if held is not None:
            log.info("the service takes rewards again: %s", loop)
            self._waiting.extendleft(reversed(held.waiting))

    def _count(self, queued: _Queued, answer: Answer) -> None:
        if answer.status < 300:
            self._sent += 1
            return
        self._refused += 1
        log.error("the service refused %s: %d %s", queued.request.path, answer.status, refusal(answer).message)


_all: weakref.WeakSet[Rewards] = weakref.WeakSet()
_held: list[Rewards] = []  # by the thread that forks


def _hold() -> None:
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


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_begin_all)

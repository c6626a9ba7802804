"""Retries: on temporary failures, after jittered waits, as long as a deadline allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from fedres_client.backoff import Backoff
from fedres_client.wire import Answer, Failure, Flow, Request, Wait

if TYPE_CHECKING:
    import random

PASSING = frozenset({408, 429, 500, 502, 503, 504})
FIRST_WAIT = 0.05  # seconds: the longest wait after one failure
LONGEST_WAIT = 30.0


def passes(answer: Answer | Failure) -> bool:
    """Return whether the same request may succeed later."""
    return isinstance(answer, Failure) or answer.status in PASSING


def no_answer(seconds: float) -> Failure:
    return Failure(f"no answer within {seconds:g} s", is_late=True)


def retrying(
    request: Request,
    seconds: float,
    *,
    again: bool = True,
    clock: Callable[[], float],
    rng: random.Random | None = None,
) -> Flow[Answer | Failure]:
    """Send a request until a reply is final, and return it; or the last failure, if another try would end too late.

    No try takes longer than ``request.seconds``. Without ``again``, there is only one.
    """
    end = clock() + seconds
    backoff = Backoff(rng, first=FIRST_WAIT, longest=LONGEST_WAIT)
    answer: Answer | Failure = no_answer(seconds)
    while (left := end - clock()) > 0:  # a wait may last longer than requested: sockets refuse a timeout below 0
        received = yield replace(request, seconds=min(request.seconds, left))
        assert received is not None
        answer = received
        if not passes(answer) or not again:
            return answer
        wait = backoff.failed(answer.retry_after if isinstance(answer, Answer) else 0.0)
        if clock() + wait >= end:
            break
        yield Wait(wait)
    return answer

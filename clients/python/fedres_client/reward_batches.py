"""Batches of rewards, without input and output: their request, and what a reply means for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Optional
from urllib.parse import unquote

import msgspec

from fedres_client.answers import decoded, unreadable
from fedres_client.event_ids import new_event_id
from fedres_client.wire import Answer, Failure, Request, refusal

MOST_REWARDS = 500  # in a batch: the service's default limit
MOST_BYTES = 500_000  # of a batch; the service takes 1 MB
AWAY = frozenset({408, 429, 502, 503, 504})  # statuses that the same request may not have later
BROKEN_RULE = frozenset({409, 413, 422})  # of any server
NO_KEY = frozenset({401, 403})
NO_LOOP = frozenset({"unknown_loop", "not_followed"})
NO_ROUTE = frozenset({"unknown_path", "method_not_allowed"})

#: The result of a reward whose event id is "." or "..", which HTTP clients remove from a path.
NO_PATH = Answer(400, b'{"error":{"code":"no_path","message":"an event id in a path cannot be . or .."}}', {})


class Verdict(Enum):
    """What a reply means for a batch."""

    STORED = "stored"  # the reply has the result of each reward
    LATER = "later"  # the service is away, or the client must slow down
    HELD = "held"  # the service accepts nothing of this loop from this client, until somebody mends that
    NO_BATCHES = "no batches"  # the service is older than the route
    REFUSED = "refused"  # because of what is in it


def verdict_on(answer: Answer | Failure, *, is_single: bool) -> Verdict:
    """Return the result of a request for its rewards.

    They wait only for what waiting can mend. A reply without an error of the service comes from another server, so the
    address is wrong; for one reward alone, whose path has its event's id, the id may be the reason.
    """
    if isinstance(answer, Failure):
        return Verdict.LATER
    if answer.status < 300:
        return Verdict.STORED
    code = refusal(answer).code
    if answer.status in AWAY or (answer.status == 500 and not code):
        return Verdict.LATER
    if answer.status in NO_KEY or code in NO_LOOP:
        return Verdict.HELD
    if answer.status in BROKEN_RULE or is_single:
        return Verdict.REFUSED
    if code in NO_ROUTE:
        return Verdict.NO_BATCHES
    return Verdict.REFUSED if code else Verdict.HELD


def batch_request(loop: str, requests: Sequence[Request], seconds: float) -> Request:
    """Return one request for the rewards and activations of a loop, whose path is ``loop``."""
    body = b'{"rewards":[' + b",".join(map(_item, requests)) + b"]}"
    headers = {"Content-Type": "application/json", "X-Request-Id": new_event_id()}
    return Request("POST", f"{loop}/events/rewards", body, headers, seconds)


def single_request(request: Request, seconds: float) -> Request | None:
    """Return the request for one reward alone; None if no path can have its event's id."""
    if event_of(request) in (".", ".."):
        return None
    return msgspec.structs.replace(request, seconds=seconds)


def event_of(request: Request) -> str:
    return unquote(request.path.rsplit("/", 2)[1])


def _item(request: Request) -> bytes:
    """Return the item of a batch for the request of one reward, or of one activation, which has no body."""
    event = b'{"event_id":' + msgspec.json.encode(event_of(request))
    return event + b"," + request.body[1:] if request.body else event + b',"activate":true}'


class _Error(msgspec.Struct):
    message: str


class _Result(msgspec.Struct):
    error: Optional[_Error] = None


class _Results(msgspec.Struct):
    results: list[_Result]


def refusals(body: bytes, n: int) -> list[str | None]:
    """Return the reason for which each of ``n`` rewards was refused, None for those that are stored."""
    results = decoded(body, _Results).results
    if len(results) != n:
        raise unreadable(f"{len(results)} results for {n} rewards")
    return [None if result.error is None else result.error.message for result in results]

"""Requests, replies, and flows that yield requests, without the network.

A flow is a generator that yields a ``Request`` or a ``Wait`` and is sent the ``Answer``, or a ``Failure`` without a
reply; its driver does the input and output (httpx's authentication flows work the same way).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any, Optional, TypeVar, Union

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)  # of JSON that is invalid or nested too deep
LONGEST_REST = 86_400.0  # seconds that a service can request

T = TypeVar("T")


class Request(msgspec.Struct, frozen=True):
    method: str
    path: str  # below the service's URL
    body: bytes = b""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    seconds: float = 30.0  # to wait for an answer


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str]  # names in small letters
    request_id: Optional[str] = None  # of the request

    @property
    def retry_after(self) -> float:
        """The seconds in Retry-After; 0 without that header, or if it is a date."""
        text = self.headers.get("retry-after", "")
        return min(float(text), LONGEST_REST) if text.isascii() and text.isdigit() else 0.0


class Failure(msgspec.Struct, frozen=True):
    """There was no reply; the request may have been handled or not."""

    reason: str
    is_late: bool = False  # there was none in time
    request_id: Optional[str] = None


class Wait(msgspec.Struct, frozen=True):
    seconds: float


Flow = Generator[Union[Request, Wait], Union[Answer, Failure, None], T]


class Finished(msgspec.Struct, frozen=True):
    """The result of a flow."""

    value: Any


def advance(flow: Flow[Any], answer: Answer | Failure | None) -> Request | Wait | Finished:
    """Return the flow's next request or wait, or its result."""
    try:
        return flow.send(answer)
    except StopIteration as end:
        return Finished(end.value)


class _Detail(msgspec.Struct):
    code: str = ""
    message: str = ""
    target: Optional[str] = None


class _Error(msgspec.Struct):
    error: _Detail


def refusal(answer: Answer) -> _Detail:
    """Return code, message and target of an error reply, empty if missing."""
    try:
        return msgspec.json.decode(answer.body, type=_Error).error
    except UNREADABLE:
        return _Detail(message=answer.body[:200].decode(errors="replace"))

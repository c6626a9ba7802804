"""The service's replies: their types, and the errors of unsuccessful ones."""

from __future__ import annotations

import math
from typing import Optional, TypeVar

import msgspec

from fedres_client.types import Explanation, Ranked, ServiceError, error_of
from fedres_client.wire import UNREADABLE, Answer, Failure, refusal

T = TypeVar("T")


class RankResult(msgspec.Struct):
    event_id: str
    action: str
    probability: float
    model_version: int
    ranking: list[Ranked]
    arm: Optional[str] = None
    explanations: Optional[list[Explanation]] = None


class ErrorDetail(msgspec.Struct):
    code: str
    message: str
    target: Optional[str] = None


class BatchResult(msgspec.Struct):
    """A decision, or an error."""

    event_id: str = ""
    action: str = ""
    probability: float = math.nan
    model_version: int = 0
    ranking: list[Ranked] = []
    arm: Optional[str] = None
    explanations: Optional[list[Explanation]] = None
    error: Optional[ErrorDetail] = None


class Decisions(msgspec.Struct):
    results: list[BatchResult]


class Filled(msgspec.Struct):
    id: str
    event_id: str
    action: str
    probability: float
    ranking: list[Ranked]


class Page(msgspec.Struct):
    event_id: str
    model_version: int
    slots: list[Filled]


class RecommendedItem(msgspec.Struct):
    id: str
    event_id: str
    score: float
    probability: float
    arm: Optional[str] = None


class Recommended(msgspec.Struct):
    items: list[RecommendedItem]


def checked(answer: Answer | Failure) -> Answer:
    """Return a success; raise the error of any other reply."""
    if isinstance(answer, Failure):
        raise error_of(0, "no_answer", answer.reason, request_id=answer.request_id)
    if answer.status >= 300:
        said = refusal(answer)
        raise error_of(answer.status, said.code or "unknown", said.message, said.target, answer.request_id)
    return answer


def decoded(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise unreadable(str(error)) from None


def unreadable(why: str) -> ServiceError:
    return error_of(0, "unreadable_answer", f"the service's answer cannot be read: {why}")

"""What callers of a hosted service give and get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from msgspec import Struct

from fedres.client.inputs import Actions, Features, Id

FALLBACK_PREFIX = "fallback-"  # of the event ids of fallbacks, which the service does not know


class ServiceError(Exception):
    """The service refused a call, or did not answer in time.

    ``status`` is the HTTP status, 0 where no answer came; ``code`` and ``target`` are those of docs/reference/api.md.
    """

    def __init__(self, status: int, code: str, message: str, target: str | None = None) -> None:
        super().__init__(status, code, message, target)
        self.status, self.code, self.message, self.target = status, code, message, target

    def __str__(self) -> str:
        return f"{self.message} ({self.status} {self.code})" if self.status else self.message


class RankRequest(Struct, kw_only=True, frozen=True):
    """A request for a decision.

    ``actions`` is a list of ``{"id": ..., "features": {...}}``, a mapping from ids to features, or a list of ids. An
    action without features has those of the catalogue. Ids are text, whole numbers or UUIDs. No user is None or "".
    """

    actions: Actions
    context: Features | None = None
    user: Id | None = None
    exclude: Iterable[Id] = ()
    event_id: Id | None = None  # made by the client where there is none
    defer: bool = False
    explain: bool = False


class Slot(Struct, frozen=True):
    """A place on a page for one action; a control group sees ``baseline`` there, an action's id."""

    id: Id
    features: Features = {}
    exclude: Iterable[Id] = ()
    baseline: Id | None = None


class Record(Struct, frozen=True):
    """Fields by attribute and by name: ``event.reward``, ``event["reward"]``, ``dict(event)``."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def keys(self) -> tuple[str, ...]:
        return self.__struct_fields__


class Ranked(Record, frozen=True):
    """An action with the probability it had and its score."""

    id: Any  # as the caller gave it
    probability: float
    score: float


class Strongest(Record, frozen=True):
    """What a pair of features adds to a score; an empty name is none, and two of them are the constant."""

    context: str
    action: str
    shared: float
    personal: float


class Explanation(Record, frozen=True):
    """An action's score, split into the shared and the personal part."""

    id: Any  # as the caller gave it
    shared: float
    personal: float
    strongest: list[Strongest]
    width: float | None = None  # how far the score may be off, of models that know


class Feedback(Protocol):
    """Where decisions send what came of them."""

    def reward(
        self,
        event_id: Id,
        value: float | None = None,
        *,
        outcomes: Mapping[str, float] | None = None,
        id: Id | None = None,
    ) -> None: ...

    def activate(self, event_id: Id) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Which action to take.

    With ``fallback``, the service did not decide (``error`` says why): the action was chosen here, it has no
    probability, and its rewards are not sent.
    """

    event_id: str  # of a fallback it begins with "fallback-"
    action: Any  # the id as the caller gave it: a str, an int or a UUID
    probability: float
    ranking: list[Ranked]  # best score first; empty in a fallback
    model_version: int
    slot: Any = None  # the place on the page, of decisions by ``slots``
    arm: str | None = None  # control, treatment or held, where the loop has a control group
    explanations: list[Explanation] | None = None
    fallback: bool = False
    error: ServiceError | None = None
    feedback: Feedback = field(repr=False, compare=False)

    def reward(
        self, value: float | None = None, *, outcomes: Mapping[str, float] | None = None, id: Id | None = None
    ) -> None:
        """Send what the decision earned, or named outcomes, in the background; two with one ``id`` count once.

        True counts as 1. What is no finite number raises a TypeError or a ValueError.
        """
        self.feedback.reward(self.event_id, value, outcomes=outcomes, id=id)

    def activate(self) -> None:
        """Say that a deferred decision was shown, in the background."""
        self.feedback.activate(self.event_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """An item of the catalogue in its place on a page. With ``fallback``, the service did not choose it."""

    id: str
    event_id: str  # of a fallback it begins with "fallback-"
    score: float  # the reward that is expected
    probability: float  # in this place, given the items before
    arm: str | None = None  # control, treatment or held, where the loop has a control group
    fallback: bool = False
    error: ServiceError | None = None
    feedback: Feedback = field(repr=False, compare=False)

    def reward(
        self, value: float | None = None, *, outcomes: Mapping[str, float] | None = None, id: Id | None = None
    ) -> None:
        """Send what the item earned, or named outcomes, in the background; two with one ``id`` count once."""
        self.feedback.reward(self.event_id, value, outcomes=outcomes, id=id)

    def activate(self) -> None:
        """Say that an item of a deferred page was shown, in the background."""
        self.feedback.activate(self.event_id)


class Event(Record, frozen=True):
    """A stored decision with what came of it."""

    event_id: str
    time: str  # ISO 8601, UTC
    user: str | None
    context: dict[str, Any] | None
    actions: list[dict[str, Any]]  # those that were not excluded: id and features
    action: str
    probability: float | None  # None for feedback, on which nobody decided
    probabilities: list[float] | None  # of ``actions``; None for a recommended item, which is the only one of them
    model_version: int
    reward: float | None
    status: str  # waiting, deferred, rewarded, expired or feedback
    position: int  # in the loop's log
    outcomes: dict[str, float] | None = None  # by name, where the loop has any
    arm: str | None = None  # control, treatment or held, where the loop has a control group
    place: int | None = None  # on its page, of a recommended item
    candidates: int | None = None  # among which it was drawn
    happened: float | None = None  # when, where feedback has a time of its own; seconds since 1970


class Observed(Record, frozen=True):
    """A call that came to its end, for logs, metrics and traces."""

    name: str  # such as "rank" or "reward"
    seconds: float  # with all tries
    status: int  # of the last answer; 0 if none came
    error: ServiceError | None


class RewardStatus(Record, frozen=True):
    """What became of rewards and activations so far."""

    queued: int  # not yet acknowledged by the service; with those it cannot take, as the key or the loop is wrong
    sent: int
    refused: int  # by the service, for good
    dropped: int  # for lack of room in the queue, or unsent at the end and in no spool

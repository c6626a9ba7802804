"""What to send to a hosted service, and what its answers mean: no input or output here."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

import msgspec

from fedres.client.hosted.answers import Batch, BatchResult, Filled, Page, Result, checked, decoded, unreadable
from fedres.client.hosted.fallbacks import Fallback, allowed_ids, fall_back, fall_back_slots
from fedres.client.hosted.types import (
    Decision,
    Event,
    Features,
    Feedback,
    Observed,
    RankRequest,
    ServiceError,
    Slot,
)
from fedres.client.wire import Answer, Failure, Request
from fedres.event_ids import LONGEST_ID, new_event_id

log = logging.getLogger("fedres.client")

T = TypeVar("T")

BATCH = 100  # requests in one call: the service's default limit
PAGE = 1_000  # events in one call
LONGEST_DEADLINE = 1e8  # seconds, 3 years: locks and sockets refuse 300
ERASE_SECONDS = 150.0  # the service itself gives up after 120
REQUEST_ID = "X-Request-Id"
JSON = {"Content-Type": "application/json"}


class Call(msgspec.Struct, Generic[T], frozen=True):
    """A request, how long it may take with all its tries, and how to read the answer."""

    name: str
    request: Request | Failure  # a failure where the request could not even be written
    seconds: float
    read: Callable[[Answer | Failure], T]
    hot: bool = False


def _plain(value: Any) -> Any:
    """Return a number of NumPy as one of Python."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"features must be JSON, got {type(value).__name__}")


_encode = msgspec.json.Encoder(enc_hook=_plain).encode


class Calls:
    """The calls of one loop; ``away`` is whether the last one on the hot path failed."""

    def __init__(
        self,
        loop: str,
        *,
        deadline: float,
        admin_deadline: float,
        fallback: Fallback | None,
        feedback: Feedback,
    ) -> None:
        if not loop:
            raise ValueError("loop must be a name, got ''")
        for name, seconds in (("deadline", deadline), ("admin_deadline", admin_deadline)):
            if not 0 < seconds < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {seconds!r}")
        if fallback is not None and fallback != "first" and not callable(fallback):
            raise ValueError(f"fallback must be 'first', a function or None, got {fallback!r}")
        self._base = "/v1/loops/" + quote(loop, safe="")
        self._deadline, self._admin_deadline = deadline, min(admin_deadline, LONGEST_DEADLINE)
        self._fallback, self._feedback = fallback, feedback
        self.away = False

    # the hot path

    def rank(self, request: RankRequest, deadline: float | None) -> Call[Decision]:
        asked = _named(request)
        allowed_ids(asked)

        def read(answer: Answer | Failure) -> Decision:
            try:
                return self._decision(self._read(answer, Result))
            except ServiceError as error:
                return self._fall_back(asked, error)

        return self._hot("rank", "/rank", lambda: _encode(_body(asked)), read, deadline)

    def rank_many(self, requests: Sequence[RankRequest], deadline: float | None) -> Call[list[Decision]]:
        asked = [_named(request) for request in requests]
        for one in asked:
            allowed_ids(one)

        def read(answer: Answer | Failure) -> list[Decision]:
            try:
                results = self._read(answer, Batch).results
                if len(results) != len(asked):
                    raise unreadable(f"{len(results)} results for {len(asked)} requests")
            except ServiceError as error:
                return [self._fall_back(one, error) for one in asked]
            return [self._result_of(one, result) for one, result in zip(asked, results, strict=True)]

        def body() -> bytes:
            return _encode({"requests": [_body(one) for one in asked]})

        return self._hot("rank_many", "/rank/batch", body, read, deadline)

    def slots(self, request: RankRequest, slots: Sequence[Slot | str], deadline: float | None) -> Call[list[Decision]]:
        asked = _named(request)
        places = [Slot(slot) if isinstance(slot, str) else slot for slot in slots]
        fall_back_slots(asked, places, "first")  # refuses a page that cannot be filled

        def read(answer: Answer | Failure) -> list[Decision]:
            try:
                page = self._read(answer, Page)
                if [slot.id for slot in page.slots] != [slot.id for slot in places]:
                    raise unreadable("other slots than those of the request")
            except ServiceError as error:
                chosen = fall_back_slots(asked, places, self._fallback_or_raise(error))
                return [self._fallen_back(action, error, slot.id) for slot, action in zip(places, chosen, strict=True)]
            return [self._filled(slot, page.model_version) for slot in page.slots]

        def body() -> bytes:
            told = [{"id": slot.id, "features": slot.features, "exclude": list(slot.exclude)} for slot in places]
            fields = _body(asked)
            fields.pop("exclude")
            fields.pop("explain")
            return _encode({**fields, "slots": told})

        return self._hot("slots", "/rank/slots", body, read, deadline)

    def reward(
        self, event_id: str, value: float | None, outcomes: Mapping[str, float] | None, id: str | None
    ) -> Request:
        """Return the request for a reward, which has an id so that a repeat counts once."""
        if value is None and outcomes is None:
            raise ValueError("a reward must have a value or outcomes, got neither")
        given = {"value": value, "outcomes": None if outcomes is None else dict(outcomes)}
        body = {name: one for name, one in given.items() if one is not None}
        return self._post(_event(event_id) + "/reward", _encode({**body, "id": id or new_event_id()}))

    def activate(self, event_id: str) -> Request:
        return self._post(_event(event_id) + "/activate", b"")

    # everything else

    def settings(self) -> Call[dict[str, Any]]:
        return self._admin("settings", "GET", "/settings", None, _settings)

    def replace_settings(self, settings: Mapping[str, Any]) -> Call[dict[str, Any]]:
        return self._admin("replace_settings", "PUT", "/settings", dict(settings), _settings)

    def change_settings(self, changes: Mapping[str, Any]) -> Call[dict[str, Any]]:
        return self._admin("change_settings", "PATCH", "/settings", dict(changes), _settings)

    def actions(self) -> Call[dict[str, dict[str, Any]]]:
        def read(found: Any) -> dict[str, dict[str, Any]]:
            return {action["id"]: action["features"] for action in found["actions"]}

        return self._admin("actions", "GET", "/actions", None, read)

    def put_actions(self, actions: Mapping[str, Features], retire: Collection[str]) -> Call[None]:
        put = [{"id": name, "features": features} for name, features in actions.items()]
        return self._admin("put_actions", "PUT", "/actions", {"put": put, "retire": list(retire)}, _nothing)

    def evaluate(
        self, policies: Sequence[str], estimators: Sequence[str], *, time_uniform: bool
    ) -> Call[dict[str, Any]]:
        body = {"policies": list(policies), "estimators": list(estimators), "time_uniform": time_uniform}
        return self._admin("evaluate", "POST", "/evaluations", body, _same)

    def lift(self) -> Call[dict[str, Any]]:
        return self._admin("lift", "GET", "/lift", None, _same)

    def events(self, after: int, limit: int) -> Call[list[Event]]:
        """Return a page of the export; the next one begins behind the position of its last event."""
        path = f"{self._base}/events?after={after}&limit={limit}"

        def read(answer: Answer | Failure) -> list[Event]:
            lines = checked(answer).body.splitlines()
            return [decoded(line, Event) for line in lines]

        return Call("events", self._request("GET", path), self._admin_deadline, read)

    def unmatched(self) -> Call[list[dict[str, Any]]]:
        return self._admin("unmatched", "GET", "/rewards/unmatched", None, lambda found: list(found["rewards"]))

    def erase(self, user: str) -> Call[None]:
        path = f"/v1/users/{quote(user, safe='')}"
        seconds = max(ERASE_SECONDS, self._admin_deadline)
        return Call(
            "erase", self._request("DELETE", path, seconds=seconds), seconds, lambda answer: _nothing(checked(answer))
        )

    def status(self) -> Call[dict[str, Any]]:
        request = self._request("GET", "/v1/status")
        return Call("status", request, self._admin_deadline, lambda answer: _understood(answer, _same))

    def create_loop(self, name: str, settings: Mapping[str, Any]) -> Call[dict[str, Any]]:
        body = _encode({"name": name, "settings": dict(settings)})
        request = self._request("POST", "/v1/loops", body)
        return Call("create_loop", request, self._admin_deadline, lambda answer: _understood(answer, _settings))

    # requests

    def _request(self, method: str, path: str, body: bytes = b"", seconds: float | None = None) -> Request:
        headers = {**(JSON if body else {}), REQUEST_ID: new_event_id()}
        return Request(method, path, body, headers, seconds or self._admin_deadline)

    def _post(self, path: str, body: bytes, seconds: float | None = None) -> Request:
        return self._request("POST", self._base + path, body, seconds)

    def _hot(
        self,
        name: str,
        path: str,
        body: Callable[[], bytes],
        read: Callable[[Answer | Failure], T],
        deadline: float | None,
    ) -> Call[T]:
        seconds = min(self._deadline if deadline is None else deadline, LONGEST_DEADLINE)
        request: Request | Failure
        try:
            request = self._post(path, body(), seconds / 2)  # so that an answer that was lost leaves time for another
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            request = Failure(f"the request cannot be written as JSON: {error}")
        return Call(name, request, seconds, read, hot=True)

    def _admin(
        self,
        name: str,
        method: Literal["GET", "PUT", "PATCH", "POST"],
        path: str,
        body: Any,
        read: Callable[[Any], T],
    ) -> Call[T]:
        request = self._request(method, self._base + path, b"" if body is None else _encode(body))
        return Call(name, request, self._admin_deadline, lambda answer: _understood(answer, read))

    # answers on the hot path

    def _read(self, answer: Answer | Failure, kind: type[T]) -> T:
        """Return the answer, and note whether the service is there."""
        try:
            result = decoded(checked(answer).body, kind)
        except ServiceError as error:
            if error.status == 0 or error.status >= 500 or error.status == 429:
                if not self.away:
                    log.warning("the service does not decide: %s", error)
                self.away = True
            else:
                log.error("the service refused a request: %s", error)
            raise
        if self.away:
            log.info("the service decides again")
        self.away = False
        return result

    def _decision(self, result: Result | BatchResult) -> Decision:
        return Decision(
            event_id=result.event_id,
            action=result.action,
            probability=result.probability,
            ranking=result.ranking,
            model_version=result.model_version,
            explanations=result.explanations,
            feedback=self._feedback,
        )

    def _result_of(self, request: RankRequest, result: BatchResult) -> Decision:
        if result.error is None:
            return self._decision(result)
        error = ServiceError(422, result.error.code, result.error.message, result.error.target)
        log.error("the service refused a request of a batch: %s", error)
        return self._fall_back(request, error)

    def _filled(self, slot: Filled, version: int) -> Decision:
        return Decision(
            event_id=slot.event_id,
            action=slot.action,
            probability=slot.probability,
            ranking=slot.ranking,
            model_version=version,
            slot=slot.id,
            feedback=self._feedback,
        )

    def _fallback_or_raise(self, error: ServiceError) -> Fallback:
        if self._fallback is None:
            raise error
        return self._fallback

    def _fall_back(self, request: RankRequest, error: ServiceError) -> Decision:
        return self._fallen_back(fall_back(request, self._fallback_or_raise(error)), error)

    def _fallen_back(self, action: str, error: ServiceError, slot: str | None = None) -> Decision:
        """Return a decision under an id of its own: the service may have stored another action under the first."""
        return Decision(
            event_id=new_event_id(),
            action=action,
            probability=math.nan,
            ranking=[],
            model_version=0,
            slot=slot,
            fallback=True,
            error=error,
            feedback=self._feedback,
        )


def observed(observe: Callable[[Observed], None] | None, name: str, seconds: float, answer: Answer | Failure) -> None:
    """Tell the observer of a call; what it raises is logged."""
    if observe is None:
        return
    try:
        checked(answer)
        error = None
    except ServiceError as failed:
        error = failed
    try:
        observe(Observed(name, seconds, answer.status if isinstance(answer, Answer) else 0, error))
    except Exception:
        log.exception("the observer of calls failed")


def _event(event_id: str) -> str:
    """Return an event's path; a URL that is too long would never be sent."""
    if not 1 <= len(event_id) <= LONGEST_ID:
        raise ValueError(f"event_id must have 1 to {LONGEST_ID} characters, got {len(event_id)}")
    return f"/events/{quote(event_id, safe='')}"


def _named(request: RankRequest) -> RankRequest:
    """Return the request with an event id: its repeats are the same event."""
    if request.event_id is not None:
        return request
    return msgspec.structs.replace(request, event_id=new_event_id())


def _body(request: RankRequest) -> dict[str, Any]:
    """Return the fields of a rank request as the service reads them."""
    actions = request.actions
    return {
        "event_id": request.event_id,
        "user": request.user,
        "context": {} if request.context is None else request.context,
        "actions": [{"id": name, "features": actions[name]} for name in actions]
        if isinstance(actions, Mapping)
        else [{"id": name} for name in actions],
        "exclude": list(request.exclude),
        "defer": request.defer,
        "explain": request.explain,
    }


def _understood(answer: Answer | Failure, read: Callable[[Any], T]) -> T:
    """Return what a success says; JSON of another shape is that of a proxy, or of another service."""
    body = checked(answer).body
    found = decoded(body, Any) if body else None
    try:
        return read(found)
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(f"{type(error).__name__}: {error}") from None


def _settings(found: Any) -> dict[str, Any]:
    return dict(found["settings"])


def _same(found: Any) -> dict[str, Any]:
    return dict(found)


def _nothing(_: object) -> None:
    return None

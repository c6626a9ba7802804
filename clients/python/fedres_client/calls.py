"""Requests to a hosted service, and how to read its replies, without input and output."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from urllib.parse import quote

import msgspec

from fedres_client.answers import (
    BatchResult,
    Decisions,
    Filled,
    Page,
    RankResult,
    Recommended,
    checked,
    decoded,
    unreadable,
)
from fedres_client.availability import Availability
from fedres_client.event_ids import LONGEST_ID, new_event_id
from fedres_client.fallbacks import Fallback, ValidRequest, check, event_name, fall_back, fall_back_slots
from fedres_client.inputs import Actions, Features, Id, action_list, features, identifier, identifiers, number, user_id
from fedres_client.types import (
    FALLBACK_PREFIX,
    Decision,
    Event,
    Explanation,
    FeedbackSender,
    Observed,
    Ranked,
    RankRequest,
    Recommendation,
    ServiceError,
    Slot,
    error_of,
)
from fedres_client.wire import Answer, Failure, Request

if TYPE_CHECKING:
    from fedres_client.service_types import (
        FeedbackStored,
        LiftReport,
        PopularItem,
        Settings,
        SimilarItem,
        UnmatchedReward,
    )

log = logging.getLogger("fedres.client")

T = TypeVar("T")
R = TypeVar("R")
P = TypeVar("P", Ranked, Explanation)

BATCH = 100  # requests in one call: the service's default limit
PAGE = 1_000  # events in one call
FEEDBACK = ("action", "reward", "user", "context", "event_id", "time")  # fields of an event
LONGEST_TIMEOUT = 1e8  # seconds, 3 years: locks and sockets refuse 300
ERASE_SECONDS = 150.0  # the service itself gives up after 120
REQUEST_ID = "X-Request-Id"
JSON = {"Content-Type": "application/json"}


class ServiceCall(msgspec.Struct, Generic[T], frozen=True):
    """A request, its time limit for all tries, and how to read the reply."""

    name: str
    request: Request
    seconds: float
    read: Callable[[Answer | Failure], T]
    hot: bool = False  # a decision: it falls back while the service is away
    began: float = 0.0  # by the monotonic clock


_encode = msgspec.json.encode


class Calls:
    """The calls of one loop."""

    def __init__(
        self,
        loop: str,
        *,
        timeout: float,
        admin_timeout: float,
        fallback: Fallback | None,
        feedback: FeedbackSender,
    ) -> None:
        timeout = seconds_of("timeout", timeout, most=sys.float_info.max)
        admin_timeout = seconds_of("admin_timeout", admin_timeout, most=sys.float_info.max)
        if fallback is not None and fallback != "first" and not callable(fallback):
            raise ValueError(f"fallback must be 'first', a function or None, got {fallback!r}")
        self._base = _loop_path(loop)
        self._timeout = timeout
        self._admin_timeout = min(admin_timeout, LONGEST_TIMEOUT)
        self._fallback = fallback
        self._feedback = feedback
        self.availability = Availability()

    def with_loop(self, loop: str, feedback: FeedbackSender) -> Calls:
        """Return the calls of another loop of the same service."""
        other = copy(self)
        other._base = _loop_path(loop)
        other._feedback = feedback
        return other

    # the hot path

    def rank(self, request: RankRequest, timeout: float | None) -> ServiceCall[Decision]:
        valid = check(request)

        return self._hot(
            "rank",
            "/rank",
            valid.body(),
            RankResult,
            decided=lambda result: self._decision(valid, result),
            instead=lambda error: self._fall_back(valid, error),
            timeout=timeout,
        )

    def rank_many(self, requests: Iterable[RankRequest], timeout: float | None) -> ServiceCall[list[Decision]]:
        many = [check(request) for request in requests]

        def decided(decisions: Decisions) -> list[Decision]:
            results = decisions.results
            if len(results) != len(many):
                raise unreadable(f"{len(results)} results for {len(many)} requests")
            return [self._result_of(valid, result) for valid, result in zip(many, results)]

        return self._hot(
            "rank_many",
            "/rank/batch",
            {"requests": [valid.body() for valid in many]},
            Decisions,
            decided=decided,
            instead=lambda error: [self._fall_back(valid, error) for valid in many],
            timeout=timeout,
        )

    def slots(
        self, request: RankRequest, slots: Iterable[Slot | Id], timeout: float | None
    ) -> ServiceCall[list[Decision]]:
        valid = check(request)
        places = [_place(slot if isinstance(slot, Slot) else Slot(slot)) for slot in slots]
        names = [identifier("slots", place.id) for place in places]
        fall_back_slots(valid, places, "first")  # refuses a page that cannot be filled

        def decided(page: Page) -> list[Decision]:
            if [slot.id for slot in page.slots] != names:
                raise unreadable("other slots than those of the request")
            filled = zip(places, page.slots)
            return [self._filled(valid, place, slot, page.model_version) for place, slot in filled]

        def instead(error: ServiceError) -> list[Decision]:
            chosen = fall_back_slots(valid, places, self._fallback_or_raise(error))
            return [self._fallen_back(action, error, slot.id) for slot, action in zip(places, chosen)]

        sent = [msgspec.structs.replace(place, id=name) for name, place in zip(names, places)]
        fields = {name: value for name, value in valid.body().items() if name not in ("exclude", "explain")}
        return self._hot(
            "slots",
            "/rank/slots",
            {**fields, "slots": sent},
            Page,
            decided=decided,
            instead=instead,
            timeout=timeout,
        )

    def recommend(
        self,
        *,
        n: int,
        user: Id | None,
        context: Features | None,
        filter: Mapping[str, Any] | None,
        exclude: Iterable[Id],
        exclude_seen: bool | float,
        event_id: Id | None,
        defer: bool,
        fallback: Iterable[Id],
        timeout: float | None,
    ) -> ServiceCall[list[Recommendation]]:
        optional = {
            "user": user_id(user),
            "context": {} if context is None else features("context", context),
            "filter": dict(filter or {}),
            "exclude": identifiers("exclude", exclude),
            "exclude_seen": exclude_seen,
            "defer": defer,
        }
        page = new_event_id() if event_id is None else event_name(event_id)  # so a repeat is the same page
        body = {"event_id": page, "n": n, **{name: value for name, value in optional.items() if value}}
        first = identifiers("fallback", fallback)[:n]

        def decided(page: Recommended) -> list[Recommendation]:
            return [Recommendation(**msgspec.structs.asdict(item), feedback=self._feedback) for item in page.items]

        def instead(error: ServiceError) -> list[Recommendation]:
            self._fallback_or_raise(error)
            return [self._recommended(name, error) for name in first]

        return self._hot(
            "recommend", "/recommend", body, Recommended, decided=decided, instead=instead, timeout=timeout
        )

    def _recommended(self, name: str, error: ServiceError) -> Recommendation:
        return Recommendation(
            id=name,
            event_id=FALLBACK_PREFIX + new_event_id(),
            score=None,
            probability=None,
            fallback=True,
            error=error,
            feedback=self._feedback,
        )

    def reward(self, event_id: Id, value: Any, outcomes: Mapping[str, Any] | None, id: Id | None) -> Request | None:
        """Return the request for a reward, which has an id so that a repeat counts once; None for a fallback's."""
        if value is None and outcomes is None:
            raise ValueError("a reward must have a value or outcomes, got neither")
        body: dict[str, Any] = {} if value is None else {"value": number("value", value)}
        if outcomes is not None:
            if not isinstance(outcomes, Mapping) or not outcomes:
                raise TypeError(f"outcomes must be a mapping from names to numbers, got {outcomes!r}")
            body["outcomes"] = {name: number(f"outcomes[{name!r}]", each) for name, each in outcomes.items()}
        body["id"] = new_event_id() if id is None else _named("id", id)
        return self._feedback_on(event_id, "/reward", _encode(body))

    def activate(self, event_id: Id) -> Request | None:
        return self._feedback_on(event_id, "/activate", b"")

    def _feedback_on(self, event_id: Id, what: str, body: bytes) -> Request | None:
        """Return a request about an event; the service does not have those of fallbacks."""
        name = _named("event_id", event_id)
        path = f"/events/{quote(name, safe='')}{what}"  # sent in the body, with those of other events
        return None if name.startswith(FALLBACK_PREFIX) else self._post(path, body)

    # everything else

    def settings(self) -> ServiceCall[Settings]:
        return self._admin("settings", "GET", "/settings", None, _settings)

    def replace_settings(self, settings: Settings) -> ServiceCall[Settings]:
        return self._admin("replace_settings", "PUT", "/settings", dict(settings), _settings)

    def change_settings(self, changes: Settings) -> ServiceCall[Settings]:
        return self._admin("change_settings", "PATCH", "/settings", dict(changes), _settings)

    def catalogue(self) -> ServiceCall[dict[str, dict[str, Any]]]:
        def read(document: Any) -> dict[str, dict[str, Any]]:
            return {action["id"]: action["features"] for action in document["actions"]}

        return self._admin("catalogue", "GET", "/actions", None, read)

    def put_actions(self, actions: Actions, retire: Iterable[Id]) -> ServiceCall[None]:
        put = [{"id": each.id, "features": each.features or {}} for each in action_list(actions, least=0)]
        body = {"put": put, "retire": identifiers("retire", retire)}
        return self._admin("put_actions", "PUT", "/actions", body, _nothing)

    def popular(self, n: int, seconds: float | None) -> ServiceCall[list[PopularItem]]:
        window = "" if seconds is None else f"&seconds={number('seconds', seconds)!r}"
        return self._admin(
            "popular", "GET", f"/popular?n={n:d}{window}", None, lambda document: list(document["items"])
        )

    def similar(self, item: Id, n: int) -> ServiceCall[list[SimilarItem]]:
        path = f"/similar/{_segment('item', identifier('item', item))}?n={n:d}"
        return self._admin("similar", "GET", path, None, lambda document: list(document["items"]))

    def feedback(self, events: Iterable[Mapping[str, Any]]) -> ServiceCall[FeedbackStored]:
        body = {"events": [_feedback_event(f"events[{k}]", event) for k, event in enumerate(events)]}
        return self._admin("feedback", "POST", "/feedback", body, _same)

    def evaluate(
        self, policies: Sequence[str], estimators: Sequence[str], *, time_uniform: bool
    ) -> ServiceCall[dict[str, Any]]:
        body = {"policies": list(policies), "estimators": list(estimators), "time_uniform": time_uniform}
        return self._admin("evaluate", "POST", "/evaluations", body, _same)

    def lift(self) -> ServiceCall[LiftReport]:
        return self._admin("lift", "GET", "/lift", None, _same)

    def events(self, after: int, limit: int) -> ServiceCall[list[Event]]:
        """Return a page of the export; the next one begins behind the position of its last event."""
        path = f"{self._base}/events?after={after}&limit={limit}"

        def read(answer: Answer | Failure) -> list[Event]:
            lines = checked(answer).body.splitlines()
            return [decoded(line, Event) for line in lines]

        return ServiceCall("events", self._request("GET", path), self._admin_timeout, read)

    def unmatched(self) -> ServiceCall[list[UnmatchedReward]]:
        return self._admin("unmatched", "GET", "/rewards/unmatched", None, lambda document: list(document["rewards"]))

    def erase(self, user: Id) -> ServiceCall[None]:
        name = identifier("user", user)
        if not name:
            raise ValueError("user must have at least one character, got ''")
        path = f"/v1/users/{_segment('user', name)}"
        seconds = max(ERASE_SECONDS, self._admin_timeout)
        return ServiceCall(
            "erase", self._request("DELETE", path, seconds=seconds), seconds, lambda answer: _nothing(checked(answer))
        )

    def status(self) -> ServiceCall[dict[str, Any]]:
        request = self._request("GET", "/v1/status")
        return ServiceCall("status", request, self._admin_timeout, lambda answer: _understood(answer, _same))

    def create_loop(self, name: str, settings: Settings) -> ServiceCall[Settings]:
        body = _encode({"name": name, "settings": dict(settings)})
        request = self._request("POST", "/v1/loops", body)
        return ServiceCall("create_loop", request, self._admin_timeout, lambda answer: _understood(answer, _settings))

    # requests

    def _request(self, method: str, path: str, body: bytes = b"", seconds: float | None = None) -> Request:
        headers = {**(JSON if body else {}), REQUEST_ID: new_event_id()}
        return Request(method, path, body, headers, seconds or self._admin_timeout)

    def _post(self, path: str, body: bytes, seconds: float | None = None) -> Request:
        return self._request("POST", self._base + path, body, seconds)

    def _hot(
        self,
        name: str,
        path: str,
        body: Any,
        kind: type[R],
        *,
        decided: Callable[[R], T],
        instead: Callable[[ServiceError], T],
        timeout: float | None,
    ) -> ServiceCall[T]:
        """Return a call for decisions: what to make of the reply, and ``instead`` of it without one."""
        seconds = self._timeout if timeout is None else seconds_of("timeout", timeout)
        seconds = min(seconds, LONGEST_TIMEOUT)
        began = time.monotonic()

        def read(answer: Answer | Failure) -> T:
            try:
                return decided(self._received(answer, kind, began, seconds))
            except ServiceError as error:
                return instead(error)

        return ServiceCall(name, self._post(path, _written(body), seconds), seconds, read, hot=True, began=began)

    def _admin(
        self,
        name: str,
        method: Literal["GET", "PUT", "PATCH", "POST"],
        path: str,
        body: Any,
        read: Callable[[Any], T],
    ) -> ServiceCall[T]:
        request = self._request(method, self._base + path, b"" if body is None else _encode(body))
        return ServiceCall(name, request, self._admin_timeout, lambda answer: _understood(answer, read))

    # replies on the hot path

    def _received(self, answer: Answer | Failure, kind: type[R], began: float, seconds: float) -> R:
        """Return the reply, and note whether the service decides."""
        try:
            result = decoded(checked(answer).body, kind)
        except ServiceError as error:
            is_own_haste = isinstance(answer, Failure) and answer.is_late and seconds < self._timeout
            if is_own_haste:
                log.debug("no decision within the call's own timeout: %s", error)
            elif error.status == 0 or error.status >= 500 or error.status == 429:
                self.availability.failed(began, str(error))
            else:
                log.error("the service refused a request: %s", error)
            raise
        self.availability.worked()
        return result

    def _decision(self, valid: ValidRequest, result: RankResult | BatchResult) -> Decision:
        caller_ids = valid.caller_ids
        return Decision(
            event_id=result.event_id,
            action=caller_ids.get(result.action, result.action),
            probability=result.probability,
            ranking=_with_caller_ids(caller_ids, result.ranking),
            model_version=result.model_version,
            arm=result.arm,
            explanations=None if result.explanations is None else _with_caller_ids(caller_ids, result.explanations),
            feedback=self._feedback,
        )

    def _result_of(self, valid: ValidRequest, result: BatchResult) -> Decision:
        if result.error is None:
            return self._decision(valid, result)
        error = error_of(422, result.error.code, result.error.message, result.error.target)
        log.error("the service refused a request of a batch: %s", error)
        return self._fall_back(valid, error)

    def _filled(self, valid: ValidRequest, place: Slot, slot: Filled, version: int) -> Decision:
        caller_ids = valid.caller_ids
        return Decision(
            event_id=slot.event_id,
            action=caller_ids.get(slot.action, slot.action),
            probability=slot.probability,
            ranking=_with_caller_ids(caller_ids, slot.ranking),
            model_version=version,
            slot=place.id,
            feedback=self._feedback,
        )

    def _fallback_or_raise(self, error: ServiceError) -> Fallback:
        if self._fallback is None:
            raise error
        return self._fallback

    def _fall_back(self, valid: ValidRequest, error: ServiceError) -> Decision:
        return self._fallen_back(fall_back(valid, self._fallback_or_raise(error)), error)

    def _fallen_back(self, action: Any, error: ServiceError, slot: Any = None) -> Decision:
        """Return a decision with a new id: the service may have stored another action under the first."""
        return Decision(
            event_id=FALLBACK_PREFIX + new_event_id(),
            action=action,
            probability=None,
            ranking=[],
            model_version=0,
            slot=slot,
            fallback=True,
            error=error,
            feedback=self._feedback,
        )


def identified(answer: Answer | Failure, request: Request) -> Answer | Failure:
    """Return an answer with the id of its request, if it is an error, which names it."""
    if isinstance(answer, Answer) and answer.status < 300:
        return answer
    return msgspec.structs.replace(answer, request_id=request.headers.get(REQUEST_ID))


def observed(observe: Callable[[Observed], None] | None, name: str, seconds: float, answer: Answer | Failure) -> None:
    """Call the observer about a call; log its exceptions."""
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


def seconds_of(name: str, value: Any, most: float = math.inf) -> float:
    """Return a number of seconds, checked: a caller's mistake must not look like a service that does not answer."""
    if isinstance(value, (str, bytes)) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    seconds = float(value)
    if not 0 < seconds <= most:
        limit = "positive" if most == math.inf else "positive and finite"
        raise ValueError(f"{name} must be {limit}, got {value!r}")
    return seconds


def _named(name: str, value: object) -> str:
    """Return an id as text; refuse one that is empty or too long."""
    text = identifier(name, value)
    if not 1 <= len(text) <= LONGEST_ID:
        raise ValueError(f"{name} must have 1 to {LONGEST_ID} characters, got {len(text)}")
    return text


def _loop_path(loop: str) -> str:
    if not isinstance(loop, str) or not loop:
        raise ValueError(f"loop must be a name, got {loop!r}")
    return "/v1/loops/" + _segment("loop", loop)


def _segment(name: str, text: str) -> str:
    """Return an id as a part of a path."""
    if text in (".", ".."):
        raise ValueError(f"{name} must not be {text!r}: HTTP clients remove such a part of a path")
    return quote(text, safe="")


def _written(body: Any) -> bytes:
    """Return a request as JSON; the remaining errors are names of features, and invalid Unicode."""
    try:
        return _encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"the request must be JSON: {error}") from None


def _place(slot: Slot) -> Slot:
    """Return a slot, checked, as it is sent, except for its id."""
    baseline = None if slot.baseline is None else identifier("baseline", slot.baseline)
    return Slot(slot.id, features(f"slots[{slot.id!r}]", slot.features), identifiers("exclude", slot.exclude), baseline)


def _with_caller_ids(caller_ids: Mapping[str, Any], places: list[P]) -> list[P]:
    """Return places of a ranking or explanations with the caller's ids."""
    if all(type(each) is str for each in caller_ids.values()):
        return places
    return [msgspec.structs.replace(place, id=caller_ids.get(place.id, place.id)) for place in places]


def _understood(answer: Answer | Failure, read: Callable[[Any], T]) -> T:
    """Return the content of a success; JSON of another shape comes from a proxy or another service."""
    body = checked(answer).body
    document = decoded(body, Any) if body else None
    try:
        return read(document)
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable(f"{type(error).__name__}: {error}") from None


def _settings(document: Any) -> Settings:
    settings: Settings = dict(document["settings"])  # type: ignore[assignment]
    return settings


def _same(document: Any) -> Any:
    return dict(document)


def _nothing(_: object) -> None:
    return None


def _feedback_event(name: str, event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event as it is sent: with an id, so that a repeat of the call stores nothing twice."""
    for field in event:
        if field not in FEEDBACK:
            raise TypeError(f"{name} must have {', '.join(FEEDBACK)}, got {field!r}")
    action = event.get("action")
    if isinstance(action, Mapping):
        [chosen] = action_list([action])
        action = {"id": chosen.id, "features": chosen.features or {}}
    else:
        action = identifier(f"{name}.action", action)
    time = event.get("time")
    context = event.get("context")
    event_id = event.get("event_id")
    if isinstance(time, datetime):
        time = time.timestamp()
    optional = {
        "user": user_id(event.get("user")),
        "context": None if context is None else features(f"{name}.context", context),
        "time": time if time is None or isinstance(time, str) else number(f"{name}.time", time),
    }
    return {
        "action": action,
        "reward": number(f"{name}.reward", event.get("reward")),
        "event_id": new_event_id() if event_id is None else identifier(f"{name}.event_id", event_id),
        **{field: value for field, value in optional.items() if value is not None},
    }

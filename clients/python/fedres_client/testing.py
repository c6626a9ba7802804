"""A service for the tests of your own program: it decides as a test determines, and records rewards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Optional, Union
from urllib.parse import unquote

import httpx
import msgspec

from fedres_client.async_client import AsyncClient
from fedres_client.client import Client
from fedres_client.inputs import Features, Id, identifier

FLUSH_SECONDS = 5.0


class FakeRequest(msgspec.Struct, frozen=True):
    """What a fake service decides on; ids are text."""

    user: Optional[str]
    context: dict[str, Any]
    # Actions to choose from.
    actions: list[str]
    slot: Optional[str] = None


class FakeDecision(msgspec.Struct, frozen=True):
    """A decision that a fake service made; ids are text."""

    loop: str
    event_id: str
    user: Optional[str]
    context: dict[str, Any]
    action: str
    slot: Optional[str] = None


class FakeReward(msgspec.Struct, frozen=True):
    """A reward that a fake service received."""

    loop: str
    event_id: str
    id: str
    value: Optional[float] = None
    outcomes: Optional[dict[str, float]] = None


Choice = Union[Id, Callable[[FakeRequest], Id], None]


class FakeService(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """A service in this process, without a network.

    >>> service = FakeService(choose="juice")
    >>> with service.client() as client:
    ...     client.rank(user="anna", actions=["tea", "juice"]).reward(1)
    >>> service.decisions[0].action, service.rewards()[0].value
    ('juice', 1.0)

    ``choose`` is the id of the action to choose, or a function that returns it; None is the first action.
    ``catalogue`` are features by id, for ``recommend``. With ``is_away``, the service does not answer. All three may be
    changed at any time. It is also an httpx transport, for the argument ``transport`` of a client of your own.
    """

    def __init__(self, choose: Choice = None, *, catalogue: Mapping[str, Features] | None = None) -> None:
        self.choose = choose
        self.catalogue = dict(catalogue or {})
        self.is_away = False
        self.decisions: list[FakeDecision] = []
        self._rewards: dict[str, FakeReward] = {}
        self._clients: list[Client | AsyncClient] = []

    def client(self, **options: Any) -> Client:
        """Return a ``Client`` of this service, with options of ``Client``."""
        made = Client("http://fake.invalid", transport=self, **options)
        self._clients.append(made)
        return made

    def async_client(self, **options: Any) -> AsyncClient:
        """Return an ``AsyncClient`` of this service, with options of ``AsyncClient``."""
        made = AsyncClient("http://fake.invalid", transport=self, **options)
        self._clients.append(made)
        return made

    def rewards(self) -> list[FakeReward]:
        """Send what the clients have queued, and return all rewards so far, oldest first."""
        if not self.is_away:
            for client in self._clients:
                client._rewards.flush(FLUSH_SECONDS)
        return list(self._rewards.values())

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("the fake service is away", request=request)
        path = request.url.raw_path.decode()
        _, _, below = path.partition("/v1/loops/")
        loop, _, rest = below.partition("/")
        content = request.read()
        try:
            reply = self._reply(unquote(loop), f"{request.method} /{rest}", json.loads(content) if content else {})
        except _RefusalError as refusal:
            detail = {"code": refusal.code, "message": str(refusal), "target": None}
            return httpx.Response(refusal.status, json={"error": detail})
        return httpx.Response(200, json=reply)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        return self.handle_request(request)

    def _reply(self, loop: str, route: str, sent: Mapping[str, Any]) -> Any:
        if route == "POST /rank":
            return self._decide(loop, sent)
        if route == "POST /rank/batch":
            return {"results": [self._decide(loop, request) for request in sent["requests"]]}
        if route == "POST /rank/slots":
            return self._fill(loop, sent)
        if route == "POST /recommend":
            return self._recommend(loop, sent)
        if route == "POST /events/rewards":
            return self._store(loop, sent["rewards"])
        raise _RefusalError(501, "not_in_fake", f"the fake service has decisions and rewards only, not {route}")

    def _decide(self, loop: str, request: Mapping[str, Any], slot: str | None = None) -> dict[str, Any]:
        excluded = request.get("exclude", ())
        offered = [action["id"] for action in request["actions"] if action["id"] not in excluded]
        action = self._record(loop, request["event_id"], request, offered, slot)
        ranking = [{"id": name, "score": 0.0, "probability": float(name == action)} for name in offered]
        return {
            "event_id": request["event_id"],
            "action": action,
            "probability": 1.0,
            "ranking": ranking,
            "model_version": 1,
        }

    def _record(
        self, loop: str, event_id: str, request: Mapping[str, Any], offered: Sequence[str], slot: str | None = None
    ) -> str:
        """Choose one of the offered actions, and record the decision."""
        user = request.get("user")
        context = request.get("context", {})
        action = self._chosen(FakeRequest(user, context, list(offered), slot))
        self.decisions.append(FakeDecision(loop, event_id, user, context, action, slot))
        return action

    def _chosen(self, request: FakeRequest) -> str:
        choice = self.choose(request) if callable(self.choose) else self.choose
        if choice is None:
            return request.actions[0]
        action = identifier("choose", choice)
        if action not in request.actions:
            offered = ", ".join(request.actions)
            raise _RefusalError(422, "not_offered", f"choose must be one of the actions {offered}, got {action}")
        return action

    def _fill(self, loop: str, page: Mapping[str, Any]) -> dict[str, Any]:
        taken: list[str] = []
        filled = []
        for slot in page["slots"]:
            excluded = [*slot.get("exclude", ()), *taken]
            place = {**page, "event_id": f"{page['event_id']}~{slot['id']}", "exclude": excluded}
            decision = self._decide(loop, place, slot["id"])
            taken.append(decision["action"])
            filled.append({**decision, "id": slot["id"]})
        return {"event_id": page["event_id"], "model_version": 1, "slots": filled}

    def _recommend(self, loop: str, page: Mapping[str, Any]) -> dict[str, Any]:
        left = [name for name in self.catalogue if name not in page.get("exclude", ())]
        items: list[dict[str, Any]] = []
        while left and len(items) < page["n"]:
            event_id = f"{page['event_id']}~{len(items) + 1}"
            action = self._record(loop, event_id, page, left)
            left.remove(action)
            items.append({"id": action, "event_id": event_id, "score": 0.0, "probability": 1.0})
        return {"event_id": page["event_id"], "model_version": 1, "items": items}

    def _store(self, loop: str, rewards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        for reward in rewards:
            if not reward.get("activate"):
                self._rewards.setdefault(reward["id"], FakeReward(loop, **reward))
        return {"results": [{"event_id": reward["event_id"]} for reward in rewards]}


class _RefusalError(Exception):
    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

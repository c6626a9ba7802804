"""The way in: finds the route, asks for the key, counts, reads the body within its limits, and answers all failures.

Pure ASGI. The hot routes are answered here; all others go on to FastAPI with their body in hand.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import quote

from service.errors import ApiError
from service.http.body import Disconnected, Head, check_media_type, read_body, read_head
from service.http.keys import ANYONE, Key, Keys
from service.http.limits import Buckets, Limits
from service.http.metrics import Requests
from service.http.replies import (
    Receive,
    Reply,
    Scope,
    Send,
    failure,
    log,
    refusal,
    send_reply,
    too_many_requests,
    wrong_method,
)
from service.http.table import OPEN, ROUTES, Route, Table

UNKNOWN = "unknown"  # the path in metrics of all that have no route: a client must not choose our labels
GONE = 499  # the status in metrics of those who went away before they were answered

JSON_TYPE = b"application/json"
BINARY_TYPE = b"application/octet-stream"
MSGPACK_TYPE = b"application/msgpack"

CLIENT = "fedres.client"  # in a scope: to which device's id the key is bound, None to none; no header can set it


class Call(NamedTuple):
    """A request that was let in."""

    loop: str
    parameters: dict[str, str]
    body: bytes
    client: str | None  # the only device that it may speak for, None if any


Handler = Callable[[Call], Awaitable[Reply]]


class Gate:
    """An ASGI middleware in front of ``app`` that answers the routes in ``hot`` itself."""

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        *,
        hot: Mapping[str, Handler],
        keys: Keys,
        limits: Limits,
        requests: Requests,
    ) -> None:
        self._app, self._hot, self.keys, self.limits, self.requests = app, hot, keys, limits, requests
        self.table = Table()
        self.buckets = Buckets(limits.requests_per_second)
        self._bodies = {path: _body_of(path, limits) for path in ROUTES}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        path, status = await self._answer(scope, receive, send)
        self.requests.count(path, scope["method"] if path != UNKNOWN else "any", status, perf_counter() - began)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> tuple[str, int]:
        """Return the route's path and the status of the reply that was sent."""
        path = UNKNOWN
        try:
            raw_path = scope.get("raw_path") or quote(scope["path"]).encode()
            route, parameters = self.table.find(raw_path)
            path = route.path
            head = read_head(scope["headers"])
            stopped = self._stop(route, parameters, scope["method"], head)
            if isinstance(stopped, Reply):
                reply = stopped
            else:
                client = stopped.client or scope.get(CLIENT)  # a worker that was shown the key says whose it is
                body = b""
                if scope["method"] in ("POST", "PUT"):
                    media_type, limit = self._bodies[path]
                    if head.media_type != media_type:
                        check_media_type(head, media_type)
                    body = await read_body(receive, head, limit)
                handle = self._hot.get(path)
                if handle is None:
                    known = {"fedres.parameters": parameters, CLIENT: client}
                    return path, await self._pass_on(_Passed(scope, raw_path, known, body, receive, send))
                reply = await handle(Call(route.loop(parameters) or "", parameters, body, client))
        except Disconnected:
            return path, GONE
        except Exception as error:
            reply = failure(error)
        await send_reply(send, reply)
        return path, reply.status

    async def _pass_on(self, passed: _Passed) -> int:
        """Return the status of FastAPI's reply; it raises what it has answered already."""
        try:
            await self._app(passed.scope, passed.receive, passed.send)
        except Exception as error:
            if not passed.status:
                raise
            if not passed.complete:
                log.error("a reply broke off", exc_info=error)  # the server closes the connection
        return passed.status

    def _stop(self, route: Route, parameters: dict[str, str], method: str, head: Head) -> Reply | Key:
        """Return the reply to those who may not, or need not, go on; else who goes on."""
        roles = route.methods.get("GET" if method == "HEAD" else method)
        if roles is None:
            return _no_method(method, route.allowed())
        if roles is OPEN:
            return ANYONE
        key = self.keys.identify(head.authorization)
        seconds = self.buckets.take(key.id)
        if seconds:
            return too_many_requests(seconds)
        loop = route.loop(parameters)
        if key.role in roles and (key.loop is None or key.loop == loop):
            return key
        return _forbidden(key, f"{method} {route.path}", loop)


class _Passed:
    """A request on its way through FastAPI: its path still quoted, its body in hand, the status noted."""

    def __init__(
        self, scope: Scope, raw_path: bytes, known: dict[str, Any], body: bytes, receive: Receive, send: Send
    ) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]  # the server leaves out the body
        self.scope = {**scope, "method": method, "path": raw_path.decode("latin-1"), **known}
        self.status, self.complete = 0, False
        self._body: bytes | None = body
        self._receive, self._send = receive, send

    async def receive(self) -> Any:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.complete = not message.get("more_body", False)
        await self._send(message)


def _body_of(path: str, limits: Limits) -> tuple[bytes | None, int]:
    """Return the type of a path's bodies and how many bytes they may have; activation has none."""
    if path.endswith("/activate"):
        return None, limits.body_bytes
    if path.endswith("/updates"):
        return MSGPACK_TYPE, limits.update_bytes
    return (BINARY_TYPE, limits.model_bytes) if path.endswith("/model") else (JSON_TYPE, limits.body_bytes)


def _no_method(method: str, allowed: str) -> Reply:
    return Reply(204, headers=((b"allow", allowed.encode()),)) if method == "OPTIONS" else wrong_method(method, allowed)


def _forbidden(key: Key, what: str, loop: str | None) -> Reply:
    whose = "all loops" if key.loop is None else f"the loop {key.loop!a}"
    about = "the service as a whole" if loop is None else f"the loop {loop!a}"
    message = f"a key with the role {key.role} for {whose} may not {what} of {about}"
    return refusal(ApiError(403, "forbidden", message, "Authorization"))

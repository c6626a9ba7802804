"""The way in: finds the route, asks for the key, reads the body within its limits, and answers all failures.

Pure ASGI. Hot routes are answered here, before FastAPI sees the request; all others go on to FastAPI with their body.
Paths are looked up segment by segment, still quoted: ``%2F`` is part of an id and ``/`` is not, but on wide routes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from service import metrics
from service.errors import ApiError
from service.http.audit import Audit
from service.http.body import Disconnected, Head, check_media_type, read_body, read_head
from service.http.hosts import Hosts
from service.http.keys import ANYONE, Key, Keys
from service.http.lane import Lane
from service.http.limits import Buckets, Limits
from service.http.replies import (
    LONGEST_REQUEST_ID,
    REQUEST_ID,
    Error,
    Receive,
    Reply,
    Scope,
    Send,
    adding,
    failure,
    log,
    safe,
    send_reply,
    too_many_requests,
    wrong_method,
)
from service.http.routes import BINARY, MSGPACK, OPEN, Call, Reshape, Route
from service.logs import Request, serving

UNKNOWN = "unknown"  # the path in metrics of all that have no route: a client must not choose our labels
WITH_BODY = ("POST", "PUT", "PATCH")
GONE = 499  # the status in metrics of those who went away before they were answered

CLIENT = "fedres.client"  # in a scope: to which device's id the key is bound, None to none; no header can set it
PARAMETERS = "fedres.parameters"


class Methods:
    """The routes of one path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.names = tuple(segment[1:-1] for segment in path[1:].split("/") if segment.startswith("{"))
        self.routes: dict[str, Route] = {}

    def allowed(self) -> str:
        """Return the value of an Allow header."""
        head = ["HEAD"] if "GET" in self.routes else []
        return ", ".join([*self.routes, *head, "OPTIONS"])


class _Node:
    """A segment of paths: what may follow it by name, what follows as a parameter, and the path that ends here."""

    __slots__ = ("ends", "named", "parameter")

    def __init__(self) -> None:
        self.named: dict[bytes, _Node] = {}
        self.parameter: _Node | None = None
        self.ends: Methods | None = None

    def child(self, segment: str) -> _Node:
        if not segment.startswith("{"):
            return self.named.setdefault(segment.encode(), _Node())
        self.parameter = self.parameter or _Node()
        return self.parameter


class Table:
    """Finds the routes of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._fixed: dict[bytes, tuple[Methods, dict[str, str]]] = {}  # paths without parameters, found at once
        self._wide: list[tuple[re.Pattern[bytes], Methods]] = []
        for route in routes:
            node = self._root
            for segment in route.path[1:].split("/"):
                node = node.child(segment)
            node.ends = node.ends or Methods(route.path)
            node.ends.routes[route.method] = route
            if not node.ends.names:
                self._fixed[route.path.encode()] = (node.ends, {})
            if route.wide:
                self._wide.append((_wide_pattern(route), node.ends))

    def find(self, raw_path: bytes) -> tuple[Methods, dict[str, str]]:
        """Return the routes and their parameters, unquoted; a path that has none is refused with 404."""
        if raw_path in self._fixed:
            return self._fixed[raw_path]
        node, quoted = self._root, []
        for segment in raw_path[1:].split(b"/"):
            following = node.named.get(segment)
            if following is None:
                following = node.parameter
                if following is None or not segment:
                    return self._find_wide(raw_path)
                quoted.append(segment)
            node = following
        if node.ends is None:
            return self._find_wide(raw_path)
        return _found(node.ends, quoted)

    def _find_wide(self, raw_path: bytes) -> tuple[Methods, dict[str, str]]:
        for pattern, methods in self._wide:
            match = pattern.fullmatch(raw_path)
            if match is not None:
                return _found(methods, match.groups())
        raise _no_path(raw_path)


def _found(methods: Methods, quoted: Iterable[bytes]) -> tuple[Methods, dict[str, str]]:
    return methods, dict(zip(methods.names, map(_unquoted, quoted), strict=True))


def _wide_pattern(route: Route) -> re.Pattern[bytes]:
    """Return what matches a path whose last parameter may have slashes."""
    *before, last = [segment for segment in re.split(r"({\w+})", route.path) if segment.startswith("{")]
    pattern = re.escape(route.path).replace(re.escape(last), "(.+)")
    for name in before:
        choices = route.choices.get(name[1:-1], ())
        pattern = pattern.replace(re.escape(name), f"({'|'.join(map(re.escape, choices)) or '[^/]+'})")
    return re.compile(pattern.encode(), re.DOTALL)


def _below(root: bytes, raw_path: bytes) -> bytes:
    """Return the path below a root; a proxy may have removed the root already."""
    return raw_path[len(root) :] or b"/" if raw_path == root or raw_path.startswith(root + b"/") else raw_path


def _unquoted(segment: bytes) -> str:
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        shown = segment[:100].decode("latin-1")
        raise ApiError(400, "invalid_path", f"the path must be UTF-8 when unquoted, got {shown}", "path") from None


def _no_path(raw_path: bytes) -> ApiError:
    shown = raw_path[:100].decode("latin-1")
    return ApiError(404, "unknown_path", f"the path must be one of the API's, got {shown}; see /docs", "path")


class Router:
    """An ASGI application in front of ``app`` that answers hot routes itself."""

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        routes: Iterable[Route],
        *,
        keys: Keys,
        limits: Limits,
        hosts: Hosts,
        audit: Audit,
        reshape: Mapping[bytes, Reshape] | None = None,
        root_path: str = "",
        access_log: bool = False,
    ) -> None:
        self._app, self.keys, self._hosts, self._audit = app, keys, hosts, audit
        self._reshape = reshape or {}  # by the first segment of paths
        self._table = Table(routes)
        self._root = root_path.encode()
        self._buckets = Buckets(limits.requests_per_second)
        self._body_bytes = {BINARY: limits.model_bytes, MSGPACK: limits.update_bytes}
        self._other_bytes = limits.body_bytes
        self._lane = Lane()
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        path, status = await self._answer(scope, receive, send)
        seconds = perf_counter() - began
        metrics.count_request(path, scope["method"] if path != UNKNOWN else "any", status, seconds)
        if self._access_log:
            fields = {"method": scope["method"], "path": path, "status": status, "ms": round(seconds * 1e3, 3)}
            said = "%(method)s %(path)s %(status)d %(ms).1f ms"
            log.info(said, fields, extra={"fields": fields})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> tuple[str, int]:
        """Return the route's path and the status of the reply that was sent."""
        path, raw_path = UNKNOWN, b""
        request = Request(scope["method"])
        serving.set(request)
        try:
            head = read_head(scope["headers"])
            send = self._introduced(request, head, send)
            raw_path = scope.get("raw_path") or quote(scope["path"]).encode()
            if self._root:
                raw_path = _below(self._root, raw_path)
            methods, parameters = self._table.find(raw_path)
            path, method = methods.path, scope["method"]
            request.path = path
            route = methods.routes.get("GET" if method == "HEAD" else method)
            if route is None:
                reply = self._no_method(method, methods.allowed(), head.origin)
            else:
                key = self._admit(route, parameters, method, head)
                if scope.get("query_string"):
                    _check_query(route, scope["query_string"])
                body = await self._read(route, head, receive) if method in WITH_BODY else b""
                if not route.hot:
                    known = {PARAMETERS: parameters, CLIENT: key.client}
                    passed = _Passed(scope, raw_path, known, body, receive, send)
                    status = await self._lane.in_turn(len(body), self._pass_on, passed)
                    if route.audited:
                        self._audit.note(key.id, f"{method} {path}", route.loop(parameters), status)
                    return path, status
                query = scope.get("query_string", b"")
                call = Call(
                    route.loop(parameters, key.loop) or "", parameters, body, key.client, query, scope, key.explain
                )
                endpoint = partial(self._audited, route, key) if route.audited else route.endpoint
                reply = await self._lane.in_turn(len(body), endpoint, call)
        except Disconnected:
            return path, GONE
        except _Refused as refused:
            reply = refused.reply
        except Exception as error:
            reply = failure(error)
        if reply.status >= 400:
            reply = self._reshaped(raw_path, reply)
        await send_reply(send, reply)
        return path, reply.status

    def _introduced(self, request: Request, head: Head, send: Send) -> Send:
        """Give the request its id; return a ``send`` that repeats it and says which pages may read the reply."""
        headers = self._hosts.origins.headers(head.origin)
        given = head.request_id
        if given is not None and len(given) <= LONGEST_REQUEST_ID:
            request.take_id(given)
            headers = (*headers, (REQUEST_ID, given))
        elif self._access_log:
            headers = (*headers, (REQUEST_ID, request.id.encode()))
        return adding(send, headers)

    def _no_method(self, method: str, allowed: str, origin: bytes | None) -> Reply:
        if method != "OPTIONS":
            return wrong_method(method, allowed)
        if self._hosts.origins.has(origin):
            return self._hosts.origins.preflight(allowed)
        return Reply(204, headers=((b"allow", allowed.encode()),))

    def _reshaped(self, raw_path: bytes, reply: Reply) -> Reply:
        reshape = self._reshape.get(raw_path[1:].partition(b"/")[0])
        return reply if reshape is None else reshape(reply)

    async def _read(self, route: Route, head: Head, receive: Receive) -> bytes:
        if route.body_type is not None:
            check_media_type(head, route.body_type.encode())
        return await read_body(receive, head, self._body_bytes.get(route.body_type or "", self._other_bytes))

    def _admit(self, route: Route, parameters: dict[str, str], method: str, head: Head) -> Key:
        """Return who may go on."""
        if route.roles is OPEN:
            return ANYONE
        authorization = head.authorization
        if authorization is None and head.subscription_key is not None and route.takes_subscription_key:
            authorization = b"Bearer " + head.subscription_key
        key = self.keys.identify(authorization)
        if key is ANYONE or self._hosts.always:
            self._hosts.check(head.host, head.origin, head.site)
        seconds = self._buckets.take(key.id)
        if seconds:
            metrics.refusals.labels(key.id).inc()
            raise _Refused(too_many_requests(seconds))
        loop = route.loop(parameters, key.loop)
        if key.role in route.roles and (key.loop is None or key.loop == loop):
            return key
        if route.audited:
            self._audit.note(key.id, f"{method} {route.path}", loop, 403)
        raise _forbidden(key, f"{method} {route.path}", loop)

    async def _audited(self, route: Route, key: Key, call: Call) -> Reply:
        """Answer a hot route, and note who asked."""
        try:
            reply: Reply = await route.endpoint(call)
        except Exception as error:
            reply = failure(error)
        self._audit.note(key.id, f"{route.method} {route.path}", call.loop, reply.status)
        return reply

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


class _Refused(Exception):  # noqa: N818
    def __init__(self, reply: Reply) -> None:
        self.reply = reply


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
            message = {**message, "headers": safe(message["headers"])}
        else:
            self.complete = not message.get("more_body", False)
        await self._send(message)


def _check_query(route: Route, query: bytes) -> None:
    """Refuse parameters that the route does not have; those of pages and of other APIs are left alone."""
    if route.roles is OPEN or route.error is not Error:
        return
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in route.query:
            known = f"one of {', '.join(route.query)}" if route.query else "none here"
            message = f"query parameters must be {known}, got {name[:100]!a}"
            raise ApiError(422, "unknown_parameter", message, name[:100])


def _forbidden(key: Key, what: str, loop: str | None) -> ApiError:
    whose = "all loops" if key.loop is None else f"the loop {key.loop!a}"
    about = "the service as a whole" if loop is None else f"the loop {loop!a}"
    message = f"a key with the role {key.role} for {whose} may not {what} of {about}"
    return ApiError(403, "forbidden", message, "Authorization")

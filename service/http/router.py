"""The way in: finds the route, asks for the key, reads the body within its limits, and answers all failures.

Pure ASGI. Hot routes are answered here, before FastAPI sees the request; all others go on to FastAPI with their body.
Paths are looked up segment by segment, still quoted: ``%2F`` is part of an id and ``/`` is not, but on wide routes.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from msgspec import Struct

from service import metrics
from service.errors import ApiError
from service.http.audit import Audit
from service.http.hosts import Hosts
from service.http.keys import ANYONE, Buckets, Key, Keys
from service.http.protocol import send_reply
from service.http.replies import (
    LONGEST_REQUEST_ID,
    REQUEST_ID,
    Error,
    Headers,
    RateLimited,
    Receive,
    Reply,
    Scope,
    Send,
    failure,
    log,
    safe,
    wrong_method,
)
from service.http.request import (
    UNREADABLE,
    Disconnected,
    Limits,
    check_encoding,
    check_media_type,
    decompressed,
    read_rest,
    too_large,
    unreadable,
)
from service.http.routes import CLIENT, LINES, OPEN, PARAMETERS, Call, Reshape, Route
from service.logs import Request, serving

UNKNOWN = "unknown"  # the path in metrics of all that have no route: a client must not choose our labels
WITH_BODY = ("POST", "PUT", "PATCH")
GONE = 499  # the status in metrics of those who went away before they were answered

_ascii = bytes.decode


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
        if b"%" in raw_path or not raw_path.isascii():
            return node.ends, _unquoted(node.ends, quoted)
        return node.ends, dict(zip(node.ends.names, map(_ascii, quoted), strict=True))

    def _find_wide(self, raw_path: bytes) -> tuple[Methods, dict[str, str]]:
        for pattern, methods in self._wide:
            match = pattern.fullmatch(raw_path)
            if match is not None:
                return methods, _unquoted(methods, match.groups())
        raise _no_path(raw_path)


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


def _unquoted(methods: Methods, quoted: Iterable[bytes]) -> dict[str, str]:
    """Return the parameters of a path by name."""
    try:
        return {name: unquote(segment, errors="strict") for name, segment in zip(methods.names, quoted, strict=True)}
    except UnicodeDecodeError as error:
        shown = bytes(error.object)[:100].decode("latin-1")
        raise ApiError(400, "invalid_path", f"the path must be UTF-8 when unquoted, got {shown}", "path") from None


def _no_path(raw_path: bytes) -> ApiError:
    shown = raw_path[:100].decode("latin-1")
    return ApiError(404, "unknown_path", f"no such path: {shown}; see /docs", "path")


class RequestHeaders(Struct, frozen=True, gc=False):
    """The headers that the service looks at."""

    authorization: bytes | None = None
    length: bytes | None = None
    media_type: bytes | None = None
    encoding: bytes | None = None
    host: bytes | None = None
    origin: bytes | None = None
    subscription_key: bytes | None = None  # of Azure's clients
    request_id: bytes | None = None  # repeated in the reply
    site: bytes | None = None  # where a browser says that the request comes from


_NAMES = (
    *(b"authorization", b"content-length", b"content-type", b"content-encoding", b"host", b"origin"),
    *(b"ocp-apim-subscription-key", b"x-request-id", b"sec-fetch-site"),
)
_PLACES = {name: place for place, name in enumerate(_NAMES)}
_CREDENTIALS = (b"authorization", b"ocp-apim-subscription-key")


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> RequestHeaders:
    """Return the headers of interest; of one that comes twice, the last. Credentials must come once.

    A proxy in front that looks at the first of two would let in what it should not.
    """
    values: list[bytes | None] = [None] * len(_NAMES)
    for name, value in headers:
        place = _PLACES.get(name)
        if place is not None:
            if values[place] is not None and name in _CREDENTIALS:
                shown = name.decode().title()
                raise ApiError(400, "repeated_header", f"{shown} must come once, got it twice", shown)
            values[place] = value
    return RequestHeaders(*values)


async def read_request(route: Route, headers: RequestHeaders, receive: Receive, limit: int) -> Any:
    """Return the body, at most ``limit`` bytes, decoded where the route has a type for it."""
    if route.media_type is not None and headers.media_type != route.media_type:
        check_media_type(headers.media_type, route.media_type, *[LINES.encode()] * route.or_lines)
    length, encoding = headers.length, headers.encoding
    if encoding is not None:
        check_encoding(encoding)
    if length is not None and not (length.strip().isdigit() and int(length[:20]) <= limit):
        raise too_large(limit)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body", False) or message["type"] == "http.disconnect" or len(body) > limit:
        body = await read_rest(message, receive, limit)
    if encoding is not None:
        body = decompressed(body, encoding, limit)
    if route.decoder is None:
        return body
    try:
        return route.decoder.decode(body)
    except UNREADABLE as error:
        raise unreadable(error, route.body) from None


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
        self._limits = {route.limit: getattr(limits, route.limit) for route in routes}  # of bodies, by name
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the route, admit the caller, read the body, call the handler, send its reply, and count."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, method, raw_path = perf_counter(), scope["method"], b""
        request = Request(method)
        serving.set(request)
        reply: Reply | None = None
        more: Headers = ()  # of the reply
        try:
            headers = read_headers(scope["headers"])
            if headers.request_id is not None and len(headers.request_id) <= LONGEST_REQUEST_ID:
                request.client_id = headers.request_id
                more = ((REQUEST_ID, headers.request_id),)
            if self._hosts.origins.allowed or self._access_log:
                more = self._more_headers(request, headers)
            raw_path = scope.get("raw_path") or quote(scope["path"]).encode()
            if self._root:
                raw_path = _below(self._root, raw_path)
            methods, parameters = self._table.find(raw_path)
            request.path = methods.path
            route = methods.routes.get("GET" if method == "HEAD" else method)
            if route is None:
                reply = self._no_method(method, methods.allowed(), headers.origin)
            else:
                key, loop = self._admit(route, parameters, headers)
                query = scope.get("query_string", b"")
                if query:
                    _check_query(route, query)
                limit = self._limits[route.limit]
                body = await read_request(route, headers, receive, limit) if method in WITH_BODY else b""
                call = Call(loop or "", parameters, body, key.client, query, scope, key.explain)
                if route.hot and not route.audited:
                    reply = await route.endpoint(call)
                elif route.hot:
                    reply = await self._audited(route, key, call)
                else:
                    passed = _Passed(call, loop, raw_path, receive, send, more)
                    status = await self._pass_on(route, key, passed)
        except Disconnected:
            status = GONE
        except Exception as error:
            reply = failure(error)
        if reply is not None:
            if reply.status >= 400:
                reply = self._reshaped(raw_path, reply)
            status = reply.status
            await send_reply(send, reply, more)
        seconds = perf_counter() - began
        metrics.count_request(request.path, method if request.path != UNKNOWN else "any", status, seconds)
        if self._access_log:
            self._log_access(request, status, seconds)

    def _no_method(self, method: str, allowed: str, origin: bytes | None) -> Reply:
        if method != "OPTIONS":
            return wrong_method(method, allowed)
        if self._hosts.origins.has(origin):
            return self._hosts.origins.preflight(allowed)
        return Reply(204, headers=((b"allow", allowed.encode()),))

    def _reshaped(self, raw_path: bytes, reply: Reply) -> Reply:
        reshape = self._reshape.get(raw_path[1:].partition(b"/")[0])
        return reply if reshape is None else reshape(reply)

    def _admit(self, route: Route, parameters: dict[str, str], headers: RequestHeaders) -> tuple[Key, str | None]:
        """Return who may go on, and the loop that the request is about, None for the service as a whole.

        Azure's clients name no loop: what they send with a key for one loop is about that loop.
        """
        loop = parameters.get("loop", route.default_loop)
        if route.roles is OPEN:
            return ANYONE, loop
        authorization = headers.authorization
        if route.takes_subscription_key and authorization is None and headers.subscription_key is not None:
            authorization = b"Bearer " + headers.subscription_key
        key = self.keys.identify(authorization)
        sender = headers.host, headers.origin, headers.site
        if (key is ANYONE or self._hosts.always) and sender not in self._hosts.good:
            self._hosts.check(*sender)
        seconds = self._buckets.take(key.id)
        if seconds:
            metrics.refusals.labels(key.id).inc()
            raise RateLimited(seconds)
        if route.takes_subscription_key and key.loop is not None and "loop" not in parameters:
            loop = key.loop
        if key.role in route.roles and (key.loop is None or key.loop == loop):
            return key, loop
        if route.audited:
            self._audit.note(key.id, f"{route.method} {route.path}", loop, 403)
        raise _forbidden(key, route, loop)

    def _more_headers(self, request: Request, headers: RequestHeaders) -> Headers:
        """Return the headers of a reply that say which pages may read it, and the request's id."""
        cross_origin = self._hosts.origins.headers(headers.origin) if self._hosts.origins.allowed else ()
        if request.client_id is not None:
            return (*cross_origin, (REQUEST_ID, request.client_id))
        return (*cross_origin, (REQUEST_ID, request.id.encode())) if self._access_log else cross_origin

    def _log_access(self, request: Request, status: int, seconds: float) -> None:
        fields = {"method": request.method, "path": request.path, "status": status, "ms": round(seconds * 1e3, 3)}
        log.info("%(method)s %(path)s %(status)d %(ms).1f ms", fields, extra={"fields": fields})

    async def _audited(self, route: Route, key: Key, call: Call) -> Reply:
        """Answer a hot route, and note who asked."""
        try:
            reply: Reply = await route.endpoint(call)
        except Exception as error:
            reply = failure(error)
        self._audit.note(key.id, f"{route.method} {route.path}", call.loop, reply.status)
        return reply

    async def _pass_on(self, route: Route, key: Key, passed: _Passed) -> int:
        """Return the status of FastAPI's reply; it raises what it has answered already."""
        try:
            await self._app(passed.scope, passed.receive, passed.send)
        except Exception as error:
            if not passed.status:
                raise
            if not passed.complete:
                log.error("a reply broke off", exc_info=error)  # the server closes the connection
        if route.audited:
            self._audit.note(key.id, f"{route.method} {route.path}", passed.loop, passed.status)
        return passed.status


class _Passed:
    """A request on its way through FastAPI: its path still quoted, its body in hand, the status noted."""

    def __init__(
        self, call: Call, loop: str | None, raw_path: bytes, receive: Receive, send: Send, more: Headers
    ) -> None:
        method = "GET" if call.scope["method"] == "HEAD" else call.scope["method"]  # the server leaves out the body
        request = {PARAMETERS: call.parameters, CLIENT: call.client}
        self.scope = {**call.scope, "method": method, "path": raw_path.decode("latin-1"), **request}
        self.loop, self.status, self.complete = loop, 0, False
        self._body: bytes | None = call.body
        self._receive, self._send, self._more = receive, send, more

    async def receive(self) -> Any:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": (*safe(message["headers"]), *self._more)}
        else:
            self.complete = not message.get("more_body", False)
        await self._send(message)


def _check_query(route: Route, query: bytes) -> None:
    """Refuse parameters that the route does not have; those of pages and of other APIs are left alone."""
    if route.roles is OPEN or route.error is not Error:
        return
    for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in route.query:
            allowed = f"one of {', '.join(route.query)}" if route.query else "none here"
            message = f"query parameters must be {allowed}, got {name[:100]!a}"
            raise ApiError(422, "unknown_parameter", message, name[:100])


def _forbidden(key: Key, route: Route, loop: str | None) -> ApiError:
    whose = "all loops" if key.loop is None else f"the loop {key.loop!a}"
    about = "the service as a whole" if loop is None else f"the loop {loop!a}"
    needed = " or ".join(sorted(route.roles, key="admin".__eq__))
    message = f"a key with the role {key.role} for {whose} may not {route.method} {route.path} of {about}"
    message += f": this needs the role {needed}" if key.role not in route.roles else ""
    return ApiError(403, "forbidden", message, "Authorization")

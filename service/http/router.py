"""The router: finds the route, checks the key, reads the body within its limits, and replies to all errors.

Pure ASGI. Hot routes are served here, before FastAPI sees the request; all others are passed to FastAPI with their
body. Paths are matched segment by segment while quoted: ``%2F`` is part of an id, ``/`` only on wide routes.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

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
    check_media_type,
    gunzip,
    too_large,
    unreadable,
)
from service.http.routes import CLIENT, LINES, OPEN, PARAMETERS, Call, Reshape, Route
from service.logs import ServedRequest, serving

UNKNOWN = "unknown"  # the path in metrics of requests without a route: clients must not choose our labels
WITH_BODY = ("POST", "PUT", "PATCH")
GONE = 499  # the status in metrics of requests whose client disconnected before the reply

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
    """A segment of paths: named segments that may follow, a parameter that may follow, and the path that ends here."""

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


class RouteTable:
    """Finds the routes of a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._fixed: dict[bytes, tuple[Methods, dict[str, str]]] = {}  # paths without parameters, for direct lookup
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
        """Return the routes of a path and its parameters, unquoted; raise a 404 if there is no route."""
        if raw_path in self._fixed:
            return self._fixed[raw_path]
        node, quoted = self._root, []
        for segment in raw_path[1:].split(b"/"):
            following = node.named.get(segment)
            if following is None:
                following = node.parameter
                if following is None or not segment:
                    return self._find_other(raw_path)
                quoted.append(segment)
            node = following
        if node.ends is None:
            return self._find_other(raw_path)
        if b"%" in raw_path or not raw_path.isascii():
            return node.ends, _unquoted(node.ends, quoted)
        return node.ends, dict(zip(node.ends.names, map(_ascii, quoted), strict=True))

    def find_by_id(self, raw_path: bytes, method: str) -> tuple[Methods, dict[str, str]] | None:
        """Return the routes of a path with a segment that is an id, though a route has that name.

        ``/v1/events/rewards`` is a route for many rewards, and the event with the id ``rewards``.
        """
        for methods, quoted in _ways(self._root, raw_path[1:].split(b"/")):
            if method in methods.routes:
                return methods, _unquoted(methods, quoted)
        return None

    def _find_other(self, raw_path: bytes) -> tuple[Methods, dict[str, str]]:
        for methods, quoted in _ways(self._root, raw_path[1:].split(b"/")):
            return methods, _unquoted(methods, quoted)
        for pattern, methods in self._wide:
            match = pattern.fullmatch(raw_path)
            if match is not None:
                return methods, _unquoted(methods, match.groups())
        shown = raw_path[:100].decode("latin-1")
        raise ApiError(404, "unknown_path", f"no such path: {shown}; see /docs", "path")


def _ways(node: _Node, segments: Sequence[bytes]) -> Iterator[tuple[Methods, list[bytes]]]:
    """Yield the routes that a path may mean, each with its quoted parameters."""
    if not segments:
        if node.ends is not None:
            yield node.ends, []
        return
    first, *rest = segments
    if first in node.named:
        yield from _ways(node.named[first], rest)
    if node.parameter is not None and first:
        for methods, quoted in _ways(node.parameter, rest):
            yield methods, [first, *quoted]


def _wide_pattern(route: Route) -> re.Pattern[bytes]:
    """Return a pattern for a path whose last parameter may have slashes."""
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


SUBSCRIPTION_KEY = b"ocp-apim-subscription-key"  # of Azure's clients
ONCE = (b"authorization", SUBSCRIPTION_KEY, b"host")  # headers that must not be repeated
RequestHeaders = Mapping[bytes, bytes]  # by name


def read_headers(headers: Sequence[tuple[bytes, bytes]]) -> RequestHeaders:
    """Return headers by name, the last one if repeated. Credentials and Host must not be repeated.

    A proxy that checks only the first of two would let the other one pass.
    """
    by_name = dict(headers)
    if len(by_name) < len(headers):
        names = [name for name, _ in headers]
        for name in ONCE:
            if names.count(name) > 1:
                shown = name.decode().title()
                raise ApiError(400, "repeated_header", f"{shown} must come once, got it twice", shown)
    return by_name


async def read_request(route: Route, headers: RequestHeaders, receive: Receive, limit: int) -> Any:
    """Return the body, at most ``limit`` bytes, decoded where the route has a type for it."""
    media_type, length = headers.get(b"content-type"), headers.get(b"content-length")
    if route.media_type is not None and media_type != route.media_type:
        check_media_type(media_type, route.media_type, *[LINES.encode()] * route.or_lines)
    encoding = headers.get(b"content-encoding", b"identity")
    if encoding.lower() not in (b"identity", b"gzip"):
        text = f"Content-Encoding must be gzip, got {encoding[:100].decode('latin-1')}"
        raise ApiError(415, "unsupported_encoding", text, "Content-Encoding")
    transfer = headers.get(b"transfer-encoding", b"chunked")
    if transfer.lower() != b"chunked":
        text = f"Transfer-Encoding must be chunked, got {transfer[:100].decode('latin-1')}"
        raise ApiError(415, "unsupported_encoding", text, "Transfer-Encoding")
    if length is not None and not (length.strip().isdigit() and int(length[:20]) <= limit):
        raise too_large(limit)
    chunks, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit:
            raise too_large(limit)
        more = message.get("more_body", False)
    body = b"".join(chunks)
    if encoding.lower() == b"gzip":
        body = gunzip(body, limit)
    if route.decoder is None:
        return body
    try:
        return route.decoder.decode(body)
    except UNREADABLE as error:
        raise unreadable(error, route.body) from None


class Router:
    """An ASGI application in front of ``app`` that serves hot routes itself."""

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
        self._table = RouteTable(routes)
        self._root = root_path.encode()
        self._buckets = Buckets()
        self._rate = limits.requests_per_second  # of keys without a rate of their own
        self._limits = {route.limit: getattr(limits, route.limit) for route in routes}  # of bodies, by name
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the route, admit the caller, read the body, call the handler, send its reply, and count."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, method, raw_path, audited = perf_counter(), scope["method"], b"", False
        request = ServedRequest(method, connection=getattr(receive, "__self__", None))
        serving.set(request)
        reply: Reply | None = None
        more: Headers = ()  # of the reply
        try:
            headers = read_headers(scope["headers"])
            client_id, origin = headers.get(REQUEST_ID), headers.get(b"origin")
            if client_id is not None and len(client_id) <= LONGEST_REQUEST_ID:
                request.client_id = client_id
                more = ((REQUEST_ID, client_id),)
            elif self._access_log:
                more = ((REQUEST_ID, request.id.encode()),)
            if self._hosts.origins:
                more = (*self._hosts.cors_headers(origin), *more)
            raw_path = scope.get("raw_path") or quote(scope["path"]).encode()
            if self._root:
                raw_path = _below(self._root, raw_path)
            methods, parameters = self._table.find(raw_path)
            request.path = methods.path
            served = "GET" if method == "HEAD" else method
            if served not in methods.routes:
                methods, parameters = self._table.find_by_id(raw_path, served) or (methods, parameters)
                request.path = methods.path
            route = methods.routes.get(served)
            if route is None:
                allow = methods.allowed()
                reply = self._hosts.preflight(origin, allow) if method == "OPTIONS" else wrong_method(method, allow)
            else:
                key, loop = self._admit(route, parameters, headers)
                query = scope.get("query_string", b"")
                if query:
                    _check_query(route, query)
                limit = self._limits[route.limit]
                body = await read_request(route, headers, receive, limit) if method in WITH_BODY else b""
                call = Call(loop or "", parameters, body, key.client, query, scope, key.explain)
                audited = route.audited
                if route.hot:
                    reply = await route.endpoint(call)
                else:
                    status = await self._pass_on(call, raw_path, receive, send, more)
        except Disconnected:
            status = GONE
        except Exception as error:
            reply = failure(error)
        if reply is not None:
            if reply.status >= 400:
                reshape = self._reshape.get(raw_path[1:].partition(b"/")[0])
                reply = reply if reshape is None else reshape(reply)
            status = reply.status
        if audited:
            self._audit.note(key.id, f"{method} {request.path}", loop, status)
        if reply is not None:
            await send_reply(send, reply, more)
        seconds = perf_counter() - began
        metrics.count_request(request.path, method if request.path != UNKNOWN else "any", status, seconds)
        if self._access_log:
            fields = {"method": method, "path": request.path, "status": status, "ms": round(seconds * 1e3, 3)}
            log.info("%(method)s %(path)s %(status)d %(ms).1f ms", fields, extra={"fields": fields})

    def _admit(self, route: Route, parameters: dict[str, str], headers: RequestHeaders) -> tuple[Key, str | None]:
        """Return the caller's key, and the request's loop, None for the service as a whole.

        Azure's clients name no loop: requests with a key for one loop are for that loop.
        """
        loop = parameters.get("loop", route.default_loop)
        if route.roles is OPEN:
            return ANYONE, loop
        authorization = headers.get(b"authorization")
        if route.takes_subscription_key and authorization is None and SUBSCRIPTION_KEY in headers:
            authorization = b"Bearer " + headers[SUBSCRIPTION_KEY]
        key = self.keys.identify(authorization)
        sender = headers.get(b"host"), headers.get(b"origin"), headers.get(b"sec-fetch-site")
        if (key is ANYONE or self._hosts.always) and sender not in self._hosts.good:
            self._hosts.check(*sender)
        rate = self._rate if key.rate is None else key.rate
        seconds = self._buckets.take(key.id, rate) if rate else 0.0
        if seconds:
            metrics.refusals.labels(key.id).inc()
            wait = max(1, math.ceil(seconds))
            message = f"the key made too many requests; try again in {wait} s"
            raise ApiError(429, "too_many_requests", message, wait=wait)
        if route.takes_subscription_key and key.loop is not None and "loop" not in parameters:
            loop = key.loop
        if key.role in route.roles and (key.loop is None or key.loop == loop):
            return key, loop
        if route.audited:
            self._audit.note(key.id, f"{route.method} {route.path}", loop, 403)
        raise _forbidden(key, route, loop)

    async def _pass_on(self, call: Call, raw_path: bytes, receive: Receive, send: Send, more: Headers) -> int:
        """Pass a request on to FastAPI, with the quoted path and the body already read; return the reply's status."""
        method = "GET" if call.scope["method"] == "HEAD" else call.scope["method"]  # the server leaves out the body
        parameters = {PARAMETERS: call.parameters, CLIENT: call.client}
        scope = {**call.scope, "method": method, "path": raw_path.decode("latin-1"), **parameters}
        unread, status, is_complete = [call.body], 0, False

        async def receive_body() -> Any:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            return await receive()

        async def send_part(message: Any) -> None:
            nonlocal status, is_complete
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": (*safe(message["headers"]), *more)}
            else:
                is_complete = not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive_body, send_part)
        except Exception as error:  # FastAPI raises errors after replying to them
            if not status:
                raise
            if not is_complete:
                log.error("a reply broke off", exc_info=error)  # the server closes the connection
        return status


def _check_query(route: Route, query: bytes) -> None:
    """Refuse unknown query parameters, except for pages and other APIs."""
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

"""Declarations of routes: method, path, roles, body and reply, for the router, authorization and OpenAPI alike.

A hot route is a plain handler that the router calls itself; the others are ordinary FastAPI endpoints. Routes of a loop
are declared by the path below it, and also exist for the loop ``default``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from service.http.replies import Error, Reply
from service.settings import DEFAULT_LOOP

OPEN: frozenset[str] = frozenset()  # needs no key
RANK = frozenset({"rank", "admin"})
DEVICE = frozenset({"device", "admin"})
READ = frozenset({"read", "admin"})
ADMIN = frozenset({"admin"})

JSON, BINARY, MSGPACK, LINES, TEXT, HTML = (
    "application/json",
    "application/octet-stream",
    "application/msgpack",
    "application/x-ndjson",
    "text/plain",
    "text/html",
)

LIMITS = {BINARY: "model_bytes", MSGPACK: "update_bytes"}  # of bodies, by media type, where not declared
CLIENT = "fedres.client"  # in a scope: the device id that the key is bound to, or None; no header can set it
PARAMETERS = "fedres.parameters"
PREFIXES = ("/v1", "/v1/loops/{loop}")

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Call(msgspec.Struct, frozen=True, gc=False):
    """A request that was let in."""

    loop: str
    parameters: dict[str, str]
    body: Any  # of the route's type if decoded, else bytes
    client: str | None  # the only device that it may act for, None if any
    query: bytes = b""
    scope: Mapping[str, Any] = {}  # of ASGI
    may_explain: bool = True


Handler = Callable[[Call], Awaitable[Reply]]
Reshape = Callable[[Reply], Reply]  # a native failure into the shape of another API


@dataclass(slots=True, kw_only=True)
class Route:
    """One method of one path."""

    method: str
    path: str  # with names in braces
    roles: frozenset[str]
    endpoint: Callable[..., Any]
    summary: str = ""
    body: type | str | None = None  # its type, or a media type
    body_type: str | None = None  # the media type of bodies, None for any
    or_lines: bool = False  # the body may be JSON lines, too
    limit: str = "body_bytes"  # name of the limit of its body
    decoded: bool = False  # the handler receives the body as its type
    reply: type | str | None = None
    status: int = 200
    hot: bool = False  # the router calls the handler itself, else FastAPI does
    of_loop: bool = False
    error: type = Error  # the shape of error replies
    takes_subscription_key: bool = False  # the key may come as Azure's clients send it
    choices: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of path parameters with a fixed set of values
    query: tuple[str, ...] = ()  # its parameters
    wide: bool = False  # its last parameter may have a "/" that is not quoted
    # Derived fields:
    audited: bool = field(init=False)  # calls go to the audit log: admins only, and they change something
    default_loop: str | None = field(init=False)  # the loop if the path names none
    media_type: bytes | None = field(init=False)
    decoder: msgspec.json.Decoder[Any] | None = field(init=False)

    def __post_init__(self) -> None:
        if self.body is not None and self.body_type is None:
            self.body_type = self.body if isinstance(self.body, str) else JSON
        if self.body_type in LIMITS:
            self.limit = LIMITS[self.body_type]
        self.audited = self.roles == ADMIN and self.method != "GET"
        self.default_loop = DEFAULT_LOOP if self.of_loop else None
        self.media_type = None if self.body_type is None else self.body_type.encode()
        self.decoder = msgspec.json.Decoder(self.body) if self.decoded else None


class Routes:
    """Collects declarations: ``of_loop`` and ``of_service`` decorate endpoints."""

    def __init__(self) -> None:
        self.all: list[Route] = []

    def of_loop(
        self, method: str, path: str, roles: frozenset[str], summary: str, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare a route below ``/v1`` for the loop ``default``, and below ``/v1/loops/{loop}`` for any."""
        return self.of_paths(method, [prefix + path for prefix in PREFIXES], roles, summary, of_loop=True, **options)

    def hot(
        self, method: str, path: str, roles: frozenset[str], summary: str, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare a route of a loop that the router serves itself: its handler gets a ``Call``, the body decoded."""
        return self.of_loop(method, path, roles, summary, hot=True, decoded="body" in options, **options)

    def of_service(
        self, method: str, path: str, roles: frozenset[str], summary: str, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare a route of the service as a whole, or one that names its loop itself."""
        return self.of_paths(method, [path], roles, summary, of_loop="{loop}" in path, **options)

    def of_paths(
        self, method: str, paths: Sequence[str], roles: frozenset[str], summary: str, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare a route of several paths; the options are those of ``Route``."""

        def declare(endpoint: Endpoint) -> Endpoint:
            for path in paths:
                route = Route(method=method, path=path, roles=roles, summary=summary, endpoint=endpoint, **options)
                self.all.append(route)
            return endpoint

        return declare

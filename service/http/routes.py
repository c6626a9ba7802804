"""How routes are declared: once, with method, path, roles, body and reply. Router, authorisation and OpenAPI read this.

A hot route is a plain handler that the router calls itself; the others are ordinary FastAPI endpoints. Routes of a loop
are declared by the path below it, and are there for the loop ``default`` too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from service.http.replies import Error, Reply

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

DEFAULT_LOOP = "default"
PREFIXES = ("/v1", "/v1/loops/{loop}")

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])


class Call(NamedTuple):
    """A request that was let in."""

    loop: str
    parameters: dict[str, str]
    body: bytes
    client: str | None  # the only device that it may speak for, None if any
    query: bytes = b""
    scope: Mapping[str, Any] = {}  # of ASGI
    may_explain: bool = True


Handler = Callable[[Call], Awaitable[Reply]]
Reshape = Callable[[Reply], Reply]  # a native failure into the shape of another API


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One method of one path."""

    method: str
    path: str  # with names in braces
    roles: frozenset[str]
    summary: str
    body: type | str | None  # its type, or a media type
    body_type: str | None  # the media type of bodies, None where any will do
    reply: type | str | None
    status: int
    hot: bool
    of_loop: bool
    error: type  # the shape of what fails
    takes_subscription_key: bool  # the key may come as Azure's clients send it
    choices: Mapping[str, Sequence[str]]  # what parameters of the path may be, where not any text
    query: tuple[str, ...]  # its parameters
    wide: bool  # its last parameter may have a "/" that is not quoted
    endpoint: Callable[..., Any]
    audited: bool = field(init=False)  # it is noted who asks: only admins may, and something changes

    def __post_init__(self) -> None:
        object.__setattr__(self, "audited", self.roles == ADMIN and self.method != "GET")

    def loop(self, parameters: dict[str, str], of_key: str | None = None) -> str | None:
        """Return the loop it is about, None for the service as a whole.

        Azure's clients name no loop. What they ask with a key for one loop is about that.
        """
        if not self.of_loop:
            return None
        unnamed = of_key if self.takes_subscription_key else None
        return parameters.get("loop", unnamed or DEFAULT_LOOP)


class Routes:
    """Collects declarations: ``of_loop`` and ``of_service`` decorate endpoints."""

    def __init__(self) -> None:
        self.all: list[Route] = []

    def of_loop(
        self, method: str, path: str, roles: frozenset[str], summary: str, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare a route below ``/v1`` for the loop ``default``, and below ``/v1/loops/{loop}`` for any."""
        return self.of_paths(method, [prefix + path for prefix in PREFIXES], roles, summary, of_loop=True, **options)

    def of_service(
        self, method: str, path: str, roles: frozenset[str], summary: str, **options: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare a route of the service as a whole, or one that names its loop itself."""
        return self.of_paths(method, [path], roles, summary, of_loop="{loop}" in path, **options)

    def of_paths(
        self,
        method: str,
        paths: Sequence[str],
        roles: frozenset[str],
        summary: str,
        *,
        of_loop: bool,
        body: type | str | None = None,
        body_type: str | None = None,
        reply: type | str | None = None,
        status: int = 200,
        hot: bool = False,
        error: type = Error,
        takes_subscription_key: bool = False,
        choices: Mapping[str, Sequence[str]] | None = None,
        query: tuple[str, ...] = (),
        wide: bool = False,
    ) -> Callable[[Endpoint], Endpoint]:
        """Declare a route of several paths."""
        if body is not None and body_type is None:
            body_type = body if isinstance(body, str) else JSON

        def declare(endpoint: Endpoint) -> Endpoint:
            for path in paths:
                self.all.append(
                    Route(
                        method=method,
                        path=path,
                        roles=roles,
                        summary=summary,
                        body=body,
                        body_type=body_type,
                        reply=reply,
                        status=status,
                        hot=hot,
                        of_loop=of_loop,
                        error=error,
                        takes_subscription_key=takes_subscription_key,
                        choices=choices or {},
                        query=query,
                        wide=wide,
                        endpoint=endpoint,
                    )
                )
            return endpoint

        return declare

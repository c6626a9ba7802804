"""Every route of the service, and which roles may use it; a path is looked up segment by segment, still quoted.

Quoted, because ``%2F`` is part of an id and ``/`` is not.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import unquote

from service.errors import ApiError

OPEN: frozenset[str] = frozenset()  # needs no key
RANK = frozenset({"rank", "admin"})
DEVICE = frozenset({"device", "admin"})
ADMIN = frozenset({"admin"})

Methods = dict[str, frozenset[str]]

OF_A_LOOP: dict[str, Methods] = {  # below /v1 for the loop "default", and below /v1/loops/{loop} for any
    "/rank": {"POST": RANK},
    "/rank/batch": {"POST": RANK},
    "/rank/slots": {"POST": RANK},
    "/events/{event_id}/reward": {"POST": RANK},
    "/events/{event_id}/activate": {"POST": RANK},
    "/events": {"GET": ADMIN},
    "/rewards/unmatched": {"GET": ADMIN},
    "/actions": {"GET": ADMIN, "PUT": ADMIN},
    "/settings": {"GET": ADMIN, "PUT": ADMIN},
    "/model": {"GET": DEVICE, "PUT": ADMIN},
    "/users/{user}": {"DELETE": ADMIN},
    "/users/{user}/model": {"GET": ADMIN},
    "/evaluations": {"POST": ADMIN},
    "/federated/model": {"GET": DEVICE},
    "/federated/scores": {"POST": DEVICE},
    "/federated/residuals": {"POST": DEVICE},
    "/federated/updates": {"POST": DEVICE},
    "/federated/round": {"GET": DEVICE},
}

OF_THE_SERVICE: dict[str, Methods] = {  # asks for a key to all loops
    "/v1/loops": {"GET": ADMIN, "POST": ADMIN},
    "/v1/status": {"GET": ADMIN},
    "/metrics": {"GET": ADMIN},
    "/healthz": {"GET": OPEN},
    "/readyz": {"GET": OPEN},
    "/openapi.json": {"GET": OPEN},
    "/docs": {"GET": OPEN},
    "/": {"GET": OPEN},
}

DEFAULT_LOOP = "default"
PREFIXES = ("/v1", "/v1/loops/{loop}")


def of_a_loop(path: str) -> list[str]:
    """Return the two paths of a route: that of the default loop and that of any."""
    return [prefix + path for prefix in PREFIXES]


ROUTES: dict[str, Methods] = {
    **{path: methods for below, methods in OF_A_LOOP.items() for path in of_a_loop(below)},
    "/v1/loops/{loop}": {"DELETE": ADMIN},
    **OF_THE_SERVICE,
}


class Route(NamedTuple):
    path: str  # with names in braces
    methods: Methods
    names: tuple[str, ...]  # of its parameters

    def loop(self, parameters: dict[str, str]) -> str | None:
        """Return the loop it is about, None for the service as a whole."""
        return None if self.path in OF_THE_SERVICE else parameters.get("loop", DEFAULT_LOOP)

    def allowed(self) -> str:
        """Return the value of an Allow header."""
        head = ["HEAD"] if "GET" in self.methods else []
        return ", ".join([*self.methods, *head, "OPTIONS"])


class _Node:
    """A segment of paths: what may follow it by name, what follows as a parameter, and the route that ends here."""

    __slots__ = ("named", "parameter", "route")

    def __init__(self) -> None:
        self.named: dict[bytes, _Node] = {}
        self.parameter: _Node | None = None
        self.route: Route | None = None

    def child(self, segment: str) -> _Node:
        if not segment.startswith("{"):
            return self.named.setdefault(segment.encode(), _Node())
        self.parameter = self.parameter or _Node()
        return self.parameter


class Table:
    """Finds the route of a path."""

    def __init__(self) -> None:
        self._root = _Node()
        self._fixed: dict[bytes, tuple[Route, dict[str, str]]] = {}  # those without parameters, found at once
        for path, methods in ROUTES.items():
            segments = path[1:].split("/")
            node = self._root
            for segment in segments:
                node = node.child(segment)
            names = tuple(segment[1:-1] for segment in segments if segment.startswith("{"))
            node.route = Route(path, methods, names)
            if not names:
                self._fixed[path.encode()] = (node.route, {})

    def find(self, raw_path: bytes) -> tuple[Route, dict[str, str]]:
        """Return the route and its parameters, unquoted; a path that has none is refused with 404."""
        if raw_path in self._fixed:
            return self._fixed[raw_path]
        node, quoted = self._root, []
        for segment in raw_path[1:].split(b"/"):
            following = node.named.get(segment)
            if following is None:
                following = node.parameter
                if following is None or not segment:
                    raise _no_path(raw_path)
                quoted.append(segment)
            node = following
        if node.route is None:
            raise _no_path(raw_path)
        return node.route, dict(zip(node.route.names, map(_unquoted, quoted), strict=True))


def _unquoted(segment: bytes) -> str:
    try:
        return unquote(segment.decode(), errors="strict")
    except UnicodeDecodeError:
        raise ApiError(400, "invalid_path", "the path must be UTF-8, percent-encoded", "path") from None


def _no_path(raw_path: bytes) -> ApiError:
    return ApiError(404, "unknown_path", f"there is no {raw_path[:200].decode('latin-1')!a}", "path")

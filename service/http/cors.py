"""Which pages of other origins may call the service from a browser (CORS). They need a key as everybody does.

Cookies and other credentials of the browser are never allowed: the service has none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from service.http.replies import Headers, Reply

ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?")
HEADERS = b"authorization, content-type, content-encoding, ocp-apim-subscription-key, x-request-id"
EXPOSED = (b"access-control-expose-headers", b"x-request-id, retry-after, location, x-ms-error-code")
MAX_AGE = (b"access-control-max-age", b"600")
VARY = (b"vary", b"origin")


class Origins:
    """The origins that were allowed by name."""

    def __init__(self, allowed: Iterable[str] = ()) -> None:
        self.allowed: set[bytes] = set()
        for name in allowed:
            origin = name.lower().rstrip("/")
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"allowed-origin must be like https://shop.example or http://localhost:5173, got {name!r}"
                )
            self.allowed.add(origin.encode())

    def has(self, origin: bytes | None) -> bool:
        return origin in self.allowed

    def headers(self, origin: bytes | None) -> Headers:
        """Return the headers of a reply to a page of an origin, where any origin is allowed."""
        if origin is None or origin not in self.allowed:
            return (VARY,)
        return ((b"access-control-allow-origin", origin), EXPOSED, VARY)

    def preflight(self, allow: str) -> Reply:
        """Return the answer to a browser that asks whether a page may call: by these methods and with these headers."""
        methods = (b"access-control-allow-methods", allow.encode())
        return Reply(
            204, headers=((b"allow", allow.encode()), methods, (b"access-control-allow-headers", HEADERS), MAX_AGE)
        )

"""Checks of the Host, Origin and Sec-Fetch-Site headers: against web pages that reach a service without keys through a
browser.

A page can let its own name resolve to 127.0.0.1 (DNS rebinding). Its browser then asks this service, but under the name
of the page. So a service without keys serves only requests to its own names. A numeric address is always allowed:
nobody can make it resolve to another machine.

A page of another origin is refused. Another port of the same host is another origin. What a page embeds (an image, a
script) is requested without ``Origin``; browsers send its source in ``Sec-Fetch-Site``.

Pages of other origins may call the service from a browser if they are allowed by name (CORS). They need a key as
everybody does. Cookies and other credentials of the browser are never allowed: the service has none.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable

from service.errors import ApiError
from service.http.keys import Keys
from service.http.replies import Headers, Reply

ANY = "*"
MOST_REMEMBERED = 1_000
OWN_SITES = (None, b"same-origin", b"none")  # none: the user typed the address
ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?")
ALLOW_HEADERS = (
    b"access-control-allow-headers",
    b"authorization, content-type, content-encoding, if-match, ocp-apim-subscription-key, x-request-id",
)
EXPOSED = (b"access-control-expose-headers", b"etag, x-request-id, retry-after, location, x-ms-error-code")
MAX_AGE = (b"access-control-max-age", b"600")
VARY = (b"vary", b"origin")


class Hosts:
    """Host names of the service besides ``localhost`` and addresses; ``*`` is any name.

    If there are names, they are checked for callers with a key too. Pages of ``origins`` have the same rights as the
    service's own pages.
    """

    def __init__(self, allowed: Iterable[str] = (), own: str = "localhost", origins: Iterable[str] = ()) -> None:
        self.origins: set[bytes] = set()
        for name in origins:
            origin = name.lower().rstrip("/")
            if not ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"allowed-origin must be like https://shop.example or http://localhost:5173, got {name!r}"
                )
            self.origins.add(origin.encode())
        names = [name.lower().rstrip(".") for name in allowed]
        for name in names:
            if not name or "/" in name or (":" in name and not _is_address(name)):
                raise ValueError(f"allowed-host must be a host's name without a port, got {name!r}")
        self.always = bool(names)
        self._allowed = set(names)
        self._names = {"localhost", own.lower(), *names}
        self.good: set[tuple[bytes | None, ...]] = set()  # headers that passed ``check``

    def check(self, host: bytes | None, origin: bytes | None, site: bytes | None = None) -> None:
        """Refuse a request for another host, or from a page of another origin."""
        name = _name_of(host or b"localhost")  # without one it comes from no browser
        is_known = name in self._names or ANY in self._names or name.endswith(".localhost") or _is_address(name)
        if not is_known:
            message = f"Host must be an address, localhost or one of --allowed-host, got {name[:100]!a}"
            raise ApiError(421, "unknown_host", message, "Host")
        if origin is not None and not self._is_own(origin, host) and origin not in self.origins:
            message = f"Origin must be this service or one of --allowed-origin, got {origin[:100].decode('latin-1')!a}"
            raise ApiError(403, "foreign_origin", message, "Origin")
        if origin is None and site not in OWN_SITES and ANY not in self._allowed:
            message = f"Sec-Fetch-Site must be same-origin or none, got {(site or b'')[:100].decode('latin-1')!a}"
            raise ApiError(403, "foreign_origin", message, "Sec-Fetch-Site")
        if len(self.good) >= MOST_REMEMBERED:
            self.good.clear()
        self.good.add((host, origin, site))

    def cors_headers(self, origin: bytes | None) -> Headers:
        """Return the CORS headers of a reply to a page of an origin: only Vary unless it is allowed."""
        if origin is None or origin not in self.origins:
            return (VARY,)
        return ((b"access-control-allow-origin", origin), EXPOSED, VARY)

    def preflight(self, origin: bytes | None, allowed: str) -> Reply:
        """Return the reply to OPTIONS: the ``allowed`` methods and, for an allowed origin, the CORS headers."""
        methods = allowed.encode()
        cors = ((b"access-control-allow-methods", methods), ALLOW_HEADERS, MAX_AGE) if origin in self.origins else ()
        return Reply(204, headers=((b"allow", methods), *cors))

    def _is_own(self, origin: bytes, host: bytes | None) -> bool:
        """Return whether a page is from this host and port, or from an allowed name without a port."""
        _, scheme, place = origin.lower().partition(b"://")
        if not scheme:  # null: a file, or a page that hides its origin
            return False
        has_port = place.rpartition(b":")[2].isdigit()
        is_named = ANY in self._allowed or (_name_of(place) in self._allowed and not has_port)
        return is_named or place == (host or b"").lower()


def _name_of(host: bytes) -> str:
    """Return the host of ``host:port``."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_exposure(host: str, keys: Keys, insecure: bool) -> None:
    """Refuse to serve other machines without keys, unless ``insecure`` allows it."""
    if insecure or len(keys) or is_loopback(host):
        return
    raise ValueError(
        f"host must be a loopback address such as 127.0.0.1 while there is no key, got {host!r}: "
        "create a key (fedres keys add), or pass --insecure"
    )


def is_loopback(host: str) -> bool:
    """Return whether all addresses of ``host`` are this machine's own."""
    addresses = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    return all(ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback for *_, address in addresses)

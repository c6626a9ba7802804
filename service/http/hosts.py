"""Which Host, Origin and Sec-Fetch-Site headers are served: against web pages that reach a service without keys through
a browser.

A page can let its own name resolve to 127.0.0.1 (DNS rebinding). Its browser then asks this service, but under the name
of the page. So a service that asks for no key answers only under names that are known to be its own. An address in
digits is always one: nobody can make it resolve to something else.

A page of another origin is refused. Another port of the same host is another origin. What a page embeds (an image, a
script) comes without ``Origin``; browsers say where it comes from in ``Sec-Fetch-Site``.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from service.errors import ApiError
from service.http.cors import Origins

ANY = "*"
MOST_REMEMBERED = 1_000
OWN_SITES = (None, b"same-origin", b"none")  # none: the user typed the address


class Hosts:
    """Names under which the service is known beside ``localhost`` and addresses; ``*`` is any name.

    Where names are given, they are checked for callers with a key too. Pages of ``origins`` may call as those of the
    service itself may.
    """

    def __init__(self, allowed: Iterable[str] = (), own: str = "localhost", origins: Iterable[str] = ()) -> None:
        self.origins = Origins(origins)
        given = [name.lower().rstrip(".") for name in allowed]
        for name in given:
            if not name or "/" in name or (":" in name and not _is_address(name)):
                raise ValueError(f"allowed-host must be a host's name without a port, got {name!r}")
        self.always = bool(given)
        self._given = set(given)
        self._names = {"localhost", own.lower(), *given}
        self.good: set[tuple[bytes | None, ...]] = set()  # what ``check`` lets pass

    def check(self, host: bytes | None, origin: bytes | None, site: bytes | None = None) -> None:
        """Refuse a request that was meant for another host, or that a page of another origin makes."""
        name = _name_of(host or b"localhost")  # without one it comes from no browser
        if not self._is_known(name):
            message = f"Host must be an address, localhost or one of --allowed-host, got {name[:100]!a}"
            raise ApiError(421, "unknown_host", message, "Host")
        if origin is not None and not self._is_own(origin, host) and not self.origins.has(origin):
            message = f"Origin must be this service or one of --allowed-origin, got {origin[:100].decode('latin-1')!a}"
            raise ApiError(403, "foreign_origin", message, "Origin")
        if origin is None and site not in OWN_SITES and ANY not in self._given:
            message = f"Sec-Fetch-Site must be same-origin or none, got {(site or b'')[:100].decode('latin-1')!a}"
            raise ApiError(403, "foreign_origin", message, "Sec-Fetch-Site")
        if len(self.good) >= MOST_REMEMBERED:
            self.good.clear()
        self.good.add((host, origin, site))

    def _is_known(self, name: str) -> bool:
        return name in self._names or ANY in self._names or name.endswith(".localhost") or _is_address(name)

    def _is_own(self, origin: bytes, host: bytes | None) -> bool:
        """Return whether a page comes from here, port included, or from a host that was named, at no other port."""
        _, scheme, place = origin.lower().partition(b"://")
        if not scheme:  # null: a file, or a page that hides where it comes from
            return False
        has_port = place.rpartition(b":")[2].isdigit()
        is_named = ANY in self._given or (_name_of(place) in self._given and not has_port)
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

"""Who can reach the service."""

from __future__ import annotations

import ipaddress
import socket

from service.http.keys import Keys


def check_exposure(host: str, keys: Keys, insecure: bool) -> None:
    """Refuse to be reached from other machines without a key, unless that is what is wanted."""
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

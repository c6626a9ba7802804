"""Whether the service of this machine responds: python -m service.health [--ready] [FOLDER].

For health checks of containers, which cannot know the port and whether it serves https: a running service writes its
address to its run folder, and the path of that folder beside its store, in FOLDER (default: the current one). The exit
status is 0 if it responds to /healthz, or with --ready to /readyz. It imports nothing that takes long.
"""

from __future__ import annotations

import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path

RUN_NOTE = "-run"  # behind the name of the store: the file with the path of the run folder
ADDRESS = "address"  # the file in the run folder
SECONDS = 2.0


def main(words: list[str]) -> int:
    """Print and return whether a service in a folder responds, as an exit status."""
    path = "/readyz" if "--ready" in words else "/healthz"
    folders = [Path(word) for word in words if word != "--ready"] or [Path()]
    addresses = [address for folder in folders for address in addresses_in(folder)]
    if not addresses:
        print(f"no service runs on a store in {', '.join(map(str, folders))}")
        return 1
    troubles = [trouble for trouble in (trouble_of(address + path) for address in addresses) if trouble]
    print("\n".join(troubles) or "ok")
    return 1 if troubles else 0


def addresses_in(folder: Path) -> list[str]:
    """Return the addresses of services whose stores are in a folder."""
    addresses = []
    for note in sorted(folder.glob(f"*{RUN_NOTE}")):
        try:
            addresses.append((Path(note.read_text().strip()) / ADDRESS).read_text().strip())
        except OSError:  # it starts or ends
            continue
    return addresses


def trouble_of(url: str) -> str | None:
    """Return why a service on this machine does not respond as it should, None if it does."""
    context = ssl.create_default_context()
    context.check_hostname = False  # the certificate is for the public name
    context.verify_mode = ssl.CERT_NONE
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with direct.open(url, timeout=SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"{url}: {error.code} {error.read(1_000).decode(errors='replace')}"
    except OSError as error:
        return f"{url}: {error}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Keys with a role, for one loop or for all, of one device or of any: kept hashed in a file beside the store.

A key reads ``fedres_<id>_<secret>``. The file holds its SHA-256; a slow hash would add nothing, for the secret is 256
random bits and no password. Revoked keys stay in the file, so that revoking the last one does not open the service. A
running service sees changes within a second.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fedres.checks import one_of
from fedres.lease import Lease
from service.errors import ApiError

ROLES = ("rank", "device", "admin")
LONGEST_CLIENT = 200  # as every id; the engine's own constant would take its time to come along


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key; the secret is not."""

    id: str
    role: str
    loop: str | None  # None is all loops
    hash: str  # hex SHA-256 of the key
    created: float  # seconds since 1970
    revoked: float | None = None
    client: str | None = None  # the one device it is for; None is any


ANYONE = Key(id="", role="admin", loop=None, hash="", created=0.0)  # who calls a service that has no keys
NOBODY = (bytes(32), ANYONE)  # no key has this hash
LOOK_SECONDS = 1.0


class Keys:
    """The keys of the store at ``store``."""

    def __init__(self, store: str | os.PathLike[str], clock: Callable[[], float] = time.monotonic) -> None:
        resolved = Path(store).resolve()
        self.path = resolved.with_name(resolved.name + "-keys")
        self._clock = clock
        self._next_look = -math.inf
        self._seen: tuple[int, int, int] | None = None
        self._keys: dict[str, Key] = {}
        self._hashes: dict[bytes, tuple[bytes, Key]] = {}  # by id

    def __len__(self) -> int:
        """How many keys were ever made; with none, the service is open to all who reach it."""
        self._refresh()
        return len(self._keys)

    def list(self) -> list[Key]:
        """Return all keys, revoked ones too, in the order they were made."""
        self._refresh()
        return [*self._keys.values()]

    def add(self, role: str, loop: str | None = None, client: str | None = None) -> str:
        """Return a new key, which is not kept and cannot be shown again; ``client`` binds a device's key to its id."""
        one_of("role", role, ROLES)
        if client is not None:
            _check_client(client, role)
        name = secrets.token_hex(6)
        text = f"fedres_{name}_{secrets.token_urlsafe(32)}"
        hashed = hashlib.sha256(text.encode()).hexdigest()
        with self._changing():
            key = Key(id=name, role=role, loop=loop, hash=hashed, created=time.time(), client=client)
            self._write({**self._keys, name: key})
        return text

    def revoke(self, name: str) -> None:
        """Refuse the key with the id ``name`` from now on."""
        with self._changing():
            if name not in self._keys:
                raise ValueError(f"id must be that of a key, got {name!r}")
            revoked = msgspec.structs.replace(self._keys[name], revoked=self._keys[name].revoked or time.time())
            self._write({**self._keys, name: revoked})

    def identify(self, authorization: bytes | None) -> Key:
        """Return whose ``Authorization`` header this is."""
        now = self._clock()
        if now >= self._next_look:
            self._refresh()
            self._next_look = now + LOOK_SECONDS
        if not self._keys:
            return ANYONE
        if authorization is None:
            raise _unknown("a key is needed: Authorization: Bearer <key>")
        text = authorization[7:]
        wanted, key = self._hashes.get(text[7:19], NOBODY)
        matches = hmac.compare_digest(hashlib.sha256(text).digest(), wanted)
        if not matches or authorization[:7].lower() != b"bearer ":
            raise _unknown("Authorization must be Bearer and a key of this service")
        if key.revoked is not None:
            raise _unknown(f"the key {key.id} was revoked")
        return key

    def _refresh(self) -> None:
        """Read the file if it changed; a file that vanishes takes no key with it."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            return
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen != self._seen:
            self._keys = {key.id: key for key in _read(self.path)}
            self._hashes = {key.id.encode(): (bytes.fromhex(key.hash), key) for key in self._keys.values()}
            self._seen = seen

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Keep others from writing meanwhile."""
        lease = Lease(self.path)
        lease.acquire(wait_seconds=5.0)
        try:
            self._refresh()
            yield
        finally:
            lease.release()

    def _write(self, keys: dict[str, Key]) -> None:
        """Replace the file as a whole: a crash leaves the old one or the new one."""
        file, name = tempfile.mkstemp(prefix=f"{self.path.name}-", dir=self.path.parent)  # readable by its owner alone
        try:
            with os.fdopen(file, "wb") as new:
                new.write(msgspec.json.format(msgspec.json.encode([*keys.values()])) + b"\n")
                new.flush()
                os.fsync(new.fileno())
            os.replace(name, self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(self.path.parent)
        self._refresh()


def _check_client(client: str, role: str) -> None:
    if role != "device":
        raise ValueError(f"client must come with the role device, got {client!r} with {role}")
    if not 1 <= len(client) <= LONGEST_CLIENT:
        raise ValueError(f"client must have 1 to {LONGEST_CLIENT} characters, got {len(client)}")


def _read(path: Path) -> list[Key]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Key])
    except (OSError, ValueError) as error:
        raise ApiError(503, "keys_unavailable", f"the file of keys cannot be read: {error}") from error


def _unknown(message: str) -> ApiError:
    return ApiError(401, "unauthenticated", message, "Authorization")


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)

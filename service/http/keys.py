"""Keys with a role, for one loop or for all, of one device or of any: kept hashed, beside the log.

A key reads ``fedres_<id>_<secret>``. The store holds its SHA-256; a slow hash would add nothing, for the secret is 256
random bits and no password. Revoked keys stay, so that revoking the last one does not open the service. A running
service sees changes within a second. With a log in SQLite, keys are in a file beside it; with one in PostgreSQL, in
the database, so that all machines have the same. ``Buckets`` bound the requests of each.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from fedres.checks import one_of, positive
from fedres.lease import Lease
from fedres_client.event_ids import LONGEST_ID
from service.errors import ApiError
from service.log.files import replacing
from service.log.opening import Store
from service.log.protocol import Log, StoreUnavailable

ROLES = ("rank", "device", "read", "admin")
NOTE = "keys"  # the store's note that keys have existed


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A key's rights and the hash of its secret."""

    id: str
    role: str
    loop: str | None  # None is all loops
    hash: str  # hex SHA-256 of the key
    created: float  # seconds since 1970
    revoked: float | None = None
    client: str | None = None  # the one device it is for; None is any
    expires: float | None = None  # seconds since 1970
    explain: bool = True  # it may request explanations, which show what the model has learned of a user
    rate: float | None = None  # requests a second at each ranker; None is the limit of the service


ANYONE = Key(id="", role="admin", loop=None, hash="", created=0.0)  # the caller of a service without keys
NOBODY = (bytes(32), ANYONE)  # no key has this hash
LOOK_SECONDS = 1.0
WRITE = """INSERT INTO fedres.keys (id, key) VALUES (%s, %s)
    ON CONFLICT (id) DO UPDATE SET key = EXCLUDED.key WHERE keys.key <> EXCLUDED.key"""
RETRY_SECONDS = 0.1


class KeyFile:
    """The file of keys beside the store at ``store``."""

    is_remote = False  # True: reading may take long, and runs on a thread

    def __init__(self, store: str | os.PathLike[str]) -> None:
        resolved = Path(store).resolve()
        self.path = resolved.with_name(resolved.name + "-keys")
        self._seen: tuple[int, int, int] | None = None

    def read(self) -> list[Key] | None:
        """Return all keys in order of creation, None if nothing has changed since the last call.

        If the file vanishes, the keys stay.
        """
        try:
            stat = os.stat(self.path)
            seen = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if seen == self._seen:
                return None
            keys = msgspec.json.decode(self.path.read_bytes(), type=list[Key])
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ApiError(503, "keys_unavailable", f"the file of keys cannot be read: {error}") from error
        self._seen = seen
        return keys

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Keep other writers out during the block."""
        lease = Lease(self.path)
        lease.acquire(wait_seconds=5.0)
        try:
            yield
        finally:
            lease.release()

    def write(self, keys: Sequence[Key]) -> None:
        """Replace the keys; a crash leaves the old ones or the new ones."""
        with replacing(self.path) as part:
            file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # readable by its owner alone
            with os.fdopen(file, "wb") as new:
                new.write(msgspec.json.format(msgspec.json.encode(keys)) + b"\n")

    def close(self) -> None:
        """Release the resources for reading; the next call acquires them again."""


class KeyTable:
    """The table ``fedres.keys`` of the PostgreSQL database at ``address``, with the methods of ``KeyFile``."""

    is_remote = True

    def __init__(self, address: str) -> None:
        from service.log.postgres_session import SharedSession  # its driver is optional

        self._session = SharedSession(address)
        self._seen: list[Key] = []

    def read(self) -> list[Key] | None:
        rows = self._session.rows("SELECT key FROM fedres.keys ORDER BY number")
        keys = [msgspec.json.decode(text, type=Key) for (text,) in rows]
        if keys == self._seen or not keys:  # rows are never deleted; an emptied table must not open the service
            return None
        self._seen = keys
        return keys

    @contextmanager
    def changing(self) -> Iterator[None]:
        with self._session.lend() as db, db.transaction():
            db.execute("LOCK TABLE fedres.keys IN EXCLUSIVE MODE")
            yield

    def write(self, keys: Sequence[Key]) -> None:
        with self._session.lend() as db:
            for key in keys:
                db.execute(WRITE, (key.id, msgspec.json.encode(key).decode()))

    def close(self) -> None:
        self._session.end()


class Keys:
    """The keys in a store, or in the file beside the SQLite store at a path."""

    def __init__(
        self,
        store: str | os.PathLike[str] | KeyFile | KeyTable,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.store = KeyFile(store) if isinstance(store, (str, os.PathLike)) else store
        self._clock, self._now = clock, now
        self._next_look = -math.inf
        self._looking = threading.Lock()  # held by the thread that reads a remote store
        self._was_read = not self.store.is_remote
        self._keys: dict[str, Key] = {}
        self._hashes: dict[bytes, tuple[bytes, Key]] = {}  # by id

    def __len__(self) -> int:
        """The number of keys ever made; with none, the service is open to all who reach it."""
        self._refresh()
        return len(self._keys)

    def list(self) -> list[Key]:
        """Return all keys, revoked ones too, in the order they were made."""
        self._refresh()
        return [*self._keys.values()]

    def add(
        self,
        role: str,
        loop: str | None = None,
        client: str | None = None,
        *,
        seconds: float | None = None,
        explain: bool = True,
        rate: float | None = None,
    ) -> str:
        """Return a new key, which is not stored and cannot be shown again.

        ``client`` binds a device's key to its id. The key expires after ``seconds``; None is never. Without
        ``explain``, a rank key gets no explanations. ``rate`` is how many requests a second it may make.
        """
        one_of("role", role, ROLES)
        if seconds is not None:
            positive("seconds", seconds)
        if rate is not None:
            positive("rate", rate)
        if client is not None and role != "device":
            raise ValueError(f"client must come with the role device, got {client!r} with {role}")
        if client is not None and not 1 <= len(client) <= LONGEST_ID:
            raise ValueError(f"client must have 1 to {LONGEST_ID} characters, got {len(client)}")
        if not explain and role != "rank":
            raise ValueError(f"no-explain must come with the role rank, got {role}")
        with self.store.changing():
            self._refresh()
            text, key = self._new(role, loop, client, seconds, explain, rate)
            self.store.write([*self._keys.values(), key])
        self._refresh()
        return text

    def _new(
        self,
        role: str,
        loop: str | None,
        client: str | None,
        seconds: float | None,
        explain: bool,
        rate: float | None,
    ) -> tuple[str, Key]:
        """Return a new key as text, and what is stored of it."""
        name = secrets.token_hex(6)
        text = f"fedres_{name}_{secrets.token_urlsafe(32)}"
        now = self._now()
        key = Key(
            id=name,
            role=role,
            loop=loop,
            hash=hashlib.sha256(text.encode()).hexdigest(),
            created=now,
            client=client,
            expires=None if seconds is None else now + seconds,
            explain=explain,
            rate=rate,
        )
        return text, key

    def revoke(self, name: str) -> None:
        """Refuse the key with the id ``name`` from now on."""
        self._change(name, lambda key: replace(key, revoked=key.revoked or time.time()))

    def _change(self, name: str, change: Callable[[Key], Key]) -> None:
        with self.store.changing():
            self._refresh()
            if name not in self._keys:
                raise ValueError(f"no key has the id {name!r}; `fedres keys list` shows them")
            self.store.write([*{**self._keys, name: change(self._keys[name])}.values()])
        self._refresh()

    def rotate(self, name: str, *, grace_seconds: float, seconds: float | None = None) -> str:
        """Return a new key with the rights of the key ``name``, which expires after the grace period.

        Both are stored by one change: after a crash, there are both or neither.
        """
        if seconds is not None:
            positive("seconds", seconds)
        with self.store.changing():
            self._refresh()
            old = self._keys.get(name)
            if old is None or old.revoked is not None:
                raise ValueError(f"no valid key has the id {name!r}; `fedres keys list` shows them")
            text, key = self._new(old.role, old.loop, old.client, seconds, old.explain, old.rate)
            end = key.created + grace_seconds
            ending = replace(old, expires=end if old.expires is None else min(old.expires, end))
            self.store.write([*{**self._keys, name: ending}.values(), key])
        self._refresh()
        return text

    def identify(self, authorization: bytes | None) -> Key:
        """Return the valid key in an ``Authorization`` header."""
        now = self._clock()
        if now >= self._next_look:
            self.look()
            self._next_look = now + LOOK_SECONDS
        if not self._was_read:
            raise ApiError(503, "keys_unavailable", "the keys of this service are not known yet; ask again")
        if not self._keys:
            return ANYONE
        if authorization is None:
            raise _unknown("a key is needed: Authorization: Bearer <key>")
        text = authorization[7:]
        digest, key = self._hashes.get(text[7:19], NOBODY)
        matches = hmac.compare_digest(hashlib.sha256(text).digest(), digest)
        if not matches or authorization[:7].lower() != b"bearer ":
            raise _unknown("Authorization must be Bearer and a key of this service")
        if key.revoked is not None:
            raise _unknown(f"the key {key.id} was revoked")
        if key.expires is not None and self._now() >= key.expires:
            raise _unknown(f"the key {key.id} has expired")
        return key

    def close(self) -> None:
        self.store.close()

    def look(self) -> None:
        """Read changes of the keys; while a remote store is unreachable, the last keys stay in effect."""
        if not self.store.is_remote:
            self._refresh()
        elif self._looking.acquire(blocking=False):
            threading.Thread(target=self._look_on_thread, daemon=True).start()

    def _look_on_thread(self) -> None:
        """Read once; the first time, retry until it succeeds."""
        try:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    self._refresh()
                if self._was_read:
                    return
                time.sleep(RETRY_SECONDS)
        finally:
            self._looking.release()

    def _refresh(self) -> None:
        keys = self.store.read()
        if keys is not None and (keys or not self._keys):  # an emptied file must not open the service
            self._hashes = {key.id.encode(): (bytes.fromhex(key.hash), key) for key in keys}
            self._keys = {key.id: key for key in keys}
        self._was_read = True


class Buckets:
    """A token bucket for each key: ``rate`` tokens a second flow in, up to two seconds' worth, a request takes one.

    Each ranker has its own. A caller's connections may all lead to one ranker, so each of them allows the whole rate: a
    key never gets less, and at most its rate times the number of rankers.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._levels: dict[str, tuple[float, float]] = {}  # tokens, and the time of that level

    def take(self, key: str, rate: float) -> float:
        """Take a token and return 0, or return the seconds until the next one."""
        now = self._clock()
        size = max(1.0, 2 * rate)
        level, then = self._levels.get(key, (size, now))
        level = min(size, level + (now - then) * rate)
        if level < 1:
            return (1 - level) / rate
        self._levels[key] = (level - 1, now)
        return 0.0


def open_keys(store: Store) -> Keys:
    """Return the keys of a store; if its database is unreachable, they are read in the background."""
    if store.address is None or not store.is_shared:
        return Keys(store.path)
    keys = Keys(KeyTable(store.address))
    try:
        keys.list()
    except StoreUnavailable:
        keys.look()
    return keys


def check_keys(log: Log, keys: Keys) -> None:
    """Note in the store that it has keys; refuse a store whose keys are missing: it would be open to all."""
    if len(keys):
        log.set_note(NOTE, "made")
    elif log.note(NOTE) is not None:
        message = "the keys of this store are missing, and without keys it would be open to all"
        raise StoreUnavailable("keys", f"{message}: restore the file of keys, or create a key (fedres keys add)")


def _unknown(message: str) -> ApiError:
    return ApiError(401, "unauthenticated", message, "Authorization")

"""Keys in PostgreSQL, beside the log: all machines have the same."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import msgspec

from service.http.keys import Key
from service.log.postgres_session import SharedSession

WRITE = """INSERT INTO fedres.keys (id, key) VALUES (%s, %s)
    ON CONFLICT (id) DO UPDATE SET key = EXCLUDED.key WHERE keys.key <> EXCLUDED.key"""


class KeyTable:
    """The table ``fedres.keys`` of the database at ``address``."""

    is_remote = True

    def __init__(self, address: str) -> None:
        self._session = SharedSession(address)
        self._seen: list[Key] = []

    def read(self) -> list[Key] | None:
        rows = self._session.rows("SELECT key FROM fedres.keys ORDER BY number")
        keys = [msgspec.json.decode(text, type=Key) for (text,) in rows]
        if keys == self._seen or not keys:  # rows are never deleted; a table that is emptied opens no service
            return None
        self._seen = keys
        return keys

    @contextlib.contextmanager
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

"""Keys in PostgreSQL, beside the log: all machines have the same."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import msgspec
import psycopg

from service.http.keys import Key
from service.log.postgres_schema import Session, opened, unavailable
from service.log.protocol import StoreUnavailable

WRITE = """INSERT INTO fedres.keys (id, key) VALUES (%s, %s)
    ON CONFLICT (id) DO UPDATE SET key = EXCLUDED.key WHERE keys.key <> EXCLUDED.key"""


class KeyTable:
    """The table ``fedres.keys`` of the database at ``address``."""

    is_remote = True

    def __init__(self, address: str) -> None:
        self._address = address
        self._db: Session | None = None
        self._turn = threading.RLock()
        self._seen: list[Key] = []

    def read(self) -> list[Key] | None:
        rows = self._rows()
        found = [msgspec.json.decode(text, type=Key) for (text,) in rows]
        if found == self._seen or not found:  # rows are never deleted; a table that is emptied opens no service
            return None
        self._seen = found
        return found

    def _rows(self) -> list[tuple[str]]:
        with contextlib.suppress(StoreUnavailable):  # the session may be of a server that was restarted
            return self._select()
        return self._select()

    def _select(self) -> list[tuple[str]]:
        with self._session() as db:
            return db.execute("SELECT key FROM fedres.keys ORDER BY number").fetchall()  # type: ignore[return-value]

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        with self._session() as db, db.transaction():
            db.execute("LOCK TABLE fedres.keys IN EXCLUSIVE MODE")
            yield

    def write(self, keys: Sequence[Key]) -> None:
        with self._session() as db:
            for key in keys:
                db.execute(WRITE, (key.id, msgspec.json.encode(key).decode()))

    def close(self) -> None:
        with self._turn:
            if self._db is not None:
                self._db.close()
                self._db = None

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        with self._turn:
            try:
                if self._db is None:
                    self._db = opened(self._address, any_architecture=True)
                yield self._db
            except psycopg.Error as error:
                self.close()
                raise unavailable(error) from error

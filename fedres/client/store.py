"""The persistent state of a device, in one SQLite file of its folder.

A transaction is on the disk before it returns (WAL, every commit synced), unless it is not ``durable``: then it
survives the end of the process, and a power cut from the next durable one on.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from fedres.lease import Lease

SCHEMA_VERSION = "1"
FILE = "device.db"

_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    f"INSERT INTO meta VALUES ('schema', '{SCHEMA_VERSION}')",
    # Decisions that wait for their reward.
    "CREATE TABLE waiting (n INTEGER PRIMARY KEY, event TEXT NOT NULL UNIQUE, body BLOB NOT NULL)",
    # Uploads that wait for the service, by sequence number; AUTOINCREMENT never reuses one.
    "CREATE TABLE queue (seq INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, body BLOB NOT NULL)",
    # Local steps that wait for a shared model that includes their upload: of at least this position, once stored.
    "CREATE TABLE held (seq INTEGER PRIMARY KEY, position INTEGER, step BLOB NOT NULL)",
    # The last saved models, and the journal of later changes.
    "CREATE TABLE saved (name TEXT PRIMARY KEY, body BLOB NOT NULL)",
    "CREATE TABLE journal (n INTEGER PRIMARY KEY, kind TEXT NOT NULL, body BLOB NOT NULL)",
)


_EXAMPLES = "CREATE TABLE IF NOT EXISTS examples (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)"


class Queued(NamedTuple):
    """An upload that waits for the service."""

    seq: int
    version: int  # of the shared model it was made with
    body: bytes


class DeviceStore:
    """The file of one device, held by one process at a time; for one thread at a time."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        self._lease = Lease(path / FILE)
        self._lease.acquire()
        try:
            self._db = sqlite3.connect(path / FILE, isolation_level=None, check_same_thread=False)
            self._durable = True
            self.n_queued = self.n_waiting = 0
            self._open()
        except BaseException:
            self._lease.release()
            raise

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        with self.transaction():
            if not self._count("sqlite_master"):
                for statement in _SCHEMA:
                    self._db.execute(statement)
            self._db.execute(_EXAMPLES)
        version = self.meta("schema")
        if version != SCHEMA_VERSION:
            raise ValueError(f"folder must hold a device of schema version {SCHEMA_VERSION}, got {version}")
        self._recount()

    def close(self) -> None:
        """Close the file and let others open it."""
        self._db.close()
        self._lease.release()

    @contextlib.contextmanager
    def transaction(self, *, durable: bool = True) -> Iterator[None]:
        """Commit all writes of the block, or none if an exception ends it."""
        if durable != self._durable:
            self._db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._durable = durable
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._recount()
            raise

    def _recount(self) -> None:
        self.n_queued, self.n_waiting = self._count("queue"), self._count("waiting")

    def _count(self, table: str) -> int:
        return int(self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])

    def meta(self, name: str) -> str | None:
        """Return the value stored under a name."""
        row = self._db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return None if row is None else str(row[0])

    def keep(self, name: str, value: str) -> None:
        self._db.execute(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (name, value)
        )

    # Decisions

    def wait(self, event: str, body: bytes, limit: int) -> None:
        """Keep a decision; of more than ``limit`` the oldest are forgotten."""
        self._db.execute("INSERT INTO waiting (event, body) VALUES (?, ?)", (event, body))
        self.n_waiting += 1
        if self.n_waiting > limit:
            oldest = "SELECT n FROM waiting ORDER BY n LIMIT ?"
            self._db.execute(f"DELETE FROM waiting WHERE n IN ({oldest})", (self.n_waiting - limit,))
            self.n_waiting = limit

    def waiting(self, event: str) -> bytes | None:
        """Return a decision that waits for its reward."""
        row = self._db.execute("SELECT body FROM waiting WHERE event = ?", (event,)).fetchone()
        return None if row is None else bytes(row[0])

    def rewarded(self, event: str) -> None:
        self._db.execute("DELETE FROM waiting WHERE event = ?", (event,))
        self.n_waiting -= 1

    # Uploads

    def last_seq(self) -> int:
        """Return the greatest sequence number that was ever queued, 0 if none was."""
        row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'queue'").fetchone()
        return 0 if row is None else int(row[0])

    def enqueue(self, upload: Queued) -> None:
        self._db.execute("INSERT INTO queue VALUES (?, ?, ?)", upload)
        self.n_queued += 1

    def oldest(self, n: int) -> list[Queued]:
        """Return up to ``n`` uploads, by rising sequence number."""
        return [Queued(*row) for row in self._db.execute("SELECT * FROM queue ORDER BY seq LIMIT ?", (n,))]

    def dequeue(self, seqs: Iterable[int]) -> int:
        """Remove the existing ones of these uploads; return how many existed."""
        gone = sum(self._db.execute("DELETE FROM queue WHERE seq = ?", (seq,)).rowcount for seq in seqs)
        self.n_queued -= gone
        return gone

    def renumber(self, version: int, *, only_unknown: bool) -> None:
        """Set the version of waiting uploads: of those made before the first version, or of all."""
        self._db.execute(f"UPDATE queue SET version = ? {'WHERE version = 0' if only_unknown else ''}", (version,))

    def rewrite(self, upload: Queued) -> None:
        """Replace a waiting upload by its sequence number, if it still waits."""
        self._db.execute(
            "UPDATE queue SET version = ?, body = ? WHERE seq = ?", (upload.version, upload.body, upload.seq)
        )

    # Examples from which a model is computed

    def add_example(self, seq: int, body: bytes) -> None:
        self._db.execute("INSERT INTO examples VALUES (?, ?)", (seq, body))

    def examples(self) -> list[tuple[int, bytes]]:
        """Return them by rising sequence number."""
        return list(self._db.execute("SELECT seq, body FROM examples ORDER BY seq"))

    def keep_examples(self, n: int) -> None:
        """Forget all but the last n."""
        last = "SELECT seq FROM examples ORDER BY seq DESC LIMIT ?"
        self._db.execute(f"DELETE FROM examples WHERE seq NOT IN ({last})", (n,))

    # Local steps that wait

    def hold(self, seq: int, step: bytes) -> None:
        self._db.execute("INSERT INTO held VALUES (?, NULL, ?)", (seq, step))

    def place(self, seq: int, position: int) -> None:
        """Note at which position of the log an upload is."""
        self._db.execute("UPDATE held SET position = ? WHERE seq = ?", (position, seq))

    def due(self, version: int) -> list[tuple[int, bytes]]:
        """Return the steps whose uploads the shared model of a version includes, by rising sequence number."""
        return list(self._db.execute("SELECT seq, step FROM held WHERE position <= ? ORDER BY seq", (version,)))

    def held(self, seq: int) -> list[tuple[int, bytes]]:
        """Return the step that waits for an upload, if any."""
        return list(self._db.execute("SELECT seq, step FROM held WHERE seq = ?", (seq,)))

    def release(self, seqs: Iterable[int]) -> None:
        self._db.executemany("DELETE FROM held WHERE seq = ?", [(seq,) for seq in seqs])

    # Models

    def saved(self, name: str) -> bytes | None:
        """Return the last saved state of a model."""
        row = self._db.execute("SELECT body FROM saved WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def save(self, name: str, body: bytes | None) -> None:
        """Replace a saved model; None forgets it."""
        self._db.execute("DELETE FROM saved WHERE name = ?", (name,))
        if body is not None:
            self._db.execute("INSERT INTO saved VALUES (?, ?)", (name, body))

    def write(self, kind: str, body: bytes) -> None:
        """Add to the journal."""
        self._db.execute("INSERT INTO journal (kind, body) VALUES (?, ?)", (kind, body))

    def journal(self) -> Iterator[tuple[str, bytes]]:
        """Yield the entries since the models were saved, in order."""
        yield from self._db.execute("SELECT kind, body FROM journal ORDER BY n").fetchall()

    def clear_journal(self) -> None:
        self._db.execute("DELETE FROM journal")

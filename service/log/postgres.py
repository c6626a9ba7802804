"""The log in PostgreSQL, which several machines share.

A group commit is one call of the function ``fedres.append``: it locks the head rows of its loops in one order, checks
that each log ends where the caller thinks it does, inserts, and moves the heads; so positions have no gaps, and their
order is that of the commits. The caller has to know positions and times beforehand because checksums cover them.

- Usual case, one round trip: the writer remembers where its loops end and estimates the time of the database.
- Another machine has appended meanwhile: the writer locks the heads first, which takes a second round trip. A session
  that idles in a transaction for two seconds is ended by the server, so a paused writer holds nobody up for longer.
- The unique index finds a duplicate: the same, with a query for the duplicates; other groups are stored.

A commit is on the server's disk before ``append`` returns. Any failure ends the session; the next call opens another
and reads the actual state.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import msgspec
import psycopg
from psycopg.conninfo import conninfo_to_dict

from fedres.checks import whole
from service.log.postgres_rows import Key, LockedHead, NumberedRecords, keys_of, refusal_of, texts
from service.log.postgres_schema import NOW, Session, is_kind
from service.log.postgres_session import DatabaseClock, SharedSession
from service.log.protocol import NO_EPOCHS, NO_LIMIT, Group, Head, Outcome, Pruning, Refused, StoreUnavailable
from service.log.records import ABOUT, BASE, ERASE, ERASED, OLD, RANK, REWARD, Entry, Record
from service.log.sqlite import entry_of

if TYPE_CHECKING:
    from service.log.opening import Store

T = TypeVar("T")

NOTIFY_SECONDS = 0.01  # at least, between two notifications: each takes a lock of the whole server
HOLD_SECONDS = 0.5  # between two attempts to become the holder of a loop
ATTEMPTS = 3  # to append behind locked heads
ERASE_SECONDS = 300.0  # for each statement of an erasure

NAMES = 'loop, position, time, kind, event, "user", checksum, example'
BODIES = "coalesce(convert_to(body, 'UTF8'), raw)"
OTHER_BODIES = f"CASE WHEN example IS NULL THEN {BODIES} END"  # bodies without an example
APPEND = f"SELECT * FROM fedres.append({', '.join(['%b'] * 16)})"
LOCK = f"""SELECT locked.*, {NOW} FROM (
    SELECT loop, last, time, epoch FROM fedres.head WHERE loop = ANY (%b) ORDER BY loop FOR UPDATE) AS locked"""
NEW_HEADS = "INSERT INTO fedres.head (loop) SELECT unnest(%b) ON CONFLICT DO NOTHING"
HEADS = f"SELECT {NOW}, loop, last, time, removed FROM (SELECT) AS one LEFT JOIN fedres.head ON last > 0"
# OFFSET 0 makes the planner look events up one by one: without statistics it would scan the loop.
FIRST_OF = """SELECT sought.*, first.position FROM unnest(%b, %b, %b) AS sought (loop, kind, event)
    CROSS JOIN LATERAL (SELECT position FROM fedres.log
    WHERE log.loop = sought.loop AND log.event = sought.event AND log.kind = sought.kind OFFSET 0) AS first"""
FIND = f"""SELECT {NAMES}, {BODIES} FROM (SELECT DISTINCT unnest(%b) AS sought) AS given
    CROSS JOIN LATERAL (SELECT * FROM fedres.log
    WHERE log.loop = %b AND log.event = given.sought{{kind}} OFFSET 0) AS found ORDER BY position"""
# The user's own records, and the rewards and activations of the user's decisions.
ERASE_USER = f"""DELETE FROM fedres.log WHERE loop = %(loop)s AND position = ANY (ARRAY (
    SELECT position FROM fedres.log WHERE loop = %(loop)s AND "user" = %(user)s
    UNION SELECT found.position FROM fedres.log AS rank CROSS JOIN LATERAL (
        SELECT about.position FROM fedres.log AS about
        WHERE about.loop = rank.loop AND about.event = rank.event AND about.kind IN {ABOUT} OFFSET 0
    ) AS found WHERE rank.loop = %(loop)s AND rank."user" = %(user)s AND rank.kind = '{RANK}'))"""
# Some rewards and activations of the user's next decisions, and these and other next records of the user.
SOME_OF_USER = f"""WITH own AS MATERIALIZED (
        SELECT position, kind, event FROM fedres.log
        WHERE loop = %(loop)s AND "user" = %(user)s AND kind <> '{ERASE}' ORDER BY position LIMIT %(limit)s),
    about AS (
        SELECT found.position FROM own CROSS JOIN LATERAL (
            SELECT about.position FROM fedres.log AS about WHERE about.loop = %(loop)s AND about.event = own.event
            AND about.kind IN {ABOUT} OFFSET 0) AS found
        WHERE own.kind = '{RANK}' LIMIT %(limit)s)
    SELECT ARRAY (SELECT position FROM about), ARRAY (SELECT position FROM own)"""
EXISTING = """SELECT sought FROM (SELECT DISTINCT unnest(%b) AS sought) AS given
    WHERE EXISTS (SELECT 1 FROM fedres.log WHERE log.loop = %b AND log.event = given.sought)"""
REPLACED_BASES = f"""DELETE FROM fedres.log WHERE loop = %(loop)s AND position = ANY (ARRAY (
    SELECT position FROM (
        SELECT position, row_number() OVER (PARTITION BY "user" ORDER BY position DESC) AS newer
        FROM fedres.log WHERE loop = %(loop)s AND kind = '{BASE}') AS bases
    WHERE newer > 1))"""
# Of the next records up to the cut: events decided up to there, with their rewards in front of the record ``begun``.
OLD_EVENTS = f"""WITH piece AS MATERIALIZED (
        SELECT position, kind, event, "user" FROM fedres.log
        WHERE loop = %(loop)s AND position > %(after)s AND position <= %(cut)s ORDER BY position LIMIT %(limit)s),
    doomed AS (
        SELECT position FROM piece WHERE kind IN {OLD} OR (kind = '{ERASE}' AND "user" IS NULL)
        UNION SELECT position FROM piece LEFT JOIN LATERAL (
            SELECT 1 AS later FROM fedres.log AS decided WHERE decided.loop = %(loop)s AND decided.event = piece.event
            AND decided.kind = '{RANK}' AND decided.position > %(cut)s OFFSET 0) AS found ON true
        WHERE kind IN {ABOUT} AND later IS NULL
        UNION SELECT found.position FROM piece CROSS JOIN LATERAL (
            SELECT about.position FROM fedres.log AS about WHERE about.loop = %(loop)s AND about.event = piece.event
            AND about.kind IN {ABOUT} AND about.position < %(begun)s OFFSET 0) AS found
        WHERE piece.kind = '{RANK}')
    SELECT (SELECT array_agg(position) FROM doomed), (SELECT max(position) FROM piece), (SELECT count(*) FROM piece)"""
# Of the next base records: those with a newer one in front of the record ``done``.
OLD_BASES = f"""WITH piece AS MATERIALIZED (
        SELECT position, "user" FROM fedres.log
        WHERE loop = %(loop)s AND kind = '{BASE}' AND position > %(after)s AND position < %(done)s
        ORDER BY position LIMIT %(limit)s),
    doomed AS (
        SELECT position FROM piece WHERE EXISTS (
            SELECT 1 FROM fedres.log AS newer WHERE newer.loop = %(loop)s AND newer."user" = piece."user"
            AND newer.kind = '{BASE}' AND newer.position > piece.position AND newer.position < %(done)s)
        OR ("user" IS NULL AND EXISTS (
            SELECT 1 FROM fedres.log AS newer WHERE newer.loop = %(loop)s AND newer."user" IS NULL
            AND newer.kind = '{BASE}' AND newer.position > piece.position AND newer.position < %(done)s)))
    SELECT (SELECT array_agg(position) FROM doomed), (SELECT max(position) FROM piece), (SELECT count(*) FROM piece)"""
PRUNE = "DELETE FROM fedres.log WHERE loop = %s AND position = ANY (%s)"
NEWEST_TOGETHER = 20  # of a user's decisions in one query
ERASED_AT_ONCE = 500  # records of a user, and as many about the user's events
PRUNED_AT_ONCE = 500  # records that one call of ``prune`` looks at
REMOVED = "UPDATE fedres.head SET removed = removed + %s WHERE loop = %s"
SET_NOTE = """INSERT INTO fedres.meta VALUES (%s, %s)
    ON CONFLICT (name) DO UPDATE SET value = EXCLUDED.value"""
HOLD = "SELECT pg_try_advisory_lock(%s)"
NEW_EPOCH = "UPDATE fedres.head SET epoch = epoch + 1 WHERE loop = %s RETURNING epoch"


def open_store(store: Store, *, verify: bool, listen: bool) -> PostgresLog:
    """Return the log in a store's database; the server itself verifies its files and refuses what is damaged."""
    assert store.address is not None
    return PostgresLog(store.address, any_architecture=store.any_architecture, listen=listen)


def database_name(address: str) -> str:
    """Return the database that an address names."""
    try:
        name = conninfo_to_dict(address).get("dbname")
    except psycopg.ProgrammingError as error:
        raise ValueError(f"store must be an address of PostgreSQL: {str(error).strip()}") from None
    if not name:
        raise ValueError("store must name a database: postgresql://HOST/DATABASE")
    return str(name)


def shown_address(address: str) -> str:
    """Return an address without its password."""
    parts = {name: str(value) for name, value in conninfo_to_dict(address).items()}
    user = f"{parts['user']}@" if "user" in parts else ""
    port = f":{parts['port']}" if "port" in parts else ""
    return f"postgresql://{user}{parts.get('host', '')}{port}/{parts['dbname']}"


class PostgresLog:
    """The log in the database at ``address``, created if missing.

    Threads may share one; they take turns. To read while others commit, open a second one.
    """

    def __init__(self, address: str, *, any_architecture: bool = False, listen: bool = False) -> None:
        self._listens, self._told_at = listen, 0.0
        self._clock = DatabaseClock()
        self._forget()
        self._session = SharedSession(address, any_architecture=any_architecture, listen=listen, ended=self._forget)
        with self._session.lend():
            pass

    def append(self, groups: Sequence[Group], epochs: Mapping[str, int] = NO_EPOCHS) -> list[Outcome]:
        refusals = [refusal_of(group) for group in groups]
        good = [group for group, refused in zip(groups, refusals, strict=True) if refused is None]
        with self._session.lend() as db:
            if not good:
                db.execute("SELECT 1")  # the server responds
            outcomes = iter(self._append(db, good, epochs) if good else [])
        return [next(outcomes) if refused is None else refused for refused in refusals]

    def note(self, name: str) -> str | None:
        rows = self._session.rows("SELECT value FROM fedres.meta WHERE name = %s", (name,))
        return next((str(value) for (value,) in rows), None)

    def set_note(self, name: str, value: str) -> None:
        with self._session.lend() as db:
            db.execute(SET_NOTE, (name, value))

    def heads(self) -> dict[str, Head]:
        rows = self._session.rows(HEADS)
        self._clock.note(rows[0][0])
        return {loop: Head(last, at, removed) for _, loop, last, at, removed in rows if loop is not None}

    def read(self, loop: str, after: int = 0, limit: int = 1_000, *, bodies: bool = True) -> list[Entry]:
        whole("after", after, least=0)
        whole("limit", limit)
        where = "loop = %s AND position > %s ORDER BY position LIMIT %s"
        return self._select(where, _sought(loop), after, limit, bodies=bodies)

    def find(self, loop: str, events: Sequence[str], kind: str | None = None) -> list[Entry]:
        sought = [event for event in events if "\0" not in event]
        question = FIND.format(kind="" if kind is None else f" AND {is_kind(kind)}")
        return [entry_of(row, with_body=True) for row in self._session.rows(question, (texts(sought), _sought(loop)))]

    def newest_of(self, loop: str, user: str, limit: int, read: Callable[[Entry], T | None]) -> list[T]:
        where = f"""loop = %s AND "user" = %s AND position < %s AND kind = '{RANK}' ORDER BY position DESC LIMIT %s"""
        results: list[T] = []
        before = NO_LIMIT
        while len(results) < limit:
            n = min(limit - len(results), NEWEST_TOGETHER)
            piece = self._select(where, _sought(loop), _sought(user), before, n)
            for entry in piece:
                result = read(entry)
                if result is None:
                    return results
                results.append(result)
            if len(piece) < n:
                break
            before = piece[-1].position
        return results

    def rewards_of(self, loop: str, event: str, limit: int) -> list[Entry]:
        where = f"loop = %s AND event = %s AND kind = '{REWARD}' LIMIT %s"
        return self._select(where, _sought(loop), _sought(event), limit, bodies=False)

    def interrupt(self) -> None:
        self._session.interrupt()

    def of_user(self, loop: str, user: str, after: int = 0, limit: int = 1_000) -> list[Entry]:
        where = 'loop = %s AND "user" = %s AND position > %s ORDER BY position LIMIT %s'
        return self._select(where, _sought(loop), _sought(user), after, limit)

    def of_kind(self, loop: str, kind: str, after: int = 0, limit: int = NO_LIMIT) -> list[Entry]:
        where = f"loop = %s AND kind = '{kind}' AND position > %s ORDER BY position LIMIT %s"
        return self._select(where, _sought(loop), after, limit)

    def _select(self, where: str, *parameters: object, bodies: bool = True) -> list[Entry]:
        body = BODIES if bodies else OTHER_BODIES
        rows = self._session.rows(f"SELECT {NAMES}, {body} FROM fedres.log WHERE {where}", parameters)
        return [entry_of(row, with_body=bodies) for row in rows]

    def erase(self, loop: str, user: str, body: Callable[[int], bytes], epoch: int | None = None) -> int:
        """Delete a user's records. The server decides when their bytes are overwritten (postgresql.md)."""
        epochs = NO_EPOCHS if epoch is None else {loop: epoch}
        with self._session.lend() as db, _patient(db), db.transaction():
            heads = self._lock(db, [loop], epochs)
            whose = {"loop": loop, "user": _sought(user)}
            n_erased = db.execute(ERASE_USER, whose).rowcount
            n_replaced = db.execute(REPLACED_BASES, whose).rowcount
            db.execute(REMOVED, (n_erased + n_replaced, loop))
            erased = Record(loop, ERASED, body=body(n_erased))
            self._append_behind(db, [[erased]], heads, epochs)
        return n_erased

    def erase_some(self, loop: str, user: str, epoch: int | None = None) -> bool:
        named = {"loop": loop, "user": _sought(user), "limit": ERASED_AT_ONCE}
        with self._session.lend() as db, _patient(db):
            [(about, own)] = db.execute(SOME_OF_USER, named)
            if len(about) + len(own) < ERASED_AT_ONCE:
                return False
            doomed = about if len(about) == ERASED_AT_ONCE else [*about, *own]
            with db.transaction():
                self._lock(db, [loop], NO_EPOCHS if epoch is None else {loop: epoch})
                db.execute(REMOVED, (db.execute(PRUNE, (loop, doomed)).rowcount, loop))
            return True

    def existing(self, loop: str, events: Collection[str]) -> set[str]:
        sought = [event for event in events if "\0" not in event]
        return {str(event) for (event,) in self._session.rows(EXISTING, (texts(sought), _sought(loop)))}

    def prune(self, loop: str, old: Pruning, after: int = 0, epoch: int | None = None) -> int | None:
        """Delete some; ``after`` counts positions up to the cut, then those of base records.

        The records are looked up before the head is locked, so appends wait for the deletion only. The server's
        autovacuum makes room for new records (postgresql.md).
        """
        if after >= old.cut + old.done:
            return None
        question, start, end = (
            (OLD_EVENTS, after, old.cut) if after < old.cut else (OLD_BASES, after - old.cut, old.done)
        )
        named = {"loop": loop, "after": start, "limit": PRUNED_AT_ONCE, **msgspec.structs.asdict(old)}
        with self._session.lend() as db, _patient(db):
            [(positions, last, n_seen)] = db.execute(question, named)
            if positions:
                with db.transaction():
                    self._lock(db, [loop], NO_EPOCHS if epoch is None else {loop: epoch})
                    db.execute(REMOVED, (db.execute(PRUNE, (loop, positions)).rowcount, loop))
        reached = last if n_seen == PRUNED_AT_ONCE else end
        return int(reached) + (0 if after < old.cut else old.cut)

    def size(self) -> int:
        [(n_bytes,)] = self._session.rows("SELECT pg_total_relation_size('fedres.log')")
        return int(n_bytes)

    def scrub(self) -> Iterator[None]:
        """Do nothing: the files are the server's (postgresql.md describes what stays there, and for how long)."""
        yield from ()

    def drop(self, loop: str, position: int) -> None:
        with self._session.lend() as db, db.transaction():
            self._lock(db, [loop], NO_EPOCHS)
            gone = db.execute("DELETE FROM fedres.log WHERE loop = %s AND position = %s", (loop, position))
            db.execute(REMOVED, (gone.rowcount, loop))

    def now(self) -> int:
        if self._clock.offset is None:
            self.heads()
        return self._clock.now()

    def hold(self, loop: str) -> int | None:
        """Return the epoch of this session as the holder of a loop; the session holds the loop until it ends."""
        if loop in self._held:
            return self._held[loop]
        if time.monotonic() < self._hold_at.get(loop, 0.0):
            return None
        self._hold_at[loop] = time.monotonic() + HOLD_SECONDS
        with self._session.lend() as db:
            [(held,)] = db.execute(HOLD, (_lock_of(loop),))
            if held:
                [(self._held[loop],)] = db.execute(NEW_EPOCH, (loop,))
        return self._held.get(loop)

    def notifications(self) -> int | None:
        """Return a file that can be read once something was appended, None while there is no session."""
        return self._session.file if self._listens else None

    def close(self) -> None:
        self._session.close()

    def __enter__(self) -> PostgresLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # appending

    def _append(self, db: Session, groups: Sequence[Group], epochs: Mapping[str, int]) -> list[Outcome]:
        loops = {group[0].loop for group in groups}
        if new := loops - self._heads.keys():
            db.execute(NEW_HEADS, (texts(sorted(new)),))  # alone: a row in doubt would have others wait out of order
            self._heads.update({loop: LockedHead(0, 0, 0) for loop in new})
            self._alone = False
        has_duplicates = False
        if self._alone:
            batch = NumberedRecords(groups, {loop: self._heads[loop] for loop in loops}, self._clock.now())
            try:
                if self._store(db, batch, epochs):
                    return batch.outcomes
            except psycopg.errors.UniqueViolation:
                has_duplicates = True
        try:
            return self._append_locked(db, groups, loops, epochs, has_duplicates)
        except psycopg.errors.UniqueViolation:
            return self._append_locked(db, groups, loops, epochs, has_duplicates=True)

    def _append_locked(
        self, db: Session, groups: Sequence[Group], loops: set[str], epochs: Mapping[str, int], has_duplicates: bool
    ) -> list[Outcome]:
        """Append with the heads locked first."""
        with db.transaction():
            before = {loop: self._heads.get(loop) for loop in loops}
            heads = self._lock(db, loops, epochs)
            first = _first_positions(db, groups) if has_duplicates else None
            outcomes = self._append_behind(db, groups, heads, epochs, first)
        self._alone = heads == before
        return outcomes

    def _append_behind(
        self,
        db: Session,
        groups: Sequence[Group],
        heads: Mapping[str, LockedHead],
        epochs: Mapping[str, int],
        first: Mapping[Key, int] | None = None,
    ) -> list[Outcome]:
        """Append behind heads that are locked.

        The database refuses a time that is a second old; its answer sets our clock, and the next attempt is in time.
        """
        for _ in range(ATTEMPTS):
            batch = NumberedRecords(groups, heads, self._clock.now(), None if first is None else dict(first))
            if not batch.entries or self._store(db, batch, epochs):
                return batch.outcomes
        raise StoreUnavailable("busy", "appending takes more than a second")

    def _store(self, db: Session, batch: NumberedRecords, epochs: Mapping[str, int]) -> bool:
        """Store the batch unless another machine has appended; return whether it is stored."""
        tell = time.monotonic() - self._told_at > NOTIFY_SECONDS
        rows = db.execute(APPEND, batch.parameters(epochs, tell), binary=True).fetchall()
        stored = all(row[0] for row in rows)
        for _, now, loop, last, at, epoch in rows:
            self._clock.note(now)
            self._heads[loop] = LockedHead(last, at, epoch)
            _check_epoch(loop, epoch, epochs)
        self._alone = stored
        if stored and tell:
            self._told_at = time.monotonic()
        return stored

    def _lock(self, db: Session, loops: Iterable[str], epochs: Mapping[str, int]) -> dict[str, LockedHead]:
        """Return where loops end, with their heads locked."""
        heads = {}
        for loop, last, at, epoch, now in db.execute(LOCK, (texts(sorted(loops)),), binary=True):
            _check_epoch(loop, epoch, epochs)
            heads[loop] = LockedHead(last, at, epoch)
            self._clock.note(now)
        missing = set(loops) - heads.keys()
        if missing:
            raise Refused(f"loop must be one that the log has, got {min(missing)!r}")
        return heads

    def _forget(self) -> None:
        """Drop all cached state that another session may have changed."""
        self._heads: dict[str, LockedHead] = {}
        self._alone = False  # True: no other machine appended between our last two batches
        self._held: dict[str, int] = {}
        self._hold_at: dict[str, float] = {}


def _first_positions(db: Session, groups: Sequence[Group]) -> dict[Key, int]:
    """Return the positions of records that already exist and must be unique."""
    keys = [key for group in groups for key in keys_of(group)]
    columns = [texts(column) for column in zip(*keys, strict=True)] if keys else [texts([])] * 3
    return {(loop, kind, event): at for loop, kind, event, at in db.execute(FIRST_OF, columns, binary=True)}


def _check_epoch(loop: str, epoch: int, epochs: Mapping[str, int]) -> None:
    if epochs.get(loop, epoch) != epoch:
        raise StoreUnavailable("fenced", f"another machine has become the holder of loop {loop!r}")


def _lock_of(loop: str) -> int:
    """Return the number of the advisory lock of a loop's holder."""
    return int.from_bytes(hashlib.blake2b(loop.encode(), digest_size=8, key=b"fedres").digest(), signed=True)


@contextlib.contextmanager
def _patient(db: Session) -> Iterator[None]:
    """Raise the statement timeout, for deleting many records."""
    usual, db.silence_seconds = db.silence_seconds, ERASE_SECONDS
    try:
        yield
    finally:
        db.silence_seconds = usual


def _sought(text: str) -> str | None:
    """Return the text, or None, which equals nothing, if PostgreSQL cannot store it."""
    return None if "\0" in text else text

"""The records of a loop, and of a user, are found wherever in the log they are, and only those."""

import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from service.store import Log, Record, sqlite_file
from service.store.opening import STRETCH_BITS

LOOPS, KINDS, USERS = ("shop", "news"), ("rank", "reward", "base"), ("ann", "bob", "cleo")
STRETCH = 1 << STRETCH_BITS
EVERYTHING = 100_000

some_records = st.lists(
    st.builds(
        Record,
        st.sampled_from(LOOPS),
        st.sampled_from(KINDS),
        st.sampled_from((None, "a", "b", "c")),
        st.sampled_from((None, *USERS)),
        st.just(b"{}"),
    ),
    min_size=3,
    max_size=9,
)
gaps = st.sampled_from((0, 1, STRETCH - 2, STRETCH - 1, STRETCH, 3 * STRETCH + 1))
histories = st.lists(st.tuples(gaps, some_records), min_size=2, max_size=4)


@contextmanager
def filled(history, n_others, analyzed):
    """Yield a log of these records, each batch so many positions after the one before, and of ``n_others`` users."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "log.db")
        with Log(sqlite_file(file)) as log, closing(sqlite3.connect(file, isolation_level=None)) as tool:
            log.append([Record("shop", "rank", f"of-{k}", f"{k}", b"{}") for k in range(n_others)])
            for gap, records in history:
                tool.execute("UPDATE sqlite_sequence SET seq = seq + ?", (gap,))
                log.append(records)
            if analyzed:  # by its owner: SQLite then plans with what it has counted
                tool.execute("ANALYZE")
        with Log(sqlite_file(file)) as log:
            yield log


def read_by_and_by(log, loop):
    entries = []
    while some := log.read(entries[-1].seq if entries else 0, 7, loop):
        assert len(some) <= 7
        entries += some
    return entries


def without_user(entries, loop, user):
    own = [entry for entry in entries if (entry.loop, entry.user) == (loop, user)]
    events = {entry.event for entry in own if entry.kind == "rank"} - {None}
    rewards = [e for e in entries if e.loop == loop and e.user is None and e.event in events]
    return [entry for entry in entries if entry not in own + rewards]


def without_older(entries, loop, kind, users):
    replaced = [e for e in entries if (e.loop, e.kind, e.event) == (loop, kind, None) and e.user in users]
    newest = {entry.user: entry.seq for entry in replaced}
    return [entry for entry in entries if entry not in replaced or entry.seq == newest[entry.user]]


@given(
    st.builds(filled, histories, st.sampled_from((1, 300)), st.booleans()),
    st.sampled_from(LOOPS),
    st.sampled_from(KINDS),
    st.permutations(USERS),
)
def test_the_log_answers_as_going_through_all_records_would(filled, loop, kind, users):
    user, other, _ = users
    with filled as log:
        entries = log.read(limit=EVERYTHING)
        assert read_by_and_by(log, loop) == [entry for entry in entries if entry.loop == loop]
        own = [entry for entry in entries if (entry.loop, entry.user) == (loop, user)]
        assert log.of_user(loop, user) == own
        assert log.events_of(loop, user, kind) == [e.event for e in own if e.kind == kind and e.event is not None]

        log.drop_older(loop, kind, users[:2])
        entries = without_older(entries, loop, kind, users[:2])
        assert log.read(limit=EVERYTHING) == entries

        n_erased = log.erase(loop, user, instead=[Record(loop, "base", None, other, b"new")])
        *left, base, erased = log.read(limit=EVERYTHING)
        assert (base.body, erased.kind) == (b"new", "erased")
        assert n_erased == len(entries) - len(without_user(entries, loop, user))
        assert [*left, base] == without_older([*without_user(entries, loop, user), base], loop, "base", [other])

"""What was acknowledged survives power cuts, and the test would notice if it did not."""

import random
import sqlite3
from functools import partial

import pytest
from power_cut_vfs import Disk, contents, recovered

from service.log.protocol import StoreUnavailable
from service.log.records import Record
from service.log.sqlite import SqliteLog
from service.log.sqlite_wal import damage_of

CUTS_PER_RUN = 20


def some_groups(rng):
    """Return one to three groups of one or two records, of two loops, in small and in overflowing rows."""
    body = rng.randbytes(rng.choice((10, 300, 9_000)))
    return [
        [
            Record(loop, "rank", f"e{rng.getrandbits(60)}", f"u{rng.randrange(4)}", rng.choice((None, b"x")), body)
            for _ in range(rng.randint(1, 2))
        ]
        for loop in rng.choices(("shop", "news"), k=rng.randint(1, 3))
    ]


def run(disk, rng, before, synchronous):
    """Return the log's entries after each acknowledgement, with the length of the trace at which it was given."""
    acknowledged = [(0, before)]
    with SqliteLog(partial(disk.connect, synchronous)) as log:
        for _ in range(rng.randint(1, 6)):
            if "shop" in log.heads() and rng.random() < 0.15:
                log.erase("shop", f"u{rng.randrange(4)}", lambda n_erased: b"%d" % n_erased)
            else:
                log.append(some_groups(rng))
            acknowledged.append((len(disk.trace), contents(log)))
    return acknowledged


def cut_often(n_cuts, seed, synchronous="EXTRA"):
    """Return how many of ``n_cuts`` cuts lost an acknowledged change, left half a change, or damaged the file.

    What a cut has left is where the next run begins, so that recoveries are cut as well.
    """
    rng = random.Random(seed)
    files, entries, n_lost, n_alarms = {}, [], 0, 0
    for _ in range(n_cuts // CUTS_PER_RUN):
        disk = Disk(files)
        acknowledged = run(disk, rng, entries, synchronous)
        disk.unregister()
        for k in range(CUTS_PER_RUN):
            point = rng.randint(0, len(disk.trace))
            files = disk.cut(point, rng)
            entries = entries_in(files)
            n_lost += entries not in possible(acknowledged, point)
            n_alarms += k % 5 == 0 and is_alarming(files.get("log-wal", b""))  # it takes longer than the rest
        if entries is None or len(entries) > 30:
            files, entries = {}, []
    assert n_alarms == 0 or synchronous != "EXTRA", "a cut was taken for damage"
    return n_lost


def is_alarming(wal):
    """Return whether a service would refuse to start with this write-ahead log."""
    damage = damage_of(wal)
    return damage is not None and damage.certain


def entries_in(files):
    """Return the entries that the files hold, None if they are damaged."""
    try:
        return recovered(files)
    except (AssertionError, StoreUnavailable, sqlite3.Error):
        return None


def possible(acknowledged, point):
    """Return the states that may be found: the last acknowledged before the cut, and the one then under way."""
    n_before = sum(at <= point for at, _ in acknowledged)
    return [entries for _, entries in acknowledged[n_before - 1 : n_before + 1]]


def test_no_power_cut_loses_what_was_acknowledged():  # `make hardening` cuts a million times
    assert cut_often(4_000, seed=0) == 0


@pytest.mark.parametrize("synchronous", ["NORMAL", "OFF"])
def test_power_cuts_lose_much_where_less_is_synced(synchronous):
    assert cut_often(500, seed=0, synchronous=synchronous) > 25

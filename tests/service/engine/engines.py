"""Engines for tests, requests for them, and what they have logged."""

import contextlib
import json
import sqlite3

import msgspec
import numpy as np
import pytest

from service.engine import Action, Engine, RankRequest
from service.engine.learner import digest_of, replay
from service.errors import ApiError
from service.store import Log, sqlite_file

SECOND = 1_000_000


class Clock:
    """Microseconds that pass when told."""

    def __init__(self):
        self.now = 1_700_000_000 * SECOND

    def __call__(self):
        return self.now

    def pass_seconds(self, seconds):
        self.now += round(seconds * SECOND)


@contextlib.asynccontextmanager
async def running(folder, **options):
    engine = Engine.open(folder / "store.db", **{"clock": Clock(), "snapshot_seconds": 3_600, **options})
    try:
        yield engine
    finally:
        await engine.close()


def request(user="u", context=None, n_actions=3, **more):
    actions = [Action(f"a{k}", msgspec.Raw(json.dumps({"topic": f"t{k}"}).encode())) for k in range(n_actions)]
    return RankRequest(user=user, context=msgspec.Raw(json.dumps(context or {}).encode()), actions=actions, **more)


def nowhere(*_):
    """Say that a decision's own record is to have all features."""
    return ()


def logged(folder):
    with Log(sqlite_file(folder / "store.db")) as log:
        return log.read(0, 10**6)


def rebuilt(folder, loop="default"):
    """Return the digest of the models learned anew from the log."""
    return digest_of(replay(logged(folder)).loops[loop])


async def play(engine, n, seed=0, loop="default", n_users=6):
    """Rank and reward ``n`` times, some of it late, repeated or not at all."""
    rng = np.random.default_rng(seed)
    for k in range(n):
        user = f"user-{rng.integers(n_users)}"
        answer = await engine.rank(loop, request(user, {"hour": int(rng.integers(4))}, event_id=f"{seed}-{k}"))
        if rng.random() < 0.7:
            await engine.reward(loop, answer.event_id, float(rng.random()))
        if rng.random() < 0.2:
            await engine.reward(loop, f"{seed}-{rng.integers(n)}", 1.0)
    await engine.settle()


async def refused(awaitable):
    with pytest.raises(ApiError) as raised:
        await awaitable
    return raised.value.status, raised.value.code


class Disk:
    """Connections to a real store that can be made to be full."""

    def __init__(self, path):
        self.open, self.connections, self.full = sqlite_file(path), [], False

    def connect(self):
        self.connections.append(self.open())
        self._limit(self.connections[-1])
        return self.connections[-1]

    def fill(self, full):
        self.full = full
        for connection in self.connections:
            with contextlib.suppress(sqlite3.ProgrammingError):  # closed
                self._limit(connection)

    def _limit(self, connection):
        connection.execute(f"PRAGMA max_page_count = {1 if self.full else 2**30}").fetchall()

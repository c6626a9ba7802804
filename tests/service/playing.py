"""What tests ask of a machine, and what they look at afterwards."""

import contextlib
import json
import shutil
import sqlite3
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest

from service.admin.status import MachineStatus
from service.errors import ApiError
from service.http.replies import failure
from service.learn import learner
from service.learn.learner import replay
from service.log.protocol import StoreUnavailable
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.rank.requests import Action, RankRequest

STORE = ("store.db", "store.db-wal")
SNAPSHOT = ("store.db-models", "store.db-models-wal")


def raw(tree):
    return msgspec.Raw(json.dumps(tree).encode())


def request(user="u", context=None, n_actions=3, **more):
    actions = [Action(f"a{k}", raw({"topic": f"t{k}"})) for k in range(n_actions)]
    return RankRequest(user=user, context=raw(context or {}), actions=actions, **more)


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
    """Return status and code of the reply to what is refused."""
    return (await refused_for(awaitable))[:2]


async def refused_for(awaitable):
    """Return the same, and what the refusal is about."""
    with pytest.raises((ApiError, StoreUnavailable)) as raised:
        await awaitable
    reply = failure(raised.value)
    error = json.loads(reply.body)["error"]
    return reply.status, error["code"], error["target"]


def weights(engine, loop="default"):
    """Return the shared weights as a ranker has them."""
    return engine.context.loop(loop).weights


async def gauges(engine, loop="default"):
    return (await MachineStatus(engine.context, "store.db").status())["loops"][loop]


def head_of(engine, loop="default"):
    """Return what the loop is apart from its models and events, after all that is logged."""
    while engine.learner.step():
        pass
    return engine.learner.loops[loop].metadata


def logged(folder, loop="default"):
    with SqliteLog(sqlite_file(folder / "store.db")) as log:
        return log.read(loop, 0, 10**6)


def copied(source, target, files=(*STORE, *SNAPSHOT)):
    """Copy the files of a store to another folder."""
    target.mkdir(exist_ok=True)
    for file in files:
        if (source / file).exists():
            shutil.copy(source / file, target)


def rebuilt(folder, loop="default"):
    """Return the digest of the models learned anew from the log."""
    with SqliteLog(sqlite_file(folder / "store.db")) as log, _shared_memory() as run:
        return replay(log, run)[loop]


@contextlib.contextmanager
def relearned(folder):
    """Lend a learner that has learned all from the log, without a snapshot."""
    with (
        SqliteLog(sqlite_file(folder / "store.db")) as log,
        _shared_memory() as run,
        learner.relearned(log, run) as lent,
    ):
        yield lent


@contextlib.contextmanager
def _shared_memory():
    with tempfile.TemporaryDirectory(prefix="fedres-test-", dir="/dev/shm") as name:
        yield Path(name)


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

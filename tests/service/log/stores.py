"""A small store with all that a log may have, for tests: two loops, rewards, a catalogue, an erasure."""

import json
import random
import tempfile
from contextlib import closing
from pathlib import Path

import msgspec
from machine import Engine

from service.learn.learner import replay
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.rank.requests import Action, RankRequest

DRINKS = [{"id": "tea", "features": {"hot": True}}, {"id": "juice", "features": {"hot": False, "sugar": 9.5}}]


def request(user, **fields):
    return msgspec.json.decode(json.dumps({"user": user, "actions": DRINKS, **fields}), type=RankRequest)


async def play(engine, n_events, seed=0, loop="default"):
    """Have users ask for drinks, and reward most of them."""
    rng = random.Random(seed)
    for k in range(n_events):
        user, cold = f"user-{rng.randrange(9)}", rng.random() < 0.5
        event = f"{loop}-{seed}-{k}"
        ranked = request(user, context={"weather": "cold" if cold else "warm", "hour": k % 24}, event_id=event)
        result = await engine.rank(loop, ranked)
        if rng.random() < 0.8:
            await engine.reward(loop, event, float((result.action_id == "tea") == cold))
        engine.own_clock.pass_seconds(1)
        if k % 20 == 19:
            await engine.settle()


async def fill(engine, n_events=60):
    await engine.put_actions("default", msgspec.json.decode(json.dumps(DRINKS), type=list[Action]))
    await engine.create_loop("news")
    await play(engine, n_events)
    await play(engine, n_events // 2, loop="news")
    await engine.erase_user("default", "user-3")
    await play(engine, n_events // 2, seed=1)
    await engine.settle()


def digests(file):
    """Return the digests of all loops' models, learned anew from the log in a file."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, closing(SqliteLog(sqlite_file(file))) as log:
        return replay(log, Path(folder))


def records(file):
    """Return all records of a file, which must not be in use."""
    with closing(SqliteLog(sqlite_file(file))) as log:
        return {loop: log.read(loop, 0, 10**6) for loop in log.heads()}


async def make_store(folder, n_events=60):
    """Return a store that was filled and closed."""
    engine = Engine(folder)
    await fill(engine, n_events)
    await engine.close()
    return folder / "store.db"

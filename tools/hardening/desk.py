"""Callers of a ranker whose log writer is behind a real socket, and whether their replies are true afterwards."""

import asyncio
import contextlib
import functools
import json
import tempfile
from pathlib import Path

from machine import Engine
from msgspec.structs import replace
from waiting import LIMIT
from writers import running_writer

from service.http.hot import hot_routes
from service.http.replies import failure
from service.http.request import Limits
from service.http.routes import Call
from service.log.client import WriterClient
from service.log.records import RANK, REWARD
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.rank.rewards import Rewards

ACTIONS = [{"id": f"a{k}", "features": {"topic": f"t{k}"}} for k in range(3)]
N_EVENTS = 4
TRIES = 20
PAUSE = 0.25  # seconds before a call is repeated: a log writer that was silent needs them for its next reply


def value_of(k):
    return k / N_EVENTS


class Desk:
    """Takes the calls of one ranker: bytes in, status and bytes out. ``told`` are the calls that were acknowledged."""

    def __init__(self, engine, writer, client):
        routes = {route.path: route for route in hot_routes(engine.parts[0], Rewards(engine.context), Limits()).all}
        self._routes = {RANK: routes["/v1/rank"], REWARD: routes["/v1/events/{event_id}/reward"]}
        self._calls = {(kind, k): self._call(kind, k) for kind in (RANK, REWARD) for k in range(N_EVENTS)}
        self.writer, self._client = writer, client
        self.acknowledged, self.wrong = {}, []

    @staticmethod
    def _call(kind, k):
        body = {"event_id": f"e{k}", "user": f"u{k % 2}", "context": {"hour": k}, "actions": ACTIONS}
        sent = json.dumps(body if kind == RANK else {"value": value_of(k)}).encode()
        return Call("default", {"event_id": f"e{k}"}, sent, None)

    async def ask(self, kind, k):
        """Return whether a call was acknowledged; keep what is no answer."""
        try:
            route, call = self._routes[kind], self._calls[kind, k]
            reply = await route.endpoint(replace(call, body=route.decoder.decode(call.body)))
        except Exception as error:
            reply = failure(error)
        if reply.status < 300:
            self.acknowledged[kind, f"e{k}"] = reply.body
        elif reply.status != 503:
            self.wrong.append(f"{kind} {k} was answered with {reply.status}: {reply.body!r}")
        return reply.status < 300

    async def ready(self):
        """Wait for a connection."""
        await asyncio.wait_for(self._client.connect(), LIMIT)

    async def ask_again(self):
        """Repeat all calls until each is acknowledged, as clients do."""
        for kind, k in self._calls:
            for _ in range(TRIES):
                await self.ready()
                if await asyncio.wait_for(self.ask(kind, k), LIMIT):
                    break
                await asyncio.sleep(PAUSE)
            else:
                self.wrong.append(f"{kind} {k} is never acknowledged")


@contextlib.asynccontextmanager
async def open_desk(folder):
    """Lend a desk on the store in a folder."""
    engine = Engine(folder, memory=folder)  # its owner removes it, also if this process ends
    engine.learner.step()
    with running_writer(folder, open_log=lambda: SqliteLog(sqlite_file(folder / "store.db"))) as writer:
        client = engine.context.log = WriterClient(writer.path)
        desk = Desk(engine, writer, client)
        await desk.ready()
        try:
            yield desk
        finally:
            await client.close()
    await engine.close()


@functools.cache
def warm_up():
    """Import and compile what is needed, however long that takes: a longer wait afterwards never ends."""

    async def decide(folder):
        async with open_desk(folder) as desk:
            await desk.ask(RANK, 0)
            await desk.ask(REWARD, 0)

    with tempfile.TemporaryDirectory(prefix="fedres-fail-", dir="/dev/shm") as name:
        asyncio.run(decide(Path(name)))


def untrue(folder, acknowledged):
    """Return what callers got as replies that is not in the log, and what is in it that nobody sent."""
    problems = []
    with SqliteLog(sqlite_file(folder / "store.db"), verify=True) as log:
        entries = log.read("default", 0, 10_000)
    ranks = {entry.event: json.loads(entry.body) for entry in entries if entry.kind == RANK}
    if len(ranks) != sum(entry.kind == RANK for entry in entries):
        problems.append("an event was decided twice")
    for event, logged in ranks.items():
        if logged["context"] != {"hour": int(event[1:])} or logged["actions"] != ACTIONS:
            problems.append(f"{event} has a request that nobody sent: {logged}")
    rewards = {(entry.event, json.loads(entry.body)["value"]) for entry in entries if entry.kind == REWARD}
    problems += [f"{event} has the reward {value}" for event, value in rewards if value != value_of(int(event[1:]))]
    for (kind, event), reply in acknowledged.items():
        if kind == REWARD:
            if event not in dict(rewards):
                problems.append(f"the reward of {event} was acknowledged and is lost")
        elif event not in ranks:
            problems.append(f"the decision {event} was acknowledged and is lost")
        else:
            answer, logged = json.loads(reply), ranks[event]
            if answer["action"] != ACTIONS[logged["action"]]["id"]:
                problems.append(f"{event} was answered with {answer['action']}, and logged as {logged['action']}")
    return problems

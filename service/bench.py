"""Rank with durable acknowledgement beside what does nothing, on the same uvicorn, with one worker, in one run.

``bare`` is an ASGI application that reads the body and answers; ``fastapi`` is a FastAPI route that has pydantic read
the same body. Server and load generator are processes of their own. On a machine that does other work too, ratios of
the servers' own processor time hold better than those of throughput, which also tell how starved either side was.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import resource
import socket
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from fastapi import FastAPI
from pydantic import BaseModel
from rich.table import Table

from fedres.scoring.model import PersonalModel
from service.app import create_app
from service.engine import Engine
from service.engine.snapshots import Changes, Snapshots
from service.http.keys import Keys
from service.http.limits import Limits
from service.http.server import Server, bound, stop_on_signals
from service.http.table import DEFAULT_LOOP
from service.load_generator import USER, Load, Outcome, generate, rank_bodies

N_LISTS = {"bare": 50, "fastapi": 50, "rank": 50, "rank-new-lists": 10_000}  # of actions, that requests come with
PATH = "/v1/rank"
CONNECTIONS = 64
ROUNDS = 3
SECONDS = 12.0  # a snapshot is taken every ten
WARM_UP = 2.0
LIMITS = Limits(requests_per_second=1e9)
CHUNK = 50_000  # personal models written at once

Row = dict[str, Any]
Progress = Callable[[int, int], None]

_spawn = multiprocessing.get_context("spawn")


async def bare(scope: Any, receive: Any, send: Any) -> None:
    """Read the body and answer: no less can be done on uvicorn."""
    more = True
    while more:
        more = (await receive()).get("more_body", False)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"2")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})


class Action(BaseModel):
    id: str
    features: dict[str, float]


class Rank(BaseModel):
    user: str
    context: dict[str, float]
    actions: list[Action]


class Answer(BaseModel):
    action: str


def plain_fastapi() -> FastAPI:
    """Return FastAPI with one route that does nothing."""
    app = FastAPI()

    @app.post(PATH)
    async def rank(request: Rank) -> Answer:
        return Answer(action=request.actions[0].id)

    return app


def _run_server(kind: str, store: Path, parent: Connection) -> None:
    with bound("127.0.0.1", 0) as sock, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(kind, store, sock, parent))


async def _serve(kind: str, store: Path, sock: socket.socket, parent: Connection) -> None:
    engine = Engine.open(store, writer_process=True) if kind.startswith("rank") else None
    app = bare if kind == "bare" else plain_fastapi()
    try:
        if engine is not None:
            app = create_app(engine, keys=Keys(store), limits=LIMITS)
        server = Server(app, sock, LIMITS)
        stop_on_signals(server.stop)
        parent.send(sock.getsockname()[1])
        began = _cpu_seconds()
        await server.serve()
    finally:
        if engine is not None:
            await engine.close()
    parent.send(_cpu_seconds() - began)


def _cpu_seconds() -> float:
    """Return what this process has used, and those that it has waited for: the writer, once it has ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class Served:
    """A server in a process of its own; ``cpu_seconds`` is what serving took, once it has ended."""

    def __init__(self, port: int) -> None:
        self.port, self.cpu_seconds = port, 0.0


@contextmanager
def serving(kind: str, store: Path) -> Iterator[Served]:
    """Lend a server."""
    here, there = _spawn.Pipe()
    process = _spawn.Process(target=_run_server, args=(kind, store, there))
    process.start()
    there.close()
    served = Served(here.recv())
    try:
        yield served
    finally:
        process.terminate()
        served.cpu_seconds = here.recv()
        process.join()


def load(
    port: int,
    n_users: int = 1_000,
    n_connections: int = CONNECTIONS,
    seconds: float = SECONDS,
    n_lists: int = N_LISTS["rank"],
) -> Outcome:
    """Return what the generator measured, in a process of its own."""
    with _spawn.Pool(1) as pool:
        return pool.apply(generate, (Load(port, PATH, rank_bodies(n_lists), n_users, n_connections, seconds),))


def measure_one(kind: str, store: Path, seconds: float) -> Row:
    """Return what one server did under load, and the processor time that a request took it, in microseconds."""
    with serving(kind, store) as served:
        n_lists = N_LISTS[kind]
        first = load(served.port, seconds=WARM_UP, n_lists=n_lists)  # what is made once is made now, like users' places
        outcome = load(served.port, seconds=seconds, n_lists=n_lists)
    return {**outcome._asdict(), "server_cpu": served.cpu_seconds / (first.n + outcome.n) * 1e6}


def measure_speed(rounds: int = ROUNDS, seconds: float = SECONDS, progress: Progress | None = None) -> list[Row]:
    """Return a row for each server: medians over rounds in which they take turns, and ratios of the same round."""
    found: dict[str, list[Row]] = {kind: [] for kind in N_LISTS}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            for kind in N_LISTS:
                found[kind].append(measure_one(kind, Path(folder) / f"{kind}-{turn}.db", seconds))
                if progress is not None:
                    progress(sum(map(len, found.values())), rounds * len(N_LISTS))
    return [_row(kind, rows, found["bare"]) for kind, rows in found.items()]


def _row(kind: str, rows: Sequence[Row], bare_rows: Sequence[Row]) -> Row:
    def ratio(name: str) -> float:
        return statistics.median(float(ours[name] / theirs[name]) for ours, theirs in zip(rows, bare_rows, strict=True))

    return {
        "what": kind,
        **{name: statistics.median(row[name] for row in rows) for name in rows[0]},
        "throughput_ratio": ratio("per_second"),
        "p99_ratio": ratio("p99"),
        "server_cpu_ratio": ratio("server_cpu"),
    }


def personal_model(n_features: int, seed: int = 0) -> PersonalModel:
    """Return a model that has learned from as many features."""
    rng = np.random.default_rng(seed)
    model = PersonalModel()
    keys = rng.choice(2**32, n_features, replace=False).astype(np.uint32)
    model.learn((keys, np.ones(n_features, np.float32)), 1.0, 0.0, (0.0, 1.0))
    return model


def measure_memory(n_features: int = 100, n_models: int = 2_000) -> Row:
    """Return the bytes that a personal model takes in memory, as allocated, and in the file."""
    model = personal_model(n_features)
    tracemalloc.start()
    copies = [model.copy() for _ in range(n_models)]
    in_memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"features": n_features, "memory": in_memory / len(copies), "file": len(model.to_bytes())}


def fill(store: Path, n_users: int, n_features: int = 50, progress: Progress | None = None) -> None:
    """Put personal models for as many users into the store's file of models."""

    async def make() -> int:
        engine = Engine.open(store)
        since = engine.view(DEFAULT_LOOP).since
        await engine.close()
        return since

    since, model = asyncio.run(make()), personal_model(n_features)
    snapshots = Snapshots(store.with_name(store.name + "-models"))
    state = snapshots.load()
    assert state is not None
    for first in range(0, n_users, CHUNK):
        users = range(first, min(first + CHUNK, n_users))
        snapshots.write(Changes(state, personal={(since, USER % user): model for user in users}))
        if progress is not None:
            progress(users.stop, n_users)
    snapshots.close()


def measure_users(n_users: int = 1_000_000, seconds: float = 5.0, progress: Progress | None = None) -> list[Row]:
    """Return rank latencies with few and with many users stored, one request under way; takes minutes for a million."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for n in (1_000, n_users):
            store = Path(folder) / f"{n}.db"
            fill(store, n, progress=progress)
            size = store.with_name(store.name + "-models").stat().st_size
            began = time.perf_counter()
            with serving("rank", store) as served:
                opened = time.perf_counter() - began
                load(served.port, n, 1, 0.5)
                outcome = load(served.port, n, 1, seconds)
            rows.append({"users": n, **outcome._asdict(), "open_seconds": opened, "file": size})
    return rows


def measure_all(progress: Progress | None = None) -> list[Row]:
    """Return the rows of ``measure_speed``, the last with the memory of a personal model added."""
    rows = measure_speed(progress=progress)
    rows[-1]["personal_model"] = measure_memory()
    return rows


def table(rows: Sequence[Row]) -> Table:
    """Return what ``measure_all`` returned, for people."""
    memory = rows[-1]["personal_model"]
    result = Table(
        title=f"{CONNECTIONS} connections, 1 worker, 4 KB bodies: 10 actions × 20 features, 10 of the context",
        caption=f"A personal model of {memory['features']} features takes {memory['memory']:,.0f} bytes in memory, "
        f"{memory['file']:,} in the file.",
    )
    result.add_column("")
    for heading in ("a second", "p50 ms", "p99 ms", "CPU µs", "throughput", "p99", "CPU", "generator's CPU"):
        result.add_column(heading, justify="right")
    names = {
        "bare": "bare ASGI",
        "fastapi": "FastAPI + pydantic, does nothing",
        "rank": "rank, durable",
        "rank-new-lists": "rank, lists of actions that hardly repeat",
    }
    for row in rows:
        speed = [f"{row['per_second']:,.0f}", f"{row['p50']:.1f}", f"{row['p99']:.1f}", f"{row['server_cpu']:.0f}"]
        ratios = [f"{row['throughput_ratio']:.2f}×", f"{row['p99_ratio']:.2f}×", f"{row['server_cpu_ratio']:.2f}×"]
        result.add_row(names[row["what"]], *speed, *ratios, f"{row['cpu_share']:.0%}")
    return result

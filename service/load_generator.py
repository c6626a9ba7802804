"""A load generator: as many connections as wanted, each with one request under way, in a process of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from random import Random
from typing import NamedTuple, cast

import numpy as np
import uvloop

USER = "u%08d"  # names of one length, so that all requests made from a template have one too
MOMENT = '"moment":0.%06d'  # a feature of the context, different in each request: no two contexts are alike


class Load(NamedTuple):
    """What to send, and how."""

    port: int
    path: str
    templates: Sequence[bytes]  # bodies with the user USER % 0 and, after that, MOMENT % 0
    n_users: int  # one of them, at random, in each request
    n_connections: int
    seconds: float


class Outcome(NamedTuple):
    """What came of it."""

    n: int  # requests answered
    per_second: float
    p50: float  # milliseconds
    p99: float
    cpu_share: float  # of one processor, taken by the generator


class _Connection(asyncio.Protocol):
    """One connection: sends a request when it has the whole answer to the one before."""

    def __init__(self, load: Load, requests: list[list[bytes]], rng: Random, seconds: list[float]) -> None:
        self._load, self._requests, self._rng, self._seconds = load, requests, rng, seconds
        self._turn = rng.randrange(len(requests))
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods alone

    def send(self) -> None:
        """Send the next request."""
        before, between, after = self._requests[self._turn]
        self._turn = (self._turn + 1) % len(self._requests)
        user, moment = USER % int(self._rng.random() * self._load.n_users), MOMENT % int(self._rng.random() * 1e6)
        self._began = time.perf_counter()
        self.transport.write(b"".join((before, user.encode(), between, moment.encode(), after)))

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        if not _whole(data):
            self._rest = data
            return
        self._rest = b""
        if not data.startswith(b"HTTP/1.1 2"):
            raise RuntimeError(f"the service refused: {data[:500]!r}")
        self._seconds.append(time.perf_counter() - self._began)
        self.send()


def generate(load: Load) -> Outcome:
    """Return how fast the service answered; for a process of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_generate(load))


async def _generate(load: Load) -> Outcome:
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: _fail(failed, context))
    seconds: list[float] = []
    requests = [_request(load, body) for body in load.templates]
    connections = [await _connect(load, requests, seed, seconds) for seed in range(load.n_connections)]
    began, cpu = time.perf_counter(), time.process_time()
    for connection in connections:  # now that all are open: opening them is not what is measured
        connection.send()
    await asyncio.wait([failed], timeout=load.seconds)
    took, used = time.perf_counter() - began, time.process_time() - cpu
    for connection in connections:
        connection.transport.abort()
    if failed.done():
        failed.result()
    p50, p99 = np.quantile(seconds, (0.5, 0.99)) * 1e3
    return Outcome(len(seconds), len(seconds) / took, float(p50), float(p99), used / took)


async def _connect(load: Load, requests: list[list[bytes]], seed: int, seconds: list[float]) -> _Connection:
    _, made = await asyncio.get_running_loop().create_connection(
        lambda: _Connection(load, requests, Random(seed), seconds), "127.0.0.1", load.port
    )
    return made


def _fail(failed: asyncio.Future[None], context: dict[str, object]) -> None:
    if not failed.done():
        failed.set_exception(RuntimeError(str(context.get("exception") or context.get("message"))))


def _request(load: Load, body: bytes) -> list[bytes]:
    """Return a request in three parts: before the user's name, between that and the moment, and after it."""
    head = f"POST {load.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    before, rest = body.split((USER % 0).encode())
    return [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + before, *rest.split((MOMENT % 0).encode())]


def _whole(data: bytes) -> bool:
    end = data.find(b"\r\n\r\n")
    at = data.find(b"content-length: ", 0, end)
    return end >= 0 and len(data) >= end + 4 + int(data[at + 16 : data.index(b"\r", at)])


def rank_bodies(n: int, seed: int = 0) -> list[bytes]:
    """Return rank requests of about 4 KB: 10 of 200 actions with 20 features each, and 10 features of the context."""
    rng = np.random.default_rng(seed)
    actions = [{"id": f"article-{k}", "features": _features(rng, 20)} for k in range(200)]
    return [
        _body(_features(rng, 9), [actions[k] for k in rng.choice(len(actions), 10, replace=False)]) for _ in range(n)
    ]


def _body(context: dict[str, float], actions: list[dict[str, object]]) -> bytes:
    body = {"user": USER % 0, "context": {"moment": 0} | context, "actions": actions}
    return json.dumps(body, separators=(",", ":")).replace('"moment":0', MOMENT % 0).encode()


def _features(rng: np.random.Generator, n: int) -> dict[str, float]:
    return {f"feature{k:02d}": round(float(rng.random()), 3) for k in range(n)}

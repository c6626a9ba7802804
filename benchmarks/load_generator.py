"""A load generator for rank and reward: asyncio protocols on uvloop, in a process of its own.

It sends what ``fedres.client`` sends: the client's paths, headers and bodies, with new ids and a new moment in each.
Each connection has at most one request in flight and alternates between a rank and the reward for its event. In a
closed loop (``pairs_per_second=0``) a connection sends the next request as soon as it has a response. In an open loop,
pairs follow a fixed schedule, and the latency of a rank counts from the time it was scheduled for, so a service that
stalls cannot hide it by slowing the generator down (coordinated omission). uvloop's timers have a resolution of 1 ms.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, cast

import numpy as np
import uvloop

from fedres.client import RankRequest
from fedres_client.calls import Calls
from fedres_client.event_ids import new_event_id

USER = "u%08d"  # fixed width, so that every request made from a template has the same length
EVENT = "e" * 22  # as long as the ids that clients make
MOMENT = '"moment":0.%06d'  # a context feature that differs in each request: no two contexts are alike
SOME_MOMENT = 123_456  # in templates
N_ACTIONS = 200  # in the catalogue
N_LISTS = 10_000  # distinct lists of 10 actions
DRAIN_SECONDS = 20.0  # for requests in flight when the load stops
BACK_OFF = 0.02  # seconds between a failure and the next request on the same connection
FIRST_BODY = 300  # bytes shown of the first failure

CALLS = Calls("default", timeout=1.0, admin_timeout=1.0, fallback=None, feedback=cast(Any, None))

Row = dict[str, Any]


class Load(NamedTuple):
    """What to send, and how."""

    port: int
    inline: bool = False  # features in every request (4 KB), or actions named by id
    rewards: bool = True  # follow each rank with its reward
    seconds: float = 12.0
    n_connections: int = 64
    n_users: int = 1_000
    keys: Sequence[str] = ()  # connections take turns; each key has a rate limit of its own
    pairs_per_second: float = 0.0  # open loop; 0 is a closed loop
    window: float = 0.0  # seconds between two reports; 0 is one report at the end
    n_lists: int = N_LISTS


class Window:
    """What a load did within some time."""

    def __init__(self) -> None:
        self.ranks: list[float] = []  # latencies in seconds
        self.rewards: list[float] = []
        self.failures: Counter[str] = Counter()  # by status code, or "connection"
        self.first_failure: str | None = None
        self.drained = 0  # requests in flight when the load stopped, not in the latencies
        self.last = False  # requests in flight when the load stopped; no window comes after it
        self._began, self._cpu, self._machine_cpu = time.perf_counter(), time.process_time(), machine_cpu_seconds()

    def close(self) -> None:
        """Note how long it was, and the CPU time that the generator and the whole machine used."""
        self.seconds = time.perf_counter() - self._began
        self.cpu_seconds = time.process_time() - self._cpu
        self.machine_cpu_seconds = machine_cpu_seconds() - self._machine_cpu

    def fail(self, kind: str, message: str) -> None:
        """Count a failed request."""
        self.failures[kind] += 1
        self.first_failure = self.first_failure or message

    def add_drained(self, drain: Window) -> None:
        """Count what came after the load had stopped, failures too."""
        self.drained += len(drain.ranks) + len(drain.rewards)
        self.failures += drain.failures
        self.first_failure = self.first_failure or drain.first_failure

    def summary(self) -> Row:
        """Return counts, throughput, latencies in milliseconds and the generator's share of one CPU."""
        n = len(self.ranks) + len(self.rewards)
        row: Row = {"requests": n, "ranks": len(self.ranks), "rewards": len(self.rewards), "seconds": self.seconds}
        row["per_second"] = n / self.seconds
        for prefix, values in (("", self.ranks + self.rewards), ("rank_", self.ranks), ("reward_", self.rewards)):
            row[f"{prefix}p50"], row[f"{prefix}p99"] = percentiles(values)
        row["generator_cpu"] = self.cpu_seconds / self.seconds
        row["drained"], row["failures"] = self.drained, self.failures.total()
        row["failures_by_status"], row["first_failure"] = dict(self.failures), self.first_failure
        return row


class Recorder:
    """Holds the window that all connections of a load write to."""

    def __init__(self) -> None:
        self.window = Window()

    def next_window(self) -> Window:
        """Close the window and begin another; return the closed one."""
        closed, self.window = self.window, Window()
        closed.close()
        return closed


def machine_cpu_seconds() -> float:
    """Return the CPU time that all processes of this machine have used; 0 where ``/proc`` does not say."""
    try:
        user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    except (OSError, ValueError):
        return 0.0
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def percentiles(seconds: Sequence[float]) -> tuple[float | None, float | None]:
    """Return p50 and p99 in milliseconds, None without values."""
    if not seconds:
        return None, None
    p50, p99 = np.quantile(seconds, (0.5, 0.99)) * 1e3
    return float(p50), float(p99)


class Template(NamedTuple):
    """A rank request after its head, cut where an event's id, a user and a moment are filled in."""

    event: bytes  # the part before the event id; begins with Content-Length
    user: bytes
    moment: bytes
    rest: bytes


class Connection(asyncio.Protocol):
    """One connection: rank, reward, rank, and so on."""

    def __init__(self, load: Load, number: int, templates: list[Template], recorder: Recorder) -> None:
        self._load, self._templates, self._recorder = load, templates, recorder
        self._rng = Random(number)
        key = f"Authorization: Bearer {load.keys[number % len(load.keys)]}\r\n" if load.keys else ""
        fields = f" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{key}X-Request-Id: "
        self._rank_head = f"POST /v1/loops/default/rank{fields}".encode()
        self._reward_fields = f"/reward{fields}".encode()
        self._rewards, self._event = [reward_template(value) for value in (0, 1)], b""
        self._turn = self._rng.randrange(len(templates))
        self._period = load.n_connections / load.pairs_per_second if load.pairs_per_second else 0.0
        self._offset = self._period * number / load.n_connections
        self._rest, self._in_reward, self._stopping, self._closed = b"", False, False, False
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.idle = asyncio.Event()

    async def connect(self) -> None:
        """Open the connection."""
        await self._loop.create_connection(lambda: self, "127.0.0.1", self._load.port)

    def start(self, now: float) -> None:
        """Begin with the first pair; in an open loop, connections are spread over one period."""
        self._due = now + self._offset
        self._next_pair()

    def stop(self) -> None:
        """Finish the pair in flight, then set ``idle``."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self.idle.set()

    def close(self) -> None:
        """Close the connection at once."""
        self._stopping = self._closed = True
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is one by its methods only

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
        if not is_complete(data):
            self._rest = data
            return
        self._rest = b""
        if not data.startswith(b"HTTP/1.1 2"):
            self._recorder.window.fail(data[9:12].decode("latin-1"), data[-FIRST_BODY:].decode("latin-1"))
            self._in_reward = False
            self._wait(BACK_OFF)
            return
        seconds = time.perf_counter() - self._began
        if self._in_reward:
            self._in_reward = False
            self._recorder.window.rewards.append(seconds)
            self._next_pair()
            return
        self._recorder.window.ranks.append(seconds)
        if self._load.rewards:
            self._send_reward()
        else:
            self._next_pair()

    def connection_lost(self, error: Exception | None) -> None:
        if self._closed:
            return
        if self._timer is not None:
            self._timer.cancel()  # no request was in flight
            self._timer = None
        elif not self.idle.is_set():
            self._recorder.window.fail("connection", f"connection lost: {error}")
        self._rest, self._in_reward = b"", False
        self.idle.set()
        self._reconnecting = self._loop.create_task(self._reconnect())

    async def _reconnect(self) -> None:
        while not self._stopping:
            await asyncio.sleep(BACK_OFF)
            try:
                await self.connect()
            except OSError as error:
                self._recorder.window.fail("connection", str(error))
            else:
                self.idle.clear()
                self._next_pair()
                return

    def _next_pair(self) -> None:
        """Send the next rank now, or when the schedule says so."""
        if self._stopping:
            self.idle.set()
        elif not self._period:
            self._began = time.perf_counter()
            self._send_rank()
        else:
            wait = self._due - time.perf_counter()
            if wait > 0:
                self._timer = self._loop.call_later(wait, self._send_due)
            else:
                self._send_due()

    def _send_due(self) -> None:
        self._timer = None
        self._began = self._due
        self._due += self._period
        self._send_rank()

    def _wait(self, seconds: float) -> None:
        if self._stopping:
            self.idle.set()
        else:
            self._timer = self._loop.call_later(seconds, self._retry)

    def _retry(self) -> None:
        self._timer = None
        self._next_pair()

    def _send_rank(self) -> None:
        before_event, before_user, before_moment, rest = self._templates[self._turn]
        self._turn = (self._turn + 1) % len(self._templates)
        user = USER % int(self._rng.random() * self._load.n_users)
        moment = MOMENT % int(self._rng.random() * 1e6)
        event = self._event = new_event_id().encode()
        parts = (before_event, event, before_user, user.encode(), before_moment, moment.encode(), rest)
        self.transport.write(b"".join((self._rank_head, event, b"\r\n", *parts)))

    def _send_reward(self) -> None:
        self._in_reward = True
        before_id, rest = self._rewards[self._rng.random() < 0.5]
        reward_id = new_event_id().encode()
        self._began = time.perf_counter()
        head = (b"POST /v1/loops/default/events/", self._event, self._reward_fields, reward_id, b"\r\n")
        self.transport.write(b"".join((*head, before_id, reward_id, rest)))


def is_complete(data: bytes) -> bool:
    """Return whether ``data`` holds a whole response; one without Content-Length has no body."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    at = data.find(b"content-length: ", 0, end)
    return at < 0 or len(data) >= end + 4 + int(data[at + 16 : data.index(b"\r", at)])


def generate(load: Load, report: Callable[[Window], object]) -> None:
    """Run the load; ``report`` gets each window when it ends, then a last one of requests that were still in flight."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_generate(load, report))


async def _generate(load: Load, report: Callable[[Window], object]) -> None:
    recorder = Recorder()
    templates = [template(body) for body in rank_bodies(load.n_lists, inline=load.inline)]
    connections = [Connection(load, number, templates, recorder) for number in range(load.n_connections)]
    for connection in connections:
        await connection.connect()
    recorder.next_window()  # opening connections is not measured
    began = time.perf_counter()
    for connection in connections:
        connection.start(began)
    n_windows = max(1, round(load.seconds / load.window)) if load.window else 1
    for k in range(1, n_windows):
        await asyncio.sleep(began + k * load.window - time.perf_counter())
        report(recorder.next_window())
    await asyncio.sleep(began + load.seconds - time.perf_counter())
    report(recorder.next_window())
    await _drain(connections, recorder.window)
    recorder.window.last = True
    report(recorder.next_window())


async def _drain(connections: list[Connection], window: Window) -> None:
    """Let every event complete, then close the connections."""
    for connection in connections:
        connection.stop()
    try:
        async with asyncio.timeout(DRAIN_SECONDS):
            for connection in connections:
                await connection.idle.wait()
    except TimeoutError:
        window.fail("timeout", f"no response within {DRAIN_SECONDS:.0f} s after the load stopped")
    for connection in connections:
        connection.close()


def template(body: bytes) -> Template:
    """Return a rank body as the parts between which an event's id, a user and a moment go."""
    before_event, rest = body.split(EVENT.encode())
    before_user, rest = rest.split((USER % 0).encode())
    before_moment, rest = rest.split((MOMENT % SOME_MOMENT).encode())
    return Template(_length(body) + before_event, before_user, before_moment, rest)


def reward_template(value: int) -> list[bytes]:
    """Return the end of a reward's head and its body, cut where its id goes."""
    request = CALLS.reward(EVENT, value, None, EVENT)
    assert request is not None
    return (_length(request.body) + request.body).split(EVENT.encode())


def _length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(body)


def catalogue(seed: int = 0) -> list[Row]:
    """Return the actions: 20 features each."""
    rng = np.random.default_rng(seed)
    return [{"id": f"article-{k}", "features": _features(rng, 20)} for k in range(N_ACTIONS)]


def rank_bodies(n: int, *, inline: bool, seed: int = 0) -> list[bytes]:
    """Return rank requests for 10 actions of the catalogue and a context of 10 features; about 4 KB if ``inline``."""
    rng = np.random.default_rng(seed + 1)
    actions = [action if inline else action["id"] for action in catalogue(seed)]
    order = rng.random((n, N_ACTIONS)).argpartition(10, axis=1)[:, :10]
    return [_body(_features(rng, 9), [actions[k] for k in chosen]) for chosen in order]


def _body(context: dict[str, float], actions: list[Any]) -> bytes:
    moment = {"moment": SOME_MOMENT / 1e6}
    request = RankRequest(actions=actions, context={**moment, **context}, user=USER % 0, event_id=EVENT)
    return CALLS.rank(request, None).request.body


def _features(rng: np.random.Generator, n: int) -> dict[str, float]:
    return {f"feature{k:02d}": round(float(value), 3) for k, value in enumerate(rng.random(n))}

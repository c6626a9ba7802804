"""Personal models by the million: memory, time to start, and the latency of a rank call for a random user.

``python benchmarks/many_users.py [N ...]`` lets one user teach a service, gives that user's model to N users, starts
``fedres serve`` again, and sends rank calls one at a time. The defaults are 1,000 and 1,000,000.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
from service_processes import memory_mb, service

from service.learn.learner import Learner
from service.learn.snapshots import Snapshots
from service.log.opening import Store, open_log
from service.log.records import TICK, Record
from service.models.published import Publisher, make_current
from service.settings import DEFAULT_LOOP

EVENTS = 300  # events of the first user
CALLS = 2_000


def teach(folder: Path) -> None:
    """Let the first user decide and be rewarded, until their model has a block for every action and topic."""
    with service(folder, n_keys=0) as running:
        rng = random.Random(1)
        for _ in range(EVENTS):
            status, body = running.request("POST", "/v1/rank", _request("user-0", rng))
            if status != 200:
                raise RuntimeError(f"rank was answered {status}")
            running.request("POST", f"/v1/events/{json.loads(body)['event_id']}/reward", {"value": rng.random()})


def fill(path: Path, n_users: int) -> int:
    """Give the first user's model to as many users, in the store's snapshot; return its bytes."""
    store = Store(path)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        run = Path(folder)
        make_current(run)
        snapshots = Snapshots(store.beside("-models"))
        log = open_log(store)
        learner = Learner(log, None, snapshots, Publisher(run, 1), snapshot_seconds=1e9)  # type: ignore[arg-type]
        learner.open()
        head = learner.loops[DEFAULT_LOOP].metadata
        data = learner.personal.data(head.id, "user-0")
        assert data is not None
        for user in range(n_users):
            learner.personal.put(head.id, f"user-{user}", data.tobytes())
            if user % 50_000 == 49_999:
                learner.saver.flush(learner.loops)
                print(f"  {user + 1:,} of {n_users:,} users", flush=True)
        log.append([[Record(DEFAULT_LOOP, TICK)]])  # something new, so that the loop is saved with its users
        while learner.step_log():
            pass
        learner.close()
    return data.nbytes


def _request(user: str, rng: random.Random) -> dict[str, Any]:
    actions = [{"id": f"a{k}", "features": {"topic": f"t{k % 4}"}} for k in range(10)]
    return {"user": user, "context": {f"x{k}": rng.random() for k in range(8)}, "actions": actions}


def latencies(port: int, n_users: int) -> tuple[float, float]:
    """Return p50 and p99 of rank calls, in milliseconds, one at a time."""
    connection, rng, seconds = HTTPConnection("127.0.0.1", port, timeout=30), random.Random(0), []
    for _ in range(CALLS):
        body = _request(f"user-{rng.randrange(n_users)}", rng)
        began = time.perf_counter()
        connection.request("POST", "/v1/rank", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        reply.read()
        if reply.status != 200:
            raise RuntimeError(f"rank was answered {reply.status}")
        seconds.append(time.perf_counter() - began)
    p50, p99 = np.quantile(seconds, (0.5, 0.99)) * 1e3
    return float(p50), float(p99)


def main() -> None:
    numbers = [int(text) for text in sys.argv[1:]] or [1_000, 1_000_000]
    names = "users | model bytes | p50 ms | p99 ms | published MB | snapshot MB | start s | learner MB | ranker MB"
    print(f"| {names} |\n|{'---|' * 9}")
    for n_users in numbers:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "service" / "bench.db"
            path.parent.mkdir()
            teach(path.parent)
            size = fill(path, n_users)
            snapshot = path.with_name(path.name + "-models").stat().st_size / 1e6
            began = time.perf_counter()
            with service(path.parent, n_keys=0) as running:
                start = time.perf_counter() - began
                status = running.status()
                if status["rebuilt"] or status["loops"][DEFAULT_LOOP]["users"] != n_users:
                    raise RuntimeError("the service did not take over the users' models")
                p50, p99 = latencies(running.port, n_users)
                memory = memory_mb(running.roles())
                published = running.status()["published_bytes"] / 1e6
        pss = [f"{memory.get(role, 0.0):,.0f}" for role in ("learner", "ranker")]
        row = [
            f"{n_users:,}",
            f"{size:,}",
            f"{p50:.1f}",
            f"{p99:.1f}",
            f"{published:,.0f}",
            f"{snapshot:,.0f}",
            f"{start:.0f}",
            *pss,
        ]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()

"""A noisy neighbor: one loop does its worst, while another loop decides, learns and reports on a schedule."""

import asyncio
import http.client
import itertools
import json
import multiprocessing
import os
import secrets
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
sys.path[1:1] = [str(ROOT / "benchmarks"), str(ROOT / "tests" / "service")]

from attacks import ATTACKS, loop_of  # noqa: E402
from load_generator import Load, generate  # noqa: E402
from service_processes import service  # noqa: E402

# Decisions of the quiet loop: latencies count from the time at which each was due.
SECONDS = 6.0
PER_SECOND = 100
SETTLE_SECONDS = 2.0

# Limits of the harm to the quiet loop: times the p99 alone, and seconds.
MOST_TIMES = 3.0
MOST_LEARNED = 5.0
MOST_REPORT = 10.0
GIVE_UP = 120.0

_spawn = multiprocessing.get_context("spawn")


def disturb(url, name, prepared):
    """Send an attack's calls until SIGTERM, with little work of our own: the service's is to be measured."""
    os.nice(19)
    attack = ATTACKS[name]
    path = f"/v1/loops/{loop_of(name)}"
    headers = {"Content-Type": "application/json"}
    # Equal bodies are written once.
    written = {}

    def content(call):
        key = id(call.body)
        if key not in written:
            written.clear()
            written[key] = call, call.content()
        return written[key][1]

    async def send(http, call):
        await http.request(call.method, call.path, content=content(call), headers=headers)

    async def prepare(http):
        await http.post("/v1/loops", json={"name": loop_of(name), "settings": dict(attack.settings)})
        for call in attack.before(path):
            await send(http, call)
        prepared.set()

    async def ask(http):
        for call in attack.calls(path):
            try:
                await send(http, call)
            except httpx.HTTPError:
                await asyncio.sleep(0.1)

    async def all_of_them():
        limits = httpx.Limits(max_connections=attack.connections)
        async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False, limits=limits) as http:
            await prepare(http)
            tasks = [asyncio.ensure_future(ask(http)) for _ in range(attack.connections)]
            stop = [task.cancel for task in tasks]
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: [end() for end in stop])
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(all_of_them())


def p99(port):
    """Return the 99th percentile of the latency of decisions for the default loop in milliseconds, and failures."""
    load = Load(port, inline=True, rewards=False, seconds=SECONDS, n_connections=50, pairs_per_second=PER_SECOND)
    windows = []
    generate(load, windows.append)
    failures = sum(windows[0].failures.values())
    return windows[0].summary()["p99"], failures


def call(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GIVE_UP)
    headers = {"Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


def learned_after(port):
    """Return the seconds until the default loop has learned a reward that is sent now."""
    event = secrets.token_urlsafe(16)
    call(port, "POST", "/v1/rank", {"event_id": event, "user": "someone", "actions": ["a", "b"]})
    began = time.monotonic()
    call(port, "POST", f"/v1/events/{event}/reward", {"value": 1.0})
    while time.monotonic() - began < GIVE_UP:
        _, content = call(port, "GET", "/v1/status")
        if json.loads(content)["loops"]["default"]["learner_lag_records"] == 0:
            break
        time.sleep(0.05)
    return time.monotonic() - began


def report_after(port):
    """Return the seconds that a report of the default loop takes."""
    began = time.monotonic()
    status, _ = call(port, "GET", "/v1/report")
    return time.monotonic() - began if status == 200 else GIVE_UP


class Readiness:
    """Asks for ``/readyz`` four times a second, and counts what it answers."""

    def __init__(self, port):
        self.port = port
        self.statuses = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._ended.set()
        self._thread.join()

    def _ask(self):
        while not self._ended.wait(0.25):
            self.statuses.append(call(self.port, "GET", "/readyz")[0])

    def share(self):
        return sum(status == 200 for status in self.statuses) / max(1, len(self.statuses))


def beside(running, name):
    """Return what the default loop notices of one attack."""
    url = f"http://127.0.0.1:{running.port}"
    prepared = _spawn.Event()
    process = _spawn.Process(target=disturb, args=(url, name, prepared))
    process.start()
    assert prepared.wait(GIVE_UP), f"{name} was not prepared within {GIVE_UP} s"
    time.sleep(SETTLE_SECONDS)
    with Readiness(running.port) as readiness:
        milliseconds, failures = p99(running.port)
        learned = learned_after(running.port)
        report = report_after(running.port)
    process.terminate()
    process.join()
    call(running.port, "DELETE", f"/v1/loops/{loop_of(name)}")
    return {
        "ms": milliseconds,
        "failures": failures,
        "learned": learned,
        "report": report,
        "ready": readiness.share(),
    }


def measure(n_rounds, names=tuple(ATTACKS)):
    """Return the p99 alone, and what each attack lets the default loop notice in each round: they take turns."""
    alone = []
    noticed = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder, service(Path(folder) / "service", n_keys=0) as running:
        # The first requests are slower.
        p99(running.port)
        for name in itertools.chain.from_iterable(itertools.repeat(names, n_rounds)):
            milliseconds, _ = p99(running.port)
            alone.append(milliseconds)
            noticed[name].append(beside(running, name))
            last = noticed[name][-1]
            print(f"{name}: alone {milliseconds:.1f} ms, {last}", file=sys.stderr, flush=True)
    return alone, noticed


def median(rounds, figure):
    return statistics.median(each[figure] for each in rounds)


def noisy_neighbours(first, n):
    """Measure some rounds; what the default loop notices above the bounds is a failure."""
    alone, noticed = measure(n)
    usual = statistics.median(alone)
    failures = []
    figures = {"ms alone": round(usual, 1)}
    for name, rounds in noticed.items():
        times = median(rounds, "ms") / usual
        learned = median(rounds, "learned")
        report = median(rounds, "report")
        ready = median(rounds, "ready")
        refused = median(rounds, "failures")
        figures[name] = f"{times:.1f} × p99, learned {learned:.1f} s, report {report:.1f} s, ready {ready:.0%}"
        if times > MOST_TIMES:
            failures.append(f"{name}: {times:.1f} times the p99 alone")
        if learned > MOST_LEARNED:
            failures.append(f"{name}: learned after {learned:.1f} s")
        if report > MOST_REPORT:
            failures.append(f"{name}: a report took {report:.1f} s")
        if ready < 1:
            failures.append(f"{name}: ready for {ready:.0%} of the time")
        if refused:
            failures.append(f"{name}: {refused} decisions failed")
    return failures, figures


if __name__ == "__main__":
    failures, figures = noisy_neighbours(0, 1)
    for name, figure in figures.items():
        print(f"{name}: {figure}")
    print("\n".join(failures) or "nothing noticed")
    sys.exit(bool(failures))

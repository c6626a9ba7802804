"""A noisy neighbor: one loop at its limits, while decisions for another loop are timed on a schedule."""

import asyncio
import json
import multiprocessing
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from load_generator import Load, generate
from service_processes import service

NOISY = "/v1/loops/noisy"
CONNECTIONS = 4  # of the noisy client
SECONDS, PER_SECOND = 6.0, 100  # of the other one: decisions, latencies from the time each was due
SETTLE_SECONDS = 2.0
MOST = 20.0  # times the p99 without a neighbor: a decision waits for a few of the largest requests, of up to 28 ms

_spawn = multiprocessing.get_context("spawn")


def rank(n_actions, n_context, n_features, *, explain=False, user="u"):
    context = {f"c{k}": random.random() for k in range(n_context)}
    features = {f"f{k}": random.random() for k in range(n_features)}
    actions = [{"id": f"a{k}", "features": features} for k in range(n_actions)]
    return {"user": user, "context": context, "actions": actions, "explain": explain}


def noises():
    """Return the largest requests that are legal, and those that read the most: method, path and body."""
    slots = {name: value for name, value in rank(500, 20, 10).items() if name != "explain"}
    return {
        "rank": ("POST", f"{NOISY}/rank", rank(500, 20, 15)),
        "batch": ("POST", f"{NOISY}/rank/batch", {"requests": [rank(100, 40, 4) for _ in range(60)]}),
        "explained": ("POST", f"{NOISY}/rank/batch", {"requests": [rank(500, 250, 0, explain=True)] * 15}),
        "slots": ("POST", f"{NOISY}/rank/slots", {**slots, "slots": [{"id": f"s{k}"} for k in range(4)]}),
        "refused": ("POST", f"{NOISY}/rank", rank(500, 250, 20)),
        "export": ("GET", f"{NOISY}/events", None),
        "report": ("GET", f"{NOISY}/report", None),
        "evaluation": ("POST", f"{NOISY}/evaluations", {"policies": ["uniform"]}),
    }


def disturb(url, name):
    """Ask for the same over and over, until told to stop, by little work of our own: that is not the service's."""
    os.nice(19)
    method, path, body = noises()[name]
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}

    async def ask():
        async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as http:
            while True:
                await http.request(method, path, content=content, headers=headers)

    async def all_of_them():
        tasks = [asyncio.ensure_future(ask()) for _ in range(CONNECTIONS)]
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: [task.cancel() for task in tasks])
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(all_of_them())


def p99(port):
    """Return the 99th percentile of the latency of decisions for the default loop, in milliseconds."""
    load = Load(port, inline=True, rewards=False, seconds=SECONDS, n_connections=50, pairs_per_second=PER_SECOND)
    windows = []
    generate(load, windows.append)
    assert not windows[0].failures, windows[0].first_failure
    return windows[0].summary()["p99"]


async def teach(url):
    """Give the noisy loop something to export and to evaluate."""
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        (await http.post("/v1/loops", json={"name": "noisy"})).raise_for_status()
        for _ in range(40):
            body = {"requests": [rank(10, 8, 3, user=f"u{k}") for k in range(50)]}
            for result in (await http.post(f"{NOISY}/rank/batch", json=body)).json()["results"]:
                value = {"value": random.random()}
                (await http.post(f"{NOISY}/events/{result['event_id']}/reward", json=value)).raise_for_status()


def latencies(n_rounds):
    """Return the p99 of each round without a neighbor, and beside each noise: they take turns."""
    alone, beside = [], {name: [] for name in noises()}
    with tempfile.TemporaryDirectory() as folder, service(Path(folder) / "service", n_keys=0) as running:
        url = f"http://127.0.0.1:{running.port}"
        asyncio.run(teach(url))
        p99(running.port)  # the first requests are slower
        for _ in range(n_rounds):
            for name, measured in beside.items():
                alone.append(p99(running.port))
                process = _spawn.Process(target=disturb, args=(url, name))
                process.start()
                time.sleep(SETTLE_SECONDS)
                measured.append(p99(running.port))
                process.terminate()
                process.join()
    return alone, beside


def noisy_neighbours(first, n):
    """Measure some rounds; a median above ``MOST`` times the median alone is a failure."""
    alone, beside = latencies(n)
    usual = statistics.median(alone)
    ratios = {name: statistics.median(measured) / usual for name, measured in beside.items()}
    failures = [f"{name}: {ratio:.1f} times the p99 alone" for name, ratio in ratios.items() if ratio > MOST]
    figures = {f"× beside {name}": round(ratio, 2) for name, ratio in ratios.items()}
    return failures, {"ms alone": round(usual, 1), **figures}

"""A noisy neighbour: one loop at its limits, while decisions for another loop are timed on a schedule."""

import asyncio
import multiprocessing
import random
import signal
import statistics
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np

from service.bench_processes import service

NOISY = "/v1/loops/noisy"
CONNECTIONS = 4  # of the noisy client
SECONDS, PER_SECOND = 6.0, 100  # of the other one: decisions, latencies from the time each was due
SETTLE_SECONDS = 2.0
MOST = 3.0  # times the p99 without a neighbour

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
        "rank": ("POST", f"{NOISY}/rank", rank(500, 20, 20)),
        "batch": ("POST", f"{NOISY}/rank/batch", {"requests": [rank(100, 40, 4) for _ in range(60)]}),
        "explained": ("POST", f"{NOISY}/rank/batch", {"requests": [rank(500, 250, 0, explain=True)] * 15}),
        "slots": ("POST", f"{NOISY}/rank/slots", {**slots, "slots": [{"id": f"s{k}"} for k in range(4)]}),
        "refused": ("POST", f"{NOISY}/rank", rank(500, 250, 20)),
        "export": ("GET", f"{NOISY}/events", None),
        "report": ("GET", f"{NOISY}/report", None),
        "evaluation": ("POST", f"{NOISY}/evaluations", {"policies": ["uniform"]}),
    }


def disturb(url, name):
    """Ask for the same over and over, until told to stop."""
    method, path, body = noises()[name]

    async def ask():
        async with httpx.AsyncClient(base_url=url, timeout=600, trust_env=False) as http:
            while True:
                await http.request(method, path, json=body)

    async def all_of_them():
        tasks = [asyncio.ensure_future(ask()) for _ in range(CONNECTIONS)]
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: [task.cancel() for task in tasks])
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(all_of_them())


async def p99(url):
    """Return the 99th percentile of the latency of decisions for the default loop, in milliseconds."""
    found, body = [], rank(10, 8, 3)
    limits = httpx.Limits(max_connections=50, max_keepalive_connections=50)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, trust_env=False) as http:

        async def ask(due):
            (await http.post("/v1/rank", json=body)).raise_for_status()
            found.append(time.perf_counter() - due)

        for _ in range(20):
            await ask(0.0)
        found.clear()
        began, tasks = time.perf_counter(), []
        for k in range(int(SECONDS * PER_SECOND)):
            due = began + k / PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.ensure_future(ask(due)))
        await asyncio.gather(*tasks)
    return float(np.quantile(found, 0.99)) * 1e3


async def teach(url):
    """Give the noisy loop something to export and to evaluate."""
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        (await http.post("/v1/loops", json={"name": "noisy"})).raise_for_status()
        for _ in range(40):
            body = {"requests": [rank(10, 8, 3, user=f"u{k}") for k in range(50)]}
            for result in (await http.post(f"{NOISY}/rank/batch", json=body)).json()["results"]:
                value = {"value": random.random()}
                (await http.post(f"{NOISY}/events/{result['event_id']}/reward", json=value)).raise_for_status()


def ratios(n_rounds):
    """Return, for each noise, the p99 beside it as multiples of the p99 alone in the same round."""
    found = {name: [] for name in noises()}
    with tempfile.TemporaryDirectory() as folder, service(Path(folder) / "service", n_keys=0) as running:
        url = f"http://127.0.0.1:{running.port}"
        asyncio.run(teach(url))
        for _ in range(n_rounds):
            alone = asyncio.run(p99(url))
            for name, measured in found.items():
                process = _spawn.Process(target=disturb, args=(url, name))
                process.start()
                time.sleep(SETTLE_SECONDS)
                measured.append(asyncio.run(p99(url)) / alone)
                process.terminate()
                process.join()
    return found


def noisy_neighbours(first, n):
    """Measure some rounds; a median above ``MOST`` is a failure."""
    medians = {name: statistics.median(measured) for name, measured in ratios(n).items()}
    failures = [f"{name}: {ratio:.1f} times the p99 alone" for name, ratio in medians.items() if ratio > MOST]
    return failures, {f"most × beside {name}": round(ratio, 2) for name, ratio in medians.items()}

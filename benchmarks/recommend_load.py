"""What recommendations cost: ``python benchmarks/recommend_load.py [ITEMS ...] [--calls N] [--sustained SECONDS]``.

A real service with one ranker and catalogues of 1,000, 10,000 and 100,000 items, each with five features and its id, is
taught by some pages, then asked for pages of ten items, a rank call with ten actions by id after each of them. CPU is
what the ranker's process used for one call (``/proc``, Linux only), wall is what the caller waited, commit included.

With ``--sustained``, connections in a closed loop for so many seconds instead: one request in four is for a page, the
others are a rank call and a reward for each of the two. Meanwhile items change and are hidden, and pages asked for
until they show it.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from service_processes import Service, memory_mb, service
from service_processes import cpu_seconds as cpu_by_role

PUT = 2_500  # items in one call
PAGES = 60  # pages with ten rewards each, before measuring
USERS = 20
ROLES = ("ranker", "log", "learner")
LOOP = "pages"  # of its own: the service of benchmarks comes with a catalogue


def item(k: int, rng: random.Random) -> dict[str, Any]:
    features = {
        "genre": f"g{k % 20}",
        "maker": f"m{rng.randrange(500)}",
        "price": rng.randrange(1, 100),
        "year": rng.randrange(1950, 2026),
        "new": k % 3 == 0,
    }
    return {"id": f"i{k}", "features": features}


def fill(running: Service, n_items: int) -> float:
    """Put items into the catalogue; return how many seconds that took."""
    rng, began = random.Random(1), time.perf_counter()
    for first in range(0, n_items, PUT):
        put = [item(k, rng) for k in range(first, min(first + PUT, n_items))]
        ask(running, "PUT", "/actions", {"put": put}, 204)
    return time.perf_counter() - began


def ask(running: Service, method: str, path: str, body: Any, expected: int = 200) -> Any:
    status, reply = running.request(method, f"/v1/loops/{LOOP}{path}" if path else "/v1/loops", body)
    if status != expected:
        raise RuntimeError(f"{path} was answered {status}: {reply.decode()}")
    return json.loads(reply) if reply else None


def page(k: int) -> dict[str, Any]:
    return {"n": 10, "user": f"u{k % USERS}", "context": {"hour": k % 24, "country": f"c{k % 7}", "age": 20 + k % 50}}


def teach(running: Service) -> None:
    for k in range(PAGES):
        for shown in ask(running, "POST", "/recommend", page(k))["items"]:
            value = float(shown["id"].endswith("3"))
            ask(running, "POST", f"/events/{shown['event_id']}/reward", {"value": value}, 204)


def cpu_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def timed(running: Service, pid: int, path: str, body: Any) -> tuple[float, float]:
    """Return CPU and wall milliseconds of a call."""
    cpu, wall = cpu_seconds(pid), time.perf_counter()
    ask(running, "POST", path, body)
    return 1e3 * (cpu_seconds(pid) - cpu), 1e3 * (time.perf_counter() - wall)


def measure(n_items: int, n_calls: int) -> list[str]:
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), n_keys=0) as running:
        ask(running, "POST", "", {"name": LOOP}, 201)
        filled = fill(running, n_items)
        began = time.perf_counter()
        ask(running, "POST", "/recommend", page(0))
        first = time.perf_counter() - began
        teach(running)
        [pid] = [pid for pid, role in running.roles().items() if role == "ranker"]
        pages, ranks, rng = [], [], random.Random(2)
        for k in range(n_calls):
            pages.append(timed(running, pid, "/recommend", page(k)))
            actions = [{"id": f"i{number}"} for number in rng.sample(range(n_items), 10)]
            request = {name: value for name, value in page(k).items() if name != "n"} | {"actions": actions}
            ranks.append(timed(running, pid, "/rank", request))
        began = time.perf_counter()
        hidden = {"put": [{"id": "i0", "features": {"genre": "g0", "_available": False}}]}
        ask(running, "PUT", "/actions", hidden, 204)
        ask(running, "POST", "/recommend", page(0))
        changed = time.perf_counter() - began
        memory = memory_mb(running.roles())["ranker"]
    quantiles = [*np.quantile(pages, (0.5, 0.99), axis=0).T.ravel(), *np.quantile(ranks, (0.5, 0.99), axis=0).T.ravel()]
    times = [f"{value:.1f}" for value in quantiles]
    return [f"{n_items:,}", *times, f"{1e3 * changed:.0f}", f"{first:.1f}", f"{filled:.0f}", f"{memory:,.0f}"]


def four_requests(running: Service, k: int, n_items: int, rng: random.Random) -> dict[str, list[float]]:
    """Ask for a page and for a decision, and reward both; return the milliseconds of each request."""
    times: dict[str, list[float]] = {"page": [], "rank": [], "reward": []}

    def timed_call(kind: str, path: str, body: Any, expected: int = 200) -> Any:
        began = time.perf_counter()
        reply = ask(running, "POST", path, body, expected)
        times[kind].append(1e3 * (time.perf_counter() - began))
        return reply

    shown = timed_call("page", "/recommend", page(k))["items"][0]
    actions = [{"id": f"i{number}"} for number in rng.sample(range(1, n_items), 10)]
    request = {name: value for name, value in page(k).items() if name != "n"} | {"actions": actions}
    decided = timed_call("rank", "/rank", request)
    for event, item in ((shown["event_id"], shown["id"]), (decided["event_id"], decided["action"])):
        timed_call("reward", f"/events/{event}/reward", {"value": float(item.endswith("3"))}, 204)
    return times


def change(running: Service, k: int, available: bool) -> float:
    """Change an item, or hide it; return the milliseconds until a page has it, or not any more."""
    only = {"n": 1, "filter": {"code": f"x{k}"}}
    put = [{"id": f"i{k}", "features": {"code": f"x{k}", "_available": available}}]
    began = time.perf_counter()
    ask(running, "PUT", "/actions", {"put": put}, 204)
    while (running.request("POST", f"/v1/loops/{LOOP}/recommend", only)[0] == 200) != available:
        pass
    return 1e3 * (time.perf_counter() - began)


def sustain(n_items: int, seconds: float, n_connections: int = 8) -> list[str]:
    """Return requests per second, CPU and wall milliseconds of requests and of changes, failures and memory."""
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), n_keys=0) as running:
        ask(running, "POST", "", {"name": LOOP}, 201)
        fill(running, n_items)
        teach(running)
        before, cpu = memory_mb(running.roles())["ranker"], cpu_by_role(running.roles())
        times_of_calls: list[dict[str, list[float]]] = []
        failures: list[str] = []
        ends = time.perf_counter() + seconds

        def connection(number: int) -> None:
            own, rng, k = Service(running.port, running.pid), random.Random(number), number
            while time.perf_counter() < ends:
                try:
                    times_of_calls.append(four_requests(own, k, n_items, rng))
                except RuntimeError as error:
                    failures.append(str(error))
                k += n_connections
            own.close()

        threads = [threading.Thread(target=connection, args=(number,)) for number in range(n_connections)]
        for thread in threads:
            thread.start()
        changes = [change(running, k // 2, k % 2 == 0) for k in range(10)]
        for thread in threads:
            thread.join()
        used = {role: used - cpu[role] for role, used in cpu_by_role(running.roles()).items()}
        lag, after = running.lag_records(), memory_mb(running.roles())["ranker"]
    if failures:
        print(f"FAILURES: {len(failures)}, the first: {failures[0]}")
    by_kind = [[each for one in times_of_calls for each in one[kind]] for kind in ("page", "rank", "reward")]
    times = [f"{value:.1f}" for own in by_kind for value in np.quantile(own, (0.5, 0.99))]
    n_requests = sum(map(len, by_kind))
    total = [f"{n_requests / seconds:,.0f}", *[f"{1e3 * used[role] / n_requests:.2f}" for role in ROLES]]
    rest = [f"{max(changes):.0f}", str(len(failures)), f"{lag:,}", f"{before:,.0f}", f"{after:,.0f}"]
    return [f"{n_items:,}", *total, *times, *rest]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("items", nargs="*", type=int, default=[1_000, 10_000, 100_000])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--sustained", type=float, default=0.0, metavar="SECONDS")
    options = parser.parse_args()
    if options.sustained:
        kinds = [f"{call} {q}" for call in ("page", "rank", "reward") for q in ("p50", "p99")]
        cpu = [f"{role} CPU ms" for role in ROLES]
        head = [
            "items",
            "requests/s",
            *cpu,
            *kinds,
            "slowest change ms",
            "failures",
            "learner lag",
            "ranker MB",
            "MB after",
        ]
        print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
        for n_items in options.items:
            print(f"| {' | '.join(sustain(n_items, options.sustained))} |", flush=True)
        return
    calls = [f"{call} {what} {q}" for call in ("page", "rank") for what in ("CPU", "wall") for q in ("p50", "p99")]
    names = ["items", *calls, "change + page ms", "first page s", "filled s", "ranker MB"]
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for n_items in options.items:
        print(f"| {' | '.join(measure(n_items, options.calls))} |", flush=True)


if __name__ == "__main__":
    main()

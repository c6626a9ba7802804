"""``python tools/faults/learning_lag.py``: the time from a reward's acknowledgement to a model that has it.

Clients ask at a steady rate for decisions, and reward each once it is there; another looks again and again how many
rewards the published model has learned. The k-th acknowledged reward is learned when that number reaches k.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[2] / "tests" / "service"))
sys.path.append(str(Path(__file__).parents[2] / "tests" / "service" / "faults"))

from fault_clients import Connection, request_for
from fault_run import Service

N_CONNECTIONS = 32


async def client(service, slots, acknowledged):
    """Take each slot, a number and a time, wait for that time, and ask and reward."""
    connection = Connection(service.whereabouts)
    for i, at in slots:
        await asyncio.sleep(at - time.monotonic())
        await connection.insist("POST", "/v1/rank", request_for(f"e{i}", i % 100, i % 24))
        await connection.insist("POST", f"/v1/events/e{i}/reward", {"value": (i % 7) / 7})
        acknowledged.append(time.monotonic())


async def watch(service, n, learned):
    """Note when the published model has learned how many rewards, until it is ``n``."""
    while not learned or learned[-1][1] < n:
        status = (await service.ask("GET", "/v1/status")).json()
        learned.append((time.monotonic(), status["loops"]["default"]["rewarded_events"]))
        await asyncio.sleep(0.005)


async def measure(rate, seconds, folder):
    """Return the decisions and rewards a second that were reached, and the lag of each reward in seconds."""
    service = Service(Path(folder, "store.db"))
    try:
        await service.start()
        n, begin = int(rate * seconds / 2), time.monotonic() + 0.5
        slots = [(i, begin + 2 * i / rate) for i in range(n)]
        acknowledged, learned = [], []
        await asyncio.gather(
            watch(service, n, learned),
            *(client(service, slots[k::N_CONNECTIONS], acknowledged) for k in range(N_CONNECTIONS)),
        )
    finally:
        await service.clear()
    times, counts = np.array(learned).T
    acknowledged = np.sort(acknowledged)
    lags = times[np.searchsorted(counts, np.arange(1, n + 1))] - acknowledged
    return 2 * n / (acknowledged[-1] - begin), np.maximum(lags, 0)


def main():
    parser = argparse.ArgumentParser(prog="python tools/faults/learning_lag.py", description=__doc__)
    parser.add_argument("--rate", type=float, default=1_000, help="decisions and rewards a second, all together")
    parser.add_argument("--seconds", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rate, lags = asyncio.run(measure(options.rate, options.seconds, folder))
    p50, p99 = np.quantile(lags, [0.5, 0.99]) * 1e3
    print(f"{rate:.0f} decisions and rewards a second: learned after {p50:.0f} ms (p50), {p99:.0f} ms (p99)")


if __name__ == "__main__":
    main()

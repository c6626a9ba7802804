"""Bytes that a decision and its reward take in the log of a running service.

``python benchmarks/log_bytes.py [N]`` plays N decisions of each kind (4,000 unless given) and prints a row for each.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from service_processes import Service, service

from service.demo import ARTICLES

WIDE = [
    {"id": article["id"], "features": {f"name-{j}": f"value-{j}-{k}" for j in range(10)}}
    for k, article in enumerate(ARTICLES)
]
KINDS: dict[str, list[dict[str, Any]]] = {
    "10 actions with 2 features each, in the request (the demo)": ARTICLES,
    "10 actions of the catalogue, by id": [{"id": article["id"]} for article in ARTICLES],
    "2 actions of the catalogue, by id": [{"id": article["id"]} for article in ARTICLES[:2]],
    "10 actions with 10 features each, in the request": WIDE,
    "50 actions with 10 features each, in the request": [
        {**action, "id": f"{action['id']}-{k}"} for k in range(5) for action in WIDE
    ],
}


def file_bytes(path: Path) -> int:
    """Return the size of a store that was closed."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return path.stat().st_size


def play(running: Service, actions: list[dict[str, Any]], n: int) -> None:
    rng = np.random.default_rng(0)
    for k in range(n):
        request = {"user": f"reader-{rng.integers(200)}", "context": {"when": ("morning", "evening")[k % 2]}}
        status, body = running.request("POST", "/v1/rank", {**request, "actions": actions})
        if status != 200:
            raise RuntimeError(f"rank was answered {status}: {body!r}")
        value = float(rng.random() < 0.4)
        running.request("POST", f"/v1/events/{json.loads(body)['event_id']}/reward", {"value": value})


def measure(actions: list[dict[str, Any]], n: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sizes = []
        for n_events in (0, n):
            with service(folder, n_keys=0) as running:
                if n_events == 0:
                    running.request("PUT", "/v1/actions", {"put": ARTICLES})
                play(running, actions, n_events)
            [store] = folder.glob("*.db")
            sizes.append(file_bytes(store))
        return (sizes[1] - sizes[0]) / n


def main() -> None:
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000
    for kind, actions in KINDS.items():
        print(f"| {kind} | {measure(actions, n):,.0f} |", flush=True)


if __name__ == "__main__":
    main()

"""One device of the fleet, in a process of its own: ``python fleet_device.py URL FOLDER``.

Its folder has ``plan.json`` and the task's rows in ``task.npz``. Rounds are paced by the clock, whatever the network
does. Each round is noted in ``rounds`` before the next, so that a process that was killed goes on where it was.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from fedres.client import DeviceClient

ACTION = "only"  # a prediction is the score of the one action there is


class Slow(httpx.BaseTransport):
    """A network that takes its time, and loses requests on their way there or answers on their way back."""

    def __init__(self, rng: np.random.Generator, seconds: float, loss: float) -> None:
        self._rng, self._seconds, self._loss = rng, seconds, loss
        self._inner = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        there, back = self._rng.uniform(0, self._seconds / 2, 2)
        lost_there, lost_back = self._rng.random(2) < self._loss / 2
        time.sleep(there)
        if lost_there:
            raise httpx.ConnectTimeout("lost on its way there", request=request)
        response = self._inner.handle_request(request)
        response.read()
        time.sleep(back)
        if lost_back:
            raise httpx.ReadTimeout("lost on its way back", request=request)
        return response


def run(url: str, folder: Path) -> None:
    plan: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    task = np.load(folder / "task.npz")
    seen = set(plan["global_features"])
    rng = np.random.default_rng([plan["seed"], time.time_ns()])  # a restart meets other weather
    transport = Slow(rng, plan["latency"], plan["loss"])
    done, burst = rounds_of(folder), plan["burst"]
    how = {"learner": plan["learner"], "sync_seconds": None if burst else 0.01}
    with DeviceClient(url, plan["client"], folder, loop="fleet", transport=transport, **how) as device:
        while device.sync().trouble or not device.status().model_version:
            pass  # until it has the loop's settings, and a model
        (folder / "ready").touch()
        start = wait_for(folder.parent / "start")
        for t in range(done, len(task["order"])):
            sleep_until(start + t * plan["round_seconds"])
            play(device, folder, t, task["features"][task["order"][t]], float(task["label"][task["order"][t]]), seen)
            if burst and (t + 1) % burst == 0:
                device.sync()
        while (synced := device.sync()).trouble or device.status().queued:
            print(synced, file=sys.stderr)
        replace(folder / "uploaded", "")
        wait_for(folder.parent / "examination")  # until all others have uploaded too
        while device.sync().trouble:
            pass
        examine(device, folder, task, seen)


def rounds_of(folder: Path) -> int:
    """Return how many rounds were noted; one that was cut short does not count."""
    file = folder / "rounds"
    lines = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    return len(lines)


def play(device: DeviceClient, folder: Path, t: int, x: np.ndarray, label: float, seen: set[int]) -> None:
    """Decide and reward once, also where the process was killed in between."""
    note, event = folder / "decided", f"round-{t}"
    decided = note.exists() and int(note.read_text()) == t
    if not decided and not device.status().waiting:
        device.decide(*split(x, seen), event_id=event)
    replace(note, str(t))
    if device.status().waiting:
        device.reward(event, label)
    with (folder / "rounds").open("a") as file:
        file.write(f"{t}\n")


def replace(file: Path, text: str) -> None:
    """Write a file as a whole: a process that is killed leaves the old one or the new one."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def examine(device: DeviceClient, folder: Path, task: Any, seen: set[int]) -> None:
    scores, version = [], 0
    for x in task["test_features"]:
        decision = device.decide(*split(x, seen))
        scores.append(decision.scores[ACTION])
        version = decision.model_version
    replace(folder / "result.json", json.dumps({"version": version, "scores": scores}))


def split(x: np.ndarray, seen: set[int]) -> tuple[dict[str, float], list[str], dict[str, float]]:
    """Return what to decide on: the features that the service may see, the one action, and the other features."""
    named = {f"x{j}": float(value) for j, value in enumerate(x)}
    context = {name: value for j, (name, value) in enumerate(named.items()) if j in seen}
    return context, [ACTION], {name: value for name, value in named.items() if name not in context}


def wait_for(file: Path) -> float:
    while not file.exists():
        time.sleep(0.05)
    return float(file.read_text())


def sleep_until(then: float) -> None:
    time.sleep(max(0.0, then - time.time()))


if __name__ == "__main__":
    logging.getLogger("fedres.client").setLevel(logging.ERROR)  # lost messages are intended here
    run(sys.argv[1], Path(sys.argv[2]))

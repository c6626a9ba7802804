"""Real devices against a real service, next to a simulation with the same delays.

``python benchmarks/device_fleet.py`` starts a service and twenty device processes on loopback, each with a task of its
own from digits. Requests take up to two seconds, some are lost on their way there or back, and processes are killed
and started again. Afterwards the log says in which order the uploads arrived and with which model each was made; a
simulation with plain learners in one process follows that order. It knows nothing of HTTP, hashing, queues or the
service's models.

With ``--learner residual-kalman`` the devices stand beside the same model without a network (``device_sharing.py``):
each device alone, and all of them with a sync after every second round. ``--burst N`` lets a device sync only after
every N rounds.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from device_sharing import Network, accuracy
from running import service

from fedres import LinearLearner
from libsvm_tasks.engine import run as replay
from libsvm_tasks.load import load
from libsvm_tasks.tasks import Task, paper_task

KALMAN = "residual-kalman"
RATE = 10.0  # η of both sides, VW's own
SETTINGS = {
    "model": "adagrad",
    "reward_range": [-1, 1],
    "learning_rate": RATE,
    "crosses": False,
    "policy": "greedy",
    "defences": {"max_norm": None, "client_share": None, "client_pull": None},
}


@dataclass(frozen=True, slots=True)
class Fleet:
    devices: int = 20
    rounds: int = 200
    round_seconds: float = 0.2
    latency: float = 2.0  # seconds that a request takes at most
    loss: float = 0.1  # share of requests that are lost
    kills: int = 20  # processes killed in mid-run
    learner: str = "vw"
    burst: int = 0  # rounds between two syncs; 0: all the time


@dataclass(frozen=True, slots=True)
class Upload:
    """A residual as the log has it."""

    client: str
    position: int
    version: int
    local: float


@dataclass(frozen=True, slots=True)
class Outcome:
    accuracy: dict[str, float]  # mean over devices: independent, without delay, real and perhaps simulated
    killed: int
    largest_difference: float | None = None  # between local predictions that were uploaded and the simulation's
    delay: np.ndarray | None = None  # uploads of the device itself that its model did not have, round by round


def play(fleet: Fleet, seed: int, folder: Path, progress: Progress) -> Outcome:
    """Return how a fleet did on a task, and how the simulation did."""
    task = paper_task(load("digits"), fleet.devices, seed=seed, local_features="all", n_rounds=fleet.rounds)
    folders = [folder / f"device-{i}" for i in range(fleet.devices)]
    for i, home in enumerate(folders):
        prepare(home, task, i, fleet, seed)
    with service(folder) as url:
        settings = {"model": KALMAN, "reward_range": [-1, 1]} if fleet.learner == KALMAN else SETTINGS
        httpx.post(f"{url}/v1/loops", json={"name": "fleet", "settings": settings}).raise_for_status()
        killed = drive(fleet, url, folders, np.random.default_rng(seed), progress)
    uploads = read_uploads(folder / "fedres.db")
    results = [json.loads((home / "result.json").read_text()) for home in folders]
    real = accuracies(np.array([result["scores"] for result in results]), task).mean()
    if fleet.learner == KALMAN:
        assert len(uploads) == fleet.devices * fleet.rounds, "every round was uploaded once"
        size = {"devices": fleet.devices, "rounds": fleet.rounds}
        alone, shared = accuracy(None, seed, **size), accuracy(Network(2), seed, **size)
        return Outcome({"independent": alone, "without_delay": shared, "real": real}, killed)
    simulation = Simulation(task, uploads)
    figures = {
        "independent": replay(task, "independent").accuracy.mean(),
        "without_delay": replay(task, "fedres", timing="on-arrival").accuracy.mean(),
        "simulated": simulation.accuracy([result["version"] for result in results]).mean(),
        "real": real,
    }
    return Outcome(figures, killed, simulation.largest_difference, np.array(simulation.delays))


def prepare(home: Path, task: Task, i: int, fleet: Fleet, seed: int) -> None:
    home.mkdir()
    plan = {
        "client": home.name,
        "seed": [seed, i],
        "learner": fleet.learner,
        "latency": fleet.latency,
        "loss": fleet.loss,
        "burst": fleet.burst,
        "round_seconds": fleet.round_seconds,
        "global_features": task.global_features.tolist(),
    }
    (home / "plan.json").write_text(json.dumps(plan))
    rows = {"features": task.features[i], "label": task.label[i], "order": task.order[i]}
    np.savez(home / "task.npz", test_features=task.test_features[i], **rows)


def drive(fleet: Fleet, url: str, folders: list[Path], rng: np.random.Generator, progress: Progress) -> int:
    """Start the devices, kill some of them now and then, and wait for their results; return how many were killed."""
    script = str(Path(__file__).with_name("fleet_device.py"))
    bar = progress.add_task("starting", total=fleet.devices * fleet.rounds)
    running = {home: subprocess.Popen([sys.executable, script, url, str(home)]) for home in folders}
    try:
        wait_for(running, "ready")
        start = time.time() + 0.5
        replace(folders[0].parent / "start", str(start))
        times = np.sort(rng.uniform(0.1, 0.8, fleet.kills)) * fleet.rounds * fleet.round_seconds + start
        for then in times:
            watch(folders, bar, progress, until=then)
            home = folders[int(rng.integers(len(folders)))]
            running[home].kill()
            running[home].wait()
            running[home] = subprocess.Popen([sys.executable, script, url, str(home)])
        while missing(running, "uploaded"):
            watch(folders, bar, progress, until=time.time() + 0.5)
        while not has_learned(url):  # else devices would be examined with models that change meanwhile
            time.sleep(0.05)
        replace(folders[0].parent / "examination", "0")
        wait_for(running, "result.json")
    finally:
        for process in running.values():
            process.terminate()
            process.wait()
        progress.remove_task(bar)
    return fleet.kills


def has_learned(url: str) -> bool:
    """Return whether the models that a service has published know all of its log."""
    status = httpx.get(f"{url}/v1/status").raise_for_status().json()
    return bool(status["learned_position"] >= status["position"])


def watch(folders: list[Path], bar: Any, progress: Progress, until: float) -> None:
    """Show how many rounds were played, until a time."""
    while (left := until - time.time()) > 0:
        files = [home / "rounds" for home in folders]
        done = sum(file.read_bytes().count(b"\n") for file in files if file.exists())
        progress.update(bar, completed=done, description="playing")
        time.sleep(min(left, 0.5))


def wait_for(running: dict[Path, subprocess.Popen[bytes]], name: str) -> None:
    while missing(running, name):
        time.sleep(0.1)


def missing(running: dict[Path, subprocess.Popen[bytes]], name: str) -> bool:
    """Return whether a device has yet to write a file; one that ended without is an error."""
    left = [home for home in running if not (home / name).exists()]
    for home in left:
        if running[home].poll() is not None and not (home / name).exists():
            raise SystemExit(f"{home.name} ended before it wrote {name}")
    return bool(left)


def replace(file: Path, text: str) -> None:
    new = file.with_suffix(".new")
    new.write_text(text)
    new.rename(file)


def read_uploads(store: Path) -> list[Upload]:
    """Return the residuals in the order in which they were learned, which is each device's own."""
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as db:
        order = "FROM log WHERE kind = 'residual' ORDER BY position"
        rows = db.execute(f"SELECT position, event, user, body {order}").fetchall()
    uploads, last = [], dict.fromkeys((client for _, _, client, _ in rows), 0)
    for position, event, client, body in rows:
        said, seq = json.loads(body), int(event.rpartition("/")[2])
        assert last[client] < seq, f"upload {seq} of {client} was learned after {last[client]}"
        last[client] = seq
        uploads.append(Upload(client, position, said["version"], said["local"]))
    return uploads


class Simulation:
    """Plain learners in one process that take the same steps in the same order."""

    def __init__(self, task: Task, uploads: list[Upload]) -> None:
        self.task = task
        n_clients, dim = len(task.order), task.features.shape[2]
        others = np.setdiff1d(np.arange(dim), task.global_features)
        self.order = np.concatenate([task.global_features, others])  # in which a device adds up
        self.local = [LinearLearner(dim + 1, RATE) for _ in range(n_clients)]
        self.shared = LinearLearner(len(task.global_features) + 1, RATE)
        self.models: dict[int, bytes] = {0: self.shared.get_state()}  # by position
        self.positions = [0]
        self.largest_difference = 0.0
        self.delays: list[int] = []
        self._run(uploads)

    def _run(self, uploads: list[Upload]) -> None:
        """Play uploads by position: each device's rounds are in order, and so are those of the shared model.

        A device's model when it made upload n had learned from its uploads before, arrived or not.
        """
        played = [0] * len(self.local)
        arrived: list[list[int]] = [[] for _ in self.local]
        for upload in uploads:
            i = int(upload.client.rpartition("-")[2])
            row = self.task.order[i, played[i]]
            x, label = self.task.features[i, row], float(self.task.label[i, row])
            inside = sum(position <= upload.version for position in arrived[i])
            self.delays.append(played[i] - inside)
            offset = self._model(upload.version).score(self._global(x))
            part = self.local[i].score(self._own(x))
            self.largest_difference = max(self.largest_difference, abs(part - upload.local))
            self.local[i].learn(self._own(x), label, offset)
            self.shared.learn(self._global(x), label, part)
            self.models[upload.position] = self.shared.get_state()
            self.positions.append(upload.position)
            arrived[i].append(upload.position)
            played[i] += 1
        assert played == [self.task.order.shape[1]] * len(played), "every round was uploaded once"

    def _global(self, x: np.ndarray) -> np.ndarray:
        return with_one(x[self.task.global_features])

    def _own(self, x: np.ndarray) -> np.ndarray:
        return with_one(x[self.order])

    def _model(self, version: int) -> LinearLearner:
        """Return the shared model with all uploads up to a version inside."""
        position = self.positions[np.searchsorted(self.positions, version, side="right") - 1]
        model = LinearLearner(len(self.task.global_features) + 1, RATE)
        model.set_state(self.models[position])
        return model

    def accuracy(self, versions: list[int]) -> np.ndarray:
        """Return each client's accuracy with the shared model of a version."""
        scores = []
        for i, version in enumerate(versions):
            shared, rows = self._model(version), self.task.test_features[i]
            scores.append([shared.score(self._global(x)) + self.local[i].score(self._own(x)) for x in rows])
        return accuracies(np.array(scores), self.task)


def with_one(x: np.ndarray) -> np.ndarray:
    """Return features with one more that is always there: the action's id."""
    return np.append(x, 1.0)


def accuracies(scores: np.ndarray, task: Task) -> np.ndarray:
    return np.mean(scores * task.test_label > 0, axis=1)


def report(outcomes: list[Outcome]) -> dict[str, Any]:
    """Return means over runs and their standard errors."""

    def mean(values: list[float]) -> dict[str, float]:
        spread = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
        return {"mean": float(np.mean(values)), "standard_error": float(spread)}

    rows = [one.accuracy for one in outcomes]
    result: dict[str, Any] = {name: mean([row[name] for row in rows]) for name in rows[0]}
    for name in rows[0].keys() & {"independent", "simulated"}:
        result[f"real - {name}"] = mean([row["real"] - row[name] for row in rows])
    result["killed"] = sum(one.killed for one in outcomes)
    differences = [one.largest_difference for one in outcomes if one.largest_difference is not None]
    if differences:
        result["local predictions differ by"] = max(differences)
    delays = [one.delay for one in outcomes if one.delay is not None]
    if delays:
        percentiles = np.percentile(np.concatenate(delays), (50, 90, 100)).tolist()
        result["delay in rounds"] = dict(zip(("p50", "p90", "max"), percentiles, strict=True))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--round-seconds", type=float, default=0.2)
    parser.add_argument("--latency", type=float, default=2.0, help="seconds that a request takes at most")
    parser.add_argument("--loss", type=float, default=0.1, help="share of requests that are lost")
    parser.add_argument("--kills", type=int, default=20, help="device processes killed in each run")
    parser.add_argument("--learner", choices=("vw", "linear", KALMAN), default="vw")
    parser.add_argument("--burst", type=int, default=0, help="rounds between two syncs of a device; 0: all the time")
    parser.add_argument("--runs", type=int, default=5, help="tasks, one after the other")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = vars(parser.parse_args())
    runs, seed, out = arguments.pop("runs"), arguments.pop("seed"), arguments.pop("json")
    outcomes, console = [], Console()
    with Progress(console=console, transient=True) as progress:
        for run in range(runs):
            with tempfile.TemporaryDirectory() as folder:
                outcomes.append(play(Fleet(**arguments), seed + run, Path(folder), progress))
    figures = report(outcomes)
    if out is not None:
        out.write_text(json.dumps(figures, indent=1) + "\n")
    show(figures, console)


def show(figures: dict[str, Any], console: Console) -> None:
    table = Table("", "accuracy", "standard error")
    for name, value in figures.items():
        if isinstance(value, dict) and "mean" in value:
            table.add_row(name.replace("_", " "), f"{value['mean']:.4f}", f"{value['standard_error']:.4f}")
    console.print(table)
    console.print(f"processes killed: {figures['killed']}")
    if (delay := figures.get("delay in rounds")) is not None:
        console.print(f"delay in rounds: median {delay['p50']:.0f}, p90 {delay['p90']:.0f}, longest {delay['max']:.0f}")
        console.print(f"largest difference of a local prediction: {figures['local predictions differ by']:.2g}")


if __name__ == "__main__":
    main()

"""What devices really send and are sent, for every global learner, until all predict equally well.

``python benchmarks/device_bytes.py`` starts a service and ten devices that share one task, made from digits: is it less
than five? They have no models of their own (the loop's ``personal`` is off), so that the global learners are compared
and nothing else. After every round each device syncs. Bytes are counted on the way, headers included, and held against
the papers' formulas, which count 32 bits a real and nothing else. Every learner has the same rows and runs until the
shared model reaches the target. Step sizes were chosen on other deals of the rows.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent))

from counting import Counted, counting
from running import service

from fedres import ofediq_parameters
from fedres.client import DeviceClient
from libsvm_tasks.load import load

BITS = 10  # of the shared models: 2^10 weights and a constant
DIM = 2**BITS + 1
RATE = 0.16  # η of AdaGrad
STEP = 0.02  # of the others, near the largest that is stable
ACTION = "only"  # a prediction is the score of the one action there is
WITH_FEATURES = {"id": ACTION, "features": {}}
N_FEATURES = 64
EVERY = 5  # rounds between two examinations
TEST_SHARE = 5  # one row in five is held out


class Deal(NamedTuple):
    """The same task for all devices, each with rows of its own."""

    features: np.ndarray  # (devices, rounds, 64)
    label: np.ndarray
    test_features: np.ndarray
    test_label: np.ndarray


def deal(n_devices: int, n_rounds: int, seed: int, n_test: int | None = None) -> Deal:
    """Return rows for every round; when a device has seen all of its own they come again in the same order."""
    data = load("digits")
    label = np.where(data.label < 5, 1.0, -1.0)
    order = np.random.default_rng(seed).permutation(len(label))
    test, train = np.split(order, [len(order) // TEST_SHARE])
    own = train[: len(train) // n_devices * n_devices].reshape(n_devices, -1)
    rows = own[:, np.arange(n_rounds) % own.shape[1]]
    test = test[:n_test]
    return Deal(data.features[rows], label[rows], data.features[test], label[test])


@dataclass(frozen=True, slots=True)
class Case:
    name: str  # as the table has it
    learner: str
    hyperparameters: dict[str, float]
    bits_up: float  # a round and device, by the paper's formula
    bits_down: float
    every: int = 1  # rounds between two syncs


@dataclass(frozen=True, slots=True)
class Outcome:
    case: Case
    rounds: int | None  # rounds until the required accuracy
    accuracy: float  # after the last round played
    counted: Counted  # until then
    played: int


def cases(n_clients: int) -> list[Case]:
    """Return the learners in settings of the papers."""
    common = {"n_clients": n_clients, "step_size": STEP}
    dense, triplet = 32.0 * DIM, 32.0 * (N_FEATURES + 2)
    few = ofediq_parameters(0.1, DIM)
    quantised = few.participation * (32 * few.blocks + DIM * (1 + math.log2(few.levels + 1)))
    epochs = {"participants": n_clients // 2, "buffer": 20, "batch": 10, "epochs": 2}
    return [
        Case("fedres-adagrad", "fedres-adagrad", {}, triplet, dense),
        Case("fedres-adagrad, sync every 10", "fedres-adagrad", {}, triplet, dense / 10, every=10),
        Case("fedres-sgd", "fedres-sgd", {**common, "step_size": STEP / n_clients}, triplet, dense),
        Case("fedogd", "fedogd", common, dense, dense),
        Case("ofedavg, p = .1", "ofedavg", {**common, "step_size": STEP / 4, "participation": 0.1}, 0.1 * dense, dense),
        Case("ofediq, 10% of the bits", "ofediq", {**common, **few._asdict()}, quantised, dense),
        Case("fedomd, τ = 5", "fedomd", {**common, "sync": 5}, dense / 5, dense / 5, every=5),
        Case("fedsea, τ = 5", "fedsea", {**common, "period": 5}, dense / 5, dense / 5, every=5),
        Case("dynamic-fedavg, half", "dynamic-fedavg", {**common, **epochs, "step_size": 2 * STEP}, dense / 2, dense),
    ]


def play(case: Case, task: Deal, url: str, target: float, folder: Path) -> Iterator[Outcome]:
    """Yield how far a learner is after every examination, until it has reached the target."""
    name = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in case.name)
    settings = {
        "model": "adagrad",
        "global_learner": case.learner,
        "hyperparameters": case.hyperparameters,
        "bits": BITS,
        "reward_range": [-1, 1],
        "learning_rate": RATE,
        "crosses": False,
        "personal": False,
        "policy": "greedy",
        "update_interval": 0.005,
        "defences": {"max_norm": None, "client_share": None, "client_pull": None},
    }
    httpx.post(f"{url}/v1/loops", json={"name": name, "settings": settings}, timeout=60).raise_for_status()
    host, port = url.removeprefix("http://").split(":")
    with counting(host, int(port)) as (through, counted), ExitStack() as stack:
        clients = [f"device-{i}" for i in range(len(task.label))]
        folders = [folder / name / client for client in clients]
        devices = [
            stack.enter_context(
                DeviceClient(through, *named, loop=name, learner="linear", sync_seconds=None, open_seconds=0)
            )
            for named in zip(clients, folders, strict=True)
        ]
        sync_all(devices)
        before = counted.copy()  # the greeting is not counted
        for t in range(1, task.label.shape[1] + 1):
            for device, x, y in zip(devices, task.features[:, t - 1], task.label[:, t - 1], strict=True):
                device.reward(device.decide(context(x), [ACTION]).event_id, float(y))
            if t % case.every == 0:
                sync_all(devices)
            if t % EVERY == 0:
                accuracy = examine(url, name, task)
                yield Outcome(case, t if accuracy >= target else None, accuracy, counted.since(before), t)
                if accuracy >= target:
                    return


def context(x: np.ndarray) -> dict[str, float]:
    return {f"x{j}": float(value) for j, value in enumerate(x)}


def sync_all(devices: list[DeviceClient]) -> None:
    for device in devices:
        synced = device.sync()
        if synced.trouble:
            raise RuntimeError(synced.trouble)


def examine(url: str, loop: str, task: Deal) -> float:
    """Return the shared model's accuracy on held-out rows; what this asks for is not counted."""
    with httpx.Client(base_url=url, timeout=60) as http:
        scores = [
            http.post(f"/v1/loops/{loop}/federated/scores", json={"context": context(x), "actions": [WITH_FEATURES]})
            for x in task.test_features
        ]
    values = [reply.json()["scores"][0]["score"] for reply in scores]
    return float(np.mean(np.array(values) * task.test_label > 0))


def row(outcome: Outcome, n_clients: int) -> dict[str, Any]:
    """Return the figures of a learner: bytes of one device until the target, and beside the formula's."""
    case, counted = outcome.case, outcome.counted
    up, down = counted.up / n_clients, counted.down / n_clients
    formula_up, formula_down = (bits * outcome.played / 8 for bits in (case.bits_up, case.bits_down))
    return {
        "learner": case.name,
        "rounds": outcome.rounds,
        "played": outcome.played,
        "accuracy": outcome.accuracy,
        "bytes_up": up,
        "bytes_down": down,
        "formula_up": formula_up,
        "formula_down": formula_down,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=400, help="at most")
    parser.add_argument("--target", type=float, default=0.82, help="accuracy on held-out rows")
    parser.add_argument("--test-rows", type=int, help="held-out rows to examine with; all unless given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learners", help="comma-separated names of global learners; all unless given")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    task = deal(arguments.devices, arguments.rounds, arguments.seed, arguments.test_rows)
    names = arguments.learners.split(",") if arguments.learners else None
    chosen = [case for case in cases(arguments.devices) if names is None or case.learner in names]
    rows, console = [], Console()
    with tempfile.TemporaryDirectory() as folder, service(Path(folder)) as url, Progress(transient=True) as progress:
        for case in chosen:
            bar = progress.add_task(case.name, total=arguments.rounds)
            for outcome in play(case, task, url, arguments.target, Path(folder)):
                progress.update(bar, completed=outcome.played)
            progress.remove_task(bar)
            rows.append(row(outcome, arguments.devices))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    show(rows, arguments.target, console)


def show(rows: list[dict[str, Any]], target: float, console: Console) -> None:
    table = Table(
        "global learner",
        f"rounds to {target:g}",
        "bytes up",
        "formula",
        "bytes down",
        "formula",
        "accuracy then",
        title="of one device, until the target",
    )
    for each in rows:
        numbers = [each[name] for name in ("bytes_up", "formula_up", "bytes_down", "formula_down")]
        rounds = f"not in {each['played']}" if each["rounds"] is None else str(each["rounds"])
        table.add_row(each["learner"], rounds, *[f"{number:,.0f}" for number in numbers], f"{each['accuracy']:.3f}")
    console.print(table)


if __name__ == "__main__":
    main()

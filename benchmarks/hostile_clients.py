"""What hostile clients cost the honest ones, with and without a loop's defenses.

``python benchmarks/hostile_clients.py`` gives each of 100 clients a task of its own from digits and from pendigits
(looked up in ``FEDRES_DATA``). Honest clients share a model by residuals, or by FedOGD's gradients, and have one of
their own over all of their features. Hostile ones send the worst that the service lets through: labels within the
range, finite numbers. All have joined before the first upload. The shared models and the defenses are the service's,
fed as its learner feeds them, without HTTP and a log.

Accuracy is that of the honest clients on test rows after the last round. What was lost is the difference to the same
clients and the same rows where nobody is hostile and nothing is defended. Of several attacks the worst counts.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from fedres import LinearLearner
from fedres.checks import Array
from fedres.global_learners.base import ObservedRound
from fedres.scoring.features import Preparer
from fedres.scoring.federated import FederatedModel, Pool, as_features
from fedres.scoring.model import LEARNING_RATE, SharedModel, expand
from libsvm_tasks.load import load
from libsvm_tasks.tasks import Task, paper_task
from service.models.adagrad import MOST_POOLED
from service.models.guard import Defences, Guard, combine

ALL = 1e9  # the largest local prediction that the service takes
FLOOD = 20  # uploads where an honest client has one
HOSTILE = (1, 5, 10, 20)
FLEETS = ("alike", "rates", "scales")
BITS = 10  # of FedOGD's model
STEP = 0.03  # its η
ROUNDS = {"residuals": 200, "gradients": 100}
SEEDS = (10, 11, 12)  # not those that the defaults of the defenses were chosen on

OFF = Defences(max_norm=None, client_share=None, client_pull=None)
DEFENCES = {
    "none": OFF,
    "default": Defences(),
    "trimmed mean": Defences(combine="trimmed-mean"),
    "median": Defences(combine="median"),
}


@dataclass(frozen=True, slots=True)
class Case:
    """One run."""

    dataset: str
    seed: int
    uploads: str = "residuals"  # or gradients
    fleet: str = "alike"  # or rates, scales: honest clients differ ten times in these
    attack: str = "nobody"
    hostile: int = 0
    defences: str = "none"
    clients: int = 100
    rounds: int = 200


class Upload(NamedTuple):
    client: int
    values: Array  # x^g
    label: float
    local: float


class Fleet:
    """The clients of a case: their data, and the honest ones' own models."""

    def __init__(self, case: Case) -> None:
        task, largest = _task(case.dataset, case.clients, case.rounds, case.seed)
        rng = np.random.default_rng([case.seed, 1])
        self.case, self.task = case, task
        self.hostile = rng.permutation(case.clients)[: case.hostile]
        self.honest = np.setdiff1d(np.arange(case.clients), self.hostile)
        spread = 10 ** rng.uniform(0, 1, case.clients)
        self.every = spread if case.fleet == "rates" else np.ones(case.clients)  # rounds from one example to the next
        scale = (spread if case.fleet == "scales" else np.ones(case.clients))[:, None, None] / largest
        self.features, self.test_features = task.features * scale, task.test_features * scale
        self.shared_features = self.features[:, :, task.global_features].astype(np.float32)
        self.usual = np.abs(self.shared_features).mean(axis=(0, 1))
        self.own = [LinearLearner(task.features.shape[2], LEARNING_RATE) for _ in range(case.clients)]

    def active(self, t: int) -> list[int]:
        """Return the honest clients that have an example in round t."""
        return [i for i in self.honest.tolist() if int((t + 1) / self.every[i]) > int(t / self.every[i])]

    def shared_part(self, i: int, t: int) -> tuple[Array, float]:
        """Return x^g and the label of a client's example."""
        row = self.task.order[i, t]
        return self.shared_features[i, row], float(self.task.label[i, row])

    def learn(self, i: int, t: int, offset: float) -> Upload:
        """Let a client learn its example at once, and return what it uploads."""
        values, label = self.shared_part(i, t)
        own, x = self.own[i], self.features[i, self.task.order[i, t]]
        upload = Upload(i, values, label, own.score(x))
        own.learn(x, label, offset)
        return upload

    def accuracy(self, weights: Array) -> Array:
        """Return every client's accuracy on its test rows with these shared weights, the constant's last."""
        own = np.array([learner.weights for learner in self.own])
        shared = self.test_features[:, :, self.task.global_features] @ weights[:-1] + weights[-1]
        score = shared + np.einsum("pmd,pd->pm", self.test_features, own[:, :-1]) + own[:, -1:]
        result: Array = (score * self.task.test_label > 0).mean(axis=1)
        return result


@lru_cache(maxsize=4)
def _task(dataset: str, clients: int, rounds: int, seed: int) -> tuple[Task, float]:
    data = _load(dataset)
    task = paper_task(data, clients, seed=seed, local_features="all", n_rounds=rounds)
    return task, float(np.abs(data.features).max())


_load = lru_cache(load)


# Uploads of hostile clients in place of their examples of round t. A local prediction of ±1e9 makes its error as large
# as the range of the labels in every upload; one that knows the shared model needs no such numbers.


def flip(fleet: Fleet, i: int, t: int, *, scale: float = 1.0, local: float = 0.0, n: int = 1) -> list[Upload]:
    values, label = fleet.shared_part(i, t)
    return [Upload(i, values * np.float32(scale), -label, local * label)] * n


def freeze(fleet: Fleet, i: int, t: int) -> list[Upload]:
    """Fill AdaGrad's sums in the first rounds, so that nobody's steps move the weights any more."""
    _, label = fleet.shared_part(i, t)
    return [Upload(i, np.full_like(fleet.usual, 1e18), -label, ALL * label)] if t < 3 else []


def surge(fleet: Fleet, i: int, t: int) -> list[Upload]:
    """Wait until the last rounds, then send as much as can be."""
    return flip(fleet, i, t, local=ALL, n=2 * FLOOD) if t >= 0.96 * fleet.case.rounds else []


def drift(fleet: Fleet, i: int, t: int, *, scale: float = 1.0, period: int = 0, n: int = 1) -> list[Upload]:
    """Pull all weights one way, or to and fro."""
    way = -1.0 if period and (t // period) % 2 else 1.0
    return [Upload(i, fleet.usual * np.float32(scale), way, -ALL * way)] * n


ATTACKS: dict[str, Callable[[Fleet, int, int], list[Upload]]] = {
    "flip": flip,
    "flip, huge": partial(flip, scale=1e15),
    "freeze": freeze,
    "extreme": partial(flip, local=ALL),
    "flood": partial(flip, local=ALL, n=FLOOD),
    "surge": surge,
    "drift": drift,
    "drift, flood": partial(drift, n=FLOOD),
    "swing, huge": partial(drift, scale=1e15, period=25),
}


def residuals(case: Case) -> Array:
    """Return each client's accuracy where residuals are learned on arrival, as the service's learner does it."""
    fleet, shared, guard = Fleet(case), SharedModel(), Guard()
    keys = _keys(len(fleet.usual))
    rng, attack = np.random.default_rng([case.seed, 2]), ATTACKS.get(case.attack)
    for t in range(case.rounds):
        sent = [fleet.learn(i, t, shared.score((keys, fleet.shared_part(i, t)[0]))) for i in fleet.active(t)]
        if attack:
            sent += [upload for i in fleet.hostile.tolist() for upload in attack(fleet, i, t)]
        for k in rng.permutation(len(sent)):
            learn_residual(sent[k], keys, shared, guard, DEFENCES[case.defences])
    return fleet.accuracy(np.append(shared.weights[keys >> np.uint32(32 - shared.bits)], shared.weights[-1]))


def learn_residual(upload: Upload, keys: Array, shared: SharedModel, guard: Guard, defences: Defences) -> None:
    """Do what the service does with an upload, from where it is parsed and hashed on."""
    _, values, label, local = upload

    def error(clipped: Array) -> float:
        low, high = shared.reward_range
        prediction = shared.score((keys, clipped)) + local
        return label - min(max(prediction, min(low, label)), max(high, label))

    clipped, weight = guard.weigh(str(upload.client), values, defences, error)
    if weight > 0:
        shared.learn((keys, clipped), label, local, weight)


def _keys(n: int) -> Array:
    """Return the hashed names of the shared features."""
    names = json.dumps({"x": [1.0] * n}).encode()
    keys, _ = expand(Preparer(crosses=False).prepare(names, [("own", b"{}")]), 0)
    return keys[:n]


GRADIENT_ATTACKS: dict[str, Callable[[Array], list[Array]]] = {  # from what an honest client would send
    "reverse, huge": lambda gradient: [-1e6 * gradient],
    "reverse, flood": lambda gradient: [-1e6 * gradient] * (FLOOD // 2),
    "drift, huge": lambda gradient: [-1e6 * np.abs(gradient)],
}


def gradients(case: Case) -> Array:
    """Return each client's accuracy where clients upload gradients to FedOGD."""
    fleet, guard, defences = Fleet(case), Guard(), DEFENCES[case.defences]
    shared = FederatedModel("fedogd", BITS, {"n_clients": case.clients, "step_size": STEP})
    keys = _keys(len(fleet.usual))
    places = np.append(keys >> np.uint32(32 - BITS), 2**BITS)
    rng, attack = np.random.default_rng([case.seed, 2]), GRADIENT_ATTACKS.get(case.attack)
    for t in range(case.rounds):
        made = [fleet.learn(i, t, shared.score((keys, fleet.shared_part(i, t)[0]))) for i in fleet.active(t)]
        sent = [(upload.client, g) for upload, g in zip(made, _gradients(made, keys, shared), strict=True)]
        if attack:
            stolen = [Upload(i, *fleet.shared_part(i, t), 0.0) for i in fleet.hostile.tolist()]
            for upload, g in zip(stolen, _gradients(stolen, keys, shared), strict=True):
                sent += [(upload.client, forged) for forged in attack(g)]
        for k in rng.permutation(len(sent)):
            client, g = sent[k]
            learn_gradient(client, g, t + 1, shared, guard, defences, case.clients)
    return fleet.accuracy(shared.weights[places])


def learn_gradient(
    client: int, gradient: Array, t: int, shared: FederatedModel, guard: Guard, defences: Defences, joined: int
) -> None:
    """Do what the service does with an upload, where so many clients have joined."""
    clip, pool = partial(guard.clip, str(client), defences=defences, joined=joined), None
    if defences.combine != "mean":
        pool = Pool(min(MOST_POOLED, -(-joined // 2)), partial(combine, how=defences.combine))
    shared.receive(client, t, 0, "gradient", gradient.astype("<f4").tobytes(), clip=clip, pool=pool)


def _gradients(uploads: list[Upload], keys: Array, shared: FederatedModel) -> Array:
    """Return one gradient a row."""
    if not uploads:
        return np.zeros((0, shared.weights.size))
    features = np.stack([as_features((keys, upload.values), BITS) for upload in uploads])
    local, label = (np.array([getattr(upload, name) for upload in uploads]) for name in ("local", "label"))
    who = np.array([upload.client for upload in uploads])
    seen = ObservedRound(features, local, label, np.ones(len(uploads), dtype=bool))
    rows: Array = shared.learner.gradient(shared.weights.astype(np.float64), who, seen)
    return rows


def play(case: Case) -> Array:
    return (residuals if case.uploads == "residuals" else gradients)(case)


def grid(dataset: str, seed: int, uploads: str, hostile: Iterable[int], attacks: int | None, **size: Any) -> list[Case]:
    """Return all runs with one kind of upload: the first so many attacks, or all."""
    names: Iterable[str] = ATTACKS if uploads == "residuals" else GRADIENT_ATTACKS
    tried = ("none", "default") if uploads == "residuals" else tuple(DEFENCES)
    cases = [Case(dataset, seed, uploads, fleet, defences=name, **size) for fleet in FLEETS for name in tried]
    for n in hostile:
        for attack in list(names)[:attacks]:
            cases += [Case(dataset, seed, uploads, "alike", attack, n, name, **size) for name in tried]
    return cases


def measure(cases: list[Case], console: Console) -> list[dict[str, Any]]:
    """Play all cases and return a figure for each that differs in more than its seed."""
    played: dict[Case, Array] = {case: play(case) for case in track(cases, "hostile clients", console=console)}
    grouped: dict[Case, list[tuple[float, float]]] = {}
    for case, accuracy in played.items():
        clean = played[
            Case(case.dataset, case.seed, case.uploads, case.fleet, clients=case.clients, rounds=case.rounds)
        ]
        honest = Fleet(case).honest
        kind = replace(case, seed=-1)
        grouped.setdefault(kind, []).append((accuracy[honest].mean(), (clean - accuracy)[honest].mean()))
    return [_figure(kind, np.array(runs)) for kind, runs in grouped.items()]


def _figure(kind: Case, runs: Array) -> dict[str, Any]:
    mean, n = runs.mean(axis=0), len(runs)
    se = runs.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full(2, np.nan)
    named = {key: value for key, value in asdict(kind).items() if key != "seed"}
    numbers = {"accuracy": mean[0], "accuracy_se": se[0], "lost": mean[1], "lost_se": se[1]}
    return {**named, "seeds": n, **{key: None if np.isnan(x) else round(float(x), 5) for key, x in numbers.items()}}


def worst(figures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, of the attacks on the same fleet under the same defenses, the one that costs most."""
    worst_of: dict[tuple[Any, ...], dict[str, Any]] = {}
    for figure in figures:
        key = tuple(figure[name] for name in ("dataset", "uploads", "fleet", "hostile", "clients", "defences"))
        if key not in worst_of or figure["lost"] > worst_of[key]["lost"]:
            worst_of[key] = figure
    return list(worst_of.values())


def table(figures: list[dict[str, Any]]) -> Table:
    shown = Table("dataset", "uploads", "fleet", "hostile", "defences", "worst attack", "accuracy", "points lost")
    for figure in worst(figures):
        names = [figure[name] for name in ("dataset", "uploads", "fleet")]
        share = f"{100 * figure['hostile'] / figure['clients']:.0f}%"
        accuracy, lost = (_shown(figure[name], figure[f"{name}_se"]) for name in ("accuracy", "lost"))
        shown.add_row(*names, share, figure["defences"], figure["attack"], accuracy, lost)
    return shown


def _shown(value: float, se: float | None) -> str:
    return f"{100 * value:.1f}" + ("" if se is None else f" ± {100 * se:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="*", default=["digits", "pendigits"])
    parser.add_argument("--uploads", nargs="*", choices=list(ROUNDS), default=list(ROUNDS))
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--quick", action="store_true", help="20 clients, 20 rounds, 4 of them hostile, two attacks")
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    runs = list(product(arguments.datasets, arguments.seeds, arguments.uploads))
    if arguments.quick:
        cases = [case for run in runs for case in grid(*run, (4,), 2, clients=20, rounds=20)]
    else:
        cases = [case for run in runs for case in grid(*run, HOSTILE, None, rounds=ROUNDS[run[2]])]
    console = Console()
    figures = measure(cases, console)
    console.print(table(figures))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

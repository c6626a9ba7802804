"""Cells of the fair table, rollout by rollout: hyperparameters are chosen on rows held out of the training rows.

A rollout for choosing and one for judging are different tasks (other seeds). In the first, every client sets one row in
five of each kind aside, and every choice of every method learns from the others; the choice with the most accurate
predictions for the rows set aside, over all such rollouts of a cell, is judged on the test rows of the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from libsvm_tasks.task_replay import dataset
from libsvm_tasks.tasks import Task, paper_task
from research.fair.methods import METHODS, RATES, Choice, accuracy, mean_of, reshuffled

TUNING_SEED, JUDGING_SEED = 5000, 6000
HELD_OUT = 5  # one row in five


class Tuning(NamedTuple):
    """A piece of work: all choices of all methods on one rollout's rows set aside."""

    dataset: str
    clients: int
    delays: tuple[int, ...]
    seed: int
    fingerprint: str


class Chosen(NamedTuple):
    """What one method uses at one delay; ``alone`` is the rate of the own model it is averaged with, 0 for none."""

    method: str
    delay: int
    choice: Choice
    alone: float


class Judging(NamedTuple):
    """A piece of work: the chosen ones on one rollout's test rows."""

    dataset: str
    clients: int
    chosen: tuple[Chosen, ...]
    seed: int
    fingerprint: str


def tune(work: Tuning) -> dict[str, list[list[float]]]:
    """Return accuracies, by method and delay, of each choice: by itself, then averaged with a model of each rate."""
    task = held_out(_task(work.dataset, work.clients, work.seed), work.seed)
    alone = [METHODS["independent"].play(task, 0, (rate,)) for rate in RATES]
    again = [METHODS["independent"].play(reshuffled(task, work.seed), 0, (rate,)) for rate in RATES]
    accuracies = {}
    for name, method in METHODS.items():
        for delay in work.delays if method.delayed else (0,):
            rows = []
            for choice in method.choices:
                predictions = method.play(task, delay, choice)
                others = again if name == "independent" else alone
                forms = [predictions, *(mean_of(predictions, other) for other in others)]
                rows.append([accuracy(form, task.test_label) for form in forms])
            accuracies[key(name, delay)] = rows
    return accuracies


def choose(pieces: Sequence[Mapping[str, list[list[float]]]], delays: Sequence[int]) -> tuple[Chosen, ...]:
    """Return the best of every method by the mean of these accuracies; the first where several are best.

    The own model in a mean has the rate that is best for Independent by itself.
    """
    mean = {name: np.mean([piece[name] for piece in pieces], axis=0) for name in pieces[0]}
    rate = int(mean[key("independent", 0)][:, 0].argmax())
    chosen = []
    for name, method in METHODS.items():
        for delay in delays:
            scores = mean[key(name, delay if method.delayed else 0)][:, [0, 1 + rate]]
            which, form = np.unravel_index(scores.argmax(), scores.shape)
            chosen.append(Chosen(name, delay, method.choices[int(which)], RATES[rate] if form else 0.0))
    return tuple(chosen)


def judge(work: Judging) -> dict[str, float]:
    """Return the accuracy of each chosen method and delay on the test rows."""
    task = _task(work.dataset, work.clients, work.seed)
    accuracies: dict[str, float] = {}
    cache: dict[Any, Array] = {}
    for name, delay, choice, alone in work.chosen:
        at = delay if METHODS[name].delayed else 0
        if (name, at, choice) not in cache:
            cache[name, at, choice] = METHODS[name].play(task, at, choice)
        predictions = cache[name, at, choice]
        if alone:
            predictions = mean_of(predictions, _alone(task, name, alone, work.seed, cache))
        accuracies[key(name, delay)] = accuracy(predictions, task.test_label)
    return accuracies


def _alone(task: Task, name: str, rate: float, seed: int, cache: dict[Any, Array]) -> Array:
    """Return a client's own model: of another shuffle for Independent, which has the first already."""
    other = name == "independent"
    if (other, rate) not in cache:
        cache[other, rate] = METHODS["independent"].play(reshuffled(task, seed) if other else task, 0, (rate,))
    return cache[other, rate]


def key(method: str, delay: int) -> str:
    return f"{method} @ {delay}"


def held_out(task: Task, seed: int) -> Task:
    """Return the task with one training row in five of each kind set aside as test rows."""
    rng = np.random.default_rng([seed, 2])
    n_clients, n_rows = task.label.shape
    half = n_rows // 2
    held = max(1, half // HELD_OUT)
    turn = rng.permuted(np.tile(np.arange(half), (n_clients, 2, 1)), axis=2) + np.array([[0], [half]])
    test, train = (part.reshape(n_clients, -1) for part in (turn[..., :held], turn[..., held:]))
    epochs = -(-task.order.shape[1] // train.shape[1])
    order = rng.permuted(np.tile(np.arange(train.shape[1]), (epochs, n_clients, 1)), axis=2).transpose(1, 0, 2)
    who = np.arange(n_clients)[:, None]
    return replace(
        task,
        features=task.features[who, train],
        label=task.label[who, train],
        order=np.ascontiguousarray(order.reshape(n_clients, -1)[:, : task.order.shape[1]]),
        test_features=task.features[who, test],
        test_label=task.label[who, test],
        rows=task.rows[who, train],
        samples=half - held,
    )


def _task(name: str, clients: int, seed: int) -> Task:
    return paper_task(dataset(name), clients, seed=seed, local_features="all")

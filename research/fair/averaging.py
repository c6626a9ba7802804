"""Peers that average models: FedAvg with fine-tuning, Ditto and APFL, with the steps of ``vw --adaptive`` under delay.

[FedAvg] B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-Efficient Learning of Deep
Networks from Decentralized Data. 2017.
[Ditto] T. Li, S. Hu, A. Beirami, V. Smith. Ditto: Fair and Robust Federated Learning Through Personalization. 2021.
[APFL] Y. Deng, M. M. Kamani, M. Mahdavi. Adaptive Personalized Federated Learning. 2020.

All three share the same federated averaging: clients step on their own rows and average every ``PERIOD`` rounds. An
average takes a round trip to come back, and a client adds to it the steps it has taken since (as ``fedres``'s FedOMD
does): at zero delay that is FedAvg. The personal models of Ditto and APFL learn beside it, from the same rows.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.compiling import inner_kernel, kernel
from libsvm_tasks.tasks import Task
from research.fair.second_order import with_constant

PERIOD = 10  # rounds between two averages


TINY = 1e-300  # under the root of a sum of squares that is 0: no step is taken there


class Averaged(NamedTuple):
    """What clients hold after the last round."""

    shared: Array  # the newest average that has come back, (d + 1,)
    fedavg: Array  # the average, and each client's own steps since, (P, d + 1)
    personal: Array  # Ditto's or APFL's own models, (P, d + 1); zero without


def fedavg(task: Task, rate: float, delay: int) -> Averaged:
    """Return federated averaging at the rate η."""
    return _run(task, rate, delay, 0.0, 0.0)


def ditto(task: Task, rate: float, delay: int, pull: float) -> Averaged:
    """Return FedAvg, and personal models that descend own loss + λ/2 ‖v − w‖² [Ditto, alg. 1]; λ is ``pull``."""
    return _run(task, rate, delay, pull, 1.0)


def apfl(task: Task, rate: float, delay: int, mixture: float) -> Averaged:
    """Return FedAvg, and personal models v trained as part of αv + (1 − α)w [APFL, alg. 1]; α is ``mixture``."""
    return _run(task, rate, delay, 0.0, mixture)


def fine_tuned(task: Task, start: Array, rate: float, epochs: int) -> Array:
    """Return each client's model after ``epochs`` more passes over its own rows from ``start``."""
    rows, _ = with_constant(task.features)
    weights = np.tile(start, (len(rows), 1))
    _tune(weights, rows, task.label, task.order[:, : epochs * task.label.shape[1]], rate)
    return weights


def _run(task: Task, rate: float, delay: int, pull: float, mixture: float) -> Averaged:
    """Run FedAvg beside models v that step on the loss of ``mixture``·v + (1 − ``mixture``)·w, pulled towards w."""
    rows, unit = with_constant(task.features)
    return Averaged(*_play(rows, task.label, task.order, delay, rate, pull * unit, mixture))


@inner_kernel
def _clamped(total: float) -> float:
    return min(max(total, -1.0), 1.0)


@inner_kernel
def _dot(weights: Array, x: Array) -> float:
    total = 0.0
    for j in range(x.size):
        total += weights[j] * x[j]
    return total


@inner_kernel
def _descend(weights: Array, squares: Array, taken: Array, x: Array, slope: float, rate: float) -> None:
    """Take a step of AdaGrad, and add it to ``taken``."""
    for j in range(x.size):
        gradient = slope * x[j]
        squares[j] += gradient * gradient
        step = rate * gradient / math.sqrt(squares[j] + TINY)
        weights[j] -= step
        taken[j] -= step


@inner_kernel
def _descend_near(
    weights: Array, squares: Array, centre: Array, pull: float, x: Array, slope: float, rate: float
) -> None:
    """Take a step of AdaGrad on the loss and pull/2 ‖w − ``centre``‖²."""
    for j in range(x.size):
        gradient = slope * x[j] + pull * (weights[j] - centre[j])
        squares[j] += gradient * gradient
        weights[j] -= rate * gradient / math.sqrt(squares[j] + TINY)


@kernel
def _tune(weights: Array, rows: Array, label: Array, order: Array, rate: float) -> None:
    squares, unused = np.zeros_like(weights), np.zeros(weights.shape[1])
    for i in range(len(order)):
        for row in order[i]:
            slope = 2 * (_clamped(_dot(weights[i], rows[i, row])) - label[i, row])
            _descend(weights[i], squares[i], unused, rows[i, row], slope, rate)


@kernel
def _play(
    rows: Array, label: Array, order: Array, delay: int, rate: float, pull: float, mixture: float
) -> tuple[Array, Array, Array]:
    n, n_rounds, dim = order.shape[0], order.shape[1], rows.shape[2]
    shared, fedavg, personal = np.zeros(dim), np.zeros((n, dim)), np.zeros((n, dim))
    squares, own_squares = np.zeros((n, dim)), np.zeros((n, dim))
    taken = np.zeros((n, dim))  # the sum of each client's own steps of averaging
    n_kept = delay // PERIOD + 2
    kept = np.zeros((n_kept, n, dim))  # these sums at the last averages
    for t in range(1, n_rounds + 1):
        for i in range(n):
            row = order[i, t - 1]
            x, y = rows[i, row], label[i, row]
            score = _dot(fedavg[i], x)
            if mixture > 0:
                joint = _clamped(mixture * _dot(personal[i], x) + (1 - mixture) * score)
                _descend_near(personal[i], own_squares[i], shared, pull, x, 2 * mixture * (joint - y), rate)
            _descend(fedavg[i], squares[i], taken[i], x, 2 * (_clamped(score) - y), rate)
        if t % PERIOD == 0:
            kept[(t // PERIOD) % n_kept] = taken
        made = t - delay  # when the average that comes back now was made
        if made > 0 and made % PERIOD == 0:
            then = kept[(made // PERIOD) % n_kept]
            for j in range(dim):  # array expressions would take seconds to compile
                total = 0.0
                for i in range(n):
                    total += then[i, j]
                shared[j] = total / n
                for i in range(n):
                    fedavg[i, j] = shared[j] + taken[i, j] - then[i, j]
    return shared, fedavg, personal

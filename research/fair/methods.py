"""The rows of the fair table: every method with its hyperparameters, all run and combined in the same way.

A method maps (task, delay, choice) to every client's predictions for its test rows. Each is offered in two forms: by
itself, and as the mean with a client's own AdaGrad model, predictions clamped to [−1, 1]. For Independent, which is
that model, the second is another shuffle of the same rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from fedres.checks import Array
from libsvm_tasks import engine
from libsvm_tasks.tasks import Task
from research.fair import averaging
from research.fair.learned_prior import fit
from research.fair.second_order import Ridge, with_constant

Choice = tuple[float, ...]  # a method's hyperparameters
RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
PENALTIES = (0.3, 3.0, 30.0, 300.0)
FORMS = ("single", "mean")


@dataclass(frozen=True)
class Method:
    """``choices`` are what its hyperparameters are chosen from; ``delayed`` says whether a delay changes anything."""

    play: Callable[[Task, int, Choice], Array]
    choices: tuple[Choice, ...]
    delayed: bool = True
    ours: bool = False


def _linear(weights: Array, task: Task) -> Array:
    """Return the predictions of VW's models for the test rows: their constant is 1."""
    rows = np.concatenate([task.test_features, np.ones((*task.test_label.shape, 1))], axis=2)
    return _dot(rows, weights)


def _scaled(weights: Array, task: Task) -> Array:
    """Return those of models whose constant is as large as a feature."""
    _, unit = with_constant(task.features)
    return _dot(with_constant(task.test_features, unit)[0], weights)


def _dot(rows: Array, weights: Array) -> Array:
    return np.asarray((rows @ np.broadcast_to(weights, (len(rows), rows.shape[2]))[..., None])[..., 0])


def everywhere(task: Task) -> Task:
    """Return the task with all features in the shared model, too."""
    return replace(task, global_features=np.arange(task.features.shape[2]))


def independent(task: Task, delay: int, choice: Choice) -> Array:
    result = engine.run(task, "independent", local_learning_rate=choice[0])
    assert result.local_weights is not None
    return _linear(result.local_weights, task)


def ridge(task: Task, delay: int, choice: Choice) -> Array:
    return _scaled(Ridge(task, task.global_features, 0).alone(choice[0]), task)


def central(task: Task, delay: int, choice: Choice) -> Array:
    """One model: AdaGrad at a rate (choice[0] = 1), or ridge regression with a penalty (choice[0] = 2)."""
    order, number = choice
    if order == 2:
        return _scaled(Ridge(task, task.global_features, delay).central(number), task)
    result = engine.run(task, "central", learning_rate=number, **_ways(delay))
    weights = np.zeros(task.features.shape[2] + 1)
    assert result.global_weights is not None
    weights[np.append(task.global_features, len(weights) - 1)] = result.global_weights
    return _linear(weights, task)


def central_all(task: Task, delay: int, choice: Choice) -> Array:
    return central(everywhere(task), delay, choice)


def fedavg(task: Task, delay: int, choice: Choice) -> Array:
    """FedAvg at a rate, then a number of epochs on a client's own rows."""
    rate, epochs = choice
    shared = averaging.fedavg(task, rate, delay).shared
    return _scaled(averaging.fine_tuned(task, shared, rate, int(epochs)), task)


def ditto(task: Task, delay: int, choice: Choice) -> Array:
    rate, pull = choice
    return _scaled(averaging.ditto(task, rate, delay, pull).personal, task)


def apfl(task: Task, delay: int, choice: Choice) -> Array:
    rate, mixture = choice
    weights = averaging.apfl(task, rate, delay, mixture)
    return _scaled(mixture * weights.personal + (1 - mixture) * weights.fedavg, task)


def fedres(task: Task, delay: int, choice: Choice) -> Array:
    """FedRes.SGD with AdaGrad steps, learning on arrival, rates of the shared and of the personal models."""
    options = {"learning_rate": choice[0], "local_learning_rate": choice[1]}
    result = engine.run(task, "fedres", **options, **_ways(delay))
    assert result.global_weights is not None
    assert result.local_weights is not None
    weights = result.local_weights.astype(np.float64)
    weights[:, np.append(task.global_features, weights.shape[1] - 1)] += result.global_weights
    return _linear(weights, task)


def fedres_all(task: Task, delay: int, choice: Choice) -> Array:
    return fedres(everywhere(task), delay, choice)


def fedres_ridge(task: Task, delay: int, choice: Choice) -> Array:
    """FedRes with second-order residuals: both parts solved jointly, by penalties of the personal and shared part."""
    shared, own = Ridge(task, task.global_features, delay).fedres(*choice)
    return _scaled(own + shared, task)


def fedres_ridge_all(task: Task, delay: int, choice: Choice) -> Array:
    return fedres_ridge(everywhere(task), delay, choice)


def fedres_learned(task: Task, delay: int, choice: Choice) -> Array:
    """FedRes with second-order residuals and penalties learned from all clients."""
    penalty, prior, trips = choice
    return _scaled(fit(task, delay, penalty, prior, int(trips)), task)


def _ways(delay: int) -> dict[str, int]:
    return {"uplink_delay": -(-delay // 2), "downlink_delay": delay // 2}


def _pairs(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[Choice, ...]:
    return tuple((a, b) for a in first for b in second)


CENTRAL = _pairs((1.0,), RATES) + _pairs((2.0,), PENALTIES)
METHODS = {
    "independent": Method(independent, tuple((rate,) for rate in RATES), delayed=False),
    "ridge": Method(ridge, tuple((p,) for p in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)), delayed=False),
    "central, half": Method(central, CENTRAL),
    "central, all": Method(central_all, CENTRAL),
    "fedavg + fine-tuning": Method(fedavg, _pairs(RATES, (1.0, 4.0))),
    "ditto": Method(ditto, _pairs(RATES, (0.001, 0.03, 1.0))),
    "apfl": Method(apfl, _pairs(RATES, (0.25, 0.5, 0.75))),
    "fedres, half": Method(fedres, _pairs(RATES[1:], RATES[1:]), ours=True),
    "fedres, all": Method(fedres_all, _pairs(RATES[1:], RATES[1:]), ours=True),
    "fedres 2nd order, half": Method(fedres_ridge, _pairs(PENALTIES, (0.3, 3.0, 30.0)), ours=True),
    "fedres 2nd order, all": Method(fedres_ridge_all, _pairs(PENALTIES, (0.3, 3.0, 30.0)), ours=True),
    "fedres learned prior": Method(
        fedres_learned,
        tuple((p, *rest) for p in (0.4, 4.0, 40.0, 400.0) for rest in ((2.0, 1.0), (2.0, 6.0), (20.0, 6.0))),
        ours=True,
    ),
}


def accuracy(predictions: Array, label: Array) -> float:
    """Return the share of rows whose prediction has the label's sign, a mean over clients; 0 has none."""
    return float(np.mean(predictions * label > 0))


def mean_of(one: Array, other: Array) -> Array:
    """Return the mean of two predictions, each within the labels."""
    return np.asarray((np.clip(one, -1, 1) + np.clip(other, -1, 1)) / 2)


def reshuffled(task: Task, seed: int) -> Task:
    """Return the task with other orders of the same rows."""
    order = np.random.default_rng([seed, 1]).permuted(task.order, axis=1)
    return replace(task, order=order)

"""Streams over K clients and T rounds: which row each client sees, and what drifts.

A partition is an array (K, T) of row numbers; ``examples`` reads the rounds of it. Whatever drifts follows the random
walk w_i = w_{i−1} + q_i, shared by all clients, from which client k stays a constant c_k away [DynFed, section IV].

[OFedIQ] D. Kwon, J. Park, S. Hong. Tighter Regret Analysis and Optimization of Online Federated Learning.
[DynFed] E. Rizk, S. Vlaski, A. H. Sayed. Dynamic Federated Learning. 2020.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from fedres import Example, checks
from fedres.checks import Array
from libsvm_tasks.data import Data


def online_partition(data: Data, n_clients: int, n_rounds: int, seed: int, *, shuffle: bool = True) -> Array:
    """Return row numbers (K, T): all rows, repeated ⌈KT/n⌉ times, shuffled and dealt out [OFedIQ, section 5].

    Without ``shuffle`` the rows keep their order in time: a round takes the next K of them, from the first again after
    the last.
    """
    _check(data, n_clients, n_rounds, seed)
    n_rows, n_needed = len(data.label), n_clients * n_rounds
    if not shuffle:
        return (np.arange(n_needed) % n_rows).reshape(n_rounds, n_clients).T
    repeated = np.tile(np.arange(n_rows), -(-n_needed // n_rows))
    shuffled = np.random.default_rng(seed).permutation(repeated)
    return shuffled[:n_needed].reshape(n_clients, n_rounds)


def label_drift(
    data: Data, n_clients: int, n_rounds: int, seed: int, *, drift_variance: float, spread_variance: float = 0.0
) -> Array:
    """Return row numbers (K, T), drawn with replacement while the classes' odds drift.

    The logits of the class priors begin at the dataset's own and walk at random.
    """
    _check(data, n_clients, n_rounds, seed)
    sizes = _class_sizes(data)
    with np.errstate(divide="ignore"):  # a class without rows keeps the prior 0
        start = np.log(sizes)
    walk, spread, draws = np.random.default_rng(seed).spawn(3)
    logits = random_walk(start, n_rounds, drift_variance, walk)
    constants = _constants(n_clients, len(sizes), spread_variance, spread)
    by_class, first = np.argsort(data.label, kind="stable"), np.cumsum(sizes) - sizes
    index = np.empty((n_clients, n_rounds), dtype=np.intp)
    for k, rng in enumerate(draws.spawn(n_clients)):
        label = _draw_classes(softmax(logits + constants[k], axis=1), rng)
        index[k] = by_class[first[label] + rng.integers(sizes[label])]
    return index


def label_permutation(data: Data, n_clients: int, seed: int) -> Array:
    """Return (K, C): entry (k, c) is the number that client k has for class c, a permutation for each client."""
    _check(data, n_clients, 1, seed)
    each = np.broadcast_to(np.arange(len(_class_sizes(data))), (n_clients, data.n_classes))
    return np.random.default_rng(seed).permuted(each, axis=1)


def examples(data: Data, index: Array, permutation: Array | None = None) -> Iterator[Example]:
    """Return the rounds of a partition, under each client's own class numbers if a ``permutation`` is given."""
    label = _label(data)[index] if permutation is None else _renamed(data, index, permutation)
    return (Example(data.features[index[:, t]], label[:, t]) for t in range(index.shape[1]))


def feature_drift(
    data: Data, index: Array, seed: int, *, drift_variance: float, spread_variance: float = 0.0
) -> Iterator[Example]:
    """Return the rounds of a partition with a random walk added to the features.

    The variances are in units of each feature's own: a feature that never varies does not drift.
    """
    checks.whole("seed", seed, least=0)
    walk, spread = np.random.default_rng(seed).spawn(2)
    n_clients, n_rounds = index.shape
    scale = data.features.std(axis=0)
    shift = random_walk(np.zeros(len(scale)), n_rounds, drift_variance, walk)
    constants = _constants(n_clients, len(scale), spread_variance, spread)
    return (
        Example(example.features + scale * (shift[t] + constants), example.label)
        for t, example in enumerate(examples(data, index))
    )


@dataclass(frozen=True, slots=True)
class ModelDrift:
    """Gaussian features, and labels −1 and +1 from a true model that walks at random [DynFed, section IV]."""

    features: Array  # h, (T, K, d)
    label: Array  # γ, (T, K)
    weights: Array  # w*, (T, d)
    constants: Array  # c_k, (K, d): client k's own model is w* + c_k

    def examples(self) -> Iterator[Example]:
        return (Example(features, label) for features, label in zip(self.features, self.label, strict=True))


def model_drift(
    n_clients: int,
    n_rounds: int,
    seed: int,
    *,
    drift_variance: float,
    spread_variance: float = 0.0,
    n_features: int = 2,
    period: int = 1,
) -> ModelDrift:
    """Return a synthetic stream whose true model steps once every ``period`` rounds (the paper's N_k samples).

    Variances are per coordinate: E‖q_i‖² = d·σ_q². Each client's features have a variance of its own, from ½ to 1½.
    """
    sizes = {"n_clients": n_clients, "n_rounds": n_rounds, "n_features": n_features, "period": period}
    for name, value in sizes.items():
        checks.whole(name, value)
    checks.whole("seed", seed, least=0)
    begin, walk, spread, draws = np.random.default_rng(seed).spawn(4)
    steps = random_walk(begin.normal(size=n_features), -(-n_rounds // period), drift_variance, walk)
    weights = np.repeat(steps, period, axis=0)[:n_rounds]
    constants = _constants(n_clients, n_features, spread_variance, spread)
    features = np.stack([_gaussian(n_rounds, n_features, rng) for rng in draws.spawn(n_clients)], axis=1)
    score = np.einsum("tkd,tkd->tk", features, weights[:, None] + constants)
    return ModelDrift(features, np.where(score < 0, -1.0, 1.0), weights, constants)


def random_walk(start: Array, n_rounds: int, variance: float, rng: np.random.Generator) -> Array:
    """Return w_1 .. w_T, shape (T, d): w_i = w_{i−1} + q_i from w_0 = ``start``, q_i ~ N(0, ``variance``·I)."""
    checks.not_negative("drift_variance", variance)
    return start + np.cumsum(rng.normal(0, np.sqrt(variance), (n_rounds, len(start))), axis=0)


def unit_label(data: Data) -> Array:
    """Return a regression dataset's labels, moved and scaled to [0, 1] [OFedIQ, section 5]."""
    if data.classes is not None:
        raise ValueError(f"{data.name} must be a regression dataset, it has {data.n_classes} classes")
    lowest, highest = data.label.min(), data.label.max()
    if lowest == highest:
        raise ValueError(f"{data.name} must have labels that differ, got only {lowest}")
    result: Array = (data.label - lowest) / (highest - lowest)
    return result


def _check(data: Data, n_clients: int, n_rounds: int, seed: int) -> None:
    checks.whole("n_clients", n_clients)
    checks.whole("n_rounds", n_rounds)
    checks.whole("seed", seed, least=0)
    if not len(data.label):
        raise ValueError(f"{data.name} must have at least one row, got none")


def _class_sizes(data: Data) -> Array:
    if data.classes is None:
        raise ValueError(f"{data.name} must be a classification dataset, its labels are real values")
    return data.class_sizes()


def _label(data: Data) -> Array:
    return unit_label(data) if data.classes is None else data.label.astype(np.float64)


def _renamed(data: Data, index: Array, permutation: Array) -> Array:
    """Return the labels (K, T) of a partition as each client numbers them."""
    shape = (len(index), len(_class_sizes(data)))
    if permutation.shape != shape:
        raise ValueError(f"permutation must have shape {shape}, got {permutation.shape}")
    return np.take_along_axis(permutation, data.label[index].astype(np.intp), axis=1).astype(np.float64)


def _constants(n_clients: int, dim: int, variance: float, rng: np.random.Generator) -> Array:
    checks.not_negative("spread_variance", variance)
    return rng.normal(0, np.sqrt(variance), (n_clients, dim))


def _draw_classes(prior: Array, rng: np.random.Generator) -> Array:
    """Return one class per round from the priors (T, C)."""
    below = np.cumsum(prior, axis=1)
    below /= below[:, -1:]
    result: Array = (rng.random((len(prior), 1)) >= below).sum(axis=1)
    return result


def _gaussian(n_rounds: int, n_features: int, rng: np.random.Generator) -> Array:
    deviation = np.sqrt(rng.uniform(0.5, 1.5))
    return rng.normal(0, deviation, (n_rounds, n_features))

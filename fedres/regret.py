"""Regret, one name per definition, each a curve: the regret of the first 1, 2, ..., T rounds.

[FedRes] Agarwal, Langford and Wei 2020, "Federated Residual Learning".
[FedOMD] Mitra, Hassani and Pappas, "Online Federated Learning".
[FedSEA] Sahu, Jawanpuria and Sharma 2026, "FedSEA: Achieving Benefit of Parallelization in Federated Online
Learning".
[OFedIQ] Kwon, Park and Hong, "Tighter Regret Analysis and Optimization of Online Federated Learning".
The comparator is the same all along the curve: the best model of the whole horizon.
"""

from __future__ import annotations

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.losses import Loss, Softmax


def sum_regret(losses: Array, comparator_losses: Array) -> Array:
    """Return Σ_t Σ_k of the losses over the comparator's, both (T, K) [OFedIQ, section 4.1]."""
    return np.cumsum(_excess(losses, comparator_losses).sum(axis=1))


def average_regret(losses: Array, comparator_losses: Array, client_weights: Array | None = None) -> Array:
    """Return 1/(PT) Σ_i λ_i Σ_t of the losses over the comparator's, both (T, P) [FedRes, eq. 1]."""
    excess = _excess(losses, comparator_losses)
    rounds, clients = excess.shape
    weights = np.ones(clients) if client_weights is None else checks.array("client_weights", client_weights, (clients,))
    return np.asarray(np.cumsum(excess @ weights) / (clients * np.arange(1, rounds + 1)))


def mean_regret(
    weights: Array,
    features: Array,
    label: Array,
    comparator: Array,
    loss: Loss,
    *,
    sample: int | None = None,
    rng: np.random.Generator | None = None,
) -> Array:
    """Return 1/m Σ_t Σ_i ℓ_t(x_i) − Σ_t ℓ_t(u) with ℓ_t the mean loss over the clients [FedOMD, section II].

    Every client's linear model is scored on every client's example: weights (T, m, D), features (T, m, d),
    label (T, m), comparator (D,). That costs m² a round; ``sample`` scores that many models drawn by ``rng``
    in each round instead, with the same expectation.
    """
    features = checks.array("features", features, (None, None, None))
    rounds, clients, width = features.shape
    size = width * _outputs(loss)
    weights = checks.array("weights", weights, (rounds, clients, size))
    label = checks.array("label", label, (rounds, clients))
    comparator = checks.array("comparator", comparator, (size,))
    if sample is not None and (rng is None or not 1 <= sample <= clients):
        raise ValueError(f"sample must be from 1 to {clients} and come with an rng, got {sample}, {rng}")
    gaps = np.empty(rounds)
    for t in range(rounds):
        models = weights[t]
        if sample is not None and rng is not None:
            models = models[rng.choice(clients, sample, replace=False)]
        scored = _mean_losses(np.vstack([models, comparator]), features[t], label[t], loss)
        gaps[t] = scored[:-1].mean() - scored[-1]
    return np.cumsum(gaps)


def average_iterate_regret(weights: Array, features: Array, label: Array, comparator: Array, loss: Loss) -> Array:
    """Return Σ_t ℓ_t(x_t) − ℓ_t(u) of x_t = 1/M Σ_m x_{t,m}, the average that no client plays [FedSEA, eq. 12 and 14].

    For quadratics of curvature L, ``mean_regret`` is this and L/2 Σ_t V_t, V_t the mean of ‖x_{t,m} − x_t‖².
    """
    weights = checks.array("weights", weights, (None, None, None))
    average = np.repeat(weights.mean(axis=1, keepdims=True), weights.shape[1], axis=1)
    return mean_regret(average, features, label, comparator, loss)


class AverageIterate:
    """x̂_T = 1/(mT) Σ_t Σ_i x_{i,t}, the predictor whose risk [FedOMD, theorem 3, eq. 14] bounds, as a running mean.

    >>> average = AverageIterate()
    >>> average.add(np.array([[1.0, 0.0], [3.0, 0.0]]))
    >>> average.add(np.array([[0.0, 4.0], [0.0, 4.0]]))
    >>> average.weights
    array([1., 2.])
    """

    def __init__(self) -> None:
        self.rounds = 0
        self._total: float | Array = 0.0

    def add(self, weights: Array) -> None:
        """Add the weights of m clients' predictions in one round, (m, D): ``Round.weights``."""
        self._total = self._total + checks.array("weights", weights, (None, None)).mean(axis=0)
        self.rounds += 1

    @property
    def weights(self) -> Array:
        if not self.rounds:
            raise ValueError("weights must be added before they are averaged, got none")
        return np.asarray(self._total / self.rounds)


def log_log_slope(x: Array, y: Array) -> tuple[float, float]:
    """Return the least-squares slope of ln y in ln x, and its standard error."""
    x = checks.array("x", x, (None,))
    y = checks.array("y", y, (len(x),))
    if len(x) < 3 or (x <= 0).any() or (y <= 0).any():
        raise ValueError(f"x and y must be at least 3 positive numbers each, got {x} and {y}")
    across, up = np.log(x) - np.log(x).mean(), np.log(y) - np.log(y).mean()
    spread = float(across @ across)
    if spread == 0:
        raise ValueError(f"x must take at least two values, got {x}")
    slope = float(across @ up) / spread
    left = up - slope * across
    return slope, float(np.sqrt(left @ left / (len(x) - 2) / spread))


def _excess(losses: Array, comparator_losses: Array) -> Array:
    losses = checks.array("losses", losses, (None, None))
    return losses - checks.array("comparator_losses", comparator_losses, losses.shape)


def _outputs(loss: Loss) -> int:
    return loss.outputs if isinstance(loss, Softmax) else 1


def _mean_losses(models: Array, features: Array, label: Array, loss: Loss) -> Array:
    """Return each model's loss, a mean over the examples."""
    tables = models.reshape(len(models), features.shape[1], -1)
    scores = features @ tables  # (models, examples, outputs)
    prediction = scores if isinstance(loss, Softmax) else scores[..., 0]
    mean: Array = loss.value(prediction, np.broadcast_to(label, prediction.shape[:2])).mean(axis=1)
    return mean

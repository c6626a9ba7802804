"""Step sizes: schedules, which are functions of the round t = 1, 2, ..., and the theorems' choices.

[FedRes] Agarwal, Langford and Wei 2020, "Federated Residual Learning".
[FedOMD] Mitra, Hassani and Pappas, "Online Federated Learning".
[FedSEA] Sahu, Jawanpuria and Sharma 2026, "FedSEA: Achieving Benefit of Parallelization in Federated Online
Learning".
[OFedIQ] Kwon, Park and Hong, "Tighter Regret Analysis and Optimization of Online Federated Learning".
[DynFed] Rizk, Vlaski and Sayed, "Dynamic Federated Learning".
† marks a formula worked out here, not printed in the paper. ``bounds`` has the guarantees that go with these
steps, and explains the arguments that the two share.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

import numpy as np

from fedres import checks
from fedres.bounds import ofediq_spread
from fedres.checks import Array

Schedule = Callable[[int], float]
StepSize = float | Schedule

BELOW = 0.99  # the share taken of a limit that a step must stay under


@dataclass(frozen=True, slots=True)
class Constant:
    """The same step in every round."""

    value: float

    def __post_init__(self) -> None:
        checks.positive("value", self.value)

    def __call__(self, t: int) -> float:
        return self.value


@dataclass(frozen=True, slots=True)
class InverseTime:
    """``numerator / (t + shift)``."""

    numerator: float
    shift: float = 0.0

    def __post_init__(self) -> None:
        checks.positive("numerator", self.numerator)
        checks.not_negative("shift", self.shift)

    def __call__(self, t: int) -> float:
        return self.numerator / (t + self.shift)


@dataclass(frozen=True, slots=True)
class InverseSqrt:
    """``value / √t``."""

    value: float

    def __post_init__(self) -> None:
        checks.positive("value", self.value)

    def __call__(self, t: int) -> float:
        return self.value / math.sqrt(t)


def as_schedule(step_size: float | Schedule) -> Schedule:
    """Return a schedule: a number becomes a constant one; a function must give a positive first step."""
    if isinstance(step_size, Real):
        checks.positive("step_size", float(step_size))
        return Constant(float(step_size))
    if not callable(step_size):
        raise ValueError(f"step_size must be a number or a function of t, got {step_size!r}")
    checks.positive("step_size(1)", step_size(1))
    return step_size


def fedres_sgd(
    *,
    n_rounds: int,
    global_norm: float,
    local_norms: Array,
    variance: float,
    delay: float,
    smoothness: float,
    gradient_bound: float,
    batch: int = 1,
) -> tuple[float, Array]:
    """Return † (η, η_i) for [FedRes, theorem 2]: near the steps that minimise its bound, also with mini-batches."""
    norms = checks.array("local_norms", local_norms, (None,))
    if batch > 1:
        n_rounds, variance, delay = n_rounds // batch, variance / batch, math.ceil(delay / batch) + 1
    if variance <= 0 and delay <= 0:
        raise ValueError(f"variance or delay must be positive, got {variance} and {delay}")

    def step(norm: float, share: int) -> float:  # share: how many clients' gradients a step sums
        checks.positive("norm", norm)
        noisy = math.sqrt(norm**2 / (n_rounds * share * variance)) if variance > 0 else math.inf
        bent = smoothness * share**3 * gradient_bound**2 * delay**2 * n_rounds
        return min(noisy, (norm**2 / bent) ** (1 / 3) if bent > 0 else math.inf)

    return step(global_norm, len(norms)), np.array([step(norm, 1) for norm in norms])


def fedres_bandit_period(
    *,
    n_rounds: int,
    n_actions: int,
    global_norm: float,
    local_norms: Array,
    variance: float,
    smoothness: float,
    gradient_bound: float,
    radius: float,
) -> int:
    """Return B of [FedRes, theorem 3, appendix D], a whole number: how often to explore, whatever the delay."""
    norms = checks.array("local_norms", local_norms, (None,))
    T, P, K = n_rounds, len(norms), n_actions
    size = (global_norm**2 + float((norms**2).sum())) * variance
    noisy = float(P * T / (K**4 * size)) ** (1 / 5) if size > 0 else math.inf
    bent = T ** (1 / 4) / float(K**6 * smoothness * radius**4 * gradient_bound**2) ** (1 / 8)
    ends = T ** (1 / 3) / float(K**2 * radius * gradient_bound) ** (1 / 3)
    return max(1, math.floor(float(min(noisy, bent, ends))))


def fedogd(*, n_rounds: int, comparator_norm: float, sigma_diff2: float, smoothness: float) -> float:
    """Return the η under 1/(2β) that minimises [OFedIQ, theorem 1 with p = 1]."""
    return ofedavg(
        n_rounds=n_rounds,
        comparator_norm=comparator_norm,
        sigma_diff2=sigma_diff2,
        smoothness=smoothness,
        p_min=1.0,
    )


def ofedavg(*, n_rounds: int, comparator_norm: float, sigma_diff2: float, smoothness: float, p_min: float) -> float:
    """Return the η under p_min/(2β) that minimises [OFedIQ, theorem 1]."""
    limit = BELOW * p_min / (2 * smoothness)
    return _best(comparator_norm, 2 * sigma_diff2 * n_rounds / p_min, limit)


def ofediq(
    *,
    n_rounds: int,
    n_clients: int,
    comparator_norm: float,
    sigma_diff2: float,
    smoothness: float,
    period: int,
    p_min: float,
    p_sum: float,
    quantizer_variance: float,
) -> float:
    """Return the η of [OFedIQ, corollary 1], kept under p_min/(4βLR): the minimiser of theorem 2 at L = 1.

    Corollary 1 counts the 1 of its C twice under the root; its own α, and so this step, counts it once.
    """
    R = ofediq_spread(n_clients=n_clients, p_min=p_min, p_sum=p_sum, quantizer_variance=quantizer_variance)
    noise = 4 * period / p_min * (3 * p_min**2 * (period - 1) / 8 + R)
    return _best(comparator_norm, noise * sigma_diff2 * n_rounds, BELOW * p_min / (4 * smoothness * period * R))


def fedomd_convex(*, n_rounds: int, diameter: float, lipschitz: float, period: int) -> float:
    """Return η = D/(L√(5τT)), which minimises [FedOMD, theorem 1] (printed there with L under the root)."""
    return diameter / (lipschitz * math.sqrt(5 * period * n_rounds))


def fedomd_strongly_convex(mu: float) -> InverseTime:
    """Return η_t = 1/(μt) [FedOMD, theorem 2] for ψ = ½‖·‖² and μ-strongly convex losses."""
    return InverseTime(1 / mu)


def fedsea_convex(
    *,
    n_rounds: int,
    n_clients: int,
    distance: float,
    smoothness: float,
    variance: float,
    temporal: float,
    period: int,
) -> float:
    """Return the η of [FedSEA, theorem 1] within lemma 4's limits: it minimises the bound as η → 0."""
    limit = 1 / (8 * smoothness)
    if period > 1:
        limit = min(limit, 1 / (4 * math.sqrt(6) * smoothness * (period - 1)))
    return _best(distance, n_rounds * (variance / n_clients + 4 * smoothness * temporal), limit)


def fedsea_strongly_convex(mu: float, smoothness: float, period: int) -> InverseTime:
    """Return † η_t = 2/(μ(t + t_s)) for [FedSEA, theorem 2], late enough for its conditions from t = 1 on."""
    kappa, local = smoothness / mu, period - 1
    return InverseTime(2 / mu, shift=max(16 * kappa, 8 * kappa * local, 18.6 * kappa**1.5 * local))


def dynamic_fedavg(drift: float, noise: float) -> float:
    """Return † the μ < 1 that minimises ``bounds.dynamic_fedavg_msd``: about √(Q/S) for small drift Q."""
    checks.positive("drift", drift)
    checks.positive("noise", noise)
    ratio = drift / noise
    return 2 / (1 + math.sqrt(1 + 4 / ratio))  # the root of μ² + (Q/S)μ = Q/S


def stable_step(curvature: float, delay: int) -> float:
    """Return 2 sin(π/(2(2τ + 1)))/λ: from there on w_{t+1} = w_t − ηλ w_{t−τ} no longer tends to 0."""
    checks.positive("curvature", curvature)
    checks.whole("delay", delay, least=0)
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1))) / curvature


def _best(norm: float, growth: float, limit: float) -> float:
    """Return the η ≤ limit that minimises norm²/(2η) + growth·η/2."""
    return min(norm / math.sqrt(growth), limit) if growth > 0 else limit

"""Value of a target policy from decisions that another policy logged.

[DLL11] M. Dudík, J. Langford, L. Li. *Doubly Robust Policy Evaluation and Learning*. ICML 2011.
[SJ15]  A. Swaminathan, T. Joachims. *The Self-Normalized Estimator for Counterfactual Learning*. NeurIPS 2015.
[TB16]  P. Thomas, E. Brunskill. *Data-Efficient Off-Policy Policy Evaluation*. ICML 2016.
[WAD17] Y.-X. Wang, A. Agarwal, M. Dudík. *Optimal and Adaptive Off-policy Evaluation*. ICML 2017.
[SDKD20] Y. Su, M. Dimakopoulou, A. Krishnamurthy, M. Dudík. *Doubly Robust Off-Policy Evaluation with
         Shrinkage*. ICML 2020.

Every estimator returns one contribution per event. Their mean is the estimate, and their spread is its uncertainty: a
self-normalized estimate is linearized (delta method), so that this holds for it too. Contributions of two policies on
one log can be subtracted event by event.

Symbols: r reward, w = π(a given x) / p(a given x) weight, q predicted reward of the action taken, and
v = Σ_a π(a given x) q(x, a) baseline, the predicted value of the target policy in the event.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from fedres.checks import Array, array, not_negative

N_CANDIDATES = 30


@dataclass(frozen=True, slots=True)
class Sample:
    """What the estimators need of each event; ``predicted`` and ``baseline`` are 0 without a reward model."""

    reward: Array  # r
    weight: Array  # w
    predicted: Array  # q
    baseline: Array  # v


def sample(
    reward: npt.ArrayLike,
    propensity: npt.ArrayLike,
    target: npt.ArrayLike,
    *,
    chosen: npt.ArrayLike | None = None,
    offsets: npt.ArrayLike | None = None,
    target_all: npt.ArrayLike | None = None,
    predicted_all: npt.ArrayLike | None = None,
) -> Sample:
    """Return the events with their weights ``target / propensity``.

    ``target`` is the target policy's probability of the action that was taken. For the estimators with a reward model,
    ``target_all`` and ``predicted_all`` hold π(a given x) and q(x, a) of every action of event i in
    ``offsets[i]:offsets[i + 1]``, and ``chosen[i]`` is the place of the action taken in them.
    """
    r = array("reward", reward, (None,))
    p, pi = array("propensity", propensity, r.shape), array("target", target, r.shape)
    _within("propensity", p, (p > 0) & (p <= 1), "in (0, 1]")
    _within("target", pi, (pi >= 0) & (pi <= 1 + 1e-9), "in [0, 1]")
    if chosen is None or offsets is None or target_all is None or predicted_all is None:
        return Sample(r, pi / p, np.zeros_like(r), np.zeros_like(r))
    q = array("predicted_all", predicted_all, (None,))
    starts = np.asarray(offsets, dtype=np.int64)[:-1]
    baseline = np.add.reduceat(array("target_all", target_all, q.shape) * q, starts)
    return Sample(r, pi / p, q[np.asarray(chosen, dtype=np.int64)], baseline)


def _within(name: str, value: Array, good: Array, rule: str) -> None:
    if not good.all():
        raise ValueError(f"{name} must be {rule}, got {value[~good][0]}")


def ips(s: Sample) -> Array:
    """Inverse propensity score: unbiased, and noisy where weights are large."""
    return np.multiply(s.weight, s.reward)  # w r


def snips(s: Sample) -> Array:
    """Self-normalized IPS: a little biased, steadier, and moves with the rewards when these are shifted."""
    return _normalised(s.weight, s.reward)  # Σ w r / Σ w [SJ15]


def direct_method(s: Sample) -> Array:
    """The reward model's word alone: no noise from weights, all of the model's bias."""
    return s.baseline  # v


def doubly_robust(s: Sample) -> Array:
    """The model's value, corrected by the weighted errors it made: unbiased whatever the model."""
    return _corrected(s, s.weight)  # v + w (r − q) [DLL11]


def self_normalised_dr(s: Sample) -> Array:
    """DR with its correction self-normalized."""
    return np.add(s.baseline, _normalised(s.weight, s.reward - s.predicted))  # v + Σ w (r − q) / Σ w [TB16]


def switch_dr(s: Sample, threshold: float | None = None) -> Array:
    """DR where the weight is at most ``threshold``, the model alone elsewhere; chosen from the data when not given."""
    if threshold is not None:
        return _corrected(s, _switched(s.weight, threshold))
    return _best(s, _switched, _spread(s.weight))


def dros(s: Sample, shrinkage: float | None = None) -> Array:
    """DR with weights shrunk by λ = ``shrinkage``: 0 is DM, ∞ is DR; chosen from the data when not given."""
    if shrinkage is not None:
        return _corrected(s, _shrunk(s.weight, shrinkage))
    return _best(s, _shrunk, _spread(s.weight) ** 2)


def _normalised(weight: Array, value: Array) -> Array:
    """Return θ + w (y − θ) / w̄ with θ = Σ w y / Σ w: mean θ, spread as the delta method says; NaN if no weight."""
    total = weight.sum()
    if total == 0:
        return np.full_like(value, np.nan)
    ratio = (weight * value).sum() / total
    linearised: Array = ratio + weight * (value - ratio) * (weight.size / total)
    return linearised


def _switched(weight: Array, threshold: float) -> Array:
    if threshold < 0:
        raise ValueError(f"threshold must be at least 0, got {threshold}")
    return np.where(weight <= threshold, weight, 0.0)  # w 1{w ≤ τ} [WAD17, SDKD20]


def _shrunk(weight: Array, shrinkage: float) -> Array:
    if shrinkage == np.inf:
        return weight
    not_negative("shrinkage", shrinkage)
    scale = weight**2 + shrinkage
    return np.divide(shrinkage * weight, scale, out=np.zeros_like(weight), where=scale > 0)  # λ w / (w² + λ) [SDKD20]


def _corrected(s: Sample, weight: Array) -> Array:
    contributions: Array = s.baseline + weight * (s.reward - s.predicted)
    return contributions


def _spread(weight: Array) -> Array:
    """Return candidates from far below the positive weights to far above, and ∞."""
    positive = weight[weight > 0]
    if positive.size == 0:
        return np.array([np.inf])
    low, high = positive.min() / 10, positive.max() * 10
    return np.append(np.geomspace(low, high, N_CANDIDATES), np.inf)


def _best(s: Sample, change: Callable[[Array, float], Array], candidates: Array) -> Array:
    """Return the contributions of the candidate with the least estimated squared error: variance plus squared bias.

    The bias is estimated by the mean of what the candidate leaves out of DR, (w − ŵ)(r − q) [SDKD20, sec. 5].
    """
    dr = doubly_robust(s).mean()

    def squared_error(contributions: Array) -> float:
        return float(contributions.var() / contributions.size + (dr - contributions.mean()) ** 2)

    return min((_corrected(s, change(s.weight, candidate)) for candidate in candidates), key=squared_error)


ESTIMATORS: Mapping[str, Callable[[Sample], Array]] = MappingProxyType(
    {
        "ips": ips,
        "snips": snips,
        "dm": direct_method,
        "dr": doubly_robust,
        "sndr": self_normalised_dr,
        "switch-dr": switch_dr,
        "dros": dros,
    }
)
MODEL_FREE = frozenset({"ips", "snips"})
SELF_NORMALISED = frozenset({"snips", "sndr"})

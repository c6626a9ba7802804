"""Privacy of a device's local prediction: clipping, noise and rounding, and an account of what uploads reveal.

The guarantee is local differential privacy of the prediction: whatever the private features and the local model were,
an observer of n uploads gets (ε, δ)-similar predictions. All of an upload but the prediction is outside of it.
The clip bounds how far two predictions lie apart (the sensitivity 2C), and rounding comes after the noise, so that it
costs nothing. Rounding is to the nearest multiple, not randomized: noise has dithered the value already, and without
noise the mean of repeated random roundings would reveal the exact value.

The account holds for noise in real numbers. Here noise consists of 64-bit floats, whose last digits can reveal more
about the value below [Mironov]; a ``step`` drops these digits. Use one of about a tenth of the scale or more.

[BalleWang] B. Balle, Y.-X. Wang. Improving the Gaussian Mechanism for Differential Privacy. 2018.
[Mironov] I. Mironov. On Significance of the Least Significant Bits for Differential Privacy. 2012.
[KOV] P. Kairouz, S. Oh, P. Viswanath. The Composition Theorem for Differential Privacy. 2015.
[GDP] J. Dong, A. Roth, W. J. Su. Gaussian Differential Privacy. 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from fedres import checks

NOISES = ("gaussian", "laplace")
LARGEST = 1e6  # of clip, step and scale: released values then lie within ±1e9, which servers accept
_MOST = 1e4  # ε beyond which there is practically no privacy


@dataclass(frozen=True, slots=True)
class Privacy:
    """How local predictions are released. A released value is a multiple of ``step``, and can lie beyond ``clip``.

    >>> privacy = Privacy(clip=1.0, step=0.25, noise="laplace", scale=2.0)
    >>> privacy.epsilon()
    1.0
    >>> privacy.release(0.3, np.random.default_rng(5)) % 0.25
    0.0
    """

    clip: float | None = None  # C: predictions are brought into [−C, C]
    step: float | None = None  # released values are multiples of it
    noise: str | None = None  # gaussian or laplace; needs clip and scale
    scale: float | None = None  # σ of gaussian, b of laplace noise

    def __post_init__(self) -> None:
        for name in ("clip", "step", "scale"):
            if getattr(self, name) is not None:
                _check_size(name, getattr(self, name))
        if self.noise is None:
            if self.scale is not None:
                raise ValueError(f"scale must come with noise, got {self.scale} without")
            return
        checks.one_of("noise", self.noise, NOISES)
        for name in ("clip", "scale"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} must be given where there is noise, got None")

    def release(self, prediction: float, rng: np.random.Generator) -> float:
        """Return the value to send for a local prediction. The draws of ``rng`` must be secret."""
        if not math.isfinite(prediction):
            raise ValueError(f"prediction must be finite, got {prediction}")
        value = float(prediction)
        if self.clip is not None:
            value = min(max(value, -self.clip), self.clip)
        if self.noise is not None:
            assert self.scale is not None
            value += float((rng.normal if self.noise == "gaussian" else rng.laplace)(0.0, self.scale))
        return value if self.step is None else _rounded(value, self.step)

    def epsilon(self, n_uploads: int = 1, delta: float = 0.0) -> float:
        """Return the ε of ``n_uploads`` at this δ; infinity if there is no guarantee."""
        _check_account(n_uploads, delta)
        if self.noise is None:
            return math.inf
        if self.noise == "laplace":
            return _composed(self._ratio(), n_uploads, delta)
        return _gaussian_epsilon(self._ratio() * math.sqrt(n_uploads), delta)

    def delta(self, epsilon: float, n_uploads: int = 1) -> float:
        """Return the least δ of ``n_uploads`` at this ε: exact for gaussian noise, and for one upload with laplace."""
        _check_account(n_uploads, 0.0)
        checks.not_negative("epsilon", epsilon)
        if self.noise is None:
            return 1.0
        if self.noise == "gaussian":
            return _gaussian_delta(self._ratio() * math.sqrt(n_uploads), epsilon)
        return _laplace_delta(self._ratio(), epsilon, n_uploads)

    def _ratio(self) -> float:
        """Return sensitivity / scale: 2C/σ or 2C/b."""
        assert self.clip is not None
        assert self.scale is not None
        return 2 * self.clip / self.scale


def scale_for(noise: str, clip: float, epsilon: float, delta: float = 0.0, n_uploads: int = 1) -> float:
    """Return the least scale with which ``n_uploads`` together are (ε, δ)-private; gaussian noise needs δ > 0.

    >>> scale_for("laplace", clip=1.0, epsilon=0.5)
    4.0
    """
    checks.one_of("noise", noise, NOISES)
    checks.positive("clip", clip)
    checks.positive("epsilon", epsilon)
    _check_account(n_uploads, delta)
    if noise == "laplace":
        return 2 * clip / _each(epsilon, n_uploads, delta)
    if delta == 0:
        raise ValueError("delta must be in (0, 1) for gaussian noise, got 0")
    ratio = _root(lambda log: _gaussian_delta(math.exp(log), epsilon) - delta, -30.0, 30.0)
    return 2 * clip * math.sqrt(n_uploads) / math.exp(ratio)


def _rounded(value: float, step: float) -> float:
    """Return the nearest multiple; a number so large that floats near it are wider apart than the step stays."""
    multiple = value / step
    return value if abs(multiple) >= 2**53 else round(multiple) * step


def _gaussian_delta(ratio: float, epsilon: float) -> float:
    """δ = Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ) [BalleWang, theorem 8], Δ/σ = ``ratio``.

    n uploads are one with √n times the ratio [GDP, corollary 3.3].
    """
    above, below = ratio / 2 - epsilon / ratio, -ratio / 2 - epsilon / ratio
    return max(float(ndtr(above) - math.exp(epsilon + float(log_ndtr(below)))), 0.0)


def _gaussian_epsilon(ratio: float, delta: float) -> float:
    if delta == 0 or _gaussian_delta(ratio, _MOST) > delta:
        return math.inf
    if _gaussian_delta(ratio, 0.0) <= delta:
        return 0.0
    return _root(lambda epsilon: _gaussian_delta(ratio, epsilon) - delta, 0.0, _MOST)


def _composed(each: float, n_uploads: int, delta: float) -> float:
    """Return the smaller of basic and advanced composition of n times ε = ``each``.

    Advanced: nε·(e^ε − 1)/(e^ε + 1) + ε√(2n ln 1/δ) [KOV, theorem 3.4].
    """
    basic = n_uploads * each
    if delta == 0:
        return basic
    return min(basic, basic * math.tanh(each / 2) + each * math.sqrt(2 * n_uploads * math.log(1 / delta)))


def _each(epsilon: float, n_uploads: int, delta: float) -> float:
    """Return the ε that each of n uploads may have."""
    if _composed(epsilon, n_uploads, delta) <= epsilon:
        return epsilon
    return _root(lambda each: _composed(each, n_uploads, delta) - epsilon, epsilon / n_uploads / 2, epsilon)


def _laplace_delta(each: float, epsilon: float, n_uploads: int) -> float:
    if epsilon >= n_uploads * each:
        return 0.0
    if n_uploads == 1:
        return -math.expm1((epsilon - each) / 2)
    beyond = epsilon - n_uploads * each * math.tanh(each / 2)
    return math.exp(-(beyond**2) / (2 * n_uploads * each**2)) if beyond > 0 else 1.0


def _root(function: Any, low: float, high: float) -> float:
    return float(brentq(function, low, high, xtol=1e-13, rtol=1e-13))


def _check_size(name: str, value: float) -> None:
    checks.positive(name, value)
    if value > LARGEST:
        raise ValueError(f"{name} must be at most {LARGEST:g}, got {value}")


def _check_account(n_uploads: int, delta: float) -> None:
    checks.whole("n_uploads", n_uploads)
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), got {delta}")

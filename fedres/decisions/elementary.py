"""exp and log in sums and products, compiled: those of C libraries differ in the last bit between processors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedres.compiling import bare_kernel, inner_kernel

_LOG2_HIGH, _LOG2_LOW, _PER_LOG2 = 6.93147180369123816490e-01, 1.90821492927058770002e-10, 1 / math.log(2)
_BIAS, _FRACTION = 1023, 52  # of a float64: of its exponent, and the bits after that
_EXP = tuple(1 / math.factorial(k) for k in range(14))
_ARTANH = tuple(1 / k for k in range(1, 24, 2))


@inner_kernel
def _series(coefficients: tuple[float, ...], x: float) -> Any:
    """Return Σ c x^k; even and odd k by themselves, which takes half the time."""
    even, odd, square = 0.0, 0.0, x * x
    for k in range(len(coefficients) - 2, -1, -2):
        even = even * square + coefficients[k]
        odd = odd * square + coefficients[k + 1]
    return even + x * odd


@bare_kernel
def exp(x: float) -> Any:
    """Return e^x of an x below 700, to the last bits: 2^k times the series of the remainder, at most log(2)/2."""
    if x < -700.0:
        return 0.0
    k = math.floor(x * _PER_LOG2 + 0.5)
    power: Any = np.int64(np.int64(k) + _BIAS << _FRACTION)
    return _series(_EXP, (x - k * _LOG2_HIGH) - k * _LOG2_LOW) * power.view(np.float64)


@bare_kernel
def log(x: float) -> Any:
    """Return log x of a normal x above 0, to the last bits: 2 artanh((m − 1)/(m + 1)) and k log 2 of x = 2^k m."""
    bits: Any = np.float64(x).view(np.int64)
    k = (bits >> _FRACTION) - _BIAS
    m = np.int64(bits - (k << _FRACTION)).view(np.float64)  # from 1 to 2
    if m > math.sqrt(2.0):
        m, k = m / 2, k + 1
    s = (m - 1) / (m + 1)
    return k * _LOG2_HIGH + (2 * s * _series(_ARTANH, s * s) + k * _LOG2_LOW)

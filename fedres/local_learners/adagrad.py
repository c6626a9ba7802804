"""The step of ``vw --adaptive`` (Vowpal Wabbit 9) in compiled form, bit for bit: AdaGrad on the squared loss.

32-bit floats; features in turn, the constant last; every joint prediction clamped to a range that holds 0.
The state of a model is one array: [lo, hi, dim + 1 weights, dim + 1 sums of squared gradients]. Feature k of an example
is ``values[k]`` for weight ``shift + indices[k]``; ``constant`` is the constant feature's value, 1, or 0 for none.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import types
from numba.extending import intrinsic

from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel, kernel

# VW's builds round once per multiply-and-add on ARM, where compilers fuse the two, and twice on x86-64.
FUSED = platform.machine().lower() in {"aarch64", "arm64"}

_SMALLEST_SQUARE = np.float32(1.084202e-19) * np.float32(1.084202e-19)  # VW's X2_MIN

Real = Any  # float32 inside the kernels, where mixing in a float64 would change the rounding
Function = TypeVar("Function", bound=Callable[..., Any])


def _fused(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float32(types.float32, types.float32, types.float32), generate


def _rounded_twice(a: Real, b: Real, c: Real) -> Real:
    return a * b + c


# float32 a*b + c, rounded as VW rounds it on this machine
multiply_add: Any = intrinsic(_fused) if FUSED else kernel(_rounded_twice)


@kernel
def at(place: Any) -> Any:
    """Return a place that is not negative as an unsigned number: numba then does not look for one from the end."""
    return np.uint64(place)


@inner_kernel
def dim_of(state: Array) -> int:
    """Return the number of features, the constant not counted."""
    return (state.size - 4) // 2


@bare_kernel
def valid(indices: Array, values: Array, dim: int) -> bool:
    """Return whether all indices are in [0, dim) and all values finite as 32-bit floats."""
    ok = True
    for k in range(values.size):
        ok &= 0 <= indices[k] < dim and np.isfinite(np.float32(values[k]))
    return ok


@bare_kernel
def see(state: Array, label: Real) -> None:
    """Widen the range of predictions to hold ``label``."""
    state[0] = min(state[0], np.float32(label))
    state[1] = max(state[1], np.float32(label))


@inner_kernel
def joint(state: Array, indices: Array, shift: int, values: Array, constant: Real, offset: Real) -> Real:
    """Return offset + Σ w_j x_j, not clamped; 0 if that is no number, as in VW."""
    total = np.float32(offset)
    for k in range(values.size):
        x = np.float32(values[k])
        if x != 0:
            total = multiply_add(state[at(2 + shift + indices[k])], x, total)
    if constant != 0:
        total = multiply_add(state[at(2 + dim_of(state))], np.float32(constant), total)
    return total if total == total else np.float32(0)


@inner_kernel
def clamp(state: Array, prediction: Real) -> Real:
    """Return the prediction within the range of the labels seen."""
    return min(max(prediction, state[0]), state[1])


@inner_kernel
def _accumulate(squares: Array, j: int, x: Real, squared_slope: Real) -> None:
    """G_j += (weight·4·e·e)·(x·x)"""
    squares[at(j)] = multiply_add(squared_slope, max(x * x, _SMALLEST_SQUARE), squares[at(j)])


@inner_kernel
def _move(weights: Array, squares: Array, j: int, x: Real, pull: Real) -> None:
    """w_j += (2·e·η·weight)·(x·(1/√G_j)); no step where G_j underflowed to 0, which makes VW's weight infinite."""
    if squares[at(j)] > 0:
        weights[at(j)] = multiply_add(pull, x * (np.float32(1) / np.sqrt(squares[at(j)])), weights[at(j)])


@inner_kernel
def in_a_row(indices: Array) -> bool:
    """Return whether indices count up by one: those of a dense example do."""
    ok = indices.size > 0
    for k in range(indices.size):
        ok &= indices[k] == indices[0] + k
    return ok


@inner_kernel
def step_in_a_row(weights: Array, squares: Array, values: Array, squared_slope: Real, pull: Real) -> None:
    """Take the step of weights that lie one after the other: side by side, which is faster."""
    for k in range(values.size):
        x = np.float32(values[k])
        square = max(x * x, _SMALLEST_SQUARE)
        total = multiply_add(squared_slope, square, squares[k])
        total = total if x != 0 else squares[k]
        moved = multiply_add(pull, x * (np.float32(1) / np.sqrt(total)), weights[k])
        weights[k] = moved if x != 0 and total > 0 else weights[k]
        squares[k] = total


@inner_kernel
def adaptive_step(
    weights: Array,
    squares: Array,
    indices: Array,
    shift: int,
    values: Array,
    constant: Real,
    error: Real,
    rate: Real,
    importance: Real,
) -> None:
    """Take VW's step of label − prediction = ``error``, of importance weight h: h times the pull and the squared slope.

    ``squares`` are the sums of squared gradients; the constant has the last place. A negative index has no weight.
    """
    h = np.float32(importance)
    if not h * error * error > 0:
        return
    squared_slope = h * (np.float32(4) * error * error)
    pull = np.float32(2) * error * (np.float32(rate) * h)
    last = weights.size - 1
    if in_a_row(indices) and indices[0] >= 0:
        first, end = shift + indices[0], shift + indices[0] + values.size
        step_in_a_row(weights[first:end], squares[first:end], values, squared_slope, pull)
    else:
        for k in range(values.size):  # all sums before all weights: an index that comes twice sees its last sum
            if np.float32(values[k]) != 0 and indices[k] >= 0:
                _accumulate(squares, shift + indices[k], np.float32(values[k]), squared_slope)
        for k in range(values.size):
            if np.float32(values[k]) != 0 and indices[k] >= 0:
                _move(weights, squares, shift + indices[k], np.float32(values[k]), pull)
    if constant != 0:
        _accumulate(squares, last, np.float32(constant), squared_slope)
        _move(weights, squares, last, np.float32(constant), pull)


@inner_kernel
def weighted_step(
    state: Array,
    indices: Array,
    shift: int,
    values: Array,
    constant: Real,
    error: Real,
    rate: Real,
    importance: Real,
) -> None:
    """Take that step of a model that is one array."""
    middle = 3 + dim_of(state)
    adaptive_step(state[2:middle], state[middle:], indices, shift, values, constant, error, rate, importance)


@inner_kernel
def step(state: Array, indices: Array, shift: int, values: Array, constant: Real, error: Real, rate: Real) -> None:
    """Take the step of label − prediction = ``error``."""
    weighted_step(state, indices, shift, values, constant, error, rate, np.float32(1))

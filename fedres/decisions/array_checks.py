"""Checks of the arrays of a ``residual-kalman`` model, made whenever one is read from bytes.

An admin can upload a model, and a snapshot or a base may be damaged. Compiled code trusts counts, tables and places;
huge finite numbers become NaN when the model learns. Every bound is far beyond any number that learning produces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.decisions.constants import (
    CHOICE_EVENTS,
    FIRST_VALUES,
    IDLE_DRIFT,
    LEAST_LOG_DRIFT,
    LEAST_LOG_TAU,
    LEAST_NOISE,
    MAX_BLOCKS,
    MOST_KEPT,
    MOST_LOG_DRIFT,
    MOST_LOG_TAU,
    MOST_NOISE,
    START_EVENTS,
    TAIL_BITS,
)
from fedres.decisions.kalman_state import (
    DEVIATION,
    DRIFT_IDLE,
    DRIFT_SINCE,
    DRIFT_SQUARES,
    LEARNED,
    LENGTH,
    LOG_DRIFT,
    NOISE,
    RMS,
    SCALES,
    UNIT,
    Events,
    check_shapes,
    require,
)

MOST_FEATURES = 2_002  # of a kept event: 1,000 of its context, 1,000 of its action, and its id
LARGEST = 1e12  # of weights, in spans of rewards
LARGEST_SQUARES = 1e60  # of sums of squares
MOST_VARIANCE = math.exp(MOST_LOG_TAU) * (1 + 1e-6)
ROUNDING = 1e-6  # of covariances and bases


def check_arrays(arrays: Mapping[str, Array]) -> None:
    """Refuse arrays with wrong names, types or shapes, places that do not exist, or numbers out of bounds."""
    first = {name.removeprefix("first."): array for name, array in arrays.items() if name.startswith("first.")}
    arrays = {name: array for name, array in arrays.items() if not name.startswith("first.")}
    if not arrays:
        if first:
            check_first(first, None)
        return
    check_shapes(arrays, MAX_BLOCKS, TAIL_BITS)
    if first:
        check_first(first, int(arrays["counts"][LEARNED]))
    _check_scales(arrays)
    _check_priors(arrays)
    _check_weights(arrays)


def _check_scales(arrays: Mapping[str, Array]) -> None:
    """Refuse rows that are not counted, and keys that come twice."""
    keys, core, seen, stats = (arrays[f"scale_{name}"] for name in ("keys", "core", "seen", "stats"))
    slots, n = np.flatnonzero(keys), int(arrays["counts"][SCALES])
    require(slots.size == n, "scale_keys", f"must have as many keys as counts has scales, {n}", slots.size)
    require(np.unique(keys[slots]).size == n, "scale_keys", "must have every key once", keys[slots])
    d, used = arrays["moment"].shape[0], keys != 0
    _bounded("scale_core", core[used], -1, d - 1)
    _bounded("scale_core", core[~used], -1, -1)
    _bounded("scale_seen", seen[used], 1, FIRST_VALUES)
    _bounded("scale_seen", seen[~used], 0, 0)
    _bounded("scale_first", arrays["scale_first"])
    _bounded("scale_stats", stats, -1e39, 1e39)
    for column in (UNIT, RMS):
        require(bool((stats[used, column] > 0).all()), "scale_stats", "must have positive units", stats[used, column])
    _bounded("scale_stats", stats[used, DEVIATION], 0)


def _check_priors(arrays: Mapping[str, Array]) -> None:
    numbers, drift, counts = arrays["numbers"], arrays["drift"], arrays["counts"]
    _bounded("numbers", numbers[NOISE], LEAST_NOISE, MOST_NOISE)
    _bounded("numbers", numbers[LENGTH], 1, 1e6)
    _bounded("drift", drift[LOG_DRIFT], LEAST_LOG_DRIFT, MOST_LOG_DRIFT)
    _bounded("drift", drift[DRIFT_SQUARES], 0, LARGEST_SQUARES)
    _bounded("drift", drift[DRIFT_IDLE], 0, IDLE_DRIFT)
    _bounded("drift", drift[DRIFT_SINCE], 0, counts[LEARNED])
    _bounded("log_tau", arrays["log_tau"], LEAST_LOG_TAU, MOST_LOG_TAU)
    _bounded("slope_squares", arrays["slope_squares"], 0, LARGEST_SQUARES)
    _bounded("pair_log_tau", arrays["pair_log_tau"], LEAST_LOG_TAU, MOST_LOG_TAU)
    _bounded("pair_slope_squares", arrays["pair_slope_squares"], 0, LARGEST_SQUARES)
    _bounded("block_log_tau", arrays["block_log_tau"], LEAST_LOG_TAU, MOST_LOG_TAU)
    _bounded("block_used", arrays["block_used"], 0, counts[LEARNED])
    for name in ("block_keys", "field_keys"):
        keys = arrays[name]
        require(keys[0] == 0, name, "must begin with 0", keys[0])
        n = np.unique(keys).size
        require(n == keys.size, name, f"must have every key once, {n}", keys.size)


def _check_weights(arrays: Mapping[str, Array]) -> None:
    for name in ("means", "mean_slopes"):
        _bounded(name, arrays[name], -LARGEST, LARGEST)
    covariances = arrays["covariances"]
    _bounded("covariances", covariances, -MOST_VARIANCE, MOST_VARIANCE)
    _bounded("covariances", np.diagonal(covariances, axis1=1, axis2=2), -ROUNDING)
    off = np.abs(covariances - covariances.transpose(0, 2, 1)).max()
    require(off <= ROUNDING, "covariances", "must be symmetric", f"a difference of {off}")
    try:
        np.linalg.cholesky(covariances + 10 * ROUNDING * np.eye(covariances.shape[1]))
    except np.linalg.LinAlgError:
        require(False, "covariances", "must have no negative eigenvalues", "some")
    b, h = arrays["tail"].astype(np.float64).T
    _bounded("tail", h, 0, 1e30)
    _bounded("tail", b / (math.exp(-MOST_LOG_TAU) + h), -LARGEST, LARGEST)
    n = 1 + float(arrays["counts"][LEARNED])
    _bounded("moment", arrays["moment"], -1e6 * n, 1e6 * n)
    _bounded("bases", arrays["bases"], -1 - ROUNDING, 1 + ROUNDING)


def check_first(first: Mapping[str, Array], learned: int | None) -> None:
    """Refuse events that cannot be all those of a model that has learned so many, or of an unfinished start."""
    kinds = dict(zip(Events._fields, ("u4", "f4", "u4", "i8", "i8", "f4", "i8"), strict=True))
    require(first.keys() == kinds.keys(), "first", f"must be {sorted(kinds)}", sorted(first))
    for name, kind in kinds.items():
        like = first[name].dtype == kind and first[name].ndim == 1
        require(like, f"first.{name}", f"must be a row of {kind}", (first[name].dtype.str, first[name].shape))
    n, starts, n_context = first["users"].size, first["starts"], first["n_context"]
    whole = n < START_EVENTS if learned is None else START_EVENTS <= n == learned < CHOICE_EVENTS
    require(whole, "first.users", "must be of all first events", n)
    for name, size in (("starts", n + 1), ("n_context", n), ("rewards", n)):
        require(first[name].size == size, f"first.{name}", f"must have {size} numbers", first[name].size)
    require(starts[0] == 0, "first.starts", "must begin with 0", starts[0])
    for name in ("hashes", "values", "fields"):
        require(first[name].size == starts[-1], f"first.{name}", f"must have {starts[-1]} features", first[name].size)
    require(starts[-1] <= MOST_KEPT, "first.starts", f"must count at most {MOST_KEPT} features in all", starts[-1])
    sizes = np.diff(starts)
    _bounded("first.starts", sizes, 0, MOST_FEATURES)
    _bounded("first.n_context", n_context, 0)
    _bounded("first.n_context", sizes - n_context, 0)
    _bounded("first.users", first["users"], -1, -1)
    for name in ("values", "rewards"):
        _bounded(f"first.{name}", first[name])


def _bounded(name: str, array: Any, least: float = -np.inf, most: float = np.inf) -> None:
    """Refuse numbers that are not finite or not within bounds."""
    values = np.atleast_1d(array)
    out = values[~(np.isfinite(values) & (values >= least) & (values <= most))]
    if out.size:
        require(False, name, f"must be finite and in [{least:g}, {most:g}]", out.flat[0])

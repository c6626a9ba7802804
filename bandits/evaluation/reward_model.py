"""A reward model learned from a log: q(x, a) for every action of every event, by a model that never saw the event.

Two ridge regressions, the second on what the first leaves over: one over the features of the actions, shared by all
actions, then one per action id over the features of the context. An action that was seldom taken falls back to the
shared part. Columns are the log's feature names; past ``MAX_NAMES`` of them, the rarer ones share 2^11 columns by
CRC-32. Columns are scaled to largest absolute value 1 and both parts have a constant.

Event i belongs to fold i mod ``n_folds`` and is predicted by the model of the other folds (cross-fitting), so that its
own reward has no part in its prediction.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from bandits.evaluation.table import Log, SparseRows
from fedres.checks import Array, positive, whole

MAX_NAMES, HASHED_COLUMNS = 2_000, 2**11
CHUNK = 4_096  # rows made dense at a time
DIRECT_COLUMNS, MAX_STEPS = 256, 1_000


@dataclass(frozen=True, slots=True)
class _Design:
    """Sparse rows with a constant in column 0."""

    starts: Array
    columns: Array
    values: Array
    width: int

    def entries(self, rows: Array) -> tuple[Array, Array, Array]:
        """Return (place in ``rows``, column, value) of all entries of the rows."""
        counts = self.starts[rows + 1] - self.starts[rows]
        place = np.repeat(np.arange(rows.size), counts)
        at = np.arange(place.size) + np.repeat(self.starts[rows] - np.cumsum(counts) + counts, counts)
        return place, self.columns[at], self.values[at]

    def dense(self, rows: Array) -> Array:
        place, column, value = self.entries(rows)
        matrix = np.zeros((rows.size, self.width))
        np.add.at(matrix, (place, column), value)
        matrix[:, 0] = 1.0
        return matrix

    def dot(self, rows: Array, weights: Array, model: Array) -> Array:
        """Return x·w for each row with the weights ``weights[model]``."""
        place, column, value = self.entries(rows)
        product = np.bincount(place, value * weights[model[place], column], minlength=rows.size)
        result: Array = product + weights[model, 0]
        return result


def crossfit_rewards(log: Log, n_folds: int = 5, ridge: float = 1.0) -> Array:
    """Return the predicted reward of every (event, action) pair of the log, each from the folds without its event."""
    whole("n_folds", n_folds, 2)
    positive("ridge", ridge)
    if len(log) < n_folds:
        raise ValueError(f"n_folds must be at most the number of events, {len(log)}, got {n_folds}")
    fold = np.arange(len(log)) % n_folds
    event_of_pair = np.repeat(np.arange(len(log)), log.n_actions)
    shared, taken_row = _design(log.features), log.feature_row[log.chosen]
    targets = np.tile(log.reward, (n_folds, 1))
    weights = _ridge(shared, taken_row, fold, targets, ridge)
    left_over = np.stack([log.reward - shared.dot(taken_row, weights, np.full_like(fold, k)) for k in range(n_folds)])
    predicted = shared.dot(log.feature_row, weights, fold[event_of_pair])
    return predicted + _per_action(log, fold, event_of_pair, left_over, ridge)


def _per_action(log: Log, fold: Array, event_of_pair: Array, targets: Array, ridge: float) -> Array:
    """Return x·w_a of every pair, w_a fitted to ``targets`` (a row per fold) where action a was taken."""
    context, predicted = _design(log.context), np.zeros(log.action.size)
    taken = _groups(log.action[log.chosen], len(log.action_ids))
    offered = _groups(log.action, len(log.action_ids))
    for events, pairs in zip(taken, offered, strict=True):
        if events.size:
            weights = _ridge(context, events, fold[events], targets[:, events], ridge)
            where = event_of_pair[pairs]
            predicted[pairs] = context.dot(where, weights, fold[where])
    return predicted


def _groups(codes: Array, n: int) -> list[Array]:
    """Return the places of each code 0..n-1."""
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.searchsorted(codes[order], np.arange(1, n)))


def _design(rows: SparseRows) -> _Design:
    columns = _columns(rows)[rows.columns]
    width = int(columns.max(initial=0)) + 1
    largest = np.zeros(width)
    np.maximum.at(largest, columns, np.abs(rows.values))
    return _Design(rows.starts, columns, rows.values / np.where(largest > 0, largest, 1.0)[columns], width)


def _columns(rows: SparseRows) -> Array:
    """Return the column of each name; column 0 is the constant's."""
    n = len(rows.names)
    if n <= MAX_NAMES:
        return np.arange(1, n + 1)
    frequent = np.argsort(-np.bincount(rows.columns, minlength=n), kind="stable")[:MAX_NAMES]
    column = np.array([1 + MAX_NAMES + zlib.crc32(name.encode()) % HASHED_COLUMNS for name in rows.names])
    column[frequent] = np.arange(1, MAX_NAMES + 1)
    return column


def _ridge(design: _Design, rows: Array, fold: Array, targets: Array, ridge: float) -> Array:
    """Return for each fold k argmin Σ (y_k − x·w)² + ridge‖w‖² over the rows outside fold k."""
    train = fold != np.arange(len(targets))[:, None]
    solve = _ridge_direct if design.width <= DIRECT_COLUMNS else _ridge_iterative
    return solve(design, rows, train, np.where(train, targets, 0.0), ridge)


def _ridge_direct(design: _Design, rows: Array, train: Array, targets: Array, ridge: float) -> Array:
    """Solve (XᵀX + ridge I) w = Xᵀy; a fold's sums are taken from those of all rows."""
    gram, right = _sums(design, rows, targets)
    gram += ridge * np.eye(design.width)
    outside = (_sums(design, rows[~inside], targets[:0, ~inside])[0] for inside in train)
    return np.stack([np.linalg.solve(gram - g, b) for g, b in zip(outside, right, strict=True)])


def _ridge_iterative(design: _Design, rows: Array, train: Array, targets: Array, ridge: float) -> Array:
    """Solve the same by conjugate gradients on the sparse rows: no matrix of columns × columns is made."""
    place, column, value = design.entries(rows)

    def transposed(y: Array) -> Array:
        product = np.bincount(column, value * y[place], minlength=design.width)
        product[0] = y.sum()
        return product

    def normal(w: Array, inside: Array) -> Array:
        product = np.bincount(place, value * w[column], minlength=rows.size) + w[0]
        result: Array = transposed(product * inside) + ridge * w
        return result

    right = (transposed(y) for y in targets)
    return np.stack([_conjugate_gradients(partial(normal, inside=f), b) for f, b in zip(train, right, strict=True)])


def _conjugate_gradients(matrix: Callable[[Array], Array], right: Array) -> Array:
    """Return w with ``matrix(w) = right``, to eight digits."""
    w, left_over, direction = np.zeros_like(right), right, right
    size = enough = float(right @ right)
    for _ in range(MAX_STEPS):
        if size <= 1e-16 * enough:
            break
        image = matrix(direction)
        step = size / float(direction @ image)
        w, left_over = w + step * direction, left_over - step * image
        size, before = float(left_over @ left_over), size
        direction = left_over + size / before * direction
    return w


def _sums(design: _Design, rows: Array, targets: Array) -> tuple[Array, Array]:
    """Return XᵀX and Xᵀy for each row of targets."""
    gram, right = np.zeros((design.width, design.width)), np.zeros((len(targets), design.width))
    for start in range(0, rows.size, CHUNK):
        x = design.dense(rows[start : start + CHUNK])
        gram += x.T @ x
        right += targets[:, start : start + CHUNK] @ x
    return gram, right

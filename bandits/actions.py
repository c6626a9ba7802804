"""What can be chosen: n actions with features of their own, dense or sparse, or n arms that look at one context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from fedres import checks
from fedres.checks import Array
from fedres.decisions.kalman_state import KalmanRequest
from fedres.scoring.features import Named, Preparer
from fedres.scoring.flattening import FeatureError
from fedres_client import inputs

_LARGEST = float(np.finfo(np.float32).max)


class Features(NamedTuple):
    """One action's features: ``values[j]`` belongs to weight ``shift + indices[j]``."""

    indices: Array
    shift: int
    values: Array

    def add_to(self, row: Array) -> None:
        """Add the values to a dense row."""
        np.add.at(row, self.indices + self.shift, self.values)


class Actions(NamedTuple):
    """Features of ``n`` actions: value j of action a belongs to weight ``a * stride + indices[a, j]``.

    One row of ``indices`` or ``values`` stands for all actions. ``arms``, ``rows`` and ``sparse`` make them.
    """

    n: int
    dim: int  # weights that a model of these actions has
    indices: Array  # (1 or n, m), int64
    values: Array  # (1 or n, m), float64
    stride: int = 0

    def take(self, action: int) -> Features:
        """Return one action's features."""
        _, _, indices, values, stride = self
        where = indices[action] if len(indices) > 1 else indices[0]
        row = values[action] if len(values) > 1 else values[0]
        return Features(where, action * stride, row)

    def keep(self, action: int) -> Actions:
        """Return actions of which ``take`` knows this one, and which do not keep the others' features in memory."""
        if len(self.values) == 1 == len(self.indices):
            return self
        n, dim, indices, values, stride = self
        where = indices[action : action + 1].copy() if len(indices) > 1 else indices
        return Actions(n, dim, where, values[action : action + 1].copy() if len(values) > 1 else values, stride)


class Action(dict[str, Any]):
    """An action by name: its id and its features, as in a request of the service.

    >>> Action("tea", hot=True, price=2.5)
    {'id': 'tea', 'features': {'hot': True, 'price': 2.5}}
    """

    def __init__(self, id: Any, /, **features: Any) -> None:
        super().__init__(id=id, features=features)


class NamedActions(NamedTuple):
    """A context and actions with named features, hashed as the service hashes JSON."""

    ids: tuple[Any, ...]  # as the caller wrote them
    request: KalmanRequest

    @property
    def n(self) -> int:
        return self.request.starts.size - 1

    def keep(self, action: int) -> NamedActions:
        """Return the context with this action alone, without the memory of the others."""
        hashes, values, fields, starts = self.request
        n_context = starts[0]
        places = np.r_[0:n_context, starts[action] : starts[action + 1]]
        alone = np.array([n_context, places.size], np.int64)
        request = KalmanRequest(hashes[places], values[places], fields[places], alone)
        return NamedActions((self.ids[action],), request)

    def place(self, action: Any) -> int:
        """Return the place of an action by its id."""
        try:
            return self.ids.index(action)
        except ValueError:
            raise ValueError(f"exclude must name actions that are offered, got {action!r}") from None


_preparer = Preparer(crosses=False)


def named_actions(context: Mapping[str, Any] | None, actions: Any) -> NamedActions:
    """Return a context and actions with named features as the model takes them.

    ``actions`` is a list of ids or of ``Action("tea", hot=True)``, or a mapping from ids to features.
    """
    listed = inputs.action_list(actions)
    rows = [Named("context", None, msgspec.json.encode(inputs.features("context", context or {})))]
    for action in listed:
        place = f"actions[{action.caller_id!r}]"
        rows.append(Named(place, action.id, msgspec.json.encode(action.features or {})))
    hashed = []
    for row in _preparer.hash_all(rows):
        if isinstance(row, FeatureError):
            raise row
        hashed.append(row)
    request = KalmanRequest(
        np.frombuffer(b"".join([row.hashes for row in hashed]), np.uint32),
        np.frombuffer(b"".join([row.values for row in hashed]), np.float32),
        np.frombuffer(b"".join([row.fields for row in hashed]), np.uint32),
        np.cumsum([row.size for row in hashed], dtype=np.int64),
    )
    return NamedActions(tuple(action.caller_id for action in listed), request)


def arms(context: npt.ArrayLike, n_actions: int) -> Actions:
    """Return actions that all look at one context, each with weights and a constant of its own."""
    x = _numbers("context", context, 1)
    values = np.empty((1, x.size + 1))
    values[0, :-1] = x
    values[0, -1] = 1.0
    checks.whole("n_actions", n_actions)
    return Actions(n_actions, n_actions * values.size, _columns(values.size), values, values.size)


def rows(features: npt.ArrayLike) -> Actions:
    """Return actions with a dense row of features each; all share their weights."""
    values = np.array(_numbers("actions", features, 2), order="C")  # a copy: the caller's may change
    if not len(values):
        raise ValueError("actions must hold at least one action, got none")
    return Actions(len(values), values.shape[1], _columns(values.shape[1]), values)


def sparse(features: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]], dim: int) -> Actions:
    """Return actions with (indices, values) each, indices below ``dim``; all share their weights."""
    if not features:
        raise ValueError("actions must hold at least one action, got none")
    checks.whole("dim", dim)
    pairs = [(_whole_numbers(indices), _numbers("values", values, 1)) for indices, values in features]
    widest = max(1, max(values.size for _, values in pairs))
    indices, values = np.zeros((len(pairs), widest), dtype=np.int64), np.zeros((len(pairs), widest))
    for a, (where, what) in enumerate(pairs):
        if where.shape != what.shape:
            raise ValueError(f"indices must be as many as values, {what.size}, got {where.size} for action {a}")
        if where.size and not 0 <= where.min() <= where.max() < dim:
            raise ValueError(f"indices must be in [0, {dim}), got {where.tolist()} for action {a}")
        indices[a, : where.size], values[a, : what.size] = where, what
    return Actions(len(pairs), dim, indices, values)


def as_actions(actions: Any) -> Actions:
    """Return ``Actions`` as they are, and a table of numbers as ``rows``."""
    return actions if isinstance(actions, Actions) else rows(actions)


def none(n_actions: int) -> Actions:
    """Return actions without any features."""
    return Actions(n_actions, 0, np.zeros((1, 0), dtype=np.int64), np.zeros((1, 0)))


def _numbers(name: str, value: npt.ArrayLike, axes: int) -> Array:
    try:
        result = np.asarray(value, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be numbers: {error}") from None
    if result.ndim != axes:
        raise ValueError(f"{name} must have {axes} axes, got shape {result.shape}")
    if not (np.abs(result) <= _LARGEST).all():
        raise ValueError(f"{name} must be finite in 32 bits, got NaN, infinity or more")
    return result


def _whole_numbers(indices: npt.ArrayLike) -> Array:
    result = np.asarray(indices)
    if result.dtype.kind not in "iu" and result.size:
        raise ValueError(f"indices must be integers, got {result.dtype}")
    return result.astype(np.int64)


@lru_cache(maxsize=256)
def _columns(width: int) -> Array:
    return np.arange(width, dtype=np.int64)[None, :]

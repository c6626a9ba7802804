"""Runs of Independent, Central and FedRes on a task, compiled; ``readable`` is the same in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedres.checks import Array
from libsvm_tasks import kernels
from libsvm_tasks.lanes import width_of
from libsvm_tasks.setting import Result, Setting
from libsvm_tasks.tasks import Task


def run(task: Task, scheme: str, **options: Any) -> Result:
    """Return what ``scheme`` made of ``task``: independent, central or fedres; options are the fields of ``Setting``.

    Predictions and accuracies are those of ``LinearLearner`` objects, and of VW, to the bit.
    """
    setting = Setting(scheme, **options)
    return {"independent": _independent, "central": _central, "fedres": _fedres}[scheme](task, setting)


def _independent(task: Task, setting: Setting) -> Result:
    columns = np.arange(task.features.shape[2])
    local = Models(len(task.order), len(columns), setting.local_learning_rate)
    stream, notes = Stream(task, columns), Notes(task, setting)

    def play(first: int, last: int) -> Array:
        kernels.independent(first, last, local.at, stream.at, notes.at)
        return local.accuracy(task, _scores(task, [(local, columns)]))

    curve = _curve(task, setting, play)
    return Result(curve[-1], notes.prediction, curve, None, local.weights)


def _central(task: Task, setting: Setting) -> Result:
    columns = task.global_features
    shared = Models(1, len(columns), setting.learning_rate)
    stream, notes, delays, server = (
        Stream(task, columns),
        Notes(task, setting),
        Delays(task, setting),
        Server(task, setting),
    )

    def play(first: int, last: int) -> Array:
        kernels.central(first, last, shared.at, stream.at, notes.at, delays.at, server.at)
        return shared.accuracy(task, _scores(task, [(shared, columns)]))

    curve = _curve(task, setting, play)
    return Result(curve[-1], notes.prediction, curve, shared.weights[0], None)


def _fedres(task: Task, setting: Setting) -> Result:
    columns, own_columns = task.global_features, task.local_features
    shared = Models(1, len(columns), setting.learning_rate)
    local = Models(len(task.order), len(own_columns), setting.local_learning_rate)
    stream, own = Stream(task, columns), Stream(task, own_columns)
    notes, delays, server = Notes(task, setting), Delays(task, setting), Server(task, setting)
    alone, notes_alone = Models(local.n, local.dim, setting.local_learning_rate), Notes(task, setting)
    joint = [(shared, columns), (local, own_columns)]

    def play(first: int, last: int) -> Array:
        kernels.fedres(first, last, shared.at, local.at, stream.at, own.at, notes.at, delays.at, server.at)
        if not setting.alone:
            return local.accuracy(task, _scores(task, joint))
        kernels.independent(first, last, alone.at, own.at, notes_alone.at)
        parts = [_scores(task, [part]) for part in (*joint, (alone, own_columns))]
        return local.accuracy(task, parts[0] + parts[1] + parts[2])  # their mean has the same sign

    curve = _curve(task, setting, play)
    prediction = _mean(task, notes, notes_alone) if setting.alone else notes.prediction
    return Result(curve[-1], prediction, curve, shared.weights[0], local.weights)


def _mean(task: Task, notes: Notes, alone: Notes) -> Array:
    """Return the mean of joint prediction and the one alone, (T, P), clamped to the range of the labels before it."""
    label = np.take_along_axis(task.label, task.order, axis=1).T.astype(np.float32)
    before = np.vstack([np.zeros_like(label[:1]), label[:-1]])
    (offset, score, _), (_, score_alone, _) = notes.table[:, : len(label)], alone.table[:, : len(label)]
    mean: Array = (offset + score + score_alone) / np.float32(2)
    return mean.clip(np.minimum.accumulate(before), np.maximum.accumulate(before))


def _curve(task: Task, setting: Setting, play: Callable[[int, int], Array]) -> Array:
    """Return the accuracies after each stop, (stops, P)."""
    stops = setting.stops(task.order.shape[1])
    return np.array([play(first, last) for first, last in zip([0, *stops], stops, strict=False)])


# What follows owns the arrays whose addresses (``at``) the kernels are given.


class Models:
    def __init__(self, n: int, n_features: int, rate: float) -> None:
        self.n, self.dim, width = n, n_features, width_of(n_features)
        self.table = np.zeros((2, n, width), dtype=np.float32)
        self.range = np.zeros((2, n), dtype=np.float32)
        (weights, squares), (low, high) = map(_address, self.table), map(_address, self.range)
        self.at = kernels.Models(weights, squares, low, high, width, np.float32(rate))

    @property
    def weights(self) -> Array:
        """A copy, (n, dim + 1)."""
        return self.table[0, :, : self.dim + 1].copy()

    def accuracy(self, task: Task, joint: Array) -> Array:
        """Return the share of test rows whose clamped prediction has the label's sign; 0 has none."""
        low, high = self.range[:, :, None]
        share: Array = np.mean(np.clip(joint, low, high) * task.test_label > 0, axis=1)
        return share


class Stream:
    def __init__(self, task: Task, columns: Array) -> None:
        n_clients, n_rows = task.label.shape
        if task.order.min() < 0 or task.order.max() >= n_rows:
            raise ValueError(f"order must be rows from 0 to {n_rows - 1}, got {task.order.min()} to {task.order.max()}")
        self.values = _gathered("features", task.features.reshape(n_clients * n_rows, -1), columns)
        self.label = np.ascontiguousarray(task.label, dtype=np.float32)
        self.order = np.ascontiguousarray(task.order, dtype=np.int64)
        values, label, order = map(_address, (self.values, self.label, self.order))
        n_rounds, size = self.order.shape[1], self.values.strides[0]
        self.at = kernels.Stream(values, label, order, n_clients, n_rows, n_rounds, size)


class Notes:
    def __init__(self, task: Task, setting: Setting) -> None:
        n_clients, n_rounds = task.order.shape
        uplink, downlink = setting.delays(n_clients)
        needed = n_rounds if setting.alone else min(int(np.max(uplink + downlink)) + 1, n_rounds)
        n_kept = 1 << needed.bit_length()  # more than a round trip and one, or more than all
        self.table = np.zeros((3, n_kept, n_clients), dtype=np.float32)
        self.prediction = np.zeros((n_rounds, n_clients), dtype=np.float32)
        offset, score, error = map(_address, self.table)
        self.at = kernels.Notes(offset, score, error, n_kept - 1, n_clients, _address(self.prediction))


class Delays:
    def __init__(self, task: Task, setting: Setting) -> None:
        uplink, downlink = setting.delays(len(task.order))
        wait = uplink + downlink if setting.local_timing == "aligned" else np.zeros_like(uplink)
        self.table = np.array([uplink, downlink, wait])
        self.at = kernels.Delays(*map(_address, self.table))


class Server:
    def __init__(self, task: Task, setting: Setting) -> None:
        summed = len(task.global_features) + 1 if setting.server == "summed" else 0
        self.gradient = np.zeros(summed, dtype=np.float32)
        self.at = kernels.Server(setting.timing == "on_arrival", _address(self.gradient), summed)


def _address(array: Array) -> int:
    return array.ctypes.data


def _gathered(name: str, features: Array, columns: Array) -> Array:
    """Return the columns of all rows in 32 bits, each row with its constant and filled up to whole lanes."""
    rows = np.empty((len(features), width_of(len(columns))), dtype=np.float32)
    if not kernels.gather(np.asarray(features, dtype=np.float64), columns, rows.shape[1], _address(rows)):
        raise ValueError(f"{name} must be finite in 32 bits, got {rows[~np.isfinite(rows)][0]}")
    return rows


def _scores(task: Task, parts: list[tuple[Models, Array]]) -> Array:
    """Return the sums of the models' parts for all test rows, (P, M), where one model may serve all clients."""
    joint = np.zeros(task.test_label.shape, dtype=np.float32)
    for models, columns in parts:
        for i, features in enumerate(task.test_features):
            rows = _gathered("test_features", features, columns)
            kernels.add_scores(models.at, min(i, models.n - 1), _address(rows), len(rows), _address(joint[i]))
    return joint

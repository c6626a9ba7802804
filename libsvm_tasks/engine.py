"""Runs of Independent, Central and FedRes on a task, compiled; ``readable`` is the same in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedres.checks import Array
from libsvm_tasks import kernels
from libsvm_tasks.setting import RunResult, RunSetting
from libsvm_tasks.tasks import Task


def run(task: Task, scheme: str, **options: Any) -> RunResult:
    """Return what ``scheme`` made of ``task``: independent, central or fedres.

    Options are the fields of ``RunSetting``. Predictions and accuracies are those of ``LinearLearner`` objects, and of
    VW, to the bit.
    """
    setting = RunSetting(scheme, **options)
    return {"independent": _independent, "central": _central, "fedres": _fedres}[scheme](task, setting)


def _independent(task: Task, setting: RunSetting) -> RunResult:
    columns = np.arange(task.features.shape[2])
    local = _models(len(task.order), len(columns), setting.local_learning_rate)
    stream, notes = _stream(task, columns), _notes(task, setting)

    def play(first: int, last: int) -> Array:
        kernels.independent(first, last, local, stream, notes)
        return _accuracy(local, task, _scores(task, [(local, columns)]))

    curve = _curve(task, setting, play)
    return RunResult(curve[-1], notes.prediction, curve, None, local.weights)


def _central(task: Task, setting: RunSetting) -> RunResult:
    columns = task.global_features
    shared = _models(1, len(columns), setting.learning_rate)
    stream, notes = _stream(task, columns), _notes(task, setting)
    delays, server = _delays(task, setting), _server(task, setting)

    def play(first: int, last: int) -> Array:
        kernels.central(first, last, shared, stream, notes, delays, server)
        return _accuracy(shared, task, _scores(task, [(shared, columns)]))

    curve = _curve(task, setting, play)
    return RunResult(curve[-1], notes.prediction, curve, shared.weights[0], None)


def _fedres(task: Task, setting: RunSetting) -> RunResult:
    columns, own_columns = task.global_features, task.local_features
    shared = _models(1, len(columns), setting.learning_rate)
    local, alone = (_models(len(task.order), len(own_columns), setting.local_learning_rate) for _ in range(2))
    stream, own = _stream(task, columns), _stream(task, own_columns)
    notes, notes_alone = _notes(task, setting), _notes(task, setting)
    delays, server = _delays(task, setting), _server(task, setting)
    joint = [(shared, columns), (local, own_columns)]

    def play(first: int, last: int) -> Array:
        kernels.fedres(first, last, shared, local, stream, own, notes, delays, server)
        if not setting.alone:
            return _accuracy(local, task, _scores(task, joint))
        kernels.independent(first, last, alone, own, notes_alone)
        parts = [_scores(task, [part]) for part in (*joint, (alone, own_columns))]
        return _accuracy(local, task, parts[0] + parts[1] + parts[2])  # their mean has the same sign

    curve = _curve(task, setting, play)
    prediction = _mean(task, notes, notes_alone) if setting.alone else notes.prediction
    return RunResult(curve[-1], prediction, curve, shared.weights[0], local.weights)


def _mean(task: Task, notes: kernels.Notes, alone: kernels.Notes) -> Array:
    """Return the mean of joint prediction and the one alone, (T, P), clamped to the range of the labels before it."""
    label = np.take_along_axis(task.label, task.order, axis=1).T.astype(np.float32)
    before = np.vstack([np.zeros_like(label[:1]), label[:-1]])
    offset, score, score_alone = (part[: len(label)] for part in (notes.offset, notes.score, alone.score))
    mean: Array = (offset + score + score_alone) / np.float32(2)
    return mean.clip(np.minimum.accumulate(before), np.maximum.accumulate(before))


def _curve(task: Task, setting: RunSetting, play: Callable[[int, int], Array]) -> Array:
    """Return the accuracies after each stop, (stops, P)."""
    stops = setting.stops(task.order.shape[1])
    return np.array([play(first, last) for first, last in zip([0, *stops], stops, strict=False)])


def _models(n: int, n_features: int, rate: float) -> kernels.Models:
    weights, squares = np.zeros((2, n, n_features + 1), dtype=np.float32)
    low, high = np.zeros((2, n), dtype=np.float32)
    return kernels.Models(weights, squares, low, high, np.float32(rate))


def _stream(task: Task, columns: Array) -> kernels.ClientRows:
    n_rows = task.label.shape[1]
    if task.order.min() < 0 or task.order.max() >= n_rows:
        raise ValueError(f"order must be rows from 0 to {n_rows - 1}, got {task.order.min()} to {task.order.max()}")
    values, label = _gathered("features", task.features, columns), np.ascontiguousarray(task.label, dtype=np.float32)
    return kernels.ClientRows(values, label, np.ascontiguousarray(task.order, dtype=np.int64))


def _notes(task: Task, setting: RunSetting) -> kernels.Notes:
    n_clients, n_rounds = task.order.shape
    uplink, downlink = setting.delays(n_clients)
    needed = n_rounds if setting.alone else min(int(np.max(uplink + downlink)) + 1, n_rounds)
    n_kept = 1 << needed.bit_length()  # more than a round trip and one, or more than all
    offset, score, error = np.zeros((3, n_kept, n_clients), dtype=np.float32)
    return kernels.Notes(offset, score, error, n_kept - 1, np.zeros((n_rounds, n_clients), dtype=np.float32))


def _delays(task: Task, setting: RunSetting) -> kernels.ClientDelays:
    uplink, downlink = setting.delays(len(task.order))
    wait = uplink + downlink if setting.local_timing == "aligned" else np.zeros_like(uplink)
    return kernels.ClientDelays(uplink, downlink, wait)


def _server(task: Task, setting: RunSetting) -> kernels.EngineServer:
    summed = len(task.global_features) + 1 if setting.server == "summed" else 0
    return kernels.EngineServer(setting.timing == "on-arrival", np.zeros(summed, dtype=np.float32))


def _gathered(name: str, features: Array, columns: Array) -> Array:
    """Return the columns of all rows in 32 bits, each row with its constant."""
    rows = np.ones((*features.shape[:-1], len(columns) + 1), dtype=np.float32)
    with np.errstate(over="ignore"):
        rows[..., :-1] = features[..., columns]
    if not np.isfinite(rows).all():
        raise ValueError(f"{name} must be finite in 32 bits, got {rows[~np.isfinite(rows)][0]}")
    return rows


def _scores(task: Task, parts: list[tuple[kernels.Models, Array]]) -> Array:
    """Return the sums of the models' parts for all test rows, (P, M), where one model may serve all clients."""
    joint = np.zeros(task.test_label.shape, dtype=np.float32)
    for models, columns in parts:
        for i, features in enumerate(task.test_features):
            rows = _gathered("test_features", features, columns)
            kernels.add_scores(models.weights[min(i, len(models.weights) - 1)], rows, joint[i])
    return joint


def _accuracy(models: kernels.Models, task: Task, joint: Array) -> Array:
    """Return the share of test rows whose clamped prediction has the label's sign; 0 has none."""
    share: Array = np.mean(np.clip(joint, models.low[:, None], models.high[:, None]) * task.test_label > 0, axis=1)
    return share

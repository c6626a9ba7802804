"""Datasets as federated bandits: every class is an action, every client has a stream of rows."""

from __future__ import annotations

import numpy as np

from bandits.streams import Multiclass
from fedres import checks
from fedres.checks import Array
from libsvm_tasks.data import Data
from libsvm_tasks.streams import online_partition

TASKS = ("same", "permuted", "shuffled", "subsets", "drift")
FEATURES = ("half", "all")
PERMUTED = 0.3  # share of the classes that trade names in a "permuted" task


def bandit_task(
    data: Data,
    n_clients: int,
    n_rounds: int,
    *,
    task: str = "permuted",
    shared_features: str = "half",
    local_features: str = "all",
    seed: int = 0,
) -> Multiclass:
    """Return a stream in which the action that names a row's class earns 1, and all others nothing.

    ``same``: one task for all. ``permuted``: for each client three classes in ten trade names. ``shuffled``: all of
    them do, which leaves nothing to share. ``subsets``: each client meets half of the classes. ``drift``: one task for
    all, until after half of the rounds all classes trade names, so that no class keeps its action. The shared model
    sees a random half of the features or all; personal models see all, or the other half.
    """
    checks.one_of("task", task, TASKS)
    checks.one_of("shared_features", shared_features, FEATURES)
    checks.one_of("local_features", local_features, FEATURES)
    if data.classes is None or data.n_classes < 2:
        raise ValueError(f"{data.name} must be a classification dataset of at least two classes")
    dealing, naming, splitting = np.random.default_rng(seed).spawn(3)
    shared, private = _split(data.features.shape[1], shared_features, local_features, splitting)
    names = _names(data.n_classes, n_clients, task, naming)
    if task == "subsets":
        rows = _rows_of_subsets(data, n_clients, n_rounds, dealing)
    else:
        rows = online_partition(data, n_clients, n_rounds, int(dealing.integers(2**32))).T
    features = np.asarray(data.features, dtype=np.float64)
    later = np.roll(names, 1, axis=1) if task == "drift" else None
    arrays = (np.ascontiguousarray(rows), names, shared, private, later)
    return Multiclass(features, data.label.astype(np.intp), *arrays)


def _split(n_features: int, shared: str, local: str, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the columns of the shared and of the personal models."""
    half = np.sort(rng.choice(n_features, max(1, n_features // 2), replace=False))
    columns = np.arange(n_features)
    rest = np.setdiff1d(columns, half)
    return half if shared == "half" else columns, rest if local == "half" and rest.size else columns


def _names(n_classes: int, n_clients: int, task: str, rng: np.random.Generator) -> Array:
    """Return which action stands for each class, (P, K)."""
    names = np.tile(np.arange(n_classes), (n_clients, 1))
    if task in ("permuted", "shuffled"):
        moved = n_classes if task == "shuffled" else max(2, round(PERMUTED * n_classes))
        for row in names:
            chosen = rng.choice(n_classes, moved, replace=False)
            row[chosen] = rng.permutation(chosen)
    return names


def _rows_of_subsets(data: Data, n_clients: int, n_rounds: int, rng: np.random.Generator) -> Array:
    """Return rows (T, P), drawn with replacement from half of the classes, chosen client by client."""
    rows = np.empty((n_rounds, n_clients), dtype=np.intp)
    present = np.flatnonzero(data.class_sizes())
    for client, its in enumerate(rng.spawn(n_clients)):
        classes = its.choice(present, max(2, len(present) // 2), replace=False)
        rows[:, client] = its.choice(np.flatnonzero(np.isin(data.label, classes)), n_rounds)
    return rows

"""Related binary tasks, one per client, made from one multiclass dataset [FedRes, section 6.1].

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedres import checks
from fedres.checks import Array
from libsvm_tasks.data import Data

LOCAL_FEATURES = ("half", "all")
FEWEST_CLASSES = 2  # C0 and one other
FEWEST_SAMPLES = 2  # of each kind; a draw of A that leaves a client fewer is made again
DRAWS_OF_A = 200
TEST_SHARE = 5  # one row in five of each class is held out
TEST_ROWS = 50  # of each kind and client, at most


@dataclass(frozen=True, slots=True)
class Task:
    """P clients with 2N training rows each: N of the merged class C0 (−1), then N of a class of their own (+1).

    Test rows are balanced in the same way. Where a client's class has fewer held-out rows than others have, its rows
    come up several times, equally often to within one, so that both kinds weigh the same in every accuracy.
    """

    features: Array  # (P, 2N, d)
    label: Array  # (P, 2N), −1 or +1
    order: Array  # (P, T): the row a client sees in each round; every epoch is a fresh permutation
    test_features: Array  # (P, M, d)
    test_label: Array  # (P, M)
    global_features: Array  # the columns that the shared model sees
    local_features: Array  # the columns that a client's own model sees
    rows: Array  # (P, 2N): where the training rows are in the dataset
    samples: int  # N


def paper_task(
    data: Data, n_clients: int, *, samples: int = 30, seed: int, local_features: str = "half", n_rounds: int = 500
) -> Task:
    """Return a random task with N ≤ ``samples`` rows of each kind per client, as many as the dataset allows.

    ``local_features`` is ``half`` (the columns that the shared model does not see) or ``all``. Neither it nor
    ``n_rounds`` changes which rows a client has; a longer run begins like a shorter one.
    """
    _check(data, n_clients, samples, seed, local_features, n_rounds)
    split, merge, deal, exam, columns, visits = np.random.default_rng(seed).spawn(6)
    train, test = _hold_out(_by_class(data, split))
    merged, n = _draw_merged(data.name, train, n_clients, samples, merge)
    rows, own = _deal(train, merged, n_clients, n, deal)
    test_rows = _test_rows(test, merged, own, exam)
    seen, unseen = _halves(data.features.shape[1], columns)
    return Task(
        features=_copy(data.features, rows),
        label=_label(rows),
        order=_order(n_clients, 2 * n, n_rounds, visits),
        test_features=_copy(data.features, test_rows),
        test_label=_label(test_rows),
        global_features=seen,
        local_features=unseen if local_features == "half" else np.arange(data.features.shape[1]),
        rows=rows,
        samples=n,
    )


def _check(data: Data, n_clients: int, samples: int, seed: int, local_features: str, n_rounds: int) -> None:
    checks.whole("n_clients", n_clients)
    checks.whole("samples", samples)
    checks.whole("seed", seed, least=0)
    checks.whole("n_rounds", n_rounds)
    checks.one_of("local_features", local_features, LOCAL_FEATURES)
    if data.classes is None:
        raise ValueError(f"{data.name} must be a classification dataset, its labels are real values")
    present = int(np.count_nonzero(data.class_sizes()))
    if present < FEWEST_CLASSES:
        raise ValueError(
            f"{data.name} must have at least {FEWEST_CLASSES} classes, one of them to merge into C0, got {present}"
        )
    if data.features.shape[1] < 2:
        raise ValueError(f"{data.name} must have at least 2 features to split, got {data.features.shape[1]}")


def _by_class(data: Data, rng: np.random.Generator) -> list[Array]:
    """Return the row numbers of each class that has any, in random order."""
    order = rng.permutation(len(data.label))
    label = data.label[order].astype(np.min_scalar_type(data.n_classes))  # small integers sort in linear time
    order = order[np.argsort(label, kind="stable")]
    return [rows for rows in np.split(order, np.cumsum(data.class_sizes())[:-1]) if len(rows)]


def _hold_out(by_class: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Return training and test rows of each class; a class with one row has it for testing."""
    held = [-(-len(rows) // TEST_SHARE) for rows in by_class]
    train = [rows[n:] for rows, n in zip(by_class, held, strict=True)]
    return train, [rows[:n] for rows, n in zip(by_class, held, strict=True)]


def _draw_merged(
    name: str, train: Sequence[Array], n_clients: int, samples: int, rng: np.random.Generator
) -> tuple[Array, int]:
    """Return the classes A that become C0, drawn again while they leave too few rows a client, and N."""
    sizes = np.array([len(rows) for rows in train])
    n_merged = max(1, 3 * len(sizes) // 10)  # |A| = floor(0.3 K); one class of two or three
    fewest = min(samples, FEWEST_SAMPLES)
    for _ in range(DRAWS_OF_A):
        merged = rng.choice(len(sizes), n_merged, replace=False)
        n = _most_samples(sizes[merged].sum(), np.delete(sizes, merged), n_clients, samples)
        if n >= fewest:
            return merged, n
    raise ValueError(
        f"n_clients must leave each client at least {2 * fewest} of the {sizes.sum()} training rows of {name}, "
        f"half of them of one class, got {n_clients}"
    )


def _most_samples(merged: int, others: Array, n_clients: int, samples: int) -> int:
    """Return the largest N with N rows of C0 for every client and a bucket of N rows of one other class; 0 if none."""
    candidates = np.arange(1, min(samples, merged // n_clients) + 1)
    buckets = (others[:, None] // candidates).sum(axis=0)  # fewer as N grows
    return int(np.count_nonzero(buckets >= n_clients))


def _deal(
    train: Sequence[Array], merged: Array, n_clients: int, n: int, rng: np.random.Generator
) -> tuple[Array, Array]:
    """Return each client's rows (P, 2N) and the class of its own."""
    shared = rng.permutation(np.concatenate([train[c] for c in merged]))[: n_clients * n].reshape(n_clients, n)
    others = np.setdiff1d(np.arange(len(train)), merged)
    counts = [len(train[c]) // n for c in others]
    buckets = np.concatenate([train[c][: count * n] for c, count in zip(others, counts, strict=True)]).reshape(-1, n)
    assigned = rng.choice(len(buckets), n_clients, replace=False)
    return np.hstack([shared, buckets[assigned]]), np.repeat(others, counts)[assigned]


def _test_rows(test: Sequence[Array], merged: Array, own: Array, rng: np.random.Generator) -> Array:
    """Return (P, M) held-out rows, half of C0 and half of each client's own class."""
    shared = rng.permutation(np.concatenate([test[c] for c in merged]))
    half = min(TEST_ROWS, max(len(shared), *(len(test[c]) for c in own)))
    pools = [[shared, test[c]] for c in own]
    return np.array([np.concatenate([_turn(pool, half, rng) for pool in pair]) for pair in pools])


def _turn(pool: Array, size: int, rng: np.random.Generator) -> Array:
    """Return ``size`` rows in turn from a random place of a shuffled pool, from its start again after its end."""
    result: Array = pool[(rng.integers(len(pool)) + np.arange(size)) % len(pool)]
    return result


def _halves(n_features: int, rng: np.random.Generator) -> tuple[Array, Array]:
    order = rng.permutation(n_features)
    return np.sort(order[: n_features // 2]), np.sort(order[n_features // 2 :])


def _order(n_clients: int, n_rows: int, n_rounds: int, rng: np.random.Generator) -> Array:
    epochs = -(-n_rounds // n_rows)
    each = np.broadcast_to(np.arange(n_rows), (epochs, n_clients, n_rows))
    order = rng.permuted(each, axis=2).transpose(1, 0, 2)  # epoch by epoch, so that a longer run begins the same
    return np.ascontiguousarray(order.reshape(n_clients, -1)[:, :n_rounds])


def _label(rows: Array) -> Array:
    return np.broadcast_to(np.repeat([-1.0, 1.0], rows.shape[1] // 2), rows.shape).copy()


def _copy(features: Array, rows: Array) -> Array:
    result: Array = features[rows].astype(np.float64, copy=False)
    return result

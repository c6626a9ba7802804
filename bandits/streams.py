"""Problems to replay: rounds of P clients with K actions each, whose rewards are all known to the judge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from bandits.actions import Actions
from fedres import checks
from fedres.checks import Array

CHUNK = 4_096  # decisions made at a time: what a stream keeps in memory


class Layout(NamedTuple):
    """How features meet weights: ``width`` values an action, ``stride`` weights from one action to the next."""

    width: int
    stride: int  # 0 where actions share their weights

    def dim(self, n_actions: int) -> int:
        return self.stride * n_actions if self.stride else self.width

    @property
    def indices(self) -> Array:
        return np.arange(self.width, dtype=np.int64)[None, :]

    def actions(self, n_actions: int, values: Array) -> Actions:
        """Return one decision's features as ``Actions``."""
        return Actions(n_actions, self.dim(n_actions), self.indices, values, self.stride)


class Chunk(NamedTuple):
    """Some rounds (R) of all clients (P): features (R, P, 1 or K, width), rewards and expected rewards (R, P, K)."""

    shared: Array
    private: Array
    rewards: Array
    expected: Array


class Stream(Protocol):
    """A problem; iterated twice, it gives the same rounds."""

    @property
    def n_rounds(self) -> int: ...
    @property
    def n_clients(self) -> int: ...
    @property
    def n_actions(self) -> int: ...
    @property
    def shared(self) -> Layout: ...
    @property
    def private(self) -> Layout: ...
    def __iter__(self) -> Iterator[Chunk]: ...


@dataclass(frozen=True, slots=True)
class Multiclass:
    """Classification as a bandit: every class is an action, and the right one earns 1."""

    features: Array  # (N, d)
    label: Array  # (N,), classes from 0
    rows: Array  # (T, P), the row that each client gets in each round
    names: Array  # (P, K), which action stands for a class, client by client
    shared_columns: Array
    private_columns: Array
    later_names: Array | None = None  # (P, K), the names from the second half of the rounds on

    @property
    def n_rounds(self) -> int:
        return len(self.rows)

    @property
    def n_clients(self) -> int:
        return int(self.rows.shape[1])

    @property
    def n_actions(self) -> int:
        return int(self.names.shape[1])

    @property
    def shared(self) -> Layout:
        return Layout(len(self.shared_columns) + 1, len(self.shared_columns) + 1)

    @property
    def private(self) -> Layout:
        return Layout(len(self.private_columns) + 1, len(self.private_columns) + 1)

    def __iter__(self) -> Iterator[Chunk]:
        shared, private = (self._table(columns) for columns in (self.shared_columns, self.private_columns))
        clients, t = np.arange(self.n_clients), 0
        later = self.names if self.later_names is None else self.later_names
        for rows in _parts(self.rows, self.n_clients):
            second = (np.arange(t, t + len(rows)) >= self.n_rounds // 2)[:, None]
            t += len(rows)
            label = self.label[rows]
            target = np.where(second, later[clients, label], self.names[clients, label])
            rewards = (target[..., None] == np.arange(self.n_actions)).astype(np.float64)
            yield Chunk(shared[rows][:, :, None], private[rows][:, :, None], rewards, rewards)

    def _table(self, columns: Array) -> Array:
        """Return these features of all rows, and a constant."""
        return np.column_stack([self.features[:, columns], np.ones(len(self.features))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Realizable:
    """Expected rewards ½ + x^g·w^g + x^l·w_i with w's known to the judge, rewards 0 or 1 [FedRes, section 5].

    Personal models see x^g and x^l, the shared one x^g. Features of actions are random directions. ``shared_norm`` and
    ``personal_norm`` are the lengths of w^g and w_i; their sum is at most ½: expected rewards are probabilities.
    """

    n_rounds: int
    n_clients: int
    n_actions: int = 5
    shared_dim: int = 10
    private_dim: int = 5
    shared_norm: float = 0.3
    personal_norm: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("n_rounds", "n_clients", "n_actions", "shared_dim", "private_dim"):
            checks.whole(name, getattr(self, name))
        if not (self.shared_norm >= 0 and self.personal_norm >= 0 and self.shared_norm + self.personal_norm <= 0.5):
            norms = (self.shared_norm, self.personal_norm)
            raise ValueError(f"shared_norm and personal_norm must be at least 0 and add up to at most 0.5, got {norms}")

    @property
    def shared(self) -> Layout:
        return Layout(self.shared_dim + 1, 0)

    @property
    def private(self) -> Layout:
        return Layout(self.shared_dim + self.private_dim, 0)

    def weights(self) -> tuple[Array, Array]:
        """Return w^g and the (P, d) w_i."""
        rng = np.random.default_rng([self.seed, 0])
        shared = self.shared_norm * _direction(rng.normal(size=self.shared_dim))
        return shared, self.personal_norm * _direction(rng.normal(size=(self.n_clients, self.private_dim)))

    def __iter__(self) -> Iterator[Chunk]:
        w, own = self.weights()
        for number, rounds in enumerate(_parts(np.arange(self.n_rounds), self.n_clients)):
            rng = np.random.default_rng([self.seed, 1, number])
            shape = (len(rounds), self.n_clients, self.n_actions)
            xg = _direction(rng.normal(size=(*shape, self.shared_dim)))
            xl = _direction(rng.normal(size=(*shape, self.private_dim)))
            expected = 0.5 + xg @ w + np.einsum("rpkd,pd->rpk", xl, own)
            rewards = (rng.random(shape) < expected).astype(np.float64)
            shared, private = np.concatenate([xg, np.ones((*shape, 1))], axis=-1), np.concatenate([xg, xl], axis=-1)
            yield Chunk(shared, private, rewards, expected)


def _parts(rounds: Array, n_clients: int) -> Iterator[Array]:
    """Yield rounds a chunk at a time."""
    size = max(1, CHUNK // n_clients)
    for start in range(0, len(rounds), size):
        yield rounds[start : start + size]


def _direction(vectors: Array) -> Array:
    result: Array = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)
    return result

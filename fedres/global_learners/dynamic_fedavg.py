"""Dynamic federated averaging: a few clients at a time run epochs over their newest samples.

[DynFed] E. Rizk, S. Vlaski, A. H. Sayed. Dynamic Federated Learning. 2020.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedres import checks, draws
from fedres.checks import Array
from fedres.global_learners.base import Client, ObservedRound, Server, Setting
from fedres.messages import BITS_PER_REAL, Up

_BATCHES = 0x9E6C63D0876A9A35  # separates the draws of samples from those of clients
_MOST_EPOCHS = 2**20


@dataclass(frozen=True, kw_only=True, eq=False)
class DynamicFedAvg(Setting):
    """w_i = mean over a uniform L-subset of v_{k,E_k}, v ← v − (μ/E_k)·batch gradient [DynFed, Alg. 1].

    A client keeps its newest ``buffer`` samples (N_k). An iteration takes place every ``period`` rounds, one round
    being one sample; with period = buffer each iteration sees fresh samples, as in the paper.
    """

    keeps_state = True

    step_size: float = 0.1  # μ
    participants: int | None = None  # L; all clients by default
    epochs: int | Array = 1  # E_k, one number for all or one each
    batch: int | Array = 1  # B_k
    buffer: int = 1  # N_k
    period: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("seed", self.seed, least=0)
        checks.positive("step_size", self.step_size)
        for name in ("epochs", "batch"):
            values = self.each(name)
            checks.whole(name, values.min())
            self.keep(name, values)
        checks.whole("buffer", self.buffer)
        if (self.each("batch") > self.buffer).any():
            raise ValueError(f"batch must be at most buffer = {self.buffer}, got {self.each('batch').max()}")
        checks.whole("period", self.period)
        checks.whole("participants", self.n_participants)
        if self.n_participants > self.n_clients:
            raise ValueError(f"participants must be at most {self.n_clients}, got {self.n_participants}")

    @property
    def n_participants(self) -> int:
        return self.n_clients if self.participants is None else self.participants

    def each(self, name: str) -> Array:
        """Return a hyperparameter that may differ by client, as one integer per client."""
        value = np.asarray(getattr(self, name))
        if value.dtype.kind not in "iu" or value.shape not in ((), (self.n_clients,)):
            raise ValueError(f"{name} must be one integer or {self.n_clients} of them, got {value!r}")
        return np.broadcast_to(value, (self.n_clients,))

    def takes_part(self, t: int, who: Array) -> Array:
        if t % self.period:
            return np.zeros(len(who), dtype=bool)
        return np.isin(who, draws.subset(self.seed, t, self.n_clients, self.n_participants))

    def client(self, who: npt.ArrayLike | None = None) -> DynamicFedAvgClient:
        return DynamicFedAvgClient(self, who)

    def server(self) -> DynamicFedAvgServer:
        return DynamicFedAvgServer(self)


class DynamicFedAvgClient(Client[DynamicFedAvg]):
    def __init__(self, learner: DynamicFedAvg, who: npt.ArrayLike | None) -> None:
        super().__init__(learner, who)
        n, size, outputs = len(self.who), learner.buffer, learner.model.outputs
        self.features = np.zeros((n, size, learner.model.features))
        self.local_prediction = np.zeros((n, size, outputs) if outputs else (n, size))
        self.label = np.zeros((n, size))
        self.count = np.zeros(n, dtype=np.int64)  # samples seen by each client
        self.epochs, self.batch = learner.each("epochs"), learner.each("batch")

    def update(self, t: int, seen: ObservedRound) -> Up | None:
        rows = np.flatnonzero(seen.present)
        slot = self.count[rows] % self.learner.buffer
        self.features[rows, slot] = seen.features[rows]
        self.local_prediction[rows, slot] = seen.local_prediction[rows]
        self.label[rows, slot] = seen.label[rows]
        self.count[rows] += 1
        return self._upload(t)

    def _upload(self, t: int) -> Up | None:
        rows = np.flatnonzero(self.learner.takes_part(t, self.who) & (self.count > 0))
        if not rows.size:
            return None
        delta = self._progress(t, rows)
        return Up(t, self.who[rows], "delta", self.version, delta, BITS_PER_REAL * delta.shape[1])

    def _progress(self, t: int, rows: Array) -> Array:
        """Return v_E − w of each row's client after its E_k epochs, each on a fresh batch."""
        epochs = self.epochs[self.who[rows]]
        model: Array = np.broadcast_to(self.shared, (len(rows), self.shared.size))  # v_0
        for epoch in range(epochs.max()):
            step_size = np.where(epoch < epochs, self.learner.step_size / epochs, 0.0)
            model = self._epoch(model, rows, step_size, self._batches(t, epoch, rows))
        return model - self.shared

    def _batches(self, t: int, epoch: int, rows: Array) -> list[tuple[Array, Array]]:
        """Return batches drawn without replacement, sample by sample: which slot of each row, and its share."""
        slots = np.arange(self.learner.buffer)
        filled = np.minimum(self.count[rows], self.learner.buffer)
        size = np.minimum(self.batch[self.who[rows]], filled)
        places = (self.who[rows][:, None] * self.learner.buffer + slots).ravel()
        keys = draws.uniform(self.learner.seed ^ _BATCHES, t * _MOST_EPOCHS + epoch, places).reshape(len(rows), -1)
        keys[slots >= filled[:, None]] = np.inf
        order = np.argsort(keys, axis=1)
        return [(order[:, j], (j < size) / size) for j in range(size.max())]

    def _epoch(self, model: Array, rows: Array, step_size: Array, batches: list[tuple[Array, Array]]) -> Array:
        """Return v − (μ/E_k)·(mean gradient at v over the batch)."""
        moved = model
        for slot, share in batches:
            picked = (rows, slot)
            seen = ObservedRound(
                self.features[picked], self.local_prediction[picked], self.label[picked], np.ones(len(rows), dtype=bool)
            )
            gradient = self.learner.factors(model, self.who[rows], seen)
            moved = gradient.scaled(step_size * share).step(moved, 1.0)
        return moved


class DynamicFedAvgServer(Server[DynamicFedAvg]):
    """w ← w + (1/L) Σ delta: the mean of the participants' models [DynFed, eq. 12]."""

    kinds = ("delta",)

    def __init__(self, learner: DynamicFedAvg) -> None:
        super().__init__(learner)
        self.total = np.zeros_like(self.weights)

    def add(self, up: Up) -> None:
        self.total += up.row_sum()

    def next_weights(self, t: int) -> Array:
        weights = self.weights + self.total / self.learner.n_participants
        self.total[:] = 0
        return weights

"""FedOMD: clients take mirror-descent steps of their own and average now and then.

[FedOMD] A. Mitra, H. Hassani, G. J. Pappas. Online Federated Learning. 2021.

Averaging travels as deltas: a client's model is the shared model it received plus its own progress that is not inside
it yet. Without delay that is the average of the paper's line 7; with delay nobody's progress is lost or counted twice.
(A link that lets messages overtake hides a late one from its own client until it arrives.)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedres import checks, draws
from fedres.checks import Array
from fedres.global_learners.base import ObservedRound, Observer, Server, Setting
from fedres.messages import BITS_PER_REAL, Down, Up
from fedres.mirror_maps import Ball, MirrorMap
from fedres.models import Factored
from fedres.step_sizes import StepSize, as_schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class FedOMD(Setting):
    """y_i = argmin ⟨g, x⟩ + B_ψ(x, x_i)/η_t, and x_i = mean of the y where t+1 ∈ I, else y_i [FedOMD, Alg. 1]."""

    keeps_state = True

    step_size: StepSize = 0.1  # η_t
    mirror_map: MirrorMap = field(default_factory=Ball)  # ψ
    sync: int | Collection[int] = 1  # the period τ, or the set I itself
    participants: int | None = None  # how many are averaged at a sync; all by default
    seed: int = 0

    def __post_init__(self) -> None:
        checks.has("mirror_map", self.mirror_map, "first", "state", "advance", "point")
        super().__post_init__()
        checks.whole("seed", self.seed, least=0)
        as_schedule(self.step_size)
        if isinstance(self.sync, Collection):
            for t in self.sync:
                checks.whole("sync", t)
        else:
            checks.whole("sync", self.sync)
        if self.participants is not None:
            checks.whole("participants", self.participants)
            if self.participants > self.n_clients:
                raise ValueError(f"participants must be at most {self.n_clients}, got {self.participants}")

    def first_weights(self) -> Array:
        if self.start is None:
            return self.mirror_map.first(self.model.dim)
        return super().first_weights()

    def syncs_after(self, t: int) -> bool:
        """Return whether t+1 ∈ I; with a period τ, I = {1 + kτ}."""
        return t + 1 in self.sync if isinstance(self.sync, Collection) else t % self.sync == 0

    def chosen(self, t: int) -> Array:
        """Return the clients that are averaged after round t."""
        if self.participants is None:
            return np.arange(self.n_clients)
        return draws.subset(self.seed, t, self.n_clients, self.participants)

    def takes_part(self, t: int, who: Array) -> Array:
        if self.participants is None or not self.syncs_after(t):
            return np.full(len(who), self.syncs_after(t))
        return np.isin(who, self.chosen(t))

    def client(self, who: npt.ArrayLike | None = None) -> FedOMDClient:
        return FedOMDClient(self, who)

    def server(self) -> FedOMDServer:
        return FedOMDServer(self)


def _blend(mirror_map: MirrorMap, state: Array) -> Array:
    """Return a model in the coordinates in which models are averaged."""
    return state if mirror_map.averages_states else mirror_map.point(state)


class Sent(NamedTuple):
    """Progress of n clients up to a sync; clients not chosen upload none, and replace theirs by the sync's average."""

    t: int
    progress: Array
    chosen: Array


class FedOMDClient(Observer[FedOMD]):
    def __init__(self, learner: FedOMD, who: npt.ArrayLike | None) -> None:
        super().__init__(learner, who)
        self.map = learner.mirror_map
        self.step_size = as_schedule(learner.step_size)
        self.version = 0
        first = self.map.state(learner.first_weights())
        self.state: Array = np.broadcast_to(first, (len(self.who), first.size))
        self.anchor = _blend(self.map, self.state)  # the model at the last upload or Down
        self.sent: list[Sent] = []  # progress made by a sync and not yet inside a Down

    def weights(self, t: int) -> Array:
        return self.map.point(self.state)

    def update(self, t: int, seen: ObservedRound) -> Up | None:
        gradient = self.learner.factors(self.weights(t), self.who, seen)
        self.state = self._advance(gradient, self.step_size(t))  # [FedOMD, eq. 3]
        return self._upload(t) if self.learner.syncs_after(t) else None

    def _advance(self, gradient: Factored, step_size: float) -> Array:
        if isinstance(self.map, Ball):  # spares the dense gradients
            return self.map.state(gradient.step(self.state, step_size))
        return self.map.advance(self.state, gradient.rows(), step_size)

    def _upload(self, t: int) -> Up | None:
        model = _blend(self.map, self.state)
        progress, self.anchor = model - self.anchor, model
        rows = self.learner.takes_part(t, self.who)
        self.sent.append(Sent(t, progress, rows))
        if not rows.any():
            return None
        body = progress if rows.all() else progress[rows]
        return Up(t, self.who[rows], "delta", self.version, body, BITS_PER_REAL * progress.shape[1])

    def receive(self, down: Down) -> None:
        if down.version <= self.version:
            return
        self.version = down.version
        covers, newest = down.covers[self.who], down.covers.max()
        outside = [np.where(sent.chosen, covers, newest) < sent.t for sent in self.sent]
        model = _blend(self.map, self.state)
        since = None if model is self.anchor else model - self.anchor
        shared = self.map.state(down.weights) if self.map.averages_states else down.weights
        self.anchor = np.broadcast_to(shared, (len(self.who), shared.size))
        for sent, rows in zip(self.sent, outside, strict=True):
            if rows.any():
                self.anchor = self.anchor + sent.progress * rows[:, None]
        self.sent = [sent for sent, rows in zip(self.sent, outside, strict=True) if rows.any()]
        model = self.anchor if since is None else self.anchor + since
        self.state = model if self.map.averages_states else self.map.state(model)


class FedOMDServer(Server[FedOMD]):
    kinds = ("delta",)

    def __init__(self, learner: FedOMD) -> None:
        super().__init__(learner)
        self.map = learner.mirror_map
        self.mean = _blend(self.map, self.map.state(self.weights))

    def add(self, up: Up) -> None:
        self.mean = self.mean + up.row_sum() / (self.learner.participants or self.learner.n_clients)

    def next_weights(self, t: int) -> Array:
        state = self.mean if self.map.averages_states else self.map.state(self.mean)
        return self.map.point(state)

"""The readable model: any global learner of the core, played by ``Federation``, with real learners for the clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bandits.actions import Actions
from bandits.models.centre import Centre
from bandits.models.protocol import Predicting, Prediction, Sample
from fedres.checks import Array
from fedres.compiling import kernel
from fedres.federation import Example, Federation, delayed_sites
from fedres.local_learners.each import Each
from fedres.local_learners.protocol import Features, LocalLearner

Make = Callable[[], LocalLearner]


class Seat:
    """A place for a client's learner; while nobody sits there it predicts 0 and learns nothing."""

    def __init__(self) -> None:
        self.learner: LocalLearner | None = None

    def score(self, features: Features) -> float:
        return 0.0 if self.learner is None else self.learner.score(features)

    def predict(self, features: Features, offset: float = 0.0) -> float:
        return offset if self.learner is None else self.learner.predict(features, offset)

    def learn(self, features: Features, label: float, offset: float = 0.0) -> None:
        if self.learner is not None:
            self.learner.learn(features, label, offset)

    def correct(self, features: Features, slope: float) -> None:
        if self.learner is not None:
            self.learner.correct(features, slope)

    def see(self, label: float) -> None:
        if self.learner is not None:
            self.learner.see(label)

    def weigh(self, importance: float) -> None:
        if self.learner is not None:
            self.learner.weigh(importance)

    def empty(self) -> None:
        """Let the client go."""
        free(self.learner)
        self.learner = None


def free(learner: Any) -> None:
    """Close what holds memory outside Python: a VW workspace, also inside another learner."""
    getattr(learner, "close", lambda: None)()


class FederationModel(Predicting):
    """``BanditModel`` of "fedres" and, without ``make``, of "central", for at most ``capacity`` clients at a time.

    Clients of some learners bring personal models of their own, which take the place of ``make``'s.
    """

    def __init__(
        self,
        learner: Any,
        make: Make | None,
        dims: tuple[int, int],
        uplink_delay: int | Sequence[int] = 0,
        downlink_delay: int | Sequence[int] = 0,
    ) -> None:
        self.capacity = learner.n_clients
        self.dims, self.make, self.reusable = dims, make, not learner.keeps_state
        self.brought = learner.brings_local_model
        self.seats = [Seat() for _ in range(self.capacity)]
        self.centres = [Centre() for _ in range(self.capacity)]
        local = None if make is None or self.brought else lambda who: Each([self.seats[k] for k in who])
        sites = delayed_sites(self.capacity, uplink_delay, downlink_delay, local)
        self.federation = Federation(learner, sites, local_timing="immediate")

    @property
    def version(self) -> int:
        return int(self.federation.server.version)  # type: ignore[attr-defined]

    def join(self, slot: int) -> None:
        if slot >= self.capacity:
            which = "clients" if self.reusable else "clients that ever join, with this global learner"
            raise ValueError(f"capacity must be at least the number of {which}, got {self.capacity}")
        if self.make is not None and not self.brought:
            self.seats[slot].learner = self.make()

    def leave(self, slot: int) -> None:
        self.seats[slot].empty()
        self.centres[slot] = Centre()

    def predict(self, slot: int, shared: Actions, private: Actions) -> Prediction:
        weights = np.ascontiguousarray(self.federation.known_to(slot))
        out = np.empty(shared.n)
        dots(weights, shared.indices, shared.values, shared.stride, out)
        if self.make is not None:
            moved = self.centres[slot].of(private)
            out += self._brought(slot, moved) if self.brought else personal_scores(self.seats[slot], moved)
        return np.clip(out, 0.0, 1.0), None

    def play(self, samples: list[Sample]) -> None:
        present = np.zeros(self.capacity, dtype=bool)
        label = np.zeros(self.capacity)
        width = self.dims[1] if self.make is not None else int(self.brought)
        shared, private = np.zeros((self.capacity, self.dims[0])), np.zeros((self.capacity, width))
        for slot, action, xg, xl, reward in samples:
            present[slot], label[slot] = True, reward
            xg.take(action).add_to(shared[slot])
            if self.make is not None:
                self.centres[slot].of(xl).take(action).add_to(private[slot])
        self.federation.play(Example(shared, label, private if width else None, present))
        for slot, _, _, xl, _ in samples:
            self.centres[slot].add(xl)

    def close(self) -> None:
        for seat in self.seats:
            seat.empty()

    def _brought(self, slot: int, actions: Actions) -> Array:
        rows = np.zeros((actions.n, actions.dim))
        for a, row in enumerate(rows):
            actions.take(a).add_to(row)
        return np.array([self.federation.local_part(slot, row) for row in rows])


class AloneModel(Predicting):
    """``BanditModel`` of "independent": every client has a learner, and nothing is shared."""

    version, reusable = 0, True

    def __init__(self, make: Make) -> None:
        self.make = make
        self.learners: dict[int, LocalLearner] = {}
        self.centres: dict[int, Centre] = {}

    def join(self, slot: int) -> None:
        self.learners[slot], self.centres[slot] = self.make(), Centre()

    def leave(self, slot: int) -> None:
        free(self.learners.pop(slot))
        del self.centres[slot]

    def predict(self, slot: int, shared: Actions, private: Actions) -> Prediction:
        return np.clip(personal_scores(self.learners[slot], self.centres[slot].of(private)), 0.0, 1.0), None

    def play(self, samples: list[Sample]) -> None:
        for slot, action, _, private, reward in samples:
            x = self.centres[slot].of(private).take(action)
            self.learners[slot].learn((x.indices + x.shift, x.values), reward)
            self.centres[slot].add(private)

    def close(self) -> None:
        for slot in list(self.learners):
            self.leave(slot)


def personal_scores(learner: LocalLearner, actions: Actions) -> Array:
    """Return the local part for each action."""
    chosen = (actions.take(a) for a in range(actions.n))
    return np.array([learner.score((x.indices + x.shift, x.values)) for x in chosen])


@kernel
def dots(weights: Array, indices: Array, values: Array, stride: int, out: Array) -> None:
    """Write w·x of every action."""
    for a in range(out.size):
        i, v = min(a, len(indices) - 1), min(a, len(values) - 1)
        total = 0.0
        for k in range(values.shape[1]):
            total += weights[a * stride + indices[i, k]] * values[v, k]
        out[a] = total

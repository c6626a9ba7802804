"""The engine's runs as a plain loop over learner objects: slow, and meant to be read. VW itself can be the learner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Protocol

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.local_learners.linear import LinearLearner
from fedres.local_learners.protocol import Features, LocalLearner
from fedres.local_learners.vw import VWLearner
from libsvm_tasks.setting import RunResult, RunSetting
from libsvm_tasks.tasks import Task

LEARNERS = ("linear", "vw")

Make = Callable[[int, float], LocalLearner]  # from dim and learning rate


class EngineServer(Protocol):
    """The shared model: it takes uploads, and a step at the end of a round if it has waited for that."""

    def score(self, features: Features) -> float: ...
    def predict(self, features: Features, offset: float = 0.0) -> float: ...
    def see(self, label: float) -> None: ...
    def learn(self, features: Features, label: float, offset: float = 0.0) -> None: ...
    def correct(self, features: Features, slope: float) -> None: ...


class Summed:
    """AdaGrad with one step a round, on the sum of the gradients that came in; in 64-bit floats."""

    def __init__(self, dim: int, learning_rate: float) -> None:
        self.weights, self.squares, self.gradient = np.zeros((3, dim + 1))
        self.rate = learning_rate
        self.low = self.high = 0.0

    def score(self, features: Features) -> float:
        return float(self.weights @ np.append(features, 1.0))

    def predict(self, features: Features, offset: float = 0.0) -> float:
        return float(np.clip(offset + self.score(features), self.low, self.high))

    def see(self, label: float) -> None:
        self.low, self.high = min(self.low, label), max(self.high, label)

    def learn(self, features: Features, label: float, offset: float = 0.0) -> None:
        self.correct(features, 2 * (self.predict(features, offset) - label))

    def correct(self, features: Features, slope: float) -> None:
        self.gradient += slope * np.append(features, 1.0)

    def step(self) -> None:
        self.squares += self.gradient**2
        moved = self.squares > 0
        self.weights[moved] -= self.rate * self.gradient[moved] / np.sqrt(self.squares[moved])
        self.gradient[:] = 0


def run(task: Task, scheme: str, *, learner: str = "linear", **options: Any) -> RunResult:
    """Return what ``engine.run`` returns, with ``linear`` or ``vw`` learners; VW does not tell its weights."""
    setting = RunSetting(scheme, **options)
    schemes: dict[str, Callable[[Task, RunSetting, Make], _Rounds]]
    schemes = {"independent": Independent, "central": Central, "fedres": FedRes}
    with ExitStack() as stack:
        return schemes[scheme](task, setting, maker(learner, stack)).run()


def maker(learner: str, stack: ExitStack) -> Make:
    """Return what makes ``linear`` or ``vw`` learners; the latter are closed with ``stack``."""
    checks.one_of("learner", learner, LEARNERS)

    def make(dim: int, rate: float) -> LocalLearner:
        return LinearLearner(dim, rate) if learner == "linear" else stack.enter_context(VWLearner(rate))

    return make


class _Rounds(ABC):
    """What the three schemes share: the data by client and round, and the loop over rounds."""

    shared: EngineServer | None = None
    local: list[LocalLearner] | None = None

    def __init__(self, task: Task, setting: RunSetting, make: Make) -> None:
        self.task, self.setting = task, setting
        self.n_clients, self.n_rounds = task.order.shape
        self.clients = range(self.n_clients)
        self.uplink, self.downlink = setting.delays(self.n_clients)
        self.predictions = np.zeros((self.n_rounds, self.n_clients), dtype=np.float32)
        self.build(make)

    @abstractmethod
    def build(self, make: Make) -> None:
        """Make the learners."""

    @abstractmethod
    def play(self, t: int) -> None:
        """Play round t for all clients."""

    @abstractmethod
    def test(self, i: int, x: Array) -> float:
        """Return client i's prediction for a test row."""

    def run(self) -> RunResult:
        stops, points = self.setting.stops(self.n_rounds), []
        for t in range(self.n_rounds):
            self.play(t)
            if t + 1 in stops:
                points.append([self._accuracy(i) for i in self.clients])
        curve = np.array(points)
        local = None if self.local is None else [_weights(learner) for learner in self.local]
        local_weights = None if local is None or local[0] is None else np.array(local)
        return RunResult(curve[-1], self.predictions, curve, _weights(self.shared), local_weights)

    def _accuracy(self, i: int) -> float:
        rows = zip(self.task.test_features[i], self.task.test_label[i], strict=True)
        return float(np.mean([self.test(i, x) * y > 0 for x, y in rows]))

    def server(self, make: Make) -> EngineServer:
        dim, rate = len(self.task.global_features), self.setting.learning_rate
        return Summed(dim, rate) if self.setting.server == "summed" else make(dim, rate)

    def features(self, i: int, t: int) -> Array:
        row: Array = self.task.features[i, self.task.order[i, t]]
        return row

    def label(self, i: int, t: int) -> float:
        return float(np.float32(self.task.label[i, self.task.order[i, t]]))  # as learners round it

    def arrivals(self, t: int) -> list[tuple[int, int]]:
        """Return the clients whose uploads arrive in round t, in order, and the rounds they were made in."""
        return [(i, t - int(self.uplink[i])) for i in self.clients if t >= self.uplink[i]]

    def audience(self, t: int) -> list[tuple[int, int]]:
        """Return the clients and the round in which each meets the shared model made in round t."""
        met = [(i, t + 1 + int(self.downlink[i])) for i in self.clients]
        return [(i, u) for i, u in met if u < self.n_rounds]


class Independent(_Rounds):
    """Each client learns alone, from all its features."""

    def build(self, make: Make) -> None:
        dim = self.task.features.shape[2]
        self.own = self.local = [make(dim, self.setting.local_learning_rate) for _ in self.clients]

    def play(self, t: int) -> None:
        for i in self.clients:
            x = self.features(i, t)
            self.predictions[t, i] = self.own[i].predict(x)
            self.own[i].learn(x, self.label(i, t))

    def test(self, i: int, x: Array) -> float:
        return self.own[i].predict(x)


class Central(_Rounds):
    """One model learns from everybody's rows, as they arrive."""

    def build(self, make: Make) -> None:
        self.model = self.shared = self.server(make)

    def play(self, t: int) -> None:
        arrivals = self.arrivals(t)
        _see_first(self.model, [self.label(i, s) for i, s in arrivals])
        for i, s in arrivals:
            self.model.learn(self._shared_part(i, s), self.label(i, s))
        _finish(self.model)
        for i, u in self.audience(t):  # the row of round u is known already: no need to keep old models
            self.predictions[u, i] = self.model.predict(self._shared_part(i, u))

    def test(self, i: int, x: Array) -> float:
        return self.model.predict(x[self.task.global_features])

    def _shared_part(self, i: int, t: int) -> Array:
        return self.features(i, t)[self.task.global_features]


class FedRes(_Rounds):
    """A shared model and one per client predict together; each learns what the other leaves over."""

    def build(self, make: Make) -> None:
        dim = len(self.task.local_features)
        self.model = self.shared = self.server(make)
        self.own = self.local = [make(dim, self.setting.local_learning_rate) for _ in self.clients]
        self.on_arrival = self.setting.timing == "on-arrival"
        self.immediate = self.setting.local_timing == "immediate"
        self.offset, self.score, self.slope = np.zeros((3, self.n_rounds, self.n_clients))
        self.alone = [make(dim, self.setting.local_learning_rate) for _ in self.clients] if self.setting.alone else []
        self.low, self.high = np.zeros((2, self.n_clients), dtype=np.float32)

    def play(self, t: int) -> None:
        for i in self.clients:
            self._act(i, t)
        self._serve(t)
        if not self.immediate:
            self._catch_up(t)
        for i, u in self.audience(t):  # the row of round u is known already: no need to keep old models
            self.offset[u, i] = self.model.score(self._shared_part(i, u))

    def test(self, i: int, x: Array) -> float:
        offset = self.model.score(x[self.task.global_features])
        return self._predict(i, x[self.task.local_features], offset)

    def _act(self, i: int, t: int) -> None:
        learner, x, y, offset = self.own[i], self._own_part(i, t), self.label(i, t), self.offset[t, i]
        self.predictions[t, i] = self._predict(i, x, offset)
        if self.on_arrival:
            self.score[t, i] = learner.score(x)
        if not (self.on_arrival and self.immediate):
            learner.see(y)
            self.slope[t, i] = 2 * (learner.predict(x, offset) - y)
        if self.immediate:
            learner.learn(x, y, offset)
        if self.alone:
            self.alone[i].learn(x, y)
        self.low[i], self.high[i] = min(self.low[i], y), max(self.high[i], y)

    def _predict(self, i: int, x: Array, offset: float) -> float:
        if not self.alone:
            return self.own[i].predict(x, offset)
        total = np.float32(offset) + np.float32(self.own[i].score(x)) + np.float32(self.alone[i].score(x))
        return float(np.clip(total / 2, self.low[i], self.high[i]))

    def _serve(self, t: int) -> None:
        arrivals = self.arrivals(t)
        _see_first(self.model, [self.label(i, s) for i, s in arrivals])
        for i, s in arrivals:
            if self.on_arrival:
                self.model.learn(self._shared_part(i, s), self.label(i, s), self.score[s, i])
            else:
                self.model.correct(self._shared_part(i, s), self.slope[s, i])
        _finish(self.model)

    def _catch_up(self, t: int) -> None:
        """Let each client learn from the round that is one round trip ago."""
        for i in self.clients:
            u = t - int(self.uplink[i] + self.downlink[i])
            if u >= 0:
                self.own[i].correct(self._own_part(i, u), self.slope[u, i])

    def _shared_part(self, i: int, t: int) -> Array:
        return self.features(i, t)[self.task.global_features]

    def _own_part(self, i: int, t: int) -> Array:
        return self.features(i, t)[self.task.local_features]


def _see_first(server: EngineServer, labels: list[float]) -> None:
    """Show a server that sums all labels of a round before it takes errors: all are taken at one model."""
    if isinstance(server, Summed):
        for label in labels:
            server.see(label)


def _finish(server: EngineServer) -> None:
    if isinstance(server, Summed):
        server.step()


def _weights(learner: object) -> Array | None:
    weights: Array | None = getattr(learner, "weights", None)
    return weights

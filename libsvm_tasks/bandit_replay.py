"""Bandits on a dataset: schemes side by side on the same streams, over several rollouts."""

from __future__ import annotations

import hashlib
import math
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bandits.bandit import Bandit
from bandits.federated import FederatedBandit
from bandits.models.kinds import LOCAL_LEARNERS, check_model, default_model
from bandits.models.protocol import SCHEMES
from bandits.replay import Outcome, replay
from bandits.streams import Stream
from fedres import checks
from fedres.checks import Array
from fedres.global_learners import learner_names
from fedres.policies import Compiled, Policy, name_of, policy, title_of
from libsvm_tasks import grid
from libsvm_tasks.bandit_tasks import bandit_task
from libsvm_tasks.data import Data
from libsvm_tasks.task_replay import dataset, standard_error

POINTS = 50  # of a learning curve
COMPILED = ("fedres-adagrad", "linear")  # global and local learner of the compiled replay


@dataclass(frozen=True, slots=True)
class Setup:
    """What all schemes of a replay have in common."""

    dataset: str
    clients: int = 10
    rounds: int = 8000
    rollouts: int = 5
    task: str = "permuted"
    shared_features: str = "half"
    local_features: str = "all"
    seed: int = 0
    label: str | None = None  # the column to predict, of a CSV file

    def __post_init__(self) -> None:
        for name in ("clients", "rounds", "rollouts"):
            checks.whole(name, getattr(self, name))
        checks.whole("seed", self.seed, least=0)

    def stream(self, number: int, data: Data | None = None) -> Stream:
        """Return the stream of one rollout, from ``data`` or from the dataset of this name."""
        return bandit_task(
            data or dataset(self.dataset, self.label),
            self.clients,
            self.rounds,
            task=self.task,
            shared_features=self.shared_features,
            local_features=self.local_features,
            seed=self.seed + number,
        )


@dataclass(frozen=True, slots=True)
class Scheme:
    """One row of the table."""

    scheme: str
    policy: Policy
    # None: the model that suits the policy.
    model: str | None = None
    global_learner: str = "fedres-adagrad"
    local_learner: str = "linear"
    delay: int = 0

    def __post_init__(self) -> None:
        checks.one_of("schemes", self.scheme, SCHEMES)
        checks.one_of("global_learner", self.global_learner, learner_names())
        checks.one_of("local_learner", self.local_learner, LOCAL_LEARNERS)
        checks.whole("delay", self.delay, least=0)
        check_model(self.model_name, self.policy)

    @property
    def model_name(self) -> str:
        return default_model(self.policy) if self.model is None else self.model

    @property
    def policy_name(self) -> str:
        return name_of(self.policy)

    @property
    def policy_title(self) -> str:
        """The name with the options that are not the defaults."""
        return title_of(self.policy)

    def play(self, stream: Stream, seed: int) -> Outcome:
        has_kernel = self.model_name != "adagrad" or (self.global_learner, self.local_learner) == COMPILED
        if has_kernel and isinstance(self.policy, Compiled):
            return replay(stream, self.policy, self.scheme, model=self.model_name, delay=self.delay, seed=seed)
        return self._step(stream, seed)

    def _step(self, stream: Stream, seed: int) -> Outcome:
        """Play decision by decision: any global learner, Vowpal Wabbit itself, and policies of other packages."""
        uplink = self.delay // 2
        with FederatedBandit(
            self.policy,
            model=self.model_name,
            scheme=self.scheme,
            global_learner=self.global_learner,
            local_learner=self.local_learner,
            uplink_delay=uplink,
            downlink_delay=self.delay - uplink,
            capacity=stream.n_clients,
            seed=seed,
        ) as bandit:
            return step_through(bandit, stream)


def step_through(bandit: Bandit, stream: Stream) -> Outcome:
    """Return what ``bandits.replay`` returns, from a bandit that gets one request at a time."""
    actions, probabilities, rewards, regrets = (np.zeros((stream.n_rounds, stream.n_clients)) for _ in range(4))
    t = 0
    for chunk in stream:
        for r in range(len(chunk.rewards)):
            for p in range(stream.n_clients):
                shared = stream.shared.actions(stream.n_actions, chunk.shared[r, p])
                private = stream.private.actions(stream.n_actions, chunk.private[r, p])
                decision = bandit.decide(p, shared, private=private)
                reward = chunk.rewards[r, p, decision.action]
                bandit.reward(decision.id, reward)
                expected = chunk.expected[r, p]
                actions[t, p], probabilities[t, p], rewards[t, p] = decision.action, decision.probability, reward
                regrets[t, p] = expected.max() - expected[decision.action]
            t += 1
    return Outcome(actions.astype(np.int64), probabilities, rewards, regrets)


class Rollout(NamedTuple):
    """A piece of work for the grid: all schemes on one stream, so that differences are paired."""

    setup: Setup
    schemes: tuple[Scheme, ...]
    number: int
    fingerprint: str  # of the dataset
    data: Data | None = None  # where it has no name to load it by


@dataclass(frozen=True)
class BanditResult:
    """One scheme: mean reward and regret of each rollout, and both over time."""

    scheme: Scheme
    reward: Array  # (rollouts,)
    regret: Array
    reward_curve: Array  # (rollouts, points), means of equal parts of the rounds
    regret_curve: Array
    seconds: float
    gain: Array | None  # paired difference of reward to Independent with the same policy


@dataclass(frozen=True)
class BanditReplay:
    setup: Setup
    results: list[BanditResult]

    def to_json(self) -> dict[str, Any]:
        head = {**asdict(self.setup), "samples_per_client": self.setup.rounds, "machine": platform.machine()}
        return {**head, "results": [_row(result) for result in self.results]}


def _row(result: BanditResult) -> dict[str, Any]:
    scheme = result.scheme
    has_learners = scheme.model_name == "adagrad"
    row: dict[str, Any] = {
        "scheme": scheme.scheme,
        "policy": scheme.policy_name,
        "model": scheme.model_name,
        "policy_options": {name: None if value == math.inf else value for name, value in asdict(scheme.policy).items()},
        "global_learner": scheme.global_learner if has_learners else None,
        "local_learner": scheme.local_learner if has_learners else None,
        "delay": scheme.delay,
        "reward_mean": float(result.reward.mean()),
        "reward_se": standard_error(result.reward),
        "regret_mean": float(result.regret.mean()),
        "regret_se": standard_error(result.regret),
        "seconds": result.seconds,
        "reward_curve": result.reward_curve.mean(axis=0).tolist(),
        "regret_curve": result.regret_curve.mean(axis=0).tolist(),
    }
    if result.gain is not None:
        row |= {"gain_mean": float(result.gain.mean()), "gain_se": standard_error(result.gain)}
    return row


def run(
    setup: Setup,
    schemes: Sequence[Scheme],
    *,
    data: Data | None = None,
    jobs: int | None = None,
    journal: Path | None = None,
    progress: grid.Progress | None = None,
) -> BanditReplay:
    """Return every scheme's rewards on the same streams; with a ``journal`` an interrupted call goes on."""
    rows = data or dataset(setup.dataset, setup.label)
    setup.stream(0, data)  # fails early
    fingerprint = hashlib.sha256(rows.features.tobytes() + rows.label.tobytes()).hexdigest()
    work = [Rollout(setup, tuple(schemes), number, fingerprint, data) for number in range(setup.rollouts)]
    pieces = grid.run(play_rollout, work, jobs=jobs, journal=journal, progress=progress)
    results = []
    for i, scheme in enumerate(schemes):
        reward, regret = (np.array([piece[i][name] for piece in pieces]) for name in ("reward", "regret"))
        alone = (k for k, other in enumerate(schemes) if (other.scheme, other.policy) == ("independent", scheme.policy))
        base = next(alone, None)
        gain = None if base is None else reward.mean(axis=1) - [np.mean(piece[base]["reward"]) for piece in pieces]
        seconds = sum(piece[i]["seconds"] for piece in pieces)
        results.append(BanditResult(scheme, reward.mean(axis=1), regret.mean(axis=1), reward, regret, seconds, gain))
    return BanditReplay(setup, results)


def play_rollout(rollout: Rollout) -> list[dict[str, Any]]:
    """Return the curves of all schemes on the stream of one rollout."""
    setup, stream = rollout.setup, rollout.setup.stream(rollout.number, rollout.data)
    outcomes = []
    for scheme in rollout.schemes:
        start = time.perf_counter()
        outcome = scheme.play(stream, setup.seed + rollout.number)
        seconds = time.perf_counter() - start
        curves = {name: _curve(getattr(outcome, name)) for name in ("reward", "regret")}
        outcomes.append({**curves, "seconds": seconds})
    return outcomes


def _curve(values: Array) -> list[float]:
    """Return the means of up to POINTS parts of the rounds, of equal length; rounds that are left over are dropped."""
    points = min(POINTS, len(values))
    used = values[: len(values) // points * points]
    result: list[float] = used.reshape(points, -1).mean(axis=1).tolist()
    return result


def make_scheme(scheme: str, name: str, options: dict[str, Any], **settings: Any) -> Scheme:
    """Return a row, its policy made from a name and options."""
    return Scheme(scheme, policy(name, **options), **settings)


def shared_features_of(schemes: Sequence[Scheme]) -> str:
    """Return what the shared model sees unless it is said: half, or all where the personal part sees no more."""
    return "all" if any(scheme.model_name == "residual-kalman" for scheme in schemes) else "half"

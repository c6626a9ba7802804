"""Bandit rounds a second, on one core: one decision and one update a round, ours and other libraries'.

Everybody gets the same contexts and rewards. Speed says little of a policy that does not learn, so what the first
rounds earned stands beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from itertools import cycle, islice
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table
from threadpoolctl import threadpool_limits

from bandits.actions import Actions, arms
from bandits.federated import FederatedBandit
from bandits.replay import make_player
from bandits.streams import Chunk, Multiclass
from fedres.checks import Array
from fedres.policies import Policy
from fedres.policies import policy as make_policy
from libsvm_tasks.bandit_peers import EPSILON, PEERS, Runner
from libsvm_tasks.grid import Progress

ACTIONS, FEATURES = 10, 50
LENGTH = 10_000  # rounds of the stream, which then begins again
FIRST = 2_000  # rounds whose mean reward is reported
FEWEST = 200  # rounds of a timing


@dataclass(frozen=True, slots=True)
class Stream:
    """What everybody plays on: contexts (rounds × features) and what each action would earn (rounds × actions)."""

    contexts: Array
    rewards: Array


Replay = Callable[[int], Array]
"""Plays the next n rounds of a stream, going on where it stood, and returns what each of them earned."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A policy to time; ``prepare`` does all that comes before the clock starts."""

    name: str
    version: str | None  # None: not installed
    prepare: Callable[[Stream], Replay]


def make_stream(n_rounds: int = LENGTH, seed: int = 0) -> Stream:
    """Return standard normal contexts; 1 is earned by the action whose hidden weights score highest, 0 by the rest."""
    rng = np.random.default_rng(seed)
    contexts = rng.normal(size=(n_rounds, FEATURES))
    best = (contexts @ rng.normal(size=(FEATURES, ACTIONS))).argmax(axis=1)
    return Stream(contexts, np.eye(ACTIONS)[best])


def loop(make: Callable[[int, int], Runner], stream: Stream) -> Replay:
    """Return the replay that asks and tells a runner round by round."""
    runner = make(stream.rewards.shape[1], stream.contexts.shape[1])
    contexts = [runner.context(x) for x in stream.contexts]
    rounds = cycle(zip(contexts, stream.rewards.tolist(), strict=True))

    def play(n_rounds: int) -> Array:
        earned = []
        for context, rewards in islice(rounds, n_rounds):
            reward = rewards[runner.step(context)]
            runner.learn(reward)
            earned.append(reward)
        return np.array(earned)

    return play


class Stepped:
    """``FederatedBandit`` asked one decision at a time: one client, personal models that take VW's steps."""

    def __init__(self, policy: str, scheme: str, n_actions: int, n_features: int) -> None:
        self._bandit = FederatedBandit(_policy(policy), scheme=scheme, local_learner="linear")
        self._n_actions = n_actions

    def context(self, x: Array) -> Actions:
        return arms(x, self._n_actions)

    def step(self, context: Actions) -> int:
        self._decision = self._bandit.decide("client", context)
        return self._decision.place

    def learn(self, reward: float) -> None:
        self._bandit.reward(self._decision.id, reward)


def _policy(name: str) -> Policy:
    return make_policy(name, epsilon=EPSILON) if name == "epsilon-greedy" else make_policy(name)


def compiled(policy: str, scheme: str, stream: Stream) -> Replay:
    """Return the compiled replay of one client."""
    n_rounds, n_features = stream.contexts.shape
    columns, best = np.arange(n_features), stream.rewards.argmax(axis=1)
    rows, names = np.arange(n_rounds)[:, None], np.arange(stream.rewards.shape[1])[None, :]
    source = Multiclass(stream.contexts, best, rows, names, columns, columns)
    chunks = list(source)
    player = make_player(source, chunks[0], _policy(policy), scheme)
    whole = Chunk(*(np.concatenate(parts) for parts in zip(*chunks, strict=True)))
    at = 0

    def play(n_rounds: int) -> Array:
        nonlocal at
        earned = []
        while n_rounds:
            part = Chunk(*(values[at : at + n_rounds] for values in whole))
            action, _ = player.play(part)
            earned.append(np.take_along_axis(part.rewards[:, 0], action, axis=1)[:, 0])
            n_rounds -= len(action)
            at = (at + len(action)) % LENGTH
        return np.concatenate(earned)

    return play


def ours() -> list[Contestant]:
    """Return this project's own policies: one model as the peers have it, and the two of FedRes."""
    version, contestants = metadata.version("fedres"), []
    for policy, scheme in (("epsilon-greedy", "independent"), ("epsilon-greedy", "fedres"), ("linucb", "independent")):
        name = f"fedres {policy}{', shared + personal' if scheme == 'fedres' else ''}"
        if policy != "linucb":  # whose replay steps through the model too
            contestants.append(Contestant(f"{name}, compiled replay", version, partial(compiled, policy, scheme)))
        make = partial(Stepped, policy, scheme)
        contestants.append(Contestant(f"{name}, stepped from Python", version, partial(loop, make)))
    return contestants


def peers() -> list[Contestant]:
    """Return other libraries' policies, installed or not."""
    return [Contestant(name, _version(package), partial(loop, make)) for name, (package, make) in PEERS.items()]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def measure(contestant: Contestant, stream: Stream, seconds: float = 1.0, repeats: int = 3) -> dict[str, Any]:
    """Return rounds per second of CPU time, the median of ``repeats`` of about ``seconds``, and the first mean reward.

    A library that is not installed, or that raises, gets no figures but a note that says so.
    """
    row: dict[str, Any] = {"contestant": contestant.name, "version": contestant.version}
    if contestant.version is None:
        return row | {"rounds_per_second": None, "reward": None, "note": "not installed"}
    try:
        play = contestant.prepare(stream)
        with threadpool_limits(limits=1):
            reward = float(np.mean(play(FIRST)))
            return row | {"rounds_per_second": _speed(play, seconds, repeats), "reward": reward, "note": ""}
    except Exception as error:
        # An error in one library must not stop the measurement of the others.
        return row | {"rounds_per_second": None, "reward": None, "note": f"failed: {type(error).__name__}: {error}"}


def _speed(play: Replay, seconds: float, repeats: int) -> float:
    n_rounds = FEWEST
    while (taken := _seconds(play, n_rounds)) < seconds / 10:
        n_rounds *= 4
    n_rounds = max(FEWEST, round(n_rounds * seconds / taken))
    return n_rounds / median(_seconds(play, n_rounds) for _ in range(repeats))


def _seconds(play: Replay, n_rounds: int) -> float:
    start = time.process_time()
    play(n_rounds)
    return time.process_time() - start


def measure_all(progress: Progress | None = None, seconds: float = 0.5) -> list[dict[str, Any]]:
    """Return ``measure`` of everybody on one stream, with timings of about ``seconds`` each."""
    stream, contestants = make_stream(), [*ours(), *peers()]
    rows = []
    for contestant in contestants:
        rows.append(measure(contestant, stream, seconds))
        if progress is not None:
            progress(len(rows), len(contestants))
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return what ``measure_all`` returned, for people."""
    title = f"Bandit rounds a second: {ACTIONS} actions, {FEATURES} features, one core (chance earns {1 / ACTIONS:.3f})"
    result = Table(title=title, title_justify="left")
    result.add_column("contestant")
    result.add_column("version")
    for column in ("rounds/s", f"reward of the first {FIRST:,}"):
        result.add_column(column, justify="right")
    for row in rows:
        speed, reward = row["rounds_per_second"], row["reward"]
        figures = (row["note"], "") if speed is None else (f"{speed:,.0f}", f"{reward:.3f}")
        result.add_row(row["contestant"], row["version"] or "", *figures)
    return result

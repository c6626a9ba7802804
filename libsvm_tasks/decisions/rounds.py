"""What a stream of decisions is made of, and streams that are datasets: every class is an action."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fedres.checks import Array
from fedres.decisions.kalman_state import KalmanRequest
from fedres.scoring.flattening import feature_hash
from libsvm_tasks.bandit_tasks import PERMUTED
from libsvm_tasks.data import Data
from libsvm_tasks.load import load

Features = dict[str, float]  # by name; "topic=sport" for a category, "price" for a number
Rng = np.random.Generator
NOBODY = ""  # the user where callers name none


@dataclass
class DecisionRound:
    """A decision to be made."""

    user: str
    context: Features
    actions: list[Features]  # the first feature is the id
    chances: Array  # of a reward of 1
    counts: bool = True  # in the figure
    chosen: int = 0  # by the player, once it has decided

    @cached_property
    def request(self) -> KalmanRequest:
        """Context and actions as the models see them: names hashed as by the service."""
        rows = [self.context, *self.actions]
        hashed = [_hashed(name) for row in rows for name in row]
        return KalmanRequest(
            np.array([name for name, _ in hashed], np.uint32),
            np.array([value for row in rows for value in row.values()], np.float32),
            np.array([field for _, field in hashed], np.uint32),
            np.cumsum([len(row) for row in rows], dtype=np.int64),
        )


@lru_cache(maxsize=100_000)
def _hashed(name: str) -> tuple[int, int]:
    """Return the hashes of a feature and of its field, the JSON key."""
    return feature_hash(name), feature_hash(name.partition("=")[0])


@dataclass(frozen=True)
class DecisionStream:
    """Rounds that the seed alone decides, and when their rewards arrive.

    The figure of a stream is the mean reward or, where rewards are drawn by chance, (mean − uniform)/(best − uniform)
    of the true chances of what was chosen.
    """

    rounds: Callable[[Rng], Iterator[DecisionRound]]
    text: str  # one-line description
    delay: int = 0  # rounds until a reward arrives
    zero_delay: int | None = None  # of rewards of 0, where it differs
    missing: float = 0.0  # share of the rewards that never arrive
    by_chance: bool = False
    graded: bool = False  # rewards are the chances themselves
    replies: bool = False  # rounds depend on what was chosen before
    ids: bool = True  # of actions come again and say which action it is
    needs: tuple[str, ...] = ()  # datasets and real files that it is read from
    users: int = 20  # 0 where callers name none
    dim: int = 30  # of contexts, about
    peers: bool = False  # other libraries' policies make sense: one user, the same actions in all rounds, no delay


@lru_cache(maxsize=2)
def _data(name: str) -> tuple[Data, list[list[str]], list[Features]]:
    data = load(name)
    names = [f"x{j}" for j in range(data.features.shape[1])]
    return data, [names], [{f"_id={k}": 1.0} for k in range(data.n_classes)]


def classes(
    name: str, rng: Rng, n_users: int, rounds: int, task: str, *, drift: bool = False
) -> Iterator[DecisionRound]:
    """Yield rows of a dataset; the reward is 1 for the action that a user's task names for the row's class.

    ``same``: one task for all. ``permuted``: of ten classes three trade names, for each user other ones. ``shuffled``:
    all of them do. ``subset``: a user meets half of the classes only. ``drift``: half-way all names change.
    """
    data, (names,), actions = _data(name)
    k, n, label = data.n_classes, n_users * rounds, data.label
    meanings = np.array([_meaning(task, k, rng) for _ in range(n_users)])
    users = rng.permutation(n) % n_users
    order = rng.permutation(len(label))[:n] if n <= len(label) else rng.integers(len(label), size=n)
    if task == "subset":
        met = [np.flatnonzero(np.isin(label, rng.choice(k, k // 2, replace=False))) for _ in range(n_users)]
        order = np.array([rng.choice(met[user]) for user in users])
    later = rng.permutation(k) if drift else np.arange(k)
    for t, (row, user) in enumerate(zip(order, users, strict=True)):
        values = data.features[row]
        context = {names[j]: float(values[j]) for j in np.flatnonzero(values)}
        named = meanings[user][label[row]]
        yield DecisionRound(f"u{user}", context, actions, np.eye(k)[later[named] if 2 * t >= n else named])


def _meaning(task: str, n_classes: int, rng: Rng) -> Array:
    """Return which action stands for each class."""
    meaning = np.arange(n_classes)
    if task == "shuffled":
        return rng.permutation(n_classes)
    if task == "permuted":
        moved = rng.choice(n_classes, max(2, round(PERMUTED * n_classes)), replace=False)
        meaning[moved] = np.roll(moved, 1)
    return meaning

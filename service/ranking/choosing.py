"""From models and settings to probabilities and a draw, compiled: one call for all requests of a turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.exploration import epsilon_greedy, pick, squarecb
from fedres.local_learners.adagrad import kernel
from fedres.scoring.features import Hashed, Prepared
from fedres.scoring.model import MAX_SLOTS, shift_of
from fedres.scoring.scores import score_in, scratch_for
from service.models.memory import Key, read_block
from service.models.personal import views, words_for
from service.settings import Settings

NO_KEY: Key = (0, 0)  # of nobody's model
NO_MEMORY: Array = np.zeros(8, np.uint64)


class Policy(NamedTuple):
    """What the settings of a loop come to."""

    squarecb: bool
    amount: float  # γ of squarecb, ε of the others
    low: float  # the range of the rewards
    high: float


def policy_of(settings: Settings, n_learned: int) -> Policy:
    low, high = settings.reward_range
    square = settings.policy == "squarecb"
    epsilon = settings.epsilon if settings.policy == "epsilon-greedy" else 0.0
    amount = settings.gamma * max(n_learned, 1) ** 0.5 if square else epsilon
    return Policy(square, float(amount), float(low), float(high))


class Question(NamedTuple):
    """What is asked of the models for one request."""

    rows: Sequence[Hashed]  # the context's features, then those of each action
    allowed: Sequence[bool]  # which actions are not excluded; nothing where all are allowed
    draw: float  # the event's uniform number
    key: Key  # of the user's model


class Choice(NamedTuple):
    """What came of it."""

    action: int
    probabilities: list[float]
    scores: list[float]


def choose(
    questions: Sequence[Question], weights: Array, memory: Array, policy: Policy, *, crosses: bool
) -> list[Choice]:
    """Return a choice for each question; ``memory`` is where users' models are."""
    rows = [row for question in questions for row in question.rows]
    n_actions = [len(question.rows) - 1 for question in questions]
    n = sum(n_actions)
    allowed = _all_allowed(n)
    if any(question.allowed for question in questions):
        each = zip(questions, n_actions, strict=True)
        allowed = np.array([one for question, size in each for one in question.allowed or [True] * size], np.bool_)
    actions, numbers = np.empty(len(questions), np.int64), np.empty((2, n))
    _choose_all(
        np.array(n_actions, np.int64),
        np.array([row.size for row in rows], np.int64),
        np.frombuffer(b"".join([row.hashes for row in rows]), np.uint32),
        np.frombuffer(b"".join([row.values for row in rows]), np.float32),
        weights,
        shift_of(weights),
        crosses,
        memory,
        np.array([word for question in questions for word in question.key], np.int64).reshape(-1, 2),
        allowed,
        policy,
        np.array([question.draw for question in questions]),
        actions,
        numbers,
    )
    probabilities, scores = numbers.tolist()
    found, first = [], 0
    for action, size in zip(actions.tolist(), n_actions, strict=True):
        last = first + size
        found.append(Choice(action, probabilities[first:last], scores[first:last]))
        first = last
    return found


@lru_cache(maxsize=10_000)
def _all_allowed(n: int) -> Array:
    return np.ones(n, np.bool_)


@kernel
def _choose_all(
    n_actions: Array,  # of each request
    sizes: Array,  # features of each row: context, actions, next context, ...
    hashes: Array,
    values: Array,
    weights: Array,
    shift: int,
    crosses: bool,
    memory: Array,
    keys: Array,
    allowed: Array,
    policy: Any,
    draws: Array,
    actions: Array,
    numbers: Array,
) -> None:
    """Fill in the actions drawn, and the probabilities and scores of all."""
    own, most = np.empty(words_for(MAX_SLOTS), np.uint64), max(n_actions)
    scratch, parts = scratch_for(hashes.size, MAX_SLOTS), np.empty((most, 2), np.float32)
    starts, within = np.empty(most + 1, np.int64), np.empty(most)
    row = first = action = 0
    for k in range(n_actions.size):
        n = n_actions[k]
        starts[0] = sizes[row]
        for a in range(n):
            starts[a + 1] = starts[a] + sizes[row + 1 + a]
        last = first + starts[n]
        prepared = Prepared(hashes[first:last], values[first:last], starts[: n + 1], crosses)
        n_slots = _read_own(memory, keys[k, 0], keys[k, 1], own)
        table, own_weights, _ = views(own, 2, n_slots)
        score_in(scratch, prepared, (weights, shift, table, own_weights), parts[:n])
        scores, chances = numbers[1, action : action + n], numbers[0, action : action + n]
        for a in range(n):
            scores[a] = parts[a, 0] + parts[a, 1]
        probabilities_of(scores, allowed[action : action + n], policy, within[:n], chances)
        actions[k] = pick(chances, draws[k])
        row, first, action = row + n + 1, last, action + n


@kernel
def _read_own(memory: Array, key0: int, key1: int, own: Array) -> Any:
    """Copy a user's model; return how many slots it has, 0 where there is none or it is being written for too long."""
    if key0 == 0:
        return 0
    if read_block(memory, key0, key1, own) <= 0:
        return 0
    return np.int64(own[0] & np.uint64(0xFFFFFFFF))


@kernel
def probabilities_of(scores: Array, allowed: Array, policy: Any, within: Array, out: Array) -> None:
    """Fill in what each action is drawn with.

    No prediction counts as less than the least reward: actions that are not expected to earn anything tie, or a greedy
    policy would stay with one of them for ever. The gaps that squarecb weighs are between rewards within their range.
    """
    high = policy.high if policy.squarecb else np.inf
    for k in range(scores.size):
        within[k] = min(max(scores[k], policy.low), high)
    if policy.squarecb:
        squarecb(within, allowed, policy.amount, out)
    else:
        epsilon_greedy(within, allowed, policy.amount, out)

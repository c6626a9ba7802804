"""From the models and the settings of a loop to probabilities and a draw, compiled; for one request and for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bandits.exploration import epsilon_greedy, pick, squarecb
from fedres.checks import Array
from fedres.local_learners.adagrad import kernel
from service.engine.settings import Settings
from service.scoring.features import Hashed, HashedOffer, Prepared
from service.scoring.kernels import score_kernel
from service.scoring.model import PersonalModel, arrays


class How(NamedTuple):
    """What the settings of a loop come to."""

    square: bool  # whether the policy is squarecb
    amount: float  # γ_t of squarecb, ε of the others
    low: float  # the range of the rewards
    high: float


def how_to_choose(settings: Settings, n_learned: int) -> How:
    low, high = settings.reward_range
    square = settings.policy == "squarecb"
    amount = settings.epsilon if settings.policy == "epsilon-greedy" else 0.0
    return How(square, float(settings.gamma * max(n_learned, 1) ** 0.5 if square else amount), float(low), float(high))


@kernel
def choose_kernel(prepared: Any, models: Any, allowed: Array, how: Any, u: float, out: Array) -> Any:
    """Return the action that ``u`` falls on; fill in two rows of ``out``: the scores and the probabilities of all."""
    weights, shift, table, own = models
    parts = score_kernel(prepared, weights, shift, table, own)
    for k in range(allowed.size):
        out[0, k] = parts[k, 0] + parts[k, 1]
    _probabilities(out[0], allowed, how, out[1])
    return pick(out[1], u)


@kernel
def _probabilities(scores: Array, allowed: Array, how: Any, out: Array) -> None:
    """Fill in what each action is drawn with.

    No prediction counts as less than the least reward: actions that are not expected to earn anything tie, or a greedy
    policy would stay with one of them for ever. The gaps that squarecb weighs are between rewards within their range.
    """
    within = np.maximum(scores, how.low)
    if how.square:
        squarecb(np.minimum(within, how.high), allowed, how.amount, out)
    else:
        epsilon_greedy(within, allowed, how.amount, out)


class Features(NamedTuple):
    """The features of many requests, one after the other: of each its context's, then those of its actions."""

    hashes: Array
    values: Array
    n_context: Array  # int64, how many are a context's, for each request
    n_actions: Array  # int64, for each request
    sizes: Array  # int64, how many an action has, for each action
    crosses: bool


class Tables(NamedTuple):
    """The shared weights, and the personal models of many requests, one after the other."""

    weights: Array
    shift: int
    n_slots: Array  # int64, for each request, 0 where there is no model
    keys: Array
    own: Array  # one more than slots, for each request


class Chosen(NamedTuple):
    """What comes of it, to be filled in."""

    drawn: Array  # int64, for each request
    order: Array  # int64, of each request's actions, the best first
    chances: Array  # float64, for each action
    scores: Array


def arrays_of_all(weights: Array, personal: Sequence[PersonalModel | None]) -> Tables:
    """Return what ``choose_together`` takes of the models: the shared weights, and the model of each request's user."""
    found = [arrays(weights, own) for own in personal]
    return Tables(
        *found[0][:2],
        np.array([keys.size for _, _, keys, _ in found], np.int64),
        np.concatenate([keys for _, _, keys, _ in found]),
        np.concatenate([own for _, _, _, own in found]),
    )


def choose_together(
    hashed: Sequence[tuple[Hashed, HashedOffer]],
    tables: Tables,
    crosses: bool,
    allowed: Array,
    how: How,
    u: Sequence[float],
) -> Chosen:
    """Return what ``choose_kernel`` finds for each of many requests, whose actions ``allowed`` has in a row."""
    features = Features(
        np.frombuffer(b"".join([part.hashes for parts in hashed for part in parts]), np.uint32),
        np.frombuffer(b"".join([part.values for parts in hashed for part in parts]), np.float32),
        np.array([len(context.hashes) // 4 for context, _ in hashed], np.int64),
        np.array([len(offer.places) - 1 for _, offer in hashed], np.int64),
        np.frombuffer(b"".join([offer.sizes for _, offer in hashed]), np.int64),
        crosses,
    )
    n = allowed.size
    out = Chosen(np.empty(len(hashed), np.int64), np.empty(n, np.int64), np.empty(n), np.empty(n))
    _choose_all(features, tables, allowed, how, np.array(u), out)
    return out


@kernel
def _choose_all(features: Any, tables: Any, allowed: Array, how: Any, u: Array, out: Any) -> None:
    """Do for each request what ``choose_kernel`` does for one."""
    row = column = slot = 0
    for k in range(u.size):
        n_actions, n_slots = features.n_actions[k], tables.n_slots[k]
        starts = np.empty(n_actions + 1, np.int64)
        starts[0] = features.n_context[k]
        for a in range(n_actions):
            starts[a + 1] = starts[a] + features.sizes[row + a]
        here, mine, end = slice(row, row + n_actions), slice(column, column + starts[n_actions]), slot + n_slots
        prepared = Prepared(features.hashes[mine], features.values[mine], starts, features.crosses)
        models = (tables.weights, tables.shift, tables.keys[slot:end], tables.own[slot + k : end + k + 1])
        both = np.empty((2, n_actions))
        out.drawn[k] = choose_kernel(prepared, models, allowed[here], how, u[k], both)
        out.scores[here], out.chances[here] = both[0], both[1]
        _best_first(both[0], out.order[here])
        row, column, slot = row + n_actions, column + starts[n_actions], end


@kernel
def _best_first(scores: Array, order: Array) -> None:
    """Fill in where the best score is, the next best and so on; those that are equal in the order they came."""
    for k in range(scores.size):
        at = k
        while at > 0 and scores[order[at - 1]] < scores[k]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = k

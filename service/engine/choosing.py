"""From the models and the settings of a loop to probabilities and a draw, compiled; for one request and for many."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from bandits.exploration import epsilon_greedy, pick, squarecb
from fedres.checks import Array
from fedres.local_learners.adagrad import kernel
from service.engine.settings import Settings
from service.scoring.features import Hashed, HashedOffer, Prepared
from service.scoring.model import PersonalModel, arrays, shift_of
from service.scoring.scores import score_kernel


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


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What is asked of the models."""

    context: Hashed
    offer: HashedOffer
    personal: PersonalModel | None
    u: float


class Chosen(NamedTuple):
    """What was chosen for many requests, one after the other."""

    places: Array  # the action drawn for each request, then the order of each one's actions, the best first
    numbers: Array  # the probabilities of all actions, then their scores


ALL: Array = np.ones(0, dtype=bool)


def choose_together(asked: Sequence[Asked], weights: Array, crosses: bool, allowed: Array, how: How) -> Chosen:
    """Return what ``choose_kernel`` finds for each request; ``allowed`` is of all their actions, or ``ALL``.

    The kernel is given few arrays, as each takes longer to hand over than to fill.
    """
    keys: list[bytes] = []
    reals: list[bytes] = []
    counts, sizes, n = array("q"), [], 0
    for one in asked:
        context, offer, personal = one.context, one.offer, one.personal
        n_actions, n_slots = len(offer.places) - 1, 0
        keys += context.hashes, offer.hashes
        reals += context.values, offer.values
        if personal is not None:
            _, _, table, own = arrays(weights, personal)
            n_slots = table.size
            keys.append(table.tobytes())
            reals.append(own.tobytes())
        counts.extend((len(context.hashes) // 4, n_actions, n_slots))
        sizes.append(offer.sizes)
        n += n_actions
    places, numbers = np.empty(len(asked) + n, np.int64), np.empty(2 * n)
    _choose_all(
        np.frombuffer(b"".join([counts, *sizes]), np.int64),
        np.frombuffer(b"".join(keys), np.uint32),
        np.frombuffer(b"".join(reals), np.float32),
        weights,
        shift_of(weights),
        crosses,
        allowed,
        *how,
        np.array([one.u for one in asked]),
        places,
        numbers,
    )
    return Chosen(places, numbers)


@kernel
def _choose_all(
    counts: Array,  # for each request: its context's features, actions, slots of the table; then each action's features
    keys: Array,  # of each request: the hashes of the context and of the actions, and the table
    reals: Array,  # the same: values, and weights
    weights: Array,
    shift: int,
    crosses: bool,
    allowed: Array,
    square: bool,
    amount: float,
    low: float,
    high: float,
    u: Array,
    places: Array,
    numbers: Array,
) -> None:
    """Fill in ``places``, the actions drawn and then the orders, and the ``numbers``."""
    how, n_requests, n = How(square, amount, low, high), u.size, numbers.size // 2
    row = key = real = 0
    for k in range(n_requests):
        n_actions, n_slots = counts[3 * k + 1], counts[3 * k + 2]
        starts = np.empty(n_actions + 1, np.int64)
        starts[0] = counts[3 * k]
        for a in range(n_actions):
            starts[a + 1] = starts[a] + counts[3 * n_requests + row + a]
        m = starts[n_actions]
        prepared = Prepared(keys[key : key + m], reals[real : real + m], starts, crosses)
        key, real, last = key + m, real + m, row + n_actions
        own = (weights, shift, keys[key : key + n_slots], reals[real : real + n_slots + 1])
        mine = allowed[row:last] if allowed.size else np.ones(n_actions, np.bool_)
        out = np.empty((2, n_actions))
        places[k] = choose_kernel(prepared, own, mine, how, u[k], out)
        numbers[n + row : n + last], numbers[row:last] = out[0], out[1]
        _best_first(out[0], places[n_requests + row : n_requests + last])
        row, key, real = last, key + n_slots, real + (n_slots + 1 if n_slots else 0)


@kernel
def _best_first(scores: Array, order: Array) -> None:
    """Fill in where the best score is, the next best and so on; those that are equal in the order they came."""
    for k in range(scores.size):
        at = k
        while at > 0 and scores[order[at - 1]] < scores[k]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = k

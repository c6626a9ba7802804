"""From the models and the settings of a loop to probabilities and a draw, compiled; for one request and for many."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.exploration import epsilon_greedy, pick, squarecb
from fedres.local_learners.adagrad import bare_kernel, kernel
from fedres.scoring.features import Hashed, HashedOffer, Prepared
from fedres.scoring.model import PersonalModel, arrays, shift_of
from fedres.scoring.scores import Scratch, score_in, scratch_for
from service.engine.settings import Settings


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


class Room(NamedTuple):
    """Where requests are decided, one after the other."""

    scratch: Scratch
    parts: Array  # of the score of each action
    within: Array  # each action's score, within the range of the rewards


@kernel
def _room_for(n_features: int, n_actions: int, n_slots: int) -> Room:
    return Room(scratch_for(n_features, n_slots), np.empty((n_actions, 2), np.float32), np.empty(n_actions))


@kernel
def choose_kernel(prepared: Any, models: Any, allowed: Array, how: Any, u: float, out: Array) -> Any:
    """Return the action that ``u`` falls on; fill in two rows of ``out``: the scores and the probabilities of all."""
    room = _room_for(prepared.hashes.size, allowed.size, models[2].size)
    return _choose(room, prepared, models, allowed, how, u, out[0], out[1])


@bare_kernel
def _choose(
    room: Any, prepared: Any, models: Any, allowed: Array, how: Any, u: float, scores: Array, chances: Array
) -> Any:
    n = scores.size
    parts, within = room.parts[:n], room.within[:n]
    score_in(room.scratch, prepared, models, parts)
    for k in range(n):
        scores[k] = parts[k, 0] + parts[k, 1]
    _probabilities(scores, allowed, how, within, chances)
    return pick(chances, u)


@bare_kernel
def _probabilities(scores: Array, allowed: Array, how: Any, within: Array, out: Array) -> None:
    """Fill in what each action is drawn with.

    No prediction counts as less than the least reward: actions that are not expected to earn anything tie, or a greedy
    policy would stay with one of them for ever. The gaps that squarecb weighs are between rewards within their range.
    """
    high = how.high if how.square else np.inf
    for k in range(scores.size):
        within[k] = min(max(scores[k], how.low), high)
    if how.square:
        squarecb(within, allowed, how.amount, out)
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
    counts: list[int] = []
    for one in asked:
        context, offer, personal, n_slots = one.context, one.offer, one.personal, 0
        keys += context.hashes, offer.hashes
        reals += context.values, offer.values
        if personal is not None:
            _, _, table, own = arrays(weights, personal)
            n_slots = table.size
            keys.append(table.tobytes())
            reals.append(own.tobytes())
        counts += len(context.hashes) // 4, len(offer.places) - 1, n_slots
    n = sum(counts[1::3])
    places, numbers = np.empty(len(asked) + n, np.int64), np.empty(2 * n)
    _choose_all(
        np.frombuffer(b"".join([array("q", counts), *[one.offer.sizes for one in asked]]), np.int64),
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
    n = numbers.size // 2
    room, starts = _room_for(keys.size, n, keys.size), np.empty(n + 1, np.int64)
    asked, every = (counts, keys, reals, u), allowed if allowed.size else np.ones(n, np.bool_)
    _choose_each(room, starts, asked, weights, shift, crosses, every, How(square, amount, low, high), places, numbers)


@bare_kernel
def _choose_each(
    room: Any,
    starts: Array,
    asked: Any,
    weights: Array,
    shift: int,
    crosses: bool,
    allowed: Array,
    how: Any,
    places: Array,
    numbers: Array,
) -> None:
    counts, keys, reals, u = asked
    n_requests, n = u.size, numbers.size // 2
    row = key = real = 0
    for k in range(n_requests):
        n_actions, n_slots = counts[3 * k + 1], counts[3 * k + 2]
        starts[0] = counts[3 * k]
        for a in range(n_actions):
            starts[a + 1] = starts[a] + counts[3 * n_requests + row + a]
        m = starts[n_actions]
        prepared = Prepared(keys[key : key + m], reals[real : real + m], starts[: n_actions + 1], crosses)
        key, real, last = key + m, real + m, row + n_actions
        own = (weights, shift, keys[key : key + n_slots], reals[real : real + n_slots + 1])
        scores, chances = numbers[n + row : n + last], numbers[row:last]
        places[k] = _choose(room, prepared, own, allowed[row:last], how, u[k], scores, chances)
        _best_first(scores, places[n_requests + row : n_requests + last])
        row, key, real = last, key + n_slots, real + (n_slots + 1 if n_slots else 0)


@bare_kernel
def _best_first(scores: Array, order: Array) -> None:
    """Fill in where the best score is, the next best and so on; those that are equal in the order they came."""
    for k in range(scores.size):
        at = k
        while at > 0 and scores[order[at - 1]] < scores[k]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = k

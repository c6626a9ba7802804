"""Drawing from very many actions, one after the other without replacement, with exact probabilities.

A policy that gives each of 100,000 actions its share explores nearly always. So the policy weighs the best of those
that are left, the shortlist, as if there were no others. Its floor, and ε of ``epsilon-greedy``, go evenly to all that
are left, so that each can be drawn. Actions that tie with the last one of the shortlist share the places that are left
on it. Those that score the same are drawn in the order of their keys, so that the order of actions changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedres.checks import Array
from fedres.policies.kernels import AMOUNT, CODE, EPSILON_GREEDY, FLOOR, GREEDY, HIGH, LOW, rank_scores, weigh

SHORTLIST = 50  # actions that the policy weighs


def ranked(
    rule: Array,
    means: Array,
    widths: Array,
    keys: Array,
    allowed: Array,
    n: int,
    boosts: Array | float = 0.0,
) -> tuple[Array, Array, float]:
    """Return the ranking with which ``draw_one`` draws ``n`` of the allowed actions.

    Boosts are added to ranking scores, and so have their effect beyond the range of the rewards.

    It has the policy's ranking score of each action; the top actions, best first; and the score of the best action
    after them, with which others may tie: the worst one where fewer are allowed.
    """
    scores = np.empty(means.size)
    rank_scores(rule[CODE], rule[AMOUNT], rule[LOW], rule[HIGH], means, widths, scores)
    scores += boosts
    candidates = scores[allowed]
    place = max(candidates.size - SHORTLIST - n, 0)
    last = float(np.partition(candidates, place)[place]) if candidates.size else -np.inf
    front = np.flatnonzero(allowed & (scores > last))
    return scores, front[np.lexsort((keys[front], -scores[front]))], last


def draw_one(
    rule: Array,
    n_learned: int,
    scores: Array,
    front: Array,
    last: float,
    keys: Array,
    allowed: Array,
    count: int,
    u: float,
    ids: Sequence[str] | None = None,
) -> tuple[int, float]:
    """Return the action that a number in [0, 1) falls on, and its probability; ``count`` actions are allowed.

    Several actions may have the same key: ``ids`` tell them apart.

    First come the best, then those that tie with the last one of the shortlist, then all others.
    """
    rule, floor, tied = rule.copy(), rule[FLOOR], last
    if rule[CODE] == EPSILON_GREEDY:
        rule[CODE], floor = GREEDY, 1 - (1 - floor) * (1 - rule[AMOUNT])
    rule[FLOOR] = 0.0
    listed = front[allowed[front]][:SHORTLIST]
    if listed.size == SHORTLIST:
        tied = scores[listed[-1]]
        listed = listed[scores[listed] > tied]
    ties = int(np.count_nonzero(allowed & (scores == tied)))
    places = min(SHORTLIST - listed.size, ties)
    weights = np.concatenate([scores[listed], np.full(places, tied)])
    weigh(rule, 0, n_learned, np.ones(weights.size, np.bool_), weights)
    share = floor / count
    chances: list[float] = ((1 - floor) * weights + share).tolist()
    for action, chance in zip(listed.tolist(), chances, strict=False):
        if u < chance:
            return action, chance
        u -= chance
    chance = float((1 - floor) * weights[listed.size] * places / ties + share) if ties else 0.0
    if chance == 0:  # nothing is left but what rounding has left of u
        return int(listed[0]), chances[0]
    n_others = count - listed.size - ties
    if u < ties * chance or n_others == 0 or share == 0:
        return _nth(keys, ids, allowed & (scores == tied), min(int(u / chance), ties - 1)), chance
    number = min(int((u - ties * chance) / share), n_others - 1)
    return _nth(keys, ids, allowed & (scores < tied), number), float(share)


def _nth(keys: Array, ids: Sequence[str] | None, among: Array, n: int) -> int:
    """Return the n-th action by rising keys and ids."""
    actions = np.flatnonzero(among)
    keys = keys[actions]
    key = np.partition(keys, n)[n]
    alike: list[int] = actions[keys == key].tolist()
    if ids is not None:
        alike.sort(key=lambda action: ids[action])
    return alike[n - int(np.count_nonzero(keys < key))]

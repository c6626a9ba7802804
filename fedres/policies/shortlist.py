"""Drawing from very many actions, one after the other without replacement, with exact probabilities; compiled.

A policy that gives each of 100,000 actions its share explores nearly always. So the policy weighs the best of those
that are left, the shortlist, as if there were no others. Its floor, and ε of ``epsilon-greedy``, go evenly to all that
are left, so that each can be drawn. Actions that tie with the last one of the shortlist share the places that are left
on it. Those that score the same are drawn in the order of their keys, so that the order of actions changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import kernel
from fedres.local_learners.adagrad import at
from fedres.policies.kernels import AMOUNT, CODE, EPSILON_GREEDY, FLOOR, GREEDY, HIGH, LOW, explore, rank_scores

SHORTLIST = 50  # actions that the policy weighs


@kernel
def ranked(rule: Array, means: Array, widths: Array, keys: Array, allowed: Array, n: int) -> Any:
    """Return what ``draw_one`` needs to draw ``n`` of the allowed actions.

    That is what the policy ranks each action by; the actions in front, best first; and the score of the best one that
    is not in front, with which others may tie.
    """
    scores = np.empty(means.size)
    rank_scores(rule[CODE], rule[AMOUNT], rule[LOW], rule[HIGH], means, widths, scores)
    last = _kth_best(scores, allowed, SHORTLIST + n)
    front = np.flatnonzero(allowed & (scores > last))
    front = front[np.argsort(keys[front], kind="mergesort")]
    return scores, front[np.argsort(-scores[front], kind="mergesort")], last


@kernel
def _kth_best(scores: Array, allowed: Array, k: int) -> float:
    """Return the k-th best score of an allowed action, the worst one where fewer are allowed; −∞ without any.

    Only scores above the k-th best so far are kept, until there is no more room for them.
    """
    kept, n, least = np.empty(8 * k), 0, -np.inf
    for action in range(scores.size):
        if allowed[action] and scores[action] > least:
            kept[n] = scores[action]
            n += 1
            if n == kept.size:
                kept[:k] = np.partition(kept, n - k)[n - k :]
                n, least = k, kept[:k].min()
    if n == 0:
        return -np.inf
    last: float = np.partition(kept[:n], max(n - k, 0))[max(n - k, 0)]
    return last


@kernel
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
) -> Any:
    """Return the action that a number in [0, 1) falls on, and its probability; ``count`` actions are allowed.

    First come the best, then those that tie with the last one of the shortlist, then all others.
    """
    rule, floor = rule.copy(), rule[FLOOR]
    if rule[CODE] == EPSILON_GREEDY:
        rule[CODE], floor = GREEDY, 1 - (1 - floor) * (1 - rule[AMOUNT])
    rule[FLOOR] = 0.0
    listed = np.empty(SHORTLIST, np.int64)
    n_listed, tied = 0, last
    for action in front:  # at most as many as will be drawn are not allowed any more
        if allowed[at(action)]:
            if n_listed == SHORTLIST:
                break
            listed[n_listed] = action
            n_listed += 1
    if n_listed == SHORTLIST:
        tied = scores[listed[SHORTLIST - 1]]
        while n_listed > 0 and scores[listed[n_listed - 1]] == tied:
            n_listed -= 1
    ties = 0
    for action in range(scores.size):
        if allowed[action] and scores[action] == tied:
            ties += 1
    places = min(SHORTLIST - n_listed, ties)
    weighed, chances = np.full(n_listed + places, tied), np.empty(n_listed + places)
    for k in range(n_listed):
        weighed[k] = scores[listed[k]]
    explore(rule, 0, n_learned, weighed, np.zeros(weighed.size), np.ones(weighed.size, np.bool_), chances)
    share = floor / count
    for k in range(n_listed):
        chance = (1 - floor) * chances[k] + share
        if u < chance:
            return listed[k], chance
        u -= chance
    chance = (1 - floor) * chances[n_listed] * places / ties + share if ties else 0.0
    if chance == 0:  # nothing is left but what rounding has left of u
        return listed[0], (1 - floor) * chances[0] + share
    n_others = count - n_listed - ties
    if u < ties * chance or n_others == 0 or share == 0:
        return _nth(scores, keys, allowed, tied, True, min(int(u / chance), ties - 1)), chance
    return _nth(scores, keys, allowed, tied, False, min(int((u - ties * chance) / share), n_others - 1)), share


@kernel
def _nth(scores: Array, keys: Array, allowed: Array, tied: float, ties: bool, n: int) -> int:
    """Return the n-th by rising keys of the allowed actions with the score ``tied``, or of those with a lower one."""
    actions = np.flatnonzero(allowed & (scores == tied if ties else scores < tied))
    key = np.partition(keys[actions], n)[n]
    for action in actions:
        if keys[action] == key:
            return int(action)
    return -1

"""From predicted rewards to probabilities, and from probabilities to an action, compiled.

``weigh`` is the only place where compiled code tells policies apart. Predictions are compared as they are, ties
share. An action that is not allowed has probability 0.

[AgaEtAl12] A. Agarwal, M. Dudík, S. Kale, J. Langford, R. Schapire. Contextual Bandit Learning with Predictable
Rewards. 2012.
[FosRak20] D. Foster, A. Rakhlin. Beyond UCB: Optimal and Efficient Contextual Bandits with Regression Oracles. 2020.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel, kernel

EXPLORE_EVERY, EPSILON_GREEDY, SQUARECB, GREEDY, OPTIMISTIC_SQUARECB, LINUCB, SOFTMAX = range(7)
CODE, AMOUNT, FLOOR, LOW, HIGH = range(5)  # of a rule: which policy, its number, its floor, the range of the rewards

Word = Any  # uint64 inside the kernels


@bare_kernel
def explore(rule: Array, n: int, n_learned: int, means: Array, widths: Array, allowed: Array, out: Array) -> None:
    """Fill in each action's probability in a client's n-th decision, after ``n_learned`` rewards.

    Policies other than ``linucb`` raise predictions to the least reward: so actions without expected reward tie, and a
    greedy policy does not stay with one of them forever.
    """
    rank_scores(rule[CODE], rule[AMOUNT], rule[LOW], rule[HIGH], means, widths, out)
    weigh(rule, n, n_learned, allowed, out)


@bare_kernel
def weigh(rule: Array, n: int, n_learned: int, allowed: Array, out: Array) -> None:
    """Replace ranking scores by probabilities."""
    code, amount = rule[CODE], rule[AMOUNT]
    if code == SQUARECB:
        squarecb(out, allowed, amount * np.sqrt(max(n_learned, 1)))
    elif code == OPTIMISTIC_SQUARECB:
        span = rule[HIGH] - rule[LOW]
        squarecb(out, allowed, amount * np.sqrt(n_learned) / (span if span < np.inf else 1.0))
    elif code == SOFTMAX:
        softmax(out, allowed, amount)
    elif code == EXPLORE_EVERY:
        epsilon_greedy(out, allowed, 1.0 if n % amount < 1 else 0.0)  # a multiple of B in (n − 1, n]
    else:
        epsilon_greedy(out, allowed, amount if code == EPSILON_GREEDY else 0.0)
    spread(allowed, rule[FLOOR], out)


@bare_kernel
def rank_scores(code: float, amount: float, low: float, high: float, means: Array, widths: Array, out: Array) -> None:
    """Write the scores by which actions are ranked. squarecb's gaps are between rewards within their range."""
    if code == LINUCB:
        for a in range(out.size):
            out[a] = means[a] + amount * widths[a]
        return
    most = high if code == SQUARECB else np.inf
    for a in range(out.size):
        out[a] = min(max(means[a], low), most)
    if code == OPTIMISTIC_SQUARECB:
        for a in range(out.size):
            out[a] += widths[a]


# Each of the following replaces the scores of actions by probabilities.


@inner_kernel
def best_of(scores: Array, allowed: Array) -> tuple[float, int, int]:
    """Return the best score of an allowed action, how many are allowed, and how many of them have it."""
    best, count, ties = -np.inf, 0, 0
    for a in range(scores.size):
        if allowed[a]:
            count += 1
            if scores[a] > best:
                best, ties = scores[a], 1
            elif scores[a] == best:
                ties += 1
    return best, count, ties


@inner_kernel
def epsilon_greedy(scores: Array, allowed: Array, epsilon: float) -> None:
    """Spread ``epsilon`` evenly, and share the rest among the best."""
    best, count, ties = best_of(scores, allowed)
    for a in range(scores.size):
        is_best = scores[a] == best
        scores[a] = epsilon / count if allowed[a] else 0.0
        if allowed[a] and is_best:
            scores[a] += (1 - epsilon) / ties


@inner_kernel
def squarecb(scores: Array, allowed: Array, gamma: float) -> None:
    """Weigh by the inverse gap to the best, 1/(K + γ·gap); the best share the rest [FosRak20, Alg. 1]."""
    best, count, ties = best_of(scores, allowed)
    left = 1.0
    for a in range(scores.size):
        if allowed[a] and scores[a] < best:
            scores[a] = 1.0 / (count + gamma * (best - scores[a]))
            left -= scores[a]
        else:
            scores[a] = -1.0 if allowed[a] else 0.0
    for a in range(scores.size):
        if scores[a] < 0:  # the best
            scores[a] = left / ties


@inner_kernel
def softmax(scores: Array, allowed: Array, inverse_temperature: float) -> None:
    """Weigh by exp(score / temperature)."""
    best, _, _ = best_of(scores, allowed)
    total = 0.0
    for a in range(scores.size):
        scores[a] = np.exp(inverse_temperature * (scores[a] - best)) if allowed[a] else 0.0
        total += scores[a]
    for a in range(scores.size):
        scores[a] /= total


@bare_kernel
def spread(allowed: Array, floor: float, out: Array) -> None:
    """Take a share ``floor`` of all probability and spread it evenly over what is allowed."""
    if floor > 0:
        count = 0
        for a in range(out.size):
            count += 1 if allowed[a] else 0
        for a in range(out.size):
            if allowed[a]:
                out[a] = (1 - floor) * out[a] + floor / count


@kernel
def explore_all(rule: Array, n_learned: int, offsets: Array, means: Array, out: Array) -> None:
    """Do the same for many decisions with consecutive actions; all are allowed, and widths are 0."""
    allowed, widths = np.ones(means.size, np.bool_), np.zeros(means.size)
    for k in range(offsets.size - 1):
        one = slice(offsets[k], offsets[k + 1])
        explore(rule, 1, n_learned, means[one], widths[one], allowed[one], out[one])


@bare_kernel
def pick(probabilities: Array, u: float) -> int:
    """Return the action that a uniform number in [0, 1) falls on; never one of probability 0."""
    last = -1
    for a in range(probabilities.size):
        if probabilities[a] > 0:
            last = a
            u -= probabilities[a]
            if u < 0:
                break
    return last


@kernel
def _mix(state: Word) -> Word:
    """SplitMix64's finaliser."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@kernel
def draw(seed: int, client: int, n: int) -> float:
    """Return a number in [0, 1) for a client's n-th decision, independent of other clients' decisions."""
    state = _mix(np.uint64(seed))
    state = _mix(state ^ np.uint64(client))
    state = _mix(state ^ np.uint64(n))
    number: float = (state >> np.uint64(11)) * 2.0**-53
    return number


def check_seed(seed: int) -> None:
    checks.whole("seed", seed, least=0)
    if seed >= 2**63:
        raise ValueError(f"seed must fit 63 bits, got {seed}")

"""From predicted rewards to probabilities, and from probabilities to an action.

Predictions are compared as they are, ties share. An action that is not allowed has probability 0.

[AgaEtAl12] A. Agarwal, M. Dudík, S. Kale, J. Langford, R. Schapire. Contextual Bandit Learning with Predictable
Rewards. 2012.
[FosRak20] D. Foster, A. Rakhlin. Beyond UCB: Optimal and Efficient Contextual Bandits with Regression Oracles. 2020.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.local_learners.adagrad import bare_kernel, kernel

EXPLORE_EVERY, EPSILON_GREEDY, SQUARECB, GREEDY, OPTIMISTIC_SQUARECB = range(5)
CODES = {
    "epsilon-greedy": EPSILON_GREEDY,
    "squarecb": SQUARECB,
    "greedy": GREEDY,
    "optimistic-squarecb": OPTIMISTIC_SQUARECB,
}
GREED, FLOOR = 300.0, 0.002  # of ``optimistic_squarecb``: γ for one reward of range 1, uniform

Word = Any  # uint64 inside the kernels


@bare_kernel
def uniform(allowed: Array, out: Array) -> None:
    """Spread probability evenly over what is allowed."""
    count = 0
    for a in range(allowed.size):
        count += allowed[a]
    for a in range(allowed.size):
        out[a] = 1.0 / count if allowed[a] else 0.0


@bare_kernel
def best_score(scores: Array, allowed: Array) -> float:
    best = -np.inf
    for a in range(scores.size):
        if allowed[a] and scores[a] > best:
            best = scores[a]
    return best


@bare_kernel
def epsilon_greedy(scores: Array, allowed: Array, epsilon: float, out: Array) -> None:
    """Spread ``epsilon`` evenly, and share the rest among the best."""
    best, count, ties = best_score(scores, allowed), 0, 0
    for a in range(scores.size):
        if allowed[a]:
            count += 1
            ties += scores[a] == best
    for a in range(scores.size):
        out[a] = epsilon / count if allowed[a] else 0.0
        if allowed[a] and scores[a] == best:
            out[a] += (1 - epsilon) / ties


@bare_kernel
def squarecb(scores: Array, allowed: Array, gamma: float, out: Array) -> None:
    """Weigh by the inverse gap to the best, 1/(K + γ·gap); what is left is shared among the best [FosRak20, Alg. 1]."""
    best, count, ties, left = best_score(scores, allowed), 0, 0, 1.0
    for a in range(scores.size):
        if allowed[a]:
            count += 1
            ties += scores[a] == best
    for a in range(scores.size):
        out[a] = 1.0 / (count + gamma * (best - scores[a])) if allowed[a] and scores[a] < best else 0.0
        left -= out[a]
    for a in range(scores.size):
        if allowed[a] and scores[a] == best:
            out[a] = left / ties


@bare_kernel
def spread(allowed: Array, floor: float, out: Array) -> None:
    """Take a share ``floor`` of all probability and spread it evenly over what is allowed."""
    if floor > 0:
        count = 0
        for a in range(out.size):
            count += allowed[a]
        for a in range(out.size):
            if allowed[a]:
                out[a] = (1 - floor) * out[a] + floor / count


@bare_kernel
def optimistic_squarecb(
    means: Array, widths: Array, allowed: Array, low: float, gamma: float, floor: float, out: Array
) -> None:
    """Weigh by the inverse gap between scores max(mean, ``low``) + width; spread ``floor`` of it evenly.

    ``low`` is the least reward: an estimate below it is an error, and must not outweigh the width. γ = ``gamma`` is in
    units of 1/reward: 300·√n over the range of the rewards has worked for all streams, n being the rewards learned.
    ``means`` are overwritten by the scores.
    """
    for a in range(means.size):
        means[a] = max(means[a], low) + widths[a]
    squarecb(means, allowed, gamma, out)
    spread(allowed, floor, out)


class Policy(NamedTuple):
    """How a loop explores."""

    code: int
    amount: float  # γ of both squarecb, ε of epsilon-greedy
    floor: float  # of optimistic squarecb
    low: float  # the range of the rewards
    high: float


def named_policy(
    name: str, epsilon: float, gamma: float, floor: float, reward_range: tuple[float, float], n_learned: int
) -> Policy:
    """Return a policy of hosted loops and devices after this many rewards: γ grows with their root.

    >>> named_policy("squarecb", 0.1, 10.0, 0.0, (0.0, 1.0), 9).amount
    30.0
    """
    low, high = map(float, reward_range)
    checks.one_of("policy", name, tuple(CODES))
    amount = {
        EPSILON_GREEDY: epsilon,
        SQUARECB: gamma * max(n_learned, 1) ** 0.5,
        GREEDY: 0.0,
        OPTIMISTIC_SQUARECB: gamma * n_learned**0.5 / (high - low),
    }
    return Policy(CODES[name], float(amount[CODES[name]]), float(floor), low, high)


@kernel
def probabilities_of(scores: Array, widths: Array, allowed: Array, policy: Any, within: Array, out: Array) -> None:
    """Fill in what each action is drawn with; ``within`` is room to work in.

    No prediction counts as less than the least reward: actions that are not expected to earn anything tie, or a greedy
    policy would stay with one of them for ever. The gaps that squarecb weighs are between rewards within their range.
    """
    high = policy.high if policy.code == SQUARECB else np.inf
    for k in range(scores.size):
        within[k] = min(max(scores[k], policy.low), high)
    if policy.code == OPTIMISTIC_SQUARECB:
        optimistic_squarecb(within, widths, allowed, policy.low, policy.amount, policy.floor, out)
    elif policy.code == SQUARECB:
        squarecb(within, allowed, policy.amount, out)
    else:
        epsilon_greedy(within, allowed, policy.amount, out)


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
    """Return a number in [0, 1) for a client's n-th decision: nobody else's decisions change it."""
    state = _mix(np.uint64(seed))
    state = _mix(state ^ np.uint64(client))
    state = _mix(state ^ np.uint64(n))
    number: float = (state >> np.uint64(11)) * 2.0**-53
    return number


def check_seed(seed: int) -> None:
    checks.whole("seed", seed, least=0)
    if seed >= 2**63:
        raise ValueError(f"seed must fit 63 bits, got {seed}")


@bare_kernel
def choose(
    code: int,
    setting: float,
    floor: float,
    scores: Array,
    allowed: Array,
    n: int,
    seed: int,
    client: int,
    out: Array,
) -> int:
    """Write the probabilities of a client's n-th decision, counted from 1, and return the action drawn.

    ``code``, ``setting`` and ``floor`` are a policy's (see ``policies``).
    """
    if code == EXPLORE_EVERY and n % setting < 1:  # a multiple of B in (n − 1, n]
        uniform(allowed, out)
    elif code == SQUARECB:
        squarecb(scores, allowed, setting * np.sqrt(n), out)
    else:
        epsilon_greedy(scores, allowed, setting if code == EPSILON_GREEDY else 0.0, out)
    spread(allowed, floor, out)
    return pick(out, draw(seed, client, n))

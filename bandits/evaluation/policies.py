"""Target policies by name or as a function: their probabilities for every action of every logged event.

[FR20] D. Foster, A. Rakhlin. *Beyond UCB: Optimal and Efficient Contextual Bandits with Regression Oracles*. ICML 2020.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from bandits.evaluation.logs import LoggedEvent, read_objects
from bandits.evaluation.table import Log
from bandits.evaluation.values import distribution
from fedres.checks import Array, not_negative

Policy = Callable[[LoggedEvent], Sequence[float]]  # event -> probability of each of its actions
Rewards = Callable[[], Array]  # predicted reward of every (event, action) pair, made when first asked for

POLICY_FORMS = (
    "logging",
    "uniform",
    "first",
    "likeliest",
    "constant:ACTION_ID",
    "greedy",
    "epsilon-greedy:EPSILON",
    "squarecb:GAMMA",
    "file:PATH",
)


def target_probabilities(log: Log, policy: str | Policy, rewards: Rewards) -> Array:
    """Return the policy's probability of every (event, action) pair of the log."""
    if callable(policy):
        return _from_function(log, policy)
    name, _, argument = policy.partition(":")
    if policy == "uniform":
        return uniform(log)
    if policy == "first":
        return first(log)
    if policy == "likeliest":
        return likeliest(log)
    if policy == "greedy":
        return epsilon_greedy(log, rewards(), 0.0)
    if argument and name == "constant":
        return constant(log, argument)
    if argument and name == "epsilon-greedy":
        return epsilon_greedy(log, rewards(), _parse("epsilon", argument))
    if argument and name == "squarecb":
        return squarecb(log, rewards(), _parse("gamma", argument))
    if argument and name == "file":
        return from_file(log, argument)
    raise ValueError(f"policy must be one of {', '.join(POLICY_FORMS)}, got {policy!r}")


def policy_name(policy: str | Policy) -> str:
    return policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)


def uniform(log: Log) -> Array:
    return 1.0 / np.repeat(log.n_actions, log.n_actions)


def first(log: Log) -> Array:
    """Always the first action: the caller's own order, where requests come in it."""
    probabilities = np.zeros(log.action.size)
    probabilities[log.offsets[:-1]] = 1.0
    return probabilities


def likeliest(log: Log) -> Array:
    """The logging policy without its exploration: its likeliest action (ties share)."""
    if np.isnan(log.logging).any():
        raise ValueError("likeliest must have a log with the probabilities of all actions")
    return epsilon_greedy(log, log.logging, 0.0)


def constant(log: Log, action_id: str) -> Array:
    """Always the same action; uniform in events that do not offer it."""
    if action_id not in log.action_ids:
        raise ValueError(f"constant must be an action of the log, got {action_id!r}")
    named = log.action == log.action_ids.index(action_id)
    offered = np.repeat(log.per_event(named) > 0, log.n_actions)
    return np.where(offered, named.astype(float), uniform(log))


def epsilon_greedy(log: Log, rewards: Array, epsilon: float) -> Array:
    """``epsilon`` spread evenly, the rest on the action with the best predicted reward (ties share)."""
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon must be in [0, 1], got {epsilon}")
    best = rewards == np.repeat(np.maximum.reduceat(rewards, log.offsets[:-1]), log.n_actions)
    share = best / np.repeat(log.per_event(best.astype(float)), log.n_actions)
    probabilities: Array = epsilon * uniform(log) + (1 - epsilon) * share
    return probabilities


def squarecb(log: Log, rewards: Array, gamma: float) -> Array:
    """Inverse gap weighting: 1 / (K + γ (q_best − q_a)) for the others, the rest on the best [FR20, eq. 5]."""
    not_negative("gamma", gamma)
    highest = np.repeat(np.maximum.reduceat(rewards, log.offsets[:-1]), log.n_actions)
    share = 1.0 / (np.repeat(log.n_actions, log.n_actions) + gamma * (highest - rewards))
    best = rewards == highest
    rest = (1.0 - log.per_event(np.where(best, 0.0, share))) / log.per_event(best.astype(float))
    return np.where(best, np.repeat(rest, log.n_actions), share)


def from_file(log: Log, path: str | Path) -> Array:
    """Read JSON lines ``{"event_id", "probabilities"}``, one for each event of the log; others are passed over."""
    wanted: dict[str, list[int]] = {}
    for i, event_id in enumerate(log.event_ids):
        wanted.setdefault(event_id, []).append(i)
    probabilities = np.full(log.action.size, np.nan)
    for line, record in read_objects(path):
        for i in wanted.get(str(record.get("event_id")), ()):
            pairs = slice(log.offsets[i], log.offsets[i + 1])
            try:
                given = distribution("probabilities", record.get("probabilities"), pairs.stop - pairs.start)
            except ValueError as error:
                raise ValueError(f"{path}, line {line}: {error}") from None
            probabilities[pairs] = np.divide(given, sum(given))
    missing = np.isnan(probabilities[log.offsets[:-1]])
    if missing.any():
        raise ValueError(f"{path} must have a line for every event, got none for {log.event_ids[missing.argmax()]!r}")
    return probabilities


def _from_function(log: Log, policy: Policy) -> Array:
    parts = []
    for i in range(len(log)):
        event = log.event(i)
        given = [float(p) for p in policy(event)]
        try:
            parts.append(np.divide(distribution(policy_name(policy), given, len(event.actions)), sum(given)))
        except ValueError as error:
            raise ValueError(f"{error} for event {event.event_id!r}") from None
    return np.concatenate(parts)


def _parse(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text!r}") from None

"""Target policies by name or as a function: their probabilities for every action of every logged event."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeGuard, cast

import numpy as np

from bandits.evaluation.logs import LoggedEvent, read_objects
from bandits.evaluation.table import Log
from bandits.evaluation.values import distribution
from fedres.checks import Array
from fedres.policies import POLICIES, Compiled, Greedy, checked_probabilities, option_names, policy_names, title_of
from fedres.policies import Policy as Exploring
from fedres.policies import policy as make_policy
from fedres.policies.kernels import explore_all

Function = Callable[[LoggedEvent], Sequence[float]]  # event -> probability of each of its actions
Policy = Function | Exploring | type[Exploring]
Rewards = Callable[[], Array]  # predicted reward of every (event, action) pair, made when first asked for

_FIXED_FORMS = ("logging", "uniform", "first", "likeliest", "constant:ACTION_ID", "file:PATH", "fedres:POLICY")
_LEARNED_FORMS = [  # policies that see nothing but predicted rewards
    ":".join([name, *(option.upper() for option in option_names(kind)[:1] if option != "floor")])
    for name, kind in POLICIES.items()
    if kind.stationary and not kind.needs_widths
]
POLICY_FORMS = (*_FIXED_FORMS, *_LEARNED_FORMS)


def target_probabilities(log: Log, policy: str | Policy, rewards: Rewards) -> Array:
    """Return the policy's probability of every (event, action) pair of the log."""
    if isinstance(policy, Exploring) or _is_class(policy):
        return exploring(log, _valued(make_policy(policy), policy_name(policy)), rewards())
    if not isinstance(policy, str):
        return _from_function(log, cast(Function, policy))
    name, _, argument = policy.partition(":")
    if policy in WITHOUT_MODEL:
        return WITHOUT_MODEL[policy](log)
    if argument and name == "constant":
        return constant(log, argument)
    if argument and name == "file":
        return from_file(log, argument)
    return exploring(log, _named(policy), rewards())


def _named(text: str) -> Exploring:
    """Return the policy of a text such as ``epsilon-greedy:0.1``; it has no floor unless that says so."""
    name = text.partition(":")[0]
    if name not in policy_names():
        raise ValueError(
            f"policy must be one of {', '.join([*POLICY_FORMS, *policy_names()[len(POLICIES) :]])}, got {text!r}"
        )
    return _valued(make_policy(text, **({"floor": 0.0} if name in POLICIES and "floor" not in text else {})), text)


def _valued(policy: Exploring, text: str) -> Exploring:
    """Return a policy that a log can value."""
    if policy.needs_widths or not policy.stationary:
        widths = f"needs the widths of a model: fedres:{text} has those of the service's"
        why = widths if policy.needs_widths else "depends on more than scores"
        raise ValueError(f"policy must be one that a log can value, got {text!r}, which {why}")
    return policy


def _is_class(policy: str | Policy) -> TypeGuard[type[Exploring]]:
    return isinstance(policy, type) and issubclass(policy, Exploring)


def policy_name(policy: str | Policy) -> str:
    """Return what results call a policy."""
    if isinstance(policy, str | Exploring) or _is_class(policy):
        return title_of(policy)
    return str(getattr(policy, "__name__", type(policy).__name__))


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
    return exploring(log, Greedy(), log.logging)


def constant(log: Log, action_id: str) -> Array:
    """Always the same action; uniform in events that do not offer it."""
    if action_id not in log.action_ids:
        raise ValueError(f"constant must be an action of the log, got {action_id!r}")
    named = log.action == log.action_ids.index(action_id)
    offered = np.repeat(log.per_event(named) > 0, log.n_actions)
    return np.where(offered, named.astype(float), uniform(log))


def exploring(log: Log, policy: Exploring, rewards: Array) -> Array:
    """A policy that sees the predicted rewards; γ of squarecb is what it is after one reward."""
    if isinstance(policy, Compiled):
        probabilities = np.empty(log.action.size)
        explore_all(policy.rule(), 1, log.offsets, rewards, probabilities)
        return probabilities
    events = np.split(rewards, log.offsets[1:-1])
    return np.concatenate([checked_probabilities(policy, means, None, None, 1) for means in events])


WITHOUT_MODEL: dict[str, Callable[[Log], Array]] = {"uniform": uniform, "first": first, "likeliest": likeliest}


def from_file(log: Log, path: str | Path) -> Array:
    """Read JSON lines ``{"event_id", "probabilities"}``, one for each event of the log; others are passed over."""
    places: dict[str, list[int]] = {}
    for i, event_id in enumerate(log.event_ids):
        places.setdefault(event_id, []).append(i)
    probabilities = np.full(log.action.size, np.nan)
    for line, record in read_objects(path):
        for i in places.get(str(record.get("event_id")), ()):
            pairs = slice(log.offsets[i], log.offsets[i + 1])
            try:
                numbers = distribution("probabilities", record.get("probabilities"), pairs.stop - pairs.start)
            except ValueError as error:
                raise ValueError(f"{path}, line {line}: {error}") from None
            probabilities[pairs] = np.divide(numbers, sum(numbers))
    missing = np.isnan(probabilities[log.offsets[:-1]])
    if missing.any():
        raise ValueError(f"{path} must have a line for every event, got none for {log.event_ids[missing.argmax()]!r}")
    return probabilities


def _from_function(log: Log, policy: Function) -> Array:
    parts = []
    for i in range(len(log)):
        event = log.event(i)
        numbers = [float(p) for p in policy(event)]
        try:
            parts.append(np.divide(distribution(policy_name(policy), numbers, len(event.actions)), sum(numbers)))
        except ValueError as error:
            raise ValueError(f"{error} for event {event.event_id!r}") from None
    return np.concatenate(parts)

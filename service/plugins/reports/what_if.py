"""Estimated rewards of other settings of exploration, from the scores and probabilities in the log.

The models are those that decided then. ε-greedy, squarecb and greedy need the logged scores alone. The log lacks the
widths for optimistic-squarecb, but has its probabilities: p = 1/(K + γ·gap) yields γ·gap, which another γ scales.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.policies import HOSTED, POLICIES, loop_rule
from fedres.policies.kernels import explore, spread
from service.hints import about
from service.plugins.reports.lift import Bounds, bounds
from service.plugins.reports.report import LEAST_EVALUATED, MOST_PAIRS, FinishedDecision, evaluated, newest_within
from service.settings import Settings

CHANGEABLE = ("policy", "epsilon", "gamma", "floor")  # settings that can be estimated from the log
MOST_EVALUATED = 10_000  # events, the newest
OPTIMISTIC = "optimistic-squarecb"


class SettingsEstimate(msgspec.Struct):
    """Changed settings, and what the loop would have earned per event under them, exploration included."""

    settings: Annotated[dict[str, Any], about("The changed settings, as PATCH of the settings takes them.")]
    reward: Annotated[
        Bounds | None,
        about("Estimated reward per event; null if the log does not suffice, which the warning explains."),
    ]
    difference: Annotated[Bounds | None, about("Estimated difference to the logged rewards, event by event.")]
    ess: Annotated[float | None, about("Effective sample size: the number of events that the estimate is worth.")]
    warning: Annotated[str, about("Why the estimate may be wrong; empty if nothing is.")]


class WhatIf(msgspec.Struct):
    """Rewards under other settings, estimated from the log. Intervals are 95% at all looks together."""

    events: Annotated[int, about("Finished decisions of the policy that the estimates use.")]
    logged: Annotated[Bounds | None, about("Reward per event in the log; null below 100 events.")]
    estimates: Annotated[list[SettingsEstimate], about("An estimate for each change, in the order of the request.")]
    now: Annotated[
        dict[str, Any],
        about("The policy in force, with the settings of exploration that it uses.", {"policy": "greedy"}),
    ] = {}


def candidates(now: Settings) -> list[dict[str, Any]]:
    """Return changes to estimate by default: more exploration, less, and another policy."""
    worth: list[dict[str, Any]] = [
        *({"policy": "epsilon-greedy", "epsilon": epsilon} for epsilon in (0.02, 0.05, 0.1, 0.2)),
        {"policy": "squarecb", "gamma": None},
        {"policy": "greedy"},
    ]
    if now.policy in ("squarecb", OPTIMISTIC):
        worth = [{"gamma": now.greed / 4}, {"gamma": now.greed * 4}, worth[1], worth[-1]]
    if now.policy == OPTIMISTIC:
        worth.insert(2, {"floor": 10 * now.floor if now.floor <= 0.05 else now.floor / 10})
    return [changes for changes in worth if changed(now, changes) != now]


def changed(now: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return settings with some of them changed."""
    return msgspec.convert({**msgspec.to_builtins(now), **changes}, Settings)


def what_if(
    events: Sequence[FinishedDecision],
    settings: Mapping[int, Settings],
    now: Settings,
    all_changes: Sequence[dict[str, Any]],
) -> WhatIf:
    """Return estimates from events in which every action had a chance; ``settings`` are by position."""
    events = newest_within(events, MOST_EVALUATED, MOST_PAIRS)
    if len(events) < LEAST_EVALUATED:
        missing = f"{LEAST_EVALUATED} decisions are needed, and there are {len(events)} so far"
        unknown = [SettingsEstimate(changes, None, None, None, missing) for changes in all_changes]
        return WhatIf(len(events), None, unknown, used(now))
    estimates = [_estimate(changes, events, settings, now) for changes in all_changes]
    [logged] = evaluated(events, [], now.reward_range)
    return WhatIf(len(events), bounds(logged.value, logged.low, logged.high), estimates, used(now))


def used(now: Settings) -> dict[str, Any]:
    """Return the policy and the settings of exploration that it uses."""
    values = {"gamma": now.greed, "floor": now.floor, "epsilon": now.epsilon}
    return {"policy": now.policy, **{name: values[name] for name in HOSTED[str(now.policy)] if name in values}}


def _estimate(
    changes: dict[str, Any], events: Sequence[FinishedDecision], settings: Mapping[int, Settings], now: Settings
) -> SettingsEstimate:
    new = changed(now, changes)
    targets = {event.event_id: _target(event, settings[event.settings], new) for event in events}
    evaluable = [event for event in events if targets[event.event_id]]
    if len(evaluable) < LEAST_EVALUATED:
        missing = f"only {len(evaluable)} of the decisions were made by {new.policy}, whose widths are not in the log"
        return SettingsEstimate(changes, None, None, None, missing)
    _, row = evaluated(evaluable, [lambda event: targets[event.event_id] or []], now.reward_range)
    reward = bounds(row.value, row.low, row.high)
    difference = bounds(row.difference, row.difference_low, row.difference_high)
    return SettingsEstimate(changes, reward, difference, float(row.ess), row.warning)


def _target(decision: FinishedDecision, then: Settings, new: Settings) -> array[float] | None:
    """Return the probabilities under other settings, None if they do not follow from the log."""
    if POLICIES[str(new.policy)].needs_widths:
        return _rescaled(np.array(decision.probabilities), then, new) if then.policy == new.policy else None
    scores, n = np.array(decision.scores), len(decision.scores)
    probabilities = np.empty(n)
    explore(loop_rule(new), 0, decision.n_learned, scores, np.zeros(n), np.ones(n, np.bool_), probabilities)
    return _normalized(probabilities)


def _rescaled(probability: Array, then: Settings, new: Settings) -> array[float] | None:
    n, greed, floor = probability.size, _greed(then), then.floor
    if not greed or floor >= 1:
        return None
    share = np.maximum((probability - floor / n) / (1 - floor), 1e-12)
    best = share >= share.max() * (1 - 1e-9)
    gap = np.maximum(1 / share - n, 0.0) * min(_greed(new) / greed, 1e12)
    probabilities = np.where(best, 0.0, 1 / (n + gap))
    probabilities[best] = (1 - probabilities.sum()) / best.sum()
    spread(np.ones(n, np.bool_), new.floor, probabilities)
    return _normalized(probabilities)


def _greed(settings: Settings) -> float:
    low, high = settings.reward_range
    return settings.greed / (high - low)


def _normalized(probabilities: Array) -> array[float]:
    return array("d", probabilities / probabilities.sum())

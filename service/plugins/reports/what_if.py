"""What other settings of exploration would have earned, told from the scores and probabilities in the log.

The models are those that decided then. ε-greedy, squarecb and greedy need the logged scores alone. Of
optimistic-squarecb the widths are not in the log, but its probabilities are: p = 1/(K + γ·gap) tells γ·gap, which
another γ scales.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.policies import POLICIES, loop_rule
from fedres.policies.kernels import explore, spread
from service.plugins.reports.evaluation import range_of
from service.plugins.reports.experiments import Bounds
from service.plugins.reports.series import LEAST_VALUED, Finished, logged_events
from service.settings import Settings

CHANGEABLE = ("policy", "epsilon", "gamma", "floor")  # settings that the log can value
MOST_VALUED = 10_000  # events, the newest
OPTIMISTIC = "optimistic-squarecb"


class Valued(msgspec.Struct):
    """Changed settings, and what the loop would have earned per event under them, exploration included."""

    settings: dict[str, Any]  # as PATCH /settings takes them
    reward: Bounds | None  # null where the log cannot say; the warning tells why
    difference: Bounds | None  # to what was earned, event by event
    ess: float | None  # effective sample size
    warning: str  # empty where nothing is wrong


class WhatIf(msgspec.Struct):
    """Intervals are 95% at all looks together."""

    events: int  # finished decisions of the policy that this is about
    logged: Bounds | None  # what they earned; null below 100 of them
    valued: list[Valued]


def candidates(now: Settings) -> list[dict[str, Any]]:
    """Return changes worth a look: exploring more, less, and by another rule."""
    found: list[dict[str, Any]] = [
        *({"policy": "epsilon-greedy", "epsilon": epsilon} for epsilon in (0.02, 0.05, 0.1, 0.2)),
        {"policy": "squarecb", "gamma": None},
        {"policy": "greedy"},
    ]
    if now.policy in ("squarecb", OPTIMISTIC):
        found = [{"gamma": now.greed / 4}, {"gamma": now.greed * 4}, *found[1:2], found[-1]]
    if now.policy == OPTIMISTIC:
        found.insert(2, {"floor": 10 * now.floor if now.floor <= 0.05 else now.floor / 10})
    return [changes for changes in found if changed(now, changes) != now]


def changed(now: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return settings with some of them changed."""
    return msgspec.convert({**msgspec.to_builtins(now), **changes}, Settings)


def what_if(
    events: Sequence[Finished], settings: Mapping[int, Settings], now: Settings, wanted: Sequence[dict[str, Any]]
) -> WhatIf:
    """Return values on events in which every action had a chance; ``settings`` are those in force, by position."""
    events = events[-MOST_VALUED:]
    if len(events) < LEAST_VALUED:
        missing = f"there are {len(events)} decisions to tell from, and {LEAST_VALUED} are needed"
        return WhatIf(len(events), None, [Valued(one, None, None, None, missing) for one in wanted])
    found = [_valued(events, settings, now, one) for one in wanted]
    return WhatIf(len(events), _logged(events, now), found)


def _valued(
    events: Sequence[Finished], settings: Mapping[int, Settings], now: Settings, changes: dict[str, Any]
) -> Valued:
    target = changed(now, changes)
    given = {one.event_id: found for one in events if (found := _target(one, settings[one.settings], target))}
    if len(given) < LEAST_VALUED:
        missing = f"only {len(given)} of the decisions were made by {target.policy}, whose widths are not in the log"
        return Valued(changes, None, None, None, missing)
    row = _evaluated([one for one in events if one.event_id in given], now, given).rows[1]
    difference = Bounds(row.difference, row.difference_low, row.difference_high)
    return Valued(changes, Bounds(row.value, row.low, row.high), difference, float(row.ess), row.warning)


def _logged(events: Sequence[Finished], now: Settings) -> Bounds:
    row = _evaluated(events, now, None).rows[0]
    return Bounds(row.value, row.low, row.high)


def _evaluated(events: Sequence[Finished], now: Settings, given: Mapping[str, Sequence[float]] | None) -> Any:
    from bandits.evaluation import evaluate, table

    log = table(logged_events(events))
    policies = [] if given is None else [lambda event: given[event.event_id]]
    span = range_of(log.reward, now.reward_range)
    return evaluate(log, policies, estimators=("snips",), time_uniform=True, reward_range=span)


def _target(one: Finished, then: Settings, wanted: Settings) -> list[float] | None:
    """Return the probabilities that other settings would have given, None where the log does not tell."""
    if POLICIES[str(wanted.policy)].needs_widths:
        return _rescaled(np.array(one.probabilities), then, wanted) if then.policy == wanted.policy else None
    scores, n = np.array(one.scores), len(one.scores)
    found = np.empty(n)
    explore(loop_rule(wanted), 0, one.n_learned, scores, np.zeros(n), np.ones(n, np.bool_), found)
    return _summed(found)


def _rescaled(probability: Array, then: Settings, wanted: Settings) -> list[float] | None:
    n, greed, floor = probability.size, _greed(then), then.floor
    if not greed or floor >= 1:
        return None
    share = np.maximum((probability - floor / n) / (1 - floor), 1e-12)
    best = share >= share.max() * (1 - 1e-9)
    gap = np.maximum(1 / share - n, 0.0) * min(_greed(wanted) / greed, 1e12)
    found = np.where(best, 0.0, 1 / (n + gap))
    found[best] = (1 - found.sum()) / best.sum()
    spread(np.ones(n, np.bool_), wanted.floor, found)
    return _summed(found)


def _greed(settings: Settings) -> float:
    low, high = settings.reward_range
    return settings.greed / (high - low)


def _summed(found: Array) -> list[float]:
    return [float(value) for value in found / found.sum()]

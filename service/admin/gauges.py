"""What the service says about a loop: numbers for monitoring, and rewards that do not count."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from service.learn.join import UncountedReward
from service.models.loop_metadata import LoopView
from service.times import iso_time


def gauges(view: LoopView, lag_records: int, lag_seconds: float) -> dict[str, float]:
    """Return numbers for monitoring; NaN where there is nothing to average yet."""
    sums, default = view.statistics, view.settings.default_reward
    pending = 0 if default is None else view.n_waiting
    return {
        "model_version": view.version,
        "ranks": sums.ranks,
        "waiting_events": view.n_waiting,
        "waiting_bytes": view.waiting_bytes,
        "early_events": view.n_early,
        "users": view.n_users,
        "learned_events": sums.settled,
        "rewarded_events": sums.rewarded,
        "reward_sum": sums.reward,
        "policy_reward": _ratio(sums.reward, sums.settled),
        "provisional_reward": _ratio(sums.reward + (default or 0.0) * pending, sums.settled + pending),
        "baseline_reward": _ratio(sums.baseline_reward, sums.baseline_weight),
        "reward_lag_seconds": _ratio(sums.delay / 1e6, sums.rewarded),
        "learner_lag_records": lag_records,
        "learner_lag_seconds": lag_seconds,
        "apprentice_events": sums.apprentice,
        "apprentice_agreement": _ratio(sums.agreed, sums.apprentice),
        "learned_uploads": sums.uploads,
        "passed_over_uploads": sums.passed_over,
        "feedback": sums.feedback,
        "control_events": sums.control_settled,
        "control_reward": _ratio(sums.control_reward, sums.control_settled),
        "late_rewards": sums.late_rewards,
        "unmatched_rewards": sums.unmatched_rewards,
        "events_since": view.events_since / 1e6,
    }


def unmatched(rewards: Iterable[UncountedReward]) -> list[dict[str, Any]]:
    """Return late and unmatched rewards as they go out."""
    return [
        {
            "event_id": reward.event_id,
            "time": iso_time(reward.time, "microseconds"),
            "value": reward.value,
            "id": None if reward.reward_id.startswith("=") else reward.reward_id,
            "status": reward.why,
        }
        for reward in rewards
    ]


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan

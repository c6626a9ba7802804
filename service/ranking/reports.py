"""What the service says about itself: numbers for monitoring, rewards without use, and off-policy evaluation."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fedres.checks import Array
from service.errors import ApiError, invalid
from service.learn.join import Unmatched
from service.log.records import encode
from service.models.views import LoopView

if TYPE_CHECKING:
    from service.ranking.aside import Worker


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
        "control_events": sums.control_settled,
        "control_reward": _ratio(sums.control_reward, sums.control_settled),
        "late_rewards": sums.late_rewards,
        "unmatched_rewards": sums.unmatched_rewards,
        "events_since": view.events_since / 1e6,
    }


def unmatched(rewards: Iterable[Unmatched]) -> list[dict[str, Any]]:
    """Return late and unmatched rewards as they go out."""
    return [
        {
            "event_id": reward.event_id,
            "time": datetime.fromtimestamp(reward.time / 1e6, UTC).isoformat(timespec="microseconds"),
            "value": reward.value,
            "id": None if reward.reward_id.startswith("=") else reward.reward_id,
            "status": reward.why,
        }
        for reward in rewards
    ]


def evaluation(
    worker: Worker,
    loop: str,
    since: int,
    policies: Sequence[str],
    estimators: Sequence[str],
    time_uniform: bool,
    known_range: tuple[float, float],
) -> dict[str, object]:
    """Return what policies would have earned on a loop's events; those that read files are refused.

    ``known_range`` is what a reward can be by the settings of now.
    """
    from bandits.evaluation import evaluate, load_log  # SciPy is loaded by the first evaluation

    for policy in policies:
        if policy.startswith("file:"):
            raise invalid(f"policies must not read files of the server, got {policy!r}", "policies")
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        for event in worker.exporter(loop, since).events(loop, since, None):
            file.write(encode(event) + b"\n")
        file.flush()
        try:
            log = load_log(file.name)
            options: dict[str, Any] = {"time_uniform": time_uniform, "reward_range": range_of(log.reward, known_range)}
            return evaluate(log, policies, estimators=estimators, **options).to_json()
        except ValueError as error:
            raise ApiError(422, "invalid_evaluation", str(error).replace(file.name, "the log")) from None


def range_of(rewards: Array, known: tuple[float, float]) -> tuple[float, float] | None:
    """Return what a reward can be, None where earlier settings, or sums of rewards, went beyond it."""
    return known if rewards.size and known[0] <= rewards.min() and rewards.max() <= known[1] else None


def _ratio(total: float, count: float) -> float:
    return total / count if count else math.nan

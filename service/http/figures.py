"""The engine's figures as Prometheus text: one sample for each loop."""

from __future__ import annotations

from collections.abc import Mapping

from service.http.metrics import family

FIGURES = {  # name of the gauge: (name of the metric, kind, help)
    "model_version": ("fedres_model_version", "gauge", "Position in the log up to which the model has learned."),
    "ranks": ("fedres_decisions_total", "counter", "Decisions made."),
    "waiting_events": ("fedres_waiting_events", "gauge", "Events that wait for their reward."),
    "learned_events": ("fedres_learned_events_total", "counter", "Events learned from, default rewards included."),
    "rewarded_events": ("fedres_rewarded_events_total", "counter", "Events learned from with a reward that came."),
    "reward_sum": ("fedres_reward_sum", "gauge", "Sum of all rewards learned from."),
    "policy_reward": ("fedres_policy_reward", "gauge", "Mean reward of the policy."),
    "baseline_reward": ("fedres_baseline_reward", "gauge", "Mean reward, estimated, had the first action been taken."),
    "reward_lag_seconds": ("fedres_reward_lag_seconds", "gauge", "Mean time from a decision to its reward."),
    "learner_lag_records": ("fedres_learner_lag_records", "gauge", "Records in the log that are not learned yet."),
    "learner_lag_seconds": ("fedres_learner_lag_seconds", "gauge", "Age of the oldest record not learned yet."),
    "apprentice_events": ("fedres_apprentice_events_total", "counter", "Decisions made as an apprentice."),
    "apprentice_agreement": ("fedres_apprentice_agreement", "gauge", "Share of those where the policy agreed."),
    "learned_uploads": ("fedres_learned_uploads_total", "counter", "Uploads of devices learned from."),
    "passed_over_uploads": ("fedres_passed_over_uploads_total", "counter", "Uploads stored, but not learned from."),
}


def figures(loops: Mapping[str, Mapping[str, float]]) -> str:
    """Return the text for the gauges of each loop, by its name."""
    return "".join(
        family(*metric, [({"loop": loop}, float(gauges[name])) for loop, gauges in loops.items()])
        for name, metric in FIGURES.items()
    )

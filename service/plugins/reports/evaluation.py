"""Off-policy evaluation of a loop's logged events."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

from fedres.checks import Array
from service.admin.exporting import exporter
from service.errors import ApiError, invalid
from service.log.records import encode
from service.log.workers import Worker


def evaluation(
    worker: Worker,
    loop: str,
    created_at: int,
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
        for event in exporter(worker, loop, created_at).events(loop, created_at, None):
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

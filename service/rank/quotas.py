"""Quotas: bounds on the resources of a loop that its callers can increase.

The learner publishes the current numbers, so a burst may exceed a bound by the requests between two publications.
Nothing that was acknowledged is ever dropped for a quota.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from fedres import checks
from service.errors import ApiError
from service.models.loop_metadata import LoopView


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Bounds of each loop, but for the last three, which are of the service."""

    pending_events: int = 1_000_000  # decisions that wait for their reward, deferred ones too
    pending_bytes: int = 2_000_000_000  # of the learner's memory for them
    early_events: int = 100_000  # ids that have a reward, but no decision yet
    early_rewards: int = 200_000  # of these ids
    users: int = 2_000_000  # with a personal model
    actions: int = 100_000  # of the catalogue
    catalogue_bytes: int = 64_000_000  # of its ids and features; the learner and each ranker have several copies
    settings: int = 10_000  # changes of settings while events wait that were decided under earlier ones
    all_pending_bytes: int = 4_000_000_000  # of the learner's memory for pending events of all loops
    loops: int = 1_000
    weights: int = 1 << 26  # shared weights of all loops together: about 1.4 GB with what is learned about each

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            checks.whole(name, value)

    def check_pending(self, view: LoopView) -> None:
        """Refuse decisions of a loop with too many pending events."""
        if view.n_waiting >= self.pending_events:
            raise exceeded("pending_events", self.pending_events, "events that wait for their reward", view.name)
        self.check_bytes(view, 1)

    def check_bytes(self, view: LoopView, times: int) -> None:
        """Refuse additions to pending events beyond ``times`` their memory quota: 1 for decisions, 2 for rewards."""
        what = "bytes of events that wait for their reward"
        if view.waiting_bytes >= times * self.pending_bytes:
            raise exceeded("pending_bytes", self.pending_bytes, what, view.name)
        if view.all_waiting_bytes >= times * self.all_pending_bytes:
            raise exceeded("all_pending_bytes", self.all_pending_bytes, what)


def exceeded(quota: str, most: int, what: str, loop: str | None = None) -> ApiError:
    """Return the refusal of a request beyond a quota."""
    where = "the service" if loop is None else f"loop {loop!r}"
    return ApiError(429, f"too_many_{quota}", f"{where} must have at most {most} {what}", quota)

"""Quotas: bounds on the resources of a loop that its callers can increase.

The learner publishes the current numbers, so a burst may exceed a bound by the requests between two publications.
Nothing that was acknowledged is ever dropped for a quota.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from fedres import checks
from service.errors import ApiError
from service.models.loop_metadata import LoopView

COUNTED_EVENTS = 10_000  # whose rewards a ranker counts, and as many from before
FULL_EVENTS = 100  # of which it remembers the keys of all rewards


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Bounds of each loop, but for the last three, which are of the service."""

    pending_events: int = 1_000_000  # decisions that wait for their reward, deferred ones too
    pending_bytes: int = 2_000_000_000  # of the learner's memory for them
    early_events: int = 100_000  # ids that have a reward, but no decision yet
    early_rewards: int = 200_000  # of these ids
    rewards: int = 1_000  # of one event that one ranker stores; repeats count here, but are not refused
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

    def check_pending(self, view: LoopView, all_bytes: int) -> None:
        """Refuse decisions of a loop with too many pending events; ``all_bytes`` are those of all loops."""
        if view.n_waiting >= self.pending_events:
            raise exceeded("pending_events", self.pending_events, "events that wait for their reward", view.name)
        self.check_bytes(view, all_bytes, 1)

    def check_bytes(self, view: LoopView, all_bytes: int, times: int) -> None:
        """Refuse additions to pending events beyond ``times`` their memory quota: 1 for decisions, 2 for rewards."""
        what = "bytes of events that wait for their reward"
        if view.waiting_bytes >= times * self.pending_bytes:
            raise exceeded("pending_bytes", self.pending_bytes, what, view.name)
        if all_bytes >= times * self.all_pending_bytes:
            raise exceeded("all_pending_bytes", self.all_pending_bytes, what)


class RewardCounts:
    """How many rewards of recent events a ranker has stored, and which the log has for events with too many."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}  # by loop and event
        self._before: dict[tuple[str, str], int] = {}
        self._keys: dict[tuple[str, str], frozenset[str]] = {}

    def add(self, loop: str, event: str, n: int) -> int:
        """Count ``n`` rewards of an event; return how many it has."""
        key = (loop, event)
        n += self._counts.get(key) or self._before.get(key, 0)
        if len(self._counts) >= COUNTED_EVENTS:
            self._before = self._counts
            self._counts = {}
        self._counts[key] = n
        return n

    def stored(self, loop: str, event: str) -> frozenset[str] | None:
        """Return the keys of the rewards that the log has for an event with too many, None if they are not read."""
        return self._keys.get((loop, event))

    def note(self, loop: str, event: str, n: int, keys: Iterable[str], most: int) -> None:
        """Set the number of an event's rewards; remember their keys if these are too many."""
        self._counts[loop, event] = n
        if n >= most:
            if len(self._keys) >= FULL_EVENTS:
                del self._keys[next(iter(self._keys))]
            self._keys[loop, event] = frozenset(keys)


def exceeded(quota: str, most: int, what: str, loop: str | None = None) -> ApiError:
    """Return the refusal of a request beyond a quota."""
    where = "the service" if loop is None else f"loop {loop!r}"
    return ApiError(429, f"too_many_{quota}", f"{where} must have at most {most} {what}", quota)

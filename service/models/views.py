"""What the learner says of a loop and of itself; plain data that rankers read."""

from __future__ import annotations

import msgspec

from service.models.loop_metadata import Statistics, loop_id
from service.settings import Settings

FEWEST_TOLD = 8  # rewards, before they say how rewards are told
DELAYS_AWAITED = 5  # mean delays of rewards after which a silent event is taken as failed
LEAST_LEARN_AFTER = 1_000_000  # microseconds


class LoopView(msgspec.Struct, array_like=True):
    """A loop as it is published."""

    name: str
    created_at: int  # position of the record that made it
    position: int  # of the log, up to which this is
    time: int  # of the record there
    version: int  # position up to which the models have learned
    settings: Settings
    settings_version: int
    statistics: Statistics
    n_waiting: int
    seen_range: tuple[float, float]  # of the rewards that the shared model has seen
    newest: int  # the largest round of a device inside, where devices count rounds
    catalogue_version: int
    catalogue_pieces: tuple[int, int]  # of shared memory that have it, from the first to before the second
    clients_version: int
    erased: list[str]  # tokens of the last erasures
    n_early: int = 0  # events with a reward that are not decided yet
    n_users: int = 0  # with a personal model
    n_assumed: int = 0  # pending events that were learned as if they had failed
    events_since: int = 0  # older events were removed from the log; microseconds since 1970
    n_early_rewards: int = 0  # of the events that are not decided yet
    n_settings: int = 1  # that events may wait under
    waiting_bytes: int = 0  # of memory that pending events take, about
    all_waiting_bytes: int = 0  # of all loops, when this one was published

    @property
    def id(self) -> str:
        return loop_id(self.name, self.created_at)

    @property
    def knows_successes_only(self) -> bool:
        """Whether no event is known to have failed, and most are pending: as where only clicks are sent, at first.

        All actions that were ever taken with success look perfect then, and the others more uncertain than they are.
        """
        sums, known = self.statistics, self.statistics.low or self.n_assumed
        return self.settings.default_reward is not None and not known and self.n_waiting > sums.settled

    @property
    def learn_after(self) -> int | None:
        """Microseconds after which events are learned from with what is told by then; None where failures are told.

        They are not told where a quarter of all events has no reward yet and hardly one of those that came is a
        failure. Five times the mean delay of rewards is when most that will come have come.
        """
        sums, settings = self.statistics, self.settings
        if settings.default_reward is None or settings.aggregation != "earliest" or settings.formula is not None:
            return None
        told_failures = sums.low - (sums.settled - sums.rewarded)
        silent = sums.ranks - sums.rewarded
        if sums.rewarded < FEWEST_TOLD or 20 * told_failures > sums.rewarded or 4 * silent < sums.ranks:
            return None
        usual = DELAYS_AWAITED * sums.delay // sums.rewarded
        return min(max(usual, LEAST_LEARN_AFTER), round(settings.wait_time * 1e6))


class LearnerView(msgspec.Struct, array_like=True):
    """How the learner does."""

    trouble: str | None = None  # that concerns all loops
    standing_still: str | None = None  # which loops do, and why; the others go on
    rebuilt: int = 0  # how often the snapshot was thrown away
    published_bytes: int = 0
    lag: float = 0.0  # seconds behind the end of the log

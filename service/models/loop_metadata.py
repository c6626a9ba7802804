"""A loop's metadata, all but its models and pending events, and the view that rankers have of it; plain data."""

from __future__ import annotations

import msgspec

from service.log.protocol import Pruning
from service.models.guard import Guard
from service.settings import Settings
from service.times import DAY

FEWEST_TOLD = 8  # rewards needed to see whether callers report failures
DELAYS_AWAITED = 5  # mean delays of rewards after which a silent event is taken as failed
LEAST_LEARN_AFTER = 1_000_000  # microseconds


class LoopStatistics(msgspec.Struct):
    """Sums over all events of a loop so far."""

    ranks: int = 0
    settled: int = 0  # events with a reward, the default included
    reward: float = 0.0
    baseline_weight: float = 0.0  # Σ 1/p where the first action was taken
    baseline_reward: float = 0.0  # Σ r/p there
    rewarded: int = 0  # events that had a reward of their own
    delay: int = 0  # microseconds these waited for it, all together
    apprentice: int = 0  # decisions made as an apprentice
    agreed: int = 0  # where the policy would have taken the same
    uploads: int = 0  # residuals and updates of devices that were learned from
    passed_over: int = 0  # uploads that were not learned
    control_settled: int = 0  # events of control groups, which are in none of the sums above but ``ranks``
    control_reward: float = 0.0
    control_learned: int = 0  # events of the control group that were learned
    late_rewards: int = 0  # rewards that came after their event's wait time
    low: int = 0  # settled events that earned no more than the default reward
    unmatched_rewards: int = 0  # rewards without an event, or too many for one event
    feedback: int = 0  # on actions that were chosen elsewhere, which is in none of the sums above

    @property
    def learned(self) -> int:
        """How many events, uploads and feedback the shared model has learned from."""
        return self.settled + self.uploads + self.control_learned + self.feedback


class CatalogueAction(msgspec.Struct, frozen=True, array_like=True):
    put: int  # position of the record that has it
    features: bytes


class Clients(msgspec.Struct):
    """The devices of a loop whose learner numbers them."""

    numbers: dict[str, int] = {}
    joined: int = 0  # numbers assigned so far; that of an erased client is not reused

    @property
    def version(self) -> int:
        """A number that changes whenever a client joins or is erased."""
        return self.joined * 2**20 + len(self.numbers)

    def add(self, client: str, most: int) -> None:
        """Assign the next number to a client without one, unless all ``most`` are in use."""
        if client not in self.numbers and self.joined < most:
            self.numbers[client] = self.joined
            self.joined += 1

    def without(self, client: str) -> Clients:
        """Return the others, whose numbers stay."""
        return Clients({name: number for name, number in self.numbers.items() if name != client}, self.joined)


class Base(msgspec.Struct):
    """The shared part of a loop when a user was erased, which cannot be learned again from the remaining records."""

    shared: bytes
    version: int
    statistics: LoopStatistics
    clients: Clients
    guard: Guard
    time: int  # of the last record then, which may be the user's own


class PersonalBase(msgspec.Struct):
    """A user's model then."""

    changed: int  # position of the last event it learned from
    model: bytes


class Traffic(msgspec.Struct):
    """When requests came, by the times of their records: how far these can be trusted.

    A clock that is ahead looks like a time without requests. It is believed once requests have come for a day since.
    """

    newest: int = 0  # time of the newest request; microseconds
    trusted: int = 0  # the newest time that is believed
    resumed: int = 0  # time of the first request after a day without any, while it is not believed; else 0

    def note(self, time: int) -> None:
        """Note a request."""
        if time <= self.newest:
            return
        if self.newest and time - self.newest > DAY:
            self.trusted = self.newest if not self.resumed or time - self.resumed >= DAY else self.trusted
            self.resumed = time
        elif self.resumed and time - self.resumed >= DAY:
            self.resumed = 0
        self.newest = time
        if not self.resumed:
            self.trusted = time


class LoopMetadata(msgspec.Struct):
    """A loop at one position of its log."""

    name: str
    created_at: int  # position of the record that made it
    settings: Settings
    settings_version: int
    version: int  # position up to which the models have learned
    statistics: LoopStatistics = msgspec.field(default_factory=LoopStatistics)
    history: dict[int, Settings] = {}  # settings that events may wait under, by position, without annotations
    catalogue: dict[str, CatalogueAction] = {}  # changed in place; snapshots have it apart
    catalogue_version: int = 0
    base: int = 0  # position of the newest base
    clients: Clients = msgspec.field(default_factory=Clients)
    guard: Guard = msgspec.field(default_factory=Guard)
    erasing: dict[str, str] = {}  # users being erased, with the token of their erasure
    erased: list[str] = []  # tokens of the last erasures that are complete
    pruned: Pruning = Pruning()  # the last one: after its beginning, events decided up to its cut are unknown
    to_prune: dict[str, int] = {}  # requests by token: the time before which events are to be removed
    model_replaced_at: int = 0  # position of the record that replaced the shared model last
    traffic: Traffic = msgspec.field(default_factory=Traffic)

    @property
    def id(self) -> str:
        """An id that is unique even among deleted loops of the same name."""
        return loop_id(self.name, self.created_at)


def loop_id(name: str, created_at: int) -> str:
    return f"{name}@{created_at}"


class LoopView(msgspec.Struct, array_like=True):
    """A loop as it is published."""

    name: str
    created_at: int  # position of the record that made it
    position: int  # of the log, up to which this is
    time: int  # of the record there
    version: int  # position up to which the models have learned
    settings: Settings
    settings_version: int
    statistics: LoopStatistics
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
    n_settings: int = 1  # settings with which events may wait
    waiting_bytes: int = 0  # of memory that pending events take, about
    learner_seconds: float = 0.0  # work of the learner on it since its start

    @property
    def id(self) -> str:
        return loop_id(self.name, self.created_at)

    @property
    def knows_successes_only(self) -> bool:
        """Whether no event has failed so far and most are pending, as at first in a loop that receives clicks only.

        Then every action that ever succeeded looks perfect, and the others look more uncertain than they are.
        """
        sums, failures = self.statistics, self.statistics.low or self.n_assumed
        return self.settings.default_reward is not None and not failures and self.n_waiting > sums.settled

    @property
    def learn_after(self) -> int | None:
        """Microseconds after which events are learned with the rewards received by then; None if failures are reported.

        Failures are not reported if a quarter of all events has no reward yet and hardly any received reward is a
        failure. After five times the mean delay of rewards, most of the rewards have arrived.
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
    """The state of the learner."""

    trouble: str | None = None  # a problem of all loops
    standing_still: str | None = None  # the halted loops, and why; the others continue
    rebuilt: int = 0  # how often the snapshot was thrown away
    published_bytes: int = 0
    incomplete: list[str] = []  # loops that do not have all records yet that were logged before they began (again)
    erased: list[str] = []  # tokens of the last erasures in loops that are deleted

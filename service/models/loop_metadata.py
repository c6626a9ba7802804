"""What a loop is apart from its models and its pending events; plain data."""

from __future__ import annotations

import msgspec

from service.models.guard import Guard
from service.settings import Settings


class Statistics(msgspec.Struct):
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
    passed_over: int = 0  # those that were not
    control_settled: int = 0  # events of control groups, which are in none of the sums above but ``ranks``
    control_reward: float = 0.0
    control_learned: int = 0  # those of them that were learned from
    late_rewards: int = 0  # rewards that came after their event's wait time
    low: int = 0  # settled events that earned no more than the default reward
    unmatched_rewards: int = 0  # rewards without an event, or beyond those that one event may have

    @property
    def learned(self) -> int:
        """How many events and uploads the shared model has learned from."""
        return self.settled + self.uploads + self.control_learned


class CatalogueAction(msgspec.Struct, frozen=True, array_like=True):
    put: int  # position of the record that has it
    features: bytes


class Clients(msgspec.Struct):
    """The devices of a loop whose learner numbers them."""

    numbers: dict[str, int] = {}
    joined: int = 0  # how many numbers were given; that of an erased client is not given again

    def add(self, client: str, most: int) -> None:
        """Give a client that has none the next number, unless all ``most`` are given."""
        if client not in self.numbers and self.joined < most:
            self.numbers[client] = self.joined
            self.joined += 1

    def without(self, client: str) -> Clients:
        """Return the others, whose numbers stay."""
        return Clients({name: number for name, number in self.numbers.items() if name != client}, self.joined)


class Base(msgspec.Struct):
    """The shared part of a loop when a user was erased: what cannot be learned again from the records that are left."""

    shared: bytes
    version: int
    statistics: Statistics
    clients: Clients
    guard: Guard
    time: int  # of the last record then, which may be the user's own


class PersonalBase(msgspec.Struct):
    """A user's model then."""

    changed: int  # position of the last event it learned from
    model: bytes


class Pruned(msgspec.Struct, frozen=True):
    """The last pruning: from the record at ``begun`` on, no event that was decided up to ``cut`` is known."""

    cut: int = 0  # position
    begun: int = 0
    before: int = 0  # all events that are left are as new as this, but for those that were waiting; microseconds
    token: str = ""
    done: int = 0  # position of the record from which on these events are deleted, 0 as long as there is no base


class LoopMetadata(msgspec.Struct):
    """A loop at one position of its log."""

    name: str
    created_at: int  # position of the record that made it
    settings: Settings
    settings_version: int
    version: int  # position up to which the models have learned
    statistics: Statistics = msgspec.field(default_factory=Statistics)
    history: dict[int, Settings] = {}  # settings that events may wait under, by position, without annotations
    catalogue: dict[str, CatalogueAction] = {}  # changed in place; snapshots have it apart
    catalogue_version: int = 0
    base: int = 0  # position of the newest base
    clients: Clients = msgspec.field(default_factory=Clients)
    guard: Guard = msgspec.field(default_factory=Guard)
    erasing: dict[str, str] = {}  # users on their way out, by the token of their erasure
    erased: list[str] = []  # tokens of the last erasures that are complete
    pruned: Pruned = Pruned()
    to_prune: dict[str, int] = {}  # by token: before which time somebody asks to remove events
    model_replaced_at: int = 0  # position of the record that replaced the shared model last

    @property
    def id(self) -> str:
        """What tells this loop from others, also from one of the same name that was deleted."""
        return loop_id(self.name, self.created_at)


def loop_id(name: str, created_at: int) -> str:
    return f"{name}@{created_at}"

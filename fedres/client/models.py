"""A device's two models, its own and its side of the shared one: their last saved state, and the journal since then.

Every change of a model is written to the journal first. Opening a device replays it, so an end at any moment loses
nothing, and the models resume to the bit.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from fedres.checks import Array
from fedres.client.choosing import Round
from fedres.client.global_side import GlobalSide, RewardedDecision, Route, global_side
from fedres.client.local import LocalModel, Step
from fedres.client.store import DeviceStore
from fedres.scoring.features import Prepared, Preparer
from fedres.scoring.federated import takes_residuals
from fedres.scoring.flattening import LARGEST
from fedres.scoring.model import Example, expand

MOST_STEPS = 1_000  # journal entries between two savings
MOST_BYTES = 8_000_000

LOCAL, MODEL, OUTCOME, ACKNOWLEDGED = "local", "model", "outcome", "acknowledged"  # the kinds of journal entries
JournalEntry = tuple[str, bytes]


class Rewarded(msgspec.Struct, array_like=True, frozen=True):
    """A reward for the shared side."""

    context: bytes  # JSON, nothing private
    action: str
    features: bytes
    version: int
    shared: float
    local: float  # as it may be uploaded
    label: float


class Acknowledged(msgspec.Struct, array_like=True, frozen=True):
    upload: dict[str, object]
    position: int


class Side(Protocol):
    """The device's side of the shared model."""

    @property
    def route(self) -> Route: ...
    @property
    def version(self) -> int: ...
    @property
    def tag(self) -> str: ...


class DeviceModels(Protocol):
    """The interface of a device's models, of any kind."""

    settings: Round

    @property
    def side(self) -> Side: ...
    @property
    def grown(self) -> bool: ...
    def apply(self, kind: str, body: bytes) -> None: ...
    def count(self, body: bytes) -> None: ...
    def save(self) -> None: ...
    def close(self) -> None: ...


class AdaGradModels:
    """Both models and the preparation of features; for one thread at a time."""

    def __init__(self, store: DeviceStore, learner: str, settings: Round) -> None:
        self._store = store
        self.settings = settings
        self._preparer = Preparer(crosses=settings.crosses)
        self.local = LocalModel(learner, settings.learning_rate, store.saved(LOCAL))
        self.side = make_side(settings)
        state = store.saved(MODEL)
        if state is not None:
            self.side.restore(state)
        self._unsaved = self._unsaved_bytes = 0
        for entry in store.journal():
            self.apply(*entry)

    def prepare(self, context: bytes, actions: list[tuple[str, bytes]]) -> Prepared:
        """Return the hashed features of a context and of actions."""
        return self._preparer.prepare(context, actions)

    def check_numbers(self, context: bytes, actions: list[tuple[str, bytes]]) -> None:
        """Refuse numbers beyond the loop's bound."""
        largest = self.settings.largest_number
        if largest < LARGEST:
            Preparer.within(largest, crosses=self.settings.crosses).prepare(context, actions)

    def apply(self, kind: str, body: bytes) -> None:
        """Apply an entry of the journal."""
        if kind == LOCAL:
            self.local.apply(msgspec.msgpack.decode(body, type=Step))
        elif kind == MODEL:
            self.side.receive(body)
        elif kind == OUTCOME:
            self.learn(msgspec.msgpack.decode(body, type=Rewarded))
        else:
            done = msgspec.msgpack.decode(body, type=Acknowledged)
            self.side.acknowledge(done.upload, done.position)
        self.count(body)

    def count(self, body: bytes) -> None:
        self._unsaved += 1
        self._unsaved_bytes += len(body)

    def learn(self, rewarded: Rewarded) -> dict[str, object] | None:
        """Pass a reward to the shared side; return the upload."""
        action = {"id": rewarded.action, "features": msgspec.Raw(rewarded.features)}
        example = self.example(rewarded.context, rewarded.action, rewarded.features)
        values = (rewarded.version, rewarded.shared, rewarded.local, rewarded.label)
        return self.side.learn(RewardedDecision(msgspec.Raw(rewarded.context), action, example, *values))

    def example(self, context: bytes, action: str, features: bytes) -> Example:
        """Return the shared features of one action."""
        return expand(self.prepare(context, [(action, features)]), 0)

    def local_score(self, example: Example) -> float:
        """Return the device's own part of a score: none in a loop without personal models."""
        return self.local.score(example) if self.settings.personal else 0.0

    def shared_scores(self, context: bytes, actions: list[tuple[str, bytes]]) -> Array:
        """Return the shared part of every action's score."""
        return self.side.scores(self.prepare(context, actions))

    @property
    def grown(self) -> bool:
        """Whether the journal is long enough to save the models instead."""
        return self._unsaved >= MOST_STEPS or self._unsaved_bytes >= MOST_BYTES

    def save(self) -> None:
        """Save the models and clear the journal; inside a transaction."""
        self._store.save(LOCAL, self.local.get_state())
        self._store.save(MODEL, self.side.to_bytes())
        self._store.clear_journal()
        self._unsaved = self._unsaved_bytes = 0

    def close(self) -> None:
        self.local.close()


def make_side(settings: Round) -> GlobalSide:
    """Return a new shared side; before a client has its number, an empty one for residuals."""
    name = settings.global_learner
    if settings.number is None and not takes_residuals(name):
        return global_side("fedres-adagrad", settings.bits)
    return global_side(name, settings.bits, settings.hyperparameters, timing=settings.timing, number=settings.number)


def rebuilt(old: Round, new: Round) -> bool:
    """Return whether the models must be rebuilt for new settings: features, rates or rules differ."""
    names = ("learning_rate", "crosses", "global_learner", "hyperparameters", "bits", "timing", "number")
    return any(getattr(old, name) != getattr(new, name) for name in names)


def replaced(old: Round, new: Round) -> bool:
    """Return whether the shared side of ``old`` cannot be used with ``new``."""
    names = ("crosses", "global_learner", "hyperparameters", "bits", "number")
    return any(getattr(old, name) != getattr(new, name) for name in names)

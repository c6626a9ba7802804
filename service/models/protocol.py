"""What a model is to the service: the learner learns with it, rankers decide with what it publishes.

A model is one module, which is a ``ModelKind``, and a line in ``service.settings.MODELS``. Nothing else tells models
apart.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from fedres.checks import Array
from fedres.decisions.kalman_rows import Rows
from fedres.decisions.kalman_state import Shared
from fedres.scoring.explaining import Contribution
from fedres.scoring.features import Hashed
from service.log.records import Entry, Example
from service.models.loop_metadata import LoopMetadata, LoopView, Statistics
from service.models.memory import Key
from service.models.personal import PersonalModels
from service.settings import Settings

Policy = tuple[Array, int]  # how a loop explores: a rule, and the number of rewards learned


class LearnedEvent(Struct, frozen=True, gc=False):
    """An event to learn from."""

    user: str | None
    features: Example
    reward: float
    position: int  # of the record that settled it


def users_of(events: Sequence[LearnedEvent], settings: Settings) -> tuple[list[str], Array, Array]:
    """Return the users of events, the last position of each, and which of them each event has; −1 is none."""
    users: dict[str, int] = {}
    changed: list[int] = []
    places = np.full(len(events), -1, np.int64)
    for k, event in enumerate(events if settings.personal else ()):
        if event.user is not None:
            place = users.setdefault(event.user, len(users))
            if place == len(changed):
                changed.append(event.position)
            changed[place], places[k] = event.position, place
    return [*users], np.array(changed, np.int64), places


class PersonalModel(Protocol):
    """What was learned of one user."""

    def to_bytes(self) -> bytes: ...


class SharedModel(Protocol):
    """A loop's model as the learner has it; users' parts are in shared memory."""

    @property
    def reward_range(self) -> tuple[float, float]: ...

    @property
    def newest(self) -> int:
        """The last round of a device that is inside, where devices count rounds."""

    @property
    def weights(self) -> Array | None:
        """The weights of which devices fetch what has changed; None where they fetch all that is published."""

    def learn(
        self, events: Sequence[LearnedEvent], settings: Settings, metadata: LoopMetadata, personal: PersonalModels
    ) -> None:
        """Learn from events that were decided under the same ``settings``, in this order."""

    def learn_upload(self, entry: Entry, metadata: LoopMetadata) -> bool:
        """Learn from a device's upload; return False where the defences say no."""

    def is_finite(self) -> bool: ...

    def publish(self, replaced_at: int) -> tuple[Array, Array]:
        """Return the model in numbers of 32 bits, and by chunks whether they changed: to be emptied.

        Personal models that learned last before the position ``replaced_at`` are of another shared model.
        """

    def forget_client(self, number: int) -> None:
        """Leave nothing of a device but what was learned from it."""

    def forget_events(self) -> bool:
        """Keep nothing of single events; return whether there was something."""

    def to_bytes(self) -> bytes: ...

    def exported(self, *, start: bool = False) -> bytes:
        """Return the bytes without what is kept of single devices and events: that is for nobody else to see.

        With ``start``, a start that is not over keeps its events, which are all that there is of such a model.
        """


class Columns(NamedTuple):
    """All requests of a turn, in arrays."""

    n_actions: Array  # of each request
    sizes: Array  # features of each row: context, actions, next context, ...
    hashes: Array
    values: Array
    fields: Array
    keys: Array  # of the users' models
    allowed: Array
    draws: Array


def joined_rows(rows: Sequence[Hashed]) -> tuple[Array, Array, Array]:
    """Return the hashes, values and fields of rows, one after the other."""
    return (
        np.frombuffer(b"".join([row.hashes for row in rows]), np.uint32),
        np.frombuffer(b"".join([row.values for row in rows]), np.float32),
        np.frombuffer(b"".join([row.fields for row in rows]), np.uint32),
    )


class Strongest(Struct):
    """What a pair of features adds to a score; an empty name is none, and two of them are the constant."""

    context: str
    action: str
    shared: float
    personal: float


class Explained(Struct, omit_defaults=True):
    """Why an action scores as it does."""

    id: str  #: Id of the action.
    shared: float  #: The shared part of the score.
    personal: float  #: The personal part of the score.
    strongest: list[Strongest]  #: The pairs of features that add most.
    width: float | None = None  #: Standard deviation of the score, if the model knows it.


def strongest(contributions: Sequence[Contribution], span: float = 1.0) -> list[Strongest]:
    """Return contributions in units of the reward, ``span`` of which is one of theirs."""
    return [Strongest(pair.context, pair.action, span * pair.shared, span * pair.personal) for pair in contributions]


class Scored(NamedTuple):
    """A request whose scores are looked into."""

    rows: Sequence[Hashed]  # the context, then each action
    settings: Settings
    is_personal: bool  # whether it is of a user for whom the loop has personal models
    personal: Any  # that user's model, None where there is none yet


class ItemRows(Protocol):
    """The items of a catalogue, with their features looked up once."""

    @property
    def n_rows(self) -> int: ...

    def features(self) -> tuple[Array, Array, Array]:
        """Return hashes and values of all features, and where each row ends, beginning with 0."""

    def numbered(self, shared: Shared) -> Rows:
        """Return the rows for ``residual-kalman``."""


class PublishedModel(Protocol):
    """A loop's model as rankers have it."""

    @property
    def device_learners(self) -> str:
        """The learners of devices that can run it, for messages; "" if none can: then there are no uploads."""

    def n_learned(self, statistics: Statistics) -> int:
        """Return how many rewards it has learned."""

    def choose(self, columns: Columns, memory: Array, policy: Policy, crosses: bool) -> tuple[Array, Array]:
        """Return the actions drawn, and probabilities and scores of all actions; ``memory`` has users' parts."""

    def predict_items(
        self, items: ItemRows, context: Hashed, memory: Array, key: Key, crosses: bool
    ) -> tuple[Array, Array]:
        """Return the expected reward of each item and its standard deviation, 0 where the model knows none."""

    def read_personal(self, data: Array) -> Any:
        """Return the user's model in a block's data, None where it belongs to another shared model."""

    def described(self, personal: Any) -> dict[str, Any]:
        """Return a user's model for people."""

    def score_parts(self, scored: Scored) -> list[tuple[float, float]]:
        """Return the shared and the personal part of each action's score."""

    def explain(self, scored: Scored, context: bytes, action: tuple[str, bytes]) -> Explained:
        """Return why the only action scores as it does; ``context`` and ``action`` are its features as JSON."""

    def personal_variances(self, scored: Scored) -> tuple[float, float] | None:
        """Return the variance of the personal part of the first action's score, before the user's data and now.

        None where the model does not know, or there is no personal part.
        """

    def for_devices(self, view: LoopView, weights: Array, since: int | None, changed: Array | None) -> bytes:
        """Return the model as safetensors, all of it or those of its weights that ``changed`` since a version."""


class ModelKind(Protocol):
    """A module with a model."""

    @property
    def EVENTS_TO_COMPILE(self) -> int:  # noqa: N802
        """After how many events all code that learns has run."""

    def new(self, settings: Settings) -> SharedModel:
        """Return a model that has learned nothing."""

    def from_bytes(self, settings: Settings, state: bytes) -> SharedModel:
        """Return the model that ``to_bytes`` wrote."""

    def check(self, settings: Settings, state: bytes, ranges: Collection[tuple[float, float]]) -> None:
        """Refuse a model that is not of the kind and size that the settings have, or of none of the loop's ranges."""

    def read_published(self, weights: Array) -> PublishedModel:
        """Return the model that lies in a copy of what was published."""

    def read_personal(self, data: Array) -> tuple[int, PersonalModel]:
        """Return the position of the last event learned from, and the model, from a block's data."""

    def personal_data(self, changed: int, state: bytes) -> bytes:
        """Return the data of a block with the model that ``to_bytes`` of a user's model wrote."""

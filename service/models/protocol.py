"""The interface of models: the learner learns with a model, rankers decide with the part that it publishes.

A model is one module, which is a ``ModelKind``, and a line in ``service.settings.MODELS``. No other code depends on
the kind of model.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from fedres.checks import Array
from fedres.decisions.kalman_rows import Rows
from fedres.decisions.kalman_state import Shared
from fedres.scoring.explaining import Contribution
from fedres.scoring.features import Hashed
from service.hints import about
from service.log.records import Entry, HashedExample
from service.models.loop_metadata import LoopMetadata, LoopStatistics, LoopView
from service.models.memory import Key
from service.models.personal import PersonalModels
from service.settings import Settings

Policy = tuple[Array, int]  # how a loop explores: a rule, and the number of rewards learned


class LearnedEvent(Struct, frozen=True, gc=False):
    """An event to learn from."""

    user: str | None
    features: HashedExample
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


class UserModel(Protocol):
    """The model of one user."""

    def to_bytes(self) -> bytes: ...


class LearnerModel(Protocol):
    """The learner's side of a loop's model; users' parts are in shared memory."""

    @property
    def reward_range(self) -> tuple[float, float]: ...

    @property
    def newest(self) -> int:
        """The last included round of any device, if devices count rounds."""

    @property
    def weights(self) -> Array | None:
        """The weights whose changes devices fetch; None if they fetch the whole published model."""

    def learn(
        self, events: Sequence[LearnedEvent], settings: Settings, metadata: LoopMetadata, personal: PersonalModels
    ) -> None:
        """Learn from events that were decided under the same ``settings``, in this order."""

    def learn_upload(self, entry: Entry, metadata: LoopMetadata) -> bool:
        """Learn from a device's upload; return False if the defenses refuse it."""

    def is_finite(self) -> bool: ...

    def publish(self, replaced_at: int) -> tuple[Array, Array]:
        """Return the model in numbers of 32 bits, and flags of the chunks that changed, which the caller clears.

        Personal models that learned last before the position ``replaced_at`` are of another shared model.
        """

    def forget_client(self, number: int) -> None:
        """Forget a device, except for what was learned from it."""

    def forget_events(self) -> bool:
        """Forget all single events; return whether any were kept."""

    def to_bytes(self) -> bytes: ...

    def exported(self, *, start: bool = False) -> bytes:
        """Return the bytes without data of single devices and events, which must not leave the service.

        With ``start``, an unfinished start keeps its events: such a model consists of nothing else.
        """


class RequestColumns(NamedTuple):
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

    context: Annotated[str, about("Feature of the context; empty for none.")]
    action: Annotated[str, about("Feature of the action; empty for none.")]
    shared: Annotated[float, about("The part of the pair in the shared score.")]
    personal: Annotated[float, about("The part of the pair in the personal score.")]


class Explained(Struct, omit_defaults=True):
    """Why an action scores as it does."""

    id: Annotated[str, about("Id of the action.")]
    shared: Annotated[float, about("The shared part of the score.")]
    personal: Annotated[float, about("The personal part of the score.")]
    strongest: Annotated[list[Strongest], about("The pairs of features that add most.")]
    width: Annotated[float | None, about("How unsure the score is, if the model knows it.")] = None


def strongest(contributions: Sequence[Contribution], span: float = 1.0) -> list[Strongest]:
    """Return contributions in units of the reward, each multiplied by ``span``."""
    return [Strongest(pair.context, pair.action, span * pair.shared, span * pair.personal) for pair in contributions]


class ScoredRequest(NamedTuple):
    """A request whose scores are explained."""

    rows: Sequence[Hashed]  # the context, then each action
    settings: Settings
    # True: the loop has personal models for its user.
    is_personal: bool
    # The user's model, None before it exists.
    personal: Any


class ItemRows(Protocol):
    """The items of a catalogue, with their features looked up once."""

    @property
    def n_rows(self) -> int: ...

    def features(self) -> tuple[Array, Array, Array]:
        """Return hashes and values of all features, and where each row ends, beginning with 0."""

    def numbered(self, shared: Shared) -> Rows:
        """Return the rows for ``residual-kalman``."""


class PublishedModel(Protocol):
    """The rankers' side of a loop's model."""

    @property
    def device_learners(self) -> str:
        """The device learners that can run it, for messages; "" if none can: then there are no uploads."""

    def n_learned(self, statistics: LoopStatistics) -> int:
        """Return how many rewards it has learned."""

    def choose(self, columns: RequestColumns, memory: Array, policy: Policy, crosses: bool) -> tuple[Array, Array]:
        """Return the actions drawn, and probabilities and scores of all actions; ``memory`` has users' parts."""

    def predict_items(
        self, items: ItemRows, context: Hashed, memory: Array, key: Key, crosses: bool
    ) -> tuple[Array, Array]:
        """Return the expected reward of each item and its width, 0 if the model has none."""

    def read_personal(self, data: Array) -> Any:
        """Return the user's model in a block's data, None if it belongs to another shared model."""

    def described(self, personal: Any) -> dict[str, Any]:
        """Return a user's model in readable form."""

    def score_parts(self, scored: ScoredRequest) -> list[tuple[float, float]]:
        """Return the shared and the personal part of each action's score."""

    def n_explained(self, rows: Sequence[Hashed], settings: Settings) -> int:
        """Return how many pairs of features must be evaluated to explain the scores of a context and actions."""

    def explain(self, scored: ScoredRequest, context: bytes, action: tuple[str, bytes]) -> Explained:
        """Return why the only action scores as it does; ``context`` and ``action`` are its features as JSON."""

    def personal_variances(self, scored: ScoredRequest) -> tuple[float, float] | None:
        """Return the variance of the personal part of the first action's score, before the user's data and now.

        None if the model has no variances, or there is no personal part.
        """

    def tag(self, version: int, weights: Array) -> str:
        """Return a tag that is the same wherever the model was learned, for a version and the published numbers."""

    def for_devices(self, view: LoopView, weights: Array, since: int | None, changed: Array | None) -> bytes:
        """Return the model as safetensors: all of it, or only the weights that ``changed`` since a version."""


class ModelKind(Protocol):
    """A module with a model."""

    @property
    def EVENTS_TO_COMPILE(self) -> int:  # noqa: N802
        """The number of events after which all learning code is compiled."""

    def new(self, settings: Settings) -> LearnerModel:
        """Return a model that has learned nothing."""

    def is_of_another_version(self, state: bytes) -> bool:
        """Return whether another version of the module wrote a model, shared or personal; it cannot be read."""

    def from_bytes(self, settings: Settings, state: bytes) -> LearnerModel:
        """Return the model that ``to_bytes`` wrote."""

    def check(self, settings: Settings, state: bytes, ranges: Collection[tuple[float, float]]) -> None:
        """Refuse a model whose kind or size differs from the settings, or whose range is none of ``ranges``."""

    def read_published(self, weights: Array) -> PublishedModel:
        """Return the model in a copy of the published numbers."""

    def read_personal(self, data: Array) -> tuple[int, UserModel]:
        """Return the position of the last event learned from, and the model, from a block's data."""

    def personal_data(self, changed: int, state: bytes) -> bytes:
        """Return the data of a block with the model that ``to_bytes`` of a user's model wrote."""

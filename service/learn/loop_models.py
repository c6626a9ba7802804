"""The models of one loop: the shared one, and those of users in shared memory. They learn from events in batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.decisions import kalman_state
from fedres.scoring.batch import CHUNK_BITS, Events, Shared
from fedres.scoring.federated import FederatedModel
from fedres.scoring.model import PersonalModel, SharedModel
from service.learn.join import Decided
from service.models.guard import Guard
from service.models.kalman_shared import KalmanShared
from service.models.personal import PersonalModels
from service.models.shared_models import AnyShared, expanded_example
from service.settings import Settings


class LearnedEvent(NamedTuple):
    """An event to learn from."""

    decided: Decided
    reward: float
    position: int  # of the record that settled it


class LoopModels:
    """The models of the loop with this id; ``changed`` marks the chunks of shared weights that are not published."""

    def __init__(self, loop: str, shared: AnyShared, personal: PersonalModels) -> None:
        self._loop, self.shared, self.personal = loop, shared, personal
        self.changed: Array = np.zeros(0, np.uint8)
        self.touch_all()

    def touch_all(self) -> None:
        """Take note that every shared weight may have changed."""
        if not isinstance(self.shared, KalmanShared):  # which finds out by itself
            self.changed = np.ones((self.shared.weights.size >> CHUNK_BITS) + 1, np.uint8)

    def to_publish(self, model_replaced_at: int) -> tuple[Array, Array]:
        """Return the shared model in numbers of 32 bits, and by chunks whether they changed: to be emptied."""
        if not isinstance(self.shared, KalmanShared):
            return self.shared.weights, self.changed
        publication = self.shared.publication
        publication.update(self.shared.model, model_replaced_at)
        return publication.words.view(np.float32), publication.changed

    def check_finite(self) -> None:
        """Raise unless all numbers of the shared model are finite."""
        shared = self.shared
        if isinstance(shared, KalmanShared):
            finite = shared.is_finite()
        else:  # of 32-bit numbers: not finite if one of them is not
            finite = bool(np.isfinite(shared.weights.sum(dtype=np.float64)))
        if not finite:
            raise FloatingPointError("the shared model would have numbers that are not finite")

    def replace_shared(self, shared: AnyShared) -> None:
        """Go on with another shared model."""
        self.shared = shared
        self.touch_all()

    def forget(self, user: str, number: int | None) -> None:
        """Leave nothing of a user, who has this number as a device, but what the shared model learned."""
        self.personal.remove(self._loop, [user])
        if number is not None and isinstance(self.shared, FederatedModel):
            self.shared.forget(number)

    def forget_events(self) -> bool:
        """Let the shared model keep nothing of single events; return whether it did."""
        return isinstance(self.shared, KalmanShared) and self.shared.model.forget_events()

    def learn(self, learned: Sequence[LearnedEvent], settings: Settings, model_replaced_at: int, guard: Guard) -> None:
        """Learn from events that were decided under the same settings, in this order.

        The shared model has been this one since the position ``installed``.
        """
        if isinstance(self.shared, KalmanShared):
            left = self._learn_kalman(self.shared, learned, settings, model_replaced_at)
            for (decided, _, _), (error, length) in zip(learned, left.tolist(), strict=True):
                if length > 0:  # not of the start
                    guard.count(decided.user, length, error)
        elif isinstance(self.shared, FederatedModel):
            self._learn_one_by_one(self.shared, learned, settings)
        else:
            self._learn_batch(self.shared, learned, settings)

    def _learn_kalman(
        self, shared: KalmanShared, learned: Sequence[LearnedEvent], settings: Settings, model_replaced_at: int
    ) -> Array:
        users, changed, places = _users_of(learned, personal=settings.personal)
        features = [decided.features for decided, _, _ in learned]
        sizes = [len(each.hashes) // 4 for each in features]
        events = kalman_state.Events(
            np.frombuffer(bytearray().join([each.hashes for each in features]), np.uint32),
            np.frombuffer(bytearray().join([each.values for each in features]), np.float32),
            np.frombuffer(bytearray().join([bytes(4 * each.n_context) + each.fields for each in features]), np.uint32),
            np.cumsum([0, *sizes], dtype=np.int64),
            np.array([each.n_context for each in features], np.int64),
            np.array([reward for _, reward, _ in learned], np.float32),
            places,
        )
        return self.personal.learn_kalman(self._loop, users, changed, events, shared.model, model_replaced_at)

    def _learn_batch(self, shared: SharedModel, learned: Sequence[LearnedEvent], settings: Settings) -> None:
        users, changed, places = _users_of(learned, personal=settings.personal)
        features = [decided.features for decided, _, _ in learned]
        sizes = [len(each.hashes) // 4 for each in features]
        events = Events(
            np.frombuffer(b"".join([each.hashes for each in features]), np.uint32),
            np.frombuffer(b"".join([each.values for each in features]), np.float32),
            np.cumsum([0, *sizes], dtype=np.int64),
            np.array([each.n_context for each in features], np.int64),
            np.array([reward for _, reward, _ in learned], np.float32),
            places,
        )
        state = Shared(*shared.arrays, 32 - shared.bits, self.changed)
        rate = float(settings.learning_rate)
        self.personal.learn(self._loop, users, changed, events, state, settings.crosses, rate)

    def _learn_one_by_one(self, shared: FederatedModel, learned: Iterable[LearnedEvent], settings: Settings) -> None:
        """Learn where every step changes every weight."""
        loop = self._loop
        shared.learning_rate = settings.learning_rate
        for decided, reward, position in learned:
            example, user = expanded_example(decided.features, settings.crosses), decided.user
            if user is None or not settings.personal:
                shared.learn(example, reward, 0.0)
                continue
            own, offset = self.personal.get(loop, user) or PersonalModel(), shared.score(example)
            own.learning_rate = settings.learning_rate
            shared.learn(example, reward, own.score(example))
            own.learn(example, reward, offset, shared.reward_range)
            self.personal.put(loop, user, position, own)
        self.touch_all()


def _users_of(learned: Sequence[LearnedEvent], *, personal: bool) -> tuple[list[str], Array, Array]:
    """Return the users of events, the last position of each, and which of them each event has; −1 is none."""
    users: dict[str, int] = {}
    changed: list[int] = []
    places = np.full(len(learned), -1, np.int64)
    for k, (decided, _, position) in enumerate(learned):
        if decided.user is not None and personal:
            place = users.setdefault(decided.user, len(users))
            if place == len(changed):
                changed.append(position)
            changed[place], places[k] = position, place
    return [*users], np.array(changed, np.int64), places

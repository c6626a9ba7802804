"""The service's ``residual-kalman`` as a model of bandits: the same compiled code (``fedres.decisions``).

Features are named by their numbers, as JSON features would be. Of ``arms``, the context's are "0", "1", ... and the
actions have the ids "0", "1", ...; of ``rows`` and ``sparse``, each action has the features "0", "1", ... and no id.
Named features are hashed as the service hashes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from bandits.actions import Actions, NamedActions
from bandits.models.protocol import NOBODY, SCHEMES, Predicting, Prediction, Sample
from fedres import checks
from fedres.checks import Array
from fedres.decisions.kalman_state import Events, KalmanRequest
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman
from fedres.scoring.flattening import feature_hash

Offered = Actions | NamedActions
Row = tuple[Array, Array, Array, int]  # hashes, values and fields of an example, and how many are the context's


class KalmanModel(Predicting):
    """``BanditModel`` of the three schemes: shared and personal parts, one model for all, or a model for each client.

    A reward is learned ``delay`` rounds after its own. A slot has the words of a personal model, or a model.
    """

    reusable = True

    def __init__(self, scheme: str, delay: int = 0) -> None:
        checks.one_of("scheme", scheme, SCHEMES)
        self.scheme, self.version = scheme, 0
        self.shared = ResidualKalman()
        self.owns: dict[int, Array] = {}
        self.alone: dict[int, ResidualKalman] = {}
        self.waiting: deque[list[Sample]] = deque([] for _ in range(delay))

    def join(self, slot: int) -> None:
        if self.scheme == "independent":
            self.alone[slot] = ResidualKalman()
        elif self.scheme == "fedres":
            self.owns[slot] = NO_MODEL

    def leave(self, slot: int) -> None:
        self.alone.pop(slot, None)
        self.owns.pop(slot, None)

    def predict(self, slot: int, shared: Offered, private: Offered) -> Prediction:
        prediction = self._of(slot).predict(request_of(self._features(shared, private)), self.owns.get(slot))
        return prediction.means, prediction.widths

    def progress(self, slot: int, n: int) -> int:
        """Return the rewards learned, as the service counts."""
        return self._of(slot).learned

    def play(self, samples: list[Sample]) -> None:
        self.waiting.append(samples)
        arrived = [one for one in self.waiting.popleft() if self._is_here(one[0])]
        if not arrived:
            return
        if self.scheme == "independent":
            for one in arrived:
                self.alone[one[0]].learn(self._events([one], [-1]))
            return
        slots = [one[0] for one in arrived if one[0] in self.owns]
        places = {slot: place for place, slot in enumerate(slots)}
        users = [places.get(one[0], -1) for one in arrived]
        learned = self.shared.learn(self._events(arrived, users), [self.owns[slot] for slot in slots])
        self.owns.update(zip(slots, learned, strict=True))
        self.version += 1

    def close(self) -> None:
        """Nothing to free."""

    def to_arrays(self) -> dict[str, Array]:
        arrays = {f"shared/{name}": array for name, array in self.shared.to_arrays().items()}
        for slot, model in self.alone.items():
            arrays |= {f"{slot}/{name}": array for name, array in model.to_arrays().items()}
        return arrays | {f"{slot}/own": words.copy() for slot, words in self.owns.items()}

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        self.alone, self.owns = {}, {}
        parts: dict[str, dict[str, Array]] = {}
        for path, array in arrays.items():
            slot, _, name = path.partition("/")
            parts.setdefault(slot, {})[name] = array
        # The shared part has no arrays before the first event.
        self.shared.load_arrays(parts.pop("shared", {}))
        for slot, part in parts.items():
            self.join(int(slot))
            if "own" in part:
                self.owns[int(slot)] = part["own"].copy()
            else:
                self.alone[int(slot)].load_arrays(part)

    def _is_here(self, slot: int) -> bool:
        if self.scheme == "independent":
            return slot in self.alone
        return self.scheme == "central" or slot == NOBODY or slot in self.owns

    def _of(self, slot: int) -> ResidualKalman:
        return self.alone[slot] if self.scheme == "independent" else self.shared

    def _features(self, shared: Offered, private: Offered) -> Offered:
        """Return what the model sees; its two parts see the same."""
        if isinstance(shared, NamedActions) or isinstance(private, NamedActions):
            return shared
        if self.scheme == "fedres" and private is not shared and not _alike(shared, private):
            raise ValueError(
                "private must be as shared, or not given, for residual-kalman: both its parts see the same."
                ' model="adagrad" takes features of their own'
            )
        return private if self.scheme == "independent" else shared

    def _events(self, samples: Sequence[Sample], users: Sequence[int]) -> Events:
        rows = [row_of(self._features(xg, xl), action) for _, action, xg, xl, _ in samples]
        hashes, values, fields = (np.concatenate([row[k] for row in rows]) for k in range(3))
        return Events(
            hashes,
            values,
            fields,
            np.cumsum([0, *[row[0].size for row in rows]], dtype=np.int64),
            np.array([row[3] for row in rows], np.int64),
            np.array([sample[4] for sample in samples], np.float32),
            np.array(users, np.int64),
        )


def request_of(actions: Offered) -> KalmanRequest:
    """Return actions as the model's requests have them; the constant of ``arms`` is the model's own.

    A 0 in a row is no feature, as in an array of JSON.
    """
    if isinstance(actions, NamedActions):
        return actions.request
    n, _, indices, values, stride = actions
    if stride:
        hashes, fields, starts, ones = _arms(values.shape[1] - 1, n)
        return KalmanRequest(hashes, np.concatenate([values[0, :-1].astype(np.float32), ones]), fields, starts)
    values = np.broadcast_to(values, (n, values.shape[1]))
    hashes = np.broadcast_to(_hashes(actions.dim)[indices], values.shape)[values != 0]
    starts = np.cumsum([0, *np.count_nonzero(values, axis=1)], dtype=np.int64)
    return KalmanRequest(hashes, values[values != 0].astype(np.float32), hashes, starts)


def row_of(actions: Offered, action: int) -> Row:
    """Return the example of one action, which is learned; of named actions, only this one was kept."""
    if isinstance(actions, NamedActions):
        hashes, values, fields, starts = actions.request
        return hashes, values, fields, int(starts[0])
    where, _, row = actions.take(action)
    if actions.stride:
        n = row.size - 1
        hashes, fields, _, _ = _arms(n, actions.n)
        chosen = np.append(np.arange(n), n + action)
        return hashes[chosen], np.append(row[:-1], 1.0).astype(np.float32), fields[chosen], n
    hashes = _hashes(actions.dim)[where[row != 0]]
    return hashes, row[row != 0].astype(np.float32), hashes, 0


@lru_cache(maxsize=256)
def _hashes(n: int) -> Array:
    return np.array([feature_hash(str(k)) for k in range(n)], np.uint32)


@lru_cache(maxsize=256)
def _arms(n_context: int, n: int) -> tuple[Array, Array, Array, Array]:
    ids = np.array([feature_hash(f"_id={a}") for a in range(n)], np.uint32)
    context = _hashes(n_context)
    fields = np.concatenate([context, np.full(n, feature_hash("_id"), np.uint32)])
    return np.concatenate([context, ids]), fields, n_context + np.arange(n + 1, dtype=np.int64), np.ones(n, np.float32)


def _alike(one: Actions, other: Actions) -> bool:
    same = one.values.shape == other.values.shape and one.stride == other.stride
    return bool(same and (one.values == other.values).all() and (one.indices == other.indices).all())

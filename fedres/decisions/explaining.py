"""Explanations of ``residual-kalman``: the contributions of pairs of features to an expected reward, and its width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.decisions.constants import BIAS_WORDS, ID_FIELD, MOST_PAIRED
from fedres.decisions.kalman_inputs import (
    action_key,
    action_value,
    constant_input,
    field_place,
    find_block,
    find_scale,
    key_of,
    scaled,
    tail_place,
)
from fedres.decisions.kalman_kernels import predict
from fedres.decisions.kalman_own import BIAS_NUMBERS, find_bias, find_slot, tau_of, weights_of
from fedres.decisions.kalman_state import BASES, LENGTH, OWN, OWN_BIAS, TAIL, KalmanRequest, Shared
from fedres.decisions.residual_kalman import NO_MODEL
from fedres.scoring.explaining import Contribution
from fedres.scoring.features import Hashed
from fedres.scoring.flattening import NamedFeature, feature_hash


class KalmanExplanation(NamedTuple):
    shared: float  # the shared part of the mean, as a share of the rewards' range
    personal: float  # the personal part
    width: float  # the standard deviation of the mean
    strongest: list[Contribution]


class _Coordinate(NamedTuple):
    name: str
    key: int
    place: int  # in the core, −1 in the tail
    value: float


class _Feature(NamedTuple):
    name: str
    key: int
    field: int  # its hash
    x: float


def explain(
    shared: Shared,
    own: Array | None,
    rows: tuple[Hashed, Hashed],
    names: tuple[Sequence[NamedFeature], Sequence[NamedFeature]],
    *,
    top: int = 10,
) -> KalmanExplanation:
    """Return the explanation of an action's expected reward, the ``top`` strongest contributions first.

    ``own`` is the user's model in the present basis, empty if there is none yet, None without a user. ``rows`` are
    context and action hashed, ``names`` the same features with their names.
    """
    shared_part, personal, variance = _predicted(shared, own, rows)
    contributions = [*_contributions(shared, own, names)]
    contributions.sort(key=lambda one: -abs(one.shared + one.personal))
    return KalmanExplanation(shared_part, personal, max(variance, 0.0) ** 0.5, contributions[:top])


def personal_variances(shared: Shared, own: Array, rows: tuple[Hashed, Hashed]) -> tuple[float, float]:
    """Return the variance of the personal part of a mean: before anything was learned from the user, and now."""
    of_shared, before, now = (_predicted(shared, model, rows)[2] for model in (None, NO_MODEL, own))
    return before - of_shared, now - of_shared


def _predicted(shared: Shared, own: Array | None, rows: tuple[Hashed, Hashed]) -> tuple[float, float, float]:
    """Return the shared and the personal part of the mean, and its variance."""
    request = KalmanRequest(
        np.frombuffer(rows[0].hashes + rows[1].hashes, np.uint32),
        np.frombuffer(rows[0].values + rows[1].values, np.float32),
        np.frombuffer(rows[0].fields + rows[1].fields, np.uint32),
        np.array([rows[0].size, rows[0].size + rows[1].size], np.int64),
    )
    parts = np.empty((1, 3))
    predict(shared, NO_MODEL if own is None else own, own is not None, request, parts)
    return float(parts[0, 0]), float(parts[0, 1]), float(parts[0, 2])


def _contributions(
    shared: Shared, own: Array | None, names: tuple[Sequence[NamedFeature], Sequence[NamedFeature]]
) -> Iterator[Contribution]:
    context, action = names
    coordinates = [
        _Coordinate("", 0, 0, constant_input(shared.numbers[LENGTH])),
        *(_coordinate(shared, one) for one in context),
    ]
    yield from _of_block(shared, own, coordinates, "", 0, 0, 1.0)
    features = _features(shared, action)
    for one in features:
        yield from _of_block(shared, own, coordinates, one.name, one.key, one.field, one.x)
    yield from _of_pairs(shared, features)


def _features(shared: Shared, action: Sequence[NamedFeature]) -> list[_Feature]:
    """Return an action's features, each once."""
    features: dict[int, _Feature] = {}
    for one in action:
        word, field = np.uint32(feature_hash(one.name)), np.uint32(feature_hash(one.field))
        key, x = int(key_of(word)), float(action_value(shared, word, float(np.float32(one.value)), field, False))
        before = features.get(key, _Feature(one.name, key, int(key_of(field)), 0.0))
        features[key] = before._replace(x=before.x + x)
    return [one for one in features.values() if one.x]


def _of_pairs(shared: Shared, features: Sequence[_Feature]) -> Iterator[Contribution]:
    """Yield the contribution of each pair of an action's features."""
    for k, one in enumerate(features[:MOST_PAIRED]):
        for other in features[:k]:
            low, high = sorted(int(field_place(shared, np.uint32(each.field), False)) for each in (one, other))
            if ID_FIELD not in (one.field, other.field) and 0 <= low < high:
                first, second = sorted((one.key, other.key))
                place = tail_place(np.uint32(first), action_key(np.uint32(second)), len(shared.tail))
                weight = _diagonal_weight(shared.tail[place], float(np.exp(shared.pair_log_tau[low, high])))
                x = float(np.clip(one.x, -1, 1) * np.clip(other.x, -1, 1))
                yield Contribution("", f"{other.name} & {one.name}", x * weight, 0.0)


def _coordinate(shared: Shared, feature: NamedFeature) -> _Coordinate:
    key, value = key_of(np.uint32(feature_hash(feature.name))), float(np.float32(feature.value))
    slot = int(find_scale(shared, key))
    place = int(shared.scale_core[slot]) if slot >= 0 else -1
    x = float(scaled(shared, max(slot, -1), value, False)) / shared.numbers[LENGTH]
    return _Coordinate(feature.name, int(key), place, x)


def _of_block(
    shared: Shared, own: Array | None, coordinates: Sequence[_Coordinate], name: str, key: int, field: int, x: float
) -> Iterator[Contribution]:
    """Yield the contribution of each coordinate through the block of an action's feature, or through block 0."""
    block = int(find_block(shared, np.uint32(key)))
    place = int(field_place(shared, np.uint32(field), False))
    personal = _personal_weights(shared, own, key, place)
    for one in coordinates:
        if one.place >= 0:
            part = one.value * shared.means[block, one.place] if block >= 0 else 0.0
            own_part = one.value * personal[one.place]
            # The constant has what is true in any context.
            if one.place == 0:
                own_part += _personal_bias(shared, own, key, place)
            yield Contribution(one.name, name, float(x * part), float(x * own_part))
        else:
            numbers = shared.tail[tail_place(np.uint32(key), np.uint32(one.key), len(shared.tail))]
            weight = _diagonal_weight(numbers, _tau(shared, place, TAIL))
            yield Contribution(one.name, name, float(x * one.value * weight), 0.0)


def _personal_weights(shared: Shared, own: Array | None, key: int, field: int) -> Array:
    """Return the personal weights of a block by coordinate of the core: U w."""
    basis = shared.bases[shared.counts[BASES] - 1]
    k = basis.shape[1]
    slot = -1 if own is None else int(find_slot(own, np.uint32(key), k))
    if own is None or slot < 0:
        return np.zeros(len(basis))
    return np.asarray(basis @ weights_of(own, slot, k, _tau(shared, field, OWN)))


def _personal_bias(shared: Shared, own: Array | None, key: int, field: int) -> float:
    bias = -1 if own is None else int(find_bias(own, np.uint32(key)))
    if own is None or bias < 0:
        return 0.0
    numbers = own[bias + BIAS_NUMBERS : bias + BIAS_WORDS].view(np.float32)
    return _diagonal_weight(numbers, _tau(shared, field, OWN_BIAS))


def _diagonal_weight(numbers: Array, tau: float) -> float:
    b, h = numbers.astype(float)
    return float(b / (1 / tau + h))


def _tau(shared: Shared, field: int, side: int) -> float:
    return float(tau_of(shared, field, side))

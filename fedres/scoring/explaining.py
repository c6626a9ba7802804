"""Explanations of scores: the contributions of pairs of features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.scoring.features import Preparer
from fedres.scoring.flattening import FeatureLimits, NamedFeature, action_features, flatten
from fedres.scoring.kernels import indices_of, slots_of
from fedres.scoring.model import PersonalModel, expand, score


class Contribution(NamedTuple):
    """The contribution of a pair of features to a score; an empty name is none, and two of them are the constant."""

    context: str
    action: str
    shared: float
    personal: float


class AdaGradExplanation(NamedTuple):
    shared: float  # the shared part of the score
    personal: float  # the personal part
    strongest: list[Contribution]


def explain(
    context: bytes,
    action: tuple[str, bytes],
    weights: Array,
    personal: PersonalModel | None = None,
    *,
    crosses: bool = True,
    limits: FeatureLimits | None = None,
    top: int = 10,
) -> AdaGradExplanation:
    """Return the explanation of an action's score, the ``top`` strongest contributions first."""
    limits = limits or FeatureLimits()
    prepared = Preparer(crosses=crosses, limits=limits).prepare(context, [action])
    names = _names(flatten(context, limits), action_features(*action, limits), crosses)
    keys, values = expand(prepared, 0)
    shared = np.append(weights[indices_of(keys, 33 - (weights.size - 1).bit_length())] * values, weights[-1])
    own = np.zeros_like(shared)
    if personal is not None:
        slots = slots_of(keys, personal._table)
        own = np.append(np.where(slots >= 0, personal._weights[slots] * values, 0), personal._weights[-1])
    order = np.argsort(-np.abs(shared + own), kind="stable")[:top]
    strongest = [Contribution(names[k][0], names[k][1], float(shared[k]), float(own[k])) for k in order]
    parts = score(prepared, weights, personal)
    return AdaGradExplanation(float(parts[0][0]), float(parts[1][0]), strongest)


def _names(context: Sequence[NamedFeature], action: Sequence[NamedFeature], crosses: bool) -> list[tuple[str, str]]:
    """Return the pairs of names in the order of ``expand``, and the constant's."""
    alone = [(one.name, "") for one in context] + [("", one.name) for one in action]
    crossed = [(one.name, other.name) for one in context for other in action] if crosses else []
    return [*alone, *crossed, ("", "")]

"""Lists of items for all users: popular items, and items similar to another one.

Similarity depends on common features and on the shared model. A feature has a larger weight if fewer items have it and
if it moves the expected reward further. An item's score is the weight of the features that both items have, as a share
of those that either has, in (0, 1], times a factor from 1/2 to 1 for how close their expected rewards are.
Expected rewards are those of the shared model in an empty context, where numbers are at their mean.
"""

from __future__ import annotations

from heapq import nsmallest
from time import monotonic, time
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.decisions.kalman_rows import Rows
from fedres.decisions.kalman_state import Shared
from fedres.scoring.features import Hashed
from service.errors import ApiError
from service.hints import about
from service.models.published import Loop
from service.plugins.recommend.drawing import empty_context
from service.plugins.recommend.earnings import FRESH_SECONDS, WINDOWS, best_rows
from service.plugins.recommend.items import Items, shown
from service.plugins.recommend.recommender import Recommender
from service.rank.decide import NO_KEY, NO_MEMORY
from service.rank.ranker import RankerContext

LONGEST_WINDOW = WINDOWS[-1]


class PopularItem(msgspec.Struct):
    """An item and what it earned."""

    id: Annotated[str, about("Id of the item.")]
    score: Annotated[float, about("Mean reward of its events, shrunk to the mean of all items while it has few.")]
    events: Annotated[int, about("Events with a reward in the window.")]


class Popular(msgspec.Struct):
    """Items of the catalogue that may be shown, the best one first."""

    items: Annotated[list[PopularItem], about("The items, the highest score first.")]
    events: Annotated[int, about("Events with a reward of all items in the window.")]


async def popular(recommender: Recommender, name: str, n: int, seconds: float) -> Popular:
    """Return the items with the highest mean reward; items without rewards have the mean of all."""
    earned = await recommender.earnings.scores(name, seconds)
    now = time()

    def listed(_: Loop, items: Items) -> list[PopularItem]:
        scores, boosts = earned.of(items), items.boosts.used
        best = best_rows(items, items.showable(now), n, scores, boosts)
        counts = [earned.earned.get(items.ids[row], (0, 0.0))[0] for row in best]
        return [PopularItem(items.ids[row], float(scores[row]), count) for row, count in zip(best, counts, strict=True)]

    return Popular(await recommender.on_items(name, listed), earned.n_events)


class SimilarItem(msgspec.Struct):
    """An item and how similar it is."""

    id: Annotated[str, about("Id of the item.")]
    score: Annotated[float, about("Similarity, from 0 to 1.")]


class Similar(msgspec.Struct):
    """Items of the catalogue that may be shown, the most similar one first."""

    id: Annotated[str, about("Id of the item that the others are compared with.")]
    items: Annotated[list[SimilarItem], about("The items, the most similar one first.")]
    by: Annotated[
        str, about("What the comparison uses: the model once it has learned something; else features; else popularity.")
    ]


class ItemComparison(NamedTuple):
    """The data for comparing all items of a loop, cached for some seconds."""

    until: float
    items: Items
    n_rows: int
    weights: Array  # of the feature at each place of the rows
    totals: Array  # of each row
    rewards: Array | None  # expected rewards of the rows, from 0 to 1; None if nothing was learned


class Similarity:
    """Lists of similar items of one ranker."""

    def __init__(self, context: RankerContext, recommender: Recommender) -> None:
        self._context, self._recommender = context, recommender
        self._comparisons: dict[str, ItemComparison] = {}  # by loop

    async def similar(self, name: str, item: str, n: int) -> Similar:
        """Return the items that are most similar to another one; ties are sorted by popularity."""
        await self._context.until_compiled()
        earned = await self._recommender.earnings.newest(name)
        context, now = empty_context(self._context.preparer), time()

        def listed(loop: Loop, items: Items) -> Similar:
            if item not in items.rows:
                there = shown(nsmallest(11, items.rows)) or "none"
                message = f"item {item[:100]!r} is not in the catalogue, which has {there}; PUT /v1/actions adds items"
                raise ApiError(404, "unknown_item", message, "item")
            compared = self._compared_by(name, loop, items, context)
            return _similar(compared, items, item, n, earned.of(items), now)

        return await self._recommender.on_items(name, listed)

    def _compared_by(self, name: str, loop: Loop, items: Items, context: Hashed) -> ItemComparison:
        compared, now = self._comparisons.get(name), monotonic()
        if compared is None or now >= compared.until or compared.items is not items or compared.n_rows != items.n_rows:
            made = _compared_by(loop, items, context, now + FRESH_SECONDS)
            others = {key: each for key, each in self._comparisons.items() if now < each.until}  # few and recent
            self._comparisons = {**others, name: made}
            return made
        return compared


def _similar(compared: ItemComparison, items: Items, item: str, n: int, popular: Array, now: float) -> Similar:
    """Return the items that are most similar to another one."""
    row = items.rows[item]
    common, rewards = in_common(compared, items, row), compared.rewards
    closeness = np.zeros(items.n_rows) if rewards is None else 1 - abs(rewards - rewards[row])
    scores = common if rewards is None else common * (1 + closeness) / 2
    candidates = items.showable(now)
    candidates[row] = False
    rows = best_rows(items, candidates, n, scores, closeness, popular)
    by = "popularity" if not scores[candidates].any() else "features"
    similar = [SimilarItem(items.ids[each], float(scores[each])) for each in rows]
    return Similar(item, similar, by if rewards is None else "model")


def _compared_by(loop: Loop, items: Items, context: Hashed, until: float) -> ItemComparison:
    """Return the current weights of features and expected rewards."""
    numbers, keys, fields = items.distinct_features()
    first, counts = items.features()[2][:-1], np.bincount(numbers, minlength=keys.size)
    weight, rewards = np.log((len(items.rows) + 1) / np.maximum(counts, 1)).clip(0), None
    if loop.n_learned:
        crosses = loop.view.settings.crosses
        means, _ = loop.model.predict_items(items, context, NO_MEMORY, NO_KEY, crosses)
        span = np.ptp(means) if means.size else 0.0
        if span > 0:
            rewards = (means - means.min()) / span
            single, _ = loop.model.predict_items(FeatureRows(keys, fields), context, NO_MEMORY, NO_KEY, crosses)
            effects = abs(single[:-1] - single[-1])
            weight = weight * (1 + effects / (effects.mean() or 1.0))
    weights = weight[numbers]
    weights[first] = 0.0  # of ids, which no two items have in common
    return ItemComparison(until, items, items.n_rows, weights, np.add.reduceat(weights, first), rewards)


def in_common(compared: ItemComparison, items: Items, row: int) -> Array:
    """Return each item's weighted share of common features, among those that it or the item in ``row`` has."""
    numbers, starts = items.distinct_features()[0], items.features()[2]
    is_own = np.zeros(numbers.max() + 1, np.bool_)
    is_own[numbers[starts[row] + 1 : starts[row + 1]]] = True
    both = np.add.reduceat(compared.weights * is_own[numbers], starts[:-1])
    either = compared.totals + compared.totals[row] - both
    shares: Array = np.divide(both, either, out=np.zeros(items.n_rows), where=either > 0)
    return shares


class FeatureRows:
    """A row for each distinct feature of items, and one without any."""

    def __init__(self, keys: Array, fields: Array) -> None:
        self._keys, self._fields, self.n_rows = keys, fields, keys.size + 1
        self._starts = np.append(np.arange(keys.size + 1), keys.size)

    def features(self) -> tuple[Array, Array, Array]:
        return self._keys, np.ones(self._keys.size, np.float32), self._starts

    def numbered(self, shared: Shared) -> Rows:
        n = self._keys.size
        return Rows(self._starts, np.arange(n, dtype=np.int32), np.ones(n), self._keys, self._fields, np.zeros(n + 1))

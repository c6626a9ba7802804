"""Items for the places of a page, drawn one after the other without replacement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.draws import event_draws
from fedres.policies.kernels import CODE, EPSILON_GREEDY, GREEDY
from fedres.policies.shortlist import draw_one, ranked
from fedres.scoring.features import Hashed, Named, Preparer
from service.models.catalogue import CatalogueCopy
from service.models.loop_metadata import CatalogueAction
from service.models.memory import personal_key
from service.models.published import Loop, PublishedModels
from service.plugins.recommend.items import Items
from service.rank.decide import CONTROL, HELD, NO_KEY, NO_MEMORY, TREATMENT


class Drawn(NamedTuple):
    """The item of one place."""

    row: int
    score: float
    probability: float
    # Number of items that remained.
    candidates: int
    arm: str | None
    # True: the apprentice's policy drew the same item.
    agreed: bool | None
    version: int  # of the model


def draw_places(
    loop: Loop,
    items: Items,
    context: Hashed,
    user: str | None,
    models: PublishedModels,
    allowed: Array,
    events: list[str],
    popular: Array | None = None,
) -> list[Drawn]:
    """Return an item for each event, without the previous ones; drawn items are removed from ``allowed``.

    With ``popular`` scores, for a loop that has learned nothing, the most popular remaining item is drawn, except for
    the policy's floor and ε.
    """
    settings, control = loop.view.settings, loop.view.settings.control
    memory = NO_MEMORY if models.memory is None else models.memory.words
    is_experiment = bool(control.share or control.hold) and not settings.apprentice
    if popular is None:
        key = personal_key(loop.id, user) if user is not None and settings.personal else NO_KEY
        rule, n_learned = loop.policy
        means, widths = loop.model.predict_items(items, context, memory, key, settings.crosses)
        boosts = items.boosts.used
        ranking = ranked(rule, means, widths, items.keys, allowed, len(events), boosts)
        learned = Draws(rule, n_learned, means + boosts, ranking, loop.view.version)
    else:
        learned = _by_popularity(loop, items, popular, allowed, len(events))
    drawn, count = list[Drawn](), int(allowed.sum())
    draws = event_draws(events, settings.draw_prefix(loop.view.name))
    for event, u in zip(events, draws, strict=True):
        arm = TREATMENT if is_experiment else None
        agreed = None
        if is_experiment and control.decides_for(loop.view.name, user or event):
            arm = HELD if control.hold else CONTROL
        if arm in (CONTROL, HELD) and control.baseline == "first":
            row, probability = first_of(items, allowed), 1.0
        elif arm in (CONTROL, HELD) and control.baseline == "uniform":
            row, probability = int(np.flatnonzero(allowed)[int(u * count)]), 1 / count
        else:
            row, probability = learned.draw(items, allowed, count, u)
        if settings.apprentice:
            first = first_of(items, allowed)
            row, probability, agreed = first, 1.0, first == row
        drawn.append(Drawn(row, float(learned.means[row]), probability, count, arm, agreed, learned.version))
        allowed[row] = False
        count -= 1
    return drawn


def _by_popularity(loop: Loop, items: Items, scores: Array, allowed: Array, n_places: int) -> Draws:
    rule = loop.policy[0].copy()
    if rule[CODE] != EPSILON_GREEDY:
        rule[CODE] = GREEDY
    boosts = items.boosts.used
    ranking = ranked(rule, scores, np.zeros(scores.size), items.keys, allowed, n_places, boosts)
    return Draws(rule, 0, scores + boosts, ranking, loop.view.version)


class Draws(NamedTuple):
    """The scores with boosts, the rule and the ranking by which a model and a policy draw items."""

    rule: Array
    n_learned: int
    means: Array
    ranking: tuple[Array, Array, float]  # as ``draw_one`` takes it
    version: int  # of the model

    def draw(self, items: Items, allowed: Array, count: int, u: float) -> tuple[int, float]:
        return draw_one(self.rule, self.n_learned, *self.ranking, items.keys, allowed, count, u, items.ids)


def first_of(items: Items, allowed: Array) -> int:
    """Return the item shown without a policy: the one with the highest boost, and of these the lowest id."""
    rows = np.flatnonzero(allowed)
    boosts = items.boosts.used[rows]
    return int(min(rows[boosts == boosts.max()].tolist(), key=lambda row: items.ids[row]))


def empty_context(preparer: Preparer) -> Hashed:
    [context] = preparer.hash_all([Named("context", None, b"{}")])
    assert isinstance(context, Hashed)
    return context


def warm_up_draws(loop: Loop, models: PublishedModels) -> None:
    """Compile the code for pages: draw from a catalogue of two items, with and without a user."""
    catalogue, preparer = CatalogueCopy(), Preparer()
    catalogue.actions |= {name: CatalogueAction(1, b'{"a": 1}') for name in ("a", "b")}
    items = Items(catalogue, preparer)
    items.take_some()
    draw_places(loop, items, empty_context(preparer), "u", models, np.ones(2, np.bool_), ["a~1", "a~2"])

"""New items and new users: how soon an item is shown, whether its rewards move it, and what a stranger gets."""

import asyncio
import shutil

import numpy as np
import pytest
from machine import Clock, running
from playing import logged, raw

from service.log.records import decode_rank
from service.plugins.recommend.recommender import Recommender, RecommendRequest
from service.rank.requests import Action

GENRES = ("drama", "comedy", "war", "noir")
SEEDS = (4, 5)  # usual ones: liked items end at a median rank of 3 of 61, others at 28 (16 seeds)
SOON = 30  # decisions within which an item with a feature that nobody knows is shown; on pages of ten, three pages


def films(n):
    return [Action(f"f{k}", raw({"genre": GENRES[k % 4], "price": k % 10})) for k in range(n)]


class Site:
    """A site with pages of ten; what a film earns depends on its genre and the hour."""

    def __init__(self, engine, seed, likes):
        self.engine, self._likes, self._seed = engine, likes, seed
        self._rng = np.random.default_rng(seed)
        self._recommender = Recommender(engine.context, engine.parts[0], lambda: engine.clock() / 1e6)
        self._n = 0

    async def page(self, n=10, user="", hour=None, **fields):
        """Ask for a page of a user, by default any of twenty at any hour."""
        self._n += 1
        hour = int(self._rng.integers(24)) if hour is None else hour
        user = f"u{self._rng.integers(20)}" if user == "" else user
        name = fields.pop("event_id", f"{self._seed}-{self._n}")
        request = RecommendRequest(n=n, user=user, event_id=name, context=raw({"hour": hour}), **fields)
        return (await self._recommender.recommend("default", request)).items, hour

    async def play(self, n=10):
        """Show a page and send its rewards; return what was shown."""
        items, hour = await self.page(n)
        for item in items:
            chance = 0.6 if self._likes(item.id, hour) else 0.1
            await self.engine.reward("default", item.event_id, float(self._rng.random() < chance))
        await self.engine.settle()
        return [item.id for item in items]


def likes_war(name, hour):
    return name[1:].isdigit() and int(name[1:]) % 4 == 2


def story(folder, tell, seed=0, likes=likes_war, n_films=60, **options):
    async def run():
        folder.mkdir(exist_ok=True)
        async with running(folder, clock=Clock(), **options) as engine:
            if not engine.context.loop("default").catalogue:
                await engine.put_actions("default", films(n_films))
            return await tell(Site(engine, seed, likes))

    return asyncio.run(run())


def fate(folder, seed, features, is_liked, n_after=40):
    """Return after how many decisions a new item is first shown, and its rank after some more pages."""

    async def first_and_rank(site):
        waited = 0
        for _ in range(30):
            await site.play()
        await site.engine.put_actions("default", [Action("new", raw(features))])
        while "new" not in await site.play():
            waited += 10
            assert waited < 20 * SOON, "it is not shown"
        for _ in range(n_after):
            await site.play()
        items, _ = await site.page(100, user=None, hour=12)
        ranking = [item.id for item in sorted(items, key=lambda item: -item.score)]
        return waited + 10, ranking.index("new")

    def likes(name, hour):
        return is_liked if name == "new" else likes_war(name, hour)

    return story(folder, first_and_rank, seed, likes)


def test_a_new_item_is_shown_within_30_decisions_and_its_rewards_move_its_rank(tmp_path):
    features = {"genre": "thriller", "price": 3}
    liked = [fate(tmp_path / f"liked{seed}", seed, features, True) for seed in SEEDS]
    other = [fate(tmp_path / f"other{seed}", seed, features, False) for seed in SEEDS]
    assert max(first for first, _ in [*liked, *other]) <= SOON
    assert np.mean([rank for _, rank in liked]) + 15 < np.mean([rank for _, rank in other])


def test_a_new_item_of_a_kind_that_earns_little_is_shown_within_30_decisions_with_a_boost(tmp_path):
    """By the model alone it may take a thousand: such items are known to earn little."""
    features = {"genre": "drama", "price": 3, "_boost": 0.3}
    fates = [fate(tmp_path / f"{seed}", seed, features, True, n_after=5) for seed in SEEDS]
    assert max(first for first, _ in fates) <= SOON


def test_a_new_user_is_served_from_the_context_and_the_shared_model(tmp_path):
    def likes(name, hour):
        return int(name[1:]) % 4 == (2 if hour < 12 else 3)  # war in the morning, noir in the evening

    async def tell(site):
        for _ in range(120):
            await site.play()
        shown = {}
        for hour in (6, 18):
            stranger, _ = await site.page(60, user="somebody new", hour=hour)
            nobody, _ = await site.page(60, user=None, hour=hour)
            scores = {item.id: item.score for item in nobody}
            assert {item.id: item.score for item in stranger} == pytest.approx(scores, abs=1e-9)
            pages = [await site.page(10, user="somebody new", hour=hour) for _ in range(10)]
            shown[hour] = [int(item.id[1:]) % 4 for items, _ in pages for item in items]
        assert np.mean([kind == 2 for kind in shown[6]]) > np.mean([kind == 2 for kind in shown[18]]) + 0.2
        assert np.mean([kind == 3 for kind in shown[18]]) > np.mean([kind == 3 for kind in shown[6]]) + 0.2

    story(tmp_path / "site", tell, likes=likes)


@pytest.mark.parametrize("model", ["residual-kalman", "adagrad"])
def test_probabilities_computed_anew_from_the_log_alone_are_those_that_are_stored(tmp_path, model):
    """A machine that has nothing but the log, of a catalogue larger than a shortlist, fills the same page."""
    there, again = tmp_path / "there", tmp_path / "again"

    async def first(site):
        for _ in range(30):
            await site.play()
        again.mkdir()
        for file in there.glob("store.db*"):
            if "models" not in file.name:
                shutil.copy(file, again)
        items, _ = await site.page(
            12, user="u3", hour=7, event_id="page", filter={"price": {"max": 7}}, exclude=["f2"], exclude_seen=True
        )
        return items

    shown = story(there, first, n_films=200, model=model)
    bodies = {entry.event: decode_rank(entry.body) for entry in logged(there) if entry.event and entry.kind == "rank"}
    stored = [bodies[item.event_id] for item in shown]
    page_request = stored[0].page.asked
    assert [body.probabilities for body in stored] == [[item.probability] for item in shown]
    assert len(page_request.seen) > 5
    assert stored[0].page.candidates > 100

    async def second(site):
        exclude = [*page_request.exclude, *page_request.seen]
        price = {"price": {"max": 7}}
        items, _ = await site.page(page_request.n, user="u3", hour=7, event_id="page", filter=price, exclude=exclude)
        return items

    recomputed = story(again, second, n_films=200, model=model)
    assert [(item.id, item.probability, item.score) for item in recomputed] == [
        (item.id, item.probability, item.score) for item in shown
    ]

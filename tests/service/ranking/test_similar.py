"""Items that are like another one: by features, by what is learned, and by popularity where there is neither."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import Clock, running
from playing import raw, refused_for

from service.plugins.recommend.earnings import best_rows
from service.plugins.recommend.feedback import Feedback, FeedbackEvent
from service.plugins.recommend.item_lists import Similarity
from service.plugins.recommend.recommender import Recommender
from service.rank.requests import Action

FILMS = {
    "alien": {"genre": ["horror", "space"], "maker": "scott", "year": 1979},
    "aliens": {"genre": ["horror", "space"], "maker": "cameron", "year": 1986},
    "gravity": {"genre": ["space"], "maker": "cuaron", "year": 2013},
    "heat": {"genre": ["crime"], "maker": "mann", "year": 1995},
    "thief": {"genre": ["crime"], "maker": "mann", "year": 1981},
    "amelie": {"genre": ["comedy"], "maker": "jeunet", "year": 2001},
}


def story(folder, tell, films=FILMS, **options):
    async def run():
        async with running(folder, clock=Clock(), **options) as engine:
            recommender = Recommender(engine.context, engine.parts[0])
            similarity = Similarity(engine.context, recommender)
            feedback = Feedback(engine.context)

            async def put(**changes):
                await engine.put_actions("default", [Action(name, raw(film)) for name, film in changes.items()])

            async def similar(item, n=10):
                similarity._comparisons.clear()  # else for some seconds
                recommender.earnings._cached.clear()
                listed = await similarity.similar("default", item, n)
                return [each.id for each in listed.items], listed

            async def rate(**rewards):
                events = [FeedbackEvent(action=name, reward=reward) for name, reward in rewards.items()]
                await feedback.store("default", events)
                await engine.settle()

            if films:
                await put(**films)
            await tell(engine, similar, put, rate)

    asyncio.run(run())


def test_items_with_rare_features_in_common_come_first(tmp_path):
    async def tell(engine, similar, put, rate):
        names, listed = await similar("alien", 3)
        assert (names[:2], listed.by, listed.id) == (["aliens", "gravity"], "features", "alien")
        scores = [item.score for item in listed.items]
        assert 1 > scores[0] > scores[1] > scores[2] >= 0
        assert (await similar("heat", 1))[0] == ["thief"]
        assert "alien" not in (await similar("alien"))[0]

    story(tmp_path, tell)


def test_hidden_and_expired_items_never_appear_and_a_hidden_one_can_be_asked_about(tmp_path):
    async def tell(engine, similar, put, rate):
        hidden, expired = {**FILMS["aliens"], "_available": False}, {**FILMS["gravity"], "_expires": "2001-01-01"}
        await put(aliens=hidden, gravity=expired)
        assert {*(await similar("alien"))[0]} == {"amelie", "heat", "thief"}
        assert (await similar("aliens"))[0][0] == "alien"
        await engine.put_actions("default", [], ["alien"])
        assert await refused_for(similar("alien")) == (404, "unknown_item", "item")

    story(tmp_path, tell)


@pytest.mark.parametrize("model", ["residual-kalman", "adagrad"])
def test_what_the_model_learned_tells_items_apart_that_have_as_much_in_common(tmp_path, model):
    """Two films share the genre with a third one, and one of them earns what that one earns."""
    films = {f"{kind}{k}": {"genre": "war", "kind": kind} for kind in ("good", "bad") for k in range(4)}

    async def tell(engine, similar, put, rate):
        _, before = await similar("one")
        assert before.by == "features"
        assert len({item.score for item in before.items}) == 1
        for _ in range(12):
            await rate(**{name: float(not name.startswith("bad")) for name in films}, one=1.0)
        names, after = await similar("one")
        assert after.by == "model"
        assert all(name.startswith("good") for name in names[:4])
        assert after.items[0].score > after.items[-1].score

    story(tmp_path, tell, films | {"one": {"genre": "war"}}, model=model)


def test_items_that_have_nothing_in_common_are_sorted_by_popularity(tmp_path):
    async def tell(engine, similar, put, rate):
        await put(a={}, b={}, c={})
        names, listed = await similar("a")
        assert (names, listed.by) == (["b", "c"], "popularity")
        await rate(b=0.0, c=1.0)
        names, listed = await similar("a")
        assert (names, listed.by) == (["c", "b"], "popularity")  # too little for the model to tell items apart

    story(tmp_path, tell, films={})


def test_an_unknown_item_is_refused_with_a_hint(tmp_path):
    async def tell(engine, similar, put, rate):
        with pytest.raises(
            Exception, match=r"'jaws' is not in the catalogue, which has alien, .* PUT /v1/actions adds"
        ):
            await similar("jaws")

    story(tmp_path, tell)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0]), st.booleans()), max_size=30))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_the_best_rows_are_those_of_a_sort_with_ties_by_id(rows):
    keys = np.array([[first, second] for first, second, _ in rows]).reshape(-1, 2)
    allowed = np.array([is_allowed for *_, is_allowed in rows], np.bool_)
    items = SimpleNamespace(ids=[f"i{97 * k % 31}" for k in range(len(rows))])
    expected = sorted(np.flatnonzero(allowed).tolist(), key=lambda row: (*(-keys[row]).tolist(), items.ids[row]))
    for n in (1, 3, 40):
        assert best_rows(items, allowed, n, keys[:, 0], keys[:, 1]) == expected[:n]

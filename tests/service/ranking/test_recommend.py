"""Items of the catalogue for a user: what is shown, what is stored of it, and what is learned."""

import asyncio
import json
import threading
from collections import Counter

import numpy as np
import pytest
from machine import Clock, running
from playing import Disk, gauges, logged, raw, rebuilt, refused
from scipy.stats import chisquare

from fedres.scoring.features import Hashed
from service.errors import ApiError
from service.log.records import ActionsBody, InlineAction, Record, decode_actions, decode_rank, encode
from service.plugins.recommend import earnings as earnings_module
from service.plugins.recommend import filters as filters_module
from service.plugins.recommend import items as items_module
from service.plugins.recommend import recommender as recommender_module
from service.plugins.recommend.filters import matching
from service.plugins.recommend.item_lists import popular
from service.plugins.recommend.items import Items
from service.plugins.recommend.recommender import Recommender, RecommendRequest
from service.rank.decide import decide
from service.rank.requests import Action, RankRequest
from service.settings import Control

GENRES = ("drama", "comedy", "war", "noir")


def film(k, **more):
    return Action(f"f{k}", raw({"genre": GENRES[k % 4], "price": k % 10, "tags": ["old", f"t{k % 3}"], **more}))


def films(n):
    return [film(k) for k in range(n)]


def page_request(**fields):
    return RecommendRequest(**{name: raw(value) if name == "context" else value for name, value in fields.items()})


def recommender(engine, clock=None):
    return Recommender(engine.context, engine.parts[0], *([] if clock is None else [lambda: clock.now / 1e6]))


def pages(folder):
    return [entry for entry in logged(folder) if entry.kind == "rank"]


async def play(engine, recommend, n, seed=0, liked="war", **fields):
    """Ask for pages; films of one genre are liked, and some events are deferred or go unrewarded."""
    rng = np.random.default_rng(seed)
    for k in range(n):
        request = page_request(
            n=4, user=f"u{rng.integers(5)}", event_id=f"{seed}-{k}", defer=bool(rng.random() < 0.2),
            context={"hour": int(rng.integers(24))}, **fields,
        )  # fmt: skip
        for item in (await recommend(request)).items:
            if rng.random() < 0.8:
                await engine.reward("default", item.event_id, float(int(item.id[1:]) % 4 == GENRES.index(liked)))
            if request.defer and rng.random() < 0.7:
                await engine.activate("default", item.event_id)
    await engine.settle()


def story(tmp_path, tell, n_films=40, boosted=None, **options):
    """Run an async function of an engine, and of ``recommend`` for the loop ``default``, over some films."""

    async def run():
        clock = Clock()
        async with running(tmp_path, clock=clock, **options) as engine:
            if n_films:
                await engine.put_actions("default", films(n_films))
            if boosted is not None:
                await engine.put_actions("default", [film(boosted, _boost=0.5)])
            made = recommender(engine, clock)
            engine.earnings, engine.made = made.earnings, made
            engine.popular = lambda *words: popular(made, "default", *words)
            engine.items = lambda: made.items("default")
            engine.passes = clock.pass_seconds

            async def recommend(request):
                return await made.recommend("default", request)

            await tell(engine, recommend)

    asyncio.run(run())


def test_each_place_is_a_decision_with_an_event_of_its_own_and_no_item_comes_twice(tmp_path):
    async def tell(engine, recommend):
        request = page_request(
            n=5, user="u", context={"hour": 9}, filter={"genre": "war"}, exclude=["f2"], event_id="p"
        )
        page = await recommend(request)
        assert page.candidates == 9
        assert [item.event_id for item in page.items] == [f"p~{k}" for k in range(1, 6)]
        assert len({item.id for item in page.items}) == 5
        assert all(int(item.id[1:]) % 4 == 2 and item.id != "f2" for item in page.items)
        bodies = [decode_rank(entry.body) for entry in pages(tmp_path)]
        assert [entry.event for entry in pages(tmp_path)] == [item.event_id for item in page.items]
        assert [body.actions[0].id for body in bodies] == [item.id for item in page.items]
        assert [body.page.candidates for body in bodies] == [9, 8, 7, 6, 5]
        assert [body.page.asked is None for body in bodies] == [False, True, True, True, True]
        first = bodies[0].page.asked
        assert (first.n, first.places, first.exclude, bytes(first.filter)) == (5, 5, ["f2"], b'{"genre":"war"}')
        assert first.catalogue == engine.view().catalogue_version

    story(tmp_path, tell)


def from_log(folder, page):
    """Return the candidates of a page's first place by what is in the log alone."""
    entries = logged(folder)
    asked_for = decode_rank(page.body).page.asked
    catalogue = {}
    for entry in entries:
        if entry.kind == "actions" and entry.position <= asked_for.catalogue:
            change = decode_actions(entry.body)
            catalogue |= {action.id: json.loads(bytes(action.features)) for action in change.put}
            for name in change.retire:
                catalogue.pop(name, None)
    conditions = json.loads(bytes(asked_for.filter))
    return [
        name
        for name, item in catalogue.items()
        if name not in {*asked_for.exclude, *asked_for.seen}
        and item.get("_available") is not False
        and all(item[key] == value for key, value in conditions.items())
    ]


@pytest.mark.parametrize("model", ["residual-kalman", "adagrad"])
def test_stored_probabilities_are_those_of_rank_calls_over_the_candidates_that_the_log_tells(tmp_path, model):
    """A page over few items is what rank calls would give that exclude the items before."""

    async def tell(engine, recommend):
        await play(engine, recommend, 25)
        await engine.put_actions("default", [film(41), film(3, _available=False)], ["f5"])
        loop = engine.context.loop("default")
        page = await recommend(page_request(n=6, user="u1", context={"hour": 3}, exclude=["f7"], event_id="p"))
        entries = [entry for entry in pages(tmp_path) if entry.event.startswith("p~")]
        candidates = from_log(tmp_path, entries[0])
        assert len(candidates) == page.candidates == 38
        taken = []
        for entry, item in zip(entries, page.items, strict=True):
            actions = [Action(name) for name in candidates]
            request = RankRequest(actions=actions, user="u1", context=raw({"hour": 3}), exclude=taken, event_id="x")
            [decision] = decide([request], loop, engine.context.models, engine.context.preparer)
            place = candidates.index(item.id)
            assert decode_rank(entry.body).probabilities == [item.probability]
            assert item.probability == pytest.approx(decision.probabilities[place], rel=1e-12)
            assert item.score == pytest.approx(decision.scores[place], rel=1e-12)
            taken = [*taken, item.id]

    story(tmp_path, tell, model=model)


def test_items_are_drawn_with_the_probabilities_that_are_told(tmp_path):
    async def tell(engine, recommend):
        await play(engine, recommend, 20)
        chance_of, taken, n = {}, Counter(), 1_000
        for k in range(n):
            page = await recommend(page_request(n=2, user="u1", context={"hour": 3}, event_id=f"x{k}"))
            pair = tuple(item.id for item in page.items)
            taken[pair] += 1
            chance_of[pair] = page.items[0].probability * page.items[1].probability
        rest = 1 - sum(chance_of.values())  # of pairs that were not drawn
        assert abs(rest) < 0.2
        common = [pair for pair, chance in chance_of.items() if n * chance > 5]
        few = n - sum(taken[pair] for pair in common)
        chances = [chance_of[pair] for pair in common]
        counts = [*(taken[pair] for pair in common), few]
        assert chisquare(counts, [n * chance for chance in [*chances, 1 - sum(chances)]]).pvalue > 1e-4

    story(tmp_path, tell, n_films=5, floor=0.2)


def test_a_repeat_is_answered_from_the_log_and_another_request_is_refused(tmp_path):
    async def tell(engine, recommend):
        request = page_request(n=3, user="u", context={"hour": 9}, filter={"price": {"max": 5}}, event_id="p")
        page = await recommend(request)
        for item in page.items:
            await engine.reward("default", item.event_id, 1.0)
        await engine.settle()
        await engine.put_actions("default", [], [page.items[0].id])
        assert await recommend(request) == page
        assert len(pages(tmp_path)) == 3
        for change in ({"n": 2}, {"n": 4}, {"user": "v"}, {"context": {"hour": 8}}, {"filter": {}}, {"exclude": ["f1"]},
                       {"defer": True}, {"exclude_seen": True}):  # fmt: skip
            fields = {"n": 3, "user": "u", "context": {"hour": 9}, "filter": {"price": {"max": 5}}, "event_id": "p"}
            assert await refused(recommend(page_request(**fields | change))) == (409, "event_exists"), change
        await engine.rank("default", RankRequest(actions=[Action("f1")], event_id="q~1"))
        assert await refused(recommend(page_request(n=1, event_id="q"))) == (409, "event_exists")

    story(tmp_path, tell)


def test_one_of_two_calls_at_once_with_the_same_id_decides_for_both(tmp_path):
    async def tell(engine, recommend):
        one, other = await asyncio.gather(*[recommend(page_request(n=4, user="u", event_id="p")) for _ in range(2)])
        assert one == other
        assert len(pages(tmp_path)) == 4

    story(tmp_path, tell)


def test_a_page_shows_what_there_is_and_refuses_what_leaves_nothing(tmp_path):
    async def tell(engine, recommend):
        page = await recommend(page_request(n=100, event_id="p"))
        assert len(page.items) == page.candidates == 12
        assert await recommend(page_request(n=100, event_id="p")) == page
        everything = [f"f{k}" for k in range(12)]
        assert await refused(recommend(page_request(exclude=everything))) == (422, "no_candidates")
        assert await refused(recommend(page_request(filter={"genre": "none such"}))) == (422, "no_candidates")
        await engine.put_actions("default", [], everything)
        assert await refused(recommend(page_request())) == (422, "no_candidates")

    story(tmp_path, tell, n_films=12)


def test_a_page_is_stored_as_a_whole_or_not_at_all(tmp_path):
    async def run():
        disk = Disk(tmp_path / "store.db")
        async with running(tmp_path, connect=disk.connect) as engine:
            await engine.put_actions("default", films(20))
            made = recommender(engine)
            disk.fill(True)
            page = page_request(n=20, context={"text": "x" * 900}, event_id="p")
            assert await refused(made.recommend("default", page)) == (503, "store_full")
            disk.fill(False)
            assert pages(tmp_path) == []
            assert len((await made.recommend("default", page_request(n=20, event_id="p"))).items) == 20

    asyncio.run(run())


@pytest.mark.parametrize("model", ["residual-kalman", "adagrad"])
def test_what_is_liked_comes_to_be_shown_and_the_log_gives_the_same_models(tmp_path, model):
    async def tell(engine, recommend):
        await play(engine, recommend, 150)
        page = [item for k in range(20) for item in (await recommend(page_request(n=5, user=f"u{k % 5}"))).items]
        assert np.mean([int(item.id[1:]) % 4 == 2 for item in page]) > 0.7
        assert engine.digest() == rebuilt(tmp_path)

    story(tmp_path, tell, n_films=200, model=model)


def test_an_erased_user_leaves_nothing_and_no_other_user_changes(tmp_path):
    async def tell(engine, recommend):
        await play(engine, recommend, 40)
        await engine.erase_user("default", "u1")
        assert not [entry for entry in logged(tmp_path) if entry.user == "u1"]
        assert {entry.user for entry in pages(tmp_path)} == {"u0", "u2", "u3", "u4"}
        assert engine.digest() == rebuilt(tmp_path)

    story(tmp_path, tell)


def test_an_export_says_how_many_candidates_there_were_and_evaluation_passes_such_events_over(tmp_path):
    from bandits.evaluation import read_events

    async def tell(engine, recommend):
        page = await recommend(page_request(n=2, user="u", event_id="p", filter={"genre": "war"}))
        await engine.reward("default", "p~1", 1.0)
        await engine.rank("default", RankRequest(actions=[Action("f1"), Action("f2")], event_id="r"))
        await engine.settle()
        first, second, other = await engine.events()
        assert (first["action"], first["probability"]) == (page.items[0].id, page.items[0].probability)
        assert (first["probabilities"], first["place"], first["candidates"]) == (None, 1, 10)
        assert (second["place"], second["candidates"], first["reward"]) == (2, 9, 1.0)
        assert first["actions"][0]["features"]["genre"] == "war"
        assert "candidates" not in other
        (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, (first, second, other))))
        assert [event.event_id for event in read_events(tmp_path / "log.jsonl")] == ["r"]

    story(tmp_path, tell)


def test_reports_count_recommended_items_and_value_no_other_policy_by_them(tmp_path):
    async def tell(engine, recommend):
        await play(engine, recommend, 40)
        report = json.loads(await engine.report("default"))
        assert report["funnel"]["ranked"] == 160
        assert sum(report["policy"]["events"]) > 80
        assert report["values"] == []
        assert sum(report["uniform"]["events"]) == 0
        assert (await gauges(engine))["ranks"] == 160

    story(tmp_path, tell)


def test_reports_tell_coverage_new_items_and_the_reward_of_each_place(tmp_path):
    async def tell(engine, recommend):
        assert json.loads(await engine.report("default"))["pages"] is None
        for k in range(30):
            await recommend(page_request(n=2, user=f"u{k}", event_id=f"p{k}", filter={"genre": "war"}))
            await engine.reward("default", f"p{k}~1", 1.0)
            await engine.reward("default", f"p{k}~2", 0.25)
        await engine.settle()
        shown = Counter(decode_rank(entry.body).actions[0].id for entry in pages(tmp_path))
        report = json.loads(await engine.report("default"))["pages"]
        assert (report["items"], report["shown"]) == (40, len(shown))
        assert report["new_share"] == sum(min(n, 10) for n in shown.values()) / 60
        assert report["places"] == [
            {"place": 1, "events": 30, "reward": 1.0},
            {"place": 2, "events": 30, "reward": 0.25},
        ]
        await engine.put_actions("default", [], [next(iter(shown))])
        report = json.loads(await engine.report("default"))["pages"]
        assert (report["items"], report["shown"]) == (39, len(shown) - 1)

    story(tmp_path, tell)


# Hidden, expired and boosted items; what a user was shown


def test_hidden_and_expired_items_are_never_shown_and_a_change_counts_at_once(tmp_path):
    async def tell(engine, recommend):
        now = 1_700_000_000
        await engine.put_actions(
            "default",
            [film(0, _available=False), film(1, _expires=now + 60), film(2, _expires="2001-01-01T00:00:00Z"),
             film(4, _expires="2100-01-01")],
        )  # fmt: skip
        unreadable = ActionsBody([InlineAction("f3", raw({"_expires": "not a time"}))])  # of a log that nobody checked
        engine.log.append([[Record("default", "actions", body=encode(unreadable))]])
        await engine.settle()
        ids = {item.id for item in (await recommend(page_request(n=100))).items}
        assert ids == {"f1", "f4", "f5", "f6", "f7"}
        engine.passes(61)
        assert {item.id for item in (await recommend(page_request(n=100))).items} == ids - {"f1"}
        await engine.put_actions("default", [film(0), film(1)], ["f6"])
        assert {item.id for item in (await recommend(page_request(n=100))).items} == {"f0", "f1", "f4", "f5", "f7"}

    story(tmp_path, tell, n_films=8)


def test_attributes_mean_the_same_without_an_underscore(tmp_path):
    async def tell(engine, recommend):
        await engine.put_actions("default", [film(0, available=False), film(1, expires="2001-01-01"), film(2, boost=3)])
        page = await recommend(page_request(n=100))
        assert {item.id: item.score for item in page.items} == {"f2": 3.0, "f3": 0.0}

    story(tmp_path, tell, n_films=4)


def test_a_boost_is_added_to_the_score(tmp_path):
    async def tell(engine, recommend):
        await play(engine, recommend, 30)
        before = {item.id: item.score for item in (await recommend(page_request(n=40, user="u1"))).items}
        await engine.put_actions("default", [film(8, _boost=5)])
        page = await recommend(page_request(n=40, user="u1"))
        assert {item.id: item.score for item in page.items}["f8"] == pytest.approx(before["f8"] + 5)
        assert page.items[0].id == "f8"

    story(tmp_path, tell, floor=0.0)


@pytest.mark.parametrize("reward_range", [(0.0, 1.0), (-1.0, 0.0)])
def test_an_item_with_a_large_negative_boost_is_never_the_best_whatever_the_rewards(tmp_path, reward_range):
    async def tell(engine, recommend):
        await engine.put_actions("default", [film(2, _boost=-1_000)])
        for learned in (False, True):
            for _ in range(20):
                page = await recommend(page_request(n=5))
                assert page.items[-1].id == "f2"  # after all others
                assert {item.id: item.score for item in page.items}["f2"] < -900
            if not learned:
                for _ in range(10):
                    for item in (await recommend(page_request(n=5))).items:
                        await engine.reward("default", item.event_id, reward_range[0])
                await engine.settle()

    options = {"policy": "greedy", "floor": 0.0, "reward_range": reward_range, "default_reward": None}
    story(tmp_path, tell, n_films=5, **options)


def test_what_a_user_was_shown_is_left_out_ever_or_for_some_time(tmp_path):
    async def tell(engine, recommend):
        shown = {item.id for item in (await recommend(page_request(n=4, user="u"))).items}
        engine.passes(100)
        later = {item.id for item in (await recommend(page_request(n=4, user="u", exclude_seen=True))).items}
        assert not shown & later
        page = await recommend(page_request(n=20, user="u", exclude_seen=50.0, event_id="p"))
        assert {item.id for item in page.items} == {f"f{k}" for k in range(20)} - later
        assert set(decode_rank(pages(tmp_path)[-16].body).page.asked.seen) == later
        assert (await recommend(page_request(n=20, user="v", exclude_seen=True))).candidates == 20
        assert await refused(recommend(page_request(exclude_seen=True))) == (422, "invalid")
        assert await refused(recommend(page_request(user="u", exclude_seen=True))) == (422, "no_candidates")

    story(tmp_path, tell, n_films=20)


# Filters


@pytest.mark.parametrize(
    ("conditions", "numbers"),
    [
        ({}, range(20)),
        ({"genre": "war"}, [2, 6, 10, 14, 18]),
        ({"genre": ["war", "noir"], "price": {"min": 3, "max": 6}}, [3, 6, 14, 15]),
        ({"price": {"max": 1}}, [0, 1, 10, 11]),
        ({"price": 4}, [4, 14]),
        ({"price": [4, 5.0]}, [4, 5, 14, 15]),
        ({"tags": "t1", "price": {"max": 4}}, [1, 4, 10, 13]),
        ({"sale": True}, [7]),
        ({"sale": [True, False]}, [7, 8]),
        ({"sale": {"exists": True}}, [7, 8]),
        ({"sale": {"exists": False}, "price": {"min": 7}}, [9, 17, 18, 19]),
        ({"made.by": "ann"}, [7]),
        ({"nowhere": {"exists": False}, "price": 4}, [4, 14]),
        ({"_owner": "x"}, [8]),
    ],
)
def test_a_filter_leaves_the_items_that_satisfy_it(tmp_path, conditions, numbers):
    async def tell(engine, recommend):
        await engine.put_actions("default", [film(7, sale=True, made={"by": "ann"}), film(8, sale=False, _owner="x")])
        ids = {item.id for item in (await recommend(page_request(n=100, filter=conditions))).items}
        assert ids == {f"f{k}" for k in numbers}

    story(tmp_path, tell, n_films=20)


@pytest.mark.parametrize(
    ("conditions", "code", "words"),
    [
        ({"genree": "war"}, "unknown_attribute", ["'genree'", "genre, price, tags"]),
        ({"genre": "horror"}, "no_candidates", ["none of 20", "comedy"]),
        ({"price": {"min": 50}}, "no_candidates", ["price is from 0 to 9"]),
        ({"genre": {"max": 3}}, "invalid", ["no numbers", "drama"]),
        ({"genre": 3}, "invalid", ["filter.genre", "drama"]),
        ({"price": "cheap"}, "invalid", ["filter.price", "'cheap'", "numbers from 0 to 9"]),
        ({"price": {"most": 3}}, "invalid", ["min, max, exists", "'most'"]),
        ({"price": {}}, "invalid", ["min, max, exists"]),
        ({"price": {"min": "1"}}, "invalid", ["filter.price.min", "number"]),
        ({"price": {"exists": 1}}, "invalid", ["true or false"]),
        ({"price": {"exists": True, "max": 1}}, "invalid", ["alone"]),
        ({"price": None}, "invalid", ["null"]),
        ({"price": [[1]]}, "invalid", ["array"]),
        ({"price": []}, "invalid", ["1 to 1000"]),
        ({f"a{k}": 1 for k in range(21)}, "invalid", ["at most 20"]),
    ],
)
def test_a_filter_that_cannot_be_answered_is_refused_with_what_there_is(tmp_path, conditions, code, words):
    async def tell(engine, recommend):
        with pytest.raises(ApiError) as raised:
            await recommend(page_request(filter=conditions))
        assert (raised.value.status, raised.value.code) == (422, code)
        assert raised.value.target.startswith("filter")
        assert all(word in raised.value.message for word in words), raised.value.message
        assert pages(tmp_path) == []

    story(tmp_path, tell, n_films=20)


# The catalogue as a ranker has it


def test_items_that_change_often_are_as_if_they_were_new(tmp_path, monkeypatch):
    """Rows move together once most are dead."""
    monkeypatch.setattr(items_module, "SPARE_ROWS", 5)

    async def tell(engine, recommend):
        rng = np.random.default_rng(0)
        await play(engine, recommend, 20)
        _, items = await engine.items()
        for _ in range(30):
            changed = [film(int(k), price=int(rng.integers(10))) for k in rng.choice(60, 7, replace=False)]
            await engine.put_actions("default", changed, [f"f{rng.integers(60)}"])
            await engine.items()
        assert len(items.ids) <= 2 * len(items.rows) + 5 < 260
        loop = engine.context.loop("default")
        anew = Items(loop.copied, engine.context.preparer)
        while anew.is_behind:
            anew.take_some()
        assert items.rows.keys() == anew.rows.keys() == loop.catalogue.keys()
        for conditions in ({"genre": "war"}, {"price": {"max": 4}}, {"tags": "t1"}):
            matches = [
                {each.ids[row] for row in np.flatnonzero(matching(each, conditions) & each.showable(0.0))}
                for each in (items, anew)
            ]
            assert matches[0] == matches[1] != set()
        assert all(items.features_of(row) == anew.features_of(anew.rows[name]) for name, row in items.rows.items())
        page, again = [await recommend(page_request(n=60, user="u1", context={"hour": 3})) for _ in range(2)]
        assert {item.id: item.score for item in page.items} == {item.id: item.score for item in again.items}

    story(tmp_path, tell)


def test_a_large_catalogue_is_taken_in_between_the_turns_of_others(tmp_path):
    async def tell(engine, recommend):
        turns = []

        async def others():
            while True:
                turns.append(1)
                await asyncio.sleep(0)

        for first in range(0, 3_000, 500):
            await engine.put_actions("default", [film(k) for k in range(first, first + 500)])
        beside = asyncio.ensure_future(others())
        page = await recommend(page_request(n=3))
        beside.cancel()
        assert page.candidates == 3_000
        assert len(turns) >= 3_000 / items_module.STEP

    story(tmp_path, tell, n_films=0)


def test_items_are_added_by_the_bytes_of_their_features(tmp_path):
    async def tell(engine, recommend):
        large = [Action(f"large-{k}", raw({f"feature-{j}": j for j in range(200)})) for k in range(60)]
        await engine.put_actions("default", large)
        items = Items(engine.context.loop("default").copied, engine.context.preparer)
        steps = 0
        while items.is_behind:
            before = len(items.ids)
            items.take_some()
            steps += 1
            assert sum(len(each) for each in items._features[before:]) <= items_module.STEP_BYTES
        assert len(items.ids) == 60
        assert steps >= 60 * len(large[0].features) / items_module.STEP_BYTES

    story(tmp_path, tell, n_films=0)


def test_columns_are_made_only_of_the_attributes_that_filters_name(tmp_path):
    async def tell(engine, recommend):
        await recommend(page_request())
        _, items = await engine.items()
        assert items.columns == {}
        assert (await recommend(page_request(n=40, filter={"genre": "war"}))).candidates == 10
        assert {*items.columns} == {"genre"}
        await engine.put_actions("default", [film(2, genre="noir"), film(40, genre="war"), film(41, genre="war")])
        assert (await recommend(page_request(n=40, filter={"genre": "war", "price": {"max": 9}}))).candidates == 11
        assert {*items.columns} == {"genre", "price"}
        assert {column.n_rows for column in items.columns.values()} == {items.n_rows}

    story(tmp_path, tell)


def test_filters_can_name_the_first_attributes_of_a_catalogue(tmp_path, monkeypatch):
    monkeypatch.setattr(items_module, "MOST_NAMES", 20)
    monkeypatch.setattr(filters_module, "MOST_NAMES", 20)

    async def tell(engine, recommend):
        for k in range(10):
            more = {f"only-{k}-{j}": j for j in range(10)}
            await engine.put_actions("default", [film(100 + k, **more)])
        _, items = await engine.items()
        assert len(items.names) == 20
        assert (await recommend(page_request(n=40, filter={"genre": "war"}))).candidates > 9
        with pytest.raises(ApiError, match="filters can name the first 20 alone"):
            await recommend(page_request(filter={"only-9-9": 9}))

    story(tmp_path, tell)


def test_features_that_come_twice_are_put_side_by_side():
    hashes = np.array([5, 7, 5, 9, 7, 5], np.uint32)
    row = Hashed(6, hashes.tobytes(), np.arange(6, dtype=np.float32).tobytes(), hashes.tobytes())
    ordered = items_module._side_by_side(row)
    assert np.frombuffer(ordered.hashes, np.uint32).tolist() == [5, 5, 5, 7, 7, 9]
    assert np.frombuffer(ordered.values, np.float32).tolist() == [0, 2, 5, 1, 4, 3]


def test_pages_of_a_large_catalogue_are_drawn_on_a_thread_and_are_the_same(tmp_path, monkeypatch):
    async def tell(engine, recommend):
        await play(engine, recommend, 20)
        request = {"n": 4, "user": "u1", "context": {"hour": 3}, "filter": {"genre": ["war", "noir"]}}
        here = await recommend(page_request(**request, event_id="p"))
        listed = await engine.popular(5, 1e6)
        drawing = []

        def noted(*arguments):
            drawing.append(threading.current_thread())
            return fill(*arguments)

        fill = recommender_module._fill
        monkeypatch.setattr(recommender_module, "_fill", noted)
        monkeypatch.setattr(recommender_module, "FEW_ITEMS", 0)
        there = await recommend(page_request(**request, event_id="q"))
        assert len(drawing) == 1
        assert drawing != [threading.main_thread()]
        assert there.candidates == here.candidates
        scores = {item.id: item.score for page in (here, there) for item in page.items}
        assert all(scores[item.id] == item.score for page in (here, there) for item in page.items)
        assert await engine.popular(5, 1e6) == listed
        assert await recommend(page_request(**request, event_id="q")) == there
        await engine.reward("default", "q~1", 1.0)
        await engine.settle()
        assert engine.digest() == rebuilt(tmp_path)

    story(tmp_path, tell)


def test_others_are_served_while_a_page_is_drawn_and_its_items_do_not_change(tmp_path, monkeypatch):
    begun, released, rows = threading.Event(), threading.Event(), []
    monkeypatch.setattr(recommender_module, "FEW_ITEMS", 0)
    fill = recommender_module._fill

    def held(loop, items, *arguments):
        begun.set()
        released.wait()
        rows.append(items.n_rows)
        return fill(loop, items, *arguments)

    async def tell(engine, recommend):
        await engine.create_loop("other")
        monkeypatch.setattr(recommender_module, "_fill", held)
        page = asyncio.ensure_future(recommend(page_request(n=3)))
        try:
            while not begun.is_set():
                await asyncio.sleep(0)
            for _ in range(5):
                await engine.rank("other", RankRequest(actions=[Action("a")]))
            await engine.put_actions("default", [film(50)])
            behind = asyncio.ensure_future(recommend(page_request(n=3)))
            await asyncio.sleep(0)
            assert not page.done()
        finally:
            released.set()
        assert (await page).candidates == 40
        assert (await behind).candidates == 41
        assert rows == [40, 41]

    story(tmp_path, tell)


def test_items_and_lists_of_deleted_loops_are_dropped(tmp_path, monkeypatch):
    monkeypatch.setattr(recommender_module, "FORGET_SECONDS", 0.0)

    async def tell(engine, recommend):
        made = engine.made
        await engine.create_loop("other")
        await engine.put_actions("other", films(5))
        await made.recommend("other", page_request())
        await made.earnings.scores("other")
        assert {*made._items} == {"other"}
        await engine.delete_loop("other")
        await recommend(page_request())
        assert {*made._items} == {"default"}
        assert {name for name, _ in made.earnings._cached} == {"default"}
        assert {*engine.context.models._loops} == {"default"}

    story(tmp_path, tell)


# Popular items


def test_lists_of_popular_items_are_made_for_a_few_windows(tmp_path):
    async def tell(engine, recommend):
        calls = []
        call = engine.context.reports.call

        async def noted(name, *arguments, **options):
            calls.append(arguments[-1])
            return await call(name, *arguments, **options)

        engine.context.reports.call = noted
        await asyncio.gather(*[engine.popular(3, 100_000.0 + k) for k in range(20)])
        assert calls == [7 * 86_400.0]  # one call for all
        for seconds in (1.0, 59.0, 60.0, 3_601.0, 365 * 86_400.0):
            await engine.popular(3, seconds)
        assert calls[1:] == [60.0, 21_600.0, 365 * 86_400.0]
        assert len(engine.earnings._cached) == earnings_module.WINDOWS_OF_A_LOOP

    story(tmp_path, tell)


def test_a_loop_has_one_report_of_popular_items_at_a_time(tmp_path):
    async def tell(engine, recommend):
        await engine.create_loop("other")
        running, most, released = Counter(), Counter(), asyncio.Event()
        call = engine.context.reports.call

        async def held(name, *arguments, **options):
            running[name] += 1
            most[name] = max(most[name], running[name])
            if name == "default":
                await released.wait()
            running[name] -= 1
            return await call(name, *arguments, **options)

        engine.context.reports.call = held
        lists = [asyncio.ensure_future(engine.popular(3, seconds)) for seconds in (1.0, 1e4, 1e5, 1e6)]
        await engine.earnings.scores("other")
        assert not any(each.done() for each in lists)
        released.set()
        await asyncio.gather(*lists)
        assert most == {"default": 1, "other": 1}

    story(tmp_path, tell)


def test_a_cold_page_takes_the_last_list_instead_of_waiting_for_a_new_one(tmp_path, monkeypatch):
    async def tell(engine, recommend):
        await engine.earnings.scores("default")
        [key] = engine.earnings._cached
        engine.earnings._cached[key] = engine.earnings._cached[key]._replace(until=0.0)
        released = asyncio.Event()
        call = engine.context.reports.call

        async def held(*arguments, **options):
            await released.wait()
            return await call(*arguments, **options)

        engine.context.reports.call = held
        assert (await recommend(page_request(n=3))).candidates == 40
        monkeypatch.setattr(earnings_module, "PATIENCE_SECONDS", 0.0)
        engine.earnings._cached.clear()
        assert (await recommend(page_request(n=3))).candidates == 40  # without any list
        released.set()
        await engine.earnings.scores("default")

    story(tmp_path, tell)


def test_a_list_of_popular_items_that_cannot_be_read_fails_and_a_page_does_not(tmp_path):
    async def tell(engine, recommend):
        async def broken(*arguments, **options):
            raise ApiError(503, "report_timeout", "planted")

        engine.context.reports.call = broken
        assert await refused(engine.popular(3, 60.0)) == (503, "report_timeout")
        assert (await recommend(page_request(n=3))).candidates == 40

    story(tmp_path, tell)


def test_lists_of_popular_items_are_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(earnings_module, "MOST_BYTES", 1)

    async def tell(engine, recommend):
        await engine.create_loop("other")
        await engine.earnings.scores("default")
        await engine.earnings.scores("other")
        assert [name for name, _ in engine.earnings._cached] == ["other"]

    story(tmp_path, tell)


def test_popular_items_are_those_that_earned_most_with_a_prior_within_a_window(tmp_path):
    async def tell(engine, recommend):
        popular = engine.popular
        first = await popular(3, 1e6)
        assert [(item.id, item.events) for item in first.items] == [("f4", 0), ("f0", 0), ("f1", 0)]  # f4 has a boost
        rewards = {"f2": [1.0] * 8, "f3": [1.0], "f5": [0.0] * 6}
        for name, values in rewards.items():
            for k, value in enumerate(values):
                request = RankRequest(actions=[Action(name)], event_id=f"{name}-{k}")
                await engine.reward("default", (await engine.rank("default", request)).event_id, value)
        await engine.settle()
        engine.earnings._cached.clear()
        page = await popular(100, 1e6)
        assert [item.id for item in page.items][:2] == ["f2", "f3"]
        assert page.items[-1].id == "f5"
        assert page.items[0].score == pytest.approx((8 + 10 * 9 / 15) / 18)
        assert page.items[1].score == pytest.approx((1 + 10 * 9 / 15) / 11)
        assert page.items[2].score == pytest.approx(9 / 15)  # of those that were not shown
        assert (page.events, len(page.items)) == (15, 10)
        await engine.put_actions("default", [film(2, _available=False)])
        assert [item.id for item in (await popular(1, 1e6)).items] == ["f3"]
        engine.passes(3_600)
        await recommend(page_request())
        await engine.settle()
        assert (await popular(1, 60.0)).events == 0

    story(tmp_path, tell, n_films=10, boosted=4)


@pytest.mark.parametrize(
    ("policy", "floor"), [({"floor": 0.2}, 0.2), ({"policy": "epsilon-greedy", "epsilon": 0.3}, 0.3)]
)
def test_a_loop_that_has_learned_nothing_shows_popular_items_but_for_its_floor_with_exact_probabilities(
    tmp_path, policy, floor
):
    """The rewards of a control group that is not learned from say which items are popular."""
    control = Control(share=0.5, baseline="uniform", learn=False)
    controls, treated = (
        [f"u{k}" for k in range(100) if control.has("default", f"u{k}") is group] for group in (True, False)
    )

    async def tell(engine, recommend):
        first = await recommend(page_request(n=2, user=treated[0], event_id="first"))
        assert [item.probability for item in first.items] == pytest.approx([1 / 8, 1 / 7])  # nothing is popular yet
        for k, user in enumerate(controls[:40]):
            for item in (await recommend(page_request(n=3, user=user, event_id=f"c{k}"))).items:
                await engine.reward("default", item.event_id, {"f2": 1.0, "f5": 0.8, "f1": 0.3}.get(item.id, 0.3))
        await engine.settle()
        engine.earnings._cached.clear()
        assert engine.context.loop("default").n_learned == 0
        ranking = [item.id for item in (await engine.popular(8, 1e6)).items]
        taken, n = Counter(), 300
        for k in range(n):
            page = await recommend(page_request(n=3, user=treated[k % 5], event_id=f"t{k}", exclude=["f7"]))
            left = [name for name in ranking if name != "f7"]
            for item in page.items:
                best = (1 - floor) * (item.id == left[0])
                assert item.probability == pytest.approx(best + floor / len(left), rel=1e-12)
                left.remove(item.id)
            taken[page.items[0].id] += 1
        assert chisquare(
            [taken[name] for name in ranking if name != "f7"], [n * (1 - floor + floor / 7), *[n * floor / 7] * 6]
        ).pvalue > 1e-4  # fmt: skip
        bodies = {entry.event: decode_rank(entry.body) for entry in pages(tmp_path)}
        assert bodies["t0~1"].page.asked.popular
        assert not bodies["first~1"].page.asked.popular
        assert await recommend(page_request(n=3, user=treated[0], event_id="t0", exclude=["f7"]))
        await engine.reward("default", "t0~1", 1.0)
        await engine.settle()
        after = await recommend(page_request(n=1, user=treated[0], event_id="after"))
        assert after.items[0].probability == pytest.approx(1 / 8)  # by the model, which has learned one reward

    story(tmp_path, tell, n_films=8, control=control, **policy)


# Experiments


@pytest.mark.parametrize("baseline", ["first", "uniform"])
def test_a_control_group_sees_what_its_baseline_shows(tmp_path, baseline):
    async def tell(engine, recommend):
        await play(engine, recommend, 30)
        await engine.put_actions("default", [film(9, _boost=0.01)])
        await engine.patch_settings("default", {"control": {"share": 0.5, "baseline": baseline}})
        arms = {}
        for k in range(30):
            page = await recommend(page_request(n=3, user=f"v{k}"))
            [arm] = {item.arm for item in page.items}
            arms.setdefault(arm, []).append(page)
        assert arms.keys() == {"control", "treatment"}
        for page in arms["control"]:
            if baseline == "first":
                assert [(item.id, item.probability) for item in page.items] == [("f9", 1), ("f0", 1), ("f1", 1)]
            else:
                assert [item.probability for item in page.items] == pytest.approx([1 / 40, 1 / 39, 1 / 38])
        assert all(decode_rank(entry.body).arm in arms for entry in pages(tmp_path)[-90:])

    story(tmp_path, tell)


def test_an_apprentice_shows_the_order_of_boosts_and_ids_and_counts_where_it_agrees(tmp_path):
    async def tell(engine, recommend):
        await engine.put_actions("default", [film(5, _boost=1)])
        page = await recommend(page_request(n=3, user="u"))
        assert [(item.id, item.probability) for item in page.items] == [("f5", 1.0), ("f0", 1.0), ("f1", 1.0)]
        await engine.settle()
        assert engine.view().statistics.apprentice == 3

    story(tmp_path, tell, apprentice=True)


# What a log of pages says of other policies


def test_ips_of_other_policies_is_within_three_standard_errors_of_their_value(tmp_path):
    """Values of pages by the number of liked films on them: of a uniform policy, and of one that likes prices."""
    n_films, n_places, pays = 12, 2, np.random.default_rng(3).random(12)

    def by_price(left):
        weight = np.array([1.0 + int(name[1:]) % 10 for name in left])
        return weight / weight.sum()

    policies = {"uniform": lambda left: np.full(len(left), 1 / len(left)), "price": by_price}

    def value(policy, left, n):
        """Return the exact value of a page of ``n`` places."""
        if n == 0:
            return 0.0
        chances = policy(left)
        return sum(
            p * (pays[int(name[1:])] + value(policy, [other for other in left if other != name], n - 1))
            for name, p in zip(left, chances, strict=True)
        )

    async def tell(engine, recommend):
        rng, estimates = np.random.default_rng(0), {name: [] for name in policies}
        for k in range(800):
            page = await recommend(page_request(n=n_places, event_id=f"e{k}"))
            left, rewards = [f"f{each}" for each in range(n_films)], []
            ratios = dict.fromkeys(policies, 1.0)
            for item in page.items:
                rewards.append(float(rng.random() < pays[int(item.id[1:])]))
                for name, policy in policies.items():
                    ratios[name] *= policy(left)[left.index(item.id)] / item.probability
                left.remove(item.id)
                if k % 3 == 0:
                    await engine.reward("default", item.event_id, rewards[-1])
            for name, ratio in ratios.items():
                estimates[name].append(ratio * sum(rewards))
            if k % 100 == 0:
                await engine.settle()
        for name, policy in policies.items():
            values = np.array(estimates[name])
            exact = value(policy, [f"f{each}" for each in range(n_films)], n_places)
            error = values.std() / np.sqrt(values.size)
            assert abs(values.mean() - exact) < 3 * error < 0.6 * exact, name

    story(tmp_path, tell, n_films=n_films, policy="epsilon-greedy", epsilon=0.5)

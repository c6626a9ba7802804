"""Several slots of a page in one call: what they show, what is stored of them, and what is learned."""

import asyncio
import json
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import Clock, running
from playing import Disk, gauges, logged, raw, rebuilt, refused
from scipy.stats import chisquare

from service.errors import ApiError
from service.rank import ranker
from service.rank.decide import decide
from service.rank.requests import Action, RankRequest
from service.rank.slots import Slot, SlotsRequest, check_slots, fill

DAY = 86_400_000_000


def page(*slots, n_actions=4, context=None, **more):
    """Return a request for slots, each a name or a ``Slot``."""
    actions = [Action(f"a{k}", raw({"topic": f"t{k}"})) for k in range(n_actions)]
    made = [Slot(id=slot) if isinstance(slot, str) else slot for slot in slots]
    return SlotsRequest(actions=actions, slots=made, context=raw(context), **more)


def ranks(folder):
    return [entry for entry in logged(folder) if entry.kind == "rank"]


async def play(engine, n, seed=0):
    """Fill two slots ``n`` times; a2 pays at the top, a0 at the side, and some events are deferred or go unrewarded."""
    rng, pays = np.random.default_rng(seed), {"top": "a2", "side": "a0"}
    for k in range(n):
        request = page(
            "top", "side", user=f"u{rng.integers(5)}", event_id=f"{seed}-{k}", defer=bool(rng.random() < 0.2)
        )
        for slot in (await engine.rank_slots("default", request)).slots:
            if rng.random() < 0.8:
                await engine.reward("default", slot.event_id, float(slot.action_id == pays[slot.id]))
            if request.defer and rng.random() < 0.7:
                await engine.activate("default", slot.event_id)
    await engine.settle()


def test_all_slots_are_filled_by_one_model_also_if_another_is_published_between_two_of_them(tmp_path, monkeypatch):
    async def story():
        async with running(tmp_path) as engine:
            before = await engine.rank_slots("default", page("top", event_id="first"))
            await engine.reward("default", before.slots[0].event_id, 1.0)

            def decide_and_publish(*args, **options):
                decisions = decide(*args, **options)
                engine.digest()  # lets the learner take all that is logged
                return decisions

            monkeypatch.setattr(ranker, "decide", decide_and_publish)
            answer = await engine.rank_slots("default", page("top", "side", "foot", event_id="v"))
            bodies = [json.loads(entry.body) for entry in ranks(tmp_path) if entry.event.startswith("v~")]
            assert engine.view().version > answer.model_version
            assert [one["version"] for one in bodies] == [answer.model_version] * 3
            shown = [one["actions"][one["action"]]["id"] for one in bodies]
            assert shown == [slot.action_id for slot in answer.slots]
            assert len(set(shown)) == 3

    asyncio.run(story())


def test_each_slot_is_a_decision_with_an_event_of_its_own(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            side = Slot(id="side", features=raw({"height": 2}), exclude=["a3"])
            answer = await engine.rank_slots("default", page("top", side, context={"hour": 9}, user="u", event_id="v"))
            top, beside = map(json.loads, (entry.body for entry in ranks(tmp_path)))
            assert [entry.event for entry in ranks(tmp_path)] == [slot.event_id for slot in answer.slots]
            assert [slot.event_id for slot in answer.slots] == ["v~1", "v~2"]
            assert top["context"] == {"hour": 9, "slot": {"id": "top", "_of": 2}}
            assert beside["context"] == {"hour": 9, "slot": {"id": "side", "_of": 2, "height": 2}}
            assert (top["exclude"], beside["exclude"]) == ([], ["a3", answer.slots[0].action_id])
            assert answer.model_version == top["version"] == beside["version"]

    asyncio.run(story())


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A decision on one request, made with what a loop has learned."""

    async def story():
        async with running(tmp_path_factory.mktemp("slots")) as engine:
            await engine.put_settings("default", {"epsilon": 0.3})
            await play(engine, 60)
            loop, models, preparer = engine.context.loop("default"), engine.context.models, engine.context.preparer
            return lambda one: decide([one], loop, models, preparer)[0].result()

    return asyncio.run(story())


def complaint(request):
    try:
        check_slots(request)
    except ApiError as error:
        return error
    return None


SLOTS = st.lists(st.lists(st.sampled_from(["a0", "a1", "a2", "a3", "other"]), max_size=4), min_size=1, max_size=5)


@settings(max_examples=300)
@given(SLOTS, st.integers(1, 4), st.integers(0, 10**6))
def test_what_is_not_refused_is_filled_whatever_is_drawn(learned, excluded, n_actions, seed):
    slots = [Slot(id=str(k), exclude=exclude) for k, exclude in enumerate(excluded)]
    request = page(*slots, n_actions=n_actions)
    allowed = [{f"a{k}" for k in range(n_actions)}.difference(exclude) for exclude in excluded]
    error = complaint(request)
    ways = permutations([f"a{k}" for k in range(n_actions)], len(slots))
    can_be_filled = any(all(map(set.__contains__, allowed, way)) for way in ways)
    assert can_be_filled == (error is None)
    if error is not None:
        place = int(error.target[len("slots[") : -1])
        assert f"slot '{place}' must be left an action" in error.message
        return
    filled = fill(request, str(seed), learned).slots
    shown = [slot.action_id for slot in filled]
    assert len(set(shown)) == len(shown) == len(slots)
    assert all(action in own for action, own in zip(shown, allowed, strict=True))


def test_actions_are_drawn_with_the_conditional_probabilities_that_are_told(learned):
    async def calls(n):
        return [fill(page("top", "side"), f"call-{k}", learned).slots for k in range(n)]

    taken, chance_of, n = Counter(), {}, 3_000
    for filled in asyncio.run(calls(n)):
        pair = tuple(slot.action_id for slot in filled)
        taken[pair] += 1
        first = {ranked.id: ranked.probability for ranked in filled[0].ranking}
        second = {ranked.id: ranked.probability for ranked in filled[1].ranking}
        assert (filled[0].probability, filled[1].probability) == (first[pair[0]], second[pair[1]])
        assert second[pair[0]] == 0
        chance_of |= {(pair[0], other): first[pair[0]] * chance for other, chance in second.items() if chance}
    assert len(chance_of) == 12
    assert max(chance_of.values()) > 2 / 12  # something was learned
    assert chisquare([taken[pair] for pair in chance_of], [n * chance for chance in chance_of.values()]).pvalue > 1e-5


def test_the_same_call_is_answered_the_same_and_another_of_its_id_is_refused(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            first = await engine.rank_slots("default", page("top", "side", user="u", event_id="v"))
            await play(engine, 30)
            assert await engine.rank_slots("default", page("top", "side", user="u", event_id="v")) == first
            n_stored = len(logged(tmp_path))
            for other in (
                page("top", user="u", event_id="v"),
                page("top", "side", "foot", user="u", event_id="v"),
                page("foot", user="u", event_id="v"),
                page("top", Slot(id="side", exclude=["a9"]), user="u", event_id="v"),
                page("top", Slot(id="side", features=raw({"x": 1})), user="u", event_id="v"),
                page("top", "side", user="w", event_id="v"),
                page("top", "side", user="u", event_id="v", defer=True),
                page("top", "side", user="u", event_id="v", n_actions=5),
            ):
                assert await refused(engine.rank_slots("default", other)) == (409, "event_exists")
            assert len(logged(tmp_path)) == n_stored

    asyncio.run(story())


def test_calls_of_one_id_at_the_same_moment_store_one_of_them(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            requests = [page(*["top", "side", "foot"][: 1 + k % 3], event_id="v") for k in range(30)]
            calls = [engine.rank_slots("default", one) for one in requests]
            answers = await asyncio.gather(*calls, return_exceptions=True)
            first = [answer for answer in answers if not isinstance(answer, ApiError)]
            assert len(first) == 10
            assert all(answer == first[0] for answer in first)
            assert {error.code for error in answers if isinstance(error, ApiError)} == {"event_exists"}
            assert len(ranks(tmp_path)) == len(first[0].slots)

    asyncio.run(story())


def test_an_event_that_has_the_id_of_a_slot_is_never_taken_for_it(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            plain = RankRequest(actions=[Action("a0", raw({})), Action("a1", raw({}))], event_id="v~2")
            await engine.rank("default", plain)
            assert await refused(engine.rank_slots("default", page("top", "side", event_id="v"))) == (
                409,
                "event_exists",
            )
            assert [entry.event for entry in ranks(tmp_path)] == ["v~2"]
            await engine.rank_slots("default", page("top", "side", event_id="v~2"))
            assert [entry.event for entry in ranks(tmp_path)] == ["v~2", "v~2~1", "v~2~2"]

    asyncio.run(story())


def test_a_rank_call_that_takes_the_id_of_a_slot_at_the_same_moment_is_refused_or_refuses_the_page(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for k in range(20):
                plain = RankRequest(actions=[Action("a0", raw({})), Action("a1", raw({}))], event_id=f"{k}~2")
                calls = (
                    engine.rank_slots("default", page("top", "side", event_id=str(k))),
                    engine.rank("default", plain),
                )
                answers = await asyncio.gather(*calls, return_exceptions=True)
                assert [error.status for error in answers if isinstance(error, ApiError)] == [409]

    asyncio.run(story())


def test_the_model_is_the_same_live_rebuilt_and_after_restarts(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await play(engine, 60)
            clock.now += DAY
            await engine.settle()
            await play(engine, 30, seed=1)
            live, sums = engine.digest("default"), engine.view("default").statistics
        assert sums.ranks == 180
        assert live == rebuilt(tmp_path)
        for remove in (False, True):
            if remove:
                (tmp_path / "store.db-models").unlink()
            async with running(tmp_path, clock=clock) as engine:
                assert (engine.digest("default"), engine.view("default").statistics) == (live, sums)

    asyncio.run(story())


def test_a_slot_that_nobody_looks_at_is_expected_to_earn_less(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for k in range(40):
                for slot in (await engine.rank_slots("default", page("top", "side", event_id=f"e{k}"))).slots:
                    await engine.reward("default", slot.event_id, float(slot.id == "top"))
            await engine.settle()
            top, side = (await engine.rank_slots("default", page("top", "side"))).slots
            assert min(ranked.score for ranked in top.ranking) > max(ranked.score for ranked in side.ranking)

    asyncio.run(story())


def test_an_apprentice_shows_the_first_action_that_is_left_in_each_slot(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"apprentice": True})
            for _ in range(10):
                answer = await engine.rank_slots("default", page("top", Slot(id="side", exclude=["a1"]), "foot"))
                assert [slot.action_id for slot in answer.slots] == ["a0", "a2", "a1"]
                assert [slot.probability for slot in answer.slots] == [1.0] * 3
            await engine.settle()
            assert (await gauges(engine))["apprentice_events"] == 30

    asyncio.run(story())


def test_a_store_that_is_full_holds_no_part_of_a_call(tmp_path):
    async def story():
        disk = Disk(tmp_path / "store.db")
        async with running(tmp_path, connect=disk.connect) as engine:
            disk.fill(True)
            big = page("top", "side", "foot", context={"list": [1.5] * 900}, event_id="big")
            assert await refused(engine.rank_slots("default", big)) == (503, "store_full")
            assert ranks(tmp_path) == []
            disk.fill(False)
            assert len((await engine.rank_slots("default", big)).slots) == len(ranks(tmp_path)) == 3

    asyncio.run(story())


def test_an_erased_user_leaves_no_slot_behind(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            request = page("top", "side", user="somebody", event_id="private")
            for slot in (await engine.rank_slots("default", request)).slots:
                await engine.reward("default", slot.event_id, 1.0)
            await engine.erase_user("default", "somebody")
            assert [entry.kind for entry in logged(tmp_path)] == ["loop", "base", "erased"]
            assert all(b"private" not in file.read_bytes() for file in tmp_path.iterdir())

    asyncio.run(story())


@pytest.mark.parametrize(
    ("page_request", "target"),
    [
        (page(), "slots"),
        (page("top", "top"), "slots"),
        (page("top", "x" * 201), "slots[1].id"),
        (page("top", ""), "slots[1].id"),
        (page("top", event_id="v" * 191), "event_id"),
        (page("top", user=""), "user"),
        (page("top", n_actions=0), "actions"),
        (page("top", "side", n_actions=1), "slots[1]"),
        (page("top", context=[1]), "context"),
        (page("top", context={"slot": 1}), "context"),
        (page(Slot(id="top", features=raw({"id": 1}))), "context"),
        (page("top", Slot(id="side", features=raw("wide"))), "slots[1].features"),
    ],
)
def test_what_makes_no_sense_is_refused_and_not_stored(tmp_path, page_request, target):
    async def story():
        async with running(tmp_path) as engine:
            with pytest.raises(ApiError) as raised:
                await engine.rank_slots("default", page_request)
            assert (raised.value.status, raised.value.target) == (422, target)
            assert ranks(tmp_path) == []

    asyncio.run(story())


def test_a_baseline_is_what_an_apprentice_shows(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"apprentice": True})
            slots = [Slot(id="top", baseline="a2"), Slot(id="side", baseline="a0"), Slot(id="foot")]
            shown = await engine.rank_slots("default", page(*slots))
            assert [slot.action_id for slot in shown.slots] == ["a2", "a0", "a1"]
            for wrong in (Slot(id="top", baseline="other"), Slot(id="top", baseline="a1", exclude=["a1"])):
                with pytest.raises(ApiError, match="baseline must"):
                    await engine.rank_slots("default", page(wrong))

    asyncio.run(story())

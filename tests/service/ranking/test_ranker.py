"""Decisions: what is stored before it is answered, what is refused, what is drawn, and what users get."""

import asyncio
import json

import msgspec
import numpy as np
import pytest
from machine import Clock, running
from playing import Disk, gauges, logged, play, raw, rebuilt, refused, refused_for, request

from fedres.draws import event_draw
from fedres_client.event_ids import new_event_id
from service.errors import ApiError
from service.rank.decide import decide
from service.rank.requests import Action, RankRequest
from service.rank.slots import Slot, SlotsRequest


def test_a_decision_is_stored_before_it_is_answered_and_can_be_replayed_from_its_event_id(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            answer = await engine.rank("default", request())
            [entry] = [entry for entry in logged(tmp_path) if entry.kind == "rank"]
            body = json.loads(entry.body)
            assert (entry.event, entry.user) == (answer.event_id, "u")
            assert body["probabilities"] == [1 / 3] * 3
            assert (
                body["actions"][body["action"]]["id"] == answer.action_id == f"a{int(event_draw(answer.event_id) * 3)}"
            )
            assert json.loads(msgspec.json.encode(answer)).keys() == {
                "event_id", "action", "probability", "ranking", "model_version"
            }  # fmt: skip
            await engine.reward("default", answer.event_id, 1.0)
            assert logged(tmp_path)[-1].kind == "reward"

    asyncio.run(story())


def test_an_apprentice_always_takes_the_first_action_learns_and_is_compared(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"apprentice": True})
            for k in range(30):
                answer = await engine.rank("default", request(event_id=f"e{k}", exclude=["a0"] if k % 2 else []))
                assert (answer.action_id, answer.probability) == ("a1" if k % 2 else "a0", 1.0)
                await engine.reward("default", answer.event_id, 1.0)
            await engine.settle()
            seen = await gauges(engine)
            assert (seen["apprentice_events"], seen["learned_events"]) == (30, 30)
            assert 0 < seen["apprentice_agreement"] <= 1
            assert seen["policy_reward"] == seen["baseline_reward"] == 1.0

    asyncio.run(story())


def test_excluded_actions_are_never_taken(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            answers = await engine.rank_many("default", [request(exclude=["a1"]) for _ in range(50)])
            assert {answer.action_id for answer in answers} == {"a0", "a2"}
            assert all(ranked.probability == 0 for a in answers for ranked in a.ranking if ranked.id == "a1")
            everything = request(exclude=["a0", "a1", "a2"])
            assert await refused(engine.rank("default", everything)) == (422, "invalid")

    asyncio.run(story())


def test_a_decision_asked_for_again_is_the_same_and_another_request_is_refused(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            first = await engine.rank("default", request(event_id="e"))
            await engine.reward("default", "e", 1.0)
            await engine.settle()
            assert await engine.rank("default", request(event_id="e")) == first
            for other in (
                request("v", event_id="e"),
                request(context={"x": 1}, event_id="e"),
                request(n_actions=2, event_id="e"),
                request(exclude=["a0"], event_id="e"),
                request(defer=True, event_id="e"),
            ):
                assert await refused(engine.rank("default", other)) == (409, "event_exists")
            answers = await asyncio.gather(*[engine.rank("default", request(event_id="f")) for _ in range(32)])
            assert len({msgspec.json.encode(answer) for answer in answers}) == 1
            assert sum(entry.kind == "rank" for entry in logged(tmp_path)) == 2

    asyncio.run(story())


def test_a_closed_engine_refuses_and_what_it_took_is_stored(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            waiting = [asyncio.ensure_future(engine.rank("default", request(event_id=f"e{k}"))) for k in range(20)]
            await asyncio.sleep(0)
            engine.context.close()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert await refused(engine.rank("default", request())) == (503, "store_closed")
        stored = {entry.event for entry in logged(tmp_path)}
        assert {answer.event_id for answer in answers if not isinstance(answer, ApiError)} <= stored
        assert all(error.status == 503 for error in answers if isinstance(error, ApiError))

    asyncio.run(story())


def test_event_ids_are_different_and_need_no_quoting():
    ids = {new_event_id() for _ in range(5_000)}
    assert len(ids) == 5_000
    assert all(len(name) == 22 and name.replace("-", "").replace("_", "").isalnum() for name in ids)


def test_a_full_disk_is_a_503_while_it_lasts_and_nothing_is_acknowledged_or_lost(tmp_path):
    async def story():
        disk = Disk(tmp_path / "store.db")
        async with running(tmp_path, connect=disk.connect) as engine:
            await play(engine, 20)
            disk.fill(True)
            big = request(context={"text": "x" * 900, "list": [1.5] * 900}, event_id="big")
            assert await refused(engine.rank("default", big)) == (503, "store_full")
            many = await engine.rank_many("default", [big])
            assert [(error.status, error.code) for error in many] == [(503, "store_full")]
            assert (await refused(engine.erase_user("default", "user-1")))[0] == 503
            assert "big" not in [entry.event for entry in logged(tmp_path)]
            disk.fill(False)
            await engine.rank("default", big)
            await play(engine, 20, seed=1)
            await engine.erase_user("default", "user-1")
            assert not [entry for entry in logged(tmp_path) if entry.user == "user-1"]
            assert engine.digest("default") == rebuilt(tmp_path)
            assert engine.learner.trouble is None

    asyncio.run(story())


@pytest.mark.parametrize(
    ("call", "status", "code"),
    [
        (lambda engine: engine.rank("nowhere", request()), 404, "unknown_loop"),
        (lambda engine: engine.rank("default", RankRequest(actions=[])), 422, "invalid"),
        (lambda engine: engine.rank("default", RankRequest(actions=[Action("a"), Action("a")])), 422, "invalid"),
        (lambda engine: engine.rank("default", request("u" * 201)), 422, "invalid"),
        (lambda engine: engine.rank("default", request(event_id="")), 422, "invalid"),
        (lambda engine: engine.rank("default", request(event_id="\ud800")), 422, "invalid"),
        (lambda engine: engine.rank("default", request(context={"x": 1e300})), 422, "invalid_features"),
        (lambda engine: engine.reward("default", "e", 1.5), 422, "invalid"),
        (lambda engine: engine.reward("default", "e", float("nan")), 422, "invalid"),
        (lambda engine: engine.reward("default", "e" * 201, 1.0), 422, "invalid"),
        (lambda engine: engine.reward("nowhere", "e", 1.0), 404, "unknown_loop"),
        (lambda engine: engine.activate("nowhere", "e"), 404, "unknown_loop"),
        (lambda engine: engine.put_model("default", b"junk"), 422, "invalid_model"),
        (lambda engine: engine.evaluate("default", ["file:/etc/passwd"]), 422, "invalid"),
        (lambda engine: engine.evaluate("default", ["uniform"]), 422, "invalid_evaluation"),
        (lambda engine: engine.put_settings("default", {"epsilon": 2}), 422, "invalid_settings"),
    ],
)
def test_what_makes_no_sense_is_refused_and_not_stored(tmp_path, call, status, code):
    async def story():
        async with running(tmp_path) as engine:
            before = len(logged(tmp_path))
            assert await refused(call(engine)) == (status, code)
            assert len(logged(tmp_path)) == before

    asyncio.run(story())


def test_scores_are_explained_by_part_and_feature(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 60)
            answer = await engine.rank("default", request("user-1", {"hour": 1}, explain=True))
            scores = {ranked.id: ranked.score for ranked in answer.ranking}
            for why in answer.explanations:
                assert why.shared + why.personal == pytest.approx(scores[why.id], abs=1e-5)
                assert why.strongest

    asyncio.run(story())


def test_a_repeated_request_is_explained_too(tmp_path):
    """The reply to the first one may be lost on its way."""

    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 60)
            repeated = request("user-1", {"hour": 1}, event_id="asked twice", explain=True)
            first = await engine.rank("default", repeated)
            assert first.explanations
            assert await engine.rank("default", repeated) == first
            [in_batch] = await engine.rank_many("default", [repeated])
            assert in_batch == first

    asyncio.run(story())


def test_decisions_are_drawn_with_the_probabilities_that_are_logged(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 100)
            machine, n = engine.context, 20_000
            requests = [request(None, {"hour": k % 4}) for k in range(400)]
            taken, expected, variance = np.zeros(3), np.zeros(3), np.zeros(3)
            for _ in range(n // len(requests)):
                for decision in decide(requests, machine.loop("default"), machine.models, machine.preparer):
                    chances = np.array(decision.probabilities)
                    taken[decision.action] += 1
                    expected += chances
                    variance += chances * (1 - chances)
            assert abs(expected.sum() - n) < 1e-6 * n
            assert np.all(np.abs(taken - expected) < 5 * np.sqrt(variance))  # once in 10^6

    asyncio.run(story())


async def simulate(engine, rng, best, n_rounds, n_users):
    """Play rounds in which only ``best(user, context)`` pays; return whether each greedy pick was right."""
    right = []
    for k in range(n_rounds):
        user, kind = int(rng.integers(n_users)), int(rng.integers(2))
        answer = await engine.rank("default", request(f"u{user}", {"kind": f"k{kind}"}, 4, event_id=f"e{k}"))
        right.append(answer.ranking[0].id == f"a{best(user, kind)}")
        await engine.reward("default", answer.event_id, float(answer.action_id == f"a{best(user, kind)}"))
        await engine.settle()
    return right


def test_users_with_tastes_of_their_own_get_what_they_like(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            rng = np.random.default_rng(0)
            right = await simulate(engine, rng, lambda user, kind: (user + kind) % 4, 500, 8)
            assert np.mean(right[-150:]) > 0.9

    asyncio.run(story())


def test_a_taste_that_users_share_is_there_for_a_new_one(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await simulate(engine, np.random.default_rng(1), lambda user, kind: 1 + kind, 400, 40)
            requests = [request(f"new{k}", {"kind": f"k{k % 2}"}, 4, event_id=f"n{k}") for k in range(100)]
            answers = await engine.rank_many("default", requests)
            assert np.mean([answer.action_id == f"a{1 + k % 2}" for k, answer in enumerate(answers)]) > 0.8

    asyncio.run(story())


async def served_meanwhile(engine, work, loop="default"):
    """Return the result of ``work``, and how many other requests were answered until it was there."""
    work, n_served = asyncio.ensure_future(work), 0
    while not work.done():
        await engine.rank(loop, request())
        n_served += 1
    return await work, n_served


def test_others_are_served_in_the_middle_of_the_largest_batch(tmp_path):
    """A tenant's largest legal batch (50 requests, 250 context features, 500 actions) is no wall for others."""
    context = raw({f"c{k}": k / 2 for k in range(250)})
    large = RankRequest(user="u", context=context, actions=[Action(f"a{k}", raw({})) for k in range(500)])

    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("other")
            batch, n_served = await served_meanwhile(engine, engine.rank_many("default", [large] * 50), "other")
            assert len([one for one in batch if not isinstance(one, ApiError)]) == 50
            assert n_served > 25

    asyncio.run(story())


def test_others_are_served_in_the_middle_of_batches_of_many_requests_and_between_large_pages(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("other")
            many = asyncio.gather(*[engine.rank_many("default", [request(n_actions=100)] * 60) for _ in range(4)])
            _, n_served = await served_meanwhile(engine, many, "other")
            assert n_served > 50  # of 120 pieces
            actions = [Action(f"a{k}", raw({"k": k})) for k in range(500)]
            pages = [SlotsRequest(actions=actions, slots=[Slot(id=f"s{k}") for k in range(4)]) for _ in range(4)]
            filled = asyncio.gather(*[engine.rank_slots("default", page) for page in pages])
            _, n_served = await served_meanwhile(engine, filled, "other")
            assert n_served >= 3  # between four pages

    asyncio.run(story())


def large_request(n_actions=200, n_features=40, **more):
    """Return a request of several pieces; the features of every third action are not ASCII, and hashed in Python."""
    letters = ["é" if k % 3 == 0 else "e" for k in range(n_actions)]
    features = [{f"{letter}{k}": k / 7 for k in range(n_features)} for letter in letters]
    actions = [Action(f"a{k}", raw(one)) for k, one in enumerate(features)]
    return RankRequest(user="u", context=raw({"hour": 3}), actions=actions, **more)


def test_others_are_served_between_two_explanations(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            explained_request = request(n_actions=50, explain=True)
            explained, n_served = await served_meanwhile(engine, engine.rank("default", explained_request))
            assert len(explained.explanations) == 50
            assert n_served >= 5

    asyncio.run(story())


def test_a_decision_that_would_take_too_long_to_explain_is_refused_and_not_logged(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            large = large_request(400, explain=True)
            before = len(engine.logged())
            assert await refused_for(engine.rank("default", large)) == (422, "too_much_to_explain", "explain")
            assert len(engine.logged()) == before

    asyncio.run(story())


def test_what_is_wrong_with_a_large_request_is_named(tmp_path):
    large = large_request()
    large.actions[150].features = raw({"a": [{}]})

    async def story():
        async with running(tmp_path) as engine:
            error = await refused_for(engine.rank("default", large))
            assert error == (422, "invalid_features", "actions[150]")

    asyncio.run(story())


def test_a_loop_that_is_sent_clicks_alone_says_what_is_pending_and_what_it_comes_to(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_settings("default", {"wait_time": 30})
            for k in range(20):
                await engine.rank("default", request(event_id=f"e{k}"))
                if k % 5 == 0:
                    await engine.reward("default", f"e{k}", 1.0)
            await engine.settle()
            seen = await gauges(engine)
            assert (seen["policy_reward"], seen["waiting_events"], seen["provisional_reward"]) == (1.0, 16, 0.2)
            clock.pass_seconds(31)
            await engine.settle()
            seen = await gauges(engine)
            assert (seen["policy_reward"], seen["waiting_events"], seen["provisional_reward"]) == (0.2, 0, 0.2)
            await engine.put_settings("default", {"default_reward": None})
            await engine.rank("default", request(event_id="unknown"))
            await engine.settle()
            assert (await gauges(engine))["provisional_reward"] == 0.2

    asyncio.run(story())

"""The engine in process: what it acknowledges, learns, forgets, and finds again after a restart."""

import asyncio
import json
import pickle
import shutil
import threading

import msgspec
import numpy as np
import pytest
from engines import SECOND, Clock, Disk, logged, nowhere, play, rebuilt, refused, request, running

import bandits
from fedres.event_ids import draw, new_event_id
from service.engine import Action, Engine, RankRequest
from service.engine.clock import steady_clock
from service.engine.deciding import decide
from service.errors import ApiError
from service.store import LeaseHeld


def test_a_decision_is_stored_before_it_is_answered_and_can_be_replayed_from_its_event_id(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            answer = await engine.rank("default", request())
            [entry] = [entry for entry in logged(tmp_path) if entry.kind == "rank"]
            body = json.loads(entry.body)
            assert (entry.event, entry.user) == (answer.event_id, "u")
            assert body["probabilities"] == [1 / 3] * 3
            assert body["actions"][body["action"]]["id"] == answer.action_id == f"a{int(draw(answer.event_id) * 3)}"
            assert json.loads(msgspec.json.encode(answer)).keys() == {
                "event_id", "action", "probability", "ranking", "model_version"
            }  # fmt: skip
            await engine.reward("default", answer.event_id, 1.0)
            assert logged(tmp_path)[-1].kind == "reward"

    asyncio.run(story())


@pytest.mark.parametrize("writer_process", [False, True])
def test_the_model_is_the_same_live_rebuilt_and_after_restarts(tmp_path, writer_process):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock, writer_process=writer_process) as engine:
            await play(engine, 150)
            await engine.erase_user("default", "user-3")
            await engine.put_settings("default", {"aggregation": "sum", "learning_rate": 0.3, "crosses": False})
            await play(engine, 50, seed=1)
            await engine.put_model("default", engine.model("default"))
            await engine.put_actions("default", [Action("a1", msgspec.Raw(b'{"new": 1}'))])
            await engine.put_settings("default", {"wait_time": 1})
            clock.pass_seconds(700)
            await play(engine, 50, seed=2)
            assert engine.digest("default") == rebuilt(tmp_path)
            await play(engine, 20, seed=3)
            live = engine.digest("default")
            statistics = engine.view("default").statistics
        assert live == rebuilt(tmp_path)
        for remove in (False, True):
            if remove:
                (tmp_path / "store.db-models").unlink()
            async with running(tmp_path) as engine:
                assert engine.digest("default") == live
                assert engine.view("default").statistics == statistics
                assert engine.status()["rebuilt"] == 0

    asyncio.run(story())


def test_a_crash_at_any_moment_leaves_a_store_that_learns_the_same(tmp_path):
    async def story():
        async with running(tmp_path, snapshot_seconds=0.02) as engine:
            for part in range(6):
                await play(engine, 25, seed=part)
                copy = tmp_path / f"copy{part}"
                copy.mkdir()
                for file in ("store.db", "store.db-wal", "store.db-models", "store.db-models-wal"):
                    shutil.copy(tmp_path / file, copy)
        for part in range(6):
            async with running(tmp_path / f"copy{part}") as engine:
                await play(engine, 20, seed=100)
                assert engine.digest("default") == rebuilt(tmp_path / f"copy{part}")

    asyncio.run(story())


def test_wait_times_run_out_by_the_clock_and_a_tick_in_the_log_says_when(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_settings("default", {"wait_time": 60, "default_reward": 0.5})
            await engine.rank("default", request(event_id="e"))
            clock.pass_seconds(59)
            await engine.settle()
            assert [event["status"] for event in engine.events("default")] == ["waiting"]
            clock.pass_seconds(1)
            await engine.settle()
            [event] = engine.events("default")
            assert (event["status"], event["reward"]) == ("expired", 0.5)
            assert logged(tmp_path)[-1].kind == "tick"
            assert engine.gauges("default")["learned_events"] == 1
            await engine.reward("default", "e", 1.0)
            await engine.settle()
            assert [event["reward"] for event in engine.events("default")] == [0.5]
            [late] = engine.unmatched("default")
            assert (late["event_id"], late["value"], late["status"]) == ("e", 1.0, "late")
            assert engine.digest("default") == rebuilt(tmp_path)

    asyncio.run(story())


def test_clock_jumps_lose_nothing(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            for k, jump in enumerate([0, -86_400, 400, 7 * 86_400, -30 * 86_400, 1, 90_000]):
                clock.pass_seconds(jump)
                await play(engine, 15, seed=k)
            times = [entry.time for entry in logged(tmp_path)]
            assert times == sorted(times)
            assert engine.digest("default") == rebuilt(tmp_path)
            clock.pass_seconds(60 * 86_400)
            await engine.settle()
            assert engine.gauges("default")["waiting_events"] == 0
            assert engine.gauges("default")["learned_events"] == 7 * 15

    asyncio.run(story())


def test_a_clock_behind_the_log_goes_on_from_there_at_its_own_pace(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_settings("default", {"wait_time": 60})
            await engine.rank("default", request(event_id="before"))
        clock.pass_seconds(-86_400)
        async with running(tmp_path, clock=clock) as engine:
            clock.pass_seconds(30)
            await engine.rank("default", request(event_id="after"))
            assert [event["status"] for event in engine.events("default")] == ["waiting", "waiting"]
            clock.pass_seconds(30)
            await engine.settle()
            assert [event["status"] for event in engine.events("default")] == ["expired", "waiting"]
            clock.pass_seconds(30)
            await engine.settle()
            assert [event["status"] for event in engine.events("default")] == ["expired", "expired"]
            assert engine.digest("default") == rebuilt(tmp_path)

    asyncio.run(story())


def test_a_steady_clock_begins_at_the_wall_clock_and_does_not_follow_it():
    wall = Clock()
    steady = pickle.loads(pickle.dumps(steady_clock(wall)))
    wall.pass_seconds(86_400)
    first, second = steady(), steady()
    assert wall() - 86_400 * SECOND <= first <= second < wall()


@pytest.mark.parametrize(("aggregation", "reward"), [("earliest", 1.0), ("sum", 1.25)])
def test_rewards_early_repeated_and_at_once_count_as_the_settings_say(tmp_path, aggregation, reward):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.put_settings("default", {"aggregation": aggregation})
            await engine.reward("default", "e", 1.0, "first")
            await engine.rank("default", request(event_id="e"))
            await asyncio.gather(*[engine.reward("default", "e", 0.25, "second") for _ in range(32)])
            await engine.reward("default", "e", 1.0, "first")
            await engine.reward("default", "other", 1.0)
            clock.pass_seconds(601)
            await engine.settle()
            assert [(event["status"], event["reward"]) for event in engine.events("default")] == [("rewarded", reward)]
            sums = engine.view("default").statistics
            assert (sums.settled, sums.reward) == (1, reward)
            assert [entry["event_id"] for entry in engine.unmatched("default")] == ["other"]

    asyncio.run(story())


def test_a_deferred_event_is_learned_only_once_it_is_activated(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await engine.rank("default", request(event_id="e", defer=True))
            await engine.reward("default", "e", 1.0)
            clock.pass_seconds(10_000)
            await engine.settle()
            assert [event["status"] for event in engine.events("default")] == ["deferred"]
            assert engine.gauges("default")["learned_events"] == 0
            await engine.activate("default", "e")
            await engine.settle()
            assert [(event["status"], event["reward"]) for event in engine.events("default")] == [("rewarded", 1.0)]
            assert engine.gauges("default")["learned_events"] == 1

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
            gauges = engine.gauges("default")
            assert (gauges["apprentice_events"], gauges["learned_events"]) == (30, 30)
            assert 0 < gauges["apprentice_agreement"] <= 1
            assert gauges["policy_reward"] == gauges["baseline_reward"] == 1.0

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


def test_what_was_excluded_is_not_exported_since_no_policy_could_have_taken_it(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"apprentice": True})
            await engine.rank("default", request(exclude=["a1"]))
            [event] = engine.events("default")
            assert [action["id"] for action in event["actions"]] == ["a0", "a2"]
            assert (event["action"], event["probabilities"]) == ("a0", [1.0, 0.0])

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


def test_registered_actions_are_named_by_id_alone_and_exported_as_they_were(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            by_id = RankRequest(user="u", actions=[Action("a"), Action("b")])
            assert await refused(engine.rank("default", by_id)) == (422, "invalid")
            await engine.put_actions("default", [Action("a", msgspec.Raw(b'{"x":1}')), Action("b")])
            first = await engine.rank("default", by_id)
            await engine.put_actions("default", [Action("a", msgspec.Raw(b'{"x":2}'))])
            await engine.rank("default", by_id)
            await engine.reward("default", first.event_id, 1.0)
            await engine.put_actions("default", retire=["b"])
            assert [action.id for action in engine.actions("default")] == ["a"]
            assert await refused(engine.rank("default", by_id)) == (422, "invalid")
            assert [event["actions"][0]["features"] for event in engine.events("default")] == [{"x": 1}, {"x": 2}]
            assert engine.digest("default") == rebuilt(tmp_path)
            wrong = Action("c", msgspec.Raw(b'{"x":[1,"a"]}'))
            assert await refused(engine.put_actions("default", [wrong])) == (422, "invalid_features")

    asyncio.run(story())


def test_a_store_has_one_engine(tmp_path):
    async def story():
        async with running(tmp_path):
            with pytest.raises(LeaseHeld):
                Engine.open(tmp_path / "store.db")
        async with running(tmp_path) as engine:
            assert engine.loops() == ["default"]

    asyncio.run(story())


def committing():
    return sum(thread.name == "group-commit" for thread in threading.enumerate())


def test_where_a_process_writes_no_thread_does(tmp_path):
    async def story():
        before = committing()
        async with running(tmp_path, writer_process=True):
            assert committing() == before

    asyncio.run(story())


def test_a_closed_engine_refuses_and_what_it_took_is_stored(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            waiting = [asyncio.ensure_future(engine.rank("default", request(event_id=f"e{k}"))) for k in range(20)]
            await asyncio.sleep(0)
            await engine.close()
            answers = await asyncio.gather(*waiting, return_exceptions=True)
            assert await refused(engine.rank("default", request())) == (503, "store_closed")
            assert await refused(engine.settle()) == (503, "store_closed")
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
            assert await refused(engine.erase_user("default", "user-1")) == (503, "store_full")
            assert "big" not in [entry.event for entry in logged(tmp_path)]
            disk.fill(False)
            await engine.rank("default", big)
            await play(engine, 20, seed=1)
            assert engine.digest("default") == rebuilt(tmp_path)
            assert engine.status()["trouble"] is None

    asyncio.run(story())


def test_loops_are_made_listed_changed_and_deleted(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            version = await engine.create_loop("shop", {"epsilon": 0.5})
            assert engine.loops() == ["default", "shop"]
            assert engine.settings("shop")[0] == version
            assert engine.settings("shop")[1].epsilon == 0.5
            await play(engine, 20, loop="shop")
            assert not np.any(engine.view("default").weights)
            assert await engine.put_settings("shop", {"policy": "squarecb"}) > version
            answer = await engine.rank("shop", request("user-1"))
            assert sum(ranked.probability for ranked in answer.ranking) == pytest.approx(1)
            await engine.delete_loop("shop")
            assert await refused(engine.rank("shop", request())) == (404, "unknown_loop")
            await engine.create_loop("shop")
            assert list(engine.events("shop")) == []
            assert not np.any(engine.view("shop").weights)
            answer = await engine.rank("shop", request("user-1"))
            assert {ranked.score for ranked in answer.ranking} == {0.0}
            assert await refused(engine.create_loop("shop")) == (409, "loop_exists")
            assert await refused(engine.create_loop("a/b")) == (422, "invalid")
            assert await refused(engine.delete_loop("default")) == (409, "default_loop")
        async with running(tmp_path) as engine:
            assert engine.loops() == ["default", "shop"]
            assert not np.any(engine.view("shop").weights)

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


def test_decisions_are_drawn_with_the_probabilities_that_are_logged(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 100)
            view, preparer, n = engine.view("default"), engine._preparers[True], 100_000
            asked = [request(None, {"hour": hour}) for hour in range(4)]
            taken, expected, variance = np.zeros(3), np.zeros(3), np.zeros(3)
            for k in range(n):
                body = decide(asked[k % 4], view, None, preparer, nowhere).body
                chances = np.array(body.probabilities)
                taken[body.action] += 1
                expected += chances
                variance += chances * (1 - chances)
            assert abs(expected.sum() - n) < 1e-6 * n
            assert np.all(np.abs(taken - expected) < 5 * np.sqrt(variance))  # once in 10^6

    asyncio.run(story())


MEANS = np.array([[0.2, 0.5, 0.8], [0.6, 0.1, 0.4]])  # of the reward, by context and action
POLICIES = {
    "first": [[1, 0, 0], [1, 0, 0]],
    "second": [[0, 1, 0], [0, 1, 0]],
    "uniform": [[1 / 3] * 3, [1 / 3] * 3],
    "best": [[0, 0, 1], [1, 0, 0]],
    "mixed": [[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]],
}


async def explore(engine, n, seed, batch=100):
    """Let the engine learn ``MEANS`` in batches, so that it always decides with the same model."""
    rng = np.random.default_rng(seed)
    for start in range(0, n, batch):
        contexts = rng.integers(2, size=batch)
        asked = [request(None, {"kind": f"k{c}"}, event_id=f"{seed}-{start + k}") for k, c in enumerate(contexts)]
        answers = await engine.rank_many("default", asked)
        rewards = rng.random(batch) < [MEANS[c, int(a.action_id[1])] for c, a in zip(contexts, answers, strict=True)]
        await asyncio.gather(*[
            engine.reward("default", answer.event_id, float(reward))
            for answer, reward in zip(answers, rewards, strict=True)
        ])  # fmt: skip
        await engine.settle()


def test_five_known_policies_are_valued_from_exported_events_within_three_standard_errors(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"epsilon": 0.4})
            await explore(engine, 3_000, seed=0)
            events = list(engine.events("default"))
        assert len(events) == 3_000
        for chances in POLICIES.values():
            kinds = [int(event["context"]["kind"][1]) for event in events]
            target = [chances[kind][int(event["action"][1])] for kind, event in zip(kinds, events, strict=True)]
            values = [t * e["reward"] / e["probability"] for t, e in zip(target, events, strict=True)]
            truth = np.mean([np.dot(chances[kind], MEANS[kind]) for kind in kinds])
            assert abs(np.mean(values) - truth) < 3 * np.std(values) / np.sqrt(len(values))

    asyncio.run(story())


def test_exported_events_are_read_and_evaluated_and_can_be_paged_through(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await explore(engine, 400, seed=1)
            events = list(engine.events("default"))
            page = list(engine.events("default", after=events[99]["position"], limit=50))
            assert page == events[100:150]
            file = tmp_path / "events.jsonl"
            file.write_bytes(b"\n".join(map(msgspec.json.encode, events)))
            outside = bandits.evaluate(file, ["uniform"], estimators=["snips"]).to_json()
            assert await engine.evaluate("default", ["uniform"], ["snips"]) == outside
            assert outside["n"] == 400

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
            right = await simulate(engine, rng, lambda user, kind: (user + kind) % 4, 2_000, 8)
            assert np.mean(right[-500:]) > 0.9

    asyncio.run(story())


def test_a_taste_that_users_share_is_there_for_a_new_one(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await simulate(engine, np.random.default_rng(1), lambda user, kind: 1 + kind, 400, 40)
            asked = [request(f"new{k}", {"kind": f"k{k % 2}"}, 4, event_id=f"n{k}") for k in range(100)]
            answers = await engine.rank_many("default", asked)
            assert np.mean([answer.action_id == f"a{1 + k % 2}" for k, answer in enumerate(answers)]) > 0.8

    asyncio.run(story())

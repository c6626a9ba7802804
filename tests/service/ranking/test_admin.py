"""Loops, the catalogue, and what is exported and evaluated."""

import asyncio

import msgspec
import numpy as np
import pytest
from machine import running, tell
from playing import play, rebuilt, refused, request

import bandits
from service.rank.requests import Action, RankRequest


def test_what_was_excluded_is_not_exported_since_no_policy_could_have_taken_it(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_settings("default", {"apprentice": True})
            await engine.rank("default", request(exclude=["a1"]))
            [event] = await engine.events("default")
            assert [action["id"] for action in event["actions"]] == ["a0", "a2"]
            assert (event["action"], event["probabilities"]) == ("a0", [1.0, 0.0])

    asyncio.run(story())


def test_registered_actions_are_named_by_id_alone_and_exported_as_they_were(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            by_id = RankRequest(user="u", actions=[Action("a"), Action("b")])
            await engine.rank("default", by_id)  # without features
            await engine.put_actions("default", [Action("a", msgspec.Raw(b'{"x":1}')), Action("b")])
            first = await engine.rank("default", by_id)
            await engine.put_actions("default", [Action("a", msgspec.Raw(b'{"x":2}'))])
            await engine.rank("default", by_id)
            await engine.reward("default", first.event_id, 1.0)
            await engine.put_actions("default", retire=["b"])
            assert [action.id for action in engine.actions("default")] == ["a"]
            await engine.rank("default", by_id)
            events = [[action["features"] for action in event["actions"]] for event in await engine.events("default")]
            assert events == [[{}, {}], [{"x": 1}, {}], [{"x": 2}, {}], [{"x": 2}, {}]]
            assert engine.digest("default") == rebuilt(tmp_path)
            wrong = Action("c", msgspec.Raw(b'{"x":[1,"a"]}'))
            assert await refused(engine.put_actions("default", [wrong])) == (422, "invalid_features")

    asyncio.run(story())


def learned(engine, loop):
    """Return how many rewards the published model of a loop has learned."""
    return engine.context.loop(loop).n_learned


def test_loops_are_made_listed_changed_and_deleted(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            version = await engine.create_loop("shop", {"epsilon": 0.5})
            assert engine.loops() == ["default", "shop"]
            assert engine.settings("shop")[0] == version
            assert engine.settings("shop")[1].epsilon == 0.5
            await play(engine, 30, loop="shop")
            assert learned(engine, "shop") > 0 == learned(engine, "default")
            assert await engine.put_settings("shop", {"policy": "squarecb"}) > version
            answer = await engine.rank("shop", request("user-1"))
            assert sum(ranked.probability for ranked in answer.ranking) == pytest.approx(1)
            await engine.delete_loop("shop")
            assert await refused(engine.rank("shop", request())) == (404, "unknown_loop")
            await engine.create_loop("shop")
            assert list(await engine.events("shop")) == []
            assert learned(engine, "shop") == 0
            answer = await engine.rank("shop", request("user-1"))
            assert {ranked.score for ranked in answer.ranking} == {0.0}
            assert await refused(engine.create_loop("shop", {"epsilon": 0.5})) == (409, "loop_exists")
            made = await engine.create_loop("again", {"epsilon": 0.5})
            await engine.put_settings("again", {"epsilon": 0.3})
            assert (
                await engine.create_loop("again", {"epsilon": 0.5}) == made
            )  # the answer was lost, and it was repeated
            assert await refused(engine.create_loop("again", {"epsilon": 0.3})) == (409, "loop_exists")
            assert engine.settings("again")[1].epsilon == 0.3
            await engine.delete_loop("again")
            assert await engine.create_loop("again", {"epsilon": 0.5}) > made
            await engine.delete_loop("again")
            assert await refused(engine.create_loop("a/b")) == (422, "invalid")
            assert await refused(engine.delete_loop("default")) == (409, "default_loop")
        async with running(tmp_path) as engine:
            assert engine.loops() == ["default", "shop"]
            assert learned(engine, "shop") == 0

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
        requests = [request(None, {"kind": f"k{c}"}, event_id=f"{seed}-{start + k}") for k, c in enumerate(contexts)]
        answers = await engine.rank_many("default", requests)
        rewards = rng.random(batch) < [MEANS[c, int(a.action_id[1])] for c, a in zip(contexts, answers, strict=True)]
        await asyncio.gather(*[
            engine.reward("default", answer.event_id, float(reward))
            for answer, reward in zip(answers, rewards, strict=True)
        ])  # fmt: skip
        await engine.settle()


EXPLORING = [{"policy": "epsilon-greedy", "epsilon": 0.4}, {"floor": 0.3}, {"policy": "squarecb", "gamma": 0.5}]


@pytest.fixture(scope="module", params=EXPLORING, ids=["epsilon-greedy", "optimistic-squarecb", "squarecb"])
def explored(request, tmp_path_factory):
    """Return 2,000 events as they are exported, and the records of their decisions."""

    async def story():
        async with running(tmp_path_factory.mktemp("explored")) as engine:
            await engine.put_settings("default", request.param)
            await explore(engine, 2_000, seed=0)
            return await engine.events("default"), [entry for entry in engine.logged() if entry.kind == "rank"]

    return asyncio.run(story())


def test_five_known_policies_are_valued_from_exported_events_within_three_standard_errors(explored):
    events, _ = explored
    assert len(events) == 2_000
    for chances in POLICIES.values():
        kinds = [int(event["context"]["kind"][1]) for event in events]
        target = [chances[kind][int(event["action"][1])] for kind, event in zip(kinds, events, strict=True)]
        values = [t * e["reward"] / e["probability"] for t, e in zip(target, events, strict=True)]
        truth = np.mean([np.dot(chances[kind], MEANS[kind]) for kind in kinds])
        assert abs(np.mean(values) - truth) < 3 * np.std(values) / np.sqrt(len(values))


def test_actions_are_drawn_as_often_as_their_probabilities_say(explored):
    decisions = [msgspec.json.decode(entry.body) for entry in explored[1]]
    chances = np.array([decision["probabilities"] for decision in decisions])
    taken = np.eye(3)[[decision["action"] for decision in decisions]]
    assert chances.sum(1) == pytest.approx(1)
    assert chances.min() > 0
    for low, high in ((0.0, 0.05), (0.05, 0.3), (0.3, 0.7), (0.7, 1.0)):
        here = (chances > low) & (chances <= high)
        spread = np.sqrt((chances * (1 - chances))[here].sum())
        assert abs((taken - chances)[here].sum()) < 4 * spread + 1e-9


def test_exported_events_are_read_and_evaluated_and_can_be_paged_through(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await explore(engine, 400, seed=1)
            events = list(await engine.events("default"))
            page = list(await engine.events("default", after=events[99]["position"], limit=50))
            assert page == events[100:150]
            file = tmp_path / "events.jsonl"
            file.write_bytes(b"\n".join(map(msgspec.json.encode, events)))
            outside = bandits.evaluate(file, ["uniform"], estimators=["snips"]).to_json()
            assert await engine.evaluate("default", ["uniform"], ["snips"]) == outside | {"events_since": None}
            assert outside["n"] == 400

    asyncio.run(story())


def test_a_loop_that_was_made_again_has_none_of_the_old_ones_events(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("shop")
            await engine.rank("shop", request(event_id="old"))
            await engine.reward("shop", "early", 1.0)
            await engine.delete_loop("shop")
            await engine.create_loop("shop")
            assert await refused(engine.rank("shop", request(event_id="old"))) == (409, "event_exists")
            await engine.rank("shop", request(event_id="early"))
            await engine.settle()
            [event] = await engine.events("shop")
            assert (event["event_id"], event["status"]) == ("early", "waiting")
            assert engine.view("shop").n_waiting == 1

    asyncio.run(story())


def test_the_export_of_a_user_reads_no_records_of_others(tmp_path):
    async def story(engine, clock):
        for k in range(40):
            await engine.rank("default", request(user="anna" if k % 10 == 0 else f"other-{k}", event_id=f"e{k}"))
        await engine.reward("default", "e10", 1.0)
        await engine.settle()
        log = engine.context.archive()
        read, seen = log.read, []

        def reading(loop, after=0, limit=1_000, **options):
            entries = read(loop, after, limit, **options)
            seen.extend(entry.kind for entry in entries)
            return entries

        log.read = reading
        pieces = [piece async for piece in engine.user_events("anna")]
        events = [msgspec.json.decode(line) for line in b"".join(pieces).splitlines()]
        assert [event["event_id"] for event in events] == ["e0", "e10", "e20", "e30"]
        assert [event["reward"] for event in events] == [None, 1.0, None, None]
        assert seen == ["loop"]  # of the settings that the events were decided under

    tell(tmp_path, story)

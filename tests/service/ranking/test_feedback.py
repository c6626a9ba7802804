"""Feedback on actions that nobody decided on here: what is stored and learned, and where it does not count."""

import asyncio
import json

import numpy as np
import pytest
from machine import Clock, running
from playing import gauges, logged, raw, rebuilt, refused, refused_for

from bandits.evaluation import read_events
from service.log.records import EraseBody, Record, decode_rank, encode
from service.plugins.recommend.feedback import Feedback, FeedbackEvent
from service.plugins.recommend.item_lists import popular
from service.plugins.recommend.recommender import Recommender, RecommendRequest
from service.rank.requests import Action, RankRequest
from service.settings import Control

GENRES = ("drama", "comedy", "war", "noir")
MODELS = pytest.mark.parametrize("model", ["residual-kalman", "adagrad"])


def film(k):
    return Action(f"f{k}", raw({"genre": GENRES[k % 4], "price": k % 10}))


def event(action, reward, **fields):
    return FeedbackEvent(
        action=action,
        reward=reward,
        **{name: raw(value) if name == "context" else value for name, value in fields.items()},
    )


def ratings(n, seed=0, liked="war"):
    """Return ratings of users who like one genre, some of them at times of long ago."""
    rng = np.random.default_rng(seed)
    for k in range(n):
        film = int(rng.integers(40))
        yield event(
            f"f{film}",
            float(film % 4 == GENRES.index(liked)),
            user=None if rng.random() < 0.1 else f"u{rng.integers(5)}",
            event_id=f"{seed}-{k}",
            context={"hour": int(rng.integers(24))} if rng.random() < 0.5 else {},
            time=float(1_600_000_000 + k) if rng.random() < 0.3 else None,
        )


def story(folder, tell, **options):
    async def run():
        clock = Clock()
        async with running(folder, clock=clock, **options) as engine:
            engine.passes = clock.pass_seconds
            if "f0" not in engine.context.loop("default").catalogue:
                await engine.put_actions("default", [film(k) for k in range(40)])
            engine.recommender = Recommender(engine.context, engine.parts[0], lambda: clock.now / 1e6)
            taker = Feedback(engine.context)

            async def feedback(*events):
                stored = await taker.store("default", events)
                await engine.settle()
                return stored.stored, stored.repeated

            await tell(engine, feedback)

    asyncio.run(run())


async def best(engine, user, n=5):
    page = await engine.recommender.recommend("default", RecommendRequest(n=n, user=user))
    return [int(item.id[1:]) % 4 for item in page.items]


@MODELS
def test_feedback_teaches_the_shared_and_the_personal_models_and_the_log_gives_the_same(tmp_path, model):
    async def tell(engine, feedback):
        assert await feedback(*ratings(300)) == (300, 0)
        # u0 differs from all others
        await feedback(*[event(f"f{k}", float(k % 4 == 0), user="u0", event_id=f"x{k}-{j}")
                         for j in range(5) for k in range(40)])  # fmt: skip
        assert engine.context.loop("default").n_learned == 500
        pages = [kind for _ in range(20) for kind in await best(engine, "somebody new")]
        assert np.mean([kind == 2 for kind in pages]) > 0.6
        own = [kind for _ in range(20) for kind in await best(engine, "u0")]
        assert np.mean([kind == 0 for kind in own]) > np.mean([kind == 0 for kind in pages]) + 0.2
        assert engine.digest() == rebuilt(tmp_path)

    story(tmp_path, tell, model=model)


@MODELS
def test_a_restart_in_the_middle_changes_no_bit(tmp_path, model):
    folders = [tmp_path / "one", tmp_path / "two"]
    digests = []

    async def some(engine, feedback):
        await feedback(*list(ratings(120))[:70])
        await engine.reward("default", "0-3", 1.0)  # of feedback: it does not count
        await engine.reward("default", "0-100", 0.0)  # of feedback that comes later: the same
        await engine.settle()

    async def rest(engine, feedback):
        await feedback(*list(ratings(120))[70:])
        digests.append((engine.digest(), engine.view().statistics))

    async def both(engine, feedback):
        await some(engine, feedback)
        await rest(engine, feedback)

    for folder in folders:
        folder.mkdir()
    story(folders[0], both, model=model)
    story(folders[1], some, model=model)
    story(folders[1], rest, model=model)
    assert digests[0] == digests[1]
    assert digests[0][1].feedback == 120
    assert rebuilt(folders[0]) == rebuilt(folders[1]) == digests[0][0]


def test_a_repeat_is_not_stored_and_another_event_with_its_id_is_refused(tmp_path):
    async def tell(engine, feedback):
        one = event("f1", 1.0, user="u", event_id="a", context={"hour": 3}, time="2020-01-01T00:00:00Z")
        assert await feedback(one, event("f2", 0.0, event_id="b")) == (2, 0)
        before = engine.digest()
        assert await feedback(one, one, event("f3", 0.5, event_id="c")) == (1, 2)
        assert len([entry for entry in logged(tmp_path) if entry.kind == "rank"]) == 3
        assert engine.digest() != before
        for change in (
            {"reward": 0.5},
            {"user": "v"},
            {"user": None},
            {"context": {}},
            {"time": None},
            {"action": "f2"},
        ):
            fields = {"action": "f1", "reward": 1.0, "user": "u", "context": {"hour": 3}, "time": 1577836800, **change}
            assert await refused(feedback(event(**fields, event_id="a"))) == (409, "event_exists"), change
        await engine.rank("default", RankRequest(actions=[Action("f1")], event_id="r"))
        assert await refused(feedback(event("f1", 1.0, event_id="r"))) == (409, "event_exists")
        assert await refused(engine.rank("default", RankRequest(actions=[Action("f1")], event_id="a"))) == (
            409, "event_exists",
        )  # fmt: skip
        await feedback(event("f1", 1.0, event_id="page~1"))
        page = engine.recommender.recommend("default", RecommendRequest(n=1, event_id="page"))
        assert await refused(page) == (409, "event_exists")

    story(tmp_path, tell)


@pytest.mark.parametrize(
    ("fields", "target"),
    [
        ({"reward": 1.5}, "events[1].reward"),
        ({"reward": -0.1}, "events[1].reward"),
        ({"time": "yesterday"}, "events[1].time"),
        ({"time": -1.0}, "events[1].time"),
        ({"time": 1e12}, "events[1].time"),
        ({"user": "a\0b"}, "events[1].user"),
        ({"action": "a\0b"}, "events[1].action"),
        ({"action": Action("x", raw({"a": [{}]}))}, "events[1].action.features"),
        ({"context": {"a": [{}]}}, "events[1].context"),
    ],
)
def test_one_bad_event_refuses_all_and_says_which_it_is(tmp_path, fields, target):
    async def tell(engine, feedback):
        good = {"action": "f1", "reward": 1.0}
        status, _, about = await refused_for(feedback(event(**good), event(**{**good, **fields})))
        assert (status, about) == (422, target)
        assert not [entry for entry in logged(tmp_path) if entry.kind == "rank"]

    story(tmp_path, tell)


def test_an_erased_user_takes_their_feedback_along(tmp_path):
    async def tell(engine, feedback):
        await feedback(*ratings(100))
        await engine.erase_user("default", "u1")
        assert not [entry for entry in logged(tmp_path) if entry.user == "u1"]
        assert engine.digest() == rebuilt(tmp_path)
        left = [event for event in ratings(100) if event.user != "u1"]
        assert await feedback(*left) == (0, len(left))

    story(tmp_path, tell)


def test_old_feedback_is_pruned_and_models_stay(tmp_path):
    async def tell(engine, feedback):
        await feedback(*ratings(50))
        engine.passes(100)
        await feedback(*ratings(20, seed=1))
        before = engine.digest()
        body = encode(EraseBody("token", engine.log.now() - 60_000_000))
        engine.log.append([[Record("default", "erase", body=body)]])
        while engine.log.note("pruned default") is None:
            engine.learner.step()
        events = {entry.event for entry in logged(tmp_path) if entry.kind == "rank"}
        assert events == {f"1-{k}" for k in range(20)}
        assert engine.digest() == before == rebuilt(tmp_path)

    story(tmp_path, tell)


def test_feedback_is_exported_and_counts_in_popularity_but_in_no_figure_of_the_policy(tmp_path):
    async def tell(engine, feedback):
        for k in range(20):
            actions = [Action("f1"), Action("f2")]
            await engine.rank("default", RankRequest(actions=actions, user=f"u{k}", event_id=f"r{k}"))
            await engine.reward("default", f"r{k}", 0.25)
        await engine.settle()
        before = json.loads(await engine.report("default"))
        lift, figures = await engine.lift("default"), await gauges(engine)
        await feedback(*[event("f7", 1.0, user=f"u{k}", event_id=f"x{k}", time=1.7e9, context={"a": 1})
                         for k in range(15)])  # fmt: skip
        after = json.loads(await engine.report("default"))
        assert {name for name in after if after[name] != before[name]} <= {"position", "time"}
        assert await engine.lift("default") == lift
        changed = {name for name, value in (await gauges(engine)).items() if str(value) != str(figures[name])}
        assert changed - {"learner_seconds"} == {"feedback", "model_version", "shared_model_bytes", "users"}
        assert (await gauges(engine))["feedback"] == 15
        best = await popular(engine.recommender, "default", 1, 1e7)
        assert [(item.id, item.events) for item in best.items] == [("f7", 15)]
        lines = await engine.events()
        last = lines[-1]
        assert (last["status"], last["reward"], last["action"], last["happened"]) == ("feedback", 1.0, "f7", 1.7e9)
        assert (last["probability"], last["probabilities"], last["context"]) == (None, None, {"a": 1})
        assert last["actions"] == [{"id": "f7", "features": {"genre": "noir", "price": 7}}]
        (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))
        assert {each.event_id for each in read_events(tmp_path / "log.jsonl")} == {f"r{k}" for k in range(20)}
        evaluation = await engine.evaluate("default", ["uniform"])
        assert {row["n"] for row in evaluation["rows"]} == {20}

    story(tmp_path, tell, control=Control(share=0.5))


def test_what_a_user_gave_feedback_on_counts_as_seen(tmp_path):
    async def tell(engine, feedback):
        old, new = 1_600_000_000, None
        await feedback(event("f1", 1.0, user="u", time=old), event("f2", 1.0, user="u", time=new))
        ever = await engine.recommender.recommend("default", RecommendRequest(n=100, user="u", exclude_seen=True))
        assert {f"f{k}" for k in range(40)} - {item.id for item in ever.items} == {"f1", "f2"}
        lately = await engine.recommender.recommend("default", RecommendRequest(n=99, user="v", exclude_seen=60.0))
        assert len(lately.items) == 40
        lately = await engine.recommender.recommend("default", RecommendRequest(n=99, user="u", exclude_seen=60.0))
        assert "f2" not in {item.id for item in lately.items}

    story(tmp_path, tell)


def test_features_are_those_of_the_event_or_of_the_catalogue(tmp_path):
    async def tell(engine, feedback):
        await feedback(event("f1", 1.0, event_id="a"), event(Action("f1", raw({"b": 2})), 1.0, event_id="b"),
                       event("nowhere", 1.0, event_id="c"))  # fmt: skip
        bodies = {entry.event: decode_rank(entry.body) for entry in logged(tmp_path) if entry.kind == "rank"}
        assert bodies["a"].actions[0].put > 0
        assert bytes(bodies["b"].actions[0].features) == b'{"b": 2}'
        assert [line["actions"][0]["features"] for line in await engine.events()] == [
            {"genre": "comedy", "price": 1}, {"b": 2}, {},
        ]  # fmt: skip

    story(tmp_path, tell)

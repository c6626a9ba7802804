"""Decisions from JSON lines and tables into a loop: what is stored, learned, and said of wrong rows."""

import asyncio
import csv
import json
import random

import msgspec
import pytest
from machine import running
from typer.testing import CliRunner

from bandits.evaluation import Columns, load_log
from bandits.evaluation.online import hosted_policy, play
from fedres.progress import ignore_progress
from service.cli import app
from service.plugins.tools.decision_files import decision_file, kind_of
from service.plugins.tools.importing import import_decisions
from service.rank.requests import Action, RankRequest

HEADER = ["who", "country", "age", "banner", "chance", "bought"]
COLUMNS = Columns(
    action="banner", reward="bought", probability="chance", user="who", context=["country", "age"], actions=list("abc")
)
WORDS = [
    "--action=banner",
    "--reward=bought",
    "--probability=chance",
    "--user=who",
    "--context=country,age",
    "--actions=a,b,c",
]


def write_table(path, n=60, seed=1):
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(HEADER)
        for _ in range(n):
            country, banner = draw.choice(["de", "fr"]), draw.choice("abc")
            bought = int(draw.random() < (0.8 if (country == "de") == (banner == "b") else 0.2))
            table.writerow([f"u{draw.randrange(5)}", country, draw.randrange(18, 80), banner, 1 / 3, bought])
    return path


def rows_of(path):
    return list(csv.DictReader(path.read_text().splitlines()))


def imported(engine, path, file, **options):
    return import_decisions(engine.log, "shop", {path: file}, progress=ignore_progress, **options)


def test_a_table_is_learned_and_known_again(tmp_path):
    path = write_table(tmp_path / "log.csv")

    async def story():
        async with running(tmp_path) as engine:
            assert imported(engine, path, decision_file(path, "table", COLUMNS)) == (60, 0, 0)
            assert imported(engine, path, decision_file(path, "table", COLUMNS)) == (0, 60, 0)
            await engine.settle()
            assert engine.view("shop").settings.model == "residual-kalman"
            assert engine.digest("shop") == engine.rebuilt("shop")
            first, *_ = await engine.events("shop")
            row = rows_of(path)[0]
            assert first["context"] == {"country": row["country"], "age": float(row["age"])}
            assert (first["event_id"], first["user"], first["action"]) == ("log.csv line 2", row["who"], row["banner"])
            assert (first["probability"], first["reward"]) == (1 / 3, float(row["bought"]))

    asyncio.run(story())


def test_a_loop_that_learned_a_log_decides_as_the_policy_fedres_is_valued(tmp_path):
    """``bandits.evaluate(log, ["fedres"])`` is about the service itself: same features, models and probabilities."""
    path, n = write_table(tmp_path / "log.csv", n=61), 60
    log = load_log(path, columns=COLUMNS)
    valued = play(log, hosted_policy("fedres"), (0.0, 1.0), ignore_progress).probabilities[3 * n :]
    before = tmp_path / "before.csv"
    before.write_text("".join(path.read_text().splitlines(keepends=True)[: n + 1]))
    row = rows_of(path)[n]
    context = msgspec.Raw(json.dumps({"country": row["country"], "age": float(row["age"])}).encode())
    request = RankRequest(user=row["who"], context=context, actions=[Action(name) for name in "abc"])

    async def story():
        async with running(tmp_path) as engine:
            imported(engine, before, decision_file(before, "table", COLUMNS))
            await engine.settle()
            reply = await engine.rank("shop", request)
            chances = {one.id: one.probability for one in reply.ranking}
            assert [chances[name] for name in "abc"] == pytest.approx(valued.tolist(), rel=1e-6)
            assert max(chances.values()) > 0.5

    asyncio.run(story())


def test_what_the_service_exports_is_imported_again(tmp_path):
    path, lines = write_table(tmp_path / "log.csv"), tmp_path / "events.jsonl"
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()

    async def story():
        async with running(tmp_path / "one") as engine:
            imported(engine, path, decision_file(path, "table", COLUMNS))
            await engine.settle()
            events, digest = await engine.events("shop"), engine.digest("shop")
        lines.write_text("".join(json.dumps(event) + "\n" for event in events))
        assert kind_of(lines) == "lines"
        async with running(tmp_path / "two") as engine:
            assert imported(engine, lines, decision_file(lines, "lines", COLUMNS)) == (60, 0, 0)
            await engine.settle()
            for again, event in zip(await engine.events("shop"), events, strict=True):
                context = again["context"]
                assert context.pop("_timestamp") == event["time"]
                assert context == event["context"]
                for name in ("event_id", "user", "actions", "action", "probability", "probabilities", "reward"):
                    assert again[name] == event[name], name
            assert engine.digest("shop") == digest

    asyncio.run(story())


def test_a_decision_without_a_reward_is_stored_and_not_learned(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("action,reward,probability\na,1,0.5\na,,0.5\n")

    async def story():
        async with running(tmp_path) as engine:
            assert imported(engine, path, decision_file(path, "table", Columns())).stored == 2
            await engine.settle()
            assert engine.view("shop").statistics.settled == 1
            assert [event["status"] for event in await engine.events("shop")] == ["rewarded", "deferred"]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("a,2,0.5,u", "reward must be in [0, 1], the loop's reward_range, got 2: make a loop with another range first"),
        ("a,1,50,u", "probability must be in (0, 1], got 50: percentages must be divided by 100"),
        (f"a,1,0.5,{'u' * 300}", "length <= 200"),
    ],
)
def test_a_wrong_row_is_named_and_passed_over_or_ends_the_import(tmp_path, cells, said):
    path = tmp_path / "log.csv"
    path.write_text(f"action,reward,probability,user\na,1,0.5,u\n{cells}\na,0,0.5,u\n")

    async def story():
        async with running(tmp_path) as engine:
            with pytest.raises(ValueError, match=r"log\.csv, line 3: ") as caught:
                imported(engine, path, decision_file(path, "table", Columns()))
            assert said in str(caught.value)
            passed_over = []
            assert imported(engine, path, decision_file(path, "table", Columns()), wrong=passed_over.append) == (
                1,
                1,
                1,
            )
            assert passed_over == [str(caught.value)]

    asyncio.run(story())


def test_the_command_takes_tables_and_lines_by_what_is_in_them(tmp_path):
    run, store = CliRunner().invoke, f"sqlite:///{tmp_path}/fedres.db"
    path, lines = write_table(tmp_path / "log.csv"), tmp_path / "events.jsonl"
    event = {"event_id": "e1", "context": {"x": 1}, "actions": [{"id": "a"}, {"id": "b"}], "action": "b"}
    lines.write_text(json.dumps({**event, "probability": 0.5, "reward": 1}) + "\n")
    ended = run(app, ["log", "import", str(path), str(lines), *WORDS, "--loop", "shop", "--store", store])
    assert ended.exit_code == 0, ended.output
    assert "61 events imported into loop 'shop'; 0 existed already, 0 lines skipped" in ended.output
    assert run(app, ["log", "verify", "--store", store]).exit_code == 0
    ended = run(app, ["log", "import", str(lines), "--action", "x", "--store", store])
    assert (ended.exit_code, "action must come with a table" in ended.output) == (2, True)
    assert "does not exist" in run(app, ["log", "import", "nowhere.csv", "--store", store]).output


def test_recommended_items_and_feedback_of_an_export_stay_what_they_were(tmp_path):
    from service.plugins.recommend.feedback import Feedback, FeedbackEvent
    from service.plugins.recommend.recommender import Recommender, RecommendRequest

    path = tmp_path / "events.jsonl"

    async def export():
        async with running(tmp_path) as engine:
            films = [Action(f"f{k}", msgspec.Raw(b'{"genre":"g%d"}' % (k % 3))) for k in range(12)]
            await engine.put_actions("default", films)
            recommender, feedback = Recommender(engine.context, engine.parts[0]), Feedback(engine.context)
            for k in range(10):
                page = RecommendRequest(n=3, user=f"u{k % 4}", event_id=f"p{k}", context=msgspec.Raw(b'{"hour":3}'))
                for item in (await recommender.recommend("default", page)).items:
                    await engine.reward("default", item.event_id, 0.5)
            await feedback.store("default", [FeedbackEvent(action="f1", reward=0.25, user="u1", time=1e9, event_id="x"),
                                             FeedbackEvent(action="f2", reward=0.75, event_id="y")])  # fmt: skip
            await engine.rank("default", RankRequest(actions=films[:2], event_id="r"))
            await engine.reward("default", "r", 1.0)
            await engine.settle()
            return await engine.events()

    async def story():
        events = await export()
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        (tmp_path / "again").mkdir()
        async with running(tmp_path / "again") as engine:
            assert imported(engine, path, decision_file(path, "lines", COLUMNS)) == (33, 0, 0)
            assert imported(engine, path, decision_file(path, "lines", COLUMNS)) == (0, 33, 0)
            await engine.settle()
            names = ("event_id", "user", "actions", "action", "probability", "probabilities", "reward", "status")
            again = await engine.events("shop")
            for old, new in zip(events, again, strict=True):
                expected = {name: old.get(name) for name in (*names, "place", "candidates")}
                assert {name: new.get(name) for name in expected} == expected
            assert [event.get("happened") for event in again[30:32]] == [1e9, pytest.approx(1.7e9, rel=1e-6)]
            sums = engine.view("shop").statistics
            assert (sums.ranks, sums.settled, sums.feedback) == (31, 31, 2)
            assert sums.baseline_weight == (again[-1]["action"] == "f0") / again[-1]["probability"]
            assert engine.digest("shop") == engine.rebuilt("shop")

    asyncio.run(story())
    assert len(load_log(path)) == 1


@pytest.mark.parametrize(
    "changes",
    [{"place": 0}, {"place": None}, {"candidates": "3"}, {"candidates": 0}, {"status": "feedback", "reward": None}],
)
def test_a_recommended_item_without_a_place_and_feedback_without_a_reward_are_refused(tmp_path, changes):
    line = {"event_id": "e", "context": {}, "actions": [{"id": "a"}], "action": "a", "probability": 0.5, "reward": 1,
            "status": "rewarded", "place": 1, "candidates": 3, **changes}  # fmt: skip
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps(line))

    async def story():
        async with running(tmp_path) as engine:
            with pytest.raises(ValueError, match="line 1: "):
                imported(engine, path, decision_file(path, "lines", COLUMNS))

    asyncio.run(story())

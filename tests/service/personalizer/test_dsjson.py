"""dsjson into a loop: what is read of a line, what is stored, and what is said of wrong lines."""

import asyncio
import gzip
import json

import pytest
from machine import running
from typer.testing import CliRunner

from bandits.evaluation import Columns
from service.cli import app
from service.plugins.tools.decision_files import decision_file
from service.plugins.tools.dsjson import event_ids, read_line
from service.plugins.tools.importing import import_decisions


def line(k, chosen=2, cost=-1.0, **changes):
    """Return a line as Azure Personalizer wrote it."""
    record = {
        "_label_cost": cost,
        "_label_probability": 0.8,
        "_label_Action": chosen,
        "_labelIndex": chosen - 1,
        "Timestamp": "2024-05-01T10:00:00.000Z",
        "Version": "1",
        "EventId": f"event {k}",
        "a": [chosen, 3 - chosen],
        "c": {
            "FromUrl": [{"user": {"taste": "b" if chosen == 2 else "a"}}, {"device": {"mobile": True}}],
            "_multi": [{"_tag": name, "i": {"constant": 1, "id": name}, "j": [{"topic": name}]} for name in "ab"],
        },
        "p": [0.8, 0.2],
        "VWState": {"m": "x"},
        "_original_label_cost": cost,
    }
    return json.dumps({**record, **changes}).encode()


def slots_line(k, **changes):
    """Return a line of two slots as Azure Personalizer wrote it: the second could not have what the first took."""
    record = {
        "Timestamp": "2024-05-01T10:00:00.000Z",
        "Version": "1",
        "EventId": f"visit {k}",
        "c": {
            "FromUrl": [{"user": {"taste": "b"}}],
            "_multi": [{"_tag": name, "j": [{"topic": name}]} for name in "abc"],
            "_slots": [{"_id": "top", "j": [{"size": "large", "id": 5}]}, {"_id": "side", "_inc": [0, 1]}],
        },
        "_outcomes": [
            {"_id": "top", "_label_cost": -1.0, "_a": [1, 0, 2], "_p": [0.8, 0.1, 0.1], "_o": [1.0]},
            {"_id": "side", "_label_cost": 0.0, "_a": [0], "_p": [1.0], "_o": []},
        ],
        "VWState": {"m": "x"},
    }
    return json.dumps({**record, **changes}).encode()


def outcomes(*pairs):
    return [{"_id": f"id {k}", "_label_cost": -0.5, "_a": a, "_p": p} for k, (a, p) in enumerate(pairs)]


def test_a_line_of_several_slots_is_a_decision_for_each():
    top, side = read_line(slots_line(1))
    assert [one.request.event_id for one in (top, side)] == event_ids(slots_line(1)) == ["visit 1~1", "visit 1~2"]
    context = json.loads(bytes(top.request.context))
    assert context["slot"] == {"id": "top", "_of": 2, "size": "large", "id ": 5}
    assert context["user"] == {"taste": "b"}
    assert json.loads(bytes(side.request.context))["slot"] == {"id": "side", "_of": 2}
    assert (top.action, top.probabilities, top.reward, top.request.exclude) == (1, [0.1, 0.8, 0.1], 1.0, [])
    assert (side.action, side.probabilities, side.reward) == (0, [1.0, 0.0, 0.0], 0.0)
    assert side.request.exclude == ["b", "c"]


def test_the_first_form_of_slots_has_no_id_of_its_own():
    filled = outcomes((2, 0.5), ([0, 1], [0.9, 0.1]))
    first, second = read_line(slots_line(1, EventId=None, _outcomes=filled))
    assert [one.request.event_id for one in (first, second)] == ["id 0", "id 1"]
    assert [json.loads(bytes(one.request.context))["slot"]["id"] for one in (first, second)] == ["1", "2"]
    assert (first.action, first.probabilities) == (2, [0.25, 0.25, 0.5])
    assert (second.probabilities, second.request.exclude) == ([0.9, 0.1, 0.0], ["c"])


def test_a_line_is_what_azures_client_sent():
    [logged] = read_line(line(1))
    assert [action.id for action in logged.request.actions] == ["a", "b"]
    assert json.loads(bytes(logged.request.actions[1].features)) == {"topic": "b"}
    context = {"user": {"taste": "b"}, "device": {"mobile": True}}
    assert json.loads(bytes(logged.request.context)) == context
    dated = {**context, "_timestamp": "2024-05-01T10:00:00.000Z"}
    assert json.loads(bytes(logged.dated().context)) == dated
    assert (logged.request.event_id, logged.action, logged.reward) == ("event 1", 1, 1.0)
    assert logged.probabilities == [0.2, 0.8]
    assert not logged.request.defer


def test_a_line_of_vw_keeps_its_namespaces():
    context = {"GUser": {"id": "x"}, "_multi": [{"TAction": {"a": 1}}, {"TAction": {"a": 2}}]}
    [logged] = read_line(line(1, c=context, p=None, a=None, _skipLearn=True))
    assert [action.id for action in logged.request.actions] == ["1", "2"]
    assert json.loads(bytes(logged.request.context))["GUser"] == {"id": "x"}
    assert json.loads(bytes(logged.request.actions[0].features)) == {"TAction": {"a": 1}}
    assert logged.probabilities == pytest.approx([0.2, 0.8])
    assert (logged.reward, logged.request.defer) == (None, True)


WRONG = {
    b"{": "truncated",
    b"[]": "Expected `object`",
    line(1, c=None): "c: Expected `object`",
    line(1, c={}): "c._multi: Expected `array`",
    line(1, c={"_multi": []}): "c._multi must be a list of actions, got none",
    line(1, c={"_multi": [1]}): "_multi must be a JSON object",
    line(1, _label_Action=3): "_label_Action must be in 1 to 2",
    line(1, _label_probability=0): "_label_probability must be in (0, 1]",
    line(1, _label_cost="x"): "_label_cost must be a finite number",
    line(1, EventId=None): "EventId must be a text",
    line(1, p=[0.5, 0.1]): "p must be at least 0 and sum to 1",
    line(1, a=[1, 1]): "a must name each of 2 actions once",
    line(1, a=[1]): "a must name each of 2 actions once",
    line(1, cost=-2.0): "-_label_cost must be in [-1, 1]",
    line(1, _outcomes=[]): "c._slots: Expected `array`",
    slots_line(1, _outcomes=[]): "_outcomes must be a list with an outcome for each slot",
    slots_line(1, _outcomes=outcomes((0, 1))): "_slots and _outcomes must be of the same number",
    slots_line(1, _outcomes=outcomes(([0], [0.5, 0.5]), (1, 1))): "_p must have one entry for each of 1 actions",
    slots_line(1, _outcomes=outcomes((0, 0.5), (0, 1))): "_a must begin with an action that the slot may take",
    slots_line(1, _outcomes=outcomes((0, 0.5), (2, 1))): "_a must begin with an action that the slot may take",
    slots_line(1, _outcomes=outcomes((3, 0.5), (1, 1))): "_a must be in 0 to 2",
    slots_line(1, _outcomes=outcomes((0, 0), (1, 1))): "_p must be in (0, 1]",
    slots_line(1, EventId=None, _outcomes=[{}, {}]): "each outcome must have an _id of its own",
    line(1, c={"x": [{}, 1], "_multi": [{"x": 1}, {"x": 2}]}): "x must hold numbers alone",
}


def imported(engine, file, **options):
    return import_decisions(
        engine.log, "bought", {file: decision_file(file, "dsjson", Columns())}, progress=lambda *_: None, **options
    )


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_line_is_named_and_passed_over_or_ends_the_import(tmp_path, wrong):
    file = tmp_path / "log.dsjson"
    file.write_bytes(b"\n".join([line("good"), b"", wrong, line("last")]))

    async def story():
        async with running(tmp_path) as engine:
            with pytest.raises(ValueError, match="line 3: ") as caught:
                imported(engine, file)
            assert WRONG[wrong] in str(caught.value)
            said = []
            result = imported(engine, file, wrong=said.append)
            assert (result.stored, result.existed, result.wrong) == (1, 1, 1)
            assert WRONG[wrong] in said[0]

    asyncio.run(story())


def test_what_is_imported_is_learned_and_evaluated_as_if_it_was_decided_here(tmp_path):
    file = tmp_path / "log.dsjson.gz"
    lines = [line(k, chosen=1 + k % 2, cost=-float(k % 4 < 2)) for k in range(400)]
    file.write_bytes(gzip.compress(b"\n".join([*lines, line("skipped", _skipLearn=True)])))

    async def story():
        async with running(tmp_path) as engine:
            result = imported(engine, file)
            assert (result.stored, result.existed, result.wrong) == (401, 0, 0)
            again = imported(engine, file)
            assert (again.stored, again.existed) == (0, 401)
            await engine.settle()
            statistics = engine.view("bought").statistics
            assert (statistics.ranks, statistics.settled, statistics.reward) == (401, 400, 200)
            assert engine.digest("bought") == engine.rebuilt("bought")
            events = list(await engine.events("bought"))
            assert [events[0][name] for name in ("event_id", "action", "probability", "reward")] == [
                "event 0",
                "a",
                0.8,
                1.0,
            ]
            assert events[0]["context"]["_timestamp"] == "2024-05-01T10:00:00.000Z"
            assert events[-1]["status"] == "deferred"
            report = await engine.evaluate("bought", ["uniform", "constant:a"], ["snips"])
            assert report["n"] == 400

    asyncio.run(story())


def test_slots_are_learned_from_and_known_again(tmp_path):
    file = tmp_path / "log.dsjson"
    file.write_bytes(b"\n".join([*[slots_line(k) for k in range(30)], line("one"), slots_line(0)]))

    async def story():
        async with running(tmp_path) as engine:
            result = imported(engine, file)
            assert (result.stored, result.existed, result.wrong) == (61, 2, 0)
            assert imported(engine, file)[:2] == (0, 63)
            await engine.settle()
            assert engine.view("bought").statistics.settled == 61
            assert engine.digest("bought") == engine.rebuilt("bought")
            events = {one["event_id"]: one for one in await engine.events("bought")}
            assert [events[f"visit 7~{k}"]["action"] for k in (1, 2)] == ["b", "a"]
            assert events["visit 7~2"]["context"]["slot"]["id"] == "side"
            report = await engine.evaluate("bought", ["uniform"], ["snips"])
            assert report["n"] == 61

    asyncio.run(story())


def test_the_command_makes_a_store_and_can_be_run_again(tmp_path):
    first, second, store = tmp_path / "one.dsjson", tmp_path / "two.dsjson", f"sqlite:///{tmp_path}/fedres.db"
    first.write_bytes(b"\n".join([line(k) for k in range(20)]))
    second.write_bytes(b"\n".join([line(k) for k in range(10, 30)] + [b"rubbish"]))
    run = CliRunner().invoke
    ended = run(app, ["log", "import", str(first), str(second), "--loop", "shop", "--store", store])
    assert ended.exit_code != 0
    assert f"{second}, line 21: " in ended.output
    ended = run(app, ["log", "import", str(first), str(second), "--loop", "shop", "--store", store, "--skip-wrong"])
    assert ended.exit_code == 0, ended.output
    assert "0 events imported into loop 'shop'; 40 existed already, 1 lines skipped" in ended.output
    assert run(app, ["log", "verify", "--store", store]).exit_code == 0
    (tmp_path / "x.jsonl").write_text("{}")
    ended = run(app, ["log", "import", str(first), str(tmp_path / "x.jsonl"), "--store", store])
    assert "FILE must be one exported log, or files of decisions, got 2 files" in ended.output


def test_an_interrupted_import_says_how_to_go_on(tmp_path, monkeypatch):
    file = tmp_path / "one.dsjson"
    file.write_bytes(line(1))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("service.plugins.tools.importing.import_decisions", interrupted)
    ended = CliRunner().invoke(app, ["log", "import", str(file), "--store", f"sqlite:///{tmp_path}/fedres.db"])
    assert (ended.exit_code, "run the command again to go on" in ended.output) == (130, True)

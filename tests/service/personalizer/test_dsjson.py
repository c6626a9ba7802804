"""dsjson into a loop: what is read of a line, what is stored, and what is said of wrong lines."""

import asyncio
import gzip
import json

import pytest
from machine import running
from typer.testing import CliRunner

from service.cli.base import app
from service.personalizer.dsjson import read_line
from service.personalizer.importing import WrongLine, import_dsjson


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


def test_a_line_is_what_azures_client_sent():
    logged = read_line(line(1))
    assert [action.id for action in logged.request.actions] == ["a", "b"]
    assert json.loads(bytes(logged.request.actions[1].features)) == {"topic": "b"}
    context = json.loads(bytes(logged.request.context))
    assert context == {
        "user": {"taste": "b"},
        "device": {"mobile": True},
        "_timestamp": "2024-05-01T10:00:00.000Z",
    }
    assert (logged.request.event_id, logged.action, logged.reward) == ("event 1", 1, 1.0)
    assert logged.probabilities == [0.2, 0.8]
    assert not logged.request.defer


def test_a_line_of_vw_keeps_its_namespaces():
    context = {"GUser": {"id": "x"}, "_multi": [{"TAction": {"a": 1}}, {"TAction": {"a": 2}}]}
    logged = read_line(line(1, c=context, p=None, a=None, _skipLearn=True))
    assert [action.id for action in logged.request.actions] == ["1", "2"]
    assert json.loads(bytes(logged.request.context))["GUser"] == {"id": "x"}
    assert json.loads(bytes(logged.request.actions[0].features)) == {"TAction": {"a": 1}}
    assert logged.probabilities == pytest.approx([0.2, 0.8])
    assert (logged.reward, logged.request.defer) == (None, True)


WRONG = {
    b"{": "truncated",
    b"[]": "the line must be an object",
    line(1, c=None): "c must be an object",
    line(1, c={}): "c._multi must be a list",
    line(1, _label_Action=3): "_label_Action must be in 1 to 2",
    line(1, _label_probability=0): "_label_probability must be in (0, 1]",
    line(1, _label_cost="x"): "_label_cost must be a finite number",
    line(1, EventId=None): "EventId must be a text",
    line(1, p=[0.5, 0.1]): "p must be at least 0 and sum to 1",
    line(1, a=[1, 1]): "a must name each of 2 actions once",
    line(1, cost=-2.0): "-_label_cost must be in [-1, 1]",
    line(1, _outcomes=[]): "must be of one slot",
    line(1, c={"x": [{}, 1], "_multi": [{"x": 1}, {"x": 2}]}): "x must hold numbers alone",
}


def imported(engine, file, **options):
    return import_dsjson(engine.log, "bought", [file], progress=lambda *_: None, **options)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_line_is_named_and_passed_over_or_ends_the_import(tmp_path, wrong):
    file = tmp_path / "log.dsjson"
    file.write_bytes(b"\n".join([line("good"), b"", wrong, line("last")]))

    async def story():
        async with running(tmp_path) as engine:
            with pytest.raises(WrongLine, match="line 3: ") as caught:
                imported(engine, file)
            assert WRONG[wrong] in str(caught.value)
            said = []
            found = imported(engine, file, wrong=said.append)
            assert (found.stored, found.known, found.wrong) == (1, 1, 1)
            assert WRONG[wrong] in said[0]

    asyncio.run(story())


def test_what_is_imported_is_learned_and_evaluated_as_if_it_was_decided_here(tmp_path):
    file = tmp_path / "log.dsjson.gz"
    lines = [line(k, chosen=1 + k % 2, cost=-float(k % 4 < 2)) for k in range(400)]
    file.write_bytes(gzip.compress(b"\n".join([*lines, line("skipped", _skipLearn=True)])))

    async def story():
        async with running(tmp_path) as engine:
            found = imported(engine, file)
            assert (found.stored, found.known, found.wrong) == (401, 0, 0)
            again = imported(engine, file)
            assert (again.stored, again.known) == (0, 401)
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
            assert events[-1]["status"] == "deferred"
            report = await engine.evaluate("bought", ["uniform", "constant:a"], ["snips"])
            assert report["n"] == 400

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
    assert "loop 'shop' has 0 more events; 40 were there, 1 lines wrong" in ended.output
    assert run(app, ["log", "verify", "--store", store]).exit_code == 0
    ended = run(app, ["log", "import", str(first), str(tmp_path / "x.jsonl"), "--store", store])
    assert "FILE must be one file" in ended.output

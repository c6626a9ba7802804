"""``fedres bandit`` and ``fedres evaluate`` as a stranger would use them."""

import json

import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from service.cli import app

SMALL = ["--clients", "3", "--rounds", "200", "--rollouts", "2"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDRES_DATA", raising=False)


def fedres(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize("policy", ["explore-every", "epsilon-greedy", "squarecb", "linucb"])
def test_bandit_prints_a_table_and_writes_json_and_a_picture(tmp_path, policy):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    result = fedres("bandit", "digits", *SMALL, "--policy", policy, "--json", out, "--plot", picture)
    assert result.exit_code == 0, result.output
    assert all(word in result.output for word in ("independent", "central", "fedres", "regret", policy))
    content = json.loads(out.read_text())
    assert (content["dataset"], content["clients"], content["rounds"]) == ("digits", 3, 200)
    assert [row["scheme"] for row in content["results"]] == ["independent", "central", "fedres"]
    assert {row["policy"] for row in content["results"]} == {policy}
    assert imread(picture).std() > 0.05


def test_the_decisions_of_a_bandit_can_be_evaluated(tmp_path):
    log, out = tmp_path / "log.jsonl", tmp_path / "out.json"
    assert fedres("bandit", "digits", *SMALL, "--epsilon", 0.5, "--log", log).exit_code == 0
    result = fedres(
        "evaluate", log, "--policy", "uniform", "--policy", "constant:3", "--estimator", "ips", "--json", out
    )
    assert result.exit_code == 0, result.output
    rows = {row["policy"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["uniform"]["low"] < 0.1 < rows["uniform"]["high"]  # ten classes: a uniform choice earns a tenth
    assert rows["logging"]["estimator"] == "mean"


def test_intervals_can_be_time_uniform_by_event_or_for_a_range_that_is_known(tmp_path):
    log, widths = tmp_path / "log.jsonl", []
    assert fedres("bandit", "digits", *SMALL, "--epsilon", 0.5, "--log", log).exit_code == 0
    for words in ([], ["--time-uniform"], ["--reward-range", -1, 2]):
        result = fedres(
            "evaluate", log, "--policy", "uniform", "--estimator", "ips", "--by-event", *words, "--json", tmp_path / "o"
        )
        assert result.exit_code == 0, result.output
        document = json.loads((tmp_path / "o").read_text())
        widths.append(document["rows"][1]["high"] - document["rows"][1]["low"])
        assert document["n_users"] == document["n"] == 600
        assert document["time_uniform"] == (words == ["--time-uniform"])
    assert widths[0] < min(widths[1:])
    assert "3 users" in fedres("evaluate", log, "--policy", "uniform", "--estimator", "ips").output
    assert fedres("evaluate", log, "--reward-range", 0, 0.5).exit_code == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bandit", "digits", "--policy", "thompson"], "policy must be one of"),
        (["bandit", "digits", "--epsilon", "1.5"], "epsilon must be in [0, 1], got 1.5"),
        (["bandit", "digits", "--policy", "linucb", "--epsilon", "0.1"], "epsilon is not an option of linucb"),
        (["bandit", "digits", "--task", "other"], "task must be one of"),
        (["bandit", "digits", "--delay", "-1"], "delay must be an integer of at least 0, got -1"),
        (["bandit", "digits", "--clients", "0"], "clients must be an integer of at least 1, got 0"),
        (["bandit", "nowhere"], "nowhere"),
        (["bandit", "digits", "--schemes", "alone"], "schemes must be one of"),
        (["evaluate", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_bad_input_gets_one_clear_line_and_status_2(words, message):
    result = fedres(*words)
    assert result.exit_code == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("fedres: ")
    assert message in line


def test_a_log_without_probabilities_is_refused_with_its_line(tmp_path):
    event = {"event_id": "1", "context": {}, "actions": [{"id": "a"}, {"id": "b"}], "action": "a", "reward": 1}
    (tmp_path / "log.jsonl").write_text(json.dumps(event | {"probability": 0.5}) + "\n" + json.dumps(event) + "\n")
    result = fedres("evaluate", tmp_path / "log.jsonl")
    assert result.exit_code == 2
    assert "log.jsonl" in result.stderr
    assert "2" in result.stderr
    assert "probability" in result.stderr


def write_table(path):
    rows = ["who,country,banner,chance,bought"]
    rows += [f"u{i % 40},{['de', 'fr'][i % 2]},{'abc'[i % 3]},0.3333333,{int(i % 6 == 0)}" for i in range(300)]
    path.write_text("\n".join(rows))
    return path


COLUMNS = ["--action", "banner", "--reward", "bought", "--probability", "chance", "--user", "who"]


def test_a_table_is_evaluated_by_the_names_of_its_columns(tmp_path):
    log, out = write_table(tmp_path / "log.csv"), tmp_path / "out.json"
    words = ["--context", "country", "--actions", "a,b,c", "--json", out, "--plot", tmp_path / "out.png"]
    result = fedres("evaluate", log, *COLUMNS, *words)
    assert result.exit_code == 0, result.output
    assert imread(tmp_path / "out.png").std() > 0.05
    assert "300 decisions of 40 users" in result.output
    assert "read as action=banner, reward=bought, probability=chance, user=who, context=country" in result.output
    assert max(map(len, result.stdout.splitlines())) <= 100
    rows = {row["policy"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["greedy"]["value"] > 0.45  # `a` for those from de pays every time; a uniform choice a sixth
    assert rows["uniform"]["low"] < 1 / 6 < rows["uniform"]["high"]


def test_a_column_that_a_table_lacks_is_one_line(tmp_path):
    result = fedres("evaluate", write_table(tmp_path / "log.csv"))
    assert result.exit_code == 2
    assert result.stderr.startswith("fedres: action must name the column of ")
    assert result.stderr.endswith("with the action taken, one of who, country, banner, chance, bought\n")


def test_several_policies_are_compared_in_one_table(tmp_path):
    out, picture = tmp_path / "out.json", tmp_path / "out.png"
    result = fedres(
        "bandit", "digits", *SMALL, "--policy", "squarecb", "--policy", "greedy", "--json", out, "--plot", picture
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(out.read_text())["results"]
    assert [(row["policy"], row["scheme"]) for row in rows] == [
        (policy, scheme) for policy in ("squarecb", "greedy") for scheme in ("independent", "central", "fedres")
    ]
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 100
    assert imread(picture).std() > 0.05


def test_a_log_of_decisions_is_no_dataset_and_the_error_says_what_takes_it(tmp_path):
    log = tmp_path / "events.jsonl"
    log.write_text('{"event_id": "e"}\n')
    result = fedres("replay", log, "--rounds", 2)
    assert result.exit_code == 2
    assert f"which `fedres evaluate {log}` takes" in " ".join(result.stderr.split())

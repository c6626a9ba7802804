"""The command line as a stranger would use it."""

import json
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner
from waiting import until

from service.cli import app
from service.cli.serve import welcome
from service.log.opening import Store

SMALL = ["--rollouts", "3", "--rounds", "60", "--clients", "6"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDRES_DATA", raising=False)


def fedres(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_replay_prints_a_table_and_writes_the_documented_json(tmp_path):
    result = fedres("replay", "digits", *SMALL, "--json", tmp_path / "out.json", "--plot", tmp_path / "out.png")
    assert result.exit_code == 0, result.output
    assert all(name in result.output for name in ("independent", "central", "fedres", "vs independent"))
    content = json.loads((tmp_path / "out.json").read_text())
    head = {"dataset": "digits", "clients": 6, "rounds": 60, "rollouts": 3, "seed": 0, "samples_per_client": 30.0}
    assert {key: content[key] for key in head} == head
    row = content["results"][-1]
    assert set(row) == {
        *("scheme", "global_learner", "local_learner", "local_features", "timing", "delay"),
        *("accuracy", "accuracy_mean", "accuracy_se", "bits_up", "bits_down", "seconds", "gain_mean", "gain_se"),
    }
    assert 0.5 < row["accuracy_mean"] <= 1
    assert len(row["accuracy"]) == 3
    assert sum(row["accuracy"]) / 3 == pytest.approx(row["accuracy_mean"])
    assert imread(tmp_path / "out.png").std() > 0.05


def test_several_learners_are_compared_in_one_run_and_one_rollout_has_no_spread():
    learners = ["--global-learner", "fedres-sgd", "--global-learner", "fedogd"]
    words = ["--clients", 4, "--rounds", 20, "--rollouts", 1, *learners]
    result = fedres("replay", "digits", *words)
    assert result.exit_code == 0, result.output
    rows = [line.split()[:2] for line in result.output.splitlines() if "0." in line]
    learners_of = [(scheme, learner) for scheme, learner in rows if scheme == "fedres"]
    assert [scheme for scheme, _ in rows] == ["independent", "central", "fedres", "fedres"]
    assert learners_of == [("fedres", "fedres-sgd"), ("fedres", "fedogd")]
    assert "±" not in result.output


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_csv_file_with_few_classes_and_hyperparameters_on_the_command_line(tmp_path, n_classes):
    rng = np.random.default_rng(n_classes)
    kinds = rng.integers(n_classes, size=400)
    rows = [f"{30 + 9 * k + rng.normal():.3f},{'red' if k else 'blue'},species {k}" for k in kinds]
    (tmp_path / "birds.csv").write_text("\n".join(["wing,colour,species", *rows]))
    table = [tmp_path / "birds.csv", "--label", "species"]
    learners = ["--global-learner", "ofedavg:participation=0.5", "--global-learner", "ofedavg:participation=0.05"]
    result = fedres("replay", *table, *SMALL, *learners, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    *_, often, rare = json.loads((tmp_path / "out.json").read_text())["results"]
    assert often["accuracy_mean"] > 0.9
    assert rare["global_learner"] == "ofedavg:participation=0.05"
    assert rare["bits_up"] < often["bits_up"] / 4
    assert "species 1" in fedres("datasets", "show", *table).output
    bandit = fedres("bandit", *table, "--clients", 2, "--rounds", 50, "--rollouts", 1)
    assert bandit.exit_code == 0, bandit.output


def test_delays_shows_both_timing_rules_at_every_delay(tmp_path):
    words = ["--delays", "0,7,0", "--json", tmp_path / "out.json", "--plot", tmp_path / "out.svg"]
    result = fedres("delays", "digits", *SMALL, *words)
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "out.json").read_text())["results"]
    settings = [(row["scheme"], row["timing"], row["delay"]) for row in rows if row["scheme"] != "independent"]
    assert len(settings) == len(set(settings)) == 6
    assert {("fedres", "aligned", 7), ("fedres", "on-arrival", 7), ("central", "on-arrival", 7)} <= set(settings)
    assert "<svg" in (tmp_path / "out.svg").read_text()


def test_results_do_not_depend_on_the_number_of_jobs(tmp_path):
    rows = []
    for jobs in (1, 2):
        path = tmp_path / f"{jobs}.json"
        assert fedres("replay", "digits", *SMALL, "--jobs", jobs, "--json", path).exit_code == 0
        rows.append([{**row, "seconds": 0} for row in json.loads(path.read_text())["results"]])
    assert rows[0] == rows[1]


@pytest.mark.parametrize("name", ["fedres-erm", "fictitious-play", "fedogd", "ofedavg", "ofediq", "fedomd", "fedsea"])
def test_any_global_learner_can_be_the_shared_half(tmp_path, name):
    path = tmp_path / "out.json"
    words = ["--global-learner", name, "--schemes", "fedres", "--json", path, "--delay", "3"]
    result = fedres("replay", "digits", "--rollouts", "1", "--rounds", "60", "--clients", "6", *words)
    assert result.exit_code == 0, result.output
    row = json.loads(path.read_text())["results"][0]
    assert row["global_learner"] == name
    assert row["accuracy_mean"] > 0.6
    assert row["bits_up"] > 0


def test_vw_itself_gives_the_same_accuracies_as_its_twin(tmp_path):
    rows = []
    for learner in ("linear", "vw"):
        path = tmp_path / f"{learner}.json"
        words = ["--local-learner", learner, "--schemes", "fedres", "--json", path, "--delay", "4"]
        result = fedres("replay", "digits", "--rollouts", "1", "--rounds", "40", "--clients", "5", *words)
        assert result.exit_code == 0, result.output
        rows.append(json.loads(path.read_text())["results"][0])
    assert rows[0]["accuracy_mean"] == rows[1]["accuracy_mean"]


ONE_CLASS = "".join(f"1 1:{i} 2:{i * i}\n" for i in range(40))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["replay", "nonsense"], "nonsense"),
        (["replay", "one-class.svm"], "class"),
        (["replay", "broken.svm"], "line 2"),
        (["replay", "digits", "--clients", "5000"], "clients"),
        (["replay", "digits", "--clients", "0"], "clients must be an integer of at least 1, got 0"),
        (["replay", "digits", "--delay", "-1"], "delay must be an integer of at least 0, got -1"),
        (["replay", "digits", "--delay", "99999999999999999999"], "delay must be at most 100000"),
        (["replay", "digits", "--global-learner", "fedres-erm", "--local-learner", "vw"], "fedres-erm must have"),
        (["replay", "digits", "--schemes", "both"], "scheme must be one of central, fedres, independent, got 'both'"),
        (["replay", "digits", "--global-learner", "fedavg"], "global_learner must be one of"),
        (["replay", "digits", "--global-learner", "ofedavg:p=1"], "p is not a hyperparameter of ofedavg"),
        (["replay", "digits", "--label", "x"], "label must come with a .csv or .tsv file"),
        (["replay", "digits", "--timing", "late"], "timing must be one of aligned, on-arrival, got 'late'"),
        (["replay", "digits", "--local-features", "some"], "local_features must be one of all, half, got 'some'"),
        (["replay", "digits", "--jobs", "0"], "jobs must be at least 1, got 0"),
        (["replay", "digits", "--plot", "x.bmp"], "plot must end in .png, .svg, .pdf, got x.bmp"),
        (["replay", "digits", "--plot", "nowhere/x.png"], "plot must be in a folder that exists"),
        (["replay", "digits", "--json", "nowhere/x.json"], "json must be a file in a folder that exists"),
        (["replay", "digits", "--json", "."], "json must be a file in a folder that exists, got ."),
        (["delays", "digits", "--delays", "0,x"], "delays must be whole numbers from 0 on such as 1,2,3, got '0,x'"),
        (["delays", "digits", "--delays", "0,-5"], "delays must be whole numbers from 0 on such as 1,2,3, got '0,-5'"),
        (["reproduce", "fedres-99"], "figure must be one of"),
        (["reproduce"], "name figures to make, or give --list or --all"),
        (["datasets", "show", "nonsense"], "nonsense"),
        (["datasets", "fetch", "nonsense"], "nonsense"),
    ],
)
def test_bad_input_gets_one_clear_line_and_status_2(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    Path("one-class.svm").write_text(ONE_CLASS)
    Path("broken.svm").write_text("1 1:0.5\n2 1:abc\n")
    result = fedres(*words)
    assert result.exit_code == 2
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("fedres: ")
    assert message in lines[0]
    assert result.stdout == ""


def wait_for_a_line(folder, process):
    """Return the first journal of the folder once it has a line."""

    def journal():
        assert process.poll() is None, process.communicate()
        return next((path for path in folder.glob("*.jsonl") if "\n" in path.read_text()), None)

    return until(journal, "a line in a journal")


def test_a_replay_interrupted_by_ctrl_c_goes_on_where_it_was_and_cleans_up(tmp_path):
    unfinished = tmp_path / "cache" / "fedres" / "unfinished"
    words = ["replay", "digits", "--rollouts", "20", "--rounds", "300", "--clients", "20"]
    command = ["env", "--default-signal=INT", str(Path(sys.executable).with_name("fedres")), *words]  # jobs ignore it
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        journal = wait_for_a_line(unfinished, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 130
    assert "interrupted; long experiments resume when run again" in errors
    lines = journal.read_text().splitlines()
    assert 0 < len(lines) < 20
    kept = json.loads(lines[0])
    kept["result"]["outcomes"][0][0] = 100.0  # an impossible accuracy shows that the line is read, not made again
    journal.write_text(json.dumps(kept) + "\n")
    result = fedres(*words, "--json", tmp_path / "out.json")
    assert result.exit_code == 0
    independent = json.loads((tmp_path / "out.json").read_text())["results"][0]
    assert independent["accuracy_mean"] > 1
    assert list(unfinished.iterdir()) == []


def test_streams_for_a_service_that_is_not_there_are_refused_in_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    refused = fedres("bench", "decisions", "--http", url, "--streams", "digits")
    assert refused.exit_code == 2
    assert f"{url} must be a running service, got: " in " ".join(refused.output.split())


def test_datasets_are_listed_and_shown(tmp_path):
    listed = fedres("datasets", "list")
    assert listed.exit_code == 0
    assert re.search(r"digits .*1,797 .*64 .*10 .*yes", listed.output)
    shown = fedres("datasets", "show", "digits", "--json", tmp_path / "out.json")
    assert "digits: 1,797 rows, 64 features, 10 classes" in shown.output
    assert "█" in shown.output
    assert sum(json.loads((tmp_path / "out.json").read_text())["class_sizes"].values()) == 1797


def test_a_users_own_regression_file_is_shown_with_a_histogram(tmp_path):
    path = tmp_path / "mine.svm"
    path.write_text("".join(f"{i / 7} 1:{i}\n" for i in range(1, 50)))
    shown = fedres("datasets", "show", path)
    assert "49 rows, 1 features, regression" in shown.output
    assert "quartiles" in shown.output


def test_every_command_has_a_help_that_names_its_options():
    for command in (["replay"], ["delays"], ["reproduce"], ["datasets", "fetch"], ["datasets", "show"], []):
        result = fedres(*command, "--help")
        assert result.exit_code == 0
        assert len(result.output.splitlines()) > 8


def test_the_console_script_is_installed():
    command = [str(Path(sys.executable).with_name("fedres")), "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"fedres \d+\.\d+\.\d+\n", done.stdout)


def test_the_store_can_come_from_the_environment(tmp_path):
    environment = {"FEDRES_STORE": f"sqlite:///{tmp_path}/of-environment.db"}
    made = CliRunner().invoke(app, ["keys", "add", "rank"], env=environment)
    assert made.exit_code == 0, made.output
    assert (tmp_path / "of-environment.db-keys").exists()
    other = CliRunner().invoke(app, ["keys", "list", "--store", f"sqlite:///{tmp_path}/other.db"], env=environment)
    assert made.output.split("_")[1] not in other.output


def test_a_key_without_a_role_is_refused_with_the_roles(tmp_path):
    refused = CliRunner().invoke(app, ["keys", "add", "--store", f"sqlite:///{tmp_path}/store.db"])
    assert refused.exit_code == 2
    assert "ROLE must be one of rank, device, read and admin" in refused.stderr


def test_the_start_names_the_database_and_no_password():
    where = str(Store(Path("a/shop.postgresql"), "postgresql://anna:secret@db.example:5433/shop?sslmode=require"))
    assert where == f"postgresql://anna@db.example:5433/shop, snapshots of this machine in {Path('a').resolve()}"
    assert str(Store(Path("shop.postgresql"), "postgresql:///shop")).startswith("postgresql:///shop, ")
    assert str(Store(Path("a.db"))) == "a.db"
    said = welcome("http://127.0.0.1:8000", where, has_keys=False, demo=True)
    assert where in said
    assert "http://127.0.0.1:8000/demo" in said
    assert "Authorization" not in said
    assert "Authorization: Bearer $FEDRES_KEY" in welcome("http://127.0.0.1:8000", where, has_keys=True, demo=False)
    refused = CliRunner().invoke(app, ["serve", "--store", "postgres//anna:secret@db.example/shop"])
    assert refused.exit_code == 2
    assert "secret" not in refused.output


@pytest.mark.parametrize(
    ("option", "value"), [("--log-format", "xml"), ("--log-level", "loud"), ("--allowed-origin", "*")]
)
def test_options_of_logs_and_origins_are_checked(tmp_path, option, value):
    store = f"sqlite:///{tmp_path}/store.db"
    refused = CliRunner().invoke(app, ["serve", "--store", store, option, value])
    assert refused.exit_code == 2
    assert f"{option[2:]} must be" in refused.stderr


def test_the_paragraphs_of_help_are_not_broken_where_the_source_is():
    shown = CliRunner().invoke(app, ["log", "import", "--help"], env={"COLUMNS": "2000", "NO_COLOR": "1"}).output
    assert "A wrong line ends the import unless --skip-wrong is given." in shown

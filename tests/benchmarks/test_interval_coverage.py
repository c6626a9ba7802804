"""The script that measures intervals: its truths are true, and its tables complete."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "interval_coverage.py"


@pytest.fixture(scope="module")
def script():
    spec = spec_from_file_location("interval_coverage", SCRIPT)
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("weights", "per_user"), [("10", 1), ("heavy", 1), ("2", 10)])
def test_truths_are_those_of_a_long_log(script, weights, per_user):
    cell = script.Cell(weights, 0.3, 100_000, per_user)
    log = cell.draw(np.random.default_rng(0))
    value, difference = cell.truths()
    taken = log.action[log.chosen] == 0
    assert (taken * log.reward / log.propensity).mean() == pytest.approx(value, abs=0.02)
    assert value - log.reward.mean() == pytest.approx(difference, abs=0.02)
    assert (1 / log.propensity[taken]).max() <= (np.inf if weights == "heavy" else float(weights))


def test_a_log_of_the_first_days_is_the_same_log_but_shorter(script):
    log = script.Cell("2", 0.3, 60).draw(np.random.default_rng(0))
    short = script.first(log, 20)
    assert len(short) == 20
    assert [short.event(i) for i in range(20)] == [log.event(i) for i in range(20)]


def test_the_script_prints_all_tables_and_writes_its_numbers(script, tmp_path, monkeypatch, capsys):
    options = ["--logs", "1", "--cells", "1", "--json", str(tmp_path / "out.json")]
    monkeypatch.setattr(sys, "argv", [SCRIPT.name, *options])
    script.main()
    assert capsys.readouterr().out.count("|---") == 3 * 10
    document = json.loads((tmp_path / "out.json").read_text())
    assert list(document) == ["events", "users", "looks"]
    assert document["looks"][0]["time-uniform snips value"][0] in (0, 1)

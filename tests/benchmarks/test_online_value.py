"""The script that measures the policy ``fedres`` on simulated logs, small."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "online_value.py"


def test_it_prints_a_row_for_every_log_and_estimator(capsys):
    spec = spec_from_file_location("online_value", SCRIPT)
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main(["--logs", "2", "--events", "60"])
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row[0].strip("| "), row[4]) for row in rows] == [
        ("uniform", "snips"),
        ("uniform", "dr"),
        ("favourite", "snips"),
        ("favourite", "dr"),
    ]

"""The campaign can be stopped and goes on where it was, and a failure stays one."""

from campaign import Part, State, go_on, verdict


def test_a_part_that_was_stopped_goes_on_and_its_failures_are_kept(tmp_path):
    calls = []

    def run(first, n):
        calls.append((first, n))
        return ([f"seed {first}"] if first == 20 else []), {"most": first, "sum": n}

    part = Part("part", "things", 100, 10, run)
    go_on(part, State(tmp_path / "state"), 35, lambda line: None)
    assert calls == [(0, 10), (10, 10), (20, 10), (30, 5)]
    result = go_on(part, State(tmp_path / "state"), 50, lambda line: None)
    assert calls[4:] == [(35, 10), (45, 5)]
    assert verdict(part, result) == "part: 50 things, most 45, sum 50: 1 FAILURES"
    assert result["failures"] == ["seed 20"]

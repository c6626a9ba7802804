"""The benchmark of recommendations runs and measures every kind of request; no test here looks at how fast it is."""

import pytest
import recommend_load
import service_processes
from forked import FEDRES, Forked


@pytest.mark.slow
def test_one_request_in_four_is_for_a_page_and_changes_are_seen(monkeypatch):
    monkeypatch.setattr(service_processes, "COMMAND", (FEDRES,))
    monkeypatch.setattr(service_processes.subprocess, "Popen", Forked)
    items, per_second, *times, change, failures, lag, before, after = recommend_load.sustain(60, 0.5, n_connections=2)
    assert (items, failures) == ("60", "0")
    assert float(per_second) > 0
    assert len(times) == 3 + 6  # CPU by role, and p50 and p99 of three kinds of requests
    assert all(float(value) > 0 for value in (*times[3:], change, before, after))
    assert int(lag.replace(",", "")) >= 0

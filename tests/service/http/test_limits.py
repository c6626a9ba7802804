"""Token buckets: how many requests a key may make."""

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.http.keys import Buckets, Keys
from service.http.request import Limits


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_key_may_take_two_seconds_worth_at_once_and_then_its_rate():
    clock = Clock()
    buckets = Buckets(clock)
    assert [buckets.take("a", 10.0) for _ in range(20)] == [0.0] * 20
    assert buckets.take("a", 10.0) == pytest.approx(0.1)
    clock.now = 0.5
    assert [buckets.take("a", 10.0) > 0 for _ in range(6)] == [False] * 5 + [True]


def test_one_key_does_not_take_from_another():
    buckets = Buckets(Clock())
    while not buckets.take("a", 1.0):
        pass
    assert buckets.take("b", 1.0) == 0.0


def test_a_slow_rate_still_lets_one_through():
    clock = Clock()
    buckets = Buckets(clock)
    assert buckets.take("a", 0.01) == 0.0
    assert buckets.take("a", 0.01) == pytest.approx(100.0)


def test_limits_name_what_is_wrong_with_them():
    with pytest.raises(ValueError, match="actions must be an integer of at least 1, got 0"):
        Limits(actions=0)
    with pytest.raises(ValueError, match="request_seconds must be positive and finite, got -1"):
        Limits(request_seconds=-1)


def test_no_key_is_limited_unless_it_or_the_service_has_a_rate(start):
    assert Limits().requests_per_second == 0
    with start() as live:
        free, slow = live.keys.add("rank"), live.keys.add("rank", rate=0.5)
        rotated = live.keys.rotate(slow.split("_")[1], grace_seconds=60.0)
        statuses = {}
        for key in (free, slow, rotated):
            with live.client(key) as client:
                statuses[key] = [client.get("/v1/settings").status_code for _ in range(4)]
    assert statuses == {free: [403] * 4, slow: [403, 429, 429, 429], rotated: [403, 429, 429, 429]}


def test_rates_of_keys_are_positive_and_kept_by_the_command_line(tmp_path):
    store = ("--store", f"sqlite:///{tmp_path}/store.db")
    assert CliRunner().invoke(app, ["keys", "add", "rank", "--rate", "0", *store]).exit_code == 2
    assert CliRunner().invoke(app, ["keys", "add", "rank", "--rate", "2.5", *store]).exit_code == 0
    assert [key.rate for key in Keys(tmp_path / "store.db").list()] == [2.5]
    assert "rank, 2.5/s" in CliRunner().invoke(app, ["keys", "list", *store]).output

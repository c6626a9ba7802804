"""Token buckets: how many requests a key may make."""

import pytest

from service.http.keys import Buckets
from service.http.request import Limits


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_key_may_take_two_seconds_worth_at_once_and_then_its_rate():
    clock = Clock()
    buckets = Buckets(10.0, clock)
    assert [buckets.take("a") for _ in range(20)] == [0.0] * 20
    assert buckets.take("a") == pytest.approx(0.1)
    clock.now = 0.5
    assert [buckets.take("a") > 0 for _ in range(6)] == [False] * 5 + [True]


def test_one_key_does_not_take_from_another():
    buckets = Buckets(1.0, Clock())
    while not buckets.take("a"):
        pass
    assert buckets.take("b") == 0.0


def test_a_slow_rate_still_lets_one_through():
    clock = Clock()
    buckets = Buckets(0.01, clock)
    assert buckets.take("a") == 0.0
    assert buckets.take("a") == pytest.approx(100.0)


def test_limits_name_what_is_wrong_with_them():
    with pytest.raises(ValueError, match="actions must be an integer of at least 1, got 0"):
        Limits(actions=0)
    with pytest.raises(ValueError, match="request_seconds must be positive and finite, got -1"):
        Limits(request_seconds=-1)

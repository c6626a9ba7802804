"""When a client tries the service, on a clock of the test's own."""

import math

import numpy as np
import pytest
from proxies import no_service

from fedres.client import Client
from fedres_client.availability import PROBE, TRY, Availability


@pytest.fixture
def clock():
    return [0.0]


@pytest.fixture
def availability(clock):
    return Availability(lambda: clock[0])


def test_while_the_service_is_away_one_call_at_a_time_is_tried(availability, clock):
    assert availability.begin() is TRY
    availability.failed(0.0, "refused")
    assert availability.begin() is PROBE
    assert [availability.begin() for _ in range(5)] == [None] * 5
    availability.end(PROBE, 0.0)
    assert availability.begin() is PROBE
    availability.worked()
    availability.end(PROBE, 0.0)
    assert availability.begin() is TRY


@pytest.mark.parametrize(("took", "rest"), [(0.01, 0.0), (0.2, 1.8), (1.0, 5.0)])
def test_after_a_try_that_took_long_none_is_made_for_a_while(availability, clock, took, rest):
    availability.failed(0.0, "no answer")
    assert availability.begin() is PROBE
    clock[0] = took
    availability.end(PROBE, 0.0)
    assert (availability.begin() is PROBE) == (rest == 0.0)
    clock[0] = took + rest - 1e-6
    assert availability.begin() is None
    clock[0] = took + rest + 1e-6
    assert (availability.begin() is PROBE) == (rest > 0.0)


def test_a_call_that_fails_while_others_are_answered_does_not_make_the_service_away(availability, clock):
    clock[0] = 1.0
    availability.worked()
    availability.failed(0.5, "a connection was lost")
    assert not availability.away
    availability.failed(1.5, "a connection was lost")
    assert availability.away


def test_no_more_than_a_tenth_of_many_calls_is_repeated(availability):
    repeated = 0
    for _ in range(1_000):
        availability.begin()
        repeated += availability.may_repeat()
    assert 95 <= repeated <= 101


def test_repeats_are_saved_up_for_a_moment_of_ten(availability):
    for _ in range(1_000):
        availability.begin()
    assert sum(availability.may_repeat() for _ in range(100)) == 10


@pytest.mark.parametrize("deadline", [0, -1, math.nan, "1", None.__class__, [1]])
def test_a_deadline_that_is_none_is_the_callers_mistake(deadline, caplog):
    with no_service() as url:
        with pytest.raises((TypeError, ValueError), match="timeout must be"):
            Client(url, timeout=deadline)
        with Client(url) as client:
            with pytest.raises((TypeError, ValueError), match="timeout must be"):
                client.rank(actions=["a"], timeout=deadline)
            assert not client._calls.availability.away
    assert "does not decide" not in caplog.text


def test_a_deadline_may_be_any_number():
    with no_service() as url, Client(url, timeout=np.float32(0.2)) as client:
        assert client.rank(actions=["a"], timeout=np.float32(0.1)).fallback

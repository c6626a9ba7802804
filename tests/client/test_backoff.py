"""Waits after failures: full jitter below a bound that doubles."""

import random

import pytest

from fedres_client.backoff import FIRST, LONGEST, Backoff


def test_waits_are_spread_evenly_below_a_bound_that_doubles_with_each_failure():
    for failures in range(8):
        waits = []
        for seed in range(4000):
            backoff = Backoff(random.Random(seed))
            backoff.failures = failures
            waits.append(backoff.failed())
        bound = FIRST * 2**failures
        assert min(waits) >= 0
        assert max(waits) <= bound
        # The mean of 4,000 numbers that are even below the bound has a standard error of bound / 219.
        assert sum(waits) / len(waits) == pytest.approx(bound / 2, abs=4 * bound / 219)


def test_no_wait_is_longer_than_the_longest_however_often_it_failed():
    backoff = Backoff(random.Random(0))
    assert max(backoff.failed() for _ in range(3000)) <= LONGEST


def test_no_wait_is_shorter_than_the_service_asks_for():
    assert Backoff(random.Random(0)).failed(retry_after=77.0) >= 77.0


def test_after_a_success_waits_are_short_again():
    backoff = Backoff(random.Random(0))
    for _ in range(20):
        backoff.failed()
    backoff.worked()
    assert backoff.failed() <= FIRST

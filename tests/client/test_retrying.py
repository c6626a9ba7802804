"""When a call is tried again, on a clock of the test's own."""

import random

import pytest

from fedres_client.retrying import retrying
from fedres_client.wire import Answer, Failure, Finished, Request, Wait, advance

REQUEST = Request("POST", "/v1/rank", b"{}", seconds=0.5)
LOST = Failure("lost")


def played(answers, seconds=1.0, took=0.0, late=0.0, **options):
    """Drive a call through the answers; return the last one, the waits and the tries' seconds."""
    now, waits, tries = 0.0, [], []
    flow = retrying(REQUEST, seconds, clock=lambda: now, rng=random.Random(0), **options)
    step, answers = advance(flow, None), iter(answers)
    while not isinstance(step, Finished):
        if isinstance(step, Wait):
            waits.append(step.seconds)
            now += step.seconds + late
            step = advance(flow, None)
        else:
            tries.append(step.seconds)
            now += took
            step = advance(flow, next(answers))
    return step.value, waits, tries, now


def answer(status, **headers):
    return Answer(status, b"", headers)


@pytest.mark.parametrize("failure", [LOST, *map(answer, (408, 429, 500, 502, 503, 504))])
def test_what_passes_is_tried_again(failure):
    last, waits, tries, _ = played([failure, failure, answer(200)])
    assert (last.status, len(waits), len(tries)) == (200, 2, 3)


@pytest.mark.parametrize("status", [200, 204, 400, 401, 403, 404, 409, 413, 422])
def test_any_other_answer_is_final(status):
    assert len(played([answer(status)])[2]) == 1


@pytest.mark.parametrize("took", [0.0, 0.1, 0.3, 5.0])
def test_no_try_begins_after_the_deadline_and_none_may_last_beyond_it(took):
    last, _, tries, now = played([LOST] * 1000, seconds=1.0, took=took)
    assert last is LOST
    assert now - took < 1.0  # when the last try began
    assert all(seconds <= 0.5 for seconds in tries)
    assert tries[-1] <= 1.0 - (now - took)


def test_a_wait_that_took_longer_than_the_call_had_ends_it_with_the_last_failure():
    last, waits, tries, _ = played([LOST], late=2.0)
    assert (last, len(waits), tries) == (LOST, 1, [0.5])


def test_a_call_that_was_kept_from_its_first_try_until_its_deadline_is_not_tried():
    times = iter([0.0, 1.5])
    step = advance(retrying(REQUEST, 1.0, clock=lambda: next(times)), None)
    assert (isinstance(step, Finished), step.value) == (True, Failure("no answer within 1 s", is_late=True))


def test_a_wait_that_the_service_asks_for_is_kept_if_there_is_time_and_else_the_call_ends_at_once():
    _, waits, tries, _ = played([answer(429, **{"retry-after": "3"}), answer(200)], seconds=10.0)
    assert (waits[0] >= 3, len(tries)) == (True, 2)
    assert played([answer(503, **{"retry-after": "3"})], seconds=2.0)[1:3] == ([], [0.5])


def test_a_call_without_retries_is_tried_once():
    assert len(played([LOST], again=False)[2]) == 1

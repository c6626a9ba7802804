"""A short version of the loops in which the n-th call fails; ``make hardening`` runs all of them."""

import asyncio
import json

import failing_memory
import failing_sockets
import pytest
from desk import open_desk, untrue

from service.log.records import RANK, REWARD
from service.rank import decide
from service.rank.decide import choose


@pytest.mark.parametrize("how", failing_sockets.HOW)
def test_whichever_call_of_a_socket_fails_what_was_acknowledged_is_stored_and_the_rest_was_refused(how):
    n_refused = 0
    for nth in range(1, 70, 9):
        wrong, _, refused = failing_sockets.fail_at(how, nth)
        assert wrong == [], f"{how} at call {nth}"
        n_refused += refused
    assert (n_refused > 0) == (how != "short")  # a short write is nothing that a caller sees


@pytest.mark.skipif(failing_memory.missing() is not None, reason=str(failing_memory.missing()))
def test_where_memory_fails_a_call_is_refused_or_the_process_ends_and_nothing_acknowledged_is_lost():
    failures, figures = failing_memory.failing_memory(0, 4)
    assert failures == []
    for number in range(100, 1_100, 111):
        failures, more = failing_memory.failing_memory(number, 1)
        assert failures == []
        figures["processes that died"] += more["processes that died"]
    assert 0 < figures["processes that died"] < 13


@pytest.mark.skipif(failing_memory.missing() is not None, reason=str(failing_memory.missing()))
def test_a_choice_for_which_there_is_no_memory_fails_for_that_reason_whichever_allocation_fails(tmp_path, monkeypatch):
    errors = set()

    def failing_choose(*args, **how):
        for nth in range(1, 200):
            failing_memory._testcapi.set_nomemory(nth, nth + 1)
            try:
                choose(*args, **how)
            except Exception as error:
                errors.add(type(error))
            finally:
                failing_memory._testcapi.remove_mem_hooks()
        return choose(*args, **how)

    async def story():
        async with open_desk(tmp_path) as desk:
            await desk.ask(RANK, 0)  # compiles
            monkeypatch.setattr(decide, "choose", failing_choose)
            assert await desk.ask(RANK, 1)

    asyncio.run(story())
    assert errors == {MemoryError}


def test_what_callers_were_told_wrongly_is_found(tmp_path):
    async def story():
        async with open_desk(tmp_path) as desk:
            await desk.ask(RANK, 0)
            await desk.ask(REWARD, 0)
            return desk.acknowledged

    acknowledged = asyncio.run(story())
    assert untrue(tmp_path, acknowledged) == []
    other = {**json.loads(acknowledged[RANK, "e0"]), "action": "a9"}
    acknowledged |= {(RANK, "e0"): json.dumps(other), (RANK, "e1"): b"{}", (REWARD, "e2"): b""}
    assert [one.split()[0] for one in untrue(tmp_path, acknowledged)] == ["e0", "the", "the"]

"""Errors repeat a bounded part of what was sent, and failures of background tasks are logged."""

import asyncio
import logging

import pytest

from service.errors import LONGEST_MESSAGE, LONGEST_TARGET, ApiError
from service.logs import log_failure


def test_a_message_and_a_target_are_cut():
    error = ApiError(422, "invalid", "x" * 250_000, "y" * 250_000)
    assert str(error) == "x" * LONGEST_MESSAGE + "..."
    assert error.target == "y" * LONGEST_TARGET + "..."
    assert ApiError(404, "unknown", "short", "loop").args == (404, "unknown", "short", "loop", 1)


@pytest.mark.parametrize("fails", [True, False])
def test_a_background_task_that_fails_is_logged(caplog, fails):
    async def work():
        if fails:
            raise KeyError("planted")

    async def story():
        task = asyncio.ensure_future(work())
        task.add_done_callback(log_failure)
        cancelled = asyncio.ensure_future(asyncio.sleep(60))
        cancelled.add_done_callback(log_failure)
        cancelled.cancel()
        await asyncio.wait([task, cancelled])
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR, "fedres.service"):
        asyncio.run(story())
    assert ["planted" in record.exc_text for record in caplog.records] == [True] * fails

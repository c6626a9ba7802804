"""How tests wait: for a condition, with one generous limit for everything.

The limit is reached only when something is broken, so its size costs nothing. A slow machine may need a larger one:
``FEDRES_TEST_SECONDS`` sets it.
"""

import asyncio
import os
import time

import httpx

LIMIT = float(os.environ.get("FEDRES_TEST_SECONDS", "300"))


def until(condition, what="it"):
    """Return the first result of ``condition`` that is true, whatever connections it loses before."""
    failure = None
    for pause in _pauses():
        try:
            if value := condition():
                return value
        except (httpx.TransportError, OSError, EOFError) as error:
            failure = error
        time.sleep(pause)
    raise AssertionError(f"{what} did not happen within {LIMIT:g} s: {failure!r}")


async def until_async(condition, what="it"):
    """The same in an event loop; ``condition`` is a plain function."""
    for pause in _pauses():
        if value := condition():
            return value
        await asyncio.sleep(pause)
    raise AssertionError(f"{what} did not happen within {LIMIT:g} s")


def _pauses():
    """Yield seconds to wait before the next look, until the limit: a look takes time that others need."""
    pause = 0.005
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        yield pause
        pause = min(1.3 * pause, 0.1)


def be_patient():
    """Raise time-outs of the service that a slow machine reaches; tests about one of them lower it themselves."""
    from service.learn import control
    from service.log import client, workers
    from service.rank import look_ups, ranker

    time_outs = {
        client: ["DEADLINE_SECONDS", "REPLY_SECONDS"],
        control: ["SECONDS"],
        workers: ["SECONDS"],
        look_ups: ["LOOK_UP_SECONDS"],
        ranker: ["COMPILE_SECONDS"],
    }
    for module, names in time_outs.items():
        for name in names:
            assert name in vars(module), f"{module.__name__} has no {name}"
            setattr(module, name, LIMIT)
    ranker.RankerContext.until.__defaults__ = (LIMIT,)  # seconds

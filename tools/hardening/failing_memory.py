"""Memory allocation fails from the n-th on, in a process that ranks and rewards; it may die, but not lie.

CPython's own test module makes its allocators fail, so only what Python, msgspec and asyncio ask for is covered: numpy
and SQLite have allocators of their own.
"""

import asyncio
import faulthandler
import itertools
import json
import logging
import os
import signal
import tempfile
from pathlib import Path

from desk import open_desk, untrue, warm_up

from service.log import client as client_module
from service.log.records import RANK, REWARD
from service.roles.ranker import end_if_out_of_memory

try:
    import _testcapi
except ImportError:  # not in every build of Python
    _testcapi = None

HOW_MANY = (1, 30)  # allocations in a row that fail
SECONDS = 30  # for a child
HUNG = 72  # status of one that took longer


async def _play(folder, nth, how_many, say):
    """Rank and reward once undisturbed, then where memory fails, then until all is acknowledged."""
    asyncio.get_running_loop().set_exception_handler(end_if_out_of_memory)
    async with open_desk(folder) as desk:
        await desk.ask(RANK, 0)
        await desk.ask(REWARD, 0)
        _testcapi.set_nomemory(nth, nth + how_many)
        try:
            await desk.ask(RANK, 1)
            await desk.ask(REWARD, 1)
        finally:
            _testcapi.remove_mem_hooks()
            say("acknowledged", [[*call, reply.decode()] for call, reply in desk.acknowledged.items()])
        if not desk.writer.is_alive():  # its process would have ended; this one has its locks, so it ends too
            return
        await desk.ask_again()
        say("acknowledged", [[*call, reply.decode()] for call, reply in desk.acknowledged.items()])
        for wrong in desk.wrong:
            say("wrong", wrong)
        say("end", None)


def _child(folder, pipe, nth, how_many):
    logging.disable()
    faulthandler.disable()  # pytest's writes to a copy of the standard error
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # tracebacks of what is brought about here
    client_module.LOOK_SECONDS, client_module.DEADLINE_SECONDS = 0.05, 1.0
    seconds = itertools.count(1)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(HUNG) if next(seconds) > SECONDS else None)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)  # while a process is stopped, its seconds do not count

    def say(what, value):
        os.write(pipe, json.dumps([what, value]).encode() + b"\n")

    try:
        asyncio.run(_play(folder, nth, how_many, say))
    finally:
        os._exit(0)


def fail_at(nth, how_many):
    """Return what is wrong after allocations failed from the n-th on, and whether the process lived on."""
    with tempfile.TemporaryDirectory(prefix="fedres-fail-", dir="/dev/shm") as name:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _child(Path(name), write, nth, how_many)
        os.close(write)
        with open(read, "rb") as said:
            lines = [json.loads(line) for line in said]
        _, status = os.waitpid(pid, 0)
        acknowledged = {
            (kind, event): reply for what, value in lines if what == "acknowledged" for kind, event, reply in value
        }
        wrong = [value for what, value in lines if what == "wrong"] + untrue(Path(name), acknowledged)
    if os.waitstatus_to_exitcode(status) == HUNG:
        wrong.append("the process hung")
    return wrong, ["end", None] in lines


def missing():
    """Return why memory cannot be made to fail, None if it can."""
    return "this build of Python has no _testcapi" if _testcapi is None else None


def failing_memory(first, n):
    """Run the cases from a number on: one and many allocations fail, from the first on, from the second on, ..."""
    warm_up()
    failures, n_died = [], 0
    for number in range(first, first + n):
        how_many, nth = HOW_MANY[number % len(HOW_MANY)], 1 + number // len(HOW_MANY)
        wrong, lived = fail_at(nth, how_many)
        failures += [f"{how_many} from allocation {nth} on: {one}" for one in wrong]
        n_died += not lived
    return failures, {"processes that died": n_died}

"""The connection between ranker and log writer fails at its n-th call, on whichever side that is."""

import asyncio
import contextlib
import errno
import socket
import tempfile
from pathlib import Path
from unittest import mock

from desk import N_EVENTS, open_desk, untrue, warm_up
from waiting import LIMIT

from service.log.records import RANK, REWARD

HOW = ("error", "short", "cut")  # raises; moves a single byte; moves half of the bytes, then the connection ends
RAISED = {
    "connect": ConnectionRefusedError,
    "recv": ConnectionResetError,
    "send": lambda: OSError(errno.ENOBUFS, "no buffers"),
    "sendall": BrokenPipeError,
}
CALLS = 100  # more than a story has


class Faults:
    """Counts the calls of all sockets that are made meanwhile, and lets one of them fail."""

    def __init__(self, how, nth):
        self.how, self.nth, self.n = how, nth, 0

    def due(self):
        self.n += 1
        return self.n == self.nth

    @contextlib.contextmanager
    def armed(self):
        """Make all sockets fail in this way, those of the event loop itself left out."""
        faults = self

        class Faulty(socket.socket):
            def connect(self, address):
                if faults.due():
                    raise RAISED["connect"]()
                return super().connect(address)

            def recv(self, size, flags=0):
                if not faults.due():
                    return super().recv(size, flags)
                if faults.how == "error":
                    raise RAISED["recv"]()
                return super().recv(1, flags) if faults.how == "short" else b""

            def send(self, data, flags=0):
                if not faults.due():
                    return super().send(data, flags)
                if faults.how == "short":
                    return super().send(bytes(data[:1]), flags)
                if faults.how == "cut":
                    super().send(bytes(data[: len(data) // 2]), flags)
                raise RAISED["send"]()

            def sendall(self, data, flags=0):
                if not faults.due():
                    return super().sendall(data, flags)
                if faults.how == "short":
                    super().sendall(data[:1], flags)
                    return super().sendall(data[1:], flags)
                if faults.how == "cut":
                    super().sendall(data[: len(data) // 2], flags)
                raise RAISED["sendall"]()

        with mock.patch.object(socket, "socket", Faulty):
            yield self


async def _play(folder, faults):
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # it says what is brought about here
    with faults.armed():
        async with open_desk(folder) as desk:
            for k in range(N_EVENTS):
                for kind in (RANK, REWARD):
                    await desk.ready()
                    await asyncio.wait_for(desk.ask(kind, k), LIMIT)
            n_acknowledged = len(desk.acknowledged)
            await desk.ask_again()
            return desk, n_acknowledged


def fail_at(how, nth):
    """Let the n-th call fail; return what is wrong, whether there was an n-th, and how many calls were refused."""
    warm_up()
    faults = Faults(how, nth)
    with tempfile.TemporaryDirectory(prefix="fedres-fail-", dir="/dev/shm") as name:
        desk, n_acknowledged = asyncio.run(_play(Path(name), faults))
        wrong = desk.wrong + untrue(Path(name), desk.acknowledged)
    return wrong, faults.n >= nth, 2 * N_EVENTS - n_acknowledged


def failing_sockets(first, n):
    """Run the cases from a number on: every way to fail at the first call, then at the second, and so on."""
    failures, n_reached, n_refused = [], 0, 0
    for number in range(first, first + n):
        how, nth = HOW[number % len(HOW)], 1 + number // len(HOW)
        wrong, reached, refused = fail_at(how, nth)
        failures += [f"{how} at call {nth}: {one}" for one in wrong]
        n_reached, n_refused = n_reached + reached, n_refused + refused
    return failures, {"calls that failed": n_reached, "requests refused": n_refused}

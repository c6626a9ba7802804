"""Group commit in a process of its own: syncing and SQLite's work then cost the event loop neither time nor turns.

Whoever submits also talks to that process: the event loop when its socket has something to say, other threads while
they wait. None of them waits for a lock longer than it takes to send or read what is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from fedres.checks import whole
from service.store.log import Duplicate, Entry, Record, Refused
from service.store.opening import Connection, StoreUnavailable
from service.store.waiting import Awaiting, Blocking, Outcome, Submitted, Together, Told, Waiter, answer, dealt
from service.store.writing import (
    Append,
    Change,
    Checkpoint,
    Done,
    DropOlder,
    Erase,
    Failed,
    Frames,
    Report,
    Stored,
    framed,
    with_length,
)

BUFFER = 1 << 22  # bytes that may be on their way
SAID_AT_ONCE = 1 << 16  # bytes read at once
REST = 1.0  # seconds between two starts of the process
PAUSE = 10  # milliseconds after which a waiting thread looks whether another one has read its answer

_read = msgspec.msgpack.Decoder(Report).decode
_entry = partial(tuple.__new__, Entry)  # without a look at how many fields there are

Clock = Callable[[], int]


class Batch(NamedTuple):
    """What was sent together."""

    records: list[Record]
    submitted: Sequence[Submitted]  # the same records, or none, and who waits


class Writer:
    """Has what ``connect``, which must be picklable, opens written by another process; ``GroupCommit`` says how.

    The process keeps ``files`` open. If it dies, those who wait are told that it is not known what was stored, and the
    next record starts another.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        clock: Clock,
        files: Sequence[int] = (),
        max_waiting: int = 10_000,
    ) -> None:
        whole("max_waiting", max_waiting)
        self.appended: Callable[[list[Entry]], None] | None = None  # told what is durable, in the order of the log
        self._hello = with_length(pickle.dumps((sys.path, pickle.dumps(connect))))
        self._clock, self._files, self._max_waiting = clock, tuple(files), max_waiting
        self._turn = threading.RLock()
        self._gathered: deque[Submitted] = deque()
        self._sent: deque[Batch] = deque()
        self._n_sent = 0  # records in them
        self._unsent: deque[memoryview] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None  # watches the socket
        self._waking: asyncio.AbstractEventLoop | None = None  # is about to send
        self._closed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = -REST
        self._start()

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        return None if self._process is None else self._process.pid

    def submit_async(self, record: Record) -> asyncio.Future[int]:
        waiter = Awaiting()
        self._gather(Submitted([record], waiter))
        self._send_soon(waiter.get_loop())
        return waiter.answer

    def submit_together(self, records: Sequence[Record]) -> asyncio.Future[int]:
        together = Together()
        self._gather(Submitted(records, together))
        self._send_soon(together.get_loop())
        return together.answer

    def submit_all(self, records: Sequence[Record], waiter: Waiter) -> None:
        self._gather(Submitted(records, waiter))
        self._send_for(asyncio.get_running_loop())

    def _send_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._waking is not loop:
            self._waking = loop
            loop.call_soon(self._send_for, loop)

    def append(self, records: Sequence[Record]) -> list[int]:
        waiters = [Blocking() for _ in records]
        self._gather(*[Submitted([record], waiter) for record, waiter in zip(records, waiters, strict=True)])
        self._wait_until(lambda: all(waiter.answer.done() for waiter in waiters))
        return [waiter.answer.result() for waiter in waiters]

    def erase(self, loop: str, user: str, instead: Sequence[Record], needless: int) -> int:
        return self._have_done(Erase(self._clock(), loop, user, list(instead), needless))

    def drop_older(self, loop: str, kind: str, users: Sequence[str]) -> None:
        self._have_done(DropOlder(self._clock(), loop, kind, list(users)))

    def checkpoint(self) -> None:
        self._have_done(Checkpoint(self._clock()))

    def _have_done(self, change: Change) -> int:
        waiter = Blocking()
        with self._turn:
            self._send_gathered()
            self._send(framed(change), Batch([], [Submitted((), waiter)]))
        self._wait_until(waiter.answer.done)
        return waiter.answer.result()

    def close(self) -> None:
        self._closed = True
        self._wait_until(lambda: not self._gathered and not self._sent)
        with self._turn:
            self._end()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _gather(self, *submitted: Submitted) -> None:
        if self._closed:
            raise StoreUnavailable("closed", "the store takes no more records")
        n_new = sum([len(one.records) for one in submitted])
        if len(self._gathered) + self._n_sent + n_new > self._max_waiting:  # what is gathered is sent within this turn
            raise StoreUnavailable("overloaded", f"{self._max_waiting} records are waiting for the store")
        self._gathered.extend(submitted)  # at once, whatever other threads do

    def _send_for(self, loop: asyncio.AbstractEventLoop) -> None:
        self._waking = None  # if it comes too, it finds nothing
        with self._turn:
            self._send_gathered()
            self._watch(loop)

    def _wait_until(self, done: Callable[[], bool]) -> None:
        """Send and read, from any thread, until ``done``."""
        while not done():
            with self._turn:
                self._send_gathered()
                self._push()
                told = self._receive()
                waiting = self._socket if self._process is not None else None
            answer(told)
            if not told and waiting is not None:
                _await(waiting, bool(self._unsent))

    def _send_gathered(self) -> None:
        gathered = [self._gathered.popleft() for _ in range(len(self._gathered))]  # others may add to it meanwhile
        wanted = [one for one in gathered if one.waiter.starts()]
        if wanted:
            batch = Batch([record for one in wanted for record in one.records], wanted)
            try:
                self._send(framed(Append(self._clock(), batch.records)), batch)
            except UnicodeEncodeError:
                self._send_one_by_one(wanted)

    def _send_one_by_one(self, submitted: Sequence[Submitted]) -> None:
        """Refuse what has a record that is no Unicode; the others can be sent."""
        for one in submitted:
            try:
                batch = Batch(list(one.records), [one])
                self._send(framed(Append(self._clock(), batch.records)), batch)
            except UnicodeEncodeError as error:
                answer([(one.waiter, [Refused(f"a record must be valid Unicode: {error}") for _ in one.records])])

    def _send(self, frame: bytearray, batch: Batch) -> None:
        if self._process is None and not self._start():
            answer(_failed(batch, _gone))
            return
        self._sent.append(batch)
        self._n_sent += len(batch.records)
        self._unsent.append(memoryview(frame))
        self._push()

    def _push(self) -> None:
        """Send what the socket takes now; the event loop that watches, or the thread that waits, sends the rest."""
        try:
            while self._unsent:
                n_sent = self._socket.send(self._unsent[0])
                self._unsent[0] = self._unsent[0][n_sent:]
                if not self._unsent[0]:
                    self._unsent.popleft()
        except BlockingIOError:
            if self._loop is not None and self._loop is asyncio._get_running_loop():
                self._loop.add_writer(self._socket, self._when_writable)
        except OSError:  # the process has died: whoever reads next finds that out
            self._unsent.clear()

    def _when_writable(self) -> None:
        with self._turn:
            if self._loop is not None:
                self._loop.remove_writer(self._socket)
                self._push()

    def _when_readable(self) -> None:
        with self._turn:
            told = self._receive()
        answer(told)

    def _receive(self) -> list[Told]:
        """Return what the process has said since, and to whom."""
        if self._process is None:
            return []
        try:
            data = self._socket.recv(SAID_AT_ONCE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return self._lose()
        return [told for frame in self._frames.feed(data) for told in self._reported(_read(frame))]

    def _reported(self, report: Report) -> list[Told]:
        batch = self._sent.popleft()
        self._n_sent -= len(batch.records)
        if isinstance(report, Failed):
            return _failed(batch, lambda: StoreUnavailable(report.code, report.message))
        if isinstance(report, Done):
            return [(one.waiter, [report.answer]) for one in batch.submitted]
        if self.appended is not None:
            self.appended(_entries(report, batch.records))
        return dealt(batch.submitted, [one if isinstance(one, int) else _outcome(*one) for one in report.outcomes])

    def _lose(self) -> list[Told]:
        """Give the process up; return whom to tell that."""
        lost, self._sent, self._n_sent = list(self._sent), deque(), 0
        self._end()
        return [told for batch in lost for told in _failed(batch, _gone)]

    def _start(self) -> bool:
        """Return whether there is a process again."""
        if time.monotonic() < self._started_at + REST:
            return False
        self._started_at = time.monotonic()
        here, there = socket.socketpair()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        here.setblocking(False)
        with there:
            try:
                self._process = _started(there, self._files)
            except OSError:  # no memory, too many processes
                here.close()
                return False
        self._socket, self._frames, self._unsent = here, Frames(), deque([memoryview(self._hello)])
        self._push()
        return True

    def _end(self) -> None:
        """End the process once it has carried out what it was sent."""
        if self._process is None:
            return
        with contextlib.suppress(OSError):  # not connected: it has ended
            self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait()
        self._process = None
        watching, self._loop = self._loop, None
        if watching is None or watching.is_closed():
            self._socket.close()
        else:
            watching.call_soon_threadsafe(_unwatched, watching, self._socket)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._loop is loop or self._process is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._loop = loop
        loop.add_reader(self._socket, self._when_readable)
        self._push()


def _started(there: socket.socket, files: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", "from service.store.writing import main; main()"],
        stdin=there.fileno(),
        stdout=subprocess.DEVNULL,
        pass_fds=files,
        start_new_session=True,  # a Ctrl-C is for the one who asks
    )


def _failed(batch: Batch, error: Callable[[], Exception]) -> list[Told]:
    """Return an error for each record, as a raise marks it, and one for who waits for none."""
    return [(one.waiter, [error() for _ in range(max(1, len(one.records)))]) for one in batch.submitted]


def _await(sock: socket.socket, writing: bool) -> None:
    """Return when the socket has something to say, or after a while."""
    poll = select.poll()
    with contextlib.suppress(OSError, ValueError):  # closed by another thread
        poll.register(sock, select.POLLIN | (select.POLLOUT if writing else 0))
        poll.poll(PAUSE)


def _unwatched(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
    loop.remove_reader(sock)
    loop.remove_writer(sock)
    sock.close()


def _entries(stored: Stored, records: Sequence[Record]) -> list[Entry]:
    """Return those records that were stored, as the log has them."""
    time, numbered = stored.time, zip(stored.outcomes, records, strict=True)
    return [
        _entry((at, time, loop, kind, event, user, body))
        for at, (loop, kind, event, user, body) in numbered
        if isinstance(at, int)
    ]


def _outcome(message: str, first: int) -> Outcome:
    return Duplicate(message, first) if first else Refused(message)


def _gone() -> StoreUnavailable:
    return StoreUnavailable("gone", "the writer's process has ended, and it is not known what it stored: ask again")

"""The writer's process: appends what comes in by its standard input, a socket, and says what came of it.

All that has come in while a batch was being synced makes up the next one. The process ends with its input, and keeps
until then whatever files it was handed: the lease of the store among them.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from service.scheduling import yield_to_others
from service.store.log import Duplicate, Log, Record, Refused
from service.store.opening import Connection, StoreUnavailable

AT_ONCE = 1 << 20  # bytes read at once
MOVE_AFTER = 1 << 20  # bytes of records, after which they are moved to the database file when nobody waits
MOVE_ANYWAY = 1 << 22  # bytes after which nobody is waited for
MOVE_SHARE = 0.25  # of the time, at most, goes into that; SQLite itself moves after 64 MB


class Append(msgspec.Struct, tag=0, array_like=True, gc=False):
    time: int  # by the clock of who asks
    records: list[Record]


class Erase(msgspec.Struct, tag=1, array_like=True):
    time: int
    loop: str
    user: str
    instead: list[Record]
    needless: int

    def do(self, log: Log) -> int:
        return log.erase(self.loop, self.user, self.instead, self.needless)


class DropOlder(msgspec.Struct, tag=2, array_like=True):
    time: int
    loop: str
    kind: str
    users: list[str]

    def do(self, log: Log) -> int:
        log.drop_older(self.loop, self.kind, self.users)
        return 0


class Checkpoint(msgspec.Struct, tag=3, array_like=True):
    time: int

    def do(self, log: Log) -> int:
        log.checkpoint()
        return 0


class Stored(msgspec.Struct, tag=0, array_like=True, gc=False):
    time: int
    outcomes: list[int | tuple[str, int]]  # the position, or why not and the position of the first (0: no duplicate)


class Done(msgspec.Struct, tag=1, array_like=True):
    answer: int


class Failed(msgspec.Struct, tag=2, array_like=True):
    code: str
    message: str


Change: TypeAlias = Erase | DropOlder | Checkpoint
Order: TypeAlias = Append | Change
Report: TypeAlias = Stored | Done | Failed

_length = struct.Struct("<I")
_order = msgspec.msgpack.Decoder(Order).decode
_encode_into = msgspec.msgpack.Encoder(enc_hook=memoryview).encode_into  # bodies may be of a class derived from bytes


def framed(message: Order | Report) -> bytearray:
    """Return the message as it travels: its length comes first."""
    frame = bytearray(_length.size)
    _encode_into(message, frame, _length.size)
    _length.pack_into(frame, 0, len(frame) - _length.size)
    return frame


def with_length(body: bytes) -> bytearray:
    return bytearray(_length.pack(len(body)) + body)


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes | bytearray | memoryview) -> list[memoryview]:
        """Return the messages that end in ``data``, most of them as parts of it and not as copies."""
        if self._rest:
            self._rest += data
            data = self._rest
        view, at, found = memoryview(data), 0, []
        while len(view) - at >= _length.size:
            start = at + _length.size
            end = start + _length.unpack_from(view, at)[0]
            if end > len(view):
                break
            found.append(view[start:end])
            at = end
        if at or data is not self._rest:
            self._rest = bytearray(view[at:])
        return found


class Writing:
    """Carries out orders on a log that is opened with the first of them, and again after it could not be."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._log: Log | None = None
        self._time = 0
        self._unmoved = 0  # bytes of records, in the write-ahead log alone
        self._move_at = 0.0  # not before

    def carry_out(self, orders: Sequence[Order]) -> list[Report]:
        """Return what came of each; appends that follow each other are one transaction."""
        reports: list[Report] = []
        gathered: list[Append] = []
        for order in orders:
            if isinstance(order, Append):
                gathered.append(order)
                continue
            reports += self._append(gathered)
            gathered = []
            reports.append(self._change(order))
        return reports + self._append(gathered)

    def should_move(self, is_asked: Callable[[], bool]) -> bool:
        """Return whether to ``move`` now: little at a time, so that nobody is held up for long, and not always."""
        if self._unmoved < MOVE_AFTER or time.monotonic() < self._move_at:
            return False
        return self._unmoved >= MOVE_ANYWAY or not is_asked()

    def move(self) -> None:
        """Move what was written to the database file."""
        began, self._unmoved = time.monotonic(), 0
        with contextlib.suppress(StoreUnavailable):  # the next record says so too
            self._opened(self._time).checkpoint()
        ended = time.monotonic()
        self._move_at = ended + (ended - began) / MOVE_SHARE

    def _append(self, orders: Sequence[Append]) -> list[Report]:
        if not orders:
            return []
        try:
            log, records = self._opened(orders[-1].time), [record for order in orders for record in order.records]
            outcomes = [one if isinstance(one, int) else _shown(one) for one in log.append(records)]
        except Exception as error:
            return [_failed(error) for _ in orders]
        self._time = log.appended_at
        self._unmoved += sum([len(record.body) for record in records])
        reports: list[Report] = []
        for order in orders:
            mine, outcomes = outcomes[: len(order.records)], outcomes[len(order.records) :]
            reports.append(Stored(self._time, mine))
        return reports

    def _change(self, change: Change) -> Report:
        try:
            return Done(change.do(self._opened(change.time)))
        except Exception as error:
            return _failed(error)

    def _opened(self, time: int) -> Log:
        self._time = time
        if self._log is None:
            self._log = Log(self._connect, clock=lambda: self._time)
        return self._log


def _shown(refused: Refused) -> tuple[str, int]:
    return str(refused), refused.seq if isinstance(refused, Duplicate) else 0


def _failed(error: Exception) -> Failed:
    if isinstance(error, StoreUnavailable):
        return Failed(error.code, error.message)
    return Failed("failed", repr(error))


def main() -> None:
    """Work until the input ends; who asked may be gone before the answer."""
    yield_to_others()
    with contextlib.suppress(ConnectionError), socket.socket(fileno=0) as asking:
        frames, first = Frames(), list[memoryview]()
        while not first and (data := asking.recv(AT_ONCE)):
            first = frames.feed(data)
        if not first:
            return
        sys.path[:], connect = pickle.loads(first[0])
        work(asking, frames, first[1:], Writing(pickle.loads(connect)))


def work(asking: socket.socket, frames: Frames, waiting: list[memoryview], writing: Writing) -> None:
    """Carry out what waits and then what comes."""
    room = memoryview(bytearray(AT_ONCE))  # once: so much would be mapped and unmapped for every batch
    while waiting or (n_read := asking.recv_into(room)):
        waiting = waiting or frames.feed(room[:n_read])
        reports = writing.carry_out([_order(frame) for frame in waiting])
        asking.sendall(b"".join([framed(report) for report in reports]))
        waiting = []
        if writing.should_move(lambda: _is_asked(asking)):
            writing.move()


def _is_asked(asking: socket.socket) -> bool:
    return bool(select.select([asking], [], [], 0)[0])

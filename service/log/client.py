"""Clients of the log writer, for rankers and the learner: a Unix socket, one acknowledgement for each record.

A message between processes is a length, then its bytes, here in msgpack; rankers use the same frames for the learner
and their worker processes. A ranker sends the records of an event-loop turn in one message.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from service.log.protocol import NO_EPOCHS, Duplicate, Group, Outcome, Pruning, Refused, StoreUnavailable
from service.log.records import Record

MOST_WAITING = 10_000  # records
RETRY_SECONDS = 0.05  # between attempts to connect
REPLY_SECONDS = 60.0  # the learner waits for a reply
DEADLINE_SECONDS = 10.0  # a ranker waits for a reply; SQLite itself waits 5 s for a lock
LOOK_SECONDS = 1.0  # between checks of the writer
TRY_SECONDS = 10.0  # without a commit, before a test write checks the store

T = TypeVar("T")

LENGTH = struct.Struct("<I")
LARGEST_FRAME = 1 << 30  # bytes

_encode_into = msgspec.msgpack.Encoder().encode_into


def framed(message: Any) -> bytearray:
    """Return a message as a frame, in msgpack."""
    frame = bytearray(LENGTH.size)
    _encode_into(message, frame, LENGTH.size)
    LENGTH.pack_into(frame, 0, len(frame) - LENGTH.size)
    return frame


def framed_bytes(body: bytes) -> bytes:
    """Return bytes as a frame."""
    return LENGTH.pack(len(body)) + body


async def read_frame(stream: asyncio.StreamReader) -> bytes:
    """Return the next message of a stream."""
    return await stream.readexactly(_length(await stream.readexactly(LENGTH.size), LARGEST_FRAME))


def receive_frame(receive: Callable[[int], bytes | None], largest: int = LARGEST_FRAME) -> bytes:
    """Return the next message; ``receive`` returns at most n bytes, nothing at the end: then raise ``EOFError``."""
    return _exactly(receive, _length(_exactly(receive, LENGTH.size), largest))


def _exactly(receive: Callable[[int], bytes | None], size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = receive(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def _length(head: bytes, largest: int) -> int:
    length: int = LENGTH.unpack(head)[0]
    if length > largest:
        raise ConnectionError(f"a message must have at most {largest} bytes, got {length}")
    return length


class Frames:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that end in ``data``."""
        if self._rest:
            data = self._rest + data
        at, messages = 0, []
        while len(data) - at >= LENGTH.size:
            (length,) = LENGTH.unpack_from(data, at)
            if length > LARGEST_FRAME:
                raise ConnectionError(f"a message must have at most {LARGEST_FRAME} bytes, got {length}")
            end = at + LENGTH.size + length
            if end > len(data):
                break
            messages.append(data[at + LENGTH.size : end])
            at = end
        self._rest = data[at:]
        return messages


class Append(msgspec.Struct, tag=0, array_like=True, gc=False):
    """Groups of records to be stored, each whole or not at all."""

    id: int
    groups: list[list[Record]]
    epochs: dict[str, int] = {}  # of loops that the sender holds


class Erase(msgspec.Struct, tag=1, array_like=True):
    """A user to be erased, and what the ``erased`` record names: the position of the base, and a token."""

    id: int
    loop: str
    user: str
    base: int
    token: str
    epoch: int | None = None


class Ping(msgspec.Struct, tag=2, array_like=True):
    """Asks whether the store can be written: with ``write``, by a write that is synced."""

    id: int
    write: bool = False


class Scrub(msgspec.Struct, tag=3, array_like=True):
    """Requests that leftovers of deleted records are overwritten in all files; the reply is 1 once done, else 0."""

    id: int
    ticket: int  # the same until it is done


class Prune(msgspec.Struct, tag=4, array_like=True):
    """Requests to delete some old events; the reply has the next ``after``, and nothing once all is done."""

    id: int
    loop: str
    old: Pruning
    after: int
    epoch: int | None = None


class Done(msgspec.Struct, tag=0, array_like=True, gc=False):
    id: int
    outcomes: list[int | tuple[str, int]]  # a position, or an error and the position of the first (-1: no duplicate)


class Failed(msgspec.Struct, tag=1, array_like=True):
    """Nothing of a request was stored."""

    id: int
    code: str
    message: str


Request = Append | Erase | Ping | Scrub | Prune
Reply = Done | Failed

read_request = msgspec.msgpack.Decoder(Request).decode
read_reply = msgspec.msgpack.Decoder(Reply).decode


def as_reply(outcome: Outcome) -> int | tuple[str, int]:
    if isinstance(outcome, Refused):
        return str(outcome), outcome.position if isinstance(outcome, Duplicate) else -1
    return outcome


def as_outcome(reply: int | tuple[str, int]) -> Outcome:
    if isinstance(reply, int):
        return reply
    message, first = reply
    return Duplicate(message, first) if first >= 0 else Refused(message)


def _gone() -> StoreUnavailable:
    return StoreUnavailable("gone", "the log writer is gone, and it is unknown what it stored: try again")


def _silence() -> StoreUnavailable:
    silent = f"the log writer has not answered for {DEADLINE_SECONDS:g} s"
    return StoreUnavailable("timeout", f"{silent}, and it is not known what it stored: try again")


Waiting = tuple[Sequence[asyncio.Future[Outcome]], int, float]  # for a reply: how many records, sent when
NOT_WAITING: Waiting = ((), 0, 0.0)


class WriterClient(asyncio.Protocol):
    """The connection of a ranker; it reconnects by itself.

    Requests fail at once while there is no writer, or while it has been
    silent for longer than ``DEADLINE_SECONDS``. One timer for each connection checks that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids = itertools.count(1)
        self._waiting: dict[int, Waiting] = {}  # by request
        self._n_waiting = 0
        self._transport: asyncio.Transport | None = None
        self._frames = Frames()
        self._connecting: asyncio.Task[None] | None = None
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._silent = False  # since a deadline has passed, and until the next reply
        self._failure: str | None = None  # the store's last error, unless it has stored something since
        self._tried_at = 0.0  # when the last successful write was sent

    @property
    def trouble(self) -> str | None:
        """Why nothing can be stored at present, None if no reason is known."""
        if self._transport is None:
            return "there is no connection to the log writer"
        if self._silent:
            return _silence().message
        return self._failure and f"the store takes nothing: {self._failure}"

    async def connect(self) -> None:
        """Wait for a connection to the writer; reconnect whenever it is lost."""
        await asyncio.shield(self._look_for_writer())

    def _look_for_writer(self) -> asyncio.Task[None]:
        """Return the single task that connects: two would make two connections."""
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.ensure_future(self._connect())
        return self._connecting

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._closed and self._transport is None:
            try:
                await loop.create_unix_connection(lambda: self, str(self._path))
            except OSError:
                await asyncio.sleep(RETRY_SECONDS)

    def append(
        self, groups: Sequence[Group], futures: Sequence[asyncio.Future[Outcome]] | None = None
    ) -> Sequence[asyncio.Future[Outcome]]:
        """Return a future with the outcome of each group; ``futures`` are used if passed.

        Raise ``StoreUnavailable`` if nothing was sent; a future raises it if it is unknown what was stored.
        A future's result is ``Refused`` if its group cannot be stored.
        """
        loop = asyncio.get_running_loop()
        if self._closed:
            raise StoreUnavailable("closed", "the service is shutting down")
        if self._transport is None:
            raise _gone()
        if self._silent:
            raise _silence()
        n_records = sum(map(len, groups))
        if self._n_waiting + n_records > MOST_WAITING:
            raise StoreUnavailable("overloaded", f"{MOST_WAITING} records are waiting for the log")
        if futures is None:
            futures = [loop.create_future() for _ in groups]
        request = Append(next(self._ids), groups)  # type: ignore[arg-type]
        try:
            frame = framed(request)
        except UnicodeEncodeError as error:
            self._append_separately(groups, futures, error)
            return futures
        self._n_waiting += n_records
        self._waiting[request.id] = (futures, n_records, loop.time())
        self._transport.write(frame)
        return futures

    def _append_separately(
        self, groups: Sequence[Group], futures: Sequence[asyncio.Future[Outcome]], error: UnicodeEncodeError
    ) -> None:
        """Refuse the group that no frame can hold, and send the others."""
        if len(groups) == 1 and not futures[0].done():
            futures[0].set_result(Refused(f"a record must be valid Unicode: {error}"))
        if len(groups) > 1:
            for group, future in zip(groups, futures, strict=True):
                self.append([group], [future])

    def _look(self) -> None:
        """Fail requests that have waited too long; if nothing waits, ping the writer, at times with a test write."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_SECONDS, self._look)
        if self._transport is None:
            return
        now = loop.time()
        if self._waiting:
            _, _, sent = next(iter(self._waiting.values()))
            if now - sent > DEADLINE_SECONDS:
                self._silent = True
                self._fail_waiting(_silence())
        elif not self._silent:
            request = Ping(next(self._ids), self._failure is not None or now - self._tried_at > TRY_SECONDS)
            self._waiting[request.id] = ((), 0, now)
            self._transport.write(framed(request))

    def _fail_waiting(self, error: StoreUnavailable) -> None:
        lost, self._waiting = list(self._waiting.values()), {}
        for futures, n_records, _ in lost:
            self._fail(futures, n_records, error)

    def _fail(self, futures: Sequence[asyncio.Future[Outcome]], n_records: int, error: StoreUnavailable) -> None:
        self._n_waiting -= n_records
        for future in futures:
            if not future.done():
                future.set_exception(StoreUnavailable(error.code, error.message))

    # asyncio's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport, self._frames = transport, Frames()  # type: ignore[assignment]
        self._silent = False
        if self._timer is None:
            self._look()

    def data_received(self, data: bytes) -> None:
        """Settle what the writer has stored or refused."""
        for frame in self._frames.feed(data):
            reply = read_reply(frame)
            self._silent = False
            futures, n_records, sent = self._waiting.pop(reply.id, NOT_WAITING)  # too late: the caller no longer waits
            if isinstance(reply, Failed):
                error = StoreUnavailable(reply.code, reply.message)
                self._failure = str(error)
                self._fail(futures, n_records, error)
                continue
            self._n_waiting -= n_records
            if reply.outcomes:  # a ping that writes nothing has none
                self._failure, self._tried_at = None, sent
            for future, outcome in zip(futures, reply.outcomes if futures else (), strict=True):
                if not future.done():  # else the caller no longer waits
                    future.set_result(outcome if isinstance(outcome, int) else as_outcome(outcome))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._fail_waiting(_gone())
        if not self._closed:
            self._look_for_writer()

    async def close(self) -> None:
        """Accept no more requests, wait for pending ones as long as callers do, and close."""
        self._closed = True
        futures = [future for futures, _, _ in self._waiting.values() for future in futures]
        if futures:
            await asyncio.wait(futures, timeout=DEADLINE_SECONDS)
        self._fail_waiting(_silence())
        if self._timer is not None:
            self._timer.cancel()
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()


class BlockingWriter:
    """The learner's connection, for its few records: ticks and the base of an erasure."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket: socket.socket | None = None

    def append(self, groups: Sequence[Group], epochs: Mapping[str, int] = NO_EPOCHS) -> list[Outcome]:
        """Return the outcome of each group, or raise ``StoreUnavailable``."""
        replies = self._ask(Append(0, [list(group) for group in groups], dict(epochs)))
        return [as_outcome(reply) for reply in replies]

    def erase(self, loop: str, user: str, base: int, token: str, epoch: int | None = None) -> int | None:
        """Erase a user; return the number of records deleted last, None if more calls are needed."""
        n_erased = self._ask(Erase(0, loop, user, base, token, epoch))
        return int(n_erased[0]) if n_erased else None

    def prune(self, loop: str, old: Pruning, after: int, epoch: int | None = None) -> int | None:
        """Delete some old events; return the next ``after``, None once all is done."""
        following = self._ask(Prune(0, loop, old, after, epoch))
        return following[0] if following else None

    def scrub(self, ticket: int) -> bool:
        """Return whether all that was deleted before the first call with this ticket is overwritten in all files."""
        return self._ask(Scrub(0, ticket)) == [1]

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _ask(self, request: Request) -> list[Any]:
        """Return the outcomes; requests need no ids, as each waits for its reply."""
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX)
                self._socket.settimeout(REPLY_SECONDS)
                self._socket.connect(str(self._path))
            self._socket.sendall(framed(request))
            reply: Reply = read_reply(receive_frame(self._socket.recv))
        except (OSError, EOFError):
            self.close()
            raise _gone() from None
        if isinstance(reply, Failed):
            raise StoreUnavailable(reply.code, reply.message)
        return reply.outcomes

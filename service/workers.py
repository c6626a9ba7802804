"""Several processes that answer HTTP for one engine.

Workers take connections, TLS, keys, limits and slow clients; what they let in they hand to the engine's process over a
pair of sockets, and it answers as if it had been asked itself. One process decides, logs and learns, so that the log
has one writer and the models are the log's alone. A worker that dies is started again; workers whose engine dies end.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import multiprocessing
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from service.errors import ApiError
from service.http.gate import CLIENT, Gate
from service.http.keys import ANYONE, Key, Keys
from service.http.limits import Limits
from service.http.metrics import Requests
from service.http.replies import Receive, Scope, Send
from service.http.server import Server, Tls, stop_on_signals

LENGTH = struct.Struct("<I")
CARRIED = (b"content-type", b"if-none-match")  # headers
BROKEN = 0  # the status of an answer that was cut short
REST = 0.5  # seconds before a worker is started again, so that one that cannot live does not take the processor

log = logging.getLogger("fedres.service")

Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]


class Asked(msgspec.Struct, array_like=True, tag=True):
    """A request that a worker let in."""

    number: int
    method: str
    path: bytes  # still quoted
    query: bytes
    headers: list[tuple[bytes, bytes]]  # those of CARRIED
    body: bytes
    client: str | None  # the only device that the key may speak for


class Taken(msgspec.Struct, array_like=True, tag=True):
    """That the client has taken a part of the answer, or is gone; the next part waits for it."""

    number: int
    gone: bool


class Answered(msgspec.Struct, array_like=True):
    """A part of the answer; the first has the status and the headers."""

    number: int
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    more: bool


class Unlocked(Keys):
    """Keys of the engine's own process, to which only workers can speak: they have asked for the key already."""

    def identify(self, authorization: bytes | None) -> Key:
        return ANYONE


def counted(limits: Limits) -> Limits:
    """Return the limits for the engine's own process: workers have counted the requests of each key already."""
    return dataclasses.replace(limits, requests_per_second=1e9)


def _frame(message: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(message)
    return LENGTH.pack(len(body)) + body


async def _read(reader: asyncio.StreamReader) -> bytes:
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return await reader.readexactly(size)


def _run_among(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` as one of the tasks until it is done; nobody else holds it."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


class _Client:
    """What the engine's end knows of whom a worker asks for."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self._taken = asyncio.Event()

    def took(self, gone: bool) -> None:
        if gone:
            self.gone.set()
        self._taken.set()

    async def has_taken(self) -> None:
        """Return once the client has taken the last part, or is gone."""
        await self._taken.wait()
        self._taken.clear()


class Bridge:
    """The engine's end: plays requests from workers into ``app``."""

    def __init__(self, app: Asgi) -> None:
        self._app = app
        self._decode = msgspec.msgpack.Decoder(Asked | Taken).decode
        self._open: set[asyncio.Task[None]] = set()

    def open(self, worker: socket.socket) -> None:
        """Answer a worker until it goes."""
        _run_among(self._open, self._connected(worker))

    async def _connected(self, worker: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=worker)
        tasks: set[asyncio.Task[None]] = set()
        clients: dict[int, _Client] = {}
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                message = self._decode(await _read(reader))
                if isinstance(message, Asked):
                    client = clients[message.number] = _Client()
                    _run_among(tasks, self._answer(message, client, clients, writer))
                elif message.number in clients:
                    clients[message.number].took(message.gone)
        for client in clients.values():
            client.took(gone=True)
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()

    async def _answer(
        self, asked: Asked, client: _Client, clients: dict[int, _Client], writer: asyncio.StreamWriter
    ) -> None:
        start: dict[str, Any] = {"status": 500, "headers": []}
        body: list[bytes] = [asked.body]

        async def receive() -> dict[str, Any]:
            if not body:
                await client.gone.wait()
                return {"type": "http.disconnect"}
            return {"type": "http.request", "body": body.pop(), "more_body": False}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            more = message.get("more_body", False)
            answered = Answered(asked.number, start["status"], list(start["headers"]), message.get("body", b""), more)
            if client.gone.is_set():
                return
            writer.write(_frame(answered))
            if more:
                await client.has_taken()

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": asked.method,
            "path": asked.path.decode("latin-1"),
            "raw_path": asked.path,
            "query_string": asked.query,
            "headers": asked.headers,
            "root_path": "",
            "client": None,
            "server": None,
            CLIENT: asked.client,
        }
        try:
            await self._app(scope, receive, send)
        except Exception:  # after the answer began: the worker closes the connection
            log.exception("an answer was cut short")
            writer.write(_frame(Answered(asked.number, BROKEN, [], b"", more=False)))
        finally:
            del clients[asked.number]


class Forward:
    """A worker's end, as an ASGI application behind its gate."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._parts: dict[int, asyncio.Queue[Answered | None]] = {}
        self._asked = 0
        self._gone = False  # the engine's process, and it does not come back to this worker

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        if self._gone:
            raise _engine_gone()
        self._asked += 1
        number, parts = self._asked, asyncio.Queue[Answered | None]()
        self._parts[number] = parts
        headers = [(name, value) for name, value in scope["headers"] if name in CARRIED]
        path, body = scope["path"].encode("latin-1"), message.get("body", b"")
        asked = Asked(number, scope["method"], path, scope["query_string"], headers, body, scope[CLIENT])
        try:
            self._writer.write(_frame(asked))
            await self._pass_on(number, parts, receive, send)
        finally:
            del self._parts[number]

    async def _pass_on(self, number: int, parts: asyncio.Queue[Answered | None], receive: Receive, send: Send) -> None:
        leaving: asyncio.Future[None] | None = None
        part = await parts.get()
        if part is None:
            raise _engine_gone()
        if part.status != BROKEN:
            await send({"type": "http.response.start", "status": part.status, "headers": part.headers})
        try:
            while part is not None and part.status != BROKEN:
                await send({"type": "http.response.body", "body": part.body, "more_body": part.more})
                if not part.more:
                    return
                leaving = leaving or asyncio.ensure_future(_leaves(receive))
                self._writer.write(_frame(Taken(number, gone=leaving.done())))
                if leaving.done():
                    return
                part = await parts.get()
            raise ConnectionError("the engine's process did not answer to the end")
        finally:
            if leaving is not None:
                leaving.cancel()

    async def listen(self) -> None:
        """Hand out answers until the engine's process ends."""
        decode = msgspec.msgpack.Decoder(Answered).decode
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                part = decode(await _read(self._reader))
                waiting = self._parts.get(part.number)
                if waiting is not None:
                    waiting.put_nowait(part)
        self._gone = True
        for waiting in self._parts.values():
            waiting.put_nowait(None)


async def _leaves(receive: Receive) -> None:
    """Return once the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _engine_gone() -> ApiError:
    return ApiError(503, "engine_gone", "the engine's process has ended, and it is not known what it stored: ask again")


def _work(engine: socket.socket, store: Path, sock: socket.socket, limits: Limits, tls: Tls | None) -> None:
    """Be a worker."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_worker(engine, store, sock, limits, tls))


async def _worker(engine: socket.socket, store: Path, sock: socket.socket, limits: Limits, tls: Tls | None) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=engine)
    forward = Forward(reader, writer)
    gate = Gate(forward, hot={}, keys=Keys(store), limits=limits, requests=Requests())
    server = Server(gate, sock, limits, tls)
    stop_on_signals(server.stop)
    listening = asyncio.ensure_future(forward.listen())
    listening.add_done_callback(lambda _: server.stop())
    await server.serve()
    writer.close()


@contextlib.asynccontextmanager
async def working(
    n: int, app: Asgi, store: Path, sock: socket.socket, limits: Limits, tls: Tls | None
) -> AsyncIterator[list[int]]:
    """Run ``n`` workers on ``sock`` in front of ``app``; lends the ids of the processes there are."""
    bridge, ids = Bridge(app), list[int]()
    keepers = [asyncio.ensure_future(_keep(bridge, (store, sock, limits, tls), ids)) for _ in range(n)]
    try:
        yield ids
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)


async def _keep(bridge: Bridge, arguments: tuple[Any, ...], ids: list[int]) -> None:
    """Keep one worker alive; cancelled, let it answer what is under way and end it."""
    while True:
        ours, theirs = socket.socketpair()
        with theirs:  # the worker has its own copy, and closes it even when it is killed
            process = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs, *arguments))
            process.start()
        bridge.open(ours)
        assert process.pid is not None
        ids.append(process.pid)
        try:
            await _ended(process)
        except asyncio.CancelledError:
            process.terminate()
            await _ended(process)
            raise
        ids.remove(process.pid)
        await asyncio.sleep(REST)


async def _ended(process: BaseProcess) -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(process.sentinel, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(process.sentinel)

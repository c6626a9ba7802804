"""A TCP proxy that counts what crosses it, headers and all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass


@dataclass(slots=True)
class Counted:
    up: int = 0  # bytes from clients to the service
    down: int = 0

    def since(self, before: Counted) -> Counted:
        return Counted(self.up - before.up, self.down - before.down)

    def copy(self) -> Counted:
        return Counted(self.up, self.down)


@contextmanager
def counting(host: str, port: int) -> Iterator[tuple[str, Counted]]:
    """Lend an address that leads to ``host:port``, and the bytes that crossed so far."""
    counted, started = Counted(), threading.Event()
    running: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            there, back = await asyncio.open_connection(host, port)
            await asyncio.gather(pump(reader, back, "up"), pump(there, writer, "down"))

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> None:
        with suppress(ConnectionError, asyncio.CancelledError):
            while data := await reader.read(65_536):
                setattr(counted, name, getattr(counted, name) + len(data))
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        running.append((asyncio.get_running_loop(), asyncio.Event(), server.sockets[0].getsockname()[1]))
        started.set()
        await running[0][1].wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))  # cancels the remaining connections
    thread.start()
    started.wait()
    loop, ended, own_port = running[0]
    try:
        yield f"http://127.0.0.1:{own_port}", counted
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()

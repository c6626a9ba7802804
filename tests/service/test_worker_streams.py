"""Answers in parts on their way from the engine's process through a worker."""

import asyncio
import contextlib
import socket

from service.workers import Bridge, Forward

SCOPE = {"method": "GET", "path": "/", "query_string": b"", "headers": [], "fedres.client": None}
START = {"type": "http.response.start", "status": 200, "headers": []}


class Stream:
    """An application that answers in parts without end, until it is told that nobody listens."""

    def __init__(self):
        self.n_sent, self.left = 0, asyncio.Event()

    async def __call__(self, scope, receive, send):
        sending = asyncio.ensure_future(self._send(send))
        while (await receive())["type"] != "http.disconnect":
            pass
        sending.cancel()
        self.left.set()

    async def _send(self, send):
        await send(START)
        while True:
            await send({"type": "http.response.body", "body": b"part", "more_body": True})
            self.n_sent += 1


class Reader:
    """A client that takes parts when it is told to."""

    def __init__(self):
        self.n_taken, self.may_take, self.gone = 0, asyncio.Semaphore(0), asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if message["type"] == "http.response.body" and not self.gone.is_set():
            await self.may_take.acquire()
            self.n_taken += 1


@contextlib.asynccontextmanager
async def bridged(app):
    """Lend a worker's end in front of ``app``, and what ends the worker."""
    ours, theirs = socket.socketpair()
    Bridge(app).open(ours)
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    forward = Forward(reader, writer)
    listening = asyncio.ensure_future(forward.listen())
    yield forward, writer
    writer.close()
    await listening


async def asked(forward, reader):
    first = asyncio.Event()

    async def receive():
        if first.is_set():
            return await reader.receive()
        first.set()
        return {"type": "http.request", "body": b"", "more_body": False}

    await forward(SCOPE, receive, reader.send)


async def taken(reader, n):
    """Let a client take ``n`` parts, and return when it has."""
    wanted = reader.n_taken + n
    for _ in range(n):
        reader.may_take.release()
    while reader.n_taken < wanted:
        await asyncio.sleep(0.001)


def test_the_engine_makes_no_parts_that_the_client_has_not_asked_for_and_ends_when_it_leaves():
    async def story():
        app, reader, other = Stream(), Reader(), Reader()
        async with bridged(app) as (forward, _):
            asking = asyncio.ensure_future(asked(forward, reader))
            for _ in range(3):
                await taken(reader, 5)
                assert app.n_sent <= reader.n_taken
            slow, n_sent = reader.n_taken, app.n_sent
            beside = asyncio.ensure_future(asked(forward, other))
            await taken(other, 100)  # one who reads is not held up
            assert (reader.n_taken, app.n_sent <= n_sent + other.n_taken + 1) == (slow, True)
            for client, task in ((reader, asking), (other, beside)):
                client.gone.set()
                client.may_take.release()
                await task
            await app.left.wait()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_a_worker_that_ends_ends_the_answers_on_their_way():
    async def story():
        app, reader = Stream(), Reader()
        async with bridged(app) as (forward, writer):
            asking = asyncio.ensure_future(asked(forward, reader))
            await taken(reader, 1)
            writer.close()
            await app.left.wait()
            reader.may_take.release()
            await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 60))

"""A log writer in a thread, for tests: its log can be held up, and counts its batches."""

import asyncio
import socket
import sqlite3
import threading
from contextlib import asynccontextmanager, closing, contextmanager

from waiting import LIMIT, until_async

from service.log.client import Frames, Ping, WriterClient, framed, read_reply
from service.log.protocol import NO_EPOCHS
from service.log.records import Record
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.log.writer import Writer


def rank(event, body=b"{}", user=None, loop="shop"):
    return Record(loop, "rank", event, user, None, body)


def stored(file, loop="shop"):
    with SqliteLog(sqlite_file(file)) as log:
        return [entry.event for entry in log.read(loop, 0, 100_000)]


class HeldLog(SqliteLog):
    """A log whose appends wait for ``go``, so that a test can fill the queue; notes the events of each batch."""

    def __init__(self, connect):
        self.go, self.started, self.batches = threading.Event(), threading.Event(), []
        self.go.set()
        super().__init__(connect)

    def hold(self):
        self.go.clear()
        self.started.clear()

    def append(self, groups, epochs=NO_EPOCHS):
        if groups:
            self.started.set()
            assert self.go.wait(LIMIT)
            self.batches.append([record.event for group in groups for record in group])
        return super().append(groups, epochs)


class RunningWriter:
    """A writer in a thread, on a socket in ``folder``."""

    def __init__(self, folder, open_log=None):
        self.file, self.path = folder / "log.db", folder / "log.sock"
        self.log, self.committed = None, []
        self._open_log = open_log or (lambda: HeldLog(sqlite_file(self.file)))
        self.start()

    def start(self):
        self.listener = socket.socket(socket.AF_UNIX)
        self.path.unlink(missing_ok=True)
        self.listener.bind(str(self.path))
        self.listener.listen(16)
        self.writer = Writer(self.listener, self._opened, lambda n, seconds: self.committed.append(n))
        self._wake, waking = socket.socketpair()
        self.writer.watch(waking, self.writer.stop)  # readable once the other end is shut
        self._thread = threading.Thread(target=self._run, args=[waking])
        self._thread.start()

    def stop(self):
        self._wake.shutdown(socket.SHUT_WR)
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()
        self._wake.close()

    def is_alive(self):
        return self._thread.is_alive()

    def _opened(self):
        self.log = self._open_log()
        return self.log

    def _run(self, waking):
        try:
            self.writer.run()
        finally:
            self.listener.close()
            waking.close()


@contextmanager
def running_writer(folder, **options):
    running = RunningWriter(folder, **options)
    try:
        yield running
    finally:
        running.stop()


@asynccontextmanager
async def connected(writer, n_clients=1):
    """Lend connections of rankers."""
    clients = [WriterClient(writer.path) for _ in range(n_clients)]
    await asyncio.wait_for(asyncio.gather(*(client.connect() for client in clients)), LIMIT)
    try:
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients))


async def outcomes(futures):
    return await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), LIMIT)


async def ping(client):
    """Return if the store can be written, as the client finds out by itself now and then, else raise why not."""
    future, request = asyncio.get_running_loop().create_future(), Ping(next(client._ids), write=True)
    client._waiting[request.id] = ([future], 0, asyncio.get_running_loop().time())
    client._transport.write(framed(request))
    await future


async def held_up(writer, client):
    """Return the future of a record that is being committed, so that the next ones have to wait."""
    await ping(client)
    writer.log.hold()
    [first] = client.append([[rank("first")]])
    await asyncio.sleep(0)  # it is sent at the end of this turn
    assert await asyncio.to_thread(writer.log.started.wait, LIMIT)
    return first


async def arrived(*clients):
    """Wait until all that was appended before has been given to the sockets."""
    await until_async(lambda: not any(client._transport.get_write_buffer_size() for client in clients))


@contextmanager
def locked(file):
    """Keep others from writing."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield


def replies(raw, n):
    """Return ``n`` replies."""
    raw.settimeout(LIMIT)
    frames, answers = Frames(), []
    while len(answers) < n:
        data = raw.recv(1 << 16)
        assert data, "the writer hung up"
        answers += [read_reply(frame) for frame in frames.feed(data)]
    return answers

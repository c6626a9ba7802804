"""Failures of the writer: what is cut off, who is told what, and what a kill leaves behind."""

import asyncio
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
from contextlib import closing, contextmanager, suppress

import msgspec
import pytest
from waiting import LIMIT, until_async
from writers import (
    HeldLog,
    arrived,
    connected,
    held_up,
    locked,
    outcomes,
    ping,
    rank,
    replies,
    running_writer,
    stored,
)

from fedres.lease import Lease
from service.log import client as client_module
from service.log import writer as writer_module
from service.log.client import LENGTH, Append, BlockingWriter, Done, Ping, WriterClient, framed
from service.log.protocol import Duplicate, StoreUnavailable
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file

pytestmark = pytest.mark.anyio


async def test_a_store_that_is_locked_is_a_failure_of_these_records_alone(tmp_path):
    with running_writer(tmp_path, open_log=lambda: SqliteLog(sqlite_file(tmp_path / "log.db", 0.01))) as writer:
        async with connected(writer) as [client]:
            assert await outcomes(client.append([[rank("a")]])) == [1]
            with locked(writer.file):
                failed = await outcomes(client.append([[rank("b")], [rank("c")]]))
            assert [error.code for error in failed] == ["busy", "busy"]
            assert await outcomes(client.append([[rank("b")]])) == [2]


async def test_a_store_that_cannot_be_opened_is_tried_again_with_the_next_request(tmp_path):
    folder = tmp_path / "later"
    with running_writer(tmp_path, open_log=lambda: SqliteLog(sqlite_file(folder / "log.db"))) as writer:
        async with connected(writer) as [client]:
            [failed] = await outcomes(client.append([[rank("a")]]))
            assert (type(failed), failed.code) == (StoreUnavailable, "io")
            folder.mkdir()
            assert await outcomes(client.append([[rank("a")]])) == [1]


async def test_an_unforeseen_error_reaches_every_caller_and_stops_nothing(tmp_path):
    class Broken(HeldLog):
        broken = True

        def append(self, groups, epochs=None):
            if self.broken:
                raise RuntimeError("a mistake")
            return super().append(groups)

    with running_writer(tmp_path, open_log=lambda: Broken(sqlite_file(tmp_path / "log.db"))) as writer:
        async with connected(writer, 2) as clients:
            failed = await outcomes([*clients[0].append([[rank("a")]]), *clients[1].append([[rank("b")]])])
            assert [error.code for error in failed] == ["failed", "failed"]
            assert "a mistake" in str(failed[0])
            writer.log.broken = False
            assert await outcomes(clients[0].append([[rank("a")]])) == [1]


MALFORMED = {
    "too large": LENGTH.pack(2**31),
    "no msgpack": LENGTH.pack(3) + b"\xc1\xc1\xc1",
    "another message": LENGTH.pack(2) + msgspec.msgpack.encode([9]),
    "wrong types": LENGTH.pack(4) + msgspec.msgpack.encode([0, "x"])[:4],
    "no Unicode": bytes(framed(Append(1, [[rank("EVENT")]]))).replace(b"EVENT", b"\xff\xfe\xfd\xfc\xfb"),
    "nested too deeply": LENGTH.pack(100_004) + b"\x93\x02\x01" + b"\x91" * 100_000 + b"\xc0",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
async def test_a_client_that_sends_nonsense_is_cut_off_and_nobody_else(writer, data):
    async with connected(writer) as [client]:
        with closing(socket.socket(socket.AF_UNIX)) as raw:
            raw.connect(str(writer.path))
            raw.sendall(framed(Ping(7)))
            assert replies(raw, 1) == [Done(7, [])]
            raw.sendall(data)
            raw.settimeout(LIMIT)
            assert raw.recv(1) == b""
        assert await outcomes(client.append([[rank("a")]])) == [1]


async def test_a_client_that_goes_away_in_the_middle_of_a_message_disturbs_nobody(writer):
    async with connected(writer) as [client]:
        with closing(socket.socket(socket.AF_UNIX)) as raw:
            raw.connect(str(writer.path))
            raw.sendall(framed(Append(1, [[rank("half")]]))[:-3])
        assert await outcomes(client.append([[rank("a")]])) == [1]
    assert stored(writer.file) == ["a"]


async def test_a_client_that_does_not_read_is_dropped_and_others_are_answered(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "SEND_SECONDS", 0.05)
    async with connected(writer) as [client]:
        with closing(socket.socket(socket.AF_UNIX)) as raw:
            raw.connect(str(writer.path))
            raw.settimeout(LIMIT)
            pings = b"".join(bytes(framed(Ping(2**32 + k))) for k in range(20_000))
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                raw.sendall(pings * 100)
        assert await outcomes(client.append([[rank("a")]])) == [1]


async def test_too_many_that_wait_are_refused_at_once_and_after_the_end_all_are(writer, monkeypatch):
    monkeypatch.setattr(client_module, "MOST_WAITING", 4)
    async with connected(writer) as [client]:
        first = await held_up(writer, client)
        taken = client.append([[rank("a"), rank("b")], [rank("c")]])
        with pytest.raises(StoreUnavailable, match="4 records are waiting") as raised:
            client.append([[rank("too many")]])
        assert raised.value.code == "overloaded"
        writer.log.go.set()
        assert await outcomes([first, *taken]) == [1, 2, 4]
        assert await outcomes(client.append([[rank("again")]])) == [5]
    with pytest.raises(StoreUnavailable) as raised:
        client.append([[rank("late")]])
    assert raised.value.code == "closed"


async def test_closing_waits_for_all_that_was_taken(writer):
    async with connected(writer) as [client]:
        pending = client.append([[rank(str(k))] for k in range(500)])
        await client.close()
        assert all(future.done() for future in pending)
        assert await outcomes(pending) == list(range(1, 501))


async def test_a_writer_that_is_stopped_answers_what_has_arrived(writer):
    async with connected(writer) as [client]:
        first = await held_up(writer, client)
        rest = client.append([[rank("a")]])
        await arrived(client)
        writer.writer.stop()
        writer.log.go.set()
        assert await outcomes([first, *rest]) == [1, 2]


async def test_who_waits_for_a_writer_that_goes_is_told_and_finds_the_next_one(writer):
    async with connected(writer) as [client]:
        learner = BlockingWriter(writer.path)
        assert await asyncio.to_thread(learner.append, [[rank("a")]]) == [1]
        first = await held_up(writer, client)
        lost = client.append([[rank("b")], [rank("c")]])
        await arrived(client)
        for connection in list(writer.writer._clients):
            connection.shutdown(socket.SHUT_RDWR)  # as the end of a process does
        assert [error.code for error in await outcomes([first, *lost])] == ["gone"] * 3
        writer.log.go.set()
        await asyncio.to_thread(writer.stop)
        while client._transport is not None:  # it may have found the old one once more
            await asyncio.sleep(0.01)
        with pytest.raises(StoreUnavailable) as raised:
            client.append([[rank("d")]])
        assert raised.value.code == "gone"
        with pytest.raises(StoreUnavailable) as raised:
            learner.append([[rank("d")]])
        assert raised.value.code == "gone"
        writer.start()
        await asyncio.wait_for(client.connect(), LIMIT)
        [again] = await outcomes(client.append([[rank("first")]]))
        assert (type(again), again.position) == (Duplicate, 2)  # it had been stored, though nobody was told
        [after] = await outcomes(client.append([[rank("e")]]))
        assert learner.append([[rank("f")]]) == [after + 1]
        learner.close()


async def test_who_waits_for_a_silent_writer_is_told_and_nobody_has_to_wait_again_until_it_answers(writer, monkeypatch):
    monkeypatch.setattr(client_module, "LOOK_SECONDS", 0.01)
    async with connected(writer) as [client]:
        first = await held_up(writer, client)
        assert client.trouble is None
        monkeypatch.setattr(client_module, "DEADLINE_SECONDS", 0.05)
        [error] = await outcomes([first])
        assert (type(error), error.code) == (StoreUnavailable, "timeout")
        with pytest.raises(StoreUnavailable) as raised:
            client.append([[rank("second")]])
        assert raised.value.code == "timeout"
        assert "has not answered" in client.trouble
        writer.log.go.set()
        await until_async(lambda: client.trouble is None)
        [again] = await outcomes(client.append([[rank("first")]]))
        assert isinstance(again, Duplicate)


async def test_a_ranker_ends_although_the_writer_is_silent(writer, monkeypatch):
    async with connected(writer) as [client]:
        first = await held_up(writer, client)
        monkeypatch.setattr(client_module, "DEADLINE_SECONDS", 0.05)
        await asyncio.wait_for(client.close(), LIMIT)
        assert [error.code for error in await outcomes([first])] == ["timeout"]
        writer.log.go.set()


async def test_a_store_that_took_nothing_is_tried_until_it_does(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "LOOK_SECONDS", 0.01)
    with running_writer(tmp_path, open_log=lambda: SqliteLog(sqlite_file(tmp_path / "log.db", 0.01))) as writer:
        async with connected(writer) as [client]:
            assert await outcomes(client.append([[rank("a")]])) == [1]
            with locked(writer.file):
                await outcomes(client.append([[rank("b")]]))
                assert "takes nothing" in client.trouble
            await until_async(lambda: client.trouble is None)
    assert stored(writer.file) == ["a"]


async def test_a_store_that_nobody_writes_to_is_tried_too(tmp_path, monkeypatch):
    monkeypatch.setattr(client_module, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(client_module, "TRY_SECONDS", 0.0)
    with running_writer(tmp_path, open_log=lambda: SqliteLog(sqlite_file(tmp_path / "log.db", 0.01))) as writer:
        async with connected(writer) as [client]:
            await ping(client)
            with locked(writer.file):
                await until_async(lambda: client.trouble is not None)
            await until_async(lambda: client.trouble is None)


# processes

WRITER = """
import os, socket, sys
from pathlib import Path
from fedres.lease import Lease
from service.log.opening import Store, open_log
from service.log.writer import Writer

file, path = Path(sys.argv[1]), sys.argv[2]
lease = Lease(file)
lease.acquire()
listener = socket.socket(socket.AF_UNIX)
Path(path).unlink(missing_ok=True)
listener.bind(path)
listener.listen(16)
copy = os.dup(lease.file)
if os.fork() == 0:
    print(os.getpid(), flush=True)
    Writer(listener, lambda: open_log(Store(file))).run()
os.close(copy)
sys.stdin.read()
"""


@contextmanager
def writer_process(file, path):
    """Yield the holder of the lease and the pid of its writer, which inherits the lease."""
    command = [sys.executable, "-c", WRITER, str(file), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        pid = int(holder.stdout.readline())
        try:
            yield holder, pid
        finally:
            for process in (pid, holder.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            holder.stdout.read()


async def fill_until_killed(path, pid, n, positions):
    client = WriterClient(path)
    await asyncio.wait_for(client.connect(), LIMIT)

    async def fill(name):
        for k in range(10**6):
            event = f"{pid}-{name}-{k}"
            [positions[event]] = await asyncio.gather(*client.append([[rank(event, b"x" * 2_000)]]))
            if len(positions) == n:
                os.kill(pid, signal.SIGKILL)

    ended = await outcomes([asyncio.ensure_future(fill(name)) for name in range(8)])
    assert {error.code for error in ended} == {"gone"}
    await client.close()


async def test_a_killed_writer_loses_nothing_that_it_acknowledged(tmp_path):
    file, path, rng, positions = tmp_path / "log.db", tmp_path / "log.sock", random.Random(0), {}
    for _ in range(3):
        with writer_process(file, path) as (_, pid):
            await fill_until_killed(path, pid, len(positions) + rng.randint(20, 200), positions)
    with SqliteLog(sqlite_file(file), verify=True) as log:
        kept = {entry.event: entry.position for entry in log.read("shop", 0, 100_000)}
    assert len(positions) >= 60
    assert positions.items() <= kept.items()


def is_held(path):
    with path.open() as lease:
        try:
            fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


async def test_the_lease_outlives_a_killed_holder_until_its_writer_has_ended(tmp_path):
    file, path = tmp_path / "log.db", tmp_path / "log.sock"
    with writer_process(file, path) as (holder, pid):
        with closing(BlockingWriter(path)) as learner:
            learner.append([[rank("a")]])
            os.kill(holder.pid, signal.SIGKILL)
            holder.wait()
            assert is_held(Lease(file).path)
            learner.append([[rank("b")]])  # its last batch
        os.kill(pid, signal.SIGKILL)
        with Lease(file):  # waits for what the dead one left behind
            assert stored(file) == ["a", "b"]

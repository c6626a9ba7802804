"""The process that writes: every answer true, whoever asks, however many, and whoever dies."""

import asyncio
import socket
from contextlib import closing

import msgspec
import pytest
from writers import arrived, connected, held_up, locked, outcomes, ping, rank, replies, running_writer, stored

from service.log import writer as writer_module
from service.log.client import LENGTH, Append, BlockingWriter, Done, framed
from service.log.protocol import Duplicate, Refused, StoreUnavailable
from service.log.records import Record
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file

pytestmark = pytest.mark.anyio


# group commit


async def test_each_record_of_a_turn_is_answered_on_its_own_and_in_order(writer):
    async with connected(writer) as [client]:
        bad = [rank("a"), rank("\ud800"), rank("x", loop="")]
        records = [rank("a"), *bad, rank("b", b"x" * 5_000), rank("c")]
        first, *refused, b, c = await outcomes(client.append([[record] for record in records]))
    assert (first, b, c) == (1, 2, 3)
    assert [type(outcome) for outcome in refused] == [Duplicate, Refused, Refused]
    assert refused[0].position == 1
    assert stored(writer.file) == ["a", "b", "c"]


async def test_records_that_gather_during_a_commit_share_the_next_one_whoever_sent_them(writer):
    async with connected(writer, 3) as clients:
        await outcomes([ping(client) for client in clients])  # all are accepted: during a commit, none is
        first = await held_up(writer, clients[0])
        futures = []
        for turn in range(4):
            for k, client in enumerate(clients):
                futures += client.append([[rank(f"{k}-{turn}-{i}")] for i in range(5)])
            await arrived(*clients)
        writer.log.go.set()
        positions = await outcomes([first, *futures])
    assert sorted(positions) == list(range(1, 62))
    assert [len(batch) for batch in writer.log.batches] == writer.committed == [1, 60]
    events = stored(writer.file)
    for k in range(3):  # in the order in which each client sent them
        own = [f"{k}-{turn}-{i}" for turn in range(4) for i in range(5)]
        assert [event for event in events if event.startswith(f"{k}-")] == own


async def test_a_transaction_has_a_limited_number_of_records_and_groups_stay_whole(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "MOST_RECORDS", 10)
    async with connected(writer) as [client]:
        first = await held_up(writer, client)
        futures = []
        for turn in range(6):
            futures += client.append([[rank(f"{turn}-{i}") for i in range(4)]])
            await arrived(client)
        writer.log.go.set()
        assert await outcomes([first, *futures]) == [1, 2, 6, 10, 14, 18, 22]
    assert [len(batch) for batch in writer.log.batches] == [1, 12, 12]


async def test_the_slots_of_a_page_are_stored_together_or_not_at_all(writer):
    async with connected(writer, 2) as [one, other]:
        [(position)] = await outcomes(one.append([[rank("a/0"), rank("a/1")]]))
        assert position == 1
        first = await held_up(writer, one)
        futures = [*one.append([[rank("b/0"), rank("b/1")]]), *other.append([[rank("c/0"), rank("a/1")]])]
        await arrived(one, other)
        again = other.append([[rank("a/0"), rank("a/1")], [rank("d/0"), rank("d/1")]])
        await arrived(other)
        writer.log.go.set()
        _, b, c, a_again, d = await outcomes([first, *futures, *again])
    assert {b, d} == {4, 6}
    assert [(type(refused), refused.position) for refused in (c, a_again)] == [(Duplicate, 2), (Duplicate, 1)]
    assert stored(writer.file) == ["a/0", "a/1", "first", "b/0", "b/1", "d/0", "d/1"]


async def test_one_client_that_sends_much_does_not_keep_others_waiting(writer, monkeypatch):
    monkeypatch.setattr(writer_module, "READ_BYTES", 10_000)
    async with connected(writer, 2) as [much, little]:
        first = await held_up(writer, much)
        many = []
        for k in range(200):
            many += much.append([[rank(f"m{k}", b"x" * 1_000)]])
            await asyncio.sleep(0)
        [one] = little.append([[rank("little")]])
        await arrived(little)
        writer.log.go.set()
        await outcomes([first, *many, one])
    [batch] = [k for k, events in enumerate(writer.log.batches) if "little" in events]
    assert batch == 1  # the next one, with a part of what the other sent
    assert len(writer.log.batches) > 10


async def test_more_than_a_socket_holds_goes_through(writer):
    bodies = [bytes([97 + k]) * 3_000_000 for k in range(4)]
    async with connected(writer) as [client]:
        groups = [[rank(f"e{k}", body)] for k, body in enumerate(bodies)]
        assert await outcomes(client.append(groups)) == [1, 2, 3, 4]
    with closing(BlockingWriter(writer.path)) as learner:
        assert learner.append([[rank(f"t{k}", body)] for k, body in enumerate(bodies)]) == [5, 6, 7, 8]
    with SqliteLog(sqlite_file(writer.file)) as log:
        assert [entry.body for entry in log.read("shop")] == bodies * 2


async def test_the_given_futures_are_used_and_those_that_nobody_waits_for_disturb_nobody(writer):
    async with connected(writer) as [client]:
        futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
        assert client.append([[rank("a")], [rank("b")], [rank("c")]], futures) is futures
        futures[1].cancel()
        assert await outcomes([futures[0], futures[2]]) == [1, 3]
    assert stored(writer.file) == ["a", "b", "c"]  # what was sent cannot be taken back


# erase and ping


async def test_a_user_is_erased_and_the_record_says_what_was_asked_for(writer):
    async with connected(writer) as [client]:
        reward = Record("shop", "reward", "a", None, None, b"1")
        await outcomes(client.append([[rank("a", user="ann")], [rank("b", user="ben")], [reward]]))
        with closing(BlockingWriter(writer.path)) as learner:
            assert await asyncio.to_thread(learner.erase, "shop", "ann", 3, "t0") == 2
    with SqliteLog(sqlite_file(writer.file)) as log:
        assert [(entry.kind, entry.user) for entry in log.read("shop")] == [("rank", "ben"), ("erased", None)]
        assert msgspec.json.decode(log.read("shop")[-1].body) == {"records": 2, "base": 3, "token": "t0"}


async def test_an_erasure_is_carried_out_behind_the_records_that_came_before_it(writer):
    with closing(socket.socket(socket.AF_UNIX)) as raw:
        raw.connect(str(writer.path))
        erase = msgspec.msgpack.encode([1, 2, "shop", "ann", 0, "t"])
        requests = [framed(Append(1, [[rank("a", user="ann")]])), LENGTH.pack(len(erase)) + erase]
        raw.sendall(b"".join([*requests, framed(Append(3, [[rank("b", user="ann")]]))]))
        assert replies(raw, 3) == [Done(1, [1]), Done(2, [1]), Done(3, [3])]
    assert stored(writer.file) == [None, "b"]


async def test_a_ping_says_whether_the_store_can_be_written(tmp_path):
    with running_writer(tmp_path, open_log=lambda: SqliteLog(sqlite_file(tmp_path / "log.db", 0.01))) as writer:
        async with connected(writer) as [client]:
            await ping(client)
            with locked(writer.file), pytest.raises(StoreUnavailable) as raised:
                await ping(client)
            assert raised.value.code == "busy"
            await ping(client)

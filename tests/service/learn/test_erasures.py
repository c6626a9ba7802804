"""Erasing users: nothing of them is left, everybody else is as before, and no crash leaves it half done."""

import asyncio
import struct

import pytest
from machine import Clock, Engine, running
from playing import SNAPSHOT, Disk, copied, head_of, logged, play, rebuilt, relearned, request

from service.errors import ApiError
from service.learn import erasures
from service.log.protocol import StoreUnavailable
from service.log.records import EraseBody, Record, encode

NUMBER = 7654.125
WORDS = (b"somebody", b"private-", b"secret-word", struct.pack("<f", NUMBER), struct.pack("<d", NUMBER))


def leftovers(folder, engine=None):
    """Return which files, and whether shared memory, have something of the user ``somebody``."""
    contents = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
    if engine is not None:
        memory = engine.publisher.memory
        contents["memory"] = memory.words[: memory.used_bytes // 8].tobytes()
    return [name for name, content in contents.items() if any(word in content for word in WORDS)]


async def live_a_little(engine, clock):
    """Leave something of ``somebody`` everywhere: models, snapshots, events done, late, early and waiting."""
    await engine.rank("default", request("somebody", {"secret-word": NUMBER}, event_id="private-event"))
    await engine.reward("default", "private-early", 1.0)
    await play(engine, 60)
    engine.digest("default")
    await engine.reward("default", "private-event", 1.0)
    await engine.rank("default", request("somebody", {"secret-word": NUMBER}, event_id="private-early"))
    await engine.rank("default", request("somebody", {"secret-word": 2}, event_id="private-late"))
    clock.pass_seconds(601)
    await engine.reward("default", "private-late", 1.0)
    await engine.rank("default", request("somebody", event_id="private-waiting"))
    engine.digest("default")


def model_of(engine, user):
    """Return the weights of a user's own model."""
    model = engine.user_model("default", user)
    return model.get("blocks") or model["weights"]


def order_erasure(engine, user="somebody", token="token"):
    """Log that a user is to be erased, as a ranker does."""
    engine.log.append([[Record("default", "erase", user=user, body=encode(EraseBody(token)))]])


@pytest.mark.parametrize("model", ["residual-kalman", "adagrad"])
def test_an_erased_user_leaves_no_bytes_and_everybody_else_is_as_before(tmp_path, model):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock, model=model) as engine:
            await live_a_little(engine, clock)
            assert {"store.db-models", "store.db"} <= {name.removesuffix("-wal") for name in leftovers(tmp_path)}
            others = [model_of(engine, f"user-{k}") for k in range(6)]
            shared = await engine.model("default")
            await engine.erase_user("default", "somebody")
            assert [model_of(engine, f"user-{k}") for k in range(6)] == others
            assert await engine.model("default") == shared
            with pytest.raises(ApiError):
                engine.user_model("default", "somebody")
            assert not [one for one in await engine.unmatched("default") if one.event_id.startswith("private")]
            assert leftovers(tmp_path, engine) == []
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


def test_events_that_were_to_be_learned_again_go_with_an_erased_user_also_from_the_snapshot(tmp_path):
    def kept(engine):
        return engine.learner.loops["default"].shared.model.first

    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await live_a_little(engine, clock)
            assert kept(engine).n_events > 0
            await engine.erase_user("default", "somebody")
            assert kept(engine) is None
            live = engine.digest("default")
        async with running(tmp_path, clock=clock) as engine:
            assert kept(engine) is None
            assert engine.digest("default") == live == rebuilt(tmp_path)

    asyncio.run(story())


def test_after_erasures_the_model_is_still_a_function_of_the_log(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            for k in range(4):
                await play(engine, 60, seed=k)
                clock.pass_seconds(200)
                await engine.erase_user("default", f"user-{k}")
                assert engine.digest("default") == rebuilt(tmp_path)
            await engine.erase_user("default", "nobody")
            await play(engine, 30, seed=9)
            clock.pass_seconds(601)
            await engine.settle()
            live, sums = engine.digest("default"), engine.view("default").statistics
            assert live == rebuilt(tmp_path)
            assert sum(entry.kind == "base" and entry.user is None for entry in logged(tmp_path)) == 1
            names = [entry.user for entry in logged(tmp_path) if entry.kind == "base"]
            assert len(names) == len(set(names))
        (tmp_path / "store.db-models").unlink()
        async with running(tmp_path, clock=clock) as engine:
            assert (engine.digest("default"), engine.view("default").statistics) == (live, sums)

    asyncio.run(story())


def test_models_are_logged_a_few_at_a_time_and_only_those_that_changed_since_the_last_base(tmp_path, monkeypatch):
    async def story():
        monkeypatch.setattr(erasures, "CHUNK", 5)
        async with running(tmp_path) as engine:
            groups, append = [], engine.learner.writer.append
            engine.learner.writer.append = lambda some, *epochs: (groups.extend(some), append(some, *epochs))[1]
            await play(engine, 300, n_users=30)
            await engine.erase_user("default", "user-3")
            bases = [[record.user for record in group] for group in groups if group[0].kind == "base"]
            assert max(map(len, bases)) <= 5
            assert bases[-1][-1] is None
            assert {user for group in bases for user in group} == {None} | {f"user-{k}" for k in range(30) if k != 3}
            groups.clear()
            await play(engine, 10, seed=1, n_users=2)
            await engine.erase_user("default", "user-4")
            assert {record.user for group in groups for record in group} <= {"user-0", "user-1", None}
            live = engine.digest("default")
            assert live == rebuilt(tmp_path)
        (tmp_path / "store.db-models").unlink()
        async with running(tmp_path) as engine:
            assert engine.digest("default") == live

    asyncio.run(story())


def test_others_go_on_during_an_erasure_and_the_models_are_still_those_of_the_log(tmp_path, monkeypatch):
    async def story():
        monkeypatch.setattr(erasures, "CHUNK", 5)
        async with running(tmp_path, snapshot_seconds=0.0) as engine:
            await play(engine, 100, n_users=40)
            for k in range(3):
                others = [play(engine, 30, seed=9 * k + j, n_users=40) for j in range(1, 4)]
                await asyncio.gather(engine.erase_user("default", f"user-{k}"), *others)
                assert engine.digest("default") == rebuilt(tmp_path)
            assert engine.learner.rebuilt == 0

    asyncio.run(story())


def test_what_comes_of_the_user_before_the_erasure_is_complete_is_ignored_and_gone_with_it(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await live_a_little(engine, clock)
            engine.learner.hold = lambda loop: None  # another machine would complete it
            order_erasure(engine)
            await engine.settle()
            models = engine.learner.digest("default")
            await engine.reward("default", "private-new", 1.0)
            await engine.rank("default", request("somebody", {"secret-word": 3}, event_id="private-new"))
            await engine.rank("default", request("somebody", {"secret-word": 3}, event_id="private-newer"))
            await engine.reward("default", "private-newer", 1.0)
            await engine.reward("default", "private-waiting", 1.0)
            clock.pass_seconds(700)
            engine.learner.hold = lambda loop: 0
            writer = engine.learner.writer
            erase, writer.erase = writer.erase, lambda *_: 0
            await engine.settle()
            assert engine.learner.digest("default") == models
            with relearned(tmp_path) as learner:
                assert learner.digest("default") == models
            writer.erase = erase
            await engine.settle()
            assert head_of(engine).erased == ["token"]
            assert leftovers(tmp_path, engine) == []
            assert engine.digest() == models == rebuilt(tmp_path)
            await engine.rank("default", request("somebody", event_id="new life"))
            await engine.reward("default", "new life", 1.0)
            clock.pass_seconds(10)  # no failure was ever told, so that it is learned later
            assert engine.digest() == rebuilt(tmp_path) != models
            assert model_of(engine, "somebody")

    asyncio.run(story())


class Killed(BaseException):
    """Stands for the end of the process: nothing may catch it."""


def die(*_, **__):
    raise Killed


def before_the_base(engine):
    engine.learner.saver.flush = die


def within_the_base(engine):
    append, left = engine.learner.writer.append, iter([True, True])

    def append_some(groups, *_):
        if next(left, None) is None:
            raise Killed
        return append(groups)

    engine.learner.writer.append = append_some


def between_base_and_deletion(engine):
    engine.learner.writer.erase = die


def after_the_deletion(engine):
    erase = engine.learner.writer.erase
    engine.learner.writer.erase = lambda *one: (erase(*one), die())


def after_all(engine):
    pass


STAGES = [before_the_base, within_the_base, between_base_and_deletion, after_the_deletion, after_all]


@pytest.mark.parametrize("snapshot", ["kept", "lost", "old"])
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_an_erasure_that_was_cut_off_anywhere_is_completed_after_the_restart(tmp_path, monkeypatch, stage, snapshot):
    async def story():
        monkeypatch.setattr(erasures, "CHUNK", 2)
        clock = Clock()
        engine = Engine(tmp_path, clock=clock)
        await engine.rank("default", request("first"))
        await engine.erase_user("default", "first")  # so that there is a base already
        await live_a_little(engine, clock)
        shared = await engine.model("default")
        others = [model_of(engine, f"user-{k}") for k in range(6)]
        copied(tmp_path, tmp_path / "old", SNAPSHOT)
        order_erasure(engine)
        stage(engine)
        try:
            await engine.settle()
        except Killed:
            assert stage is not after_all
        engine.kill()
        if snapshot != "kept":
            for file in SNAPSHOT:
                (tmp_path / file).unlink(missing_ok=True)
        if snapshot == "old":
            copied(tmp_path / "old", tmp_path, SNAPSHOT)
        async with running(tmp_path, clock=clock) as engine:
            is_outdated = snapshot == "old" and stage in (after_the_deletion, after_all)
            ends_with_the_user = snapshot == "kept" and stage is after_the_deletion  # with the order to erase
            assert engine.learner.rebuilt == (is_outdated or ends_with_the_user)
            await engine.settle()
            assert head_of(engine).erased[-1] == "token"
            assert head_of(engine).erasing == {}
            assert engine.digest() == rebuilt(tmp_path)
            assert leftovers(tmp_path, engine) == []
            assert await engine.model("default") == shared
            assert [model_of(engine, f"user-{k}") for k in range(6)] == others
            assert engine.digest() == rebuilt(tmp_path)
            await play(engine, 20, seed=5)
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


@pytest.mark.parametrize("lost", [False, True])
def test_of_two_erasures_the_second_is_completed_also_if_the_first_was_the_last_thing_done(tmp_path, lost):
    async def story():
        clock = Clock()
        engine = Engine(tmp_path, clock=clock)
        await live_a_little(engine, clock)
        await engine.erase_user("default", "user-0")  # its base has the other two
        order_erasure(engine, "user-1", "first")
        order_erasure(engine, "somebody", "second")
        erase = engine.learner.writer.erase
        engine.learner.writer.erase = lambda *one: erase(*one) if one[3] == "first" else die()
        with pytest.raises(Killed):
            await engine.settle()
        engine.kill()
        if lost:
            for file in SNAPSHOT:
                (tmp_path / file).unlink(missing_ok=True)
        with relearned(tmp_path) as learner:
            assert learner.loops["default"].metadata.erasing == {"somebody": "second"}
        async with running(tmp_path, clock=clock) as engine:
            await engine.settle()
            assert {"first", "second"} <= set(head_of(engine).erased)
            assert leftovers(tmp_path, engine) == []
            assert engine.digest() == rebuilt(tmp_path)

    asyncio.run(story())


def test_an_erasure_that_fails_goes_on_once_the_disk_has_room(tmp_path, monkeypatch):
    async def story():
        monkeypatch.setattr(erasures, "CHUNK", 5)
        disk = Disk(tmp_path / "store.db")
        async with running(tmp_path, connect=disk.connect) as engine:
            await play(engine, 200, n_users=30)
            append = engine.learner.writer.append
            engine.learner.writer.append = lambda groups, *epochs: (disk.fill(True), append(groups, *epochs))[1]
            with pytest.raises(ApiError) as raised:
                await engine.erase_user("default", "user-3")
            assert (raised.value.status, raised.value.code) == (503, "not_published")
            assert "full" in str(engine.learner.trouble)
            disk.fill(False)
            assert [entry for entry in logged(tmp_path) if entry.user == "user-3"]
            assert engine.learner.digest("default") == rebuilt(tmp_path)
            engine.learner.writer.append = append
            await engine.settle()
            assert not [entry for entry in logged(tmp_path) if entry.user == "user-3"]
            assert engine.digest("default") == rebuilt(tmp_path)

    asyncio.run(story())


def test_a_snapshot_that_cannot_be_written_holds_an_erasure_up_and_nothing_else(tmp_path, monkeypatch):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 20)

            def full(*_, **__):
                raise StoreUnavailable("snapshot", "the snapshot cannot be written")

            flush = engine.learner.saver.flush
            monkeypatch.setattr(engine.learner.saver, "flush", full)
            with pytest.raises(ApiError):
                await engine.erase_user("default", "user-1")
            await engine.rank("default", request(event_id="e"))
            engine.learner.step()
            assert "snapshot" in str(engine.learner.trouble)
            assert engine.view().statistics.ranks == 21
            monkeypatch.setattr(engine.learner.saver, "flush", flush)
            await engine.settle()
            assert not [entry for entry in logged(tmp_path) if entry.user == "user-1"]

    asyncio.run(story())


def test_a_snapshot_from_before_an_erasure_is_thrown_away(tmp_path, caplog):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 60)
            engine.digest("default")
            copied(tmp_path, tmp_path / "old", SNAPSHOT)
            await play(engine, 10, seed=1)
            await engine.erase_user("default", "user-1")
            live = engine.digest("default")
        copied(tmp_path / "old", tmp_path, SNAPSHOT)
        async with running(tmp_path) as engine:
            assert engine.learner.rebuilt == 1
            assert "learned from the log again" in caplog.text
            assert engine.digest("default") == live
            assert b"user-1" not in (tmp_path / "store.db-models").read_bytes()

    asyncio.run(story())


def test_a_replica_that_hears_of_an_erasure_and_its_end_at_once_keeps_nothing_in_its_snapshot(tmp_path):
    async def story():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await live_a_little(engine, clock)
            (tmp_path / "replica").mkdir()
            copied(tmp_path, tmp_path / "replica")
            await engine.erase_user("default", "somebody")
            live = engine.digest()
            records = logged(tmp_path)
        copied(tmp_path, tmp_path / "replica", ("store.db",))
        (tmp_path / "replica" / "store.db-wal").unlink(missing_ok=True)
        async with running(tmp_path / "replica", clock=clock) as replica:
            assert replica.digest() == live
            assert leftovers(tmp_path / "replica", replica) == []
            assert records == logged(tmp_path / "replica")[: len(records)]

    asyncio.run(story())

"""``fedres log``: verify, backup, restore and drop, as an operator uses them."""

import asyncio
import json
import os
import shutil
import sqlite3
import threading
from contextlib import closing
from functools import partial

import pytest
from machine import Engine, running
from stores import digests, play, records
from typer.testing import CliRunner
from waiting import LIMIT

from fedres.lease import Lease
from service.cli import app
from service.http.keys import Keys
from service.learn.loss_check import check_losses
from service.log.opening import Store, open_log
from service.log.protocol import StoreUnavailable
from service.log.records import DamagedRecord
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.plugins.tools import maintenance
from service.plugins.tools.verifying import verify_log, verify_sqlite

pytestmark = pytest.mark.anyio


def fedres_log(command, store, *words, **options):
    return CliRunner().invoke(app, ["log", command, *map(str, words), "--store", f"sqlite:///{store}"], **options)


def refusal(result):
    """Return the one line that says why a command did nothing."""
    assert result.exit_code == 2, result.output
    [line] = result.stderr.strip().splitlines()
    assert line.startswith("fedres: ")
    return line.removeprefix("fedres: ")


def damage(store, position=5, column="example", value=b"other", loop="default"):
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute(f"UPDATE log SET {column} = ? WHERE loop = ? AND position = ?", (value, loop, position))


# verify


def test_a_good_store_is_good(store, made_store, tmp_path):
    shutil.copyfile(made_store / "store.db-models", tmp_path / "store.db-models")
    Keys(store).add("admin")
    result = fedres_log("verify", store, "--json", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    n_records = sum(map(len, records(store).values()))
    assert f"is good: {n_records} records match their checksums (loops: default, news)" in result.stdout
    assert json.loads((tmp_path / "out.json").read_text()) == {
        "store": str(store),
        "records": n_records,
        "damaged": [],
    }


def test_every_damaged_record_and_file_is_named_with_what_to_do(store, made_store, tmp_path):
    n_records = sum(map(len, records(store).values()))
    reward = next(entry.position for entry in records(store)["default"] if entry.kind == "reward")
    damage(store, 5)
    damage(store, reward, "body", '{"other":1}')
    damage(store, 2, "kind", "other", "news")
    (tmp_path / "store.db-models").write_bytes(b"SQLite format 3\0" + bytes(5_000))
    (tmp_path / "store.db-keys").write_text("[{]")
    result = fedres_log("verify", store, "--json", tmp_path / "out.json")
    assert result.exit_code == 1, result.output
    report = json.loads((tmp_path / "out.json").read_text())
    named = {(one["loop"], one["position"], one["kind"]) for one in report["damaged"] if one["position"]}
    assert named == {("default", 5, "rank"), ("default", reward, "reward"), ("news", 2, "other")}
    assert report["records"] == n_records
    assert {one["file"].removeprefix(str(store)) for one in report["damaged"]} == {"", "-models", "-keys"}
    assert any("(fedres log drop default 5)" in one["advice"] for one in report["damaged"])
    assert f"{store} is damaged: " in result.stdout


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM log WHERE loop = 'news' AND position = 3", "loop 'news' must have 52 records, and has 51"),
        ("UPDATE head SET last = last + 64 WHERE loop = 'news'", "loop 'news' must have 116 records, and has 52"),
        ("UPDATE head SET time = time + 1 WHERE loop = 'news'", "the head of loop 'news' does not match"),
        ("DELETE FROM head WHERE loop = 'news'", "loop 'news' must have 0 records, and has 52"),
        ("DROP INDEX log_by_user", "the tables or indices are not those of this version"),
        ("UPDATE meta SET value = 'x' WHERE name = 'schema'", "must have schema version 1, got x"),
        ("PRAGMA application_id = 7", "must be a store of fedres"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_found(store, change, message):
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute(change)
    [finding] = verify_sqlite(store).findings
    assert message in finding.message


def test_records_on_both_sides_of_an_unreadable_page_are_counted(store):
    before = verify_sqlite(store).n_records
    with closing(sqlite3.connect(store)) as db:
        [(size,)] = db.execute("PRAGMA page_size").fetchall()
        leaves = db.execute(
            "SELECT pageno FROM dbstat WHERE name = 'log' AND pagetype = 'leaf' ORDER BY path"
        ).fetchall()
    data = bytearray(store.read_bytes())
    start = (leaves[len(leaves) // 2][0] - 1) * size
    data[start : start + size] = b"\xa5" * size
    store.write_bytes(data)
    report = verify_sqlite(store)
    assert before - 30 < report.n_records < before
    assert any("records cannot be read" in one.message for one in report.findings)
    assert any("records, and has" in one.message for one in report.findings)


def test_nothing_is_written_to_verify_a_store(store):
    lease = store.with_name(f"{store.name}-lease")
    lease.write_text("12345\n")  # of a service that has ended
    os.utime(lease, ns=(0, 0))
    assert verify_sqlite(store).findings == []
    assert (lease.read_text(), lease.stat().st_mtime_ns) == ("12345\n", 0)


def test_models_of_another_versions_format_are_not_damaged(store, made_store):
    models = store.with_name(f"{store.name}-models")
    shutil.copyfile(made_store / "store.db-models", models)
    with closing(sqlite3.connect(models)) as db:
        db.execute("PRAGMA user_version = 1")
    result = fedres_log("verify", store)
    assert (result.exit_code, "is good" in result.stdout) == (0, True), result.output


def test_a_log_of_any_backend_can_be_verified_by_its_own_calls(store):
    with closing(SqliteLog(sqlite_file(store))) as log:
        assert verify_log(log, "name").findings == []
        assert verify_log(log, "name").n_records == verify_sqlite(store).n_records
        for position in (5, 6, 30):
            damage(store, position)
        assert [one.position for one in verify_log(log, "name").findings] == [5, 6, 30]
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("DELETE FROM log WHERE loop = 'news' AND position = 3")
    with closing(SqliteLog(sqlite_file(store))) as log:
        assert "loop 'news' must have 52 records" in verify_log(log, "name").findings[-1].message


async def test_a_store_is_verified_while_it_is_in_use(tmp_path):
    async with running(tmp_path) as engine:
        with Lease(tmp_path / "store.db"):
            for seed in range(3):
                await play(engine, 20, seed)
                assert verify_sqlite(tmp_path / "store.db").findings == []
        assert await engine.settle() is None
        assert engine.digest() == engine.rebuilt()


def test_a_store_that_is_not_there_is_an_error_and_is_not_made(tmp_path):
    store = tmp_path / "store.db"
    for command, *words in (["verify"], ["backup", tmp_path / "b"], ["export", tmp_path / "e"], ["drop", "default", 1]):
        assert f"no store at {store}" in refusal(fedres_log(command, store, *words))
    assert list(tmp_path.iterdir()) == []


# backup and restore


def test_a_backup_is_restored_to_the_same_records_and_models(store, tmp_path):
    before, models = records(store), digests(store)
    result = fedres_log("backup", store, tmp_path / "backup.db")
    assert (result.exit_code, "each verified" in result.stdout) == (0, True), result.output
    assert not list(tmp_path.glob("backup.db-*")) + list(tmp_path.glob(".*"))
    other = tmp_path / "other.db"
    assert fedres_log("restore", other, tmp_path / "backup.db").exit_code == 0
    assert (records(other), digests(other)) == (before, models)


def test_a_restore_keeps_the_old_store_aside_and_removes_derived_files(store, made_store, tmp_path):
    fedres_log("backup", store, tmp_path / "backup.db")
    with closing(SqliteLog(sqlite_file(store))) as log:
        log.drop("default", 4)
        newer = log.read("default", 0, 10**6)
        shutil.copyfile(made_store / "store.db-models", f"{store}-models")
        for file in (f"{store}", f"{store}-wal"):  # as a kill leaves them
            shutil.copyfile(file, f"{file}.copy")
    for file in (f"{store}", f"{store}-wal"):
        shutil.move(f"{file}.copy", file)
    assert "store must not be there yet" in refusal(fedres_log("restore", store, tmp_path / "backup.db"))
    result = fedres_log("restore", store, tmp_path / "backup.db", "--force")
    assert result.exit_code == 0, result.output
    assert records(store) == records(tmp_path / "backup.db")
    assert not store.with_name("store.db-models").exists()
    [old] = [file for file in tmp_path.glob("store.db.before-restore-*") if not file.name.endswith(("-wal", "-shm"))]
    assert str(old) in result.stdout
    assert records(old)["default"] == newer


def test_a_restore_is_refused_while_a_service_has_the_store(store, tmp_path):
    fedres_log("backup", store, tmp_path / "backup.db")
    before = store.read_bytes()
    with Lease(store):
        message = refusal(fedres_log("restore", store, tmp_path / "backup.db", "--force"))
    assert message.startswith("the service must be stopped first: ")
    assert store.read_bytes() == before


def test_a_damaged_backup_is_not_restored(store, tmp_path):
    fedres_log("backup", store, tmp_path / "backup.db")
    damage(tmp_path / "backup.db")
    before = store.read_bytes()
    message = refusal(fedres_log("restore", store, tmp_path / "backup.db", "--force"))
    assert "the backup must be whole" in message
    assert store.read_bytes() == before


def test_a_damaged_store_is_not_backed_up_and_an_older_backup_stays(store, tmp_path):
    fedres_log("backup", store, tmp_path / "backup.db")
    before = (tmp_path / "backup.db").read_bytes()
    damage(store)
    message = refusal(fedres_log("backup", store, tmp_path / "backup.db"))
    assert "no backup was made, for the store is damaged: record 5 of loop 'default'" in message
    assert (tmp_path / "backup.db").read_bytes() == before
    assert not list(tmp_path.glob(".*"))
    assert "another file than the store" in refusal(fedres_log("backup", store, store))


def truncated(store, heads):
    """Drop all that came after the heads of a backup."""
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        for loop, head in heads.items():
            db.execute("DELETE FROM log WHERE loop = ? AND position > ?", (loop, head.last))
            db.execute("UPDATE head SET last = ?, time = ? WHERE loop = ?", (head.last, head.time, loop))
    return store


def wait_for_more(progress, done, n, player, *_):
    """Wait, between two steps of a backup, until more was stored."""
    with progress:
        progress.wait_for(lambda: len(done) > n or not player.is_alive(), LIMIT)


def test_a_backup_under_load_has_the_models_that_were_true_at_its_position(tmp_path, monkeypatch):
    monkeypatch.setattr(maintenance, "PAGES", 8)
    engine, progress, done = Engine(tmp_path), threading.Condition(), []
    append = engine.log.append

    def noted(groups):
        outcomes = append(groups)
        with progress:
            done.extend(groups)
            progress.notify_all()
        return outcomes

    engine.log.append = noted
    player = threading.Thread(target=lambda: asyncio.run(play(engine, 400)))
    player.start()
    backups = []
    for k in range(4):
        target = tmp_path / f"backup-{k}.db"
        waiting = partial(wait_for_more, progress, done, len(done) + 20, player)
        backups.append((target, maintenance.backup(tmp_path / "store.db", target, waiting).heads))
    player.join()
    asyncio.run(engine.close())
    positions = [heads["default"].last for _, heads in backups]
    assert positions == sorted(positions)
    assert len({*positions}) > 1
    for target, heads in backups:
        live = shutil.copyfile(tmp_path / "store.db", tmp_path / "live.db")
        assert digests(target) == digests(truncated(live, heads))


# drop


def test_a_damaged_record_is_dropped_once_somebody_says_so(store):
    damage(store, 5)
    assert fedres_log("drop", store, "default", 5, input="n\n").exit_code == 1
    assert [one.position for one in verify_sqlite(store).findings] == [5]
    result = fedres_log("drop", store, "default", 5, input="y\n")
    assert (result.exit_code, "record 5 of loop 'default' is dropped" in result.stdout) == (0, True)
    assert verify_sqlite(store).findings == []


def test_only_a_damaged_record_is_dropped_unless_forced(store):
    assert "is good: --force drops it anyway" in refusal(fedres_log("drop", store, "default", 5, "--yes"))
    for loop, position in (("default", 0), ("default", 10**6), ("none", 1)):
        message = refusal(fedres_log("drop", store, loop, position, "--yes", "--force"))
        assert f"position must be that of a record of loop '{loop}', got {position}" in message
    assert fedres_log("drop", store, "default", 5, "--yes", "--force").exit_code == 0
    assert 5 not in [entry.position for entry in records(store)["default"]]


async def test_a_loop_stands_still_in_front_of_a_damaged_record_and_goes_on_once_that_is_dropped(store, tmp_path):
    gaps = [entry.position for entry in records(store)["default"]]
    assert gaps != list(range(1, len(gaps) + 1))  # records of an erased user
    where = gaps[-20]
    damage(store, where)
    engine = Engine(tmp_path)
    with pytest.raises(DamagedRecord, match=f"record {where} of loop 'default'"):
        await engine.settle()
    engine.own_clock.pass_seconds(10**6)  # wait times are over
    for _ in range(5):
        engine.learner.step()
    assert engine.view().position < where
    assert engine.log.heads()["default"].last == gaps[-1], "nothing is logged for a loop that cannot learn"
    assert fedres_log("drop", store, "default", where, "--yes").exit_code == 0
    await engine.settle()
    assert engine.view().position > gaps[-1]
    assert engine.digest() == engine.rebuilt()
    await engine.close()


# the write-ahead log


def crashed(store, tmp_path):
    """Return a copy of a store as a kill leaves it, with three commits in its write-ahead log."""
    copy = tmp_path / "crashed.db"
    with closing(SqliteLog(sqlite_file(store))) as log:
        for position in (2, 4, 6):
            log.drop("default", position)
        for suffix in ("", "-wal"):
            shutil.copyfile(f"{store}{suffix}", f"{copy}{suffix}")
    return copy


def flip(file, at):
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def test_a_flipped_bit_in_the_write_ahead_log_is_no_reason_to_lose_commits_in_silence(store, tmp_path):
    copy = crashed(store, tmp_path)
    wal = copy.with_name("crashed.db-wal")
    assert verify_sqlite(copy).findings == []
    flip(wal, 32 + 24 + 100)  # in the first frame
    [finding] = verify_sqlite(copy).findings
    assert "frame 1 does not match its checksum: 3 commits in and behind it are lost" in finding.message
    with pytest.raises(StoreUnavailable, match="3 commits") as raised:
        check_losses(Store(copy))
    assert raised.value.code == "damaged"
    wal.write_bytes(wal.read_bytes()[:40])  # the end of a file that was just begun
    assert verify_sqlite(copy).findings == []


def test_the_last_commit_may_have_been_cut_off(store, tmp_path):
    copy = crashed(store, tmp_path)
    wal = copy.with_name("crashed.db-wal")
    flip(wal, wal.stat().st_size - 5)
    [finding] = verify_sqlite(copy).findings
    assert "the last commit" in finding.message
    assert "expected after a power cut" in finding.message
    open_log(Store(copy), verify=True).close()
    assert verify_sqlite(copy).findings == []


def test_damage_to_a_write_ahead_log_in_use_is_found_and_leftovers_are_not_damage(store):
    with Lease(store), closing(SqliteLog(sqlite_file(store))) as log:
        for position in (2, 4, 6):
            log.drop("default", position)
        wal = store.with_name("store.db-wal")
        good = wal.read_bytes()
        assert verify_sqlite(store).findings == []
        page = bytearray(good[32 : 32 + 24 + 4096])
        page[60] ^= 1
        wal.write_bytes(good + page)  # what an interrupted commit leaves behind
        assert verify_sqlite(store).findings == []
        wal.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
        assert any("frame 1 does not match" in one.message for one in verify_sqlite(store).findings)
        wal.write_bytes(good)

"""``fedres log export`` and ``import``: the same records, and so the same models, on another machine."""

import json
import sqlite3
import struct
import subprocess
import sys
import time
from contextlib import closing

import msgspec
import pytest
from stores import digests, records
from typer.testing import CliRunner

from fedres.lease import Lease
from service.cli import app
from service.log.protocol import Head
from service.log.records import Entry, ErasedBody, Record, checksum, encode
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.models.loop_metadata import Base, PersonalBase
from service.models.table import model_kind
from service.plugins.tools import transfer
from service.plugins.tools.verifying import verify_sqlite
from service.settings import Settings


def fedres_log(command, store, *words):
    return CliRunner().invoke(app, ["log", command, *map(str, words), "--store", f"sqlite:///{store}"])


def refusal(result):
    assert result.exit_code == 2, result.output
    [line] = result.stderr.strip().splitlines()
    return line.removeprefix("fedres: ")


def heads(file):
    with closing(SqliteLog(sqlite_file(file))) as log:
        return log.heads()


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_an_imported_log_has_the_same_records_and_models(store, tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    file, other = tmp_path / f"log.{form}", tmp_path / "other.db"
    exported = fedres_log("export", store, file, "--format", form)
    assert exported.exit_code == 0, exported.output
    (tmp_path / "other.db-models").write_text("of another log")
    imported = fedres_log("import", other, file)
    assert imported.exit_code == 0, imported.output
    assert records(other) == records(store)
    assert heads(other) == heads(store)
    assert verify_sqlite(other).findings == []
    assert digests(other) == digests(store)
    assert not (tmp_path / "other.db-models").exists()
    assert not list(tmp_path.glob(".*"))
    again = tmp_path / f"again.{form}"
    fedres_log("export", other, again, "--format", form)
    assert again.read_bytes() == file.read_bytes()


def test_a_line_has_what_the_documentation_says(store, tmp_path):
    fedres_log("export", store, tmp_path / "log.jsonl", "--loop", "default")
    header, *lines = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert (header["fedres_log"], header["records"], list(header["loops"])) == (1, len(lines), ["default"])
    rank = next(line for line in lines if line["kind"] == "rank")
    assert [*rank] == ["loop", "position", "time", "kind", "event", "user", "checksum", "example", "body"]
    assert rank["body"]["context"]["hour"] == 0
    base = next(line for line in lines if line["kind"] == "base")
    assert ("body" in base, "body_base64" in base) == (False, True)
    entries = {entry.position: entry for entry in records(store)["default"]}
    assert {line["position"]: line["checksum"] for line in lines} == {
        position: checksum(entry).hex() for position, entry in entries.items()
    }
    message = refusal(fedres_log("export", store, tmp_path / "x", "--loop", "none"))
    assert "loop 'none' does not exist in the log, which has default, news" in message
    assert "format must be one of jsonl, parquet, got 'csv'" in refusal(
        fedres_log("export", store, tmp_path / "x", "--format", "csv")
    )


BODIES = [
    b"",
    b"{}",
    b' {"a": 1}',
    b'{"a":\n1}',
    b'{"a": 1.0e5, "b": "\xc3\xb6"}',
    b"\xff\x00",
    b"text\x00",
    b"NaN",
    b'""',
]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_bodies_come_through_byte_for_byte(tmp_path, form):
    if form == "parquet":
        pytest.importorskip("pyarrow")
    store, file, other = tmp_path / "store.db", tmp_path / "log", tmp_path / "other.db"
    with closing(SqliteLog(sqlite_file(store))) as log:
        log.append([[Record("ö", "note", None, "ü", body or None, body) for body in BODIES]])
        log.drop("ö", len(BODIES))  # the head is behind the last record then
    with closing(SqliteLog(sqlite_file(store))) as log:
        transfer.export_log(log, file, form)
    transfer.import_log(file, other)
    assert [entry.body for entry in records(other)["ö"]] == BODIES[:-1]
    assert heads(other) == heads(store)
    assert heads(other)["ö"][::2] == (len(BODIES), 1)


def test_an_export_during_which_records_go_is_none(store, tmp_path):
    with closing(SqliteLog(sqlite_file(store))) as log:

        class Erasing:
            heads, of_kind = log.heads, log.of_kind

            def read(self, loop, after, limit):
                entries = log.read(loop, after, limit)
                log.erase(loop, "user-1", lambda n: b'{"records":0,"base":0,"token":""}')
                return entries

        with pytest.raises(ValueError, match="were removed meanwhile: export again"):
            transfer.export_log(Erasing(), tmp_path / "third.jsonl", "jsonl")
        assert not (tmp_path / "third.jsonl").exists()


def test_a_damaged_record_is_not_exported(store, tmp_path):
    with closing(sqlite3.connect(store, isolation_level=None)) as db:
        db.execute("UPDATE log SET example = x'00' WHERE loop = 'default' AND position = 5")
    message = refusal(fedres_log("export", store, tmp_path / "log.jsonl"))
    assert "record 5 of loop 'default' does not match its checksum" in message
    assert not list(tmp_path.glob("*.jsonl")) + list(tmp_path.glob(".*"))


def without_last(lines):
    return lines[:-1]


def with_a_changed_time(lines):
    return [*lines[:9], lines[9].replace(b'"time":17', b'"time":18'), *lines[10:]]


CHANGES = {
    "must have 212 records, and has 211: it is not complete": without_last,
    "line 10: record 11 of loop": with_a_changed_time,
    "line 4: ": lambda lines: [*lines[:3], lines[3][:-20] + b"\n", *lines[4:]],
    "must begin with the header of an exported log": lambda lines: lines[1:],
    "must have version 1, got 2": lambda lines: [lines[0].replace(b'"fedres_log":1', b'"fedres_log":2'), *lines[1:]],
    "out of its order": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
}


@pytest.mark.parametrize("message", CHANGES)
def test_a_file_that_was_changed_or_cut_off_makes_no_store(store, tmp_path, message):
    fedres_log("export", store, tmp_path / "log.jsonl")
    lines = (tmp_path / "log.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_bytes(b"".join(CHANGES[message](lines)))
    other = tmp_path / "other.db"
    assert message in refusal(fedres_log("import", other, tmp_path / "log.jsonl"))
    assert not list(tmp_path.glob("other.db*")) + list(tmp_path.glob(".*"))


def test_a_log_is_imported_to_where_there_is_none(store, tmp_path):
    fedres_log("export", store, tmp_path / "log.jsonl")
    assert f"store must not be there yet, got {store}" in refusal(fedres_log("import", store, tmp_path / "log.jsonl"))
    other = tmp_path / "other.db"
    with Lease(other):
        message = refusal(fedres_log("import", other, tmp_path / "log.jsonl"))
    assert message.startswith("the service must be stopped first")
    assert "does not exist" in refusal(fedres_log("import", other, tmp_path / "none.jsonl"))


IMPORTER = """
import sys
from pathlib import Path
from service.plugins.tools import transfer

transfer.BATCH = 10
def wait(done, total):
    print(done, flush=True)
    sys.stdin.readline()

transfer.import_log(Path(sys.argv[1]), Path(sys.argv[2]), wait)
"""


def test_a_killed_import_leaves_no_half_store_and_the_next_one_succeeds(store, tmp_path):
    file, other = tmp_path / "log.jsonl", tmp_path / "other.db"
    fedres_log("export", store, file)
    command = [sys.executable, "-c", IMPORTER, str(file), str(other)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "10\n"
        process.kill()
    assert not other.exists()
    assert fedres_log("import", other, file).exit_code == 0
    assert records(other) == records(store)


def test_parquet_without_its_library_says_what_to_install(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    message = refusal(fedres_log("export", store, tmp_path / "log.parquet", "--format", "parquet"))
    assert message == "Parquet needs pyarrow: pip install 'fedres[bench]', or take jsonl"


def test_heads_travel_as_they_are():
    header = transfer.LogHeader(1, "vax", 2, {"shop": Head(3, time.time_ns(), 1)})
    assert transfer._read_header(transfer._encode(header)) == header


def changed(kind, change):
    """Return a change of the first record of a kind, with a checksum that is right."""

    def alter(entries):
        at = next(k for k, entry in enumerate(entries) if entry.kind == kind)
        entries[at] = change(entries[at])
        return at

    return alter


def with_example(change):
    return lambda entry: entry._replace(example=change(entry.example))


NAN = struct.pack("<f", float("nan"))
UNLEARNABLE = {
    "n_context": changed("rank", with_example(lambda data: data[:17] + b"\xff\xff\xff\xff" + data[21:])),
    "one byte": changed("rank", with_example(lambda data: data[:1])),
    "no example": changed("rank", with_example(lambda data: None)),
    "a value": changed("rank", with_example(lambda data: data[:21] + NAN * ((len(data) - 21) // 4))),
    "a reward": changed("reward", with_example(lambda data: struct.pack("<d", float("nan")) + data[8:])),
    "a base": changed("erased", lambda entry: entry._replace(body=b'{"records":1,"base":999999,"token":"t"}')),
    "a catalogue": changed("actions", lambda entry: entry._replace(body=b'{"put":7}')),
}


def test_a_base_that_no_learner_could_load_is_refused(store, tmp_path):
    file, other, default = tmp_path / "log.jsonl", tmp_path / "other.db", records(store)["default"]
    assert fedres_log("export", store, file, "--loop", "default").exit_code == 0
    lines, at = file.read_bytes().splitlines(), max(k for k, entry in enumerate(default) if entry.kind == "base")
    base = msgspec.msgpack.decode(default[at].body, type=Base)
    spoiled = default[at]._replace(body=msgspec.msgpack.encode(msgspec.structs.replace(base, shared=base.shared[:-1])))
    lines[at + 1] = transfer._encode(transfer._as_json(spoiled))
    file.write_bytes(b"\n".join(lines) + b"\n")
    message = refusal(fedres_log("import", other, file))
    assert f"record {spoiled.position} of loop 'default' (base) cannot be learned from: state must be" in message
    assert not other.exists()


def record(position, kind, body=b"{}", user=None):
    return Entry("shop", position, position, kind, None, user, None, body)


def test_models_that_a_learner_would_load_must_be_loadable(tmp_path):
    settings = Settings()
    state, junk = model_kind(settings).new(settings).to_bytes(), record(2, "model", b"junk")
    made, deleted = record(1, "loop", encode(settings)), record(3, "deleted")
    erased = record(4, "erased", encode(ErasedBody(0, 3, "token")))
    for good in ([made, record(2, "model", state)], [made, junk, deleted], [made, junk, erased], [junk, deleted]):
        checks = transfer.ModelChecks()
        for entry in good:
            checks.note(entry)
        checks.refuse(tmp_path)
    wrong_user = record(2, "base", msgspec.msgpack.encode(PersonalBase(1, b"junk")), "ann")
    for bad in (
        [made, junk],
        [made, deleted, made, junk],
        [made, erased, junk._replace(position=5)],
        [junk],
        [made, wrong_user],
    ):
        checks = transfer.ModelChecks()
        for entry in bad:
            checks.note(entry)
        with pytest.raises(ValueError, match=r"of loop 'shop' .* cannot be learned from"):
            checks.refuse(tmp_path)


@pytest.mark.parametrize("alter", UNLEARNABLE.values(), ids=UNLEARNABLE)
def test_a_record_that_no_learner_can_read_is_refused_with_its_line(store, tmp_path, alter):
    file, other, default = tmp_path / "log.jsonl", tmp_path / "other.db", records(store)["default"]
    assert fedres_log("export", store, file, "--loop", "default").exit_code == 0
    lines = file.read_bytes().splitlines()
    at = alter(default)
    lines[at + 1] = transfer._encode(transfer._as_json(default[at]))
    file.write_bytes(b"\n".join(lines) + b"\n")
    message = refusal(fedres_log("import", other, file))
    assert f"log.jsonl, line {at + 2}: record {default[at].position} of loop 'default'" in message
    assert "cannot be learned from" in message
    assert not other.exists()

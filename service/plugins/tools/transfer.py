"""Exports a log to a file for other tools and machines, and imports it again: same positions, times and checksums."""

from __future__ import annotations

import contextlib
import itertools
import math
import platform
import sqlite3
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedres.lease import Lease
from fedres.progress import Progress, ignore_progress
from service.learn.loop_state import read_settings_body
from service.log.checking import readable
from service.log.files import replacing, with_companions
from service.log.protocol import Head, Log
from service.log.records import (
    ACTIONS,
    BASE,
    DELETED,
    ERASE,
    ERASED,
    LOOP,
    MODEL,
    RANK,
    RESIDUAL,
    REWARD,
    SETTINGS,
    UPDATE,
    Entry,
    checksum,
    decode_actions,
    decode_erase,
    decode_erased,
    decode_update,
    read_decision,
    read_residual,
    read_reward,
)
from service.log.sqlite import INSERT, SET_HEAD
from service.log.sqlite_schema import opened, sqlite_file
from service.plugins.tools.maintenance import remove_derived
from service.settings import Settings

FORMATS = ("jsonl", "parquet")
VERSION = 1
BATCH = 5_000
PARQUET_MAGIC = b"PAR1"


class LogHeader(msgspec.Struct):
    """The first line of a JSON Lines file, and the metadata of a Parquet file."""

    fedres_log: int  # version of the format
    architecture: str
    records: int
    loops: dict[str, Head]


class JsonRecord(msgspec.Struct, omit_defaults=True):
    """A line of a JSON Lines file. ``body`` is there as it was logged, or in base64 where it is no JSON."""

    loop: str
    position: int
    time: int
    kind: str
    event: str | None
    user: str | None
    checksum: str  # hex
    example: bytes | None  # msgspec writes bytes in base64
    body: msgspec.Raw = msgspec.Raw(b"")
    body_base64: bytes | None = None


_encode = msgspec.json.Encoder().encode
_read_header = msgspec.json.Decoder(LogHeader).decode
_read_record = msgspec.json.Decoder(JsonRecord).decode


# export


def export_log(
    log: Log, target: Path, form: str, *, loop: str | None = None, progress: Progress = ignore_progress
) -> int:
    """Write all current records to ``target``; return their number.

    Raise ``ValueError`` if records were removed meanwhile.
    """
    heads = log.heads()
    if form not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {form!r}")
    if loop is not None:
        if loop not in heads:
            raise ValueError(f"loop {loop!r} does not exist in the log, which has {', '.join(sorted(heads))}")
        heads = {loop: heads[loop]}
    n_records = sum(head.last - head.removed for head in heads.values())
    header = LogHeader(VERSION, platform.machine(), n_records, heads)
    batches = _counted("the log", _entries(log, heads), n_records, progress, "see fedres log verify")
    with replacing(target) as part:
        _write_parquet(part, header, batches) if form == "parquet" else _write_lines(part, header, batches)
    return n_records


def _entries(log: Log, heads: dict[str, Head]) -> Iterator[Entry]:
    for loop, head in heads.items():
        after = 0
        while after < head.last and (batch := log.read(loop, after, 1_000)):
            yield from (entry for entry in batch if entry.position <= head.last)
            after = batch[-1].position
        if log.heads()[loop].removed != head.removed:
            raise ValueError(f"records of loop {loop!r} were removed meanwhile: export again")


def _counted(
    name: str, entries: Iterator[Entry], n_records: int, progress: Progress, advice: str
) -> Iterator[list[Entry]]:
    """Yield all entries a batch at a time; raise ``ValueError`` if their number is wrong."""
    done = 0
    while batch := list(itertools.islice(entries, BATCH)):
        done += len(batch)
        yield batch
        progress(done, n_records)
    if done != n_records:
        raise ValueError(f"{name} must have {n_records} records, and has {done}: {advice}")


def _write_lines(part: Path, header: LogHeader, batches: Iterator[list[Entry]]) -> None:
    with part.open("wb") as file:
        file.write(_encode(header) + b"\n")
        for batch in batches:
            file.writelines(_encode(_as_json(entry)) + b"\n" for entry in batch)


def _as_json(entry: Entry) -> JsonRecord:
    record = JsonRecord(*entry[:6], checksum(entry).hex(), entry.example)
    if _is_line_of_json(entry.body):
        record.body = msgspec.Raw(entry.body)
    else:
        record.body_base64 = entry.body
    return record


def _is_line_of_json(body: bytes) -> bool:
    """Return whether a body can be written as a line and read back byte for byte."""
    try:
        msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False
    return body == body.strip() and b"\n" not in body and b"\r" not in body


# import


def import_log(source: Path, store: Path, progress: Progress = ignore_progress) -> int:
    """Create a store from an exported file, as a whole or not at all; return its number of records."""
    with Lease(store) as lease, contextlib.ExitStack() as undo:
        for file in with_companions(store):
            if file.exists():
                raise ValueError(f"store must not be there yet, got {file}")
        undo.callback(lease.remove)  # unless the store is created
        with source.open("rb") as exported:
            is_parquet = exported.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
        header, entries = _read_parquet(source) if is_parquet else _read_lines(source)
        if header.fedres_log != VERSION:
            raise ValueError(f"{source} must have version {VERSION}, got {header.fedres_log}")
        with replacing(store) as part:
            with contextlib.closing(opened(sqlite_file(part))) as db:
                _fill(db, source, header, entries, progress)  # type: ignore[arg-type]
                list(db.execute("PRAGMA journal_mode=DELETE"))
            remove_derived(store)
        undo.pop_all()
    return header.records


def _fill(
    db: sqlite3.Connection, source: Path, header: LogHeader, entries: Iterator[Entry], progress: Progress
) -> None:
    db.execute("PRAGMA synchronous=OFF")  # the file is synced as a whole before it is renamed
    last = dict.fromkeys(header.loops, (0, 0))  # position and time
    models = ModelChecks()
    for batch in _counted(str(source), entries, header.records, progress, "it is not complete"):
        db.execute("BEGIN")
        for entry in batch:
            _check_order(source, entry, header, last)
            models.note(entry)
        rows = [(*entry[:6], checksum(entry), entry.example, readable(entry.body)) for entry in batch]
        try:
            db.executemany(INSERT, rows)
        except sqlite3.IntegrityError as error:
            raise ValueError(f"{source} has an event twice: {error}") from None
        db.execute("COMMIT")
    models.refuse(source)
    db.execute("BEGIN")
    db.executemany(SET_HEAD, [(loop, *head) for loop, head in header.loops.items()])
    db.execute("COMMIT")


def _check_order(source: Path, entry: Entry, header: LogHeader, last: dict[str, tuple[int, int]]) -> None:
    position, time = last.get(entry.loop, (0, 0))
    head = header.loops.get(entry.loop, Head(0, 0, 0))
    if not position < entry.position <= head.last or not time <= entry.time <= head.time:
        raise ValueError(f"{source} has record {entry.position} of loop {entry.loop!r} out of its order")
    last[entry.loop] = (entry.position, entry.time)


def _read_lines(source: Path) -> tuple[LogHeader, Iterator[Entry]]:
    lines = _lines(source)
    try:
        header = _read_header(next(lines, b""))
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{source} must begin with the header of an exported log: {error}") from None

    def entries() -> Iterator[Entry]:
        for number, line in enumerate(lines, 2):
            try:
                yield _entry_of_json(_read_record(line))
            except (msgspec.MsgspecError, ValueError) as error:
                raise ValueError(f"{source}, line {number}: {error}") from None

    return header, entries()


def _lines(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        yield from file


def _entry_of_json(record: JsonRecord) -> Entry:
    body = bytes(record.body) if record.body_base64 is None else record.body_base64
    names = (record.loop, record.position, record.time, record.kind, record.event, record.user)
    return _checked(Entry(*names, record.example, body), bytes.fromhex(record.checksum))


def _checked(entry: Entry, stored: bytes) -> Entry:
    if checksum(entry) != stored:
        raise ValueError(f"record {entry.position} of loop {entry.loop!r} does not match its checksum")
    check_learnable(entry)
    return entry


# checks that a learner can read a record: checksums have no key, so a foreign file may hold anything


def check_learnable(entry: Entry) -> None:
    """Raise ``ValueError`` for a record that learners cannot read."""
    try:
        _check(entry)
    except (ValueError, struct.error, msgspec.MsgspecError) as error:
        name = f"record {entry.position} of loop {entry.loop!r} ({entry.kind})"
        raise ValueError(f"{name} cannot be learned from: {error}") from None


def _check(entry: Entry) -> None:
    if entry.kind in (RANK, REWARD, RESIDUAL):
        if entry.event is None or entry.example is None:
            raise ValueError("it must name its event and have an example")
        if not all(map(math.isfinite, _numbers(entry.kind, entry.example))):
            raise ValueError("its numbers must be finite")
    elif entry.kind == ERASED:
        base = decode_erased(entry.body).base
        if not 0 <= base < entry.position:
            raise ValueError(f"its base must be in front of it, got {base}")
    elif entry.kind in _BODIES:
        _BODIES[entry.kind](entry.body)


_BODIES = {ACTIONS: decode_actions, ERASE: decode_erase, UPDATE: decode_update}


def _numbers(kind: str, example: bytes) -> list[float]:
    """Return the numbers of an example; its values as their sum, which is not finite if one of them is not."""
    if kind == REWARD:
        return [read_reward(example)[0]]
    if kind == RANK:
        decision = read_decision(example)
        return [decision.baseline_weight, decision.feedback or 0.0, _sum(decision.features.values)]
    residual = read_residual(example)
    spread = () if residual.spread is None else (residual.spread.variance, *residual.spread.slopes)
    return [residual.label, residual.local, residual.global_ or 0.0, *spread, _sum(residual.features.values)]


def _sum(values: bytes) -> float:
    return float(np.frombuffer(values, np.float32).sum(dtype=np.float64))


class ModelChecks:
    """Notes settings and models that a learner could not load; those that no learner reads again do not count."""

    def __init__(self) -> None:
        self._settings: dict[str, Settings] = {}
        self._failures: dict[str, dict[int, tuple[str, str]]] = {}  # by loop and position: kind and message

    def note(self, entry: Entry) -> None:
        failures = self._failures.setdefault(entry.loop, {})
        if entry.kind == DELETED:
            failures.clear()
        elif entry.kind == ERASED:
            base = decode_erased(entry.body).base
            for position in [at for at, (kind, _) in failures.items() if kind == MODEL and at <= base]:
                del failures[position]
        else:
            try:
                self._load(entry)
            except (ValueError, KeyError, msgspec.MsgspecError) as error:
                failures[entry.position] = entry.kind, str(error)

    def _load(self, entry: Entry) -> None:
        if entry.kind in (LOOP, SETTINGS):
            self._settings[entry.loop] = read_settings_body(entry.body)
        elif entry.kind in (MODEL, BASE):
            # Imported here as it takes a second, and most commands and logs do not need it.
            from service.models.loop_metadata import Base, PersonalBase
            from service.models.table import model_kind

            settings = self._settings[entry.loop]
            kind = model_kind(settings)
            if entry.kind == MODEL:
                kind.from_bytes(settings, entry.body)
            elif entry.user is None:
                kind.from_bytes(settings, msgspec.msgpack.decode(entry.body, type=Base).shared)
            else:
                personal = msgspec.msgpack.decode(entry.body, type=PersonalBase)
                kind.personal_data(personal.changed, personal.model)

    def refuse(self, source: Path) -> None:
        for loop, failures in self._failures.items():
            for position, (kind, message) in failures.items():
                name = f"{source}: record {position} of loop {loop!r} ({kind})"
                raise ValueError(f"{name} cannot be learned from: {message}")


# Parquet


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ValueError("Parquet needs pyarrow: pip install 'fedres[bench]', or take jsonl") from None
    return pyarrow


def _write_parquet(part: Path, header: LogHeader, batches: Iterator[list[Entry]]) -> None:
    arrow = _pyarrow()
    text, number, binary = arrow.string(), arrow.int64(), arrow.binary()
    fields = [("loop", text), ("position", number), ("time", number), ("kind", text), ("event", text), ("user", text)]
    fields += [("checksum", binary), ("example", binary), ("body", text), ("body_binary", binary)]
    schema = arrow.schema(fields, metadata={"fedres": _encode(header)})
    with arrow.parquet.ParquetWriter(part, schema) as writer:
        for batch in batches:
            columns = zip(*map(_parquet_row, batch), strict=True)
            arrays = [arrow.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
            writer.write_batch(arrow.record_batch(arrays, schema=schema))


def _parquet_row(entry: Entry) -> tuple[Any, ...]:
    body = readable(entry.body)
    bodies = (body, None) if isinstance(body, str) else (None, body)
    return (*entry[:6], checksum(entry), entry.example, *bodies)


def _read_parquet(source: Path) -> tuple[LogHeader, Iterator[Entry]]:
    arrow = _pyarrow()
    try:
        file = arrow.parquet.ParquetFile(source)
        header = _read_header((file.schema_arrow.metadata or {}).get(b"fedres", b""))
    except (arrow.ArrowException, msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{source} must be an exported log: {error}") from None

    def entries() -> Iterator[Entry]:
        with contextlib.closing(file):
            for batch in file.iter_batches(BATCH):
                yield from map(_entry_of_parquet, batch.to_pylist())

    return header, entries()


def _entry_of_parquet(row: dict[str, Any]) -> Entry:
    body = row["body_binary"] if row["body"] is None else row["body"].encode()
    names = {name: row[name] for name in ("loop", "position", "time", "kind", "event", "user", "example")}
    return _checked(Entry(**names, body=body), row["checksum"])

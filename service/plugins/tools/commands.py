"""``fedres log``: verify, back up, restore, export, import and prune a store, and drop a damaged record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.console import (
    DEFAULT_FOLDER,
    DEFAULT_STORE,
    Folder,
    JsonFile,
    Store,
    console,
    one_line_errors,
    private_files,
    progress_bar,
    read_as,
    with_columns,
    write_json,
)
from service.times import iso_time

if TYPE_CHECKING:
    from bandits.evaluation import Columns
    from service.log import opening
    from service.log.protocol import Log
    from service.plugins.tools.verifying import Verification

log = typer.Typer(
    no_args_is_help=True,
    callback=private_files,
    help="Verify, back up, restore, export, import and prune the log of a service.",
)

BackupFile = Annotated[Path, typer.Argument(metavar="FILE", help="A file written by `fedres log backup`.")]


@contextlib.contextmanager
def store_errors(interrupted: str = "nothing was changed") -> Iterator[None]:
    """Turn errors of a store into one line; ``interrupted`` describes the state after Ctrl-C."""
    import sqlite3

    from fedres.lease import LeaseHeld
    from service.log.records import DamagedRecord

    try:
        yield
    except LeaseHeld as error:
        raise ValueError(f"the service must be stopped first: {error}") from None
    except (DamagedRecord, sqlite3.Error) as error:
        raise ValueError(str(error)) from None
    except KeyboardInterrupt:
        typer.echo(f"fedres: interrupted; {interrupted}", err=True)
        raise typer.Exit(130) from None


@contextlib.contextmanager
def opened_log(store: str, folder: Path, interrupted: str = "nothing was changed") -> Iterator[Log]:
    """Yield the log of an existing store."""
    from service.log.opening import open_log, store_at
    from service.plugins.tools.verifying import check_exists

    at = store_at(store, folder)
    if not at.is_shared:
        check_exists(at.path)
    with store_errors(interrupted), contextlib.closing(open_log(at)) as opened:
        yield opened


@log.command()
@one_line_errors
def verify(store: Store = DEFAULT_STORE, folder: Folder = DEFAULT_FOLDER, json_file: JsonFile = None) -> None:
    """Check every record against its checksums, and every file of the store. Exit status 1 if anything is damaged.

    Works while the service runs. What is damaged is named, with what to do about it; nothing is changed.
    """
    from service.log.opening import store_at
    from service.log.protocol import StoreUnavailable

    at = store_at(store, folder)
    path = at.path
    try:
        verification = _verified(at, store, folder)
        _check_files_beside(path, verification)
    except (ValueError, OSError, StoreUnavailable, typer.Exit):
        raise
    except Exception as error:  # status 1 is for damage only
        raise ValueError(f"the store was not checked: {type(error).__name__}: {error}") from error
    _print_findings(path, verification)
    rows = [asdict(finding) for finding in verification.findings]
    write_json(json_file, {"store": str(path), "records": verification.n_records, "damaged": rows})
    if verification.findings:
        raise typer.Exit(1)


def _verified(at: opening.Store, store: str, folder: Path) -> Verification:
    from service.plugins.tools.verifying import verify_log, verify_sqlite

    with progress_bar(f"verifying {at.path}") as progress:
        if at.is_sqlite:
            with store_errors():
                return verify_sqlite(at.path, progress)
        with opened_log(store, folder) as opened:
            return verify_log(opened, str(at.path), progress)


def _check_files_beside(path: Path, verification: Verification) -> None:
    from service.errors import ApiError
    from service.http.keys import Keys
    from service.learn.snapshots import snapshot_damage

    models = path.with_name(f"{path.name}-models")
    if models.exists():
        again = "nothing: the service learns it again from the log when it is started"
        for message in snapshot_damage(models):
            verification.add(str(models), message, again)
    try:
        Keys(path).list()
    except (ApiError, ValueError) as error:
        verification.add(f"{path}-keys", str(error), "copy the file back from a backup, or delete it and add new keys")


def _print_findings(path: Path, verification: Verification) -> None:
    from rich.table import Table

    loops = ", ".join(sorted(verification.heads)) or "none"
    if not verification.findings:
        typer.echo(f"{path} is good: {verification.n_records} records match their checksums (loops: {loops})")
        return
    table = Table("file", "loop", "position", "kind", "what is wrong", "what to do")
    for finding in verification.findings:
        position = "" if finding.position is None else str(finding.position)
        record = finding.loop or "", position, finding.kind or ""
        table.add_row(Path(finding.file).name, *record, finding.message, finding.advice)
    console().print(table)
    n_findings = len(verification.findings)
    typer.echo(f"{path} is damaged: {n_findings} findings in {verification.n_records} records (loops: {loops})")


@log.command()
@one_line_errors
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Output file (overwritten if it exists).")],
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Copy the store, as it is at one moment, to one file, and verify the copy. Works while the service runs.

    FILE is replaced once the copy is complete and verified. Keys are in another file, STORE-keys: copy that too.
    """
    from service.plugins.tools import maintenance

    path = _sqlite_path("backup", store, folder)
    with store_errors(), progress_bar(f"copying {path}") as progress:
        verified = maintenance.backup(path, file, progress)
    typer.echo(f"{file} has {verified.n_records} records, each verified")


@log.command()
@one_line_errors
def restore(
    file: BackupFile,
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing store; the old one is renamed, not deleted.")
    ] = False,
) -> None:
    """Put a backup in the store's place. The service must be stopped.

    The backup is verified first. Models are learned again from the log when the service starts.
    """
    from service.plugins.tools import maintenance

    path = _sqlite_path("restore", store, folder)
    with store_errors(), progress_bar(f"verifying {file}") as progress:
        kept = maintenance.restore(path, file, force=force, progress=progress)
    typer.echo(f"{path} is restored from {file}")
    for old in kept:
        typer.echo(f"the old store is kept: {old}")


@log.command()
@one_line_errors
def export(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Output file (overwritten if it exists).")],
    form: Annotated[str, typer.Option("--format", help="jsonl, or parquet (needs fedres[parquet]).")] = "jsonl",
    loop: Annotated[str | None, typer.Option(help="Only this loop [default: all].")] = None,
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Write all records to a file for other tools, or to import on another machine. Works while the service runs."""
    from service.log.opening import store_at
    from service.plugins.tools import transfer

    with opened_log(store, folder) as opened, progress_bar(f"exporting {store_at(store, folder).path}") as progress:
        n_records = transfer.export_log(opened, file, form, loop=loop, progress=progress)
    typer.echo(f"{file} has {n_records} records")


@log.command("import")
@one_line_errors
@with_columns
def import_(
    *,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="A file of `fedres log export`, or files of decisions: JSON lines, dsjson or tables.",
        ),
    ],
    loop: Annotated[str, typer.Option(help="Decisions: the loop to append to, created if missing.")] = "default",
    skip_wrong: Annotated[
        bool, typer.Option("--skip-wrong", help="Decisions: report wrong lines and skip them.")
    ] = False,
    columns: Columns,
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Create a store from an exported log, or append decisions that were made elsewhere to a loop.

    An export becomes a new store with the same positions, times and checksums, and so the same models. Each record is
    checked. If anything is wrong, or the command is interrupted, there is no store.

    Other files hold decisions, which are appended to a loop of a store, new or not, with their probabilities: JSON
    lines, as GET /v1/events writes and `fedres evaluate` reads them; .dsjson and .dsjson.gz of Azure Personalizer,
    rlclientlib or Vowpal Wabbit; tables (.csv, .tsv, .parquet) with the columns that you name. A wrong line ends the
    import unless --skip-wrong is given. Run the command again to go on after an interruption.
    """
    from service.plugins.tools import decision_files, transfer

    for file in files:
        if not file.exists():
            raise ValueError(f"{file} does not exist")
    kinds = {file: decision_files.kind_of(file) for file in files}
    if columns.given and decision_files.TABLE not in kinds.values():
        raise ValueError(f"{columns.given[0]} must come with a table (.csv, .tsv, .parquet), got {files[0]}")
    if decision_files.EXPORT not in kinds.values():
        _import_decisions(kinds, columns, loop, store, folder, skip_wrong=skip_wrong)
        return
    if len(files) > 1:
        raise ValueError(f"FILE must be one exported log, or files of decisions, got {len(files)} files")
    path = _sqlite_path("import", store, folder)
    with store_errors(), progress_bar(f"importing {files[0]}") as progress:
        n_records = transfer.import_log(files[0], path, progress)
    typer.echo(f"{path} has {n_records} records")


def _import_decisions(
    kinds: Mapping[Path, str], columns: Columns, loop: str, store: str, folder: Path, *, skip_wrong: bool
) -> None:
    from fedres.lease import Lease
    from service.log.opening import open_log, store_at
    from service.plugins.tools.decision_files import decision_file
    from service.plugins.tools.importing import import_decisions

    for file in kinds:
        read_as(file, columns)
    files = {file: decision_file(file, kind, columns) for file, kind in kinds.items()}
    at = store_at(store, folder)
    lease = contextlib.nullcontext() if at.is_shared else Lease(at.path)  # a database orders writers itself
    report = (lambda message: typer.echo(f"passed over: {message}", err=True)) if skip_wrong else None
    with (
        store_errors("run the command again to go on where it stopped"),
        lease,
        contextlib.closing(open_log(at)) as opened,
        progress_bar(f"importing {len(files)} files") as progress,
    ):
        imported = import_decisions(opened, loop, files, progress=progress, wrong=report)
    rest = f"{imported.existed} existed already, {imported.wrong} lines skipped"
    typer.echo(f"{imported.stored} events imported into loop {loop!r}; {rest}")


@log.command()
@one_line_errors
def drop(
    loop: Annotated[str, typer.Argument(help="The loop of the record.")],
    position: Annotated[int, typer.Argument(help="Its position, as `fedres log verify` shows it.")],
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Drop the record even if its checksum is valid.")] = False,
) -> None:
    """Drop a damaged record for good: its loop, which stopped learning in front of it, continues.

    What the record said is lost. Restore a backup instead if there is one that has it.
    """
    from service.plugins.tools.maintenance import is_damaged

    with opened_log(store, folder) as opened:
        if not is_damaged(opened, loop, position) and not force:
            raise ValueError(f"record {position} of loop {loop!r} is good: --force drops it anyway")
        if not yes:
            typer.confirm(f"Give record {position} of loop {loop!r} up for good?", abort=True)
        opened.drop(loop, position)
    typer.echo(f"record {position} of loop {loop!r} is dropped")


@log.command()
@one_line_errors
def prune(
    older_than: Annotated[str, typer.Option(metavar="AGE", help="Age, such as 30d, 12h or 90m.")],
    loop: Annotated[str | None, typer.Option(help="Only this loop [default: all].")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be removed, and remove nothing.")
    ] = False,
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Remove decisions older than an age, with their rewards. Models keep what they learned from them.

    Works while the service runs or is stopped. Pending events, settings and the catalogue stay. The setting
    `retention` of a loop does the same day by day.
    """
    from service.log.opening import store_at
    from service.plugins.tools import prune_store

    seconds, at = _seconds("--older-than", older_than), store_at(store, folder)
    with opened_log(
        store, folder, "what was removed stays removed; the service, or the same command, goes on"
    ) as opened:
        before = opened.now() - round(seconds * 1e6)
        moment = iso_time(before)
        loops = prune_store.loops_of(opened, loop)
        if dry_run:
            for name in loops:
                n_events, n_records = prune_store.count_old(opened, name, before)
                typer.echo(f"loop {name!r}: {n_events} events ({n_records} records) from before {moment}")
            return
        n_before = opened.size()
        with progress_bar(f"pruning {at.path}") as progress:
            removed = prune_store.prune_store(at, opened, loops, before, lambda n: progress(n, n))
        for name, n_records in removed.items():
            typer.echo(f"loop {name!r}: {n_records} records from before {moment} are removed")
        typer.echo(f"the log takes {opened.size() / 1e6:.1f} MB; it took {n_before / 1e6:.1f} MB")


UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}


def _seconds(option: str, text: str) -> float:
    """Return an age in seconds."""
    number, unit = text[:-1], text[-1:]
    try:
        seconds = float(number) * UNITS[unit]
    except (KeyError, ValueError):
        raise ValueError(f"{option} must be a number and d, h, m or s, such as 30d, got {text!r}") from None
    if not 0 <= seconds <= 100 * 366 * 86_400:
        raise ValueError(f"{option} must be between 0 and 100 years, got {text!r}")
    return seconds


def _sqlite_path(command: str, store: str, folder: Path) -> Path:
    from service.log.opening import store_at

    at = store_at(store, folder)
    if not at.is_sqlite:
        raise ValueError(f"{command} must have a store in SQLite: for PostgreSQL, use pg_dump and pg_restore")
    return at.path

"""``fedres datasets list``, ``fetch`` and ``show``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from libsvm_tasks.cli.options import DatasetArgument, Label
from service.console import JsonFile, console, one_line_errors, write_json

datasets = typer.Typer(no_args_is_help=True, help="List, download and look at datasets.")


@datasets.command("list")
@one_line_errors
def list_datasets(json_file: JsonFile = None) -> None:
    """List known datasets, and which of them are on this machine."""
    from dataclasses import asdict

    from rich.table import Table

    from libsvm_tasks.catalogue import CATALOGUE
    from libsvm_tasks.load import available

    table = Table("name", "task")
    for column in ("rows", "features", "classes"):
        table.add_column(column, justify="right")
    table.add_column("here")
    table.add_column("origin")
    for entry in CATALOGUE.values():
        here = "yes" if available(entry.name) else ""
        sizes = [f"{entry.rows:,}", f"{entry.features:,}", str(entry.classes or "")]
        table.add_row(entry.name, entry.task, *sizes, here, entry.origin)
    console().print(table)
    write_json(json_file, [asdict(entry) for entry in CATALOGUE.values()])


@datasets.command("fetch")
@one_line_errors
def fetch_dataset(name: Annotated[str, typer.Argument(help="A name of `fedres datasets list`.")]) -> None:
    """Download a dataset of the LIBSVM collection into the cache folder, and check it."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from libsvm_tasks.fetch import fetch

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(f"fetching {name}", total=None)
        path = fetch(name, progress=lambda done, total: bar.update(row, completed=done, total=total))
    typer.echo(f"{name} is in {path}")


@datasets.command("show")
@one_line_errors
def show_dataset(name: DatasetArgument, label: Label = None, json_file: JsonFile = None) -> None:
    """Print the shape of a dataset and a picture of its class balance."""
    from libsvm_tasks.load import load
    from libsvm_tasks.report import balance_table, spread_line

    data = load(name, label)
    rows, features = data.features.shape
    kind = f"{data.n_classes} classes" if data.classes is not None else "regression"
    typer.echo(f"{data.name}: {rows:,} rows, {features:,} features, {kind}")
    if data.classes is not None:
        console().print(balance_table(data))
    else:
        typer.echo(spread_line(data))
    balance = (
        {} if data.classes is None else dict(zip(map(str, data.classes), data.class_sizes().tolist(), strict=True))
    )
    write_json(json_file, {"name": data.name, "rows": rows, "features": features, "class_sizes": balance})

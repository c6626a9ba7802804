"""``fedres catalogue import``: the items of a file into the catalogue of a running service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service.console import one_line_errors, progress_bar

catalogue = typer.Typer(no_args_is_help=True, help="Fill the catalogue of a loop.")


@catalogue.callback()
def _group() -> None:
    """Fill the catalogue of a loop."""


@catalogue.command("import")
@one_line_errors
def import_items(
    file: Annotated[Path, typer.Argument(help="Items: .jsonl, .csv, .tsv or .parquet, the text files also .gz.")],
    url: Annotated[str | None, typer.Option(help="The service; FEDRES_URL, or http://127.0.0.1:8000.")] = None,
    loop: Annotated[str, typer.Option(help="The loop.")] = "default",
    key: Annotated[str | None, typer.Option(help="A key with the role admin; FEDRES_KEY.")] = None,
    id_column: Annotated[str, typer.Option("--id", help="Column or field with the item's id.")] = "id",
    lists: Annotated[
        list[str] | None,
        typer.Option("--list", metavar="COLUMN=SIGN", help="A column with several values, such as genres='|'."),
    ] = None,
    retire: Annotated[bool, typer.Option("--retire", help="Retire the items that the file does not have.")] = False,
) -> None:
    """Add or replace the items of a file, in calls of 2,000. An import that stopped is run again."""
    from fedres.client import Client, ServiceError
    from service.plugins.recommend.item_files import BATCH_ITEMS, batches, missing, read_items

    if not file.exists():
        raise ValueError(f"no file at {file}")
    signs = dict(_sign(each) for each in lists or [])
    done: set[str] = set()
    with progress_bar(f"importing {file.name}") as progress, Client(url, loop=loop, key=key, fallback=None) as client:
        try:
            for batch in batches(read_items(file, id_column, signs, progress)):
                client.put_actions(batch)
                done |= batch.keys()
            gone = missing(client.actions(), done) if retire else []
            for first in range(0, len(gone), BATCH_ITEMS):
                client.put_actions({}, retire=gone[first : first + BATCH_ITEMS])
        except ServiceError as error:
            raise ValueError(f"{error} ({len(done):,} items are in)") from None
    typer.echo(f"{len(done):,} items imported" + (f", {len(gone):,} retired" if retire else ""))


def _sign(option: str) -> tuple[str, str]:
    name, equals, sign = option.partition("=")
    if not (name and equals and sign):
        raise ValueError(f"--list must be COLUMN=SIGN, such as genres='|', got {option!r}")
    return name, sign

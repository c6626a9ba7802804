"""``fedres catalogue import`` and ``fedres feedback import``: items and ratings of files into a running service."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.console import one_line_errors, progress_bar

if TYPE_CHECKING:
    from fedres.client import Client
    from service.plugins.recommend.feedback_files import Skipped

catalogue = typer.Typer(no_args_is_help=True, help="Fill the catalogue of a loop.")
feedback = typer.Typer(no_args_is_help=True, help="Teach a loop what actions earned elsewhere.")

Url = Annotated[
    str | None, typer.Option(help="Address of the service [default: FEDRES_URL, else http://127.0.0.1:8000].")
]
Key = Annotated[str | None, typer.Option(help="API key with the role admin [default: FEDRES_KEY].")]


@catalogue.callback()
def _group() -> None:
    """Fill the catalogue of a loop."""


@catalogue.command("import")
@one_line_errors
def import_items(
    file: Annotated[Path, typer.Argument(help="Items: .jsonl, .csv, .tsv or .parquet, the text files also .gz.")],
    url: Url = None,
    loop: Annotated[str, typer.Option(help="The loop.")] = "default",
    key: Key = None,
    id_column: Annotated[str, typer.Option("--id", help="Column or field with the item's id.")] = "id",
    lists: Annotated[
        list[str] | None,
        typer.Option("--list", metavar="COLUMN=SIGN", help="A column with several values, such as genres='|'."),
    ] = None,
    retire: Annotated[bool, typer.Option("--retire", help="Retire the items that the file does not have.")] = False,
) -> None:
    """Add or replace the items of a file, in calls of 2,000. An interrupted import can be run again."""
    from fedres.client import Client, ServiceError
    from service.plugins.recommend.item_files import BATCH_ITEMS, batches, read_items

    if not file.exists():
        raise ValueError(f"no file at {file}")
    signs = dict(_sign(each) for each in lists or [])
    done: set[str] = set()
    with progress_bar(f"importing {file.name}") as progress, Client(url, loop=loop, key=key, fallback=None) as client:
        try:
            for batch in batches(read_items(file, id_column, signs, progress)):
                client.put_actions(batch)
                done |= batch.keys()
            gone = [name for name in client.catalogue() if name not in done] if retire else []
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


@feedback.callback()
def _feedback_group() -> None:
    """Teach a loop what actions earned elsewhere."""


@feedback.command("import")
@one_line_errors
def import_feedback(
    file: Annotated[Path, typer.Argument(help="Ratings: .jsonl, .csv, .tsv or .parquet, the text files also .gz.")],
    url: Url = None,
    loop: Annotated[str, typer.Option(help="The loop.")] = "default",
    key: Key = None,
    item: Annotated[str | None, typer.Option(help="Column with the action's id [default: item or action].")] = None,
    reward_from: Annotated[str | None, typer.Option(help="Column with the reward [default: reward or rating].")] = None,
    scale: Annotated[
        str | None,
        typer.Option(metavar="LOW:HIGH", help="Range of ratings to stretch over the loop's reward_range."),
    ] = None,
    user: Annotated[str, typer.Option(help="Column with the user.")] = "user",
    time: Annotated[str, typer.Option(help="Column with the time: seconds since 1970, or ISO 8601.")] = "time",
    event_id: Annotated[str, typer.Option(help="Column with the event's id.")] = "event_id",
    context: Annotated[list[str] | None, typer.Option(help="A column that is a feature of the context.")] = None,
) -> None:
    """Store the ratings of a file as feedback, in calls of 500. An interrupted import can be run again."""
    from fedres.client import Client, ServiceError
    from service.plugins.recommend.feedback_files import BATCH, FeedbackColumns, Skipped, read_feedback

    if not file.exists():
        raise ValueError(f"no file at {file}")
    columns, stretched = FeedbackColumns(item, reward_from, user, time, event_id, tuple(context or ())), _scale(scale)
    skipped, stored, repeated = Skipped(), 0, 0
    with progress_bar(f"importing {file.name}") as progress, Client(url, loop=loop, key=key, fallback=None) as client:
        try:
            low, high = client.settings()["reward_range"]
            events = read_feedback(file, columns, (low, high), stretched, skipped, progress)
            while batch := [*islice(events, BATCH)]:
                counts = _send(client, batch, skipped)
                stored, repeated = stored + counts["stored"], repeated + counts["repeated"]
        except ServiceError as error:
            raise ValueError(f"{error} ({stored:,} events are in)") from None
    n_skipped = skipped.counts.total()
    typer.echo(f"{stored:,} events imported, {repeated:,} existed already, {n_skipped:,} lines skipped")
    for reason, n in skipped.counts.most_common():
        typer.echo(f"  {n:,} × {reason} (line {skipped.first[reason]:,})")


def _send(client: Client, batch: list[tuple[int, dict[str, Any]]], skipped: Skipped) -> dict[str, int]:
    """Store events; those that the service refuses are skipped."""
    from fedres.client import ServiceError

    while batch:
        try:
            counts = client.feedback(event for _, event in batch)
            return {"stored": counts["stored"], "repeated": counts["repeated"]}
        except ServiceError as error:
            place = re.match(r"events\[(\d+)\]", error.target or "")
            if error.status != 422 or place is None or int(place[1]) >= len(batch):
                raise
            at, _ = batch.pop(int(place[1]))
            skipped.add(error.message.replace(f"{place[0]}.", "").partition(", got")[0], at)
    return {"stored": 0, "repeated": 0}


def _scale(option: str | None) -> tuple[float, float] | None:
    if option is None:
        return None
    try:
        low, high = map(float, option.split(":"))
    except ValueError:
        low = high = 0.0
    if not low < high:
        raise ValueError(f"--scale must be LOW:HIGH, such as 1:5, got {option!r}")
    return low, high

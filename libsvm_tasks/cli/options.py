"""Options that several research commands have."""

from __future__ import annotations

from typing import Annotated

import typer

DatasetArgument = Annotated[
    str, typer.Argument(help="digits (built in), a name of `fedres datasets list`, or a path to a LIBSVM or CSV file.")
]
Label = Annotated[str | None, typer.Option(help="The column to predict, of a .csv or .tsv file with a header.")]
Clients = Annotated[int, typer.Option(help="Number P of clients.")]
LocalLearner = Annotated[str, typer.Option(help="Personal models: linear (compiled, same steps as VW) or vw itself.")]
Seed = Annotated[int, typer.Option(help="Seed of the first rollout; the others count up from it.")]
Jobs = Annotated[int, typer.Option(help="Processes; results do not depend on it.")]
Backend = Annotated[str, typer.Option(help="Where processes run: loky (here), ray or dask.")]
Address = Annotated[str | None, typer.Option(help="Of a running Ray or Dask cluster; default: start one here.")]


def names(text: str) -> list[str]:
    """Return names that are separated by commas."""
    return [name.strip() for name in text.split(",")]

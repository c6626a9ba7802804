"""``fedres fair``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from libsvm_tasks.cli.options import Address, Backend, Jobs
from service.console import console, one_line_errors, progress_bar, whole_numbers


@one_line_errors
def fair(
    datasets: Annotated[str, typer.Option(help="Datasets, separated by commas; all eight by default.")] = "",
    clients: Annotated[str, typer.Option(help="Numbers of clients, separated by commas.")] = "10,50",
    delays: Annotated[str, typer.Option(help="Round trips in rounds, separated by commas.")] = "0,80,200",
    rollouts: Annotated[int, typer.Option(help="Rollouts that a cell is judged by.")] = 25,
    out: Annotated[Path, typer.Option(help="Folder for fair.md, its CSVs and the journal.")] = Path("results"),
    finished: Annotated[
        bool, typer.Option("--finished", help="Make the table of what is finished, and run nothing.")
    ] = False,
    jobs: Jobs = 1,
    backend: Backend = "loky",
    address: Address = None,
) -> None:
    """Compare FedRes with other methods under equal conditions; hyperparameters are chosen on held-out rows.

    After an interruption, run the same command again to resume.
    """
    from libsvm_tasks.cli.source import of_the_source
    from libsvm_tasks.grid import cluster

    table = of_the_source("research.fair.table")
    design = table.Design(
        datasets=tuple(name.strip() for name in datasets.split(",")) if datasets else table.Design().datasets,
        clients=tuple(whole_numbers("clients", clients)),
        delays=tuple(whole_numbers("delays", delays)),
        rollouts=rollouts,
    )
    out.mkdir(parents=True, exist_ok=True)
    with cluster(backend, address, jobs), progress_bar("comparing") as progress:
        cells = table.run(design, jobs=jobs, journal=out / "fair-cells.jsonl", progress=progress, finished=finished)
    if not cells:
        raise ValueError(f"nothing is finished in {out}")
    table.write(cells, design, out)
    console().print((out / "fair.md").read_text(encoding="utf-8"), markup=False)

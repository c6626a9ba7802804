"""``fedres reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from libsvm_tasks.cli.options import Address, Backend, Jobs
from service.console import JsonFile, console, one_line_errors, progress_bar, write_json


@one_line_errors
def reproduce(
    figures: Annotated[list[str] | None, typer.Argument(help="Names of `--list`, e.g. fedres-1 fedomd-1.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Name every figure and claim, and stop.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Make them all.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small settings, on digits: minutes instead of half an hour.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for pictures, CSVs and the table of claims.")] = Path("results"),
    jobs: Jobs = 2,
    backend: Backend = "loky",
    address: Address = None,
    json_file: JsonFile = None,
) -> None:
    """Remake the papers' figures, with a verdict for every claim.

    After an interruption, run the same command again to resume.
    """
    from dataclasses import asdict

    from rich.table import Table

    from libsvm_tasks.cli.source import of_the_source
    from libsvm_tasks.grid import cluster

    registry = of_the_source("research.reproduce.registry")
    if show:
        table = Table("figure", "paper", "shows", box=None)
        for figure in registry.FIGURES.values():
            table.add_row(figure.name, figure.paper, figure.title)
        console().print(table)
        return
    names = list(registry.FIGURES) if every else figures
    if not names:
        raise ValueError("name figures to make, or give --list or --all")
    with cluster(backend, address, jobs), progress_bar("reproducing") as progress:
        claims = registry.reproduce(names, registry.Run(out, quick, jobs, progress))
    table = Table("figure", "claim", "measured", "verdict", show_lines=True)
    for claim in claims:
        colour = {"reproduced": "green", "partly": "yellow", "not reproduced": "red"}[claim.verdict]
        table.add_row(claim.figure, claim.claim, claim.measured, f"[{colour}]{claim.verdict}[/]")
    console().print(table)
    console().print(f"pictures, CSVs and claims.md are in {out}", markup=False)
    write_json(json_file, [asdict(claim) for claim in claims])

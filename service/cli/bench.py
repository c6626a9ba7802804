"""``fedres bench``: speed side by side in one run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from service.cli.base import JsonFile, app, console, one_line_errors, progress_bar, write_json

KINDS = ("engine", "learners", "bandit", "service")


@app.command()
@one_line_errors
def bench(
    what: Annotated[str, typer.Argument(help=f"{', '.join(KINDS)} or all.")] = "all",
    json_file: JsonFile = None,
) -> None:
    """Measure speed side by side in one run, on one core: ours and what one would use instead."""
    from fedres import checks
    from libsvm_tasks import bench_bandit, bench_engine, bench_learners
    from service import bench as bench_service

    checks.one_of("what", what, (*KINDS, "all"))
    modules = (bench_engine, bench_learners, bench_bandit, bench_service)
    results: dict[str, Any] = {}
    for name, module in zip(KINDS, modules, strict=True):
        if what in (name, "all"):
            with progress_bar(f"measuring {name}") as progress:
                rows = module.measure_all(progress)
            console().print(module.table(rows))
            results[name] = rows
    write_json(json_file, results)

"""``fedres bench``: speed side by side in one run."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from service.cli.base import JsonFile, app, console, one_line_errors, progress_bar, write_json

MODULES = {  # `service` needs the extra serve, the others bench
    "engine": "libsvm_tasks.bench_engine",
    "learners": "libsvm_tasks.bench_learners",
    "bandit": "libsvm_tasks.bench_bandit",
    "service": "service.bench",
}


@app.command()
@one_line_errors
def bench(
    what: Annotated[str, typer.Argument(help=f"{', '.join(MODULES)} or all.")] = "all",
    json_file: JsonFile = None,
) -> None:
    """Measure speed side by side in one run, on one core: ours and what one would use instead."""
    from fedres import checks

    checks.one_of("what", what, (*MODULES, "all"))
    modules = {name: import_module(path) for name, path in MODULES.items() if what in (name, "all")}
    results: dict[str, Any] = {}
    for name, module in modules.items():
        with progress_bar(f"measuring {name}") as progress:
            rows = module.measure_all(progress)
        console().print(module.table(rows))
        results[name] = rows
    write_json(json_file, results)

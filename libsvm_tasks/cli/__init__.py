"""Research commands of ``fedres``: replays, bandits, datasets, papers and benchmarks. A plug-in of the command line."""

from __future__ import annotations

import typer

from libsvm_tasks.cli import bandit, bench, datasets, fair, replay, reproduce
from service.plugins import Plugin


def add_commands(app: typer.Typer) -> None:
    for command in (replay.replay, replay.delays, bandit.bandit, reproduce.reproduce, fair.fair, bench.bench):
        app.command()(command)
    app.add_typer(datasets.datasets, name="datasets")


plugin = Plugin(name="research", commands=add_commands)

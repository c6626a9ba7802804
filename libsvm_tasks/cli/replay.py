"""``fedres replay`` and ``fedres delays``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from libsvm_tasks.cli.options import Address, Backend, Clients, DatasetArgument, Jobs, Label, LocalLearner, Seed, names
from service.console import (
    JsonFile,
    PlotFile,
    check_writable,
    console,
    one_line_errors,
    progress_bar,
    whole_numbers,
    write_json,
)

if TYPE_CHECKING:
    from libsvm_tasks.schemes import Scheme
    from libsvm_tasks.task_replay import Replay, Setup

Rounds = Annotated[int, typer.Option(help="Rounds T; each client sees one example a round.")]
Rollouts = Annotated[int, typer.Option(help="Independent repetitions, each with a task of its own.")]
Schemes = Annotated[str, typer.Option(help="Which of independent, central, fedres to run, separated by commas.")]
GlobalLearners = Annotated[
    list[str] | None,
    typer.Option(
        help="Rule for the shared model of fedres, also with hyperparameters: ofedavg or ofediq:levels=3,blocks=9."
        " Repeatable. Default: fedres-sgd."
    ),
]
LocalFeatures = Annotated[str, typer.Option(help="What personal models see: half (as in the paper) or all.")]
Samples = Annotated[int, typer.Option(help="At most this many examples of each of its two classes per client.")]


@one_line_errors
def replay(
    dataset: DatasetArgument,
    label: Label = None,
    clients: Clients = 50,
    rounds: Rounds = 500,
    rollouts: Rollouts = 50,
    delay: Annotated[int, typer.Option(help="Round trip in rounds, half of it each way.")] = 0,
    schemes: Schemes = "independent,central,fedres",
    global_learner: GlobalLearners = None,
    local_learner: LocalLearner = "linear",
    local_features: LocalFeatures = "all",
    timing: Annotated[str, typer.Option(help="When late messages are learned: on-arrival, or aligned.")] = "on-arrival",
    samples: Samples = 30,
    seed: Seed = 0,
    jobs: Jobs = 1,
    backend: Backend = "loky",
    address: Address = None,
    json_file: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Replay a dataset as a federation: each client alone, one model for all, and both together (fedres)."""
    from libsvm_tasks.experiments import contenders
    from libsvm_tasks.grid import cluster
    from libsvm_tasks.plots import plot_replay
    from libsvm_tasks.schemes import Scheme
    from libsvm_tasks.task_replay import Setup

    setup = Setup(dataset, clients, rounds, rollouts, samples, seed, label)
    rows = [
        Scheme(name, learner, local_learner, local_features, timing, delay)
        for name, learner in contenders(names(schemes), global_learner or ["fedres-sgd"])
    ]
    with cluster(backend, address, jobs):
        _replay(setup, rows, jobs, json_file, plot, plot_replay)


@one_line_errors
def delays(
    dataset: DatasetArgument,
    label: Label = None,
    delays: Annotated[
        str | None,
        typer.Option(
            help="Round trips in rounds, separated by commas [default: 0,20,40,80,120,200, those below --rounds]."
        ),
    ] = None,
    clients: Clients = 50,
    rounds: Rounds = 500,
    rollouts: Rollouts = 50,
    schemes: Schemes = "independent,central,fedres",
    global_learner: GlobalLearners = None,
    local_learner: LocalLearner = "linear",
    local_features: LocalFeatures = "all",
    timing: Annotated[
        str, typer.Option(help="When late messages are learned: on-arrival, aligned, or both by a comma.")
    ] = "on-arrival,aligned",
    samples: Samples = 30,
    seed: Seed = 0,
    jobs: Jobs = 1,
    backend: Backend = "loky",
    address: Address = None,
    json_file: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Measure how accuracy holds up as messages between clients and server take longer."""
    from libsvm_tasks.experiments import contenders, delays_below
    from libsvm_tasks.grid import cluster
    from libsvm_tasks.plots import plot_delays
    from libsvm_tasks.schemes import Scheme, at_delays
    from libsvm_tasks.task_replay import Setup

    setup = Setup(dataset, clients, rounds, rollouts, samples, seed, label)
    rows = []
    for name, learner in contenders(names(schemes), global_learner or ["fedres-sgd"]):
        timings = timing.split(",") if name == "fedres" else ["on-arrival"]
        rows += [Scheme(name, learner, local_learner, local_features, rule.strip()) for rule in timings]
    rows = at_delays(rows, delays_below(rounds, None if delays is None else whole_numbers("delays", delays)))
    with cluster(backend, address, jobs):
        _replay(setup, rows, jobs, json_file, plot, plot_delays)


def _replay(
    setup: Setup,
    schemes: list[Scheme],
    jobs: int,
    json_file: Path | None,
    plot: Path | None,
    draw: Callable[[Replay, Path], None],
) -> None:
    """Run, print, write and draw; what an interrupted call had finished is found again."""
    from libsvm_tasks.load import journal_file
    from libsvm_tasks.plots import check_path
    from libsvm_tasks.report import replay_table
    from libsvm_tasks.task_replay import replay

    check_writable("json", json_file)
    if plot is not None:
        check_path(plot)
    journal = journal_file(setup, schemes)
    with progress_bar(f"replaying {setup.dataset}") as progress:
        result = replay(setup, schemes, jobs=jobs, journal=journal, progress=progress)
    console().print(replay_table(result))
    write_json(json_file, result.to_json())
    if plot is not None:
        draw(result, plot)
    journal.unlink(missing_ok=True)

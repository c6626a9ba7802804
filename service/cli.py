"""The ``fedres`` command. Every command is a call and a table; what it does is in the packages it imports."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from libsvm_tasks.replay import Replay, Setup
    from libsvm_tasks.schemes import Scheme

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
datasets = typer.Typer(no_args_is_help=True, help="List, download and look at datasets.")
app.add_typer(datasets, name="datasets")

Command = TypeVar("Command", bound=Callable[..., Any])


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedres {version('fedres')}")
        raise typer.Exit


@app.callback()
def main(
    show: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Personalization with a shared model and a personal model for every user."""


def one_line_errors(command: Command) -> Command:
    """Turn what a user can get wrong into one line and exit status 2, and Ctrl-C into status 130."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (ValueError, OSError) as error:
            typer.echo(f"fedres: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("fedres: interrupted; the same command goes on from what is finished", err=True)
            raise typer.Exit(130) from None

    return wrapped  # type: ignore[return-value]


DatasetArgument = Annotated[
    str, typer.Argument(help="digits (built in), a name of `fedres datasets list`, or a path to a LIBSVM file.")
]
Clients = Annotated[int, typer.Option(help="Number P of clients.")]
Rounds = Annotated[int, typer.Option(help="Rounds T; each client sees one example a round.")]
Rollouts = Annotated[int, typer.Option(help="Independent repetitions, each with a task of its own.")]
Schemes = Annotated[str, typer.Option(help="Which of independent, central, fedres to run, by commas.")]
GlobalLearner = Annotated[str, typer.Option(help="Rule for the shared model of fedres, e.g. fedres-sgd or ofediq.")]
LocalLearner = Annotated[str, typer.Option(help="Personal models: linear (compiled, same steps as VW) or vw itself.")]
LocalFeatures = Annotated[str, typer.Option(help="What personal models see: half (as in the paper) or all.")]
Samples = Annotated[int, typer.Option(help="At most this many examples of each of its two classes per client.")]
Seed = Annotated[int, typer.Option(help="Seed of the first rollout; the others count up from it.")]
Jobs = Annotated[int, typer.Option(help="Processes; results do not depend on it.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Draw the results to this .png, .svg or .pdf.")]


@app.command()
@one_line_errors
def replay(
    dataset: DatasetArgument,
    clients: Clients = 50,
    rounds: Rounds = 500,
    rollouts: Rollouts = 50,
    delay: Annotated[int, typer.Option(help="Round trip in rounds, half of it each way.")] = 0,
    schemes: Schemes = "independent,central,fedres",
    global_learner: GlobalLearner = "fedres-sgd",
    local_learner: LocalLearner = "linear",
    local_features: LocalFeatures = "all",
    timing: Annotated[str, typer.Option(help="When late messages are learned: on-arrival, or aligned.")] = "on-arrival",
    samples: Samples = 30,
    seed: Seed = 0,
    jobs: Jobs = 1,
    json_file: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Replay a dataset as a federation: each client alone, one model for all, and both together (fedres)."""
    from libsvm_tasks.plots import plot_replay
    from libsvm_tasks.replay import Setup
    from libsvm_tasks.schemes import Scheme

    setup = Setup(dataset, clients, rounds, rollouts, samples, seed)
    rows = [
        Scheme(name.strip(), global_learner, local_learner, local_features, timing, delay)
        for name in schemes.split(",")
    ]
    _replay(setup, rows, jobs, json_file, plot, plot_replay)


@app.command()
@one_line_errors
def delays(
    dataset: DatasetArgument,
    delays: Annotated[str, typer.Option(help="Round trips to try, by commas.")] = "0,20,40,80,120,200",
    clients: Clients = 50,
    rounds: Rounds = 500,
    rollouts: Rollouts = 50,
    schemes: Schemes = "independent,central,fedres",
    global_learner: GlobalLearner = "fedres-sgd",
    local_learner: LocalLearner = "linear",
    local_features: LocalFeatures = "all",
    timing: Annotated[
        str, typer.Option(help="When late messages are learned: on-arrival, aligned, or both by a comma.")
    ] = "on-arrival,aligned",
    samples: Samples = 30,
    seed: Seed = 0,
    jobs: Jobs = 1,
    json_file: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Measure how accuracy holds up as messages between clients and server take longer."""
    from libsvm_tasks.plots import plot_delays
    from libsvm_tasks.replay import Setup
    from libsvm_tasks.schemes import Scheme, at_delays

    setup = Setup(dataset, clients, rounds, rollouts, samples, seed)
    rows = []
    for name in schemes.split(","):
        timings = timing.split(",") if name.strip() == "fedres" else ["on-arrival"]
        rows += [Scheme(name.strip(), global_learner, local_learner, local_features, rule.strip()) for rule in timings]
    _replay(setup, at_delays(rows, _whole_numbers("delays", delays)), jobs, json_file, plot, plot_delays)


def _replay(
    setup: Setup,
    schemes: list[Scheme],
    jobs: int,
    json_file: Path | None,
    plot: Path | None,
    draw: Callable[[Replay, Path], None],
) -> None:
    """Run, print, write and draw; what an interrupted call had finished is found again."""
    from libsvm_tasks.load import cache_folder
    from libsvm_tasks.plots import check_path
    from libsvm_tasks.replay import replay
    from libsvm_tasks.report import replay_table

    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    if plot is not None:
        check_path(plot)
    name = hashlib.sha256(repr((setup, schemes)).encode()).hexdigest()[:16]
    journal = cache_folder() / "unfinished" / f"{name}.jsonl"
    with progress_bar(f"replaying {setup.dataset}") as progress:
        result = replay(setup, schemes, jobs=jobs, journal=journal, progress=progress)
    Console(width=None if os.isatty(1) else 150).print(replay_table(result))
    write_json(json_file, result.to_json())
    if plot is not None:
        draw(result, plot)
    journal.unlink(missing_ok=True)


@contextmanager
def progress_bar(task: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left on standard error while the work goes on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task(task, total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total)


def write_json(path: Path | None, content: object) -> None:
    """Write a JSON file so that a crash leaves the old one or the new one."""
    if path is None:
        return
    temporary = path.with_name(f".{path.name}.part")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def _whole_numbers(name: str, text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise ValueError(f"{name} must be whole numbers by commas, got {text!r}") from None


@app.command()
@one_line_errors
def reproduce(
    figures: Annotated[list[str] | None, typer.Argument(help="Names of `--list`, e.g. fedres-1 fedomd-1.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Name every figure and claim, and stop.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Make them all.")] = False,
    quick: Annotated[bool, typer.Option(help="Small settings, on digits: minutes instead of an hour.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for pictures, CSVs and the table of claims.")] = Path("results"),
    jobs: Jobs = 2,
    json_file: JsonFile = None,
) -> None:
    """Remake the papers' figures, and say of every claim whether it was reproduced.

    Interrupted, the same command goes on from what is finished in its folder.
    """
    from dataclasses import asdict

    from rich.table import Table

    from libsvm_tasks.reproduce.figure import Run
    from libsvm_tasks.reproduce.registry import FIGURES
    from libsvm_tasks.reproduce.registry import reproduce as remake

    console = Console(width=None if os.isatty(1) else 150)
    if show:
        table = Table("figure", "paper", "shows", box=None)
        for figure in FIGURES.values():
            table.add_row(figure.name, figure.paper, figure.title)
        console.print(table)
        return
    names = list(FIGURES) if every else figures
    if not names:
        raise ValueError("name figures to make, or give --list or --all")
    with progress_bar("reproducing") as progress:
        claims = remake(names, Run(out, quick, jobs, progress))
    table = Table("figure", "claim", "measured", "verdict", show_lines=True)
    for claim in claims:
        colour = {"reproduced": "green", "partly": "yellow", "not reproduced": "red"}[claim.verdict]
        table.add_row(claim.figure, claim.claim, claim.measured, f"[{colour}]{claim.verdict}[/]")
    console.print(table)
    console.print(f"pictures, CSVs and claims.md are in {out}")
    write_json(json_file, [asdict(claim) for claim in claims])


@datasets.command("list")
@one_line_errors
def list_datasets(json_file: JsonFile = None) -> None:
    """List the catalogue, and which of its datasets are at hand."""
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
    Console(width=None if os.isatty(1) else 150).print(table)
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
def show_dataset(name: DatasetArgument, json_file: JsonFile = None) -> None:
    """Print the shape of a dataset and a picture of its class balance."""
    from libsvm_tasks.load import load
    from libsvm_tasks.report import balance_table, spread_line

    data = load(name)
    rows, features = data.features.shape
    kind = f"{data.n_classes} classes" if data.classes is not None else "regression"
    typer.echo(f"{data.name}: {rows:,} rows, {features:,} features, {kind}")
    if data.classes is not None:
        Console(width=None if os.isatty(1) else 150).print(balance_table(data))
    else:
        typer.echo(spread_line(data))
    balance = (
        {} if data.classes is None else dict(zip(map(str, data.classes), data.class_sizes().tolist(), strict=True))
    )
    write_json(json_file, {"name": data.name, "rows": rows, "features": features, "class_sizes": balance})


@app.command()
@one_line_errors
def bench(
    what: Annotated[str, typer.Argument(help="engine, learners or all.")] = "all",
    json_file: JsonFile = None,
) -> None:
    """Measure speed side by side in one run, on one core: ours and what one would use instead."""
    from fedres import checks
    from libsvm_tasks import bench_engine, bench_learners

    checks.one_of("what", what, ("engine", "learners", "all"))
    results: dict[str, Any] = {}
    console = Console(width=None if os.isatty(1) else 150)
    for name, module in (("engine", bench_engine), ("learners", bench_learners)):
        if what in (name, "all"):
            with progress_bar(f"measuring {name}") as progress:
                results[name] = module.measure_all(progress)
            console.print(module.table(results[name]))
    write_json(json_file, results)

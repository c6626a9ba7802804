"""``fedres evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.base import app
from service.console import (
    JsonFile,
    PlotFile,
    check_writable,
    console,
    one_line_errors,
    progress_bar,
    read_as,
    with_columns,
    write_json,
)

if TYPE_CHECKING:
    from rich.table import Table

    from bandits.evaluation import Columns, Evaluation

LoggedDecisions = Annotated[
    Path,
    typer.Argument(help="Logged decisions: JSON lines (also .gz), VW's dsjson, .csv, .tsv or .parquet."),
]
Policies = Annotated[
    list[str] | None,
    typer.Option(
        help="Policy to evaluate (repeatable): fedres (the service, learning as it goes through the log),"
        " fedres:POLICY, uniform, first, likeliest, constant:ACTION, greedy, epsilon-greedy:0.1, squarecb:10,"
        " softmax:0.1, one of an installed package, file:PATH (JSON lines with event_id and probabilities), logging"
        " [default: uniform, greedy]."
    ),
]
Estimators = Annotated[
    list[str] | None,
    typer.Option(help="ips, snips, dm, dr, sndr, switch-dr or dros; repeatable [default: snips, dr]"),
]
DefaultReward = Annotated[
    float | None, typer.Option(help="Reward of decisions without one [default: such decisions are left out].")
]
TimeUniform = Annotated[
    bool,
    typer.Option("--time-uniform", help="Intervals that are valid at all looks at a growing log together; wider."),
]
ByEvent = Annotated[
    bool,
    typer.Option("--by-event", help="Treat events, not users, as independent observations."),
]
RewardRange = Annotated[
    tuple[float, float] | None,
    typer.Option(help="Smallest and largest possible reward [default: 0 1 if that covers all, else from the log]."),
]


@app.command()
@one_line_errors
@with_columns
def evaluate(
    *,
    log: LoggedDecisions,
    policy: Policies = None,
    columns: Columns,
    estimator: Estimators = None,
    default_reward: DefaultReward = None,
    level: Annotated[float, typer.Option(help="Level of the confidence intervals.")] = 0.95,
    time_uniform: TimeUniform = False,
    by_event: ByEvent = False,
    reward_range: RewardRange = None,
    json_file: JsonFile = None,
    plot: PlotFile = None,
) -> None:
    """Estimate from logged decisions what other policies would have earned, with confidence intervals.

    Columns named action, reward, probability, propensity, click, user, time and the like are recognized.
    """
    from bandits.evaluation import evaluate as value

    check_writable("json", json_file)
    read_as(log, columns)
    with progress_bar(f"reading {log.name}") as progress:
        result = value(
            log,
            policy or ["uniform", "greedy"],
            **{word: getattr(columns, word) for word in columns.given},
            estimators=tuple(estimator or ("snips", "dr")),
            default_reward=default_reward,
            level=level,
            time_uniform=time_uniform,
            by_user=not by_event,
            reward_range=reward_range,
            progress=progress,
        )
    console().print(_table(log.name, result))
    for line in result.notes():
        typer.echo(line)
    write_json(json_file, result.to_json())
    if plot is not None:
        figure = result.plot().figure
        figure.tight_layout()
        figure.savefig(plot, dpi=120)


def _table(name: str, result: Evaluation) -> Table:
    from rich.table import Table

    independent = "" if result.n_users == result.n else f" of {result.n_users:,} users"
    low, high = result.reward_range
    table = Table(
        title=f"{name}: {result.n:,} decisions{independent} with a reward in {low:g} to {high:g}", title_justify="left"
    )
    table.add_column("policy", overflow="fold")
    table.add_column("estimator", no_wrap=True)
    kind = f"{result.level:.0%} {'time-uniform' if result.time_uniform else 'interval'}"
    for column in ("value", kind, "vs logging", "effective n"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in result.rows:
        table.add_row(*row.cells())
    return table

"""``fedres bandit`` and ``fedres evaluate``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from service.cli.base import (
    Address,
    Backend,
    DatasetArgument,
    Jobs,
    JsonFile,
    Label,
    PlotFile,
    Seed,
    app,
    console,
    one_line_errors,
    progress_bar,
    write_json,
)


@app.command()
@one_line_errors
def bandit(
    dataset: DatasetArgument,
    label: Label = None,
    clients: Annotated[int, typer.Option(help="Number P of clients.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds T; each client decides once a round.")] = 8000,
    policy: Annotated[
        str,
        typer.Option(
            help="explore-every (the paper's), epsilon-greedy, squarecb, optimistic-squarecb, linucb, greedy, softmax,"
            " or one of an installed package; options may follow, such as softmax:temperature=0.1."
        ),
    ] = "epsilon-greedy",
    model: Annotated[
        str | None,
        typer.Option(help="adagrad, linucb or residual-kalman (the service's); what suits the policy unless given."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Share of exploration: 0.02 unless given, 0.1 for explore-every.")
    ] = None,
    half_life: Annotated[
        float | None, typer.Option(help="Of linucb: rewards after which an old one counts half; never unless given.")
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(help="Share of all probability spread evenly; unless given, what the policy has."),
    ] = None,
    task: Annotated[
        str,
        typer.Option(
            help="same: one task for all. permuted: each client has 3 classes in 10 trade names. shuffled: all of them."
            " subsets: each client meets half of the classes. drift: same, but all classes trade names at half time."
        ),
    ] = "permuted",
    delay: Annotated[int, typer.Option(help="Round trip of messages in rounds.")] = 0,
    schemes: Annotated[str, typer.Option(help="Which to run, separated by commas.")] = "independent,central,fedres",
    global_learner: Annotated[
        str, typer.Option(help="Rule for the shared model; others than fedres-adagrad are played step by step, slowly.")
    ] = "fedres-adagrad",
    local_learner: Annotated[
        str, typer.Option(help="Personal models: linear (compiled, same steps as VW) or vw itself.")
    ] = "linear",
    shared_features: Annotated[
        str | None, typer.Option(help="What the shared model sees: half (all for residual-kalman) or all.")
    ] = None,
    local_features: Annotated[str, typer.Option(help="What personal models see: all, or the other half.")] = "all",
    rollouts: Annotated[int, typer.Option(help="Independent repetitions.")] = 5,
    seed: Seed = 0,
    jobs: Jobs = 1,
    backend: Backend = "loky",
    address: Address = None,
    json_file: JsonFile = None,
    plot: PlotFile = None,
    log: Annotated[
        Path | None, typer.Option(help="Write the last scheme's decisions of the first rollout, for `fedres evaluate`.")
    ] = None,
) -> None:
    """Turn a dataset into a contextual bandit: every class is an action, and the right one earns 1.

    Each client alone, one model for all, and both together (fedres) decide on the same rows.
    """
    from libsvm_tasks.bandit_log import write_log
    from libsvm_tasks.bandit_replay import Setup, make_scheme, run, shared_features_of
    from libsvm_tasks.grid import cluster
    from libsvm_tasks.load import cache_folder
    from libsvm_tasks.plots import check_path, plot_bandit
    from libsvm_tasks.report import bandit_table

    if jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")
    if plot is not None:
        check_path(plot)
    given = {"epsilon": epsilon, "half_life": half_life, "floor": floor}
    options = {name: value for name, value in given.items() if value is not None}
    learners = {"model": model, "global_learner": global_learner, "local_learner": local_learner}
    rows = [make_scheme(name.strip(), policy, options, **learners, delay=delay) for name in schemes.split(",")]
    seen = shared_features or shared_features_of(rows)
    setup = Setup(dataset, clients, rounds, rollouts, task, seen, local_features, seed, label)
    journal = cache_folder() / "unfinished" / f"{hashlib.sha256(repr((setup, rows)).encode()).hexdigest()[:16]}.jsonl"
    with cluster(backend, address, jobs), progress_bar(f"deciding on {dataset}") as progress:
        result = run(setup, rows, jobs=jobs, journal=journal, progress=progress)
    console().print(bandit_table(result))
    write_json(json_file, result.to_json())
    if plot is not None:
        plot_bandit(result, plot)
    if log is not None:
        stream = setup.stream(0)
        write_log(log, stream, rows[-1].play(stream, seed))
    journal.unlink(missing_ok=True)


@app.command()
@one_line_errors
def evaluate(
    log: Annotated[Path, typer.Argument(help="Logged decisions: JSON lines (also .gz), ours or VW's dsjson.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="What to value; may be given several times: uniform, constant:ACTION, greedy, epsilon-greedy:0.1,"
            " squarecb:10, softmax:0.1, one of an installed package, file:PATH (JSON lines with event_id and"
            " probabilities), logging."
        ),
    ] = None,
    estimator: Annotated[
        list[str] | None,
        typer.Option(
            help="ips, snips, dm, dr, sndr, switch-dr or dros; may be given several times. [default: snips, dr]"
        ),
    ] = None,
    default_reward: Annotated[
        float | None, typer.Option(help="Reward of decisions that have none; they are left out unless given.")
    ] = None,
    level: Annotated[float, typer.Option(help="Level of the confidence intervals.")] = 0.95,
    time_uniform: Annotated[
        bool,
        typer.Option("--time-uniform", help="Intervals that hold at all looks at a growing log together; wider."),
    ] = False,
    by_event: Annotated[
        bool,
        typer.Option("--by-event", help="Take events to be independent, and not only users."),
    ] = False,
    reward_range: Annotated[
        tuple[float, float] | None,
        typer.Option(help="Least and largest reward there can be. [default: 0 1 if it holds all, or from the log]"),
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Estimate from logged decisions what other policies would have earned, with confidence intervals."""
    from rich.table import Table

    from bandits.evaluation import evaluate as value

    chosen = tuple(estimator or ("snips", "dr"))
    result = value(
        log,
        policy or ["uniform", "greedy"],
        estimators=chosen,
        default_reward=default_reward,
        level=level,
        time_uniform=time_uniform,
        by_user=not by_event,
        reward_range=reward_range,
    )
    independent = "" if result.n_users == result.n else f" of {result.n_users:,} users"
    span = "{:g} to {:g}".format(*result.reward_range)
    table = Table(
        title=f"{log.name}: {result.n:,} decisions{independent} with a reward, {result.n_without_reward:,} without;"
        f" rewards in {span}",
        title_justify="left",
    )
    for column in ("policy", "estimator"):
        table.add_column(column)
    for column in (
        "value",
        f"{level:.0%} {'time-uniform' if time_uniform else 'interval'}",
        "vs logging",
        "effective n",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("warning")
    for row in result.rows:
        against = "" if row.estimator == "mean" else f"{row.difference_low:+.4f} .. {row.difference_high:+.4f}"
        span = f"{row.low:.4f} .. {row.high:.4f}"
        table.add_row(row.policy, row.estimator, f"{row.value:.4f}", span, against, f"{row.ess:,.0f}", row.warning)
    console().print(table)
    write_json(json_file, result.to_json())

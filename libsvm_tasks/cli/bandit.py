"""``fedres bandit``."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import typer

from libsvm_tasks.cli.options import Address, Backend, DatasetArgument, Jobs, Label, Seed
from service.console import JsonFile, PlotFile, console, one_line_errors, progress_bar, write_json


@one_line_errors
def bandit(
    dataset: DatasetArgument,
    label: Label = None,
    clients: Annotated[int, typer.Option(help="Number P of clients.")] = 10,
    rounds: Annotated[int, typer.Option(help="Rounds T; each client decides once a round.")] = 8000,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            help="explore-every (the paper's), epsilon-greedy, squarecb, optimistic-squarecb, linucb, greedy, softmax,"
            " or one of an installed package; options may follow, such as softmax:temperature=0.1. Repeatable."
            " [default: epsilon-greedy]"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="adagrad, linucb or residual-kalman (the service's); what suits the policy unless given."),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Share of exploration: 0.02 unless given, 0.1 for explore-every.")
    ] = None,
    half_life: Annotated[
        float | None, typer.Option(help="linucb only: half-life of a reward, in rewards; no decay by default.")
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
    """Play a dataset as a contextual bandit: every class is an action, and the correct one earns 1.

    Each client alone, one model for all, and both together (fedres) decide on the same rows, with each policy. If one
    of them has the model residual-kalman, the shared model sees all features with all policies.
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
    rows = [
        make_scheme(name.strip(), one, options, **learners, delay=delay)
        for one in dict.fromkeys(policy or ["epsilon-greedy"])
        for name in schemes.split(",")
    ]
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

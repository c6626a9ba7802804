"""``fedres bandit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from libsvm_tasks.cli.options import Address, Backend, Clients, DatasetArgument, Jobs, Label, LocalLearner, Seed, names
from service.console import JsonFile, PlotFile, console, one_line_errors, progress_bar, write_json

Policies = Annotated[
    list[str] | None,
    typer.Option(
        help="explore-every (the paper's), epsilon-greedy, squarecb, optimistic-squarecb, linucb, greedy, softmax,"
        " or one of an installed package; options may follow, such as softmax:temperature=0.1. Repeatable."
        " [default: epsilon-greedy]"
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(help="adagrad, linucb or residual-kalman (the service's); what suits the policy unless given."),
]
Epsilon = Annotated[float | None, typer.Option(help="Share of exploration: 0.02 unless given, 0.1 for explore-every.")]
HalfLife = Annotated[
    float | None, typer.Option(help="linucb only: half-life of a reward, in rewards; no decay by default.")
]
Floor = Annotated[
    float | None,
    typer.Option(help="Share of all probability spread evenly; unless given, what the policy has."),
]
TaskOption = Annotated[
    str,
    typer.Option(
        help="same: one task for all. permuted: each client has 3 classes in 10 trade names. shuffled: all of them."
        " subsets: each client meets half of the classes. drift: same, but all classes trade names at half time."
    ),
]
GlobalLearnerOption = Annotated[
    str, typer.Option(help="Rule for the shared model; others than fedres-adagrad are played step by step, slowly.")
]
SharedFeatures = Annotated[
    str | None, typer.Option(help="What the shared model sees: half (all for residual-kalman) or all.")
]
LogFile = Annotated[
    Path | None, typer.Option(help="Write the last scheme's decisions of the first rollout, for `fedres evaluate`.")
]


@one_line_errors
def bandit(
    dataset: DatasetArgument,
    label: Label = None,
    clients: Clients = 10,
    rounds: Annotated[int, typer.Option(help="Rounds T; each client decides once a round.")] = 8000,
    policy: Policies = None,
    model: ModelOption = None,
    epsilon: Epsilon = None,
    half_life: HalfLife = None,
    floor: Floor = None,
    task: TaskOption = "permuted",
    delay: Annotated[int, typer.Option(help="Round trip of messages in rounds.")] = 0,
    schemes: Annotated[str, typer.Option(help="Which to run, separated by commas.")] = "independent,central,fedres",
    global_learner: GlobalLearnerOption = "fedres-adagrad",
    local_learner: LocalLearner = "linear",
    shared_features: SharedFeatures = None,
    local_features: Annotated[str, typer.Option(help="What personal models see: all, or the other half.")] = "all",
    rollouts: Annotated[int, typer.Option(help="Independent repetitions.")] = 5,
    seed: Seed = 0,
    jobs: Jobs = 1,
    backend: Backend = "loky",
    address: Address = None,
    json_file: JsonFile = None,
    plot: PlotFile = None,
    log: LogFile = None,
) -> None:
    """Play a dataset as a contextual bandit: every class is an action, and the correct one earns 1.

    Each client alone, one model for all, and both together (fedres) decide on the same rows, with each policy. If one
    of them has the model residual-kalman, the shared model sees all features with all policies.
    """
    from libsvm_tasks.bandit_log import write_log
    from libsvm_tasks.bandit_replay import Setup, make_scheme, run, shared_features_of
    from libsvm_tasks.grid import cluster
    from libsvm_tasks.load import journal_file
    from libsvm_tasks.plots import check_path, plot_bandit
    from libsvm_tasks.report import bandit_table

    if plot is not None:
        check_path(plot)
    exploring = {"epsilon": epsilon, "half_life": half_life, "floor": floor}
    options = {name: value for name, value in exploring.items() if value is not None}
    settings = {"model": model, "global_learner": global_learner, "local_learner": local_learner, "delay": delay}
    forms = dict.fromkeys(policy or ["epsilon-greedy"])
    rows = [make_scheme(scheme, form, options, **settings) for form in forms for scheme in names(schemes)]
    seen = shared_features or shared_features_of(rows)
    setup = Setup(dataset, clients, rounds, rollouts, task, seen, local_features, seed, label)
    journal = journal_file(setup, rows)
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

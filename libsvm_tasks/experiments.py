"""Experiments from Python: what ``fedres replay``, ``delays`` and ``bandit`` do, with one's own data and learners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedres.policies import Policy, title_of
from fedres.policies import policy as make_policy
from libsvm_tasks import bandit_replay, task_replay
from libsvm_tasks.data import Data
from libsvm_tasks.results import Table
from libsvm_tasks.schemes import SCHEMES, Scheme, at_delays
from libsvm_tasks.tables import from_columns

USUAL_DELAYS = (0, 20, 40, 80, 120, 200)

Learner = str | Callable[..., Any]
Source = str | Path | Data | Mapping[str, Iterable[Any]]


def replay(
    data: Source,
    *,
    label: str | None = None,
    clients: int = 50,
    rounds: int = 500,
    rollouts: int = 50,
    delay: int = 0,
    schemes: Sequence[str] = SCHEMES,
    global_learners: Sequence[Learner] = ("fedres-sgd",),
    local_learner: str = "linear",
    local_features: str = "all",
    timing: str = "on-arrival",
    samples: int = 30,
    seed: int = 0,
    jobs: int | None = 1,
) -> Table:
    """Replay a dataset as a federation: each client alone, one model for all, and both together (fedres).

    ``data`` is a name or a path (as on the command line), a DataFrame or another mapping of columns, with ``label`` the
    column to predict, or a ``Data``. A global learner is a name, a name with hyperparameters, or a class or function
    that makes one from ``model`` and ``n_clients``; fedres comes once for each. A record has ``accuracy`` on held-out
    rows, and ``gain``, the difference to Independent in the same rollout.

    >>> from libsvm_tasks import replay
    >>> table = replay("digits", clients=5, rounds=50, rollouts=2, global_learners=["fedres-sgd", "fedogd"])
    >>> [row["global_learner"] for row in table if row["scheme"] == "fedres" and row["rollout"] == 0]
    ['fedres-sgd', 'fedogd']
    """
    rows = [
        Scheme(name, learner, local_learner, local_features, timing, delay)
        for name, learner in contenders(schemes, global_learners)
    ]
    return _replayed(data, label, rows, (clients, rounds, rollouts, samples, seed), jobs)


def delays(
    data: Source,
    delays: Sequence[int] | None = None,
    *,
    label: str | None = None,
    clients: int = 50,
    rounds: int = 500,
    rollouts: int = 50,
    schemes: Sequence[str] = SCHEMES,
    global_learners: Sequence[Learner] = ("fedres-sgd",),
    local_learner: str = "linear",
    local_features: str = "all",
    timings: Sequence[str] = ("on-arrival", "aligned"),
    samples: int = 30,
    seed: int = 0,
    jobs: int | None = 1,
) -> Table:
    """Replay at several round trips (in rounds) and, for fedres, by both timing rules; arguments as for ``replay``.

    Delays are below the rounds, or no message would arrive; unless given, those of 0, 20, 40, 80, 120 and 200 that are.
    """
    rows = [
        Scheme(name, learner, local_learner, local_features, timing)
        for name, learner in contenders(schemes, global_learners)
        for timing in (timings if name == "fedres" else ("on-arrival",))
    ]
    return _replayed(
        data, label, at_delays(rows, delays_below(rounds, delays)), (clients, rounds, rollouts, samples, seed), jobs
    )


def bandit(
    data: Source,
    *,
    label: str | None = None,
    policies: Sequence[str | Policy | type[Policy]] = ("epsilon-greedy",),
    clients: int = 10,
    rounds: int = 8000,
    rollouts: int = 5,
    task: str = "permuted",
    delay: int = 0,
    schemes: Sequence[str] = SCHEMES,
    model: str | None = None,
    global_learner: str = "fedres-adagrad",
    local_learner: str = "linear",
    shared_features: str | None = None,
    local_features: str = "all",
    seed: int = 0,
    jobs: int | None = 1,
) -> Table:
    """Play a dataset as a contextual bandit: every class is an action, and the correct one earns 1.

    A policy is a name, an object such as ``bandits.EpsilonGreedy(0.1)``, or a class. ``model`` is "adagrad", "linucb"
    or "residual-kalman": what suits the policy unless given. A record has the mean ``reward`` and ``regret`` of a
    rollout, and ``gain``, the difference in reward to Independent with the same policy. Of the features, the shared
    model sees half unless ``shared_features`` is "all", as it is for residual-kalman.
    """
    rows, name = _source(data, label)
    label_to_load = None if rows is not None else label
    table = Table()
    for one in policies:
        chosen = make_policy(one)
        contestants = [
            bandit_replay.Scheme(scheme, chosen, model, global_learner, local_learner, delay) for scheme in schemes
        ]
        seen = shared_features or bandit_replay.shared_features_of(contestants)
        setup = bandit_replay.Setup(name, clients, rounds, rollouts, task, seen, local_features, seed, label_to_load)
        for result in bandit_replay.run(setup, contestants, data=rows, jobs=jobs).results:
            fixed = {
                "dataset": name,
                "task": task,
                "policy": title_of(one),
                "model": result.scheme.model_name,
                "scheme": result.scheme.scheme,
                "delay": delay,
            }
            for k in range(rollouts):
                gain = None if result.gain is None else float(result.gain[k])
                numbers = {"reward": float(result.reward[k]), "regret": float(result.regret[k]), "gain": gain}
                table.append({**fixed, "rollout": k, "seed": seed + k, **numbers})
    return table


def delays_below(rounds: int, delays: Sequence[int] | None) -> Sequence[int]:
    """Return delays that messages can arrive after; those that are usual unless given."""
    if delays is None:
        return [delay for delay in USUAL_DELAYS if delay < rounds]
    late = [delay for delay in delays if delay >= rounds > 0]
    if late:
        raise ValueError(
            f"delays must be below the number of rounds, {rounds}, or no message arrives,"
            f" got {', '.join(map(str, late))}: leave them out, or take more rounds"
        )
    return delays


def contenders(schemes: Sequence[str], learners: Sequence[Learner]) -> list[tuple[str, Learner]]:
    """Return schemes with the learner of each; fedres comes once for every learner."""
    chosen = list(dict.fromkeys(learners))
    return [(name, learner) for name in schemes for learner in (chosen if name == "fedres" else chosen[:1])]


def _replayed(
    data: Source, label: str | None, schemes: list[Scheme], numbers: tuple[int, int, int, int, int], jobs: int | None
) -> Table:
    rows, name = _source(data, label)
    setup = task_replay.Setup(name, *numbers, None if rows is not None else label)
    table = Table()
    for result in task_replay.replay(setup, schemes, data=rows, jobs=jobs).results:
        scheme = result.scheme
        fixed = {
            "dataset": name,
            "scheme": scheme.scheme,
            "global_learner": scheme.learner,
            "local_learner": scheme.local_learner,
            "local_features": scheme.local_features,
            "timing": scheme.timing,
            "delay": scheme.delay,
            "bits_up": float(result.bits_up),  # per client, a mean over the rollouts
            "bits_down": float(result.bits_down),
        }
        for k, accuracy in enumerate(result.accuracy):
            gain = None if result.gain is None else float(result.gain[k])
            table.append({**fixed, "rollout": k, "seed": setup.seed + k, "accuracy": float(accuracy), "gain": gain})
    return table


def _source(data: Source, label: str | None) -> tuple[Data | None, str]:
    """Return a dataset that is in memory, or None for one that is loaded by its name, which comes second."""
    if isinstance(data, str | Path):
        return None, str(data)
    if isinstance(data, Data):
        if label is not None:
            raise ValueError(f"label must come with columns or a file, got {label!r} beside {data!r}")
        return data, data.name
    return from_columns("table", data, label), "table"

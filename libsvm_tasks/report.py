"""Tables for the terminal."""

from __future__ import annotations

import platform

import numpy as np
from rich.table import Table

from fedres.checks import Array
from libsvm_tasks.bandit_replay import BanditReplay
from libsvm_tasks.data import Data
from libsvm_tasks.task_replay import Replay, Result, standard_error

BAR = 24


def replay_table(replay: Replay) -> Table:
    """Return accuracy and cost, a row per scheme; bars span from the worst to the best."""
    setup = replay.setup
    table = Table(
        title=f"{setup.dataset}: {setup.clients} clients with {replay.samples_per_client:.0f} + "
        f"{replay.samples_per_client:.0f} examples, {setup.rounds} rounds, {setup.rollouts} rollouts, "
        f"{platform.machine()}",
        title_justify="left",
    )
    for column in ("scheme", "global learner", "local", "timing"):
        table.add_column(column)
    for column in ("delay", "accuracy", "vs independent", "kbit up", "kbit down"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", min_width=BAR)
    means = [result.accuracy_mean for result in replay.results]
    for result in replay.results:
        table.add_row(*_cells(result), bar(result.accuracy_mean, min(means), max(means)))
    return table


def _cells(result: Result) -> list[str]:
    scheme, fedres = result.scheme, result.scheme.scheme == "fedres"
    gain = ""
    if result.gain is not None and scheme.scheme != "independent":
        gain = f"{result.gain.mean():+.4f}{spread(result.gain)}"
    return [
        scheme.scheme,
        scheme.learner if fedres else "",
        f"{scheme.local_learner}, {scheme.local_features}" if fedres else "",
        scheme.timing if fedres else "",
        "" if scheme.scheme == "independent" else str(scheme.delay),
        f"{result.accuracy_mean:.4f}{spread(result.accuracy)}",
        gain,
        f"{result.bits_up / 1000:,.0f}",
        f"{result.bits_down / 1000:,.0f}",
    ]


def spread(values: Array) -> str:
    """Return the standard error as it is shown; nothing for a single rollout, which has none."""
    return f" ± {standard_error(values):.4f}" if len(values) > 1 else ""


def bar(value: float, low: float, high: float) -> str:
    """Return a bar of up to BAR cells, of one cell at ``low``."""
    share = (value - low) / (high - low) if high > low else 1.0
    return "█" * (1 + round(share * (BAR - 1)))


def balance_table(data: Data) -> Table:
    """Return the rows of each class with a bar chart."""
    sizes, classes = data.class_sizes(), data.classes
    table = Table("class", title=f"{data.name}: rows by class", title_justify="left")
    table.add_column("rows", justify="right")
    table.add_column("share", justify="right")
    table.add_column("", min_width=BAR)
    for label, size in zip(classes if classes is not None else [], sizes, strict=True):
        table.add_row(
            label if isinstance(label, str) else f"{label:g}",
            f"{size:,}",
            f"{size / sizes.sum():.1%}",
            bar(size, 0, sizes.max()),
        )
    return table


def spread_line(data: Data) -> str:
    """Return the quartiles of a regression label and a histogram of it, in two lines."""
    low, first, middle, third, high = np.quantile(data.label, [0, 0.25, 0.5, 0.75, 1])
    counts = np.histogram(data.label, bins=2 * BAR)[0]
    blocks = " ▁▂▃▄▅▆▇█"
    picture = "".join(blocks[int(np.ceil(8 * count / counts.max()))] for count in counts)
    return f"label from {low:g} to {high:g}, quartiles {first:g}, {middle:g}, {third:g}\n{picture}"


def bandit_table(replay: BanditReplay) -> Table:
    """Return reward and regret, a row per scheme."""
    setup = replay.setup
    table = Table(
        title=f"{setup.dataset} ({setup.task} task), {replay.results[0].scheme.policy_name}: {setup.clients} clients, "
        f"{setup.rounds} rounds, {setup.rollouts} rollouts, {platform.machine()}",
        title_justify="left",
    )
    for column in ("scheme", "global learner", "local"):
        table.add_column(column)
    for column in ("delay", "reward", "vs independent", "regret", "last rounds"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("", min_width=BAR)
    means = [float(result.reward.mean()) for result in replay.results]
    for result, mean in zip(replay.results, means, strict=True):
        scheme, shared = result.scheme, result.scheme.scheme != "independent"
        gain = ""
        if result.gain is not None and shared:
            gain = f"{result.gain.mean():+.4f} ± {standard_error(result.gain):.4f}"
        one = {"linucb": "least squares", "residual-kalman": "residual-kalman"}.get(scheme.model_name)
        table.add_row(
            scheme.scheme,
            (one or scheme.global_learner) if shared else "",
            (one or scheme.local_learner) if scheme.scheme != "central" else "",
            str(scheme.delay) if shared else "",
            f"{mean:.4f} ± {standard_error(result.reward):.4f}",
            gain,
            f"{result.regret.mean():.4f}",
            f"{result.reward_curve[:, -1].mean():.4f}",
            bar(mean, min(means), max(means)),
        )
    return table

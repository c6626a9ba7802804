"""Tables for the terminal."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import numpy as np
from rich import box
from rich.table import Table

from fedres.checks import Array
from libsvm_tasks.bandit_replay import BanditReplay, BanditResult
from libsvm_tasks.data import Data
from libsvm_tasks.task_replay import Replay, Result, standard_error

BAR, NARROW_BAR = 24, 8
MOST_COLUMNS, GAP = 100, 2  # of a table, and between its columns
FOLDED, WIDEST = ("policy", "global learner", "model"), {True: 17, False: 100}  # names may be long


def replay_table(replay: Replay) -> Table:
    """Return accuracy and cost, a row per scheme; bars span from the worst to the best."""
    setup = replay.setup
    title = (
        f"{setup.dataset}: {setup.clients} clients with {replay.samples_per_client:.0f} + "
        f"{replay.samples_per_client:.0f} examples, {setup.rounds} rounds, {setup.rollouts} rollouts, "
        f"{platform.machine()}"
    )
    means = [result.accuracy_mean for result in replay.results]
    rows = [
        [*_cells(result), bar(result.accuracy_mean, min(means), max(means), NARROW_BAR)] for result in replay.results
    ]
    names = ["scheme", "global learner", "local", "timing", "delay", "accuracy", "vs independent", "kbit up/down", ""]
    return _narrow_table(title, names, rows, optional=("local", "timing", "delay"))


def _narrow_table(title: str, names: list[str], rows: list[list[str]], optional: Sequence[str]) -> Table:
    """Return a table of at most 100 columns; of ``optional`` ones, what is the same in all rows is in the title."""
    shown = []
    for k, name in enumerate(names):
        cells = {row[k] for row in rows} - {""}
        if name in optional and len(cells) < 2:
            title += f", {name} {cells.pop()}" if cells and cells != {"0"} else ""
        else:
            shown.append(k)
    if sum(min(_width(names, rows, k), WIDEST[names[k] in FOLDED]) + GAP for k in shown) > MOST_COLUMNS:
        shown.remove(names.index(""))  # the bars
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for k in shown:
        name = names[k]
        if name in FOLDED:
            table.add_column(name, overflow="fold", max_width=WIDEST[True])
        else:
            table.add_column(name, justify="left" if name in ("scheme", "timing", "") else "right", no_wrap=True)
    for row in rows:
        table.add_row(*[row[k] for k in shown])
    return table


def _width(names: list[str], rows: list[list[str]], k: int) -> int:
    return max(len(names[k]), *[len(row[k]) for row in rows])


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
        f"{result.bits_up / 1000:,.0f}/{result.bits_down / 1000:,.0f}",
    ]


def spread(values: Array) -> str:
    """Return the standard error as it is shown; nothing for a single rollout, which has none."""
    return f" ± {standard_error(values):.4f}" if len(values) > 1 else ""


def bar(value: float, low: float, high: float, length: int = BAR) -> str:
    """Return a bar of up to ``length`` cells, of one cell at ``low``."""
    share = (value - low) / (high - low) if high > low else 1.0
    return "█" * (1 + round(share * (length - 1)))


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
    """Return reward and regret, a row per policy and scheme."""
    setup = replay.setup
    title = (
        f"{setup.dataset} ({setup.task} task): {setup.clients} clients, {setup.rounds} rounds, "
        f"{setup.rollouts} rollouts, {platform.machine()}"
    )
    means = [float(result.reward.mean()) for result in replay.results]
    rows = []
    for result, mean in zip(replay.results, means, strict=True):
        scheme, shared = result.scheme, result.scheme.scheme != "independent"
        gain = f"{result.gain.mean():+.4f}{spread(result.gain)}" if result.gain is not None and shared else ""
        rows.append(
            [
                scheme.policy_title,
                scheme.scheme,
                _model(result),
                str(scheme.delay) if shared else "",
                f"{mean:.4f}{spread(result.reward)}",
                gain,
                f"{result.regret.mean():.4f}",
                f"{result.reward_curve[:, -1].mean():.4f}",
                bar(mean, min(means), max(means), NARROW_BAR),
            ]
        )
    names = ["policy", "scheme", "model", "delay", "reward", "vs independent", "regret", "last rounds", ""]
    return _narrow_table(title, names, rows, optional=("policy", "model", "delay"))


def _model(result: BanditResult) -> str:
    scheme = result.scheme
    if scheme.model_name != "adagrad":
        return {"linucb": "least squares"}.get(scheme.model_name, scheme.model_name)
    return f"{scheme.global_learner}, {scheme.local_learner}"

"""Pictures of replays, as PNG or SVG by the file's name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

from libsvm_tasks.bandit_replay import BanditReplay
from libsvm_tasks.task_replay import Replay, Result

mpl.use("Agg")  # draws to files only, with no screen

from matplotlib import pyplot as plt

COLOURS = {"independent": "tab:blue", "central": "tab:orange", "fedres": "tab:green"}
LINES = ("-", "--", ":", "-.")  # of policies
FORMATS = (".png", ".svg", ".pdf")


class Series(NamedTuple):
    """A line: y over x with a band of ± error."""

    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float]


def check_path(path: Path) -> None:
    """Refuse a picture that could not be written, before the work is done."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"plot must end in {', '.join(FORMATS)}, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"plot must be in a folder that exists, got {path}")


def lines(axes: Any, series: Mapping[str, Series], xlabel: str, ylabel: str, styles: Mapping[str, Any]) -> None:
    """Draw the series with their bands."""
    for name, (x, y, error) in series.items():
        style = dict(styles.get(name, {}))
        (line,) = axes.plot(x, y, marker="o", markersize=3, label=name, **style)
        low, high = np.subtract(y, error), np.add(y, error)
        axes.fill_between(x, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def plot_replay(replay: Replay, path: Path) -> None:
    """One bar per scheme with its standard error, as in the paper's figure 1."""
    figure, axes = plt.subplots(figsize=(1.5 + 1.3 * len(replay.results), 3.6))
    for place, result in enumerate(replay.results):
        colour = COLOURS[result.scheme.scheme]
        axes.bar(place, result.accuracy_mean, yerr=result.accuracy_se, color=colour, capsize=4)
    axes.set_xticks(range(len(replay.results)), [_name(result) for result in replay.results], fontsize="small")
    lowest = min(result.accuracy_mean - 3 * result.accuracy_se for result in replay.results)
    axes.set_ylim(max(0.0, np.floor(lowest * 20 - 1) / 20), 1)
    axes.set_ylabel("test accuracy")
    axes.set_title(_title(replay))
    save(figure, path)


def plot_delays(replay: Replay, path: Path) -> None:
    """Accuracy over delay, a line per scheme and timing, as in the paper's figure 9."""
    figure, axes = plt.subplots(figsize=(6, 4))
    delays = sorted({result.scheme.delay for result in replay.results if result.scheme.scheme != "independent"})
    series: dict[str, Series] = {}
    styles: dict[str, dict[str, Any]] = {}
    for name, rows in by_line(replay.results).items():
        scheme = rows[0].scheme
        if scheme.scheme == "independent":
            rows = rows * len(delays)
        series[name] = Series(delays, [r.accuracy_mean for r in rows], [r.accuracy_se for r in rows])
        styles[name] = {"color": COLOURS[scheme.scheme], "linestyle": line_style(scheme.scheme, scheme.timing)}
    lines(axes, series, "delay, a round trip in rounds", "test accuracy", styles)
    axes.set_title(_title(replay))
    save(figure, path)


def line_style(scheme: str, timing: str) -> str:
    """Return a dashed line for FedRes on arrival and a solid one for everything else, as in the papers' figures."""
    return "--" if scheme == "fedres" and timing == "on-arrival" else "-"


def by_line(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the results that belong on one line over delay, in order of delay."""
    results_by_line: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.scheme.delay):
        results_by_line.setdefault(line_name(result), []).append(result)
    return results_by_line


def line_name(result: Result) -> str:
    scheme = result.scheme
    if scheme.scheme != "fedres":
        return scheme.scheme
    learner = "" if scheme.learner == "fedres-sgd" else f" {scheme.learner}"
    return f"fedres{learner}, {scheme.timing}"


def _name(result: Result) -> str:
    scheme = result.scheme
    if scheme.scheme != "fedres" or scheme.learner == "fedres-sgd":
        return scheme.scheme
    return f"fedres\n{scheme.learner}"


def _title(replay: Replay) -> str:
    setup = replay.setup
    return f"{setup.dataset}, {setup.clients} clients, N = {replay.samples_per_client:.0f}, {setup.rollouts} rollouts"


def plot_bandit(replay: BanditReplay, path: Path) -> None:
    """Reward and regret over the rounds, with bands of a standard error over rollouts."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.8))
    policies = list(dict.fromkeys(result.scheme.policy_title for result in replay.results))
    for one, name in zip(axes, ("reward", "regret"), strict=True):
        series, styles = dict[str, Series](), dict[str, dict[str, Any]]()
        for result in replay.results:
            curve = getattr(result, f"{name}_curve")
            points = (np.arange(curve.shape[1]) + 0.5) * replay.setup.rounds / curve.shape[1]
            error = curve.std(axis=0, ddof=1) / np.sqrt(len(curve)) if len(curve) > 1 else 0 * points
            scheme, policy = result.scheme.scheme, result.scheme.policy_title
            title = scheme if len(policies) == 1 else f"{policy}, {scheme}"
            series[title] = Series(points.tolist(), curve.mean(axis=0).tolist(), error.tolist())
            styles[title] = {"color": COLOURS[scheme], "linestyle": LINES[policies.index(policy) % len(LINES)]}
        lines(one, series, "round", f"average {name}", styles)
    setup = replay.setup
    figure.suptitle(f"{setup.dataset} ({setup.task} task), {setup.clients} clients, {', '.join(policies)}")
    save(figure, path)

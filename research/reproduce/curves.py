"""What the theory figures share: points on a log scale, means over seeds with their errors, and slopes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import pyplot as plt

from fedres.checks import Array
from libsvm_tasks.plots import Series, lines
from libsvm_tasks.task_replay import standard_error


def log_spaced(n_rounds: int, points: int = 80) -> Array:
    """Return about ``points`` rounds from 1 to T, evenly spaced on a log scale."""
    result: Array = np.unique(np.geomspace(1, n_rounds, points).round().astype(np.int64))
    return result


def band(x: Array, runs: Array) -> Series:
    """Return the mean over seeds, (seeds, points), with its standard error."""
    means, errors = zip(*(mean_error(column) for column in runs.T), strict=True)
    return Series(list(x), list(means), list(errors))


def draw(axes: Any, series: Mapping[str, Series], xlabel: str, ylabel: str, **style: Any) -> None:
    """Draw lines in one color map, without markers where there are many points."""
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(series)))
    many = max(len(line.x) for line in series.values()) > 20
    styles = {name: {"color": colour, **style} for name, colour in zip(series, colours, strict=True)}
    lines(axes, series, xlabel, ylabel, styles)
    for line in axes.get_lines():
        line.set_marker("" if many else "o")
    axes.legend(fontsize="small")


def mean_error(values: Array) -> tuple[float, float]:
    return float(values.mean()), standard_error(values)


def text(values: Array) -> str:
    mean, error = mean_error(values)
    return f"{mean:.3g} ± {error:.1g}"


def rows(head: Mapping[str, Any], axis: str, x: Sequence[float] | Array, runs: Array) -> list[dict[str, Any]]:
    """Return the CSV rows of one line: mean and standard error at every x."""
    return [
        {**head, axis: at, "mean": f"{mean:.6g}", "standard_error": f"{error:.3g}", "runs": len(runs)}
        for at, (mean, error) in zip(x, map(mean_error, runs.T), strict=True)
    ]


def log_log_slope(x: Array, runs: Array) -> tuple[float, float]:
    """Return the slope of ln(mean over seeds) in ln x, with its jackknife error over seeds."""
    samples = [runs, *(np.delete(runs, k, axis=0) for k in range(len(runs)))]
    slope, *left_out = (float(np.polyfit(np.log(x), np.log(part.mean(axis=0)), 1)[0]) for part in samples)
    return slope, float(np.std(left_out) * np.sqrt(len(runs) - 1))

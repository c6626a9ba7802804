"""A picture of an evaluation: a line for every interval, beside what the log itself earned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bandits.evaluation.compare import Evaluation


def draw(result: Evaluation, axes: Any = None) -> Any:
    """Draw on ``axes`` of matplotlib, or on new ones; return them."""
    from matplotlib import pyplot

    if axes is None:
        _, axes = pyplot.subplots(figsize=(7, 1.2 + 0.3 * len(result.rows)))
    logging = result.rows[0]
    axes.axvspan(logging.low, logging.high, color="tab:gray", alpha=0.15, linewidth=0)
    axes.axvline(logging.value, color="tab:gray", linewidth=1)
    colours: dict[str, str] = {}
    for place, row in enumerate(result.rows):
        colour = colours.setdefault(row.policy, f"C{len(colours)}" if place else "tab:gray")
        axes.hlines(place, row.low, row.high, color=colour)
        axes.plot(row.value, place, "o", color=colour, markersize=4)
    axes.set_yticks(range(len(result.rows)), [f"{row.policy}, {row.estimator}" for row in result.rows])
    axes.invert_yaxis()
    axes.set_xlabel(f"mean reward, {result.level:.0%} intervals")
    axes.grid(axis="x", alpha=0.3)
    return axes

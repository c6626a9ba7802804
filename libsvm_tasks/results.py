"""Records of experiments, to be looked at: as a DataFrame, a summary, a table of a notebook, or a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fedres.notebook import html_table
from libsvm_tasks.task_replay import standard_error

if TYPE_CHECKING:
    import pandas

MEASURES = ("accuracy", "reward", "regret", "gain")  # of each rollout
NOT_SHOWN = ("rollout", "seed", "bits_up", "bits_down")


class Table(list[dict[str, Any]]):
    """Records, one for each scheme and rollout."""

    def to_pandas(self) -> pandas.DataFrame:
        """Return the records as a DataFrame; needs pandas."""
        import pandas

        return pandas.DataFrame.from_records(self)

    def summary(self) -> list[dict[str, Any]]:
        """Return means over the rollouts, and standard errors (``_se``) where there are several rollouts."""
        groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
        for record in self:
            fixed = {name: value for name, value in record.items() if name not in (*MEASURES, *NOT_SHOWN)}
            groups.setdefault(tuple(fixed.items()), []).append(record)
        return [{**dict(fixed), **_means(records)} for fixed, records in groups.items()]

    def plot(self, axes: Any = None) -> Any:
        """Draw accuracy or reward on ``axes`` of matplotlib, or new ones: lines over delays, or bars; return them."""
        from matplotlib import pyplot

        if axes is None:
            _, axes = pyplot.subplots(figsize=(6, 4))
        rows, measure = self.summary(), next(name for name in MEASURES if self and name in self[0])
        if len({row["delay"] for row in rows}) > 1:
            _draw_lines(axes, rows, measure)
        else:
            names = [_title(row, rows).replace(", ", "\n") for row in rows]
            errors = [row.get(f"{measure}_se", 0.0) for row in rows]
            colours = [f"C{sorted({row['scheme'] for row in rows}).index(row['scheme'])}" for row in rows]
            axes.bar(names, [row[measure] for row in rows], yerr=errors, color=colours, capsize=4)
            axes.tick_params(axis="x", labelsize="small")
        axes.set_ylabel(measure)
        return axes

    def _repr_html_(self) -> str:
        rows = self.summary()
        if not rows:
            return "<p>no records</p>"
        varying, measures = _varying(rows), [name for name in MEASURES if name in rows[0]]
        fixed = ", ".join(f"{name} {rows[0][name]}" for name in rows[0] if name in _settings(rows) - set(varying))
        n = len({record["rollout"] for record in self})
        cells = [[*[str(row[name]) for name in varying], *[_measured(row, name) for name in measures]] for row in rows]
        return html_table(f"{fixed}; {n} rollouts", [*varying, *measures], cells)


def _means(records: list[dict[str, Any]]) -> dict[str, Any]:
    means: dict[str, Any] = {}
    for name in MEASURES:
        values = [record[name] for record in records if record.get(name) is not None]
        if name in records[0]:
            means[name] = float(np.mean(values)) if values else None
            if len(values) > 1:
                means[f"{name}_se"] = standard_error(np.array(values))
    return means


def _settings(rows: list[dict[str, Any]]) -> set[str]:
    return {name for row in rows for name in row if name.removesuffix("_se") not in MEASURES}


def _varying(rows: list[dict[str, Any]]) -> list[str]:
    """Return the settings in which rows differ, and the scheme."""
    names = [name for name in rows[0] if name in _settings(rows)]
    return [name for name in names if name == "scheme" or len({row[name] for row in rows}) > 1]


def _title(row: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    return ", ".join(str(row[name]) for name in _varying(rows) if name != "delay")


def _measured(row: dict[str, Any], name: str) -> str:
    value, error = row.get(name), row.get(f"{name}_se")
    if value is None:
        return ""
    sign = "+" if name == "gain" else ""
    return f"{value:{sign}.4f}" if error is None else f"{value:{sign}.4f} ± {error:.4f}"


def _draw_lines(axes: Any, rows: list[dict[str, Any]], measure: str) -> None:
    delays, lines = sorted({row["delay"] for row in rows}), dict[str, list[dict[str, Any]]]()
    for row in sorted(rows, key=lambda row: int(row["delay"])):
        lines.setdefault(_title(row, rows), []).append(row)
    for title, points in lines.items():
        if len(points) == 1:  # Independent sends no messages
            axes.plot(delays, [points[0][measure]] * len(delays), label=title)
        else:
            axes.plot([row["delay"] for row in points], [row[measure] for row in points], marker="o", label=title)
    axes.set_xlabel("delay, a round trip in rounds")
    axes.legend(fontsize="small")

"""The figures of the suite as tables and as CSV: mean ± standard error over seeds, differences paired by seed.

``python -m libsvm_tasks.decisions.report decisions.csv`` prints the table of a file as Markdown.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from libsvm_tasks.decisions.players import PLAYERS, VW_TUNED
from libsvm_tasks.decisions.suite import STREAMS

Figures = Mapping[str, Mapping[str, Sequence[float]]]  # by stream and player, one for each seed
OURS = "residual-kalman"
VW, VW_BEST = "vw-squarecb", "VW best in hindsight"  # VW at its defaults, and the form with the highest mean


def best_vw(row: Mapping[str, Sequence[float]]) -> str | None:
    """Return the form of VW that has the highest mean, the same for all seeds."""
    return max((name for name in row if name in VW_TUNED), key=lambda name: float(np.mean(row[name])), default=None)


def difference(row: Mapping[str, Sequence[float]]) -> list[float] | None:
    """Return by how much residual-kalman is ahead of VW's best form, seed by seed."""
    vw = best_vw(row)
    return [a - b for a, b in zip(row[OURS], row[vw], strict=True)] if vw and OURS in row else None


def shown(figures: Sequence[float] | None, sign: str = "") -> str:
    """Return mean ± standard error; a single figure has no error."""
    if not figures:
        return ""
    mean = f"{np.mean(figures):{sign}.3f}"
    if len(figures) == 1:
        return mean
    return f"{mean} ± {np.std(figures, ddof=1) / len(figures) ** 0.5:.3f}"


def cells(figures: Figures) -> tuple[list[str], list[list[str]]]:
    """Return the columns and a row for each stream; of several forms of VW, its defaults and the best are shown."""
    players = list(dict.fromkeys(name for row in figures.values() for name in row))
    tuned = [name for name in players if name in VW_TUNED]
    if len(tuned) > 2:
        shown_vw = [VW] if VW in tuned else []
        players = [*[name for name in players if name not in tuned], *shown_vw, VW_BEST]
    ahead = any(difference(row) for row in figures.values())
    rows = []
    for stream, row in figures.items():
        best, forms = best_vw(row), sum(name in VW_TUNED for name in row)
        own = {**row, VW_BEST: row[best] if best else []}
        note = f" ({best}, of {forms} forms)" if best else ""
        texts = [shown(own.get(name)) + (note if name == VW_BEST else "") for name in players]
        rows.append([stream, texts[0], *([shown(difference(row), "+")] if ahead else []), *texts[1:]])
    return ["stream", *players[:1], *(["ahead of VW"] if ahead else []), *players[1:]], rows


def table(figures: Figures, seeds: Sequence[int]) -> Table:
    """Return all figures, a row for each stream."""
    names, rows = cells(figures)
    result = Table(title=f"Decisions: mean reward or share of the best possible; seeds {seeds}", title_justify="left")
    result.add_column(names[0], no_wrap=True)
    for name in names[1:]:
        result.add_column(name, justify="right")
    for row in rows:
        result.add_row(*row)
    return result


def streams_table() -> Table:
    """Return what the streams are."""
    result = Table(title="Streams", title_justify="left")
    result.add_column("stream", no_wrap=True)
    result.add_column("what")
    for name, stream in STREAMS.items():
        result.add_row(name, stream.text)
    return result


def markdown(figures: Figures) -> str:
    """Return the same for docs/."""
    names, rows = cells(figures)
    return "\n".join([f"| {' | '.join(row)} |" for row in [names, ["---"] * len(names), *rows]])


def read_csv(path: Path) -> dict[tuple[str, str, int], float]:
    """Return the figures of a file by stream, player and seed; none where there is no file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {(row["stream"], row["player"], int(row["seed"])): float(row["figure"]) for row in csv.DictReader(file)}


def write_csv(path: Path, figures: Figures, seeds: Sequence[int]) -> None:
    """Add figures to a file, in the order of streams and players."""
    values_by_seed = read_csv(path)
    for stream, row in figures.items():
        for player, values in row.items():
            values_by_seed |= {(stream, player, seed): value for seed, value in zip(seeds, values, strict=True)}
    orders = [*STREAMS], [*PLAYERS]
    keys = sorted(values_by_seed, key=lambda key: (orders[0].index(key[0]), orders[1].index(key[1]), key[2]))
    lines = [f"{stream},{player},{seed},{values_by_seed[stream, player, seed]:.4f}\n" for stream, player, seed in keys]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("stream,player,seed,figure\n" + "".join(lines), encoding="utf-8")


def by_stream(by_seed: Mapping[tuple[str, str, int], float]) -> dict[str, dict[str, list[float]]]:
    """Return the figures of a file by stream and player, for the table."""
    streams: dict[str, dict[str, list[float]]] = {}
    for (stream, player, _), figure in by_seed.items():
        streams.setdefault(stream, {}).setdefault(player, []).append(figure)
    return streams


if __name__ == "__main__":
    print(markdown(by_stream(read_csv(Path(sys.argv[1])))))

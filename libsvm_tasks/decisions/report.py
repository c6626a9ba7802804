"""The figures of the suite as tables: mean ± standard error over seeds, differences paired by seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.table import Table

from libsvm_tasks.decisions.suite import STREAMS

Figures = Mapping[str, Mapping[str, Sequence[float]]]  # by stream and player, one for each seed
OURS = "residual-kalman"
VW = ("vw-squarecb", "vw-squarecb-cubic")


def better_vw(row: Mapping[str, Sequence[float]]) -> str | None:
    """Return which form of VW's squarecb has the higher mean."""
    return max((name for name in VW if name in row), key=lambda name: float(np.mean(row[name])), default=None)


def difference(row: Mapping[str, Sequence[float]]) -> list[float] | None:
    """Return by how much residual-kalman is ahead of the better form of VW's squarecb, seed by seed."""
    vw = better_vw(row)
    return [a - b for a, b in zip(row[OURS], row[vw], strict=True)] if vw and OURS in row else None


def shown(figures: Sequence[float] | None, sign: str = "") -> str:
    """Return mean ± standard error; a single figure has no error."""
    if not figures:
        return ""
    mean = f"{np.mean(figures):{sign}.3f}".replace("0.", ".", 1)
    if len(figures) == 1:
        return mean
    error = f"{np.std(figures, ddof=1) / len(figures) ** 0.5:.3f}".replace("0.", ".", 1)
    return f"{mean} ± {error}"


def table(figures: Figures, seeds: Sequence[int]) -> Table:
    """Return all figures, a row for each stream."""
    players = list(dict.fromkeys(name for row in figures.values() for name in row))
    found = Table(title=f"Decisions: mean reward or share of the best possible; seeds {seeds}", title_justify="left")
    found.add_column("stream", no_wrap=True)
    ahead = any(difference(row) for row in figures.values())
    for name in [*players[:1], *(["ahead of VW"] if ahead else []), *players[1:]]:
        found.add_column(name, justify="right")
    for stream, row in figures.items():
        cells = [shown(row.get(name)) for name in players]
        if ahead:
            cells.insert(1, shown(difference(row), "+"))
        found.add_row(stream, *cells)
    return found


def streams_table() -> Table:
    """Return what the streams are."""
    found = Table(title="Streams", title_justify="left")
    found.add_column("stream", no_wrap=True)
    found.add_column("what")
    for name, stream in STREAMS.items():
        found.add_row(name, stream.text)
    return found


def markdown(figures: Figures, players: Sequence[str], titles: Mapping[str, str]) -> str:
    """Return the same for docs/, with the columns asked for."""
    ahead = OURS in players and any(difference(row) for row in figures.values())
    names = [titles.get(name, name) for name in players]
    names[1:1] = ["ahead of VW"] if ahead else []
    lines = [f"| stream | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for stream, row in figures.items():
        cells = [shown(row.get(name)) for name in players]
        cells[1:1] = [shown(difference(row), "+")] if ahead else []
        lines.append(f"| {stream} | {' | '.join(cells)} |")
    return "\n".join(lines)

"""The fair table: who is ahead of whom in which cell, with paired t-intervals and Holm's correction.

[Holm79] S. Holm. A Simple Sequentially Rejective Multiple Test Procedure. 1979.
"""

from __future__ import annotations

import csv
import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedres import checks
from fedres.checks import Array
from libsvm_tasks import grid
from libsvm_tasks.task_replay import dataset
from research.fair.cells import JUDGING_SEED, TUNING_SEED, Chosen, Judging, Tuning, choose, judge, key, tune
from research.fair.methods import METHODS

DEVELOPMENT = ("letter", "pendigits", "satimage", "usps")  # looked at while methods and grids were made
UNTOUCHED = ("sensorless", "shuttle", "covtype", "mnist")  # run once, after everything was decided
LEVEL = 0.05  # the chance that Holm's correction allows of one wrong verdict in a method's whole family


EXPERIMENTS = (
    "`fedres, half` and `fedres, all` are the scheme `fedres` of `fedres replay` and `fedres delays`. `fedres 2nd",
    "order` and `fedres learned prior` are experiments of this comparison (`research/fair`): no other command,",
    "no learner of the library and no service offers them. The learned prior solves for shared and personal weights",
    "by regressions whose penalties all clients learn together (empirical Bayes); a client keeps its rows, and",
    "sends d × d sums a round trip.",
)


@dataclass(frozen=True, slots=True)
class Design:
    """What to run; a tuning rollout of 50 clients sets aside as many rows as five of 10 clients."""

    datasets: tuple[str, ...] = DEVELOPMENT + UNTOUCHED
    clients: tuple[int, ...] = (10, 50)
    delays: tuple[int, ...] = (0, 80, 200)
    rollouts: int = 25
    tuning_rows: int = 1200  # held-out rows to choose by, at least, where a client sets 12 aside

    def __post_init__(self) -> None:
        checks.whole("rollouts", self.rollouts, least=2)
        checks.whole("tuning_rows", self.tuning_rows)
        for name in ("datasets", "clients", "delays"):
            if not getattr(self, name):
                raise ValueError(f"{name} must name at least one, got none")

    def tuning_rollouts(self, clients: int) -> int:
        return max(2, -(-self.tuning_rows // (12 * clients)))


@dataclass(frozen=True)
class Cell:
    """One dataset, number of clients and delay: every method's accuracies, a number a rollout."""

    dataset: str
    clients: int
    delay: int
    accuracy: dict[str, Array]
    chosen: dict[str, Chosen]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A method of ours against a peer in one cell; ``low`` and ``high`` are the 95% t-interval, not corrected."""

    method: str
    peer: str
    dataset: str
    clients: int
    delay: int
    gain: float
    low: float
    high: float
    p_value: float
    verdict: str  # ahead, level or behind, after Holm's correction over all cells and peers of the method


def run(
    design: Design,
    *,
    jobs: int | None,
    journal: Path | None,
    progress: grid.Progress | None,
    finished: bool = False,
) -> list[Cell]:
    """Return all cells; with a ``journal`` an interrupted call goes on where it was.

    ``finished`` leaves out what the journal does not have.
    """
    pairs = [(name, clients) for name in design.datasets for clients in design.clients]
    if finished and journal is not None:
        pairs = [pair for pair in pairs if _finished(design, pair, journal)]
    tuning = {pair: _tuning(design, *pair) for pair in pairs}
    total = sum(map(len, tuning.values())) + len(pairs) * design.rollouts
    done, cells = 0, []
    for pair in pairs:
        tell = _part(progress, done, total)
        pieces = grid.run(tune, tuning[pair], jobs=jobs, journal=journal, progress=tell)
        done += len(tuning[pair])
        chosen = choose(pieces, design.delays)
        work = _judging(design, pair, chosen)
        judged = grid.run(judge, work, jobs=jobs, journal=journal, progress=_part(progress, done, total))
        done += len(work)
        cells += [_cell(pair, delay, chosen, judged) for delay in design.delays]
    return cells


def _judging(design: Design, pair: tuple[str, int], chosen: tuple[Chosen, ...]) -> list[Judging]:
    return [Judging(*pair, chosen, JUDGING_SEED + n, fingerprint(pair[0])) for n in range(design.rollouts)]


def _finished(design: Design, pair: tuple[str, int], journal: Path) -> bool:
    tuning = _tuning(design, *pair)
    if not grid.finished(tune, tuning, journal):
        return False
    chosen = choose(grid.run(tune, tuning, journal=journal), design.delays)
    return grid.finished(judge, _judging(design, pair, chosen), journal)


def _part(progress: grid.Progress | None, before: int, total: int) -> grid.Progress | None:
    """Return the progress of pieces that follow ``before`` others."""
    return None if progress is None else lambda done, _: progress(before + done, total)


def _tuning(design: Design, name: str, clients: int) -> list[Tuning]:
    print_of = fingerprint(name)
    seeds = range(TUNING_SEED, TUNING_SEED + design.tuning_rollouts(clients))
    return [Tuning(name, clients, design.delays, seed, print_of) for seed in seeds]


def _cell(pair: tuple[str, int], delay: int, chosen: Sequence[Chosen], judged: Sequence[dict[str, float]]) -> Cell:
    accuracy = {name: np.array([piece[key(name, delay)] for piece in judged]) for name in METHODS}
    return Cell(*pair, delay, accuracy, {one.method: one for one in chosen if one.delay == delay})


def fingerprint(name: str) -> str:
    """Return what tells a dataset from another file of the same name."""
    data = dataset(name)
    return hashlib.sha256(data.features.tobytes() + data.label.tobytes()).hexdigest()[:16]


def compare(cells: Sequence[Cell], method: str) -> list[Comparison]:
    """Return ``method`` against every peer in every cell, verdicts corrected over all of them."""
    peers = [name for name, other in METHODS.items() if not other.ours]
    pairs = [(cell, peer) for cell in cells for peer in peers]
    tests = [paired(cell.accuracy[method] - cell.accuracy[peer]) for cell, peer in pairs]
    rejected = holm([test[3] for test in tests], LEVEL)
    return [
        Comparison(method, peer, cell.dataset, cell.clients, cell.delay, *test, _verdict(test[0], bool(sure)))
        for (cell, peer), test, sure in zip(pairs, tests, rejected, strict=True)
    ]


def _verdict(gain: float, sure: bool) -> str:
    return ("ahead" if gain > 0 else "behind") if sure else "level"


def paired(differences: Array) -> tuple[float, float, float, float]:
    """Return mean, 95% interval and two-sided p-value of Student's t-test on differences."""
    from scipy.stats import t as student

    n, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1)) / n**0.5
    if error == 0:
        return mean, mean, mean, 1.0 if mean == 0 else 0.0
    half = float(student.ppf(0.975, n - 1)) * error
    return mean, mean - half, mean + half, float(2 * student.sf(abs(mean) / error, n - 1))


def holm(p_values: Sequence[float], level: float) -> Array:
    """Return which hypotheses are rejected at this family-wise level [Holm79]: from the smallest p until one fails."""
    order = np.argsort(p_values, kind="stable")
    rejected = np.zeros(len(order), dtype=bool)
    for rank, which in enumerate(order):
        if p_values[which] > level / (len(order) - rank):
            break
        rejected[which] = True
    return rejected


def write(cells: Sequence[Cell], design: Design, out: Path) -> list[Comparison]:
    """Write fair.md, fair.csv (comparisons) and fair-cells.csv (accuracies and choices); return all comparisons."""
    ours = [name for name, method in METHODS.items() if method.ours]
    comparisons = [one for name in ours for one in compare(cells, name)]
    _write_csv(out / "fair.csv", [{**asdict(one), **_rounded(one)} for one in comparisons])
    _write_csv(
        out / "fair-cells.csv",
        [
            {
                "dataset": cell.dataset,
                "clients": cell.clients,
                "delay": cell.delay,
                "method": name,
                "accuracy": f"{values.mean():.5f}",
                "standard_error": f"{values.std(ddof=1) / len(values) ** 0.5:.5f}",
                "choice": json.dumps(cell.chosen[name].choice),
                "averaged_with_own_model_of_rate": cell.chosen[name].alone or "",
            }
            for cell in cells
            for name, values in cell.accuracy.items()
        ],
    )
    (out / "fair.md").write_text(_page(cells, comparisons, design), encoding="utf-8")
    return comparisons


def _rounded(one: Comparison) -> dict[str, str]:
    return {name: f"{getattr(one, name):.5f}" for name in ("gain", "low", "high")} | {"p_value": f"{one.p_value:.2e}"}


def _write_csv(path: Path, rows: Sequence[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def counts(comparisons: Sequence[Comparison]) -> str:
    """Return ahead / level / behind."""
    return " / ".join(
        str(sum(one.verdict == verdict for one in comparisons)) for verdict in ("ahead", "level", "behind")
    )


def everywhere_ahead(comparisons: Sequence[Comparison]) -> int:
    """Return in how many cells a method is ahead of every peer."""
    cells: dict[tuple[str, int, int], bool] = {}
    for one in comparisons:
        place = (one.dataset, one.clients, one.delay)
        cells[place] = cells.get(place, True) and one.verdict == "ahead"
    return sum(cells.values())


def _page(cells: Sequence[Cell], comparisons: Sequence[Comparison], design: Design) -> str:
    groups = {"development": DEVELOPMENT, "untouched": UNTOUCHED}
    run = {cell.dataset for cell in cells}
    shown = {name: [d for d in group if d in run] for name, group in groups.items()}
    head = " | ".join(f"{name}: {', '.join(group)}" for name, group in shown.items() if group)
    lines = [
        f"{len(cells)} cells, {design.rollouts} rollouts each, {platform.machine()}. {head}.",
        "",
        *EXPERIMENTS,
        "",
        "Cells in which a method of ours is ahead / level / behind, by paired t-tests with Holm's correction over all",
        "cells and peers of a row:",
        "",
    ]
    peers = [name for name, method in METHODS.items() if not method.ours]
    lines += ["| | datasets | " + " | ".join(peers) + " | ahead of all |", "|---" * (len(peers) + 3) + "|"]
    for method in (name for name, method in METHODS.items() if method.ours):
        for group, names in shown.items():
            if not names:
                continue
            rows = [one for one in comparisons if one.method == method and one.dataset in names]
            by_peer = [counts([one for one in rows if one.peer == peer]) for peer in peers]
            of = len(rows) // len(peers)
            lines.append(f"| {method} | {group} | " + " | ".join(by_peer) + f" | {everywhere_ahead(rows)} of {of} |")
    lines += ["", "Mean accuracy over the cells of each dataset:", ""]
    names = [name for name in design.datasets if any(cell.dataset == name for cell in cells)]
    lines += ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for method in METHODS:
        means = [np.mean([cell.accuracy[method].mean() for cell in cells if cell.dataset == name]) for name in names]
        lines.append(f"| {method} | " + " | ".join(f"{mean:.4f}" for mean in means) + " |")
    ran = {(cell.dataset, cell.clients) for cell in cells}
    left = [f"{name} with {n} clients" for name in design.datasets for n in design.clients if (name, n) not in ran]
    if left:
        delays = ", ".join(map(str, design.delays))
        lines += ["", f"Not run, each at delays {delays}: {'; '.join(left)}. Nothing above is about these."]
    return "\n".join(lines) + "\n"

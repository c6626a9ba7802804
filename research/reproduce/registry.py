"""The papers' figures and numbered claims, remade: each a PNG, a CSV and a row in the table of claims."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import get_args

from research.reproduce import (
    appendix_c_figures,
    dynfed_figures,
    fedomd_figures,
    fedres_figures,
    fedsea_figures,
    ofediq_figures,
)
from research.reproduce.figure import Claim, Figure, Run, Verdict
from research.reproduce.statements import OURS

FIGURES: dict[str, Figure] = {
    figure.name: figure
    for module in (
        fedres_figures,
        appendix_c_figures,
        fedomd_figures,
        fedsea_figures,
        ofediq_figures,
        dynfed_figures,
    )
    for figure in module.FIGURES
}

HEAD = [field.name for field in fields(Claim)]
SHOWN = ["figure", "source", "claim", "measured", "verdict"]


def reproduce(names: Sequence[str], run: Run, started: Callable[[Figure], None] | None = None) -> list[Claim]:
    """Make the named figures in ``run.out``; an existing one, made the same way, is not made again."""
    for name in names:
        if name not in FIGURES:
            raise ValueError(f"figure must be one of {', '.join(FIGURES)}, got {name!r}")
    run.out.mkdir(parents=True, exist_ok=True)
    claims = []
    for name in names:
        if started is not None:
            started(FIGURES[name])
        claims += _made(FIGURES[name], run)
    write_claims(run)
    return claims


def _made(figure: Figure, run: Run) -> list[Claim]:
    record = run.out / f"{figure.name}.json"
    if record.exists():
        content = json.loads(record.read_text(encoding="utf-8"))
        if content["quick"] == run.quick and all(set(claim) == set(HEAD) for claim in content["claims"]):
            return [Claim(**claim) for claim in content["claims"]]
    claims = figure.make(run)
    content = {"figure": figure.name, "quick": run.quick, "claims": [asdict(claim) for claim in claims]}
    record.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return claims


def write_claims(run: Run) -> None:
    """Write all claims of the folder's figures, as a table in Markdown and, with the rules of the verdicts, as CSV."""
    claims = []
    for name in FIGURES:
        record = run.out / f"{name}.json"
        if record.exists():
            claims += [Claim(**claim) for claim in json.loads(record.read_text(encoding="utf-8"))["claims"]]
    (run.out / "claims.md").write_text(table(claims), encoding="utf-8")
    with (run.out / "claims.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(HEAD)
        writer.writerows(asdict(claim).values() for claim in claims)


def table(claims: Sequence[Claim]) -> str:
    """Return what was claimed, measured and found, in Markdown; ``claims.csv`` also has the rules of the verdicts."""
    lines = [f"{summary(claims)} The rules are in claims.csv.", ""]
    lines += [f"| {' | '.join(SHOWN)} |", "|" + "---|" * len(SHOWN)]
    lines += [f"| {' | '.join(getattr(claim, name) for name in SHOWN)} |" for claim in claims]
    return "\n".join(lines) + "\n"


def read_claims(path: Path) -> list[Claim]:
    """Return the claims of a CSV file that ``write_claims`` wrote."""
    with path.open(encoding="utf-8") as file:
        return [Claim(**row) for row in csv.DictReader(file)]  # type: ignore[arg-type]


def summary(claims: Sequence[Claim]) -> str:
    """Return how many claims of the papers, and how many statements of ours, got which verdict."""
    ours = [claim for claim in claims if claim.source.startswith(OURS)]
    theirs = [claim for claim in claims if claim not in ours]
    return f"Claims of the papers: {_counted(theirs)}. Ours: {_counted(ours)}."


def _counted(claims: Sequence[Claim]) -> str:
    verdicts = [claim.verdict for claim in claims]
    each = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in get_args(Verdict))
    return f"{len(claims)} ({each})"

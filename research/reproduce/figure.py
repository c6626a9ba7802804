"""What every reproduced figure is made of: a picture, a CSV, and claims with a verdict."""

from __future__ import annotations

import csv
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from libsvm_tasks.grid import Progress
from research.reproduce.statements import STATEMENTS

Verdict = Literal["reproduced", "partly", "not reproduced"]


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement (see ``statements``), and what came out on which architecture."""

    figure: str
    source: str
    claim: str
    rule: str
    refuted_if: str
    measured: str
    verdict: Verdict
    machine: str


def judged(key: str, measured: str, verdict: Verdict) -> Claim:
    """Return the claim of a statement, by its key "figure/word"."""
    return Claim(key.split("/")[0], *STATEMENTS[key], measured, verdict, platform.machine())


@dataclass(frozen=True, slots=True)
class Run:
    """How figures are being made: quick or in full, where to, and by how many processes."""

    out: Path
    quick: bool = False
    jobs: int | None = None
    progress: Progress | None = None

    @property
    def journal(self) -> Path:
        """Finished pieces of work, shared by all figures of a folder."""
        return self.out / "cells.jsonl"

    def picture(self, name: str) -> Path:
        return self.out / f"{name}.png"

    def write_csv(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the numbers behind a figure."""
        with (self.out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a paper, or a numbered claim that has none; ``make`` draws it and judges its claims."""

    name: str
    paper: str
    title: str
    make: Callable[[Run], list[Claim]]


def verdict(holds: Sequence[bool]) -> Verdict:
    """Return what to say of a claim that was tried in several cases."""
    if all(holds):
        return "reproduced"
    return "partly" if any(holds) else "not reproduced"

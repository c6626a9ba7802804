"""The parts of ``make hardening``: each does a little at a time and says what it found, so that it can be resumed."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MOST_LISTED = 20  # failures that are kept in the state


class Part(NamedTuple):
    """One part: ``run`` does ``unit`` things from a number on and returns failures and figures to be added up."""

    name: str
    what: str  # is counted
    goal: int
    unit: int
    run: Callable[[int, int], tuple[list[str], dict[str, float]]]
    missing: Callable[[], str | None] = lambda: None  # returns the missing requirement


class State:
    """What is done so far, in a file that is replaced after each unit."""

    def __init__(self, path):
        self.path = Path(path)
        self.parts = json.loads(self.path.read_text()) if self.path.exists() else {}

    def of(self, name):
        return self.parts.setdefault(name, {"done": 0, "n_failures": 0, "failures": [], "figures": {}})

    def save(self):
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(json.dumps(self.parts, indent=1))
        os.replace(part, self.path)


def go_on(part, state, goal, say, tell=lambda done: None):
    """Do what is left of a part; ``tell`` how much is done after each unit."""
    result = state.of(part.name)
    while result["done"] < goal:
        tell(result["done"])
        n = min(part.unit, goal - result["done"])
        failures, figures = part.run(result["done"], n)
        result["done"] += n
        result["n_failures"] += len(failures)
        result["failures"] = [*result["failures"], *failures][:MOST_LISTED]
        for name, value in figures.items():
            merged = max if name.startswith("most") else float.__add__
            result["figures"][name] = merged(float(result["figures"].get(name, 0.0)), float(value))
        state.save()
        for failure in failures:
            say(f"  {part.name}: {failure}")
    return result


def verdict(part, result):
    """Return the line that has the result of a part."""
    figures = "".join(f", {name} {value:,.10g}" for name, value in result["figures"].items())
    word = "ok" if not result["n_failures"] else f"{result['n_failures']} FAILURES"
    return f"{part.name}: {result['done']:,} {part.what}{figures}: {word}"

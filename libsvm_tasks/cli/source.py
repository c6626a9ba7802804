"""What stands beside the packages in the source and is not installed with them: ``research`` and ``benchmarks``."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def of_the_source(module: str, folder: str = "") -> Any:
    """Import a module of the source, from a folder of it; processes that it starts inherit the path."""
    home = ROOT / folder
    if not home.joinpath(*module.split(".")).with_suffix(".py").exists():
        place = folder or module.partition(".")[0]
        raise ValueError(
            f"{place}/ is part of the source and not of the package: run `fedres` of a clone (make .venv/installed)"
        )
    if str(home) not in sys.path:
        sys.path.append(str(home))
    return import_module(module)

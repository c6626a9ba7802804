"""Prints what fedres and its client need from an index, with some extras, as lines for pip.

python tools/requirements.py serve postgres
python tools/requirements.py --lowest serve   # each at the oldest version that pyproject.toml allows
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def requirements(*extras: str) -> list[str]:
    """Return the needs of both distributions with these extras, and with those that they include."""
    project = _project(ROOT)
    lines = [*_project(ROOT / "clients" / "python")["dependencies"], *project["dependencies"]]
    pending = list(extras)
    while pending:
        for line in project["optional-dependencies"][pending.pop()]:
            included = re.match(r"fedres\[(.*)\]", line)
            if included:
                pending += included[1].split(",")
            else:
                lines.append(line)
    return sorted({line for line in lines if not line.startswith("fedres-client")})


def lowest(line: str) -> str:
    """Return a requirement with its lowest version alone: ``numba>=0.61,<0.69; …`` is ``numba==0.61; …``."""
    need, semicolon, marker = line.partition(";")
    return re.sub(r">=([\w.]+).*", r"==\1", need) + semicolon + marker


def _project(folder: Path) -> dict[str, dict[str, list[str]]]:
    project: dict[str, dict[str, list[str]]] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return project


def main() -> None:
    extras = [word for word in sys.argv[1:] if word != "--lowest"]
    lines = requirements(*extras)
    print("\n".join(map(lowest, lines) if "--lowest" in sys.argv else lines))


if __name__ == "__main__":
    main()

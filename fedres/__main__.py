"""The ``fedres`` command, also ``python -m fedres``. The commands are in the package ``service``, if that is ours."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib import import_module
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

PACKAGES = ("service", "bandits", "libsvm_tasks")  # installed beside this one, at the top level

OWN_PLACE = "install fedres into an environment of its own"


def main() -> None:
    """Run the command of ``sys.argv``; end with status 2 and one line if another package has one of our names."""
    problem = next(filter(None, map(_hidden, PACKAGES)), None) or _replaced()
    if problem is not None:
        print(f"fedres: {problem}", file=sys.stderr)
        raise SystemExit(2)
    import_module("service.__main__").main()


def _hidden(package: str) -> str | None:
    """Return what is wrong if Python imports another package of this name than the one beside this package."""
    ours = Path(__file__).resolve().parents[1] / package
    spec = importlib.util.find_spec(package)
    if spec is None:
        return f"the package {package} of fedres is not installed: install fedres again"
    folders = [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
    if ours in folders:
        return None
    place = spec.origin or str(folders[0])
    return (
        f"another package has the name {package}, and hides that of fedres: {place}; {OWN_PLACE}, or leave that folder"
    )


def _replaced() -> str | None:
    """Return what is wrong if another distribution has written its files over ours, or has taken them along."""
    try:
        ours = distribution("fedres")
    except PackageNotFoundError:
        return None
    changed = _changed_files(ours)
    missing = [file for file, size in changed.items() if size is None]
    if missing:
        return f"the file {min(missing)} of fedres is missing: {OWN_PLACE}"
    for other in distributions() if changed else ():
        name = other.metadata["Name"]
        if name != "fedres" and (shared := changed.keys() & set(map(str, other.files or ()))):
            return f"the distribution {name} has replaced {min(shared)} of fedres: {OWN_PLACE}"
    return None


def _changed_files(ours: Distribution) -> dict[str, int | None]:
    """Return our files that have another size than when they were installed, with it; None if they are missing."""
    folder = str(ours.locate_file(""))
    changed = {}
    # ``ours.files`` has the same, but takes ten times as long.
    for line in (ours.read_text("RECORD") or "").splitlines():
        path, _, rest = line.partition(",")
        if path.partition("/")[0] in PACKAGES and path.endswith(".py"):
            size = _size(os.path.join(folder, path))
            if str(size) != rest.rpartition(",")[2]:
                changed[path] = size
    return changed


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    main()

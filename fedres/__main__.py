"""The ``fedres`` command, also ``python -m fedres``. The commands are in the package ``service``, if that is ours."""

from __future__ import annotations

import importlib.util
import sys
from importlib import import_module
from pathlib import Path


def main() -> None:
    """Run the command of ``sys.argv``; end with status 2 and one line if another package has the name ``service``."""
    other = _other_service()
    if other is not None:
        message = f"another package has the name service, and hides that of fedres: {other}"
        print(
            f"fedres: {message}; install fedres into an environment of its own, or leave that folder", file=sys.stderr
        )
        raise SystemExit(2)
    import_module("service.__main__").main()


def _other_service() -> str | None:
    """Return the file of a package ``service`` that is not the one beside this package."""
    ours = Path(__file__).resolve().parents[1] / "service"
    spec = importlib.util.find_spec("service")
    if spec is None:
        return "none is installed"
    folders = [Path(folder).resolve() for folder in spec.submodule_search_locations or ()]
    return None if ours in folders else spec.origin or str(folders[0])


if __name__ == "__main__":
    main()

"""Imports of public names on first use; a missing package is an error that names the extra which installs it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

LEARN = ("numpy", "scipy", "numba", "safetensors")  # the extra learn, in pyproject.toml


def load(module: str) -> ModuleType:
    """Import and return one of our modules."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in LEARN:
            raise
        message = f"{missing} is not installed: pip install 'fedres[learn]'"
        raise ModuleNotFoundError(message, name=missing) from None

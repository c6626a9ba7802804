"""Datasets as federations and bandits, and experiments on them: ``replay``, ``delays`` and ``bandit``."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libsvm_tasks.data import Data
    from libsvm_tasks.experiments import bandit, delays, replay
    from libsvm_tasks.results import Table

__all__ = ["Data", "Table", "bandit", "delays", "replay"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'libsvm_tasks' has no attribute {name!r}")
    home = {"Data": "data", "Table": "results"}.get(name, "experiments")
    return getattr(import_module(f"libsvm_tasks.{home}"), name)

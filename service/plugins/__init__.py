"""Plug-ins: each adds routes, commands or both to the core, which imports none of them.

``SHIPPED`` names those of this distribution. Another distribution adds one by an entry point of the group
``fedres.plugins`` that names a :class:`Plugin`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import typer

    from service.admin.admin import Admin
    from service.admin.status import MachineStatus
    from service.http.audit import Audit
    from service.http.request import Limits
    from service.http.routes import Reshape, Route
    from service.rank.ranker import Ranker, RankerContext

ENTRY_POINTS = "fedres.plugins"
SHIPPED = tuple(f"service.plugins.{name}" for name in ("recommend", "personalizer", "reports", "devices", "tools"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The parts of the core that a plug-in's routes may use."""

    context: RankerContext
    ranker: Ranker
    admin: Admin
    status: MachineStatus
    limits: Limits
    root_path: str = ""  # the path below which a proxy serves the service
    audit: Audit | None = None  # where changes are noted that no call makes


def _nothing(_: Any) -> list[Any]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A plug-in: its additions to the service and to the command ``fedres``."""

    name: str
    routes: Callable[[Core], list[Route]] = _nothing
    background: Callable[[Core, Path], Awaitable[None]] | None = None  # runs beside a ranker; a folder for locks
    commands: Callable[[typer.Typer], object] = _nothing  # adds them to the command line
    failures: Mapping[bytes, Reshape] = field(default_factory=dict)  # by first part of a path: its API's error shape


@cache
def plugins() -> tuple[Plugin, ...]:
    """Return all plug-ins: those of this distribution, then those that others have installed."""
    return (*(_checked(name, import_module(name).plugin) for name in SHIPPED), *_installed())


def _installed() -> Iterator[Plugin]:
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        yield _checked(f"{point.name} = {point.value}", point.load())


def _checked(name: str, plugin: object) -> Plugin:
    if not isinstance(plugin, Plugin):
        raise TypeError(f"the entry point {name!r} of {ENTRY_POINTS} must name a Plugin, got {type(plugin).__name__}")
    return plugin

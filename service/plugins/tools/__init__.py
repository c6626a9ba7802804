"""``fedres log``: verify, back up, restore, export, import and prune a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.plugins import Plugin

if TYPE_CHECKING:
    import typer


def _commands(app: typer.Typer) -> None:
    from service.plugins.tools import commands

    app.add_typer(commands.log, name="log")


plugin = Plugin(name="tools", commands=_commands)

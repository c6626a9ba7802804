"""The Typer app to which commands are added, and the panels of its help."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

PANELS = {
    "Service": ("serve", "status", "loops", "users", "keys", "config"),
    "Data": ("log", "catalogue", "feedback"),
    "Analysis": ("report", "evaluate"),
    "Experiments": ("bandit", "replay", "delays", "datasets", "reproduce", "fair", "bench"),
}
OTHERS = "Plug-ins"
EXAMPLES = """
Examples: fedres serve --demo · fedres status · fedres keys add rank --loop shop · fedres report shop --html report.html
"""


class InPanels(TyperGroup):
    """Lists commands by panel: those that run the service first, experiments last."""

    def list_commands(self, ctx: Any) -> list[str]:
        order = [name for names in PANELS.values() for name in names]
        panels = {name: panel for panel, names in PANELS.items() for name in names}
        for name, command in self.commands.items():
            command.rich_help_panel = panels.get(name, OTHERS)  # type: ignore[attr-defined]
        return sorted(self.commands, key=lambda name: order.index(name) if name in order else len(order))


app = typer.Typer(
    cls=InPanels,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
    epilog=EXAMPLES,
)


def _print_version(show: bool) -> None:
    if show:
        typer.echo(f"fedres {version('fedres')}")
        raise typer.Exit


@app.callback()
def main(
    show: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Self-hosted contextual bandit for personalization and recommendations."""

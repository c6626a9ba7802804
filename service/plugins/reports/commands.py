"""``fedres report``: a report on a loop's log, as text or as one file for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.console import (
    DEFAULT_FOLDER,
    DEFAULT_STORE,
    Folder,
    JsonFile,
    Store,
    check_writable,
    console,
    one_line_errors,
    write_json,
)
from service.plugins.tools.commands import opened_log

if TYPE_CHECKING:
    from service.plugins.reports.report import LoopReport


@one_line_errors
def report(
    loop: Annotated[str, typer.Argument(help="The loop.")] = "default",
    html: Annotated[Path | None, typer.Option(help="Write the loop's page to this file, self-contained.")] = None,
    json_file: JsonFile = None,
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Summarize a loop: lift, policy estimates, alarms. Works while the service runs."""
    import msgspec

    from service.log.opening import store_at
    from service.log.protocol import live_loop
    from service.plugins.reports.page import report_page
    from service.plugins.reports.reader import LoopReaders

    check_writable("html", html)
    check_writable("json", json_file)
    with opened_log(store, folder) as opened:
        made = live_loop(opened, loop)
        if made is None:
            names = ", ".join(sorted(opened.heads()))
            raise ValueError(f"loop {loop!r} does not exist in {store_at(store, folder).path}, which has {names}")
        shown = LoopReaders().loop(opened, loop, made.position).report()
    _print(shown)
    if html is not None:
        html.write_bytes(report_page(loop, msgspec.json.encode(shown)))
    write_json(json_file, msgspec.to_builtins(shown))


def _print(shown: LoopReport) -> None:
    import msgspec
    from rich.table import Table

    for alarm in shown.alarms:
        typer.echo(f"ALARM: {alarm.message}")
    typer.echo("There is no control group." if shown.lift is None else shown.lift.sentence)
    table = Table("policy", "reward per event", "95% interval", "warning")
    for value in shown.values:
        reward = value.reward
        mean = "" if reward is None else f"{reward.value:.4g}"
        interval = "" if reward is None else f"{reward.low:.4g} to {reward.high:.4g}"
        table.add_row(value.policy, mean, interval, value.warning)
    if shown.values:
        console().print(table)
    counts = msgspec.structs.asdict(shown.funnel)
    typer.echo(", ".join(f"{n:,} {name}" for name, n in counts.items()))

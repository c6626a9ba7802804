"""``fedres status``, ``fedres loops`` and ``fedres users``: HTTP requests to a running service."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import msgspec
import typer
from rich.table import Table

from service.cli.base import app
from service.console import check_writable, console, one_line_errors, private_files

loops = typer.Typer(no_args_is_help=True, help="List, create, configure and delete the loops of a running service.")
users = typer.Typer(no_args_is_help=True, help="Show, export and erase what a running service stores about a user.")
app.add_typer(loops, name="loops")
app.add_typer(users, name="users")

Url = Annotated[str, typer.Option(envvar="FEDRES_URL", help="Address of the service.")]
Key = Annotated[
    str | None,
    typer.Option(envvar="FEDRES_KEY", help="API key: read for `fedres status`, else admin."),
]
Loop = Annotated[str, typer.Argument(metavar="LOOP", help="Name of the loop.")]
User = Annotated[str, typer.Argument(metavar="USER", help="Id of the user.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting, as NAME=VALUE with VALUE in JSON or plain text. Repeatable."),
]
DEFAULT_URL = "http://127.0.0.1:8000"
SECONDS = 150.0  # an erasure waits for the learner, an export may be long


def send(
    method: str, url: str, path: str, key: str | None, body: object = None, *, version: int | None = None
) -> httpx.Response:
    """Return a service's response; a rejection, or no service, raises a ``ValueError`` with advice."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    if version is not None:
        headers["If-Match"] = f'"{version}"'
    content = None if body is None else msgspec.json.encode(body)
    if content is not None:
        headers["Content-Type"] = "application/json"
    try:
        response = httpx.request(method, url.rstrip("/") + path, content=content, headers=headers, timeout=SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        text = re.sub(r"^\[Errno -?\d+\] ", "", str(error))
        raise ValueError(f"no service at {url} ({text}); start one with `fedres serve`, or pass --url") from None
    if response.is_error and path != "/readyz":
        raise ValueError(_message(response) + _existing(response, url, headers))
    return response


def _existing(response: httpx.Response, url: str, headers: dict[str, str]) -> str:
    """Return the names of all loops, for the message about a missing loop."""
    if "unknown_loop" not in response.text:
        return ""
    loops = httpx.get(f"{url.rstrip('/')}/v1/loops", headers=headers, timeout=SECONDS)
    return "" if loops.is_error else f"; there are {', '.join(sorted(loops.json()['loops']))}"


def _message(response: httpx.Response) -> str:
    try:
        error = response.json()["error"]
        text = f"{error['message']} ({response.status_code} {error['code']})"
    except (ValueError, KeyError, TypeError):
        text = f"the service responded with status {response.status_code}"
    return text + ("; pass --key or set FEDRES_KEY" if response.status_code == 401 else "")


@app.command()
@one_line_errors
def status(url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Show whether a service is ready, its log, and each loop's events, rewards and lag; status 1 if not ready."""
    ready = send("GET", url, "/readyz", key)
    if ready.is_error:
        typer.echo(f"not ready: {_message(ready)}")
    report = send("GET", url, "/v1/status", key).json()
    log = report["log"]
    typer.echo(
        f"fedres {report['version']} with SQLite {report['sqlite']} at {url}, store {report['store']}: "
        f"{'not ready' if ready.is_error else 'ready'}"
    )
    typer.echo(f"log {_log_size(log)}, {_disk_space(log)}")
    for process in report["processes"]:
        if process["restarts"]:
            typer.echo(f"{process['role']} {process['number']} was restarted {process['restarts']} times")
    table = Table("loop", "decisions", "rewarded", "pending", "users", "reward", "control", "late", "unmatched", "lag")
    for name, loop in report["loops"].items():
        counts = (loop[field] for field in ("ranks", "rewarded_events", "waiting_events", "users"))
        rewards = (_number(loop[field]) for field in ("policy_reward", "control_reward"))
        lost = (f"{loop[field]:,}" for field in ("late_rewards", "unmatched_rewards"))
        table.add_row(
            name, *(f"{count:,}" for count in counts), *rewards, *lost, f"{loop['learner_lag_seconds']:.1f} s"
        )
    console().print(table)
    if ready.is_error:
        raise typer.Exit(1)


def _log_size(log: dict[str, Any]) -> str:
    """Return the size of the log; the service leaves it out while the log cannot be read."""
    if log["bytes"] is None:
        return "cannot be read at the moment"
    return f"{log['bytes'] / 1e6:,.1f} MB in {log['records']:,} records"


def _disk_space(log: dict[str, Any]) -> str:
    free = log["disk_free_bytes"]
    return "free space unknown" if free is None else f"{free / 1e9:,.1f} GB free"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


@loops.command("list")
@one_line_errors
def list_loops(url: Url = DEFAULT_URL, key: Key = None) -> None:
    """List the names of all loops."""
    for name in send("GET", url, "/v1/loops", key).json()["loops"]:
        typer.echo(name)


@loops.command()
@one_line_errors
def create(name: Loop, changes: Changes = None, url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Create a loop: fedres loops create shop --set policy=epsilon-greedy --set wait_time=1800."""
    send("POST", url, "/v1/loops", key, {"name": name, "settings": read_settings(changes)})
    typer.echo(f"created loop {name}")


@loops.command()
@one_line_errors
def settings(
    name: Loop,
    changes: Changes = None,
    if_version: Annotated[
        int | None, typer.Option(help="Refuse the change unless the settings have this version.")
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Print the settings of a loop as JSON, after changing those of --set."""
    path = f"/v1/loops/{quote(name, safe='')}/settings"
    if changes:
        response = send("PATCH", url, path, key, read_settings(changes), version=if_version)
    else:
        response = send("GET", url, path, key)
    shown = msgspec.json.encode(response.json()["settings"])
    typer.echo(msgspec.json.format(shown, indent=2).decode())


@loops.command()
@one_line_errors
def hold(
    name: Loop,
    reason: Annotated[str, typer.Argument(metavar="REASON", help="Why; shown wherever the loop is shown.")],
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Let the baseline decide for everybody, and pause the experiment: fedres loops hold shop 'wrong prices'."""
    send("POST", url, f"/v1/loops/{quote(name, safe='')}/hold", key, {"reason": reason})
    typer.echo(f"held loop {name}: the baseline decides for everybody; `fedres loops resume {name}` ends that")


@loops.command()
@one_line_errors
def resume(
    name: Loop,
    if_version: Annotated[
        int | None, typer.Option(help="Refuse unless the settings have this version, so that a newer hold stays.")
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """End a hold: the policy decides again, and the experiment goes on."""
    send("POST", url, f"/v1/loops/{quote(name, safe='')}/resume", key, version=if_version)
    typer.echo(f"resumed loop {name}: the policy decides")


@loops.command()
@one_line_errors
def delete(
    name: Loop,
    url: Url = DEFAULT_URL,
    key: Key = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")] = False,
) -> None:
    """Delete a loop with its models and pending events; its records stay in the log."""
    if not yes:
        typer.confirm(f"Delete loop {name} at {url}?", abort=True)
    send("DELETE", url, f"/v1/loops/{quote(name, safe='')}", key)
    typer.echo(f"deleted loop {name}")


def read_settings(changes: list[str] | None) -> dict[str, Any]:
    """Return settings from options such as ``epsilon=0.2``, ``policy=greedy`` and ``control.share=0.1``."""
    values: dict[str, Any] = {}
    for change in changes or ():
        name, equals, text = change.partition("=")
        if not (name and equals):
            raise ValueError(f"set must be NAME=VALUE, such as epsilon=0.2, got {change!r}")
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            value = text
        setting, dot, part = name.partition(".")
        if not dot:
            values[name] = value
        elif setting in values and not isinstance(values[setting], dict):
            raise ValueError(f"set must name {setting} or fields of it, got both")
        else:
            values.setdefault(setting, {})[part] = value
    return values


def _events(user: str, url: str, key: str | None) -> bytes:
    return send("GET", url, f"/v1/users/{quote(user, safe='')}/events", key).content


@users.command()
@one_line_errors
def show(user: User, url: Url = DEFAULT_URL, key: Key = None) -> None:
    """Count a user's events and rewards in each loop."""
    counts: dict[str, list[float]] = {}
    for line in _events(user, url, key).splitlines():
        event = msgspec.json.decode(line)
        sums = counts.setdefault(event["loop"], [0, 0, 0.0])
        sums[0] += 1
        if event["reward"] is not None:
            sums[1] += 1
            sums[2] += event["reward"]
    if not counts:
        typer.echo(f"nothing is stored about user {user}")
        return
    table = Table("loop", "events", "with a reward", "mean reward")
    for loop, (events, rewarded, total) in counts.items():
        table.add_row(loop, f"{events:,}", f"{rewarded:,}", _number(total / rewarded if rewarded else None))
    console().print(table)


@users.command()
@one_line_errors
def export(
    user: User,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Output file, JSON lines (overwritten if it exists).")],
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Write a user's events in all loops to a file."""
    check_writable("FILE", file)
    private_files()
    content = _events(user, url, key)
    file.write_bytes(content)
    typer.echo(f"wrote {len(content.splitlines()):,} events to {file}")


@users.command()
@one_line_errors
def erase(
    user: User,
    url: Url = DEFAULT_URL,
    key: Key = None,
    loop: Annotated[str | None, typer.Option(help="Only in this loop; default in all.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Skip the confirmation prompt.")] = False,
) -> None:
    """Erase a user's events, rewards and personal models. The shared model keeps what it learned."""
    if not yes:
        typer.confirm(
            f"Erase user {user} {'in all loops' if loop is None else f'in loop {loop}'} at {url}?", abort=True
        )
    prefix = "/v1" if loop is None else f"/v1/loops/{quote(loop, safe='')}"
    send("DELETE", url, f"{prefix}/users/{quote(user, safe='')}", key)
    typer.echo(f"erased user {user}")

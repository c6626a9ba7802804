"""``fedres serve`` and ``fedres keys``."""

from __future__ import annotations

import re
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.base import app
from service.console import (
    DEFAULT_FOLDER,
    DEFAULT_STORE,
    Folder,
    JsonFile,
    Store,
    console,
    one_line_errors,
    private_files,
    write_json,
)
from service.times import iso_time

if TYPE_CHECKING:
    from service.http.keys import Keys
    from service.roles.config import Config

keys = typer.Typer(no_args_is_help=True, callback=private_files, help="Create, list and revoke the keys of a service.")
app.add_typer(keys, name="keys")
config_commands = typer.Typer(no_args_is_help=True, help="Show the configuration of the service.")
app.add_typer(config_commands, name="config")

Days = Annotated[float | None, typer.Option(help="Days after which the key expires; default never.")]
FollowedLoops = Annotated[
    str | None, typer.Option(help="With PostgreSQL: loops this machine follows, separated by commas; default all.")
]
AnyArchitecture = Annotated[
    bool,
    typer.Option(
        "--any-architecture",
        help="With PostgreSQL: accept a log that another architecture began; models may differ in their last bits.",
    ),
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(
        help="Name under which clients reach the service, beside localhost and IP addresses; * is any. Repeatable."
    ),
]
AllowedOrigins = Annotated[
    list[str] | None,
    typer.Option(help="Origin of web pages that may call the service, such as https://shop.example. Repeatable."),
]
Rankers = Annotated[
    int, typer.Option(help="Number of ranker processes; one log writer and one learner run beside them.")
]
RootPath = Annotated[
    str, typer.Option(help="Path below which a proxy offers the service, such as /fedres; the proxy may remove it.")
]
Insecure = Annotated[bool, typer.Option("--insecure", help="Accept requests from other machines without a key.")]
AcceptLoss = Annotated[
    bool, typer.Option("--accept-loss", help="Start although records at the end of the log are missing.")
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        is_eager=True,
        callback=lambda ctx, value: read_defaults(ctx, value),
        help="Configuration, TOML; default fedres.toml in the current folder, if it exists.",
    ),
]
LimitValues = Annotated[
    list[str] | None,
    typer.Option("--set", help="A limit or a quota, such as limits.actions=1000 or quotas.users=500000. Repeatable."),
]
DAY = 86_400.0


@app.command(context_settings={"auto_envvar_prefix": "FEDRES"})
@one_line_errors
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback requires a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8000,
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
    rankers: Rankers = 1,
    loops: FollowedLoops = None,
    any_architecture: AnyArchitecture = False,
    demo: Annotated[bool, typer.Option("--demo", help="Add simulated readers, to watch the reward rise.")] = False,
    insecure: Insecure = False,
    allowed_host: AllowedHosts = None,
    accept_loss: AcceptLoss = False,
    root_path: RootPath = "",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, PEM; serves https.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, if that is in another file.")] = None,
    allowed_origin: AllowedOrigins = None,
    log_format: Annotated[str, typer.Option(help="Format of log lines: text or json.")] = "text",
    log_level: Annotated[str, typer.Option(help="Lowest level of log lines: debug, info, warning or error.")] = "info",
    access_log: Annotated[bool, typer.Option("--access-log", help="Log a line for each request.")] = False,
    config_file: ConfigFile = None,
    set_values: LimitValues = None,
) -> None:
    """Start the service: HTTP API, dashboard, metrics. Ctrl-C stops it after saving the models.

    Every option can come from the environment: FEDRES_PORT for --port, and so on; several values separated by spaces.
    It can also come from the table `serve` of the configuration file. `fedres config show` prints all values.
    """
    from fedres.lease import LeaseHeld
    from service import logs
    from service.cli.configuration import limits_and_quotas, read_all
    from service.errors import ApiError
    from service.http.server import Tls
    from service.log.opening import store_at
    from service.roles.config import Config
    from service.roles.supervisor import serve as run

    logs.check(log_format, log_level)
    limits, quotas = limits_and_quotas(read_all(config_file, set_values or ()))
    if tls_key is not None and tls_cert is None:
        raise ValueError("tls-key must come with --tls-cert")
    config = Config(
        store=store_at(store, folder, any_architecture=any_architecture),
        host=host,
        port=port,
        rankers=rankers,
        loops=None if loops is None else read_loops(loops),
        tls=None if tls_cert is None else Tls(certificate=tls_cert, private_key=tls_key),
        allowed_hosts=tuple(allowed_host or ()),
        allowed_origins=tuple(allowed_origin or ()),
        access_log=access_log,
        root_path=read_root_path(root_path),
        accept_loss=accept_loss,
        limits=limits,
        quotas=quotas,
    )
    has_keys = check_access(config, demo=demo, insecure=insecure)
    logs.set_up(log_format, log_level)
    try:
        run(config, demo=demo, say=logs.say, welcome=lambda url: welcome(url, str(config.store), has_keys, demo))
    except (LeaseHeld, ApiError) as error:
        raise ValueError(str(error)) from None


def read_defaults(context: typer.Context, file: Path | None) -> Path | None:
    """Let the configuration file give defaults of options; return its path."""
    from service.cli.configuration import SERVE, check_name, read_file

    try:
        table = {name.replace("-", "_"): value for name, value in read_file(file).get(SERVE, {}).items()}
        names = [str(option.name) for option in context.command.params if option.name != "config_file"]
        for name in table:
            check_name("the configuration file", f"{SERVE}.{name}", [f"{SERVE}.{known}" for known in names])
    except (ValueError, OSError) as error:
        raise typer.BadParameter(str(error)) from None
    context.default_map = table
    return file


@config_commands.command("show", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@one_line_errors
def show_config(context: typer.Context) -> None:
    """Print each option, limit and quota of `fedres serve` with its source; takes the options of that command."""
    from rich.table import Table

    from service.cli.configuration import DEFAULT_FILE, limits_and_quotas, read_all
    from service.log.opening import store_at

    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    options = command.make_context("serve", [*context.args])
    file = options.params["config_file"]
    table = Table("name", "value", "source")
    for parameter in command.params:
        name, value = parameter.name, options.params[parameter.name]
        if name == "store":
            value = store_at(value, options.params["folder"], any_architecture=True)  # without a password
        sources = {
            "COMMANDLINE": parameter.opts[0],
            "ENVIRONMENT": parameter.envvar or f"FEDRES_{name.upper()}",
            "DEFAULT_MAP": str(file or DEFAULT_FILE),
        }
        table.add_row(parameter.opts[0], _shown(value), sources.get(options.get_parameter_source(name).name, "default"))
    values = read_all(file, options.params["set_values"] or ())
    limits_and_quotas(values)
    for name, entry in values.items():
        table.add_row(name, _shown(entry.value), entry.source)
    console().print(table)


def _shown(value: Any) -> str:
    """Return a value as text: nothing for one that is missing."""
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def check_access(config: Config, *, demo: bool, insecure: bool) -> bool:
    """Return whether requests need a key; refuse to serve other machines without keys."""
    from service.http.hosts import check_exposure
    from service.http.keys import open_keys

    with closing(open_keys(config.store)) as api_keys:
        has_keys = len(api_keys) > 0
        if demo and (config.tls is not None or has_keys):
            raise ValueError("--demo needs a store without keys and without TLS; try --store sqlite:///demo.db")
        check_exposure(config.host, api_keys, insecure)
    return has_keys


def read_root_path(text: str) -> str:
    """Return a path without a slash at its end."""
    path = text.rstrip("/")
    if text and not re.fullmatch(r"(/[A-Za-z0-9._~-]+)*", path):
        raise ValueError(f"root-path must be a path such as /fedres, got {text!r}")
    return path


def read_loops(text: str) -> tuple[str, ...]:
    """Return the names in a list separated by commas."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"loops must be names separated by commas, got {text!r}")
    return names


def welcome(url: str, store: str, has_keys: bool, demo: bool) -> str:
    """Return the message to print when the service is ready."""
    access = "requests need a key" if has_keys else "without API keys: open to all who reach it (fedres keys add)"
    places = f"  dashboard  {url}/\n  API        {url}/docs\n  metrics    {url}/metrics"
    places += f"\n  demo       {url}/demo" * demo
    ready = f"fedres {version('fedres')} is ready; its store is {store}; {access}"
    lines = [ready, places, "Press Ctrl-C to stop.", f"Try it:\n{example(url, has_keys)}"]
    if demo:
        lines.append(f"Simulated readers are running: watch them at {url}/, and read beside them at {url}/demo")
    return "\n".join(lines)


def example(url: str, has_keys: bool) -> str:
    """Return a curl command that requests a first decision."""
    key = ' -H "Authorization: Bearer $FEDRES_KEY"' if has_keys else ""
    actions = '[{"id": "tea", "features": {"hot": true}}, {"id": "juice", "features": {"hot": false}}]'
    body = f'{{"user": "anna", "context": {{"weather": "cold"}}, "actions": {actions}}}'
    return f"  curl -s {url}/v1/rank{key} -H 'Content-Type: application/json' -d '{body}'"


@keys.command("add")
@one_line_errors
def add_key(
    role: Annotated[
        str,
        typer.Argument(
            metavar="ROLE",
            help="rank (decisions and rewards), device (private features), read (status, metrics) or admin (all).",
        ),
    ] = "",
    loop: Annotated[str | None, typer.Option(help="Restrict the key to this loop; default all loops.")] = None,
    client: Annotated[str | None, typer.Option(help="Restrict the key to this device; default any device.")] = None,
    days: Days = None,
    explain: Annotated[
        bool, typer.Option("--explain/--no-explain", help="Whether a rank key may ask for explanations.")
    ] = True,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests a second at each ranker; default the limit of the service."),
    ] = None,
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Create a key and print it. It cannot be shown again: only its hash is stored."""
    if not role:
        raise ValueError("ROLE must be one of rank, device, read and admin: fedres keys add rank")
    seconds = None if days is None else days * DAY
    text = _keys(store, folder).add(role, loop, client, seconds=seconds, explain=explain, rate=rate)
    typer.echo(text)
    _note_keys(store, folder, f"fedres keys add {role} ({text.split('_')[1]})", loop)


@keys.command("rotate")
@one_line_errors
def rotate_key(
    name: Annotated[str, typer.Argument(metavar="ID", help="An id of `fedres keys list`.")],
    grace: Annotated[float, typer.Option(help="Days for which the old key still works.")] = 1.0,
    days: Days = None,
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Create a key with the rights of another one, which then expires, and print it."""
    if not 0 <= grace <= 3_650:
        raise ValueError(f"grace must be in [0, 3650] days, got {grace:g}")
    seconds = None if days is None else days * DAY
    text = _keys(store, folder).rotate(name, grace_seconds=grace * DAY, seconds=seconds)
    typer.echo(text)
    _note_keys(store, folder, f"fedres keys rotate {name} ({text.split('_')[1]})")


@keys.command("list")
@one_line_errors
def list_keys(store: Store = DEFAULT_STORE, folder: Folder = DEFAULT_FOLDER, json_file: JsonFile = None) -> None:
    """List all keys, including revoked ones."""
    from rich.table import Table

    listed = _keys(store, folder).list()
    rows: list[dict[str, Any]] = [
        {
            "id": key.id,
            "role": key.role,
            "loop": key.loop,
            "client": key.client,
            "explain": key.explain,
            "rate": key.rate,
            "created": _day(key.created),
            "expires": None if key.expires is None else _day(key.expires),
            "revoked": None if key.revoked is None else _day(key.revoked),
        }
        for key in listed
    ]
    table = Table("id", "role", "loop", "client", "created", "expires", "revoked")
    for row in rows:
        whose = row["client"] or ("any" if row["role"] == "device" else "")
        dates = row["created"], row["expires"] or "", row["revoked"] or ""
        role = row["role"] if row["explain"] else f"{row['role']}, no explain"
        role += "" if row["rate"] is None else f", {row['rate']:g}/s"
        table.add_row(row["id"], role, row["loop"] or "all", whose, *dates)
    console().print(table)
    write_json(json_file, rows)


@keys.command("revoke")
@one_line_errors
def revoke_key(
    name: Annotated[str, typer.Argument(metavar="ID", help="An id of `fedres keys list`.")],
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Revoke a key; a running service notices within a second."""
    _keys(store, folder).revoke(name)
    typer.echo(f"{name} is revoked")
    _note_keys(store, folder, f"fedres keys revoke {name}")


def _keys(store: str, folder: Path) -> Keys:
    from service.http.keys import open_keys
    from service.log.opening import store_at

    return open_keys(store_at(store, folder))


def _note_keys(store: str, folder: Path, command: str, loop: str | None = None) -> None:
    """Record the command in the audit log and, in an existing store, that it has keys.

    The keys are changed already, so a store that cannot be written is only a warning; the next start notes it there.
    """
    from service.http.audit import Audit
    from service.http.keys import NOTE
    from service.log.opening import open_log, store_at
    from service.log.protocol import StoreUnavailable

    opened = store_at(store, folder, any_architecture=True)
    Audit(opened.path).note("", command, loop)
    if opened.is_shared or opened.path.exists():
        try:
            with closing(open_log(opened)) as log:
                if log.note(NOTE) is None:  # else nothing is written: a service may be committing
                    log.set_note(NOTE, "made")
        except StoreUnavailable as error:
            typer.echo(
                f"fedres: the keys are changed, but the store could not note that it has keys: {error}", err=True
            )


def _day(seconds: float) -> str:
    return iso_time(1e6 * seconds)

"""``fedres serve`` and ``fedres keys``."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.base import JsonFile, app, console, one_line_errors, write_json

if TYPE_CHECKING:
    from service.engine import Engine
    from service.http.keys import Keys

keys = typer.Typer(no_args_is_help=True, help="Make, list and revoke the keys of a service.")
app.add_typer(keys, name="keys")

Store = Annotated[
    str,
    typer.Option(
        help="Where all is kept: sqlite:///PATH from here, sqlite:////PATH from the root, "
        "or postgresql://USER:PASSWORD@HOST/DATABASE."
    ),
]
Folder = Annotated[
    Path, typer.Option(help="With PostgreSQL: where this machine keeps keys, and models made from the log.")
]
DEFAULT_STORE = "sqlite:///fedres.db"
DEFAULT_FOLDER = Path()


@app.command()
@one_line_errors
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; others than loopback need a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 is any that is free.")] = 8000,
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another service has the store, then take over.")
    ] = False,
    workers: Annotated[
        int, typer.Option(help="Processes that answer requests; with several, one more decides and learns.")
    ] = 1,
    demo: Annotated[bool, typer.Option("--demo", help="Add simulated readers, to watch the reward rise.")] = False,
    insecure: Annotated[bool, typer.Option("--insecure", help="Listen to other machines without a key.")] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate, PEM; serves https.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, if that is in another file.")] = None,
) -> None:
    """Serve decisions over HTTP: rank actions, take rewards, learn. Ctrl-C ends it and loses nothing."""
    from service.errors import ApiError
    from service.http.keys import Keys
    from service.http.server import Tls
    from service.serve import serve as run
    from service.store import LeaseHeld, StoreUnavailable

    path = store_path(store, folder)
    if not 0 <= port <= 65_535:
        raise ValueError(f"port must be in [0, 65535], got {port}")
    if tls_key is not None and tls_cert is None:
        raise ValueError("tls-key must come with --tls-cert")
    if demo and (tls_cert is not None or len(Keys(path))):
        raise ValueError("demo must have a store without keys and no TLS: its readers have neither")
    tls = None if tls_cert is None else Tls(certificate=tls_cert, private_key=tls_key)
    try:
        run(
            path,
            host=host,
            port=port,
            workers=workers,
            insecure=insecure,
            tls=tls,
            database=store if is_postgresql(store) else None,
            standby=standby,
            beside=_beside(demo),
            say=typer.echo,
        )
    except (LeaseHeld, StoreUnavailable, ApiError) as error:
        raise ValueError(str(error)) from None


def store_path(store: str, folder: Path) -> Path:
    """Return the file of a store's address, or what files on this machine are named after."""
    if is_postgresql(store):
        return folder / f"{_database_name(store)}.postgresql"
    if folder != DEFAULT_FOLDER:
        raise ValueError(f"folder must come with a store in PostgreSQL, got {str(folder)!r} and {store!r}")
    prefix, path = "sqlite:///", store.removeprefix("sqlite:///")
    if not store.startswith(prefix) or not path:
        raise ValueError(f"store must be sqlite:///PATH or postgresql://HOST/DATABASE, got {store!r}")
    return Path(path)


def is_postgresql(store: str) -> bool:
    """Return whether the address is one of PostgreSQL."""
    return store.startswith(("postgresql://", "postgres://"))


def _database_name(store: str) -> str:
    """Return the database's name as part of a file's; what an address has else, a password too, is not shown."""
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict
    except ImportError:
        raise ValueError("store must be sqlite:///PATH without psycopg: pip install 'fedres[postgres]'") from None
    try:
        name = conninfo_to_dict(store).get("dbname")
    except ProgrammingError as error:
        raise ValueError(f"store must be an address of PostgreSQL: {str(error).strip()}") from None
    if not name:
        raise ValueError("store must name a database: postgresql://HOST/DATABASE")
    return re.sub(r"[^\w.-]", "_", str(name))


def _beside(demo: bool) -> Callable[[Engine, str], Awaitable[None]]:
    """Return what runs beside the service: a line to try it with, and the readers if they are wanted."""
    from service.demo import run_beside

    async def beside(_: Engine, url: str) -> None:
        typer.echo(f"Try it:\n{example(url)}")
        if demo:
            typer.echo(f"Simulated readers come by; watch them at {url}/")
            await run_beside(url, typer.echo)

    return beside


def example(url: str) -> str:
    """Return a command that asks for a first decision."""
    actions = '[{"id": "tea", "features": {"hot": true}}, {"id": "juice", "features": {"hot": false}}]'
    body = f'{{"user": "anna", "context": {{"weather": "cold"}}, "actions": {actions}}}'
    return f"  curl -s {url}/v1/rank -H 'Content-Type: application/json' -d '{body}'"


@keys.command("add")
@one_line_errors
def add_key(
    role: Annotated[str, typer.Argument(help="rank (decisions and rewards), device (federated) or admin (all).")],
    loop: Annotated[str | None, typer.Option(help="The one loop it is for; all loops unless given.")] = None,
    client: Annotated[str | None, typer.Option(help="The one device it is for; any device unless given.")] = None,
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Make a key and print it. It is not kept and cannot be shown again."""
    typer.echo(_keys(store, folder).add(role, loop, client))


@keys.command("list")
@one_line_errors
def list_keys(store: Store = DEFAULT_STORE, folder: Folder = DEFAULT_FOLDER, json_file: JsonFile = None) -> None:
    """List the keys, revoked ones too, by what is known of them."""
    from rich.table import Table

    rows = [
        {
            "id": key.id,
            "role": key.role,
            "loop": key.loop,
            "client": key.client,
            "created": _day(key.created),
            "revoked": None if key.revoked is None else _day(key.revoked),
        }
        for key in _keys(store, folder).list()
    ]
    table = Table("id", "role", "loop", "client", "created", "revoked")
    for row in rows:
        whose = row["client"] or ("any" if row["role"] == "device" else "")
        table.add_row(row["id"], row["role"], row["loop"] or "all", whose, row["created"], row["revoked"] or "")
    console().print(table)
    write_json(json_file, rows)


@keys.command("revoke")
@one_line_errors
def revoke_key(
    name: Annotated[str, typer.Argument(metavar="ID", help="An id of `fedres keys list`.")],
    store: Store = DEFAULT_STORE,
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Refuse a key from now on, in a running service too."""
    _keys(store, folder).revoke(name)
    typer.echo(f"{name} is revoked")


def _keys(store: str, folder: Path) -> Keys:
    from service.http.keys import Keys

    return Keys(store_path(store, folder))


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

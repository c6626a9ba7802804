"""What commands share: options, one-line errors, progress bars, tables, JSON files."""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from service.log.files import replacing
from service.log.protocol import StoreUnavailable

if TYPE_CHECKING:
    from bandits.evaluation import Columns

Command = TypeVar("Command", bound=Callable[..., Any])

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Draw the results to this .png, .svg or .pdf.")]
Store = Annotated[
    str,
    typer.Option(
        envvar="FEDRES_STORE",
        help="Where the log is stored: sqlite:///PATH (relative), sqlite:////PATH (absolute), "
        "or postgresql://USER:PASSWORD@HOST/DATABASE.",
    ),
]
Folder = Annotated[Path, typer.Option(envvar="FEDRES_FOLDER", help="With PostgreSQL: folder for this machine's files.")]
DEFAULT_STORE = "sqlite:///fedres.db"
DEFAULT_FOLDER = Path()

OF_COLUMNS = {  # the options that say which column of a table is what
    "action": "Column of the action taken.",
    "reward": "Column of the reward.",
    "probability": "Column of the probability it was taken with.",
    "user": "Column of the user.",
    "context": "Columns of features, separated by commas. Repeatable.",
    "actions": "Ids that could be taken, separated by commas, or the column that lists them. [default: those taken]",
    "probabilities": "Column that lists those of all actions.",
    "time": "Column by which rows are sorted.",
    "event_id": "Column of the decision's id.",
}


def one_line_errors(command: Command) -> Command:
    """Turn what a user can get wrong into one line and exit status 2, and Ctrl-C into status 130."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (ValueError, OSError, StoreUnavailable) as error:
            typer.echo(f"fedres: {' '.join(_text(error).split())}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("fedres: interrupted; long experiments resume when run again", err=True)
            raise typer.Exit(130) from None

    return wrapped  # type: ignore[return-value]


def _text(error: Exception) -> str:
    """Return the message of an error; those of the system without their number."""
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"no file at {error.filename}"
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return str(error)


def private_files() -> None:
    """Let only the user who runs the command read what it writes."""
    os.umask(0o077)


def console() -> Console:
    """Return where tables are printed: as wide as the terminal, or wide enough for a file."""
    return Console(width=None if os.isatty(1) else 200)


@contextmanager
def progress_bar(task: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left on standard error while the work goes on, if that is a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    errors = Console(stderr=True)
    quiet = not errors.is_terminal
    with Progress(*columns, TimeRemainingColumn(), console=errors, transient=True, disable=quiet) as bar:
        row = bar.add_task(task, total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total)


def check_writable(option: str, path: Path | None) -> None:
    """Refuse a file that cannot be written, before the work begins rather than after it."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ValueError(f"{option} must be a file in a folder that exists, got {path}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise ValueError(f"{option} must be in a folder that can be written to, got {path}")


def write_json(path: Path | None, content: object) -> None:
    """Write a JSON file so that a crash leaves the old one or the new one."""
    if path is None:
        return
    with replacing(path) as new:
        new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def whole_numbers(name: str, text: str, least: int = 0) -> list[int]:
    """Return the numbers of an option such as ``1,2,3``, each once."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) >= least for part in parts):
        raise ValueError(f"{name} must be whole numbers from {least} on such as 1,2,3, got {text!r}")
    return list(dict.fromkeys(int(part) for part in parts))


def with_columns(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say which column of a table is what; it gets them as ``columns``."""

    @functools.wraps(command)
    def wrapped(**options: Any) -> None:
        from bandits.evaluation import Columns

        named = {name: options.pop(name) for name in OF_COLUMNS}
        context = [name.strip() for word in named.pop("context") or () for name in word.split(",")]
        command(**options, columns=Columns(**named, context=tuple(context)))

    signature = inspect.signature(command, eval_str=True, locals={"Columns": object})
    own = [parameter for name, parameter in signature.parameters.items() if name != "columns"]
    parameters = [*own, *(_option(name, text) for name, text in OF_COLUMNS.items())]
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapped


def _option(name: str, text: str) -> inspect.Parameter:
    kind = list[str] | None if name == "context" else str | None
    about = typer.Option(f"--{name.replace('_', '-')}", help=text, rich_help_panel="Tables (.csv, .tsv, .parquet)")
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, about])


def read_as(log: Path, columns: Columns) -> None:
    """Say which columns of a table are read; what a table lacks is an error."""
    from bandits.evaluation.sources import is_table, open_source

    if is_table(log):
        source = open_source(log)
        named = columns.within(source)
        unused = [name for name in source.names if name not in named.used]
        rest = f"; not read: {', '.join(unused)}" if unused else ""
        typer.echo(f"read as {named}{rest}", err=True)

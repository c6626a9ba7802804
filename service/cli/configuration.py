"""The configuration of ``fedres serve``: defaults, a file, the environment and options, the later ones first.

A file is TOML with the tables ``serve`` (options of the command), ``limits`` and ``quotas``.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from service.http.request import Limits
from service.rank.quotas import Quotas

DEFAULT_FILE = Path("fedres.toml")
GROUPS: Mapping[str, type[Limits] | type[Quotas]] = {"limits": Limits, "quotas": Quotas}
SERVE = "serve"


@dataclass(frozen=True, slots=True)
class Value:
    """A value and where it comes from."""

    value: Any
    source: str  # default, the name of a file or of a variable, or an option


def read_file(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the tables of a file; without a path, those of ``fedres.toml`` in this folder, if it exists."""
    if path is None:
        if not DEFAULT_FILE.is_file():
            return {}
        path = DEFAULT_FILE
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} must be TOML: {error}") from None
    for name, table in tables.items():
        check_name(str(path), name, (SERVE, *GROUPS))
        if not isinstance(table, dict):
            raise ValueError(f"{path}: {name} must be a table, got {str(table)[:100]}")
    return tables


def values_of(
    tables: Mapping[str, Mapping[str, Any]], file: str, environment: Mapping[str, str], options: Sequence[str]
) -> dict[str, Value]:
    """Return all limits and quotas by name, such as ``limits.actions``, each with its source."""
    names = {f"{group}.{field.name}": field for group, kind in GROUPS.items() for field in fields(kind)}
    values = {name: Value(field.default, "default") for name, field in names.items()}
    for group in GROUPS:
        for name, value in tables.get(group, {}).items():
            check_name(file, f"{group}.{name}", names)
            values[f"{group}.{name}"] = Value(value, file)
    for name in names:
        variable = variable_of(name)
        if variable in environment:
            values[name] = Value(_number(variable, environment[variable]), variable)
    for option in options:
        name, equals, text = option.partition("=")
        if not equals:
            raise ValueError(f"set must be NAME=VALUE, such as limits.actions=1000, got {option[:100]!r}")
        check_name("set", name, names)
        values[name] = Value(_number(name, text), "--set")
    return values


def limits_and_quotas(values: Mapping[str, Value]) -> tuple[Limits, Quotas]:
    """Return the limits and quotas; refuse values that they cannot have, with their source."""
    groups = []
    for group, kind in GROUPS.items():
        chosen = {field.name: values[f"{group}.{field.name}"] for field in fields(kind)}
        for name, value in chosen.items():
            try:
                kind(**{name: value.value})
            except ValueError as error:
                raise ValueError(f"{group}.{error} (from {value.source})") from None
        groups.append(kind(**{name: value.value for name, value in chosen.items()}))
    limits, quotas = groups
    assert isinstance(limits, Limits)
    assert isinstance(quotas, Quotas)
    return limits, quotas


def variable_of(name: str) -> str:
    """Return the environment variable of a limit or a quota.

    >>> variable_of("limits.actions")
    'FEDRES_LIMITS_ACTIONS'
    """
    return f"FEDRES_{name.replace('.', '_').upper()}"


def read_all(file: Path | None, options: Sequence[str]) -> dict[str, Value]:
    """Return all limits and quotas of this process."""
    return values_of(read_file(file), str(file or DEFAULT_FILE), os.environ, options)


def _number(name: str, text: str) -> float:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {text[:100]!r}") from None


def check_name(place: str, name: str, names: Mapping[str, Any] | Sequence[str]) -> None:
    """Refuse an unknown name, with the most similar one."""
    if name not in names:
        close = get_close_matches(name, [*names], 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        raise ValueError(f"{place}: unknown name {name[:100]!r}; {hint}")

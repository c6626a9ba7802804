"""What msgspec's complaints leave out: the values that an enum allows, and the name that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\.(\w+)|(\[[^\]]*\])")
_UNKNOWN_FIELD = re.compile(r"unknown field `(.*)`")


def hint(message: str, place: str, kind: Any) -> str:
    """Return the rest of a complaint about ``place`` in a ``kind``, such as ``.actions[...].id``; it may be empty.

    >>> from typing import Literal
    >>> hint("Invalid enum value 'c'", "[...]", list[Literal["a", "b"]])
    '; it must be one of a, b'
    """
    types = _at(inspect.type_info(kind), place)
    if message.startswith("Invalid enum value"):
        values = [str(value) for one in types if isinstance(one, inspect.LiteralType) for value in one.values]
        return f"; it must be one of {', '.join(values)}" if values else ""
    unknown = _UNKNOWN_FIELD.search(message)
    if unknown is None:
        return ""
    names = [field.encode_name for one in types if isinstance(one, inspect.StructType) for field in one.fields]
    close = get_close_matches(unknown[1][:100], names, 1)
    return f"; did you mean `{close[0]}`?" if close else f"; the fields are {', '.join(names)}" if names else ""


def _at(kind: inspect.Type, place: str) -> list[inspect.Type]:
    """Return the types that a place may have."""
    kinds = _alternatives([kind])
    for name, _ in _STEP.findall(place):
        inner: list[inspect.Type] = []
        for one in kinds:
            if isinstance(one, inspect.StructType):
                inner += [field.type for field in one.fields if field.encode_name == name]
            elif isinstance(one, inspect.DictType):
                inner.append(one.value_type)
            elif isinstance(one, inspect.TupleType):
                inner += one.item_types
            elif isinstance(one, inspect.CollectionType):
                inner.append(one.item_type)
        kinds = _alternatives(inner)
    return kinds


def _alternatives(kinds: Iterable[inspect.Type]) -> list[inspect.Type]:
    """Return the types with unions and metadata taken apart."""
    types: list[inspect.Type] = []
    for kind in kinds:
        if isinstance(kind, inspect.UnionType):
            types += _alternatives(kind.types)
        elif isinstance(kind, inspect.Metadata):
            types += _alternatives([kind.type])
        else:
            types.append(kind)
    return types

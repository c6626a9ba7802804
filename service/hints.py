"""Descriptions of fields; hints that msgspec's error messages lack, such as the name that was probably meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from msgspec import Meta, ValidationError, inspect

_STEP = re.compile(r"\.(\w+)|(\[[^\]]*\])")
_UNKNOWN_FIELD = re.compile(r"unknown field `(.*)`")


def about(text: str, *examples: Any) -> Meta:
    """Return the description of a field, for ``Annotated``; the API's description and the reference have it.

    Most fields have an example from the recorded ones of ``service.http.examples``; the others name it here.
    """
    return Meta(description=text, examples=list(examples) or None)


def complaint(error: ValidationError, kind: Any) -> tuple[str, str]:
    """Return msgspec's message about an invalid ``kind``, with a hint, and the place of the error."""
    message, _, place = str(error).partition(" - at `$")
    return message + hint(message, place, kind), place.strip("`.")


def hint(message: str, place: str, kind: Any) -> str:
    """Return a hint to add to a message about ``place`` in a ``kind``, such as ``.actions[...].id``; may be empty.

    >>> from typing import Literal
    >>> hint("Invalid enum value 'c'", "[...]", list[Literal["a", "b"]])
    '; it must be one of a, b'
    """
    types = _at(inspect.type_info(kind), place)
    if message.startswith("Invalid enum value"):
        values = [str(value) for each in types if isinstance(each, inspect.LiteralType) for value in each.values]
        return f"; it must be one of {', '.join(values)}" if values else ""
    unknown = _UNKNOWN_FIELD.search(message)
    if unknown is None:
        return ""
    names = [field.encode_name for each in types if isinstance(each, inspect.StructType) for field in each.fields]
    close = get_close_matches(unknown[1][:100], names, 1)
    return f"; did you mean `{close[0]}`?" if close else f"; the fields are {', '.join(names)}" if names else ""


def _at(kind: inspect.Type, place: str) -> list[inspect.Type]:
    """Return the types that a place may have."""
    kinds = _alternatives([kind])
    for name, _ in _STEP.findall(place):
        inner: list[inspect.Type] = []
        for outer in kinds:
            if isinstance(outer, inspect.StructType):
                inner += [field.type for field in outer.fields if field.encode_name == name]
            elif isinstance(outer, inspect.DictType):
                inner.append(outer.value_type)
            elif isinstance(outer, inspect.TupleType):
                inner += outer.item_types
            elif isinstance(outer, inspect.CollectionType):
                inner.append(outer.item_type)
        kinds = _alternatives(inner)
    return kinds


def _alternatives(kinds: Iterable[inspect.Type]) -> list[inspect.Type]:
    """Return the types inside unions and metadata."""
    types: list[inspect.Type] = []
    for kind in kinds:
        if isinstance(kind, inspect.UnionType):
            types += _alternatives(kind.types)
        elif isinstance(kind, inspect.Metadata):
            types += _alternatives([kind.type])
        else:
            types.append(kind)
    return types

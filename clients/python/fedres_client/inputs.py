"""Conversion of callers' ids, rewards, features and actions to what is sent. Errors are raised at the call.

Hosted clients and devices both use it; ``clients/typescript/inputs.js`` does the same in JavaScript.
"""

from __future__ import annotations

import datetime
import enum
import math
import numbers
import operator
import reprlib
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, Optional, Protocol, Union
from uuid import UUID

import msgspec


class DataclassLike(Protocol):
    """A dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class AttrsLike(Protocol):
    """A class of attrs."""

    __attrs_attrs__: ClassVar[Any]


class ModelLike(Protocol):
    """A model of pydantic."""

    def model_dump(self) -> dict[str, Any]: ...


Record = Union[DataclassLike, AttrsLike, ModelLike, msgspec.Struct]
Features = Union[Mapping[str, Any], Record]
Id = Union[str, int, UUID]
Actions = Union[Mapping[Any, Optional[Features]], Iterable[Union[Id, Mapping[str, Any], Record]]]

FORMS = (
    'a list of mappings, [{"id": "tea", "features": {"hot": True}}, {"id": "juice"}], '
    'a mapping, {"tea": {"hot": True}, "juice": {}}, or a list of ids, ["tea", "juice"]'
)
ACCEPTED = (
    "JSON: numbers, text, lists and mappings of them, dataclasses, structs of msgspec, and models of pydantic or attrs"
)
_DATES = (datetime.date, datetime.time, datetime.timedelta)  # a datetime is a date
_FIELDS = {"id", "features"}
_SIMPLE = frozenset({str, int, bool, type(None)})  # JSON types


class Action(NamedTuple):
    """An action to send, and the caller's own id of it."""

    id: str
    features: Optional[Features]  # None: those of the catalogue
    caller_id: Any


def identifier(name: str, value: object) -> str:
    """Return an id as text: text unchanged, whole numbers and UUIDs by ``str``.

    >>> identifier("user", 42), identifier("user", "anna")
    ('42', 'anna')
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, UUID):
        return str(value)
    try:
        if not isinstance(value, bool):
            return str(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        pass
    raise TypeError(f"{name} must be text, a whole number or a UUID, got {_shown(value)}")


def identifiers(name: str, values: object) -> list[str]:
    """Return a list of ids as text."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a list of ids, got {_shown(values)}")
    return [identifier(name, value) for value in values]


def user_id(value: object) -> str | None:
    """Return the id of a user; "" is no user, like None."""
    return None if value is None else identifier("user", value) or None


def number(name: str, value: object) -> float:
    """Return a finite number of any type as a float; True is 1.

    >>> number("value", True), number("value", Decimal("0.5"))
    (1.0, 0.5)
    """
    if isinstance(value, str) or not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} must be a number, got {_shown(value)}")
    try:
        result = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be a number, got {_shown(value)}: {error}") from None
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise ValueError(f"{name} must be a finite number, got {_shown(value)}")
    return result


def features(name: str, value: object) -> dict[str, Any]:
    """Return features in JSON types: numbers of NumPy and Decimals as numbers, no NaN, no dates, no bytes."""
    try:
        if type(value) is dict and _is_plain(value.values()):
            return value
        result = _plain(name, value)
    except RecursionError:
        raise ValueError(f"{name} must be nested less deep, and must not hold itself") from None
    if not isinstance(result, dict):
        raise TypeError(f"{name} must be a mapping from names to values, got {_shown(value)}")
    return result


def _is_plain(values: Iterable[Any]) -> bool:
    """Return whether all values have JSON types already, as usual: ``_plain`` is slow for 500 actions."""
    for value in values:
        kind = type(value)
        if kind is float:
            if not math.isfinite(value):
                return False
        elif kind is dict or kind is list:
            if not _is_plain(value.values() if kind is dict else value):
                return False
        elif kind not in _SIMPLE:
            return False
    return True


def _plain(name: str, value: Any) -> Any:
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, Mapping):
        return {key: _plain(f"{name}.{key}", part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(f"{name}[{k}]", part) for k, part in enumerate(value)]
    if isinstance(value, enum.Enum):
        return _plain(name, value.value)
    if isinstance(value, (str, UUID)):
        return identifier(name, value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, (numbers.Real, Decimal)):
        return number(name, value)
    if isinstance(value, _DATES):
        raise TypeError(
            f"{name} must be JSON, got {_shown(value)}: send what matters of a time, such as its hour and weekday, "
            "and a duration as a number"
        )
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{name} must be JSON, got {_shown(value)}: decode bytes to text")
    if hasattr(value, "tolist"):  # of NumPy and similar libraries
        return _plain(name, value.tolist())
    fields = _fields_of(value)
    if fields is not None:
        return _plain(name, fields)
    raise TypeError(f"{name} must be {ACCEPTED}; got {_shown(value)}")


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields of a dataclass, a struct of msgspec, or a model of pydantic or attrs; None for all else."""
    kind = type(value)
    names: Iterable[str]
    if isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif hasattr(kind, "__dataclass_fields__"):
        names = kind.__dataclass_fields__
    elif hasattr(kind, "__attrs_attrs__"):
        names = [field.name for field in kind.__attrs_attrs__]
    elif hasattr(kind, "model_dump"):
        return dict(value.model_dump())
    else:
        return None
    return {name: getattr(value, name) for name in names}


def action_list(actions: Any, *, least: int = 1) -> list[Action]:
    """Return actions in any of the three forms; refuse fewer than ``least``, and repeated ids."""
    if isinstance(actions, Mapping):
        listed = [_action(caller_id, body) for caller_id, body in actions.items()]
    elif isinstance(actions, (str, bytes)) or not isinstance(actions, Iterable):
        raise TypeError(f"actions must be {FORMS}; got {_shown(actions)}")
    else:
        listed = [_listed(each) for each in actions]
    if len(listed) < least:
        raise ValueError("actions must hold at least one action, got none")
    if len({action.id for action in listed}) < len(listed):
        twice = next(action.caller_id for k, action in enumerate(listed) if action.id in {one.id for one in listed[:k]})
        raise ValueError(f"actions must have different ids, got {twice!r} twice")
    return listed


def _listed(each: Any) -> Action:
    """Return an action of a list, whose item is an id or a mapping."""
    if type(each) is str:
        return Action(each, None, each)
    if type(each) is dict or isinstance(each, Mapping):
        if "id" not in each or not each.keys() <= _FIELDS:
            wrong = sorted(map(repr, each.keys() - _FIELDS))
            raise TypeError(f"actions must be {FORMS}; got {_shown(each)}, with {', '.join(wrong) or 'no id'}")
        return _action(each["id"], each.get("features"))
    if isinstance(each, (str, UUID)) or hasattr(type(each), "__index__"):
        return _action(each, None)
    fields = _fields_of(each)
    if fields is not None:
        return _listed(fields)
    raise TypeError(f"actions must be {FORMS}; got {_shown(each)} in the list")


def _action(caller_id: Any, body: Any) -> Action:
    name = identifier("actions", caller_id)
    return Action(name, None if body is None else features(f"actions[{caller_id!r}]", body), caller_id)


def _shown(value: object) -> str:
    return f"{reprlib.repr(value)} ({type(value).__name__})"

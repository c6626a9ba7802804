"""Checks of records before they are stored, so that an invalid record does not fail the batch of others."""

from __future__ import annotations

from service.log.protocol import Duplicate, Group, Refused
from service.log.records import Record


def check_group(group: Group) -> None:
    """Refuse a group that is empty or not of one loop."""
    if not group:
        raise Refused("a group must have at least one record, got none")
    if len(group) > 1 and len(loops := {record.loop for record in group}) > 1:
        raise Refused(f"the records of a group must be of one loop, got {len(loops)} loops")


def checked(record: Record) -> Record:
    """Return the record, or refuse an invalid one: it must not fail the whole batch."""
    loop, kind, event, user, example, body = record
    if not (loop and kind and type(loop) is type(kind) is str and type(body) is bytes):
        _refuse(record)
    if not (type(event) in _TEXT and type(user) in _TEXT and type(example) in _BYTES):
        _refuse(record)
    if (event and "\0" in event) or (user and "\0" in user) or "\0" in loop:
        _refuse(record)
    return record


_TEXT, _BYTES = {str, type(None)}, {bytes, type(None)}


def _refuse(record: Record) -> None:
    for name, value in (("loop", record.loop), ("kind", record.kind)):
        if not isinstance(value, str) or not value:
            raise Refused(f"{name} must be a string that is not empty, got {value!r}")
    for name, text in (("loop", record.loop), ("event", record.event), ("user", record.user)):
        if text is not None and not isinstance(text, str):
            raise Refused(f"{name} must be a string or None, got {text!r}")
        if text is not None and "\0" in text:  # PostgreSQL cannot store it, and it ends a text for many tools
            raise Refused(f"{name} must have no NUL (the character U+0000), got {text!r}")
    if not isinstance(record.body, bytes):
        raise Refused(f"body must be bytes, got {type(record.body).__name__}")
    raise Refused(f"example must be bytes or None, got {type(record.example).__name__}")


def duplicate(record: Record, first: int) -> Duplicate:
    at = f", the event of record {first}" if first else " twice"
    return Duplicate(f"event must be new in loop {record.loop!r}, got {record.event!r}{at}", first)


def readable(body: bytes) -> str | bytes:
    """Return UTF-8 as text, so that other tools can read it; other bytes stay as they are."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body
    return body if "\0" in text else text  # many tools end a text at its first NUL

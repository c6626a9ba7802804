"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Return a table in HTML; columns whose cells are all numbers are set to the right."""
    right = [all(_starts_with_number(row[k]) for row in rows) for k in range(len(header))]
    lines = [f"<table><caption>{escape(caption)}</caption>", _row("th", header, right)]
    lines += [_row("td", row, right) for row in rows]
    return "\n".join([*lines, "</table>", *[f"<p>{escape(note)}</p>" for note in notes]])


def _row(kind: str, cells: Sequence[str], right: Sequence[bool]) -> str:
    aligned = ("right" if at_right else "left" for at_right in right)
    inner = [f'<{kind} style="text-align: {a}">{escape(c)}</{kind}>' for a, c in zip(aligned, cells, strict=True)]
    return f"<tr>{''.join(inner)}</tr>"


def _starts_with_number(cell: str) -> bool:
    return not cell or cell.lstrip("+-−")[:1].isdigit()

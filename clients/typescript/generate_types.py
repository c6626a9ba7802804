"""Writes schema.d.ts: the service's types, from its OpenAPI document.

python clients/typescript/generate_types.py           # write it
python clients/typescript/generate_types.py --check   # status 1 if it is stale
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from service.app import create_app

FILE = Path(__file__).with_name("schema.d.ts")
PLAIN = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "null": "null"}
RENAMED = {"Error": "ErrorBody"}  # names that are global in TypeScript
WANTED = (
    *("RankRequest", "RankResult", "Batch", "Decisions", "SlotsRequest", "SlotsResult", "Reward", "Error"),
    *("Settings", "Catalogue", "CatalogueChange", "Evaluate", "Unmatched", "NewLoop"),
    *("LiftReport", "PopularItem", "SimilarItem", "FeedbackStored"),
    *("Residuals", "ResidualsStored", "Round"),
)


def schemas() -> dict[str, Any]:
    """Return the named types of a service; it needs no store to describe itself."""
    document = create_app(None, None, keys=None).openapi()  # type: ignore[arg-type]
    types: dict[str, Any] = document["components"]["schemas"]
    return types


def reachable(types: dict[str, Any]) -> list[str]:
    """Return the types that the client uses, with those that they are made of."""
    names, todo = set(), list(WANTED)
    while todo:
        name = todo.pop()
        if name not in names:
            names.add(name)
            todo += re.findall(r"#/components/schemas/(\w+)", str(types[name]))
    return sorted(names)


def type_of(schema: dict[str, Any]) -> str:
    """Return a schema in TypeScript."""
    if "$ref" in schema:
        name = str(schema["$ref"].rpartition("/")[2])
        return RENAMED.get(name, name)
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " | ".join(dict.fromkeys(type_of(one) for one in schema[union]))
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(type_of({**schema, "type": one}) for one in kind)
    if kind == "array":
        item = type_of(schema.get("items", {})) if isinstance(schema.get("items", {}), dict) else "unknown"
        return f"({item})[]" if "|" in item else f"{item}[]"
    return PLAIN.get(str(kind), "Record<string, unknown>" if kind == "object" else "unknown")


def interface(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", []))
    lines = [comment(schema), f"export interface {RENAMED.get(name, name)} {{\n"]
    for field, kind in schema["properties"].items():
        mark = "" if field in required else "?"
        lines += [comment(kind, "  "), f"  {field}{mark}: {type_of(kind)};\n"]
    return "".join(lines) + "}\n"


def comment(schema: dict[str, Any], indent: str = "") -> str:
    """Return a description as a comment, empty without one."""
    text = schema.get("description", "").partition("\n")[0].replace("``", "`")
    return f"{indent}/** {text} */\n" if text else ""


def generated() -> str:
    types = schemas()
    parts = [interface(name, types[name]) for name in reachable(types)]
    return "// Generated from /openapi.json by generate_types.py; do not edit.\n\n" + "\n".join(parts)


def main() -> int:
    text = generated()
    if "--check" in sys.argv:
        return int(FILE.read_text(encoding="utf-8") != text)
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

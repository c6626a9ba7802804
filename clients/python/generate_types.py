"""Writes fedres_client/service_types.py: types of settings and reports, from the service's OpenAPI document.

python clients/python/generate_types.py           # write it
python clients/python/generate_types.py --check   # status 1 if it is stale
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from service.app import create_app

FILE = Path(__file__).parent / "fedres_client" / "service_types.py"
WANTED = ("Settings", "LiftReport", "UnmatchedReward", "PopularItem", "SimilarItem", "FeedbackStored")
LONGEST_LINE = 120
LINE_END = "\n"
PLAIN = {"string": "str", "number": "float", "integer": "int", "boolean": "bool", "null": "None"}
HEAD = '''"""Types of settings and reports, from the service's OpenAPI document. Made by a program: do not edit."""

from __future__ import annotations

from typing import Literal, TypedDict
'''


def type_of(schema: dict[str, Any]) -> str:
    """Return a schema as a type of Python."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " | ".join(dict.fromkeys(type_of(one) for one in schema[union]))
    if "enum" in schema:
        return f"Literal[{', '.join(json.dumps(value) for value in schema['enum'])}]"
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(type_of({**schema, "type": one}) for one in kind)
    if kind == "array":
        items = schema.get("items") or schema.get("prefixItems", [None])[0]
        return f"list[{type_of(items) if isinstance(items, dict) else 'Any'}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"dict[str, {type_of(values) if isinstance(values, dict) else 'Any'}]"
    return PLAIN.get(str(kind), "Any")


def field_line(name: str, kind: str) -> str:
    """Return a field as ruff formats it."""
    line = f"    {name}: {kind}\n"
    if len(line) <= LONGEST_LINE + 1:
        return line
    values = kind.removeprefix("Literal[").removesuffix("]").split(", ")
    return f"    {name}: Literal[\n{''.join(f'        {value},{LINE_END}' for value in values)}    ]\n"


def typed_dict(name: str, schema: dict[str, Any]) -> str:
    """Return a class; fields that may be missing are in one that extends it."""
    required = set(schema.get("required", []))
    fields = {field: type_of(kind) for field, kind in schema["properties"].items()}
    text = schema.get("description", "").partition("\n")[0].replace('"', "'").replace("\\", "")
    doc = f'    """{text or name}"""\n\n'
    optional = [field_line(field, kind) for field, kind in fields.items() if field not in required]
    needed = [field_line(field, kind) for field, kind in fields.items() if field in required]
    if not optional:
        return f"\n\nclass {name}(TypedDict):\n{doc}{''.join(needed)}"
    if not needed:
        return f"\n\nclass {name}(TypedDict, total=False):\n{doc}{''.join(optional)}"
    base = f"\n\nclass _{name}(TypedDict):\n{''.join(needed)}"
    return f"{base}\n\nclass {name}(_{name}, total=False):\n{doc}{''.join(optional)}"


def generated() -> str:
    types = create_app(None, None, keys=None).openapi()["components"]["schemas"]  # type: ignore[arg-type]
    names: set[str] = set()
    todo = list(WANTED)
    while todo:
        name = todo.pop()
        if name not in names:
            names.add(name)
            todo += re.findall(r"#/components/schemas/(\w+)", str(types[name]))
    return HEAD + "".join(typed_dict(name, types[name]) for name in sorted(names))


def main() -> int:
    text = generated()
    if "--check" in sys.argv:
        return int(FILE.read_text(encoding="utf-8") != text)
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

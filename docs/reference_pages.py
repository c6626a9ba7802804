"""Reference pages made from the code: HTTP from the OpenAPI document, the command line from its Typer app, and the
TypeScript client from its README."""

import json
import re
from pathlib import Path

import typer

from service.app import create_app
from service.cli import app
from service.http.descriptions import TAGS
from service.http.openapi import shortened


def http_page():
    """Return every route of the service, and the types of what is sent."""
    document = create_app(None, None, keys=None).openapi()
    lines = ["# HTTP", "", document["info"]["description"].strip(), ""]
    lines += [
        "A path below `/v1` also exists below `/v1/loops/{loop}`, unless it is about all loops. [The API](api.md)"
    ]
    lines += ["explains the calls, with examples.", ""]
    tag = ""
    for path, methods in shortened(document)["paths"].items():
        for method, route in methods.items():
            if route["tags"] != ["azure"]:  # docs/guides/azure-personalizer.md has these
                if route["tags"] != [tag]:
                    [tag] = route["tags"]
                    lines += [f"## {tag.capitalize()}", "", TAGS[tag], ""]
                lines += _route(method, path, route)
    lines += ["## Types", ""]
    for name in sorted(_reachable(document, "\n".join(lines))):
        lines += _type(name, document["components"]["schemas"][name])
    return "\n".join(lines)


def _route(method, path, route):
    yield from (f"### {method.upper()} {path}", "", route["summary"], "")
    for parameter in route.get("parameters", []):
        kind = _kind(parameter.get("schema", {}))
        yield f"- `{parameter['name']}` in the {parameter['in']}: {kind}"
    body = route.get("requestBody", {}).get("content", {})
    for media, content in body.items():
        yield f"- body, `{media}`: {_kind(content['schema']) if 'schema' in content else 'bytes'}"
    for status, response in route["responses"].items():
        if status.startswith("2"):
            for media, content in response.get("content", {}).items():
                yield f"- {status}, `{media}`: {_kind(content.get('schema', {}))}"
            if not response.get("content"):
                yield f"- {status}"
    errors = [status for status in sorted(route["responses"]) if not status.startswith("2")]
    yield from ((f"- {', '.join(errors)}: [Error](#error)", "") if errors else ("",))


def _type(name, schema):
    yield from (f"### {name}", "")
    if schema.get("description"):
        yield from (schema["description"].replace("``", "`").partition("\n\n")[0], "")
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for field, kind in schema.get("properties", {}).items():
        default = "required" if field in schema.get("required", []) else f"`{json.dumps(kind.get('default'))}`"
        yield f"| `{field}` | {_kind(kind)} | {default} | {kind.get('description', '')} |"
    yield ""


def _kind(schema):
    """Return a schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for union in ("anyOf", "oneOf"):
        if union in schema:
            return " or ".join(dict.fromkeys(_kind(one) for one in schema[union]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"array of {_kind(schema['items'])}"
    return str(kind)


def _reachable(document, text):
    schemas = document["components"]["schemas"]
    by_anchor = {name.lower(): name for name in schemas}
    found, todo = set(), re.findall(r"\]\(#(\w+)\)", text)
    while todo:
        name = by_anchor[todo.pop().lower()]
        if name not in found:
            found.add(name)
            todo += re.findall(r"#/components/schemas/(\w+)", str(schemas[name]))
    return found


def cli_page():
    """Return every command with its arguments and options."""
    lines = ["# Command line", "", "`fedres COMMAND --help` prints the same.", ""]
    for name, command in _commands("fedres", typer.main.get_command(app)):
        lines += [f"## {name}", "", _text(command.help), ""]
        parameters = [one for one in command.params if one.name != "help"]
        if parameters:
            lines += ["| | default | |", "|---|---|---|", *map(_parameter, parameters), ""]
    return "\n".join(lines)


def _commands(name, command):
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word in command.list_commands(typer.Context(command)):
        yield from _commands(f"{name} {word}", command.commands[word])


def _parameter(parameter):
    words = parameter.opts if parameter.param_type_name == "option" else [parameter.name.upper()]
    default = parameter.default
    shown = "" if default is None or default is False or callable(default) or parameter.required else f"`{default}`"
    return f"| {', '.join(f'`{word}`' for word in words)} | {shown} | {_text(getattr(parameter, 'help', ''))} |"


def _text(help_text):
    """Return help as Markdown, on one line a paragraph."""
    paragraphs = re.split(r"\n\s*\n", (help_text or "").strip())
    plain = [" ".join(paragraph.split()) for paragraph in paragraphs]
    return "\n\n".join(
        re.sub(r"([|<>*_])", r"\\\1", text) if "`" not in text else text.replace("|", "\\|") for text in plain
    )


def typescript_page():
    """Return the README of the TypeScript client, with links as seen from docs/reference."""
    text = (Path(__file__).parents[1] / "clients" / "typescript" / "README.md").read_text(encoding="utf-8")
    return text.replace("](../../docs/reference/", "](").replace("](../../docs/", "](../")

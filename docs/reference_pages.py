"""Reference pages made from the code; `make reference` writes them.

HTTP comes from the OpenAPI document, the command line from its Typer app, Python from docstrings, metrics from their
help, and the TypeScript client from its README; error codes, limits, quotas and claims have tables.
"""

import json
import re
from importlib import import_module
from inspect import getdoc, getmembers, isclass, isfunction, signature
from pathlib import Path
from textwrap import dedent, wrap

import typer
from reference_tables import ERRORS, FEATURE_LIMITS, LIMITS, QUOTAS

import fedres_client
from fedres.scoring.flattening import FeatureLimits
from fedres_client.event_ids import LONGEST_ID
from research.reproduce.registry import read_claims, table
from service import metrics
from service.app import create_app
from service.cli import app
from service.http.openapi import TAGS, shortened
from service.http.request import Limits
from service.rank.quotas import Quotas


def _table(*rows):
    """Return rows of cells as a Markdown table; the first is its head."""
    head, *others = (f"| {' | '.join(map(str, row))} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *others])


def http_page():
    """Return every route of the service, and the types of what is sent."""
    document = create_app(None, None, keys=None).openapi()
    parts, tag = [HTTP.format(description=document["info"]["description"].strip())], ""
    for path, methods in shortened(document)["paths"].items():
        for method, route in methods.items():
            if route["tags"] == ["azure"]:  # docs/guides/azure-personalizer.md has these
                continue
            if route["tags"] != [tag]:
                [tag] = route["tags"]
                parts.append(f"## {tag.capitalize()}\n\n{TAGS[tag]}")
            parts.append(_route(method, path, route))
    names = sorted(_reachable(document, "".join(parts)))
    types = [_type(name, document["components"]["schemas"][name]) for name in names]
    return "\n\n".join([*parts, "## Types", *types, ""])


HTTP = """# HTTP

{description}

A path below `/v1` also exists below `/v1/loops/{{loop}}`, unless it is about all loops. [The API](api.md) explains the
calls, with examples."""


def _route(method, path, route):
    """Return a route: what it takes, what it returns, how it fails."""
    parameters = [
        f"`{one['name']}` in the {one['in']}: {_kind(one.get('schema', {}))}" for one in route.get("parameters", [])
    ]
    bodies = [
        f"body, `{media}`: {_kind(content['schema']) if 'schema' in content else 'bytes'}"
        for media, content in route.get("requestBody", {}).get("content", {}).items()
    ]
    replies, errors = [], []
    for status, response in sorted(route["responses"].items()):
        media = response.get("content", {})
        if not status.startswith("2"):
            errors.append(status)
        else:
            replies += [f"{status}, `{kind}`: {_kind(media[kind].get('schema', {}))}" for kind in media] or [status]
    failures = [f"{', '.join(errors)}: [Error](#error)"] if errors else []
    points = "\n".join(f"- {point}" for point in [*parameters, *bodies, *replies, *failures])
    parts = [f"### {method.upper()} {path}", route["summary"], route["description"], points, _examples(route)]
    return "\n\n".join(part for part in parts if part)


LONGEST_EXAMPLE = 700  # characters; `/docs` has longer ones too


def _examples(route):
    """Return the examples of bodies and replies."""
    described = [("Body", route.get("requestBody", {}))]
    described += [(f"Reply {status}", reply) for status, reply in sorted(route["responses"].items())]
    blocks = []
    for what, contents in described:
        for content in contents.get("content", {}).values():
            for name, example in content.get("examples", {}).items():
                value = example["value"]
                text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                lines = [line for row in text.splitlines() for line in wrap(row, 100, break_long_words=False)]
                if len(text) <= LONGEST_EXAMPLE:
                    blocks.append("\n".join([f"{what}, {name[:1].lower()}{name[1:]}:", "", "```text", *lines, "```"]))
    return "\n\n".join(blocks)


def _type(name, schema):
    """Return a type with its fields."""
    text = schema.get("description", "").replace("``", "`").partition("\n\n")[0]
    rows = [("field", "type", "default", "meaning", "example")]
    for field, kind in schema.get("properties", {}).items():
        default = "required" if field in schema.get("required", []) else f"`{json.dumps(kind.get('default'))}`"
        rows.append((f"`{field}`", _kind(kind), default, kind.get("description", ""), _example(kind)))
    return "\n\n".join(part for part in (f"### {name}", text, _table(*rows)) if part)


def _example(schema):
    """Return a short example of a field; its type has longer ones."""
    text = json.dumps(schema.get("examples", [""])[0], ensure_ascii=False)
    return f"`{text}`" if 2 < len(text) <= 40 and "|" not in text else ""


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
    parts = ["# Command line", "`fedres COMMAND --help` prints the same."]
    for name, command in _commands("fedres", typer.main.get_command(app)):
        parts += [f"## {name}", _text(command.help)]
        parameters = [_parameter(one) for one in command.params if one.name != "help"]
        parts += [_table(("", "default", ""), *parameters)] if parameters else []
    return "\n\n".join([*parts, ""])


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
    return ", ".join(f"`{word}`" for word in words), shown, _text(getattr(parameter, "help", ""))


def _text(help_text):
    """Return help as Markdown, on one line a paragraph."""
    paragraphs = re.split(r"\n\s*\n", (help_text or "").strip())
    plain = [" ".join(paragraph.split()) for paragraph in paragraphs]
    return "\n\n".join(
        re.sub(r"([|<>*_])", r"\\\1", text) if "`" not in text else text.replace("|", "\\|") for text in plain
    )


def metrics_page():
    """Return every metric with its help."""
    shown = metrics.text({}, log=dict.fromkeys(metrics.LOG_FIGURES, 0.0)).decode()
    figures = re.findall(r"# HELP (fedres_\w+(?<!_created)) (.*)", shown)
    rows = [(f"`{name}`", text) for name, text in figures]
    return f"""# Metrics

`/metrics` has these figures for Prometheus; those of a loop have the label `loop`. [Monitor](../operate/monitor.md)
says which to watch.

{_table(("metric", "meaning"), *rows)}
"""


def errors_page():
    """Return every error code with its status and meaning."""
    rows = [(status, f"`{code}`", text) for status, codes in ERRORS.items() for code, text in codes.items()]
    return f"""# Errors

Every error has the same shape: a code for programs, a message for people, and the field or object it is about (or
`null`):

```json
{{"error": {{"code": "invalid_settings", "message": "epsilon must be in [0, 1], got 2.0", "target": "epsilon"}}}}
```

A request that gets 400 or 422 never succeeds as it is; one that gets 503, or 429 with a code of this table, does later.
[Quotas](limits.md#quotas) have codes of their own with 429, which waiting does not change.

{_table(("status", "code", "meaning, and what to do"), *rows)}
"""


def limits_page():
    """Return every limit of a request, and every quota of a loop."""
    limits = [(f"{getattr(Limits(), name):,.0f}", text, f"`limits.{name}`") for name, text in LIMITS.items()]
    fixed = [(f"{getattr(FeatureLimits(), name):,}", text, "") for name, text in FEATURE_LIMITS.items()]
    limits += [*fixed, (str(LONGEST_ID), "characters in an id", "")]
    quotas = [
        (f"{getattr(Quotas(), name):,}", text, f"`quotas.{name}`", f"`too_many_{name}`")
        for name, text in QUOTAS.items()
    ]
    return f"""# Limits

A request beyond one of these gets 413, 422, 429 or 408 ([errors](errors.md)).

Those with a name can be [set](../operate/deploy.md#limits-and-quotas).

{_table(("at most", "what", "name"), *limits)}

## Quotas

Of each loop, but for the last three, which are of the service. Requests that would need more get 429 with the code;
`/v1/status` shows the quotas.

{_table(("at most", "what", "name", "code"), *quotas)}
"""


def python_page():
    """Return the public classes and functions with their arguments and docstrings."""
    sections = "\n\n".join(map(_module, ("fedres_client", "fedres.client", "fedres", "bandits", "libsvm_tasks")))
    return f"""# Python

`fedres_client` is the distribution `fedres-client`; `fedres.client` has the same classes. `fedres` and `bandits` need
the extra `learn`, and `libsvm_tasks` the extra `bench` ([install](../start/install.md)).

{sections}
"""


def _module(name):
    """Return what a module exports: functions, then classes with their methods."""
    module = import_module(name)
    names = set(module.__all__)
    if name == "fedres.client":
        names -= set(fedres_client.__all__)
    public = [(word, getattr(module, word)) for word in sorted(names)]
    functions = [_callable(f"{name}.{word}", word, thing) for word, thing in public if isfunction(thing)]
    classes = [_class(f"{name}.{word}", word, thing) for word, thing in public if isclass(thing)]
    return "\n\n".join([f"## {name}", *functions, *classes])


def _class(path, word, thing):
    """Return a class with its arguments and public methods; those of clients and learners with inherited ones."""
    inherits = word.endswith(("Client", "Learner"))
    members = getmembers(thing, isfunction) if inherits else list(vars(thing).items())
    methods = [(name, one) for name, one in members if isfunction(one) and not name.startswith("_") and one.__doc__]
    rows = [(f"`{name}{_arguments(one)}`".replace("|", "\\|"), _first(one)) for name, one in methods]
    parts = [_callable(path, word, thing)]
    if rows:
        parts.append(_table(("method", ""), *rows))
    return "\n\n".join(parts)


def _callable(path, word, thing):
    """Return a heading, the arguments and the docstring of a function or class."""
    docstring = _markdown(getdoc(thing) or "")
    return f"### {path}\n\n```text\n{word}{_arguments(thing)}\n```\n\n{docstring}"


def _arguments(thing):
    """Return the names and defaults of arguments; types are in the code."""
    try:
        arguments = signature(thing).parameters.values()
    except ValueError:
        return "(...)"
    shown, keywords = [], False
    for one in arguments:
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not keywords:
            shown.append("*")
            keywords = True
        if one.kind is one.VAR_POSITIONAL:
            keywords = True
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        default = one.default
        plain = default is None or isinstance(default, str | int | float | tuple)
        value = "" if default is one.empty else f"={default!r}" if plain else "=..."
        shown.append(f"{stars}{one.name}{value}")
    return f"({', '.join(shown)})"


def _first(thing):
    """Return the first paragraph of a docstring, for a cell of a table."""
    return " ".join(_markdown(getdoc(thing) or "").split("\n\n")[0].split()).replace("|", "\\|")


def _markdown(docstring):
    """Return a docstring as Markdown: examples as code, double backticks as single ones."""
    parts = []
    for part in re.split(r"\n\s*\n", docstring.replace("``", "`")):
        if part.lstrip().startswith(">>>"):
            parts.append(f"```pycon\n{dedent(part)}\n```")
        else:
            parts.append(part)
    return "\n\n".join(parts)


def typescript_page():
    """Return the README of the TypeScript client, with links as seen from docs/reference."""
    text = (Path(__file__).parents[1] / "clients" / "typescript" / "README.md").read_text(encoding="utf-8")
    return text.replace("](../../docs/reference/", "](").replace("](../../docs/", "](../")


def claims_page():
    """Return the claims of the papers, with what was measured."""
    return "# All claims\n\n" + table(read_claims(Path(__file__).parent / "results" / "claims.csv"))


MARK = "<!-- Made from the code by `make reference`: do not edit. -->"
PAGES = {
    "http.md": http_page,
    "errors.md": errors_page,
    "limits.md": limits_page,
    "metrics.md": metrics_page,
    "cli.md": cli_page,
    "python.md": python_page,
    "typescript.md": typescript_page,
    "claims.md": claims_page,
}


def whole(name):
    """Return a page of the reference as it is in the repository."""
    return f"{MARK}\n\n{PAGES[name]()}".rstrip() + "\n"


def write():
    """Write the pages of the reference into docs/reference."""
    for name in PAGES:
        path = Path(__file__).parent / "reference" / name
        page = whole(name)
        if not path.exists() or path.read_text(encoding="utf-8") != page:
            path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    write()

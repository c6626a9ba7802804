"""Docs, help, messages and the dashboard are written in one plain English: a word list of our own.

Each pattern has what to write instead. Code, names in backticks, link targets and tables made by programs are left out.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest
import typer

from service.app import create_app
from service.cli import app

ROOT = Path(__file__).parents[1]
INSTEAD = {
    r"\b(is|was|are|were|be|been) told\b": "receives, is notified",
    r"\b(is|was|are|were|be) asked\b": "gets a request",
    r"\bthat (is|are|was|were) (not )?there\b|\bis not there\b|\bwhere there is none\b": "exists, existing, missing",
    r"\b(what|whatever) (came|comes|becomes|became) of\b": "result, outcome",
    r"\b[Oo]f (now|then|late)\b": "current, earlier, recent",
    r"\b(be|is|are|was) valued\b|\bvalues (policies|changes|other)\b": "estimate, evaluate",
    r"\bfor ever\b": "forever",
    r"\b[Ww]hoever\b": "who it is",
    r"\bcheckouts?\b": "clone",
    r"\b(our|the) targets? (of|is|are|was)\b|\bnot met\b|\bbusy (cores|machine)\b": "what is true now",
    r"\bwas not (tried|run|measured)\b|\bthe machine at hand\b": "what is true now",
    r"\b(colours?|behaviours?|favourites?|licence|neighbours?|centred?|misspelt)\b": "US spelling",
    r"\b(defences?|artefacts?|analysed?|labelled|modelling|cancelled|recognise\w*|whilst)\b": "US spelling",
    r"\b\w{4,}(isation|isations|ised|ising)\b(?<!raised)(?<!raising)(?<!promised)(?<!promising)(?<!comprised)(?<!advised)"
    r"(?<!exercised)(?<!vertising)(?<!pervised)(?<!revised)(?<!surprised)(?<!surprising)(?<!noised)"
    r"": "US spelling, -ize",
    r"(?<![\w.\d\]/`])[−-]?\.\d+\b(?!\w)": "a leading zero",
}
GENERATED = {ROOT / "docs" / "results" / "fair.md"}
GENERATED |= {
    page for page in (ROOT / "docs/reference").glob("*.md") if page.read_text("utf-8").startswith("<!-- Made from")
}
PAGES = {*ROOT.glob("*.md"), ROOT / "clients/typescript/README.md", *(ROOT / "docs").rglob("*.md")} - GENERATED
SHOWN = {"ApiError", "ValueError", "TypeError", "StoreUnavailable", "Refusal", "at_most", "echo", "say"}


def complaints(text):
    """Return what breaks the list, each with what to write instead."""
    searched = ((re.search(pattern, text), instead) for pattern, instead in INSTEAD.items())
    return [f"{match[0]!r} in {text[:150]!r}: write {instead}" for match, instead in searched if match]


def prose(page):
    """Return the lines of a page without code and link targets."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"`[^`\n]*`", "``", text)
    return re.sub(r"\]\([^)]*\)", "]", text).split("\n")


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_none_of_the_words_of_the_list(page):
    assert [complaint for line in prose(page) for complaint in complaints(line)] == []


def helps(command):
    yield command.help or ""
    yield from (getattr(parameter, "help", None) or "" for parameter in command.params)
    for inner in getattr(command, "commands", {}).values():
        yield from helps(inner)


def test_help_uses_none_of_them():
    texts = list(helps(typer.main.get_command(app)))
    assert len(texts) > 150
    assert [complaint for text in texts for complaint in complaints(text)] == []


def messages(file):
    """Return the texts of errors and of what is printed."""
    for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in SHOWN:
            for part in ast.walk(call):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value


def test_the_openapi_document_uses_none_of_them():
    document = create_app(None, None, keys=None).openapi()
    routes = [route.get("summary", "") for path in document["paths"].values() for route in path.values()]
    types = document["components"]["schemas"].values()
    fields = [field.get("description", "") for kind in types for field in kind.get("properties", {}).values()]
    texts = [*routes, *(kind.get("description", "") for kind in types), *fields]
    texts = [re.sub("``.*?``", "", text) for text in texts]  # names
    assert len(texts) > 200
    assert [complaint for text in texts for complaint in complaints(text)] == []


def test_messages_use_none_of_them():
    folders = ("service", "clients/python/fedres_client", "fedres/client", "libsvm_tasks/cli")
    texts = [text for folder in folders for file in sorted((ROOT / folder).rglob("*.py")) for text in messages(file)]
    assert len(texts) > 300
    assert [complaint for text in texts for complaint in complaints(text)] == []


def test_the_dashboard_uses_none_of_them():
    static = ROOT / "service" / "plugins" / "reports" / "static"
    lines = [line for file in sorted(static.glob("*.[jh]*")) for line in file.read_text(encoding="utf-8").split("\n")]
    texts = ["".join(text) for line in lines for text in re.findall(r'"([^"]*)"|`([^`]*)`|>([^<>]+)<', line)]
    assert len(texts) > 100
    assert [complaint for text in texts if "aria-" not in text for complaint in complaints(text)] == []


def test_the_list_finds_what_it_is_for():
    for wrong in ("the service is told", "a loop that is not there", "the model of now", "it rose by .5", "quantised"):
        assert complaints(wrong), wrong
    for right in ("it rose by 0.5", "version 1.5.2", "an exercise in raised promises", "the colors of a catalogue"):
        assert complaints(right) == []


CODE = (
    "clients/python/fedres_client",
    "fedres",
    "bandits",
    "libsvm_tasks",
    "service",
    "research",
    "benchmarks",
    "tools",
    "examples",
)
POINTING = re.compile(r"#:? (what|who|which|whether|that|those|whoever|whatever)\b", re.IGNORECASE)


def comments_and_docstrings(file):
    """Yield the comments and docstrings of a file, without names in backticks."""
    for token in tokenize.generate_tokens(io.StringIO(file.read_text(encoding="utf-8")).readline):
        is_docstring = token.type == tokenize.STRING and token.string.startswith('"""')
        if token.type == tokenize.COMMENT or is_docstring:
            yield re.sub(r"``[^`]*``|`[^`]*`", "``", token.string)


def test_comments_and_docstrings_use_none_of_them():
    texts = [
        text for folder in CODE for file in (ROOT / folder).rglob("*.py") for text in comments_and_docstrings(file)
    ]
    assert len(texts) > 5_000
    kernels = "centred"  # a name of an argument of kernels
    found = [complaint for text in texts for complaint in complaints(text) if f"'{kernels}'" not in complaint]
    assert found == []


# Any change of a file with kernels makes every user compile them again.
WITH_KERNELS = {ROOT / "fedres" / "decisions" / "kalman_state.py"}


def test_no_comment_points_at_a_thing_instead_of_naming_it():
    """A comment that begins with "what" or "whether" has no subject: name the thing."""
    files = {file for folder in CODE for file in (ROOT / folder).rglob("*.py")} - WITH_KERNELS
    assert len(files) > 300
    pointing = [
        f"{file.relative_to(ROOT)}: {text}"
        for file in sorted(files)
        for text in comments_and_docstrings(file)
        if POINTING.match(text)
    ]
    assert pointing == []

"""What all pages have in common: links that lead somewhere, tables that name everything."""

import ast
import dataclasses
import re
from pathlib import Path

import msgspec
import pytest
import typer

from service.app import create_app
from service.cli import app
from service.metrics import LOOP_FIGURES
from service.rank.quotas import Quotas
from service.settings import Settings

ROOT = Path(__file__).parents[1]
MADE = {ROOT / "docs" / "reference" / name for name in ("http.md", "cli.md", "typescript.md")}  # by `make docs`
RESULTS = ("decisions", "recommend")  # benchmarks too
PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "clients/typescript/README.md"} - MADE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        target = page.parent / link
        assert target.exists() or target.resolve() in MADE, link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_sections_of_our_pages_lead_to_headings(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link, section in re.findall(r"\]\((?!https?://)([^)#]*)#([^)]+)\)", text):
        target = page.parent / link if link else page
        if target.exists():  # else the test above says so
            assert section in anchors(target), f"{link}#{section}"


def anchors(page):
    """Return the anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_page_on_monitoring_names_every_metric_of_a_loop():
    text = (ROOT / "docs" / "operate" / "monitor.md").read_text(encoding="utf-8")
    for metric, grows, _ in LOOP_FIGURES.values():
        assert f"`{metric}{'_total' if grows else ''}`" in text, metric


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_ours_that_a_page_names_exists(page):
    text, folders = (
        page.read_text(encoding="utf-8"),
        "fedres|bandits|libsvm_tasks|research|service|tests|tools|benchmarks",
    )
    for path in re.findall(rf"`((?:{folders}|examples|docs|deploy|clients)/[\w./]*)`", text):
        assert path.endswith("/yours.py") or (ROOT / path).exists(), path
    for name in re.findall(r"`(test_\w+\.py)`", text):
        assert any((ROOT / "tests").rglob(name)), name


def test_the_changelog_of_the_first_version_stays_short():
    """Nothing was released, so it lists what 0.1.0 has; a merge that brings back what was dropped fails here."""
    assert len((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_pages_stay_short():
    """A page that outgrows its limit tells something twice, or is two pages; reference/api.md has two long tables."""
    limits = {"README.md": 120, "docs/reference/api.md": 260, **{f"docs/results/{name}.md": 80 for name in RESULTS}}
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        most = limits.get(name, 80 if name.startswith("docs/benchmarks/") else 200)
        if name.startswith(("docs/", "README")):
            assert len(page.read_text(encoding="utf-8").splitlines()) <= most, name


def test_the_gallery_has_every_example():
    text = (ROOT / "docs" / "guides" / "examples.md").read_text(encoding="utf-8")
    there = {f"examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.name != "__pycache__"}
    assert there == set(re.findall(r"^\| `(examples/[\w.]+)` \|", text, re.MULTILINE))


def words_of(page):
    """Return what a page sets as code."""
    return set(re.findall(r"`([^`\n]+)`", (ROOT / "docs" / page).read_text(encoding="utf-8")))


def codes():
    """Return the codes that are written out where the service refuses a request."""
    found = set()
    for file in (ROOT / "service").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = ast.unparse(call.func).split(".")[-1] if isinstance(call, ast.Call) else ""
            if name in ("ApiError", "at_most") and isinstance(call.args[1], ast.Constant):
                found.add(call.args[1].value)
    return found


def test_the_page_on_the_api_has_every_error_code():
    assert len(codes()) > 50
    assert codes() - words_of("reference/api.md") == set()


def test_the_tables_of_error_codes_have_no_code_that_does_not_exist():
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    section = text[text.index("## Errors") :].partition("\n## ")[0]
    listed = {word for row in re.findall(r"^\|.*$", section, re.MULTILINE) for word in re.findall(r"`([a-z_]+)`", row)}
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "service").rglob("*.py"))
    unknown = {word for word in listed - {"default", "event_id"} if f'"{word.removeprefix("store_")}"' not in source}
    assert unknown == set()


def test_the_page_on_the_api_has_every_setting():
    assert {field.name for field in msgspec.structs.fields(Settings)} - words_of("reference/api.md") == set()


def test_the_page_on_monitoring_has_every_metric():
    named = set(re.findall(r'"(fedres_\w+)"', (ROOT / "service" / "metrics.py").read_text(encoding="utf-8")))
    words = {word.partition("{")[0].removesuffix("_total") for word in words_of("operate/monitor.md")}
    assert named - words == set()


def test_the_page_on_operations_has_every_quota_with_its_number():
    text = (ROOT / "docs" / "operate" / "operations.md").read_text(encoding="utf-8")
    for name, most in dataclasses.asdict(Quotas()).items():
        [row] = re.findall(rf"^\|.*`too_many_{name}` \|$", text, re.MULTILINE)
        shown = {f"{most:,}", f"{most // 10**6} MB", f"{most // 10**9} GB", f"2^{most.bit_length() - 1}"}
        assert any(number in row for number in shown), row


def options(name, command):
    """Yield every command with its options."""
    for word, inner in getattr(command, "commands", {}).items():
        yield from options(f"{name} {word}", inner)
    yield name, {option for one in command.params for option in [*one.opts, *one.secondary_opts] if option[0] == "-"}


OPTIONS = dict(options("fedres", typer.main.get_command(app)))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_that_a_page_gives_to_a_command_exist(page):
    for quoted, words, rest in re.findall(
        r"((?<![\w/.-])fedres ((?:[a-z]+ ?)+)([^`\n|]*))", page.read_text(encoding="utf-8").replace("\\\n", "")
    ):
        names = [" ".join(["fedres", *words.split()[:n]]) for n in range(len(words.split()) + 1)]
        allowed = next((OPTIONS[name] for name in reversed(names) if name in OPTIONS and name != "fedres"), None)
        if allowed is not None:
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", rest)) - {"--help"} <= allowed, quoted


@pytest.fixture(scope="module")
def routes():
    paths = create_app(None, None, keys=None).openapi()["paths"]
    return {f"{method.upper()} {re.sub('{.*?}', '{}', path)}" for path in paths for method in paths[path]}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_routes_that_a_page_names_exist(page, routes):
    for method, path in re.findall(r"`(GET|POST|PUT|PATCH|DELETE) (/v1[\w/{}~-]*)", page.read_text(encoding="utf-8")):
        assert f"{method} {re.sub('{.*?}', '{}', path.replace('/default/', '/{}/'))}" in routes, path

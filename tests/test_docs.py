"""What all pages have in common: links that lead somewhere, tables that name everything."""

import ast
import dataclasses
import importlib
import re
import subprocess
from pathlib import Path

import pytest
import typer

from service import metrics
from service.app import create_app
from service.cli import app
from service.rank.quotas import Quotas

ROOT = Path(__file__).parents[1]
MADE = {  # by `make reference`
    page for page in (ROOT / "docs/reference").glob("*.md") if page.read_text("utf-8").startswith("<!-- Made from")
}
WORDS = {  # limits of pages that are longer than others
    "CHANGELOG.md": 2_500,  # nothing was released, so it lists what 0.1.0 has
    "CONTRIBUTING.md": 2_700,
    "docs/how-it-works/decision-model.md": 2_400,
    "docs/research/decision-model.md": 2_700,
}
SITE = {page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts}
LINKING = sorted({*ROOT.glob("*.md"), *SITE, ROOT / "clients/typescript/README.md"})
PAGES = sorted({*LINKING} - MADE)


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_to_files(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text):
        target = page.parent / link
        assert target.exists(), link


def test_links_lead_to_files_of_the_repository():
    """A file that git ignores exists here and is missing in a clone."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is not a clone")
    files = {(ROOT / line).resolve() for line in done.stdout.splitlines()}
    for page in LINKING:
        for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", prose_of(page)):
            target = (page.parent / link).resolve()
            assert target.is_dir() or target in files, f"{page.name}: {link}"


def test_the_reference_in_the_repository_is_current(made):
    assert {page.name for page in MADE} == set(made.PAGES)
    for name in made.PAGES:
        page = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
        assert page == made.whole(name), f"{name}: run `make reference`"


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
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


# Names that a program in JavaScript imports look like paths.
MODULES_OF_NPM = {"fedres/testing", "fedres/schema", "fedres/device"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_of_ours_that_a_page_names_exists(page):
    text, folders = (
        page.read_text(encoding="utf-8"),
        "fedres|bandits|libsvm_tasks|research|service|tests|tools|benchmarks",
    )
    for path in re.findall(rf"`((?:{folders}|examples|docs|deploy|clients)/[\w./]*)`", text):
        assert path in MODULES_OF_NPM or path.endswith("/yours.py") or (ROOT / path).exists(), path
    for name in re.findall(r"`(test_\w+\.py)`", text):
        assert any((ROOT / "tests").rglob(name)), name


def prose_of(page):
    """Return a page without its blocks of code."""
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_not_too_long_to_read(page):
    """A page that outgrows its limit repeats another page, or is two pages."""
    name = str(page.relative_to(ROOT))
    assert len(prose_of(page).split()) <= WORDS.get(name, 1_000), name


SHORT = [page for page in PAGES if page.name not in ("fair.md", "CHANGELOG.md")]


@pytest.mark.parametrize("page", SHORT, ids=lambda page: str(page.relative_to(ROOT)))
def test_paragraphs_have_at_most_80_words(page):
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*] |\d+\. ))", prose_of(page)):
        words = " ".join(line for line in paragraph.split("\n") if not line.lstrip().startswith("|")).split()
        assert len(words) <= 80, " ".join(words[:12])


WRAPPED = [page for page in PAGES if page.name != "fair.md"]  # `fedres fair` writes it


@pytest.mark.parametrize("page", WRAPPED, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_fit_into_100_columns(page):
    """Lines without a space, such as long code or addresses, cannot be wrapped; nor can rows of tables and headings."""
    for line in prose_of(page).splitlines():
        words = re.sub(r"`[^`]*`|\]\([^)]*\)", "", line).split()
        assert len(line) <= 100 or line.lstrip().startswith(("|", "#", "![")) or len(words) < 3, line


def test_every_figure_of_the_results_is_on_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    for picture in (ROOT / "docs" / "results").glob("*.png"):
        assert re.search(rf"!\[[^\]]+\]\([\w./-]*\b{picture.name}\)", text), picture.name


def test_the_gallery_has_every_example():
    text = (ROOT / "docs" / "guides" / "integrate.md").read_text(encoding="utf-8")
    there = {f"examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.name != "__pycache__"}
    assert there == set(re.findall(r"^\| `(examples/[\w.]+)` \|", text, re.MULTILINE))


@pytest.fixture
def made(monkeypatch):
    """Return the functions that write the pages of the reference."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("reference_pages")


def codes():
    """Return the codes that are written out where the service refuses a request, with their status where it is too."""
    written = set()
    for file in (ROOT / "service").rglob("*.py"):
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            name = ast.unparse(call.func).split(".")[-1] if isinstance(call, ast.Call) else ""
            if name in ("ApiError", "at_most") and isinstance(call.args[1], ast.Constant):
                status = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
                written.add((status if isinstance(status, int) else None, call.args[1].value))
    return written


def test_the_page_of_errors_has_every_code_with_its_status(made):
    listed = {(status, code) for status, texts in made.ERRORS.items() for code in texts}
    assert len(codes()) > 50
    assert {pair for pair in codes() if pair[0]} - listed == set()
    assert {code for _, code in codes()} - {code for _, code in listed} == set()
    assert all(f"| {status} | `{code}` |" in made.errors_page() for status, code in listed)


def test_the_page_of_errors_has_no_code_that_does_not_exist(made):
    source = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "service").rglob("*.py"))
    for texts in made.ERRORS.values():
        assert [code for code in texts if f'"{code.removeprefix("store_")}"' not in source] == []


def test_the_page_of_metrics_has_every_metric(made):
    named = set(re.findall(r'"(fedres_\w+)"', (ROOT / "service" / "metrics.py").read_text(encoding="utf-8")))
    named |= {f"fedres_{metrics.RENAMED.get(name, name)}" for name in metrics.LOOP_FIGURES}
    shown = re.findall(r"^\| `(fedres_\w+)` \| \S", made.metrics_page(), flags=re.MULTILINE)
    assert {name.removesuffix("_total") for name in shown} == named


def test_the_page_of_limits_has_every_limit_and_quota(made):
    assert set(made.LIMITS) == {field.name for field in dataclasses.fields(made.Limits)}
    assert (
        set(made.FEATURE_LIMITS)
        == {"features", "depth", "name", "crosses"}
        < {field.name for field in dataclasses.fields(made.FeatureLimits)}
    )
    assert set(made.QUOTAS) == {field.name for field in dataclasses.fields(Quotas)}
    assert "| 1,000,000 | bytes of a request body" in made.limits_page()
    assert "| 2,000,000 | users with a personal model | `quotas.users` | `too_many_users` |" in made.limits_page()


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

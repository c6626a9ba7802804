"""The tutorial and the how-to guides are followed to the letter, in an empty folder; and no page is left out.

Files are written where a page says "Save this as", programs that serve are started and left running, and the other
commands and examples run one after the other. Blocks of ``console`` are not run: they need a network or a cluster.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import pytest
from guides import blocks, follow, started
from needs import lacks

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ELSEWHERE = {  # pages with code, and the tests that run it
    "reference/api.md": "service/test_service_docs.py",
    "reference/slots.md": "service/test_service_docs.py",
    "guides/recommend.md": "service/test_service_docs.py",
    "guides/lift.md": "service/test_service_docs.py",
    "guides/dashboard.md": "service/test_service_docs.py",
    "operate/operations.md": "service/test_service_docs.py",
    "operate/keys.md": "service/test_service_docs.py",
    "guides/devices.md": "service/test_service_docs.py",
    "reference/client.md": "service/test_service_docs.py",
    "guides/typescript-client.md": "client/test_typescript.py",
    "operate/back-up.md": "service/test_log_docs.py",
    "reference/log.md": "service/test_log_docs.py",
    "reference/device-protocol.md": "service/test_service_docs.py",
    "operate/postgresql.md": "service/test_postgres_docs.py",
    "reference/hashing.md": "scoring/test_features.py",
    "research/library.md": "test_library_docs.py",
    "federated/loop.md": "test_federated_docs.py",
    "federated/replay.md": "test_federated_docs.py",
    "federated/delay.md": "test_federated_docs.py",
    "federated/fedres.md": "test_federated_docs.py",
    "federated/fedomd.md": "test_federated_docs.py",
    "federated/fedsea.md": "test_federated_docs.py",
    "federated/ofediq.md": "test_federated_docs.py",
    "federated/dynamic-fedavg.md": "test_federated_docs.py",
}
NOT_RUN = {
    "results/decisions.md": "streams of decisions, for hours; tests/libsvm_tasks/test_decisions.py plays them small",
    "results/recommend.md": "pages of MovieLens, for an hour; tests/libsvm_tasks/test_pages.py plays made-up ones",
}
TUTORIAL = DOCS / "start" / "tutorial.md"
HERE = [  # the guides, one after the other
    page
    for folder in ("guides", "operate", "how-it-works", "research")
    for page in sorted((DOCS / folder).glob("*.md"))
    if str(page.relative_to(DOCS)) not in {*ELSEWHERE, *NOT_RUN, "research/learning-curve.md"}
]
CODE = ("sh", "python", "js", "javascript", "sql")
ENV = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


MADE_FROM_CODE = {  # by `make reference`
    page for page in (DOCS / "reference").glob("*.md") if page.read_text("utf-8").startswith("<!-- Made from")
}


def pages():
    """Return all pages that are written by hand."""
    checked_in = [page for page in DOCS.rglob("*.md") if DOCS / "_build" not in page.parents]
    return [page for page in checked_in if page not in MADE_FROM_CODE]


@pytest.mark.slow
def test_the_tutorial_leads_to_a_page_that_learns(tmp_path):
    with ExitStack() as stack:
        first, visits, explained = follow(TUTORIAL, tmp_path, stack, {})
    assert json.loads(first)["probability"] == pytest.approx(1 / 3)
    clicks = [int(number) for number in re.findall(r": (\d+) clicks", visits)]
    assert max(clicks[0], 75) < clicks[-1]
    ben, emil = map(json.loads, explained.splitlines())
    assert [ben["ranking"][0]["id"], emil["ranking"][0]["id"]] == ["tea", "coffee"]


@pytest.mark.slow
def test_the_guides_do_what_they_say(tmp_path):
    with ExitStack() as stack:  # one service for all: a start takes seconds
        url = stack.enter_context(started("fedres serve", tmp_path))
        for page in HERE:
            follow(page, tmp_path, stack, {"8000": url})
        if shutil.which("node") is None:
            lacks("node", "apt-get install nodejs")  # all guides but the part on Next.js were followed
        visit(tmp_path, url)


@pytest.mark.slow
def test_the_learning_curve_has_the_figures_of_its_page(tmp_path):
    page = DOCS / "research" / "learning-curve.md"
    [printed] = follow(page, tmp_path, None, {})
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    for title in ("shared and personal", "one model for all"):
        [shown] = re.findall(rf"^\| {title} \| (\S+) \| (\S+) \|", page.read_text("utf-8"), flags=re.MULTILINE)
        figures = re.search(rf"{title}: first 200 visits (\S+), last 200 (\S+)", printed).groups()
        assert list(map(float, figures)) == pytest.approx(list(map(float, shown)), abs=0.05)


def visit(folder, url):
    """Let the handler for Next.js, which was saved in the folder, decide and take a reward."""
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "node_modules").mkdir()
    (folder / "node_modules" / "fedres").symlink_to(ROOT / "clients" / "typescript")
    script = """
import { GET, POST } from "./banner.js";
const shown = await (await GET(new Request("http://localhost/api/banner?user=anna&weather=cold"))).json();
const reply = await POST(new Request("http://localhost/api/banner", { method: "POST", body: JSON.stringify(shown) }));
console.log(JSON.stringify({ ...shown, status: reply.status }));
"""
    (folder / "visit.js").write_text(script)
    env = {**ENV, "FEDRES_URL": url}
    done = subprocess.run(["node", "visit.js"], cwd=folder, env=env, capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)
    assert (shown["status"], shown["banner"] in ("tea", "juice")) == (204, True)


def test_every_page_with_code_is_run_by_a_test_or_says_why_not():
    for page in pages():
        name = str(page.relative_to(DOCS))
        if page in HERE or page == TUTORIAL or page.name == "learning-curve.md":
            continue
        if any(block.language in CODE for block in blocks(page)):
            assert (name in ELSEWHERE) != (name in NOT_RUN), f"{name}: name the test that runs its code"
            assert name in NOT_RUN or page.name in (ROOT / "tests" / ELSEWHERE[name]).read_text(encoding="utf-8")


def test_the_file_for_language_models_leads_to_pages_that_exist():
    for link in re.findall(r"\]\(([\w/-]+)\.html\)", (DOCS / "llms.txt").read_text(encoding="utf-8")):
        assert DOCS / f"{link}.md" in {*pages(), *MADE_FROM_CODE}, link


def test_every_page_is_in_the_list_of_all_pages():
    """conf.py makes the sidebar from it. What else `make docs` would warn of is in test_docs.py."""
    listed = (DOCS / "index.md").read_text(encoding="utf-8").partition("## All pages")[2]
    links = {DOCS / link for link in re.findall(r"\]\((.*?)\)", listed)}
    assert links == {*pages(), *MADE_FROM_CODE} - {DOCS / "index.md"}


def test_reference_pages_are_made_from_the_code(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from reference_pages import cli_page, http_page, typescript_page

    http, command_line, typescript = http_page(), cli_page(), typescript_page()
    for link in re.findall(r"\]\(([\w./-]+\.md)", typescript):
        assert (DOCS / "reference" / link).exists() or link == "../../README.md", link
    assert re.search(r"^### (.*)$", http, re.MULTILINE)[1] == "POST /v1/rank"
    assert "[RankRequest](#rankrequest)" in http
    assert "### RankRequest\n" in http
    assert "personalizer" not in http
    assert re.search(r"^## (.*)$", command_line, re.MULTILINE)[1] == "fedres serve"
    assert {"## fedres log backup", "## fedres replay"} <= set(command_line.splitlines())
    for option in ("--allowed-origin", "--root-path", "--any-architecture", "--global-learner"):
        assert f"| `{option}` |" in command_line


def test_what_the_python_reference_names_has_a_docstring(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from reference_pages import python_page

    text = python_page()
    names = re.findall(r"^### ([\w.]+)\.(\w+)$", text, flags=re.MULTILINE)
    assert len(names) == text.count("\n### ") > 50
    for module, name in names:
        assert getattr(import_module(module), name).__doc__, name

"""The tutorial and the how-to guides are followed to the letter, in an empty folder; and no page is left out.

Files are written where a page says "Save this as", programs that serve are started and left running, and the other
commands and examples run one after the other. Blocks of ``console`` are not run: they need a network or a cluster.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
HERE = [*sorted((DOCS / "howto").glob("*.md")), *sorted((DOCS / "explanation").glob("*.md"))]
ELSEWHERE = {  # pages with code, and the tests that run it
    "service.md": "service/test_service_docs.py",
    "api.md": "service/test_service_docs.py",
    "lift.md": "service/test_service_docs.py",
    "operations.md": "service/test_service_docs.py",
    "devices.md": "service/test_service_docs.py",
    "client.md": "service/test_service_docs.py",
    "log.md": "service/test_log_docs.py",
    "postgresql.md": "service/test_postgres_docs.py",
    "hashing.md": "scoring/test_features.py",
}
NOT_RUN = {
    "azure-personalizer.md": "programs of Azure's SDKs; tests/service/personalizer uses the SDKs",
    "evaluation-intervals.md": "a benchmark of hours; tests/benchmarks runs it small",
    "results/README.md": "the papers' figures, for hours; tests/libsvm_tasks/test_reproduce.py makes them small",
}
CODE = ("sh", "python", "js", "javascript", "sql")
ENV = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


class Block(NamedTuple):
    file: str | None  # "Save this as `file`"
    language: str
    code: str


def blocks(page):
    """Return the blocks of a page that have a language."""
    found = []
    before, *rest = re.split(
        r"^```(\w*)\n(.*?)^```\n", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    for language, code, after in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        name = re.search(r"Save this as\s+`([\w.-]+)`", before.strip().rpartition("\n\n")[2])
        if language:
            found.append(Block(name and name[1], language, code))
        before = after
    return found


@contextmanager
def started(command, folder):
    """Start a program that serves, on a port that is free; return its address."""
    words = [*re.sub(r" --port \d+", "", command).split(), "--port", "0"]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": folder, "env": ENV}
    with subprocess.Popen([Path(sys.executable).with_name(words[0]), *words[1:]], **options) as process:
        try:
            said = iter(process.stdout.readline, "")
            address = next(found[1] for line in said if (found := re.search(r"(http://127\.0\.0\.1:\d+)", line)))
            rest = Thread(target=process.stdout.read)  # a pipe that nobody reads would stop it once it is full
            rest.start()
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)
            rest.join()


def follow(page, folder, stack, addresses):
    """Do what a page says; return what its commands and examples printed."""
    printed = []
    for block in blocks(page):
        code = block.code
        for port, address in addresses.items():
            code = code.replace(f"http://127.0.0.1:{port}", address)
        if block.file:
            (folder / block.file).write_text(code)
        elif code.startswith(("fedres serve", "uvicorn ")):
            port = re.search(r"--port (\d+)", code)
            addresses[port[1] if port else "8000"] = stack.enter_context(started(code, folder))
        elif block.language in ("sh", "python"):
            shell = ("sh", "-e") if block.language == "sh" else (sys.executable,)
            code = code.replace("curl -s", "curl -sS --fail-with-body") if block.language == "sh" else code
            done = subprocess.run(
                [*shell, "-c", code], capture_output=True, text=True, cwd=folder, env=ENV, check=False
            )
            assert done.returncode == 0, f"{page.name}: {block.code}\n{done.stdout}\n{done.stderr}"
            printed.append(done.stdout)
    return printed


@pytest.mark.slow
def test_the_tutorial_leads_to_a_page_that_learns(tmp_path):
    with ExitStack() as stack:
        first, _, visits, explained = follow(DOCS / "tutorial.md", tmp_path, stack, {})
    assert json.loads(first)["probability"] == pytest.approx(1 / 3)
    clicks = [int(number) for number in re.findall(r": (\d+) clicks", visits)]
    assert max(clicks[0], 75) < clicks[-1]
    ben, emil = (json.loads(text) for text in re.findall(r"\{.*?\](?:\}|,\"explanations\".*?\]\})(?=\{|$)", explained))
    assert [ben["ranking"][0]["id"], emil["ranking"][0]["id"]] == ["tea", "coffee"]


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guides")
    with started("fedres serve", folder) as url:
        yield folder, url


@pytest.mark.slow
@pytest.mark.parametrize("page", HERE, ids=lambda page: page.stem)
def test_a_guide_does_what_it_says(page, service):
    folder, url = service
    with ExitStack() as stack:
        follow(page, folder, stack, {"8000": url})


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed: the handler is not tested")
def test_the_handler_of_the_guide_to_nextjs_decides_and_rewards(service, tmp_path):
    _, url = service
    [handler] = [block for block in blocks(DOCS / "howto" / "nextjs.md") if block.language == "js"]
    (tmp_path / handler.file).write_text(handler.code)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "fedres").symlink_to(ROOT / "clients" / "typescript")
    script = """
import { GET, POST } from "./banner.js";
const shown = await (await GET(new Request("http://localhost/api/banner?user=anna&weather=cold"))).json();
const reply = await POST(new Request("http://localhost/api/banner", { method: "POST", body: JSON.stringify(shown) }));
console.log(JSON.stringify({ ...shown, status: reply.status }));
"""
    (tmp_path / "visit.js").write_text(script)
    env = {**ENV, "FEDRES_URL": url}
    done = subprocess.run(["node", "visit.js"], cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)
    assert (shown["status"], shown["banner"] in ("tea", "juice")) == (204, True)


def test_every_page_with_code_is_run_by_a_test_or_says_why_not():
    for page in DOCS.rglob("*.md"):
        name = str(page.relative_to(DOCS))
        if "_build" in name or page in HERE or name == "tutorial.md":
            continue
        if any(block.language in CODE for block in blocks(page)):
            assert (name in ELSEWHERE) != (name in NOT_RUN), f"{name}: name the test that runs its code"
            assert name in NOT_RUN or page.name in (ROOT / "tests" / ELSEWHERE[name]).read_text(encoding="utf-8")


def test_the_file_for_language_models_leads_to_pages_that_exist():
    made_from_code = {"reference/http.md", "reference/cli.md"}
    for link in re.findall(r"\]\(([\w/-]+)\.html\)", (DOCS / "llms.txt").read_text(encoding="utf-8")):
        assert f"{link}.md" in made_from_code or (DOCS / f"{link}.md").exists(), link


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", DOCS, tmp_path / "html"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "POST /v1/rank" in (tmp_path / "html" / "reference" / "http.html").read_text(encoding="utf-8")
    assert "--global-learner" in (tmp_path / "html" / "reference" / "cli.html").read_text(encoding="utf-8")

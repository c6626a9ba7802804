"""`fedres serve --demo`, the page, and the commands around them, as a newcomer meets them."""

import json
import re
import signal
import subprocess
import sys
from functools import partial

import httpx
import pytest
from forked import FEDRES
from serving import served
from typer.testing import CliRunner
from waiting import LIMIT, until

from service.cli import app
from service.demo import ARTICLES, BEST, TOPICS, UNIFORM, Demo, chance
from service.plugins.reports.page import ASSETS, PAGES, asset
from service.plugins.reports.page import page as served_page

HURRIED = """
from service import demo
from service.__main__ import main

demo.PER_SECOND = 200  # 40 elsewhere, to be watched
main()
"""


def rewards_after(n_decisions, lines):
    """Return the mean rewards of the policy and of uniform picks that the demo says after so many decisions."""
    for line in lines:
        assert "the demo has ended" not in line
        said = re.search(r"([\d,]+) decisions .*: ([\d.]+) +\(uniform ([\d.]+), best", line)
        if said and int(said[1].replace(",", "")) >= n_decisions:
            return float(said[2]), float(said[3])
    raise AssertionError("the service has ended")


def test_the_demo_learns_and_the_page_finds_all_that_it_draws(tmp_path):
    with (
        served([sys.executable, "-c", HURRIED, "serve", "--demo"], tmp_path) as (url, lines),
        httpx.Client(base_url=url, trust_env=False, timeout=LIMIT) as client,
    ):
        policy, uniform = rewards_after(560, lines)  # of the last 200, decided by what the others taught
        assert policy > uniform + 0.05  # about 0.68 and 0.38, each with a standard error of 0.04 at most
        page = client.get("/")
        assert (page.headers["content-type"].partition(";")[0], page.content) == ("text/html", served_page("/"))
        loops = client.get("/v1/status").json()["loops"]
        assert loops["demo-uniform"]["policy_reward"] < loops["demo-best"]["policy_reward"]
        assert client.get("/v1/loops/demo/report").json()["funnel"]["ranked"] >= 280
        events = client.get("/v1/loops/demo/events", params={"after": 0}).text.splitlines()
        assert {0.0, 1.0} <= {json.loads(line)["reward"] for line in events}


def test_the_printed_curl_line_works_and_a_second_service_on_the_store_is_refused_in_one_line(tmp_path):
    shell = partial(subprocess.Popen, text=True)
    with served([FEDRES, "serve"], tmp_path, popen=shell, end=signal.SIGINT) as (_, lines):
        line = next(line for line in lines if "curl" in line)
        done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["action"] in ("tea", "juice")
        again = fedres("serve", "--port", 0, "--store", f"sqlite:///{tmp_path}/fedres.db")
    assert again.exit_code == 2
    [line] = again.stderr.splitlines()
    assert "must have one holder" in line


def test_the_page_needs_nothing_from_elsewhere():
    own = rb"""(?:src|href)=["'](?!dashboard|demo|docs|#|data:,)|https?://(?!www\.w3\.org/2000/svg)|@import|url\("""
    for content in (*map(served_page, PAGES), *map(asset, ASSETS)):
        assert re.findall(own, content) == []


@pytest.mark.parametrize("topic", TOPICS)
def test_what_is_best_for_a_reader_depends_on_the_reader_and_the_time(topic):
    for when, length in (("morning", "short"), ("evening", "long")):
        best = max(ARTICLES, key=lambda article: chance(topic, when, article))
        assert best["id"] == f"{length}-{topic}"


def fedres(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "--store", "sqlite:///none/x.db"], "must be in a folder that exists, got 'sqlite:///none/x.db'"),
        (["serve", "--store", "mysql://x"], "must be sqlite:///PATH or postgresql://HOST/DATABASE, got 'mysql://x'"),
        (["serve", "--store", "postgresql://127.0.0.1:1/db", "--port", "0"], "Connection refused"),
        (["serve", "--store", "postgresql://host"], "store must name a database: postgresql://HOST/DATABASE"),
        (["serve", "--store", "postgresql://h/db?colour=red"], "store must be an address of PostgreSQL: invalid URI"),
        (["serve", "--folder", "elsewhere"], "folder must come with a store in PostgreSQL, got 'elsewhere'"),
        (["serve", "--port", "70000"], "port must be in [0, 65535], got 70000"),
        (["serve", "--rankers", "0"], "rankers must be in [1, 256], got 0"),
        (["serve", "--loops", "shop"], "loops must come with a store in PostgreSQL, got 'shop'"),
        (["serve", "--host", "0.0.0.0"], "host must be a loopback address"),
        (["serve", "--tls-key", "key.pem"], "tls-key must come with --tls-cert"),
        (["report", "default", "--store", "sqlite:///none.db"], "no store at none.db"),
        (["keys", "add", "king"], "role must be one of admin, device, rank, read, got 'king'"),
        (["keys", "revoke", "nobody"], "no key has the id 'nobody'"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    result = fedres(*words)
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert message in line


def test_keys_are_made_listed_and_revoked_while_the_service_runs(tmp_path):
    store = ["--store", f"sqlite:///{tmp_path}/fedres.db"]
    key = fedres("keys", "add", "admin", *store).stdout.strip()
    with served([FEDRES, "serve"], tmp_path, end=signal.SIGINT) as (url, _):
        assert status_of(url, key) == 200
        [row] = listed(tmp_path, store)
        assert (row["role"], row["loop"], row["revoked"]) == ("admin", None, None)
        assert fedres("keys", "revoke", row["id"], *store).exit_code == 0
        until(lambda: status_of(url, key) == 401, "the end of the key")
    assert listed(tmp_path, store)[0]["revoked"] is not None
    assert "--demo needs a store without keys" in fedres("serve", "--demo", *store).stderr


def status_of(url, key):
    return httpx.get(f"{url}/v1/status", headers={"Authorization": f"Bearer {key}"}, trust_env=False).status_code


def listed(folder, store):
    assert fedres("keys", "list", *store, "--json", folder / "keys.json").exit_code == 0
    return json.loads((folder / "keys.json").read_text())


def test_the_line_of_the_demo_compares_only_with_means_of_enough_visits():
    demo = Demo(None)
    demo.last.extend([1.0, 0.0])
    demo.references = {UNIFORM: [1.0] * 5, BEST: [1.0] * 5}
    assert demo.line(1).endswith("reward of the last 2: 0.50")
    demo.references = {UNIFORM: [0.0, 1.0] * 10, BEST: [1.0] * 20}
    assert demo.line(9).endswith("(uniform 0.50, best possible 1.00)")

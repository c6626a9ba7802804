"""The examples run as they are against a real service."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from forked import FEDRES, run
from needs import CHROMIUM, needs_chromium, needs_node
from playwright.sync_api import expect, sync_playwright
from serving import served
from waiting import LIMIT

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def url(tmp_path):
    with served([FEDRES, "serve"], tmp_path) as (address, _):
        yield address


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (
            ["sh", EXAMPLES / "walkthrough.sh"],
            ['"explanations"', '"results"', '"side"', '"epsilon":0.2', '"constant:tea"'],
        ),
        (
            [sys.executable, EXAMPLES / "walkthrough.py"],
            ["shared by all", "in a batch", "on a page", "epsilon 0.2", "estimated"],
        ),
    ],
)
def test_a_walk_through_runs_and_exports_what_evaluate_reads(url, tmp_path, command, shown):
    done = subprocess.run([*command, url], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(text in done.stdout for text in shown)
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert sum(event["status"] == "rewarded" for event in events) > 20
    valued = run([FEDRES, "evaluate", "events.jsonl", "--policy", "constant:tea"], cwd=tmp_path, check=True)
    assert "constant:tea" in valued.stdout


def test_a_bandit_in_one_process_learns_what_visitors_like():
    done = run([sys.executable, EXAMPLES / "bandit.py"], check=True)
    first, last = map(float, re.findall(r"\d\.\d\d", done.stdout))
    assert first < last > 0.8, done.stdout


def test_two_devices_with_one_shared_model_are_each_better_than_alone(url):
    command = [sys.executable, EXAMPLES / "device.py", url]
    done = run(command)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(Ann|Ben) +(\S+) +(\S+)$", done.stdout, re.MULTILINE)
    assert len(rows) == 2
    assert all(float(together) > float(alone) for _, alone, together in rows), done.stdout


def test_devices_with_vowpal_wabbit_earn_more_with_a_shared_model_when_they_trade_hours(url):
    pytest.importorskip("vowpalwabbit")
    done = run([sys.executable, EXAMPLES / "federated_loop.py", url])
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(\S.*\S) +(0\.\d\d) +(0\.\d\d)$", done.stdout, re.MULTILINE)
    after = {title: float(reward) for title, _, reward in rows}
    assert {"FedRes", "FedRes with FedOMD", "FedRes with OFedIQ", "shared model only"} < set(after)
    shared = (after["FedRes"] + after["FedRes, aligned timing"]) / 2
    assert shared > after["each device alone"], done.stdout
    assert int(re.search(r"at (\d) of 6 hours", done.stdout)[1]) >= 4, done.stdout


def test_prompts_routed_to_language_models_earn_more_than_any_of_these_alone(url):
    done = run([sys.executable, EXAMPLES / "model_routing.py", url])
    assert done.returncode == 0, done.stdout + done.stderr
    rewards = {name: float(reward) for name, reward in re.findall(r"^(\w+) +(-?\d\.\d+) ", done.stdout, re.MULTILINE)}
    assert set(rewards) == {"routed", "small", "large", "coder"}
    assert rewards.pop("routed") > max(rewards.values()) + 0.03, done.stdout


@needs_node
@needs_chromium
def test_a_visitor_of_the_film_site_watches_a_film_and_is_shown_others(url):
    command = ["node", EXAMPLES / "film_site" / "server.mjs", url, "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PORT": "0"}) as site:
        try:
            address = re.search(r"http://\S+", site.stdout.readline())[0]
            assert site.stdout.readline() == "3 visits\n"
            with sync_playwright() as driver:
                browser = driver.chromium.launch(
                    executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
                )
                page, wrong = browser.new_page(), []
                page.on("pageerror", lambda error: wrong.append(str(error)))
                page.goto(address)
                expect(page.locator("li")).to_have_count(10)
                first = page.locator("h2").all_inner_texts()
                page.get_by_role("button", name="Watch").first.click()
                page.get_by_role("button", name="Watched").wait_for()
                page.get_by_label("Genre").select_option("horror")
                page.get_by_role("button", name="Show films").click()
                expect(page.locator("li", has_text="horror")).to_have_count(10)
                assert not {*first} & {*page.locator("h2").all_inner_texts()}  # none twice within an hour
                browser.close()
            assert wrong == []
        finally:
            site.send_signal(signal.SIGTERM)
            assert site.wait(LIMIT) == 0
    report = httpx.get(f"{url}/v1/loops/films/report").json()
    assert report["pages"]["items"] == 225
    assert (report["funnel"]["ranked"], report["funnel"]["rewarded"]) == (50, 31)

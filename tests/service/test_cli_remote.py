"""``fedres status``, ``fedres loops`` and ``fedres users`` against a service, and what they say where there is none."""

import json
import re

import pytest
from live import run_service
from serving import serving
from typer.testing import CliRunner

from service.cli import app
from service.cli.base import PANELS
from service.log.protocol import StoreUnavailable


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("remote")) as running:
        yield running


def fedres(*words, status=0):
    done = CliRunner().invoke(app, words)
    assert done.exit_code == status, done.output
    return done.output


def test_loops_are_created_changed_listed_and_deleted(service):
    at = ("--url", service.url)
    fedres("loops", "create", "shop", "--set", "policy=squarecb", "--set", "wait_time=5", *at)
    assert fedres("loops", "list", *at).split() == ["default", "shop"]
    changed = json.loads(fedres("loops", "settings", "shop", "--set", "epsilon=0.2", *at))
    assert (changed["policy"], changed["wait_time"], changed["epsilon"]) == ("squarecb", 5.0, 0.2)
    assert json.loads(fedres("loops", "settings", "shop", *at)) == changed
    held = ("loops", "settings", "shop", "--set", 'control={"hold": "too few sales"}')
    assert json.loads(fedres(*held, *at))["control"]["hold"] == "too few sales"
    ended = ("loops", "settings", "shop", "--set", 'control={"hold": null}')
    version = re.search(r'If-Match: "(\d+)"', fedres(*ended, *at, status=2))[1]
    assert "read them again" in fedres(*ended, "--if-version", "1", *at, status=2)
    assert json.loads(fedres(*ended, "--if-version", version, *at))["control"]["hold"] is None
    fedres("loops", "settings", "shop", "--set", "control.share=0.2", "--set", "control.experiment=autumn", *at)
    assert "both" in fedres(
        "loops", "settings", "shop", "--set", "control=1", "--set", "control.share=0.2", *at, status=2
    )
    assert "held loop shop" in fedres("loops", "hold", "shop", "wrong prices", *at)
    control = json.loads(fedres("loops", "settings", "shop", *at))["control"]
    assert (control["hold"], control["share"], control["experiment"]) == ("wrong prices", 0.2, "autumn")
    assert "read them again" in fedres("loops", "resume", "shop", "--if-version", "1", *at, status=2)
    assert "resumed loop shop" in fedres("loops", "resume", "shop", *at)
    assert json.loads(fedres("loops", "settings", "shop", *at))["control"] == {**control, "hold": None}
    fedres("loops", "delete", "shop", "--yes", *at)
    assert fedres("loops", "list", *at).split() == ["default"]
    assert "loop 'shop' does not exist" in fedres("loops", "settings", "shop", *at, status=2)
    assert "set must be NAME=VALUE" in fedres("loops", "create", "x", "--set", "epsilon", *at, status=2)


def test_a_user_is_shown_exported_and_erased(service, tmp_path):
    at = ("--url", service.url)
    for event in ("one", "two"):
        request = {"event_id": event, "user": "anna/1", "actions": [{"id": "tea"}]}
        assert service.ask("/v1/rank", "POST", json=request).status_code == 200
    assert service.ask("/v1/events/one/reward", "POST", json={"value": 0.5}).status_code == 204
    assert re.search(r"default +│ 2 +│ 1 +│ 0\.5000", fedres("users", "show", "anna/1", *at))
    file = tmp_path / "anna.jsonl"
    assert "wrote 2 events" in fedres("users", "export", "anna/1", str(file), *at)
    assert [json.loads(line)["event_id"] for line in file.read_text().splitlines()] == ["one", "two"]
    assert "erased user anna/1" in fedres("users", "erase", "anna/1", "--yes", *at)
    assert "nothing is stored" in fedres("users", "show", "anna/1", *at)


def test_status_shows_that_it_is_ready_and_each_loop(service):
    text = fedres("status", "--url", service.url)
    assert ": ready" in text
    assert "default" in text


def test_status_is_shown_while_the_log_cannot_be_read(tmp_path):
    async def failing(loop, function):
        raise StoreUnavailable("io", "the disk failed")

    with run_service(tmp_path) as live:
        assert re.search(r"log [\d.]+ MB in 1 records, [\d.]+ GB free", fedres("status", "--url", live.url))
        live.engine.context.look_up = failing
        text = fedres("status", "--url", live.url)
    assert re.search(r"log cannot be read at the moment, [\d.]+ GB free", text)
    assert "default" in text


def test_a_loop_that_is_deleted_meanwhile_is_missing_in_the_status(tmp_path):
    with run_service(tmp_path) as live:
        models = live.engine.context.models
        names = models.names
        models.names = lambda: [*names(), "deleted"]
        with live.client() as http:
            assert [*http.get("/v1/status").json()["loops"]] == ["default"]
            assert http.get("/metrics").status_code == 200


def test_without_a_service_there_is_one_line_that_says_what_to_do():
    text = fedres("status", "--url", "http://127.0.0.1:1", status=2)
    assert text.startswith("fedres: no service at http://127.0.0.1:1")
    assert "fedres serve" in text


def test_help_lists_every_command_in_a_panel_and_the_service_first():
    text = fedres("--help")
    places = [text.index(f"─ {panel} ─") for panel in PANELS]
    assert places == sorted(places)
    assert "Plug-ins" not in text
    assert text.index("│ serve") < text.index("│ bandit")

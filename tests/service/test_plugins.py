"""Plug-ins add routes and commands; another distribution adds one by an entry point."""

import importlib
import sys

import httpx
import pytest
from live import run_service
from typer.testing import CliRunner

from service import cli, plugins

CODE = """
import msgspec

from service.http.replies import json_reply
from service.http.routes import READ, Routes
from service.plugins import Plugin


def routes(core):
    declared = Routes()

    @declared.of_loop("GET", "/greeting", READ, "Greet the users of a loop.", hot=True)
    async def greet(call):
        greeting = {"loop": call.loop, "ranks": core.context.loop(call.loop).view.statistics.ranks}
        return json_reply(msgspec.json.encode(greeting))

    return declared.all


def commands(app):
    @app.command()
    def greet(name: str) -> None:
        print(f"hello {name}")


plugin = Plugin(name="greeter", routes=routes, commands=commands)
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution with a plug-in, as pip would."""
    folder = tmp_path / "site"
    metadata = folder / "greeter-1.0.dist-info"
    metadata.mkdir(parents=True)
    (folder / "greeter_plugin.py").write_text(CODE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: greeter\nVersion: 1.0\n")
    entry = metadata / "entry_points.txt"
    entry.write_text("[fedres.plugins]\ngreeter = greeter_plugin:plugin\n")
    monkeypatch.syspath_prepend(folder)
    plugins.plugins.cache_clear()
    yield entry
    plugins.plugins.cache_clear()
    sys.modules.pop("greeter_plugin", None)


def test_a_plugin_of_another_distribution_adds_a_route_and_a_command(installed, tmp_path):
    assert [plugin.name for plugin in plugins.plugins()] == [
        *("recommend", "personalizer", "reports", "devices", "tools"),
        *("greeter", "research"),
    ]
    with run_service(tmp_path) as live, live.client() as client:
        client.post("/v1/rank", json={"actions": [{"id": "a"}]}).raise_for_status()
        live.settle()
        assert client.get("/v1/greeting").json() == {"loop": "default", "ranks": 1}
        assert "/v1/loops/{loop}/greeting" in client.get("/openapi.json").json()["paths"]
    app = importlib.reload(cli.base).app
    for plugin in plugins.plugins():
        plugin.commands(app)
    assert "hello world" in CliRunner().invoke(app, ["greet", "world"]).output
    importlib.reload(cli.base)


def test_an_entry_point_that_is_no_plugin_is_named(installed):
    installed.write_text("[fedres.plugins]\ngreeter = greeter_plugin:routes\n")
    with pytest.raises(TypeError, match=r"entry point 'greeter = greeter_plugin:routes' .* must name a Plugin"):
        plugins.plugins()


def test_a_core_without_plugins_serves_decisions(tmp_path, monkeypatch):
    monkeypatch.setattr("service.app.plugins", lambda: ())
    with run_service(tmp_path) as live, live.client() as client:
        event = client.post("/v1/rank", json={"actions": [{"id": "a"}, {"id": "b"}]}).json()["event_id"]
        assert client.post(f"/v1/events/{event}/reward", json={"value": 1}).status_code == 204
        assert client.get("/v1/status").status_code == httpx.codes.OK
        assert client.get("/v1/report").status_code == httpx.codes.NOT_FOUND

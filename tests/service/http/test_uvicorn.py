"""The members of uvicorn that service/http uses although they are private: a new version may change any of them."""

import ast
import inspect
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from uvicorn import Server
from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from service.http import protocol, server

ROOT = Path(__file__).parents[3]
PROTOCOL = {  # of a connection
    "_unset_keepalive_if_required", "connection_lost", "connection_made", "connections", "cycle", "data_received",
    "flow", "headers", "loop", "on_headers_complete", "on_message_complete", "on_response_complete", "parser",
    "pipeline", "scope", "transport", "url",
}  # fmt: skip
CYCLE = {  # of a request and its response
    "default_headers", "disconnected", "flow", "keep_alive", "message_event", "on_response", "response_complete",
    "response_started", "scope", "transport",
}  # fmt: skip
OWN = {"self", "super()"}
FLOW = {"pause_reading", "write_paused"}
SERVER = {"capture_signals", "config", "on_tick", "server_state", "servers", "should_exit", "started", "startup"}


def members(kind):
    """Return the names that a class, or a method of it or of a base, defines."""
    names = set()
    for each in kind.__mro__[:-1]:
        names |= set(vars(each))
        for node in ast.walk(ast.parse(inspect.getsource(inspect.getmodule(each)))):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
    return names


def used(module, owners):
    """Return the attributes that a module reads or writes of variables with these names."""
    found = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in owners:
            found.add(node.attr)
    return found


@pytest.mark.parametrize(
    ("kind", "names"),
    [(HttpToolsProtocol, PROTOCOL), (RequestResponseCycle, CYCLE), (FlowControl, FLOW), (Server, SERVER)],
)
def test_the_installed_version_has_the_members(kind, names):
    assert names <= members(kind)
    assert "STATUS_LINE" in vars(httptools_impl)
    assert "connections" in vars(ServerState())


def test_the_list_is_complete():
    assert (used(protocol, OWN) & members(HttpToolsProtocol)) - {"__init__"} == PROTOCOL
    assert used(protocol, {"cycle"}) == CYCLE
    assert used(protocol, {"cycle.flow", "self.flow"}) == FLOW
    overridden = vars(server.HttpServer).keys() & members(Server)
    of_server = (used(server, OWN) | overridden) & members(Server)
    assert {name for name in of_server if not name.startswith("__")} == SERVER


def test_only_tested_versions_are_installed_with_the_service():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    [requirement] = [name for name in extras["serve"] if name.startswith("uvicorn")]
    least, below = re.fullmatch(r"uvicorn>=([\d.]+),<([\d.]+)", requirement).groups()

    def number(text):
        return [int(part) for part in text.split(".")]

    assert number(least) <= number(version("uvicorn")) < number(below)

"""The ``fedres`` command. Commands call other packages and print tables; they have no logic of their own."""

from service.cli import evaluate, remote, serve  # each adds its commands
from service.cli.base import app
from service.plugins import plugins

for _plugin in plugins():
    _plugin.commands(app)

__all__ = ["app", "evaluate", "remote", "serve"]

"""The ``fedres`` command. Every command is a call and a table; what it does is in the packages it imports."""

from service.cli import evaluate, remote, serve  # each adds its commands
from service.cli.base import app
from service.plugins import plugins

for _plugin in plugins():
    _plugin.commands(app)

__all__ = ["app", "evaluate", "remote", "serve"]

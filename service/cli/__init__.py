"""The ``fedres`` command. Every command is a call and a table; what it does is in the packages it imports."""

from service.cli import bandit, bench, datasets, fair, log, replay, report, reproduce, serve  # each adds its commands
from service.cli.base import app

__all__ = ["app", "bandit", "bench", "datasets", "fair", "log", "replay", "report", "reproduce", "serve"]

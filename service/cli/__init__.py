"""The ``fedres`` command. Every command is a call and a table; what it does is in the packages it imports."""

from service.cli import (  # each adds its commands
    bandit,
    bench,
    datasets,
    evaluate,
    fair,
    log,
    replay,
    report,
    reproduce,
    serve,
)
from service.cli.base import app

__all__ = ["app", "bandit", "bench", "datasets", "evaluate", "fair", "log", "replay", "report", "reproduce", "serve"]

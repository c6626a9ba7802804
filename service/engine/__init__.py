"""The engine: decides, logs and learns. ``engine.py`` is what the HTTP code talks to, ``learner.py`` the pure part."""

from service.engine.deciding import Action, RankRequest, RankResult
from service.engine.engine import Engine

__all__ = ["Action", "Engine", "RankRequest", "RankResult"]

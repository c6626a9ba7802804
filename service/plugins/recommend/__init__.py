"""Recommendations: the best items of a loop's catalogue for a user, drawn with known probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.plugins import Core, Plugin

if TYPE_CHECKING:
    import typer

    from service.http.routes import Route


def _routes(core: Core) -> list[Route]:
    from service.plugins.recommend.feedback import Feedback
    from service.plugins.recommend.item_lists import Similarity
    from service.plugins.recommend.recommender import Recommender
    from service.plugins.recommend.routes import recommend_routes

    recommender = Recommender(core.context, core.ranker)
    similarity, feedback = Similarity(core.context, recommender), Feedback(core.context)
    return recommend_routes(recommender, similarity, feedback, core.limits).all


def _commands(app: typer.Typer) -> None:
    from service.plugins.recommend.commands import catalogue, feedback

    app.add_typer(catalogue, name="catalogue")
    app.add_typer(feedback, name="feedback")


plugin = Plugin(name="recommend", routes=_routes, commands=_commands)

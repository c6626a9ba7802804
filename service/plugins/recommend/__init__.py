"""Recommendations: the best items of a loop's catalogue for a user, drawn with known probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.plugins import Core, Plugin

if TYPE_CHECKING:
    from service.http.routes import Route


def _routes(core: Core) -> list[Route]:
    from service.plugins.recommend.popular import Popularity
    from service.plugins.recommend.recommender import Recommender
    from service.plugins.recommend.routes import recommend_routes

    recommender = Recommender(core.context, core.ranker)
    return recommend_routes(recommender, Popularity(core.context, recommender), core.limits).all


plugin = Plugin(name="recommend", routes=_routes)

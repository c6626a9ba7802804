"""What callers ask for: recommended items."""

from __future__ import annotations

from service.errors import ApiError
from service.http.endpoints import encode
from service.http.hot import at_most
from service.http.limits import Limits
from service.http.replies import Reply, json_reply
from service.http.routes import RANK, Call, Routes
from service.plugins.recommend.recommender import Recommender
from service.plugins.recommend.requests import RecommendRequest, RecommendResult


def recommend_routes(recommender: Recommender, limits: Limits) -> Routes:
    """Return the routes of recommendations."""
    routes = Routes()

    @routes.of_loop(
        "POST",
        "/recommend",
        RANK,
        "Recommend items of the catalogue.",
        body=RecommendRequest,
        reply=RecommendResult,
        hot=True,
        decoded=True,
        limit="rank_bytes",
    )
    async def recommend(call: Call) -> Reply:
        request: RecommendRequest = call.body
        if request.explain and not call.may_explain:
            message = "explain must be false with this key, which was made with --no-explain"
            raise ApiError(403, "forbidden", message, "explain")
        at_most("exclude", "too_many_excluded", len(request.exclude), limits.excluded)
        return json_reply(encode(await recommender.recommend(call.loop, request)))

    return routes

"""Routes of recommendations, of popular and similar items, and of feedback."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request, Response

from service.http.hot import at_most, check_may_explain
from service.http.replies import Reply, json_reply, json_response
from service.http.request import Limits, loop_of
from service.http.routes import PARAMETERS, RANK, Call, Routes
from service.log.records import encode
from service.plugins.recommend.earnings import WINDOW
from service.plugins.recommend.feedback import Feedback, FeedbackRequest, FeedbackStored
from service.plugins.recommend.item_lists import LONGEST_WINDOW, Popular, Similar, Similarity, popular
from service.plugins.recommend.recommender import MOST_PLACES, Recommender, RecommendRequest, RecommendResult

Loop = Annotated[str, Depends(loop_of)]


def recommend_routes(recommender: Recommender, similarity: Similarity, feedback: Feedback, limits: Limits) -> Routes:
    """Return the routes of recommendations."""
    routes = Routes()

    @routes.hot(
        "POST",
        "/recommend",
        RANK,
        "Recommend items of the catalogue.",
        body=RecommendRequest,
        reply=RecommendResult,
        limit="rank_bytes",
    )
    async def recommend(call: Call) -> Reply:
        """Draw a page of items from the whole catalogue, best first.

        Each place is an event of its own, with an id for its reward.
        """
        request: RecommendRequest = call.body
        if request.explain:
            check_may_explain(call)
        at_most("exclude", "too_many_excluded", len(request.exclude), limits.excluded)
        return json_reply(encode(await recommender.recommend(call.loop, request)))

    @routes.hot(
        "POST",
        "/feedback",
        RANK,
        "Send rewards of actions that were not chosen here.",
        body=FeedbackRequest,
        reply=FeedbackStored,
    )
    async def send_feedback(call: Call) -> Reply:
        """Store rewards of actions that something else chose.

        Models learn them, but estimates of the policy exclude them.
        """
        sent: FeedbackRequest = call.body
        at_most("events", "too_many_events", len(sent.events), limits.feedback)
        return json_reply(encode(await feedback.store(call.loop, sent.events)))

    _list_routes(routes, recommender, similarity)
    return routes


def _list_routes(routes: Routes, recommender: Recommender, similarity: Similarity) -> None:
    @routes.of_loop("GET", "/popular", RANK, "List the items that earned most.", reply=Popular, query=("n", "seconds"))
    async def get_popular(
        loop: Loop,
        n: Annotated[int, Query(ge=1, le=MOST_PLACES)] = 10,
        seconds: Annotated[float, Query(gt=0, le=LONGEST_WINDOW)] = WINDOW,
    ) -> Response:
        """List the items of the catalogue with the highest mean reward in a window of time, for all users
        alike.
        """
        return json_response(await popular(recommender, loop, n, seconds))

    @routes.of_loop(
        "GET", "/similar/{item}", RANK, "List the items that are most like another one.", reply=Similar, query=("n",)
    )
    async def get_similar(
        loop: Loop, request: Request, n: Annotated[int, Query(ge=1, le=MOST_PLACES)] = 10
    ) -> Response:
        """List items of the catalogue by their similarity to one of them. Nothing is stored."""
        return json_response(await similarity.similar(loop, str(request.scope[PARAMETERS]["item"]), n))

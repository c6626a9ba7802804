"""Azure's defaults learn here: a contextual problem of four actions, played as an application would."""

import asyncio
import random

import msgspec
from machine import running

from service.http.routes import Call
from service.plugins.personalizer.decisions import ApplicationCalls
from service.plugins.personalizer.messages import PersonalizerRankRequest, PersonalizerReward
from service.rank.ranker import Ranker

TASTES = ("news", "sport", "arts", "food")
TIMES = ("morning", "noon", "night")
ACTIONS = [{"id": taste, "features": [{"topic": {"kind": taste, "length": k}}]} for k, taste in enumerate(TASTES)]


def best_action(taste, time):
    """Return the best action: it depends on both features of the context."""
    return TASTES[(TASTES.index(taste) + TIMES.index(time)) % 4]


def top(answer):
    return max(answer.ranking, key=lambda one: one.probability).id


async def share_of_right_picks(engine, seed, rounds=2_000):
    """Return how often the most probable action is the best after some rounds."""
    decisions = ApplicationCalls(engine.context, Ranker(engine.context))
    draw, right, n_tested = random.Random(seed), 0, 200
    for t in range(rounds + n_tested):
        taste, time = draw.choice(TASTES), draw.choice(TIMES)
        context = [{"user": {"taste": taste}}, {"when": {"time": time, "pair": f"{taste} {time}"}}]
        request = msgspec.convert(
            {"actions": ACTIONS, "contextFeatures": context, "eventId": f"{seed} {t}"}, PersonalizerRankRequest
        )
        answer = await decisions.rank(Call("default", {}, request, None))
        if t >= rounds:
            right += top(answer) == best_action(taste, time)
        reward = float(draw.random() < (0.8 if answer.reward_action_id == best_action(taste, time) else 0.2))
        await decisions.reward(Call("default", {"event_id": f"{seed} {t}"}, PersonalizerReward(reward), None))
        if t % 20 == 0:
            await engine.settle()
    return right / n_tested


def test_top_picks_are_right_after_2000_rounds(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            assert await share_of_right_picks(engine, seed=7) > 0.95

    asyncio.run(story())

"""A change of reward settings or exploration trains the model again on the recent log."""

import asyncio

import msgspec
import pytest
from machine import Clock, running

from service.admin.admin import Admin
from service.http.routes import Call
from service.plugins.personalizer.configuration import Configurations
from service.plugins.personalizer.decisions import ApplicationCalls
from service.plugins.personalizer.messages import PersonalizerRankRequest, PersonalizerReward
from service.plugins.personalizer.model_and_logs import ModelAndLogs
from service.plugins.personalizer.retraining import Retrainer
from service.rank.ranker import Ranker
from service.rank.requests import RankRequest

ACTIONS = [{"id": name, "features": [{"topic": name}]} for name in ("news", "sport")]
MINUTES, DAYS = 60, 86_400


class App:
    """An application and the parts it talks to."""

    def __init__(self, engine, clock):
        self.engine, self.clock, admin = engine, clock, Admin(engine.context)
        self.retrainer = Retrainer(engine.context, admin)
        self.configurations = Configurations(admin, self.retrainer)
        self.decisions = ApplicationCalls(engine.context, Ranker(engine.context))
        self.logs = ModelAndLogs(engine.context, admin, self.configurations)
        self.n = 0

    async def show(self, reward=None):
        """Show an action, and say what came of it."""
        self.n += 1
        request = msgspec.convert({"actions": ACTIONS, "eventId": str(self.n)}, PersonalizerRankRequest)
        await self.decisions.rank(Call("default", {}, request, None))
        if reward is not None:
            await self.decisions.reward(Call("default", {"event_id": str(self.n)}, PersonalizerReward(reward), None))

    async def wait(self, seconds):
        self.clock.pass_seconds(seconds)
        await self.engine.settle()

    async def change(self, **changes):
        """Change the configuration; return whether the model was trained again."""
        before = self.engine.view().version
        configuration = msgspec.structs.replace(await self.configurations.configuration("default"), **changes)
        await self.configurations.put_configuration("default", configuration)
        await asyncio.gather(*self.retrainer.tasks.values())
        self.retrainer.tasks.clear()
        await self.engine.settle()
        return self.engine.view().version > before

    async def score(self):
        """Return what the model expects of an action on average."""
        body = {"actions": [{"id": name, "features": {"topic": name}} for name in ("news", "sport")]}
        result = await self.engine.rank("default", msgspec.json.decode(msgspec.json.encode(body), type=RankRequest))
        return sum(one.score for one in result.ranking) / 2


def played(story, tmp_path):
    async def play():
        clock = Clock()
        async with running(tmp_path, clock=clock) as engine:
            await story(App(engine, clock))

    asyncio.run(play())


def test_the_default_reward_counts_for_events_of_the_last_days(tmp_path):
    async def story(app):
        for _ in range(60):
            await app.show()
        await app.wait(11 * MINUTES)
        assert await app.score() == pytest.approx(0, abs=0.05)
        assert await app.change(default_reward=1.0)
        assert await app.score() > 0.5
        assert not await app.change(model_export_frequency="PT1M")
        assert app.engine.digest() == app.engine.rebuilt()

    played(story, tmp_path)


def test_events_that_are_too_old_or_deleted_do_not_count(tmp_path):
    async def story(app):
        for _ in range(60):
            await app.show(1.0)
        await app.wait(11 * MINUTES)
        assert await app.score() > 0.5
        await app.wait(3 * DAYS)
        await app.show(0.0)
        await app.wait(11 * MINUTES)
        assert await app.change(exploration_percentage=0.5)
        assert await app.score() < 0.2
        for _ in range(60):
            await app.show(1.0)
        await app.wait(11 * MINUTES)
        await app.logs.delete_logs("default")
        for _ in range(20):
            app.engine.learner.step()
        assert not [entry for entry in app.engine.logged() if entry.kind == "rank"]
        assert await app.change(reward_aggregation="sum")
        assert await app.score() < 0.2

    played(story, tmp_path)


def test_no_days_keep_the_model(tmp_path):
    async def story(app):
        await app.show(1.0)
        await app.wait(11 * MINUTES)
        assert not await app.change(model_retrain_days=0)
        assert not await app.change(default_reward=1.0)

    played(story, tmp_path)

"""After an erasure no file has anything of the person, whatever was late, early, unmatched or in a deleted loop."""

import asyncio
import contextlib
import random
import struct
from pathlib import Path

import pytest
from machine import Clock, Engine
from playing import raw, rebuilt, request

from service.errors import ApiError
from service.learn import erasures, loop_state
from service.log import sqlite
from service.log.records import EraseBody, Record, encode
from service.plugins.recommend.feedback import Feedback, FeedbackEvent
from service.plugins.recommend.recommender import Recommender, RecommendRequest
from service.rank.requests import Action
from service.rank.slots import Slot, SlotsRequest

LOOPS = {
    "default": {},
    "summed": {"aggregation": "sum", "control": {"share": 0.5}},
    "named": {"outcomes": {"click": 60, "buy": 300}, "formula": "click + 2 * buy", "reward_range": [0, 3]},
    "silent": {"default_reward": None, "wait_from": "rank"},
}
WAIT = 300


class History:
    """What a person and others do, at random, with everything that can be recognized in a file."""

    def __init__(self, folder, seed):
        self.rng = random.Random(f"history {seed}")
        self.folder, self.clock = folder, Clock()
        self.values, self.n, self.events, self.live = [], 0, [], []
        self.engine = Engine(folder, clock=self.clock, wait_time=WAIT)

    async def begin(self):
        for name in LOOPS:
            await self._create(name)
        self.live = [*LOOPS]

    async def _create(self, name):
        if name != "default":
            await self.engine.create_loop(name, {"wait_time": WAIT, **LOOPS[name]})
        await self.engine.put_actions(name, [Action(f"item {k}", raw({"topic": k % 3})) for k in range(5)])

    async def play(self, n_steps):
        moves = [self.rank] * 5 + [self.reward] * 6 + [self.feedback, self.defer, self.early] + [self.pass_time] * 2
        moves += [self.others] * 2 + [self.restart, self.delete, self.create_again, self.prune]
        moves += [self.slots] * 2 + [self.page] * 2
        for _ in range(n_steps):
            with contextlib.suppress(ApiError):  # an id that was pruned may come with another request
                await self.rng.choice(moves)()

    def _event(self, loop):
        self.n += 1
        self.events.append((loop, f"somebody-event-{self.n}"))
        return self.events[-1]

    def _page(self):
        """Return the id of a page, which is no event itself: nobody decides under it."""
        self.n += 1
        return f"somebody-page-{self.n}"

    def _request(self, event, **more):
        return request("somebody-", {"of": f"somebody's context {self.n}"}, event_id=event, **more)

    async def rank(self):
        loop, event = self._event(self.rng.choice(self.live))
        await self.engine.rank(loop, self._request(event))

    async def slots(self):
        """Fill the slots of a page, perhaps a second time; each is an event of its own."""
        loop = self.rng.choice(self.live)
        event = self._page()
        context = raw({"of": f"somebody's context {self.n}"})
        slots = [Slot(id=f"slot {k}", features=raw({"row": k})) for k in range(2)]
        sent = SlotsRequest(
            actions=request(n_actions=4).actions, slots=slots, user="somebody-", context=context, event_id=event
        )
        for _ in range(self.rng.randint(1, 2)):
            result = await self.engine.rank_slots(loop, sent)
        self.events += [(loop, filled.event_id) for filled in result.slots]

    async def page(self):
        """Recommend items of the catalogue, perhaps a second time; each place is an event of its own."""
        loop = self.rng.choice(self.live)
        event = self._page()
        recommender = Recommender(self.engine.context, self.engine.parts[0])
        context = raw({"of": f"somebody's context {self.n}"})
        sent = RecommendRequest(n=2, user="somebody-", context=context, event_id=event, exclude_seen=60)
        for _ in range(self.rng.randint(1, 2)):
            result = await recommender.recommend(loop, sent)
        self.events += [(loop, item.event_id) for item in result.items]

    async def defer(self):
        loop, event = self._event(self.rng.choice(self.live))
        await self.engine.rank(loop, self._request(event, defer=True))
        if self.rng.random() < 0.5:
            await self.engine.activate(loop, event)

    async def early(self):
        loop, event = self._event(self.rng.choice(self.live))
        await self._reward(loop, event)
        await self.engine.rank(loop, self._request(event))

    async def reward(self):
        """Reward any event so far: in time, late, or long unknown to the learner."""
        known = [each for each in self.events if each[0] in self.live]
        if known:
            await self._reward(*self.rng.choice(known))

    async def _reward(self, loop, event):
        value = self.rng.random()
        self.values.append(value)
        key = f"somebody-reward-{self.rng.randrange(10**9)}"
        if loop == "named":
            outcomes = {self.rng.choice(["click", "buy"]): value}
            await self.engine.reward(loop, event, None, key, outcomes)
        else:
            await self.engine.reward(loop, event, value, key)

    async def feedback(self):
        loop, event = self._event(self.rng.choice([name for name in self.live if name != "named"]))
        action = Action("an action", raw({"of": "somebody's context"}))
        given = FeedbackEvent(action=action, reward=0.5, user="somebody-", event_id=event, context=raw({"x": 1}))
        await Feedback(self.engine.context).store(loop, [given])

    async def others(self):
        loop = self.rng.choice(self.live)
        for k in range(self.rng.randint(1, 8)):
            self.n += 1
            await self.engine.rank(loop, request(f"user-{k}", {"hour": k}, event_id=f"other-{self.n}"))
            if self.rng.random() < 0.6 and loop != "named":
                await self.engine.reward(loop, f"other-{self.n}", 1.0)

    async def pass_time(self):
        self.clock.pass_seconds(self.rng.choice([1, 30, WAIT, 2 * WAIT]))
        await self.engine.settle()

    async def restart(self):
        if self.rng.random() < 0.5:
            await self.engine.close()
        else:
            if self.rng.random() < 0.5:
                self.engine.learner.saver.flush(self.engine.learner.loops)
            self.engine.kill()
        self.engine = Engine(self.folder, clock=self.clock)

    async def delete(self):
        if len(self.live) > 2 and self.rng.random() < 0.3:
            name = self.rng.choice(self.live[1:])
            await self.engine.delete_loop(name)
            self.live.remove(name)

    async def create_again(self):
        """Create a loop with the name of a deleted one, whose records are still in the log."""
        deleted = [name for name in LOOPS if name not in self.live]
        if deleted:
            name = self.rng.choice(deleted)
            await self._create(name)
            self.live.append(name)

    async def prune(self):
        before = self.clock() - 4 * WAIT * 1_000_000
        self.engine.log.append([[Record("default", "erase", body=encode(EraseBody(f"old {self.n}", before)))]])
        for _ in range(20):
            self.engine.learner.step()
        self.events = [each for each in self.events if each[0] != "default"]  # later rewards are of nobody

    def found(self):
        """Return the files that have anything of the person."""
        marks = [b"somebody", *(struct.pack("<d", value) for value in self.values)]
        marks += [repr(value).encode() for value in self.values]
        contents = {file.name: file.read_bytes() for file in Path(self.folder).rglob("*") if file.is_file()}
        return {name: mark for name, content in contents.items() for mark in marks if mark in content}


@pytest.mark.parametrize("seed", range(6))
def test_no_file_has_anything_of_a_person_after_any_history(tmp_path, monkeypatch, seed):
    monkeypatch.setattr("service.learn.join.REMEMBERED", 12)
    monkeypatch.setattr(loop_state, "REJOINED", 6)
    monkeypatch.setattr(sqlite, "ERASED_AT_ONCE", 7)
    monkeypatch.setattr(sqlite, "PRUNED_AT_ONCE", 11)
    monkeypatch.setattr(erasures, "MOST_TOGETHER", 2)

    async def story():
        history = History(tmp_path, seed)
        await history.begin()
        await history.play(80)
        assert history.found()
        await history.engine.erase_user_everywhere("somebody-")
        await history.engine.settle()
        for name in history.live:
            assert not [each for each in await history.engine.unmatched(name) if "somebody" in each.event_id]
            assert history.engine.digest(name) == rebuilt(tmp_path, name)
        await history.engine.close()
        assert history.found() == {}

    asyncio.run(story())

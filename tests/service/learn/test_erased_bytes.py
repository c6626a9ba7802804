"""Erased means erased: not a byte of a user is left in any file, whatever the sizes of records and the ids."""

import asyncio
import os
import random
import sqlite3
import string
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from machine import running

from service.log.records import REWARD, Record, encode_reward
from service.rank.requests import Action, RankRequest

LETTERS = string.ascii_letters + string.digits


class Person:
    """A user with secrets of random sizes, in all places where a caller can put some."""

    def __init__(self, rng):
        def secret(longest):
            return "".join(rng.choices(LETTERS, k=rng.randint(12, longest)))

        self.user = secret(200)
        self.events = [secret(rng.choice([16, 60, 200])) for _ in range(rng.randint(1, 12))]
        self.contexts = [secret(rng.choice([20, 100, 900])) for _ in self.events]
        self.rewards = [secret(100) for _ in self.events]

    def secrets(self):
        return [self.user, *self.events, *self.contexts, *self.rewards]

    def requests(self):
        for event, context in zip(self.events, self.contexts, strict=True):
            yield RankRequest(
                user=self.user,
                event_id=event,
                context=msgspec.Raw(msgspec.json.encode({"secret": context})),
                actions=[Action("a", msgspec.Raw(b'{"x":1}')), Action("b", msgspec.Raw(b'{"x":2}'))],
            )


def left_of(people, *folders):
    """Return in which files something of people is found."""
    files = [file for folder in folders for file in Path(folder).rglob("*") if file.is_file()]
    left = set()
    for file in files:
        with open(file, "rb") as opened:
            content = opened.read(512 * os.fstat(opened.fileno()).st_blocks)  # published models have a hole behind
        left |= {(file.name, secret) for one in people for secret in one.secrets() if secret.encode() in content}
    return left


async def live(engine, people, rng):
    """Let people be ranked for, in any order and many at once, and most of it be rewarded."""
    requests = [one for person in people for one in person.requests()]
    rng.shuffle(requests)
    for start in range(0, len(requests), 50):
        await engine.rank_many("default", requests[start : start + 50])
    keys = {event: key for one in people for event, key in zip(one.events, one.rewards, strict=True)}
    rewards = [Record("default", REWARD, event, None, encode_reward(1.0, key)) for event, key in keys.items()]
    engine.log.append([[reward] for reward in rng.sample(rewards, len(rewards) * 2 // 3)])
    await engine.settle()


@pytest.mark.parametrize("seed", range(2))
def test_nothing_of_an_erased_user_is_left_in_any_file(tmp_path, seed):
    rng = random.Random(f"erased {seed}")

    async def story():
        async with running(tmp_path) as engine:
            people = [Person(rng) for _ in range(150)]
            for start in range(0, len(people), 30):
                await live(engine, people[start : start + 30], rng)
            folders = tmp_path, engine.publisher.memory.path.parent
            for some in (people[:6], people[6:12]):
                for person in some:
                    await engine.erase_user("default", person.user)
                await live(engine, [Person(rng) for _ in range(10)], rng)  # pages are split, merged and written again
                assert left_of(some, *folders) == set()
            assert {file for file, _ in left_of(people[12:15], *folders)} >= {"store.db"}  # what is there is found
            with closing(sqlite3.connect(tmp_path / "store.db")) as db:
                assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert engine.digest() == engine.rebuilt()

    asyncio.run(story())

"""Clients that change more than events: settings, the catalogue, and users who leave and are erased."""

import asyncio
import random
from itertools import count

from fault_clients import CATALOGUE, EARLIEST, SUMS, Connection, path_of, request_for

PAUSE = 0.2  # seconds between two changes, on average
SETTINGS = {  # of the loops that clients use
    EARLIEST: {"wait_time": 120.0, "reward_range": [0, 1], "default_reward": None},
    SUMS: {"aggregation": "sum", "wait_time": 0.4, "reward_range": [0, 1]},
}


class Changer:
    """Changes settings and the catalogue, one after the other."""

    def __init__(self, whereabouts, ledger, seed):
        self._connection, self._ledger = Connection(whereabouts), ledger
        self._rng = random.Random(f"{seed} changes")
        self.stopped = False

    async def run(self):
        while not self.stopped:
            await self.put_actions() if self._rng.random() < 0.5 else await self._put_settings()
            await asyncio.sleep(self._rng.uniform(0, 2 * PAUSE))
        self._connection.close()

    async def put_actions(self):
        put = {name: {"kind": name, "price": self._rng.randrange(100)} for name in CATALOGUE}
        change = {"put": [{"id": name, "features": features} for name, features in put.items()]}
        await self._connection.insist("PUT", path_of(EARLIEST, "actions"), change, "catalogue")
        self._ledger.catalogue.update(put)

    async def _put_settings(self):
        loop = self._rng.choice([EARLIEST, SUMS])
        settings = {**SETTINGS[loop], "epsilon": self._rng.randint(1, 99) / 100}
        answer = await self._connection.insist("PUT", path_of(loop, "settings"), settings, "settings")
        self._ledger.changes.append((loop, answer.json()["version"], settings))


class Leaver:
    """Users that come and are erased, one after the other; ``files`` are searched for each once it is erased."""

    def __init__(self, whereabouts, ledger, seed, files):
        self._connection, self._ledger, self._files = Connection(whereabouts), ledger, files
        self._rng = random.Random(f"{seed} leavers")
        self._seed, self.stopped = seed, False

    async def run(self):
        for i in count():
            if self.stopped:
                break
            await self._come_and_go(f"leaver-{self._seed}-{i:04}-")
            await asyncio.sleep(self._rng.uniform(0, 4 * PAUSE))
        self._connection.close()

    async def _come_and_go(self, user):
        for event in (f"{user}a", f"{user}b"):
            request = {**request_for(event), "user": user}
            await self._connection.insist("POST", path_of(EARLIEST, "rank"), request, "rank")
        path = path_of(EARLIEST, f"events/{user}a/reward")
        await self._connection.insist("POST", path, {"value": 1}, "reward")
        events = [{"event_id": f"{user}f", "user": user, "action": "tea", "reward": 1}]
        await self._connection.insist("POST", path_of(EARLIEST, "feedback"), {"events": events}, "feedback")
        n_failed = self._connection.n_failed
        await self._connection.insist("DELETE", path_of(EARLIEST, f"users/{user}"), None, "erasure")
        self._ledger.erased.append(user)
        if n_failed == self._connection.n_failed:  # no first attempt that may be logged after this one
            left = await asyncio.to_thread(self._left, user)
            self._ledger.contradictions += [f"{file} has {user} once it is erased" for file in left]

    def _left(self, user):
        return [file.name for file in self._files() if user.encode() in content(file)]


def content(file):
    """Return what is in a file, nothing if it is gone this moment."""
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""

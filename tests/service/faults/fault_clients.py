"""Clients that outlive the service: they ask again until they are answered, and write down what was acknowledged."""

import asyncio
import json
import random
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from waiting import LIMIT

ACTIONS = [{"id": name, "features": {"kind": name, "size": len(name)}} for name in ("tea", "coffee", "water", "juice")]
CATALOGUE = ("milk", "cocoa", "soda")  # actions that are named by id
EARLIEST, SUMS = "default", "sums"  # two loops: one learns from the first reward of an event, one from their sum

LOST = "connection lost"


class Answer(NamedTuple):
    status: int
    body: bytes

    def json(self):
        return json.loads(self.body)

    def lines(self):
        return [json.loads(line) for line in self.body.splitlines()]

    def code(self):
        return self.json()["error"]["code"]


class Whereabouts:
    """Where the service is at the moment, and how asking it went."""

    def __init__(self):
        self.connections = []
        self.phase = "none"  # the fault that is going on
        self.failures = Counter()  # by phase, kind of request and status
        self._address, self._up = None, asyncio.Event()

    def set(self, url):
        host, port = url.removeprefix("http://").split(":")
        self._address = host, int(port)
        self._up.set()

    def unset(self):
        self._up.clear()

    def hang_up(self):
        """Close all connections."""
        for connection in self.connections:
            connection.close()

    def close_idle(self):
        """Close connections on which nothing is under way."""
        for connection in self.connections:
            if not connection.insisting:
                connection.close()

    async def get(self):
        await self._up.wait()
        return self._address

    async def all_answered(self):
        """Return once every request that is under way has been acknowledged."""
        waiting = [(connection, connection.n_insisted) for connection in self.connections if connection.insisting]
        while any(connection.insisting and connection.n_insisted == n for connection, n in waiting):
            await asyncio.sleep(0.005)


class Connection:
    """A client's connection: HTTP/1.1 as far as the service speaks it."""

    def __init__(self, whereabouts):
        self._whereabouts, self._streams = whereabouts, None
        self.insisting, self.n_insisted, self.n_failed, self.n_lost = False, 0, 0, 0
        whereabouts.connections.append(self)

    async def ask(self, method, path, body=None):
        """Return the answer; raise OSError or EOFError if there is none, and it is not known what was done."""
        try:
            await self.send(method, path, body)
            return await self.receive()
        except BaseException:
            self.close()
            raise

    async def send(self, method, path, body=None):
        if self._streams is None:
            self._streams = await asyncio.open_connection(*await self._whereabouts.get(), limit=2**20)
        kind = "octet-stream" if isinstance(body, bytes) else "json"
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/{kind}\r\n"
        self._streams[1].write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)

    async def receive(self):
        return await _read_answer(self._streams[0])

    async def insist(self, method, path, body=None, kind="change"):
        """Return the answer to a request that is made again until it is acknowledged as a whole."""
        self.insisting, deadline = True, time.monotonic() + LIMIT
        try:
            while True:
                failure = LOST
                try:
                    answer = await self.ask(method, path, body)
                    if is_acknowledged(answer):
                        return answer
                    assert answer.status in (200, 503), (method, path, answer)  # 200: a batch, some of it refused
                    failure = f"503 {answer.code()}" if answer.status == 503 else "200"
                except (OSError, EOFError):
                    pass  # a dead service's port may still be believed in
                self.n_failed, self.n_lost = self.n_failed + 1, self.n_lost + (failure == LOST)
                self._whereabouts.failures[self._whereabouts.phase, kind, failure] += 1
                assert time.monotonic() < deadline, f"{method} {path} was refused for {LIMIT} s: {failure}"
                await asyncio.sleep(0.005 if failure == LOST else 0.02)
        finally:
            self.insisting, self.n_insisted = False, self.n_insisted + 1

    def close(self):
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def is_acknowledged(answer):
    """Return whether all that was asked for was done."""
    return answer.status in (201, 204) or (answer.status == 200 and b'"error"' not in answer.body)


async def _read_answer(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    status = int(head[0].split()[1])
    if "chunked" in headers.get("transfer-encoding", ""):
        return Answer(status, b"".join([chunk async for chunk in _chunks(reader)]))
    return Answer(status, await reader.readexactly(int(headers.get("content-length", 0))))


async def _chunks(reader):
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readline()
    await reader.readline()


def path_of(loop, rest):
    return f"/v1/loops/{loop}/{rest}"


def request_for(event, user=0, hour=12):
    return {"event_id": event, "user": f"user {user}", "context": {"hour": hour, "open": hour > 7}, "actions": ACTIONS}


@dataclass
class Ledger:
    """All that the service has acknowledged, as its clients remember it."""

    ranks: dict[str, dict] = field(default_factory=lambda: defaultdict(dict))  # loop -> event -> answer
    requests: dict[str, dict] = field(default_factory=lambda: defaultdict(dict))  # loop -> event -> request
    rewards: dict[str, dict] = field(default_factory=lambda: defaultdict(lambda: defaultdict(dict)))  # -> id -> value
    changes: list[tuple[str, int, dict]] = field(default_factory=list)  # settings: loop, version, what was put
    catalogue: dict[str, dict] = field(default_factory=dict)  # id -> features of the default loop
    feedback: dict[str, dict] = field(default_factory=lambda: defaultdict(dict))  # loop -> event -> what was sent
    erased: list[str] = field(default_factory=list)  # users; two events of each were ranked, one got the reward 1
    refused: list[dict] = field(default_factory=list)  # requests to rank of which it is not known if they are stored
    contradictions: list[str] = field(default_factory=list)

    def ranked(self, loop, answer, request=None):
        first = self.ranks[loop].setdefault(answer["event_id"], answer)
        if first != answer:
            self.contradictions.append(f"{answer} after {first}")
        if request is not None:
            self.requests[loop][answer["event_id"]] = request

    def rewarded(self, loop, event, reward):
        self.rewards[loop][event].setdefault(reward.get("id"), reward["value"])

    async def grows(self, by=50):
        """Return once so many more are acknowledged."""
        enough = self.n_acknowledged() + by
        while self.n_acknowledged() < enough:
            await asyncio.sleep(0.005)

    def n_acknowledged(self):
        """Return how many decisions, rewards, changes and other feedback were acknowledged."""
        ranked = sum(map(len, self.ranks.values())) + len(self.changes) + 5 * len(self.erased)
        ranked += sum(map(len, self.feedback.values()))
        return ranked + sum(len(of_event) for of_loop in self.rewards.values() for of_event in of_loop.values())


class Client:
    """Ranks and rewards, one after the other, now and then the wrong way round or again."""

    def __init__(self, name, whereabouts, ledger, seed):
        self._name, self._ledger = name, ledger
        self._connection = Connection(whereabouts)
        self._rng = random.Random(f"{seed} {name}")
        self.stopped = False

    async def run(self):
        for i in count():
            if self.stopped:
                break
            plays = [self._earliest, self._sum, self._page, self._batch, self._recommend, self._feedback]
            [play] = self._rng.choices(plays, [6, 3, 1, 1, 2, 1])
            await play(f"{self._name}-{i}")
        self._connection.close()

    async def _earliest(self, event):
        value = round(self._rng.random(), 3)
        if self._chance(0.1):  # before its event
            await self._reward(EARLIEST, event, value)
            await self._rank(EARLIEST, event)
            return
        await self._rank(EARLIEST, event)
        if self._chance(0.1):  # never
            return
        await self._reward(EARLIEST, event, value)
        if self._chance(0.2):
            await self._reward(EARLIEST, event, round(1 - value, 3))  # does not count

    async def _sum(self, event):
        await self._rank(SUMS, event)
        for i in range(self._rng.randint(1, 3)):
            await self._reward(SUMS, event, round(self._rng.random(), 3), f"{event}-{i}")

    async def _page(self, call):
        """Fill two slots, each of them an event, and reward the second."""
        page = {**request_for(call, self._rng.randrange(20)), "slots": [{"id": "top"}, {"id": "side"}]}
        for _ in self._times():
            answer = await self._connection.insist("POST", path_of(EARLIEST, "rank/slots"), page, "slots")
            filled = answer.json()
            for slot in filled["slots"]:
                self._ledger.ranked(EARLIEST, {**slot, "model_version": filled["model_version"]})
        await self._reward(EARLIEST, f"{call}~2", round(self._rng.random(), 3))

    async def _recommend(self, call):
        """Fill two places from the catalogue, once there is one, and reward the second."""
        if not self._ledger.catalogue:
            return
        request = {name: value for name, value in self._request(call).items() if name != "actions"}
        request |= {"n": 2, "filter": {"price": {"min": 0}}}
        for _ in self._times():
            answer = await self._connection.insist("POST", path_of(EARLIEST, "recommend"), request, "recommend")
            page = answer.json()
            for item in page["items"]:
                place = {"id": item["id"], "probability": item["probability"], "score": item["score"]}
                ranked = {"event_id": item["event_id"], "action": item["id"], "probability": item["probability"]}
                self._ledger.ranked(EARLIEST, {**ranked, "model_version": page["model_version"], "ranking": [place]})
        await self._reward(EARLIEST, f"{call}~2", round(self._rng.random(), 3))

    async def _feedback(self, call):
        """Send what three actions earned elsewhere, one of which the catalogue may have."""
        loop = self._rng.choice([EARLIEST, SUMS])
        events = [
            {"event_id": f"{call}.f{i}", "action": action, "reward": round(self._rng.random(), 3), "user": f"user {i}"}
            for i, action in enumerate([ACTIONS[0], self._rng.choice(ACTIONS), self._rng.choice(CATALOGUE)])
        ]
        for _ in self._times():
            answer = await self._connection.insist("POST", path_of(loop, "feedback"), {"events": events}, "feedback")
            if sum(answer.json().values()) != len(events):
                self._ledger.contradictions.append(f"{answer} to {events}")
            self._ledger.feedback[loop] |= {event["event_id"]: event for event in events}

    async def _batch(self, call):
        """Rank three events at once, and reward the last."""
        requests = [self._request(f"{call}.{i}") for i in range(3)]
        for _ in self._times():
            path = path_of(EARLIEST, "rank/batch")
            answer = await self._connection.insist("POST", path, {"requests": requests}, "batch")
            for request, result in zip(requests, answer.json()["results"], strict=True):
                self._ledger.ranked(EARLIEST, result, request)
        await self._reward(EARLIEST, f"{call}.2", round(self._rng.random(), 3))

    async def _rank(self, loop, event):
        request = self._request(event)
        if loop == EARLIEST and self._ledger.catalogue and self._chance(0.3):
            request["actions"] = [{"id": name} for name in CATALOGUE]
        for _ in self._times():
            answer = await self._connection.insist("POST", path_of(loop, "rank"), request, "rank")
            self._ledger.ranked(loop, answer.json(), request)

    def _request(self, event):
        return request_for(event, self._rng.randrange(20), self._rng.randrange(24))

    async def _reward(self, loop, event, value, name=None):
        reward = {"value": value} if name is None else {"value": value, "id": name}
        for _ in self._times():
            await self._connection.insist("POST", path_of(loop, f"events/{event}/reward"), reward, "reward")
            self._ledger.rewarded(loop, event, reward)

    def _chance(self, probability):
        return self._rng.random() < probability

    def _times(self):
        return range(2 if self._chance(0.15) else 1)

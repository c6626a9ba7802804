"""Load on machines that share a database, judged: what clients were told against what is stored and learned."""

import contextlib
import itertools
import json
import random
import threading
import time

import httpx
from waiting import LIMIT, until

from service.learn.learner import replay
from service.log.postgres import PostgresLog
from service.log.records import checksum
from service.log.sqlite import COLUMNS, SqliteLog, readable
from service.log.sqlite_schema import sqlite_file

ACTIONS = [{"id": name, "features": {"name": name, "n": k}} for k, name in enumerate(("tea", "juice", "milk"))]


class Ledger:
    """What the service acknowledged, as its clients know it."""

    def __init__(self):
        self.ranks = {}  # event: (loop, action, probability)
        self.rewards = {}  # event: (loop, value)
        self.refused = 0  # requests that were answered with 503 or not at all, and repeated
        self.wrong = []

    def grow(self, by=20):
        """Return once so many more events are complete."""
        goal = len(self.rewards) + by
        until(lambda: len(self.rewards) >= goal or self.wrong, f"{by} more events")


class Load:
    """Clients that rank on one machine and send the reward to another; what fails they repeat until it is answered."""

    def __init__(self, machines, ledger, *, seed, n_clients=4, loops=("default",), pause=0.0, headers=None):
        self.machines, self.ledger, self.loops, self.pause = machines, ledger, loops, pause
        self.headers = headers
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=[random.Random(f"{seed}/{k}"), f"{seed}-{k}"])
            for k in range(n_clients)
        ]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self, rng, name):
        with httpx.Client(headers=self.headers, trust_env=False, timeout=LIMIT) as http:
            for k in itertools.count():
                if self._stopping.is_set():
                    return
                try:
                    self._one(http, rng, f"{name}-{k}", rng.choice(self.loops))
                except TimeoutError as error:
                    self.ledger.wrong.append(str(error))
                    return
                time.sleep(self.pause)

    def _one(self, http, rng, event, loop):
        request = {"user": f"u{rng.randrange(20)}", "context": {"hour": rng.randrange(24)}, "actions": ACTIONS}
        decision = self._repeat(http, rng, f"/v1/loops/{loop}/rank", {**request, "event_id": event})
        self.ledger.ranks[event] = (loop, decision["action"], decision["probability"])
        value = float(rng.random() < {"tea": 0.8, "juice": 0.3, "milk": 0.1}[decision["action"]])
        self._repeat(http, rng, f"/v1/loops/{loop}/events/{event}/reward", {"value": value})
        self.ledger.rewards[event] = (loop, value)

    def _repeat(self, http, rng, path, body):
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            machine = rng.choice(self.machines)
            try:
                reply = http.post(machine.url + path, json=body)
            except httpx.TransportError:
                reply = None
            if reply is not None and reply.status_code < 300:
                return reply.json() if reply.content else {}
            if reply is not None and reply.status_code != 503:
                self.ledger.wrong.append(f"{path}: {reply.status_code} {reply.text}")
            self.ledger.refused += 1
            time.sleep(0.05)
        raise TimeoutError(f"{path} was never answered")


def judge(ledger, database):
    """Return what is wrong with the log, by what clients were told."""
    wrong = list(ledger.wrong)
    ranks, rewards = {}, {}
    with contextlib.closing(PostgresLog(database)) as log:
        for loop, head in log.heads().items():
            entries = list(all_entries(log, loop))
            positions = [entry.position for entry in entries]
            if sorted(set(positions)) != positions or len(positions) != head.last - head.removed:
                wrong.append(f"positions of {loop} have gaps or repeats")
            if any(one.time > other.time for one, other in itertools.pairwise(entries)):
                wrong.append(f"time goes backwards in {loop}")
            for entry in entries:
                if entry.kind == "rank":
                    if entry.event in ranks:
                        wrong.append(f"{entry.event} is there twice")
                    body = json.loads(entry.body)
                    taken, probabilities = body["action"], body["probabilities"] or [None]  # feedback has none
                    ranks[entry.event] = (loop, body["actions"][taken]["id"], probabilities[taken])
                elif entry.kind == "reward":
                    rewards.setdefault(entry.event, set()).add((loop, json.loads(entry.body)["value"]))
    wrong += [
        f"rank {event} is lost or changed"
        for event, acknowledged in ledger.ranks.items()
        if ranks.get(event) != acknowledged
    ]
    wrong += [
        f"reward {event} is lost or changed"
        for event, acknowledged in ledger.rewards.items()
        if rewards.get(event) != {acknowledged}
    ]
    return wrong


def all_entries(log, loop):
    after = 0
    while entries := log.read(loop, after, 1_000):
        yield from entries
        after = entries[-1].position


def copied_to_sqlite(database, path):
    """Return a SQLite log with the same records."""
    marks = ", ".join("?" * 9)
    copy = SqliteLog(sqlite_file(path))
    with contextlib.closing(PostgresLog(database)) as log, copy._connection() as db:
        for loop, head in log.heads().items():
            for entry in all_entries(log, loop):
                _, position, at, kind, event, user, example, body = entry
                row = (loop, position, at, kind, event, user, checksum(entry), example, readable(body))
                db.execute(f"INSERT INTO log ({COLUMNS}) VALUES ({marks})", row)
            db.execute("INSERT INTO head VALUES (?, ?, ?, ?)", (loop, *head))
    return copy


def digests(machines, database, folder, loop="default"):
    """Return the digests of a loop's models by who made them: equal, or something is wrong."""
    digest_by = {machine.folder.name: machine.digest(loop) for machine in machines}
    with contextlib.closing(PostgresLog(database)) as log:
        digest_by["replayed"] = replay(log, folder)[loop]
    with contextlib.closing(copied_to_sqlite(database, folder / f"copy-{time.monotonic_ns()}.db")) as copy:
        digest_by["on SQLite"] = replay(copy, folder)[loop]
    return digest_by

"""Simulated readers who use a running service over HTTP, so that one can watch it learn.

All like short articles in the morning and long ones in the evening, and each has a favourite topic. Three loops of the
service are asked: one that learns and has a control group, one that picks at random, and one that is always offered the
best article first and returns it. ``/demo`` is a page for a reader who is real.
"""

from __future__ import annotations

import json
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np

from service import logs

POLICY, UNIFORM, BEST = "demo", "demo-uniform", "demo-best"
LOOPS: dict[str, dict[str, Any]] = {
    POLICY: {"control": {"share": 0.2, "experiment": "demo"}},
    UNIFORM: {"policy": "epsilon-greedy", "epsilon": 1.0, "personal": False},
    BEST: {"apprentice": True, "personal": False},  # an apprentice returns the first action
}

N_READERS = 200
N_REGULARS = 10  # readers who make four visits of five
TOPICS = ("sport", "music", "food", "travel", "science")
ARTICLES: list[dict[str, Any]] = [
    {"id": f"{length}-{topic}", "features": {"topic": topic, "length": length}}
    for topic in TOPICS
    for length in ("short", "long")
]
PER_SECOND = 40  # decisions of the policy
REFERENCE_EVERY = 4  # of them there is one of either reference
LAST = 200  # decisions of which the mean reward is shown

Say = Callable[[str], None]


def chance(favourite: str, when: str, article: dict[str, Any]) -> float:
    """Return how likely a reader is to read an article to its end."""
    features: dict[str, str] = article["features"]
    fits = features["length"] == ("short" if when == "morning" else "long")
    return 0.05 + 0.35 * fits + 0.5 * (features["topic"] == favourite)


class Client:
    """One connection to the service at ``url``."""

    def __init__(self, url: str) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc, timeout=30)
        self._connection.connect()
        self._connection.auto_open = 0  # once it is closed, the service is gone: a new one would wait for ever

    def close(self) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the JSON of the answer, None where it has none; a refusal is an error."""
        headers = {} if body is None else {"Content-Type": "application/json"}
        self._connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = self._connection.getresponse()
        content = reply.read()
        if reply.status >= 400:
            raise ValueError(f"{method} {path} was answered {reply.status}: {content.decode()}")
        return json.loads(content) if content else None


class Demo:
    """The readers and what they earned. ``play`` is one visit of one of them."""

    def __init__(self, client: Client, seed: int = 0) -> None:
        self._client = client
        self._rng = np.random.default_rng(seed)
        self.n_decisions = 0
        self.last: deque[float] = deque(maxlen=LAST)
        self.references: dict[str, list[float]] = {UNIFORM: [], BEST: []}

    def begin(self) -> None:
        """Make the loops, new ones where there were some."""
        there = self._client.ask("GET", "/v1/loops")["loops"]
        for name, settings in LOOPS.items():
            if name in there:
                self._client.ask("DELETE", f"/v1/loops/{name}")
            self._client.ask("POST", "/v1/loops", {"name": name, "settings": settings})

    def play(self) -> None:
        """Let a reader come by, see what the policy picks, and read it or not."""
        reader = int(self._rng.integers(N_REGULARS if self._rng.random() < 0.8 else N_READERS))
        favourite, when = TOPICS[reader % len(TOPICS)], ("morning", "evening")[self._rng.integers(2)]
        chances = {str(article["id"]): chance(favourite, when, article) for article in ARTICLES}
        reward, arm = self._visit(POLICY, f"reader-{reader}", when, chances)
        if arm != "control":
            self.last.append(reward)
        if self.n_decisions % REFERENCE_EVERY == 0:
            for name, earned in self.references.items():
                earned.append(self._visit(name, f"reader-{reader}", when, chances)[0])
        self.n_decisions += 1

    def _visit(self, loop: str, user: str, when: str, chances: dict[str, float]) -> tuple[float, str | None]:
        actions = sorted(ARTICLES, key=lambda article: -chances[article["id"]]) if loop == BEST else ARTICLES
        request = {"user": user, "context": {"when": when}, "actions": actions}
        decision = self._client.ask("POST", f"/v1/loops/{loop}/rank", request)
        reward = float(self._rng.random() < chances[decision["action"]])
        path = f"/v1/loops/{loop}/events/{quote(decision['event_id'], safe='')}/reward"
        self._client.ask("POST", path, {"value": reward})
        return reward, decision.get("arm")

    def line(self, seconds: float) -> str:
        """Return how it goes."""
        uniform, best = self.references.values()
        compared = f"   (uniform {np.mean(uniform):.2f}, best possible {np.mean(best):.2f})" if len(best) >= 20 else ""
        return (
            f"{seconds:4.0f} s {self.n_decisions:6,} decisions   reward of the last {len(self.last)}: "
            f"{np.mean(self.last or 0.0):.2f}{compared}"
        )


def simulate(url: str, say: Say, stop: threading.Event) -> None:
    """Play until told to stop, or until the service is gone, and say every second how it goes."""
    try:
        demo = Demo(Client(url))
        demo.begin()
        for seconds in _paced(stop):
            demo.play()
            if seconds is not None:
                say(demo.line(seconds))
    except (ConnectionError, HTTPException):
        return  # the service has ended, and the demo with it
    except Exception as error:
        say(f"the demo has ended: {error}")


def _paced(stop: threading.Event) -> Iterator[float | None]:
    """Yield ``PER_SECOND`` times a second at most; once a second, the seconds since the start."""
    start = shown = time.monotonic()
    for turn in range(2**62):
        if stop.wait(max(0.0, start + turn / PER_SECOND - time.monotonic())):
            return
        due = time.monotonic() >= shown + 1
        shown += due
        yield time.monotonic() - start if due else None


def run(url: str, parent: int) -> None:
    """Simulate until the supervisor ends, at the other end of the pipe ``parent``, or says so."""
    stop = threading.Event()

    def watch() -> None:
        select.select([parent], [], [])
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    while not stop.is_set() and not _is_up(url):
        time.sleep(0.1)
    simulate(url, logs.say, stop)


def _is_up(url: str) -> bool:
    try:
        return bool(Client(url).ask("GET", "/readyz"))
    except (OSError, HTTPException, ValueError):
        return False

"""Simulated readers who use a running service over HTTP, so that one can watch it learn.

All like short articles in the morning and long ones in the evening, and each has a favorite topic. Three loops of the
service are used: one that learns and has a control group, one that picks at random, and one that always gets the best
article first and returns it. ``/demo`` is a page for a real reader.
"""

from __future__ import annotations

import select
import time
from collections import deque
from typing import Any

import httpx
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
LAST = 200  # decisions in the mean reward shown


def chance(favourite: str, when: str, article: dict[str, Any]) -> float:
    """Return how likely a reader is to read an article to its end."""
    features: dict[str, str] = article["features"]
    fits = features["length"] == ("short" if when == "morning" else "long")
    return 0.05 + 0.35 * fits + 0.5 * (features["topic"] == favourite)


class Demo:
    """The readers and their rewards. ``play`` is one visit of one of them."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._rng = np.random.default_rng(0)
        self.n_decisions = 0
        self.last: deque[float] = deque(maxlen=LAST)
        self.references: dict[str, list[float]] = {UNIFORM: [], BEST: []}

    def begin(self) -> None:
        """Create the loops; replace existing ones."""
        existing = self._send("GET", "/v1/loops").json()["loops"]
        for name, settings in LOOPS.items():
            if name in existing:
                self._send("DELETE", f"/v1/loops/{name}")
            self._send("POST", "/v1/loops", {"name": name, "settings": settings})

    def play(self) -> None:
        """Simulate a visit: request an article, read it or not, send the reward."""
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
        decision = self._send("POST", f"/v1/loops/{loop}/rank", request).json()
        reward = float(self._rng.random() < chances[decision["action"]])
        self._send("POST", f"/v1/loops/{loop}/events/{decision['event_id']}/reward", {"value": reward})
        return reward, decision.get("arm")

    def _send(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Return the response; a rejected request is an error."""
        response = self._client.request(method, path, json=body)
        if response.is_error:
            raise ValueError(f"{method} {path} got status {response.status_code}: {response.text}")
        return response

    def line(self, seconds: float) -> str:
        """Return the progress in one line."""
        uniform, best = self.references.values()
        compared = f"   (uniform {np.mean(uniform):.2f}, best possible {np.mean(best):.2f})" if len(best) >= 20 else ""
        return (
            f"{seconds:4.0f} s {self.n_decisions:6,} decisions   reward of the last {len(self.last)}: "
            f"{np.mean(self.last or 0.0):.2f}{compared}"
        )


def run(url: str, parent: int) -> None:
    """Simulate until the supervisor closes its end of the pipe ``parent``; print the progress every second."""

    def ended_within(seconds: float) -> bool:
        return bool(select.select([parent], [], [], seconds)[0])

    while not _is_up(url):
        if ended_within(0.1):
            return
    try:
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            demo = Demo(client)
            demo.begin()
            start = said_at = time.monotonic()
            while not ended_within(max(0.0, start + demo.n_decisions / PER_SECOND - time.monotonic())):
                demo.play()
                if time.monotonic() >= said_at + 1:
                    said_at += 1
                    logs.say(demo.line(time.monotonic() - start))
    except httpx.TransportError:
        return  # the service has ended, and the demo with it
    except Exception as error:
        logs.say(f"the demo has ended: {error}")


def _is_up(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", trust_env=False).is_success
    except httpx.TransportError:
        return False

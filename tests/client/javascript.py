"""What the tests of the device in JavaScript share: a device in Node, a stream of requests, and comparisons."""

import json
import random
import subprocess
from pathlib import Path

import msgspec
import pytest
from waiting import LIMIT

from fedres.client import DeviceClient
from fedres.local_learners.adagrad import FUSED

MENU = {"tea": {"hot": True, "price": 3}, "juice": {"hot": False, "taste": [0.5, 2]}, "Müsli": {"tags": ["a", "b"]}}


class Played:
    """A device in Node."""

    def __init__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "encoding": "utf-8"}
        self.process = subprocess.Popen(["node", "played_device.js"], cwd=Path(__file__).parent, **pipes)

    def __call__(self, name, argument=None):
        self.process.stdin.write(json.dumps([name, argument]) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["value"]

    def close(self):
        self.process.stdin.close()
        self.process.wait(LIMIT)
        self.process.stdout.close()


def stream(n, seed=7):
    """Return requests, and who likes what: a taste for hours that all share, a private mood that nobody knows."""
    rng = random.Random(seed)
    for k in range(n):
        context = {"hour": rng.randrange(24), "weather": rng.choice(["cold", "warm"]), "geo": {"lat": rng.random()}}
        mood = round(rng.uniform(-1, 1), 3)
        liked = "tea" if context["weather"] == "cold" else "Müsli" if mood > 0 else "juice"
        yield {"context": context, "private": {"mood": mood}, "actions": MENU, "eventId": f"e-{k}"}, liked


def loop_of(live, name, model="adagrad", **settings):
    """Make a loop in which an event has the same draw as in others."""
    live.make_earlier_loop(name, model=model, update_interval=0.005, **settings)
    return name


def teach(live, loop, folder, learner, menu=MENU):
    """Let a device teach a loop that people like tea."""
    options = {"loop": loop, "learner": learner, "sync_seconds": None, "open_seconds": 0}
    with DeviceClient(live.url, "teacher", folder / "teacher", **options) as device:
        for _ in range(20):
            for action in menu:  # each as often as the others, whatever the device would choose
                decision = device.decide({}, {action: menu[action]})
                device.reward(decision.event_id, action == "tea")
        assert device.sync().trouble is None
    live.settle(loop)


def opened(live, loop, store, **options):
    """Return how to open a device of a loop with ``adagrad``."""
    return {"url": live.url, "client": "phone", "loop": loop, "store": store, "learner": "linear", **options}


def same(value, expected):
    if FUSED:  # JavaScript has no fused multiply-add
        assert value == pytest.approx(expected, rel=1e-4, abs=1e-5)
    else:
        assert value == expected


def uploads(live, loop):
    return [msgspec.json.decode(entry.body) for entry in live.engine.logged(loop) if entry.kind == "residual"]


def close_to(value, expected):
    """Compare 64-bit sums that Python may fuse."""
    assert value == pytest.approx(expected, rel=1e-6, abs=1e-9)

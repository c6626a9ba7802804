"""The FedRes loop end to end: python examples/federated_loop.py [http://127.0.0.1:8000]

Start a service first: fedres serve. Two devices, Ann's and Ben's, choose a drink in loops with the model of the FedRes
paper: the server has the shared model, a device has Vowpal Wabbit as its local learner, and ε-greedy draws the action.
The right drink for an hour is the same for everybody. Whether it should be sweet depends on the mood, differently for
Ann than for Ben, and a mood never leaves its device. Ann is up in the morning and Ben in the evening. Then they trade
hours, and each meets hours that only the other device has learned.

The script plays the same rounds with each arrangement, and prints the mean reward of a decision: devices that share
nothing, one shared model without personal ones, FedRes, and FedRes with other learners of the shared model. The shared
model also decides for Cleo, who has no device: her application sends HTTP requests.
"""

import random
import sys
import tempfile
import time
import uuid
from typing import Any

import httpx

from fedres.client import DeviceClient

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
MORNING = {"six": "coffee", "eight": "water", "ten": "juice"}
EVENING = {"six pm": "soup", "eight pm": "tea", "ten pm": "cocoa"}
RIGHT_DRINK = {**MORNING, **EVENING}
LIKES_SWEET = {"Ann": "sad", "Ben": "happy"}  # in which mood
MENU = [
    {"id": f"{taste} {drink}", "features": {"drink": drink, "taste": taste}}
    for drink in RIGHT_DRINK.values()
    for taste in ("sweet", "plain")
]
ROUNDS = 150  # before they trade hours
ROUNDS_AFTER = 60
SYNC_EVERY = 5  # rounds
PAPER = {"model": "adagrad", "policy": "epsilon-greedy", "epsilon": 0.2, "learning_rate": 0.5}
DENSE = {"bits": 10, "hyperparameters": {"n_clients": 2, "step_size": 0.05}}
ARRANGEMENTS: dict[str, dict[str, Any]] = {
    "each device alone": PAPER,
    "shared model only": {**PAPER, "personal": False},
    "FedRes": PAPER,
    "FedRes, aligned timing": {**PAPER, "timing": "aligned"},
    "FedRes with FedOMD": {**PAPER, **DENSE, "global_learner": "fedomd"},
    "FedRes with OFedIQ": {**PAPER, **DENSE, "global_learner": "ofediq"},
}


def reward_of(action: str, hour: str, likes_sweet: bool) -> float:
    """Return how much a person likes a drink: 0.7 for the right drink, 0.3 for the right taste."""
    taste, drink = action.split()
    return 0.7 * (drink == RIGHT_DRINK[hour]) + 0.3 * ((taste == "sweet") == likes_sweet)


def choose_once(device: DeviceClient, name: str, hours: list[str], rng: random.Random) -> float:
    """Let a device choose a drink and learn the reward; return the reward."""
    hour = rng.choice(hours)
    mood = rng.choice(["happy", "sad"])
    decision = device.decide({"hour": hour}, MENU, private={"mood": mood})
    reward = reward_of(decision.action, hour, mood == LIKES_SWEET[name])
    device.reward(decision.event_id, reward)
    return reward


def play(loops: dict[str, str], folder: str) -> tuple[float, float]:
    """Play all rounds with a loop for each device; return the mean rewards before and after they trade hours."""
    rng = random.Random(0)
    rewards = []
    with (
        DeviceClient(URL, "Ann", f"{folder}/ann", loop=loops["Ann"], learner="vw", sync_seconds=None) as ann,
        DeviceClient(URL, "Ben", f"{folder}/ben", loop=loops["Ben"], learner="vw", sync_seconds=None) as ben,
    ):
        for t in range(ROUNDS + ROUNDS_AFTER):
            anns, bens = (MORNING, EVENING) if t < ROUNDS else (EVENING, MORNING)
            for name, device, hours in (("Ann", ann, anns), ("Ben", ben, bens)):
                if t % SYNC_EVERY == 0 and (trouble := device.sync().trouble):
                    raise SystemExit(trouble)
                rewards.append(choose_once(device, name, list(hours), rng))
    traded = 2 * ROUNDS
    return sum(rewards[:traded]) / traded, sum(rewards[traded:]) / (2 * ROUNDS_AFTER)


def make_loop(settings: dict[str, Any]) -> str:
    """Create a loop that has learned nothing yet; return its name."""
    name = f"drinks-{uuid.uuid4().hex[:8]}"
    body = {"name": name, "settings": settings}
    response = httpx.post(f"{URL}/v1/loops", json=body, timeout=300)
    # The service compiles the code of a model for its first loop.
    while response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        time.sleep(1)
        response = httpx.post(f"{URL}/v1/loops", json=body, timeout=300)
    response.raise_for_status()
    return name


def decide_over_http(loop: str) -> int:
    """Return for how many hours the shared model gives Cleo the right drink, over HTTP."""
    right = 0
    for hour, drink in RIGHT_DRINK.items():
        request = {"context": {"hour": hour}, "actions": MENU}
        response = httpx.post(f"{URL}/v1/loops/{loop}/rank", json=request, timeout=60).raise_for_status()
        likeliest = max(response.json()["ranking"], key=lambda ranked: ranked["probability"])
        right += likeliest["id"].split()[1] == drink
    return right


print("mean reward of a decision   own hours   after they trade hours")
for title, settings in ARRANGEMENTS.items():
    shared = make_loop(settings)
    loops = {"Ann": shared, "Ben": make_loop(settings) if title == "each device alone" else shared}
    with tempfile.TemporaryDirectory() as folder:
        before, after = play(loops, folder)
    print(f"{title:25} {before:11.2f} {after:24.2f}")
    if title == "FedRes":
        right = decide_over_http(shared)
    for name in set(loops.values()):
        httpx.delete(f"{URL}/v1/loops/{name}", timeout=60).raise_for_status()
print(f"over HTTP, FedRes gives Cleo the right drink at {right} of {len(RIGHT_DRINK)} hours")

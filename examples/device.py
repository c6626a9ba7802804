"""Two devices with tastes of their own and one shared model: python examples/device.py [http://127.0.0.1:8000]

Start a service first: fedres serve. At every hour people like another drink, and that is the same for all. Whether it
should be sweet depends on one's mood, in another way for Ann than for Ben, and a mood never leaves its device. Ann is
up in the morning and Ben in the evening. In the end each device decides in the other's hours: once where both have
taught one shared model, and once where each has a loop for itself alone.
"""

import random
import sys
import tempfile
import uuid
from typing import Any

import httpx

from fedres.client import DeviceClient

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
MORNING = {"six": "coffee", "eight": "water", "ten": "juice"}
EVENING = {"six pm": "soup", "eight pm": "tea", "ten pm": "cocoa"}
HOURS = {"Ann": MORNING, "Ben": EVENING}
WANTS_SWEET = {"Ann": "sad", "Ben": "happy"}  # in which mood
MOODS = ("happy", "sad")
ROUNDS = 100


def menu(hours: dict[str, str]) -> list[dict[str, Any]]:
    """Return what is on offer in these hours."""
    return [
        {"id": f"{taste} {drink}", "features": {"drink": drink, "taste": taste}}
        for drink in hours.values()
        for taste in ("sweet", "plain")
    ]


def value(name: str, wanted: str, mood: str, action: str) -> float:
    """Return how much a person likes a drink."""
    taste, drink = action.split()
    right_taste = "sweet" if mood == WANTS_SWEET[name] else "plain"
    return 0.7 * (drink == wanted) + 0.3 * (taste == right_taste)


def live(device: DeviceClient, name: str, rng: random.Random) -> None:
    """Let a device decide and learn what that earned."""
    hour, mood = rng.choice(list(HOURS[name])), rng.choice(MOODS)
    decision = device.decide({"hour": hour}, menu(HOURS[name]), private={"mood": mood})
    device.reward(decision.event_id, value(name, HOURS[name][hour], mood, decision.action))


def ask(device: DeviceClient, name: str, hours: dict[str, str]) -> float:
    """Return how much a person likes what the device thinks best, on average over hours and moods."""
    total = 0.0
    for hour, wanted in hours.items():
        for mood in MOODS:
            scores = device.decide({"hour": hour}, menu(hours), private={"mood": mood}).scores
            total += value(name, wanted, mood, max(scores, key=scores.__getitem__))
    return total / (len(hours) * len(MOODS))


def run(folder: str, loops: dict[str, str]) -> dict[str, float]:
    """Return how well each device answers for the other's hours, after both have learned in their loops."""
    rng = random.Random(0)
    with (
        DeviceClient(URL, "Ann", f"{folder}/ann", loop=loops["Ann"], sync_seconds=None) as ann,
        DeviceClient(URL, "Ben", f"{folder}/ben", loop=loops["Ben"], sync_seconds=None) as ben,
    ):
        for t in range(ROUNDS + 1):
            for name, device in (("Ann", ann), ("Ben", ben)):
                if t % 5 == 0 and (trouble := device.sync().trouble):
                    raise SystemExit(trouble)
                live(device, name, rng)
        return {"Ann": ask(ann, "Ann", EVENING), "Ben": ask(ben, "Ben", MORNING)}


def make_loop() -> str:
    """Return the name of a loop that has learned nothing yet."""
    name = f"drinks-{uuid.uuid4().hex[:8]}"
    httpx.post(f"{URL}/v1/loops", json={"name": name}).raise_for_status()
    return name


shared, anns, bens = make_loop(), make_loop(), make_loop()
with tempfile.TemporaryDirectory() as folder:
    alone = run(f"{folder}/alone", {"Ann": anns, "Ben": bens})
    together = run(f"{folder}/together", {"Ann": shared, "Ben": shared})
for name in (shared, anns, bens):
    httpx.delete(f"{URL}/v1/loops/{name}").raise_for_status()

print("in the other's hours   alone   with a shared model")
for name in alone:
    print(f"{name:20} {alone[name]:7.2f} {together[name]:21.2f}")

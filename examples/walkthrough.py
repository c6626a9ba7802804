"""The service by httpx: python examples/walkthrough.py [http://127.0.0.1:8000]

Start one first: fedres serve. What is exported goes to events.jsonl in the folder it is run in.
"""

import sys
from pathlib import Path
from urllib.parse import quote

import httpx

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
MENU = [
    {"id": "tea", "features": {"hot": True}},
    {"id": "coffee", "features": {"hot": True, "caffeine": 0.9}},
    {"id": "juice", "features": {"hot": False}},
]
REQUEST = {"user": "ben", "context": {"weather": "cold"}, "actions": [{"id": drink["id"]} for drink in MENU]}


def decide_and_reward(client: httpx.Client, favourite: str) -> float:
    """Return what a decision earned: 1 if it was the favorite."""
    decision = client.post("/v1/rank", json=REQUEST).raise_for_status().json()
    reward = float(decision["action"] == favourite)
    path = f"/v1/events/{quote(decision['event_id'], safe='')}/reward"
    client.post(path, json={"value": reward}).raise_for_status()
    return reward


def explain(client: httpx.Client) -> None:
    decision = client.post("/v1/rank", json={**REQUEST, "explain": True}).raise_for_status().json()
    for why in decision["explanations"]:
        print(f"{why['id']}: {why['shared']:+.2f} shared by all, {why['personal']:+.2f} personal")


def batch(client: httpx.Client) -> None:
    requests = [REQUEST, {**REQUEST, "exclude": ["juice"]}]
    results = client.post("/v1/rank/batch", json={"requests": requests}).raise_for_status().json()["results"]
    print("in a batch:", [(result["action"], round(result["probability"], 3)) for result in results])


def page(client: httpx.Client) -> None:
    """Fill two places of a page, no drink twice, and reward the second, which has an event of its own."""
    slots = [{"id": "top", "features": {"size": 3}}, {"id": "side", "features": {"size": 1}}]
    filled = client.post("/v1/rank/slots", json={**REQUEST, "slots": slots}).raise_for_status().json()["slots"]
    print("on a page:", {slot["id"]: (slot["action"], round(slot["probability"], 3)) for slot in filled})
    path = f"/v1/events/{quote(filled[1]['event_id'], safe='')}/reward"
    client.post(path, json={"value": 1}).raise_for_status()


def second_loop(client: httpx.Client) -> None:
    """Make a loop with settings of its own, change them, ask it, and delete it."""
    settings = {"policy": "squarecb", "wait_time": 60}
    client.post("/v1/loops", json={"name": "library", "settings": settings}).raise_for_status()
    changed = client.put("/v1/loops/library/settings", json={"epsilon": 0.2}).raise_for_status().json()
    print(f"settings of version {changed['version']}: epsilon {changed['settings']['epsilon']}")
    actions = [{"id": "book", "features": {"pages": 300}}, {"id": "map", "features": {"pages": 1}}]
    print(
        "picked:", client.post("/v1/loops/library/rank", json={"actions": actions}).raise_for_status().json()["action"]
    )
    client.delete("/v1/loops/library").raise_for_status()


def export_and_evaluate(client: httpx.Client) -> None:
    Path("events.jsonl").write_bytes(client.get("/v1/events").raise_for_status().content)
    wanted = {"policies": ["uniform", "constant:coffee"], "estimators": ["snips"]}
    print("estimated:", client.post("/v1/evaluations", json=wanted).raise_for_status().json())


with httpx.Client(base_url=URL, timeout=30) as client:
    client.put("/v1/actions", json={"put": MENU}).raise_for_status()
    earned = [decide_and_reward(client, "coffee") for _ in range(30)]
    print(f"reward of the first ten {sum(earned[:10]) / 10:.1f}, of the last ten {sum(earned[-10:]) / 10:.1f}")
    explain(client)
    batch(client)
    page(client)
    second_loop(client)
    export_and_evaluate(client)

"""What the service has learned after rounds over real HTTP."""

import asyncio
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest

DRINKS = ["tea", "coffee", "juice", "water", "milk"]
ACTIONS = [{"id": drink, "features": {"kind": drink}} for drink in DRINKS]
USERS = [f"user-{k}" for k in range(20)]
WEATHERS = ("cold", "hot")
SETTINGS = {"epsilon": 0.2, "update_interval": 0.001}


@contextmanager
def service(folder):
    command = [Path(sys.executable).with_name("fedres"), "serve", "--port", "0", "--store", f"sqlite:///{folder}/s.db"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield next(found[1] for line in process.stdout if (found := re.search(r"page +(http://\S+)/", line)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
    assert process.returncode == 0


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with service(tmp_path_factory.mktemp("service")) as running:
        yield running


def request(user, weather, **fields):
    return {"user": user, "context": {"weather": weather}, "actions": ACTIONS, **fields}


async def rank(client, loop, requests):
    reply = await client.post(f"/v1/loops/{loop}/rank/batch", json={"requests": requests})
    return reply.raise_for_status().json()["results"]


async def play(client, loop, best, n_rounds, rng):
    """Let every user decide once in turn; the best action earns 1 nine times in ten, any other once in ten."""
    (await client.post("/v1/loops", json={"name": loop, "settings": SETTINGS})).raise_for_status()
    for t in range(n_rounds // len(USERS)):
        weathers = rng.choice(WEATHERS, len(USERS)).tolist()
        asked = [request(user, weather, event_id=f"{user}-{t}") for user, weather in zip(USERS, weathers, strict=True)]
        decisions = await rank(client, loop, asked)
        for user, weather, decision in zip(USERS, weathers, decisions, strict=True):
            value = float(rng.random() < (0.9 if decision["action"] == best(user, weather) else 0.1))
            path = f"/v1/loops/{loop}/events/{decision['event_id']}/reward"
            (await client.post(path, json={"value": value})).raise_for_status()


async def share_right(client, loop, best, users):
    """Return how often the highest score is the best action's."""
    cells = [(user, weather) for user in users for weather in WEATHERS]
    found = await rank(client, loop, [request(*cell) for cell in cells])
    return np.mean([one["ranking"][0]["id"] == best(*cell) for cell, one in zip(cells, found, strict=True)])


def test_after_2000_rounds_nine_in_ten_greedy_picks_are_what_that_user_likes(url):
    def favourite(user, _):
        return DRINKS[USERS.index(user) % len(DRINKS)]

    async def run():
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            await play(client, "personal", favourite, 2000, np.random.default_rng(0))
            await client.get("/v1/loops/personal/model")  # returns once all is learned
            return await share_right(client, "personal", favourite, USERS)

    assert asyncio.run(run()) > 0.9


def test_a_new_user_is_first_offered_what_others_like_in_that_weather(url):
    def liked(_, weather):
        return "tea" if weather == "cold" else "juice"

    async def run():
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            await play(client, "shared", liked, 600, np.random.default_rng(1))
            await client.get("/v1/loops/shared/model")
            return await share_right(client, "shared", liked, [f"new-{k}" for k in range(20)])

    assert asyncio.run(run()) > 0.8


READERS = USERS[:10]
SEEN = {"top": 1.0, "side": 0.6}  # how often a user looks at a slot
LIKED = (0.95, 0.6, 0.02)  # how often a user who looks clicks: on the favourite, the next best, any other


def likes(user):
    k = USERS.index(user)
    return DRINKS[k % 5], DRINKS[(k + 1 + k // 5) % 5]


async def pages(client, loop):
    """Return what each reader is shown in the two slots."""
    page = {"actions": ACTIONS, "slots": [{"id": slot} for slot in SEEN]}
    replies = await asyncio.gather(
        *[client.post(f"/v1/loops/{loop}/rank/slots", json={"user": user, **page}) for user in READERS]
    )
    return [reply.raise_for_status().json()["slots"] for reply in replies]


async def click(client, loop, user, slot, rng):
    liked = LIKED[[*likes(user), slot["action"]].index(slot["action"])]
    value = float(rng.random() < SEEN[slot["id"]] * liked)
    reply = await client.post(f"/v1/loops/{loop}/events/{slot['event_id']}/reward", json={"value": value})
    reply.raise_for_status()


def test_slots_show_what_that_user_likes_best_and_next_though_one_of_them_is_seen_less(url):
    async def run():
        settings, rng = {**SETTINGS, "epsilon": 0.4}, np.random.default_rng(2)
        async with httpx.AsyncClient(base_url=url, timeout=30, trust_env=False) as client:
            (await client.post("/v1/loops", json={"name": "pages", "settings": settings})).raise_for_status()
            for _ in range(60):
                shown = zip(READERS, await pages(client, "pages"), strict=True)
                await asyncio.gather(
                    *[click(client, "pages", user, slot, rng) for user, page in shown for slot in page]
                )
            await client.put("/v1/loops/pages/settings", json={**settings, "policy": "greedy"})
            return await pages(client, "pages")

    shown = [slot["action"] for page in asyncio.run(run()) for slot in page]
    best = [drink for user in READERS for drink in likes(user)]
    assert np.mean(np.array(shown) == best) > 0.7

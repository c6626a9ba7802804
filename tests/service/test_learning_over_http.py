"""What the service has learned after rounds over real HTTP."""

import json
from http.client import HTTPConnection

import numpy as np
import pytest
from forked import FEDRES
from serving import served
from waiting import LIMIT

DRINKS = ["tea", "coffee", "juice", "water", "milk"]
ACTIONS = [{"id": drink, "features": {"kind": drink}} for drink in DRINKS]
USERS = [f"user-{k}" for k in range(20)]
WEATHERS = ("cold", "hot")
SETTINGS = {"epsilon": 0.2, "update_interval": 0.005}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with served([FEDRES, "serve"], tmp_path_factory.mktemp("service")) as (address, _):
        yield address


class Caller:
    """Connections that are kept; a request costs a fraction of what it does with httpx."""

    def __init__(self, url):
        self.connections = [HTTPConnection(url.removeprefix("http://"), timeout=LIMIT) for _ in USERS]

    def ask(self, method, path, body=None):
        [answer] = self.ask_all(method, [(path, body)])
        return answer

    def ask_all(self, method, requests):
        """Return the answers to requests, paths and bodies, that are made together: their records share a commit."""
        made = list(zip(self.connections, requests, strict=False))
        assert len(made) == len(requests)
        for connection, (path, body) in made:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        return [answer(connection.getresponse()) for connection, _ in made]

    def close(self):
        for connection in self.connections:
            connection.close()


def answer(reply):
    content = reply.read()
    assert reply.status < 300, content
    return json.loads(content) if reply.getheader("content-type") == "application/json" else content


@pytest.fixture
def caller(url):
    made = Caller(url)
    yield made
    made.close()


def request(user, weather, **fields):
    return {"user": user, "context": {"weather": weather}, "actions": ACTIONS, **fields}


def rank(caller, loop, requests):
    return caller.ask("POST", f"/v1/loops/{loop}/rank/batch", {"requests": requests})["results"]


def reward(caller, loop, values):
    """Tell the rewards of events; return once all is learned and published, whatever the speed of the service."""
    rewards = [(f"/v1/loops/{loop}/events/{event}/reward", {"value": value}) for event, value in values.items()]
    caller.ask_all("POST", rewards)
    caller.ask("GET", f"/v1/loops/{loop}/model")


def play(caller, loop, best, n_rounds, rng):
    """Let every user decide once in turn; the best action earns 1 nine times in ten, any other once in ten."""
    caller.ask("POST", "/v1/loops", {"name": loop, "settings": SETTINGS})
    for t in range(n_rounds // len(USERS)):
        weathers = rng.choice(WEATHERS, len(USERS)).tolist()
        requests = [
            request(user, weather, event_id=f"{user}-{t}") for user, weather in zip(USERS, weathers, strict=True)
        ]
        values = {}
        for user, weather, decision in zip(USERS, weathers, rank(caller, loop, requests), strict=True):
            chance = 0.9 if decision["action"] == best(user, weather) else 0.1
            values[decision["event_id"]] = float(rng.random() < chance)
        reward(caller, loop, values)


def share_right(caller, loop, best, users):
    """Return how often the highest score is the best action's."""
    cells = [(user, weather) for user in users for weather in WEATHERS]
    decisions = rank(caller, loop, [request(*cell) for cell in cells])
    return np.mean([one["ranking"][0]["id"] == best(*cell) for cell, one in zip(cells, decisions, strict=True)])


def test_after_1200_rounds_nine_in_ten_greedy_picks_are_what_that_user_likes(caller):
    def favourite(user, _):
        return DRINKS[USERS.index(user) % len(DRINKS)]

    play(caller, "personal", favourite, 1200, np.random.default_rng(0))
    assert share_right(caller, "personal", favourite, USERS) > 0.9


def test_a_new_user_is_first_offered_what_others_like_in_that_weather(caller):
    def liked(_, weather):
        return "tea" if weather == "cold" else "juice"

    play(caller, "shared", liked, 400, np.random.default_rng(1))
    assert share_right(caller, "shared", liked, [f"new-{k}" for k in range(20)]) > 0.8


READERS = USERS[:10]
SEEN = {"top": 1.0, "side": 0.6}  # how often a user looks at a slot
LIKED = (0.95, 0.6, 0.02)  # how often a user who looks clicks: on the favourite, the next best, any other


def likes(user):
    k = USERS.index(user)
    return DRINKS[k % 5], DRINKS[(k + 1 + k // 5) % 5]


def pages(caller, loop, t):
    """Return what each reader is shown in the two slots in round t."""
    page = {"actions": ACTIONS, "slots": [{"id": slot} for slot in SEEN]}
    requests = [{"user": user, "event_id": f"{user}-{t}", **page} for user in READERS]
    return [
        filled["slots"] for filled in caller.ask_all("POST", [(f"/v1/loops/{loop}/rank/slots", x) for x in requests])
    ]


def is_clicked(user, slot, rng):
    liked = LIKED[[*likes(user), slot["action"]].index(slot["action"])]
    return float(rng.random() < SEEN[slot["id"]] * liked)


def test_slots_show_what_that_user_likes_best_and_next_though_one_of_them_is_seen_less(caller):
    settings, rng = {**SETTINGS, "epsilon": 0.4}, np.random.default_rng(2)
    caller.ask("POST", "/v1/loops", {"name": "pages", "settings": settings})
    for t in range(60):
        shown = zip(READERS, pages(caller, "pages", t), strict=True)
        clicks = {slot["event_id"]: is_clicked(user, slot, rng) for user, page in shown for slot in page}
        reward(caller, "pages", clicks)
    caller.ask("PUT", "/v1/loops/pages/settings", {**settings, "policy": "greedy"})
    shown = [slot["action"] for page in pages(caller, "pages", 60) for slot in page]
    best = [drink for user in READERS for drink in likes(user)]
    assert np.mean(np.array(shown) == best) > 0.7

"""Records the examples of the API's description, by playing requests against an empty service.

    fedres serve --port 8000        # in an empty folder
    PYTHONPATH=. python docs/api_examples.py http://127.0.0.1:8000

writes ``service/http/examples.json``. Tests play the same requests, and check replies against the schemas.
"""

from __future__ import annotations

import base64
import json
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import numpy as np

FILE = Path(__file__).parents[1] / "service" / "http" / "examples.json"
MOST_SHOWN = 3  # entries of a list in a reply
JSON = "application/json"
LINES = "application/x-ndjson"
MSGPACK = "application/msgpack"
DRINKS = [{"id": "tea", "features": {"hot": True}}, {"id": "juice", "features": {"hot": False}}]
ARTICLES = [
    {"id": "n1", "features": {"topic": "sport", "words": 300}},
    {"id": "n2", "features": {"topic": "sport", "words": 900}},
    {"id": "n3", "features": {"topic": "science", "words": 1200}},
    {"id": "n4", "features": {"topic": "science", "words": 500}},
]
EXPERIMENT = {"share": 0.3, "baseline": "uniform", "experiment": "spring"}
SHOP = {
    "outcomes": {"click": 60, "purchase": 3600},
    "formula": "0.2 * click + 0.8 * min(purchase, 1)",
    "guardrails": [{"outcome": "purchase", "fall": 0.5, "revert": True}],
    "control": EXPERIMENT,
    "wait_time": 3600,
}


SOON = {"outcomes": {"click": 1, "purchase": 1}, "wait_time": 1}  # so that events finish while we wait


class Recorder:
    """Sends requests to a service and keeps the examples."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self.examples: list[dict[str, Any]] = []

    def send(
        self,
        route: str,
        body: Any = None,
        *,
        media_type: str = JSON,
        path: dict[str, str] | None = None,
        query: dict[str, Any] | None = None,
        is_refused: bool = False,
    ) -> httpx.Response:
        """Send a request; raise if it is refused, or if it should be and is not."""
        method, url = route.split(" ")
        for name, value in (path or {}).items():
            url = url.replace(f"{{{name}}}", quote(value, safe=""))
        content = None if body is None else encoded(body, media_type)
        headers = {} if body is None else {"content-type": media_type}
        response = self._http.request(method, url, params=query, content=content, headers=headers)
        assert response.is_success != is_refused, f"{route}: {response.status_code} {response.text}"
        return response

    def example(self, summary: str, route: str, body: Any = None, **options: Any) -> Any:
        """Send a request and keep it with its reply as an example; return the reply."""
        response = self.send(route, body, **options)
        kept: dict[str, Any] = {"route": route, "summary": summary, "status": response.status_code}
        kept |= {name: options[name] for name in ("path", "query", "media_type") if name in options}
        if body is not None and not isinstance(body, bytes):
            kept["body"] = body
        reply = decoded(response)
        if reply is not None:
            kept["reply"] = shortened(reply)
        self.examples.append(kept)
        return reply

    def settle(self, loop: str, waiting: int | None = None) -> None:
        """Wait until all that is logged is learned, and a loop has so many events that wait for a reward."""
        until = time.monotonic() + 300
        while True:
            status = self.send("GET /v1/status").json()
            is_waiting = waiting is not None and status["loops"][loop]["waiting_events"] > waiting
            if status["learned_position"] >= status["position"] and not is_waiting:
                return
            assert time.monotonic() < until, f"{loop} is not learned"
            time.sleep(0.05)


def encoded(body: Any, media_type: str) -> bytes:
    """Return a body as it is sent; bytes in msgpack are base64 in the example."""
    if media_type == LINES:
        return str(body).encode()
    if media_type == MSGPACK:
        updates = [{**update, "body": base64.b64decode(update["body"])} for update in body["updates"]]
        return msgspec.msgpack.encode({**body, "updates": updates})
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def decoded(response: httpx.Response) -> Any:
    """Return the reply of an example: JSON, or text; None for bytes and for no content."""
    media_type = response.headers.get("content-type", "").partition(";")[0]
    if media_type == JSON:
        reply = response.json()
        if response.url.path == "/v1/status":
            reply["loops"] = {"default": reply["loops"]["default"]}
        return reply
    if media_type == LINES:
        return "".join(response.text.splitlines(keepends=True)[:MOST_SHOWN])
    if media_type == "text/plain":
        return "\n".join(line for line in response.text.splitlines() if "fedres_ranks" in line)
    return None


def shortened(value: Any) -> Any:
    """Return a reply with at most three entries of each list, and digits that a reader can compare."""
    if isinstance(value, dict):
        return {name: shortened(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner) for inner in value[:MOST_SHOWN]]
    if isinstance(value, float):
        return float(f"{value:.4g}") if abs(value) < 1e6 else round(value, 3)
    return value


def play(http: httpx.Client) -> list[dict[str, Any]]:
    """Play all examples against an empty service, and return them."""
    recorder = Recorder(http)
    decide(recorder)
    many(recorder)
    manage(recorder)
    recommend(recorder)
    experiment(recorder)
    users(recorder)
    devices(recorder)
    operate(recorder)
    erase(recorder)
    return recorder.examples


def decide(recorder: Recorder) -> None:
    """Decide and reward single events."""
    body = {"event_id": "visit-1", "user": "anna", "context": {"weather": "cold"}, "actions": DRINKS}
    recorder.example("Two drinks for a user", "POST /v1/rank", body)
    click = {"value": 1, "id": "click-7"}
    recorder.example("A click", "POST /v1/events/{event_id}/reward", click, path={"event_id": "visit-1"})
    for n in range(40):
        visit = {"event_id": f"cup-{n}", "user": "anna", "context": {"weather": "cold"}, "actions": DRINKS}
        action = recorder.send("POST /v1/rank", visit).json()["action"]
        recorder.send(
            "POST /v1/events/{event_id}/reward", {"value": float(action == "tea")}, path={"event_id": f"cup-{n}"}
        )
    recorder.settle("default")
    wrong = {"user": "anna", "actions": [{"id": "tea"}, {"id": "tea"}]}
    recorder.example("An action that comes twice", "POST /v1/rank", wrong, is_refused=True)
    more = {
        **body,
        "event_id": "visit-2",
        "actions": [*DRINKS, {"id": "milk"}],
        "exclude": ["milk"],
        "defer": True,
        "explain": True,
    }
    recorder.example("All fields", "POST /v1/rank", more)
    recorder.example("A deferred event", "POST /v1/events/{event_id}/activate", path={"event_id": "visit-2"})


def many(recorder: Recorder) -> None:
    """Decide and reward several events in one call."""
    actions = [{"id": "tea"}, {"id": "juice"}]
    requests = [{"event_id": f"visit-{n}", "user": user, "actions": actions} for n, user in ((3, "ben"), (4, "cleo"))]
    recorder.example("Two users", "POST /v1/rank/batch", {"requests": requests})
    slots = {
        "event_id": "page-1",
        "user": "anna",
        "context": {"weather": "cold"},
        "actions": [*DRINKS, {"id": "milk"}],
        "slots": [
            {"id": "top", "features": {"size": 3}, "baseline": "milk"},
            {"id": "side", "features": {"size": 1}, "exclude": ["milk"]},
        ],
        "defer": False,
    }
    recorder.example("Two slots of a page", "POST /v1/rank/slots", slots)
    rewards = [
        {"event_id": "visit-3", "value": 1, "id": "click-8"},
        {"event_id": "visit-4", "value": 0},
        {"event_id": "visit-2", "activate": True},
    ]
    recorder.example("Two rewards and an activation", "POST /v1/events/rewards", {"rewards": rewards})
    recorder.send("POST /v1/events/{event_id}/reward", {"value": 1, "id": "c1"}, path={"event_id": "never-decided"})
    recorder.settle("default")
    recorder.example("A reward whose event is unknown", "GET /v1/rewards/unmatched")


def manage(recorder: Recorder) -> None:
    """Create, change and list loops, and fill a catalogue."""
    recorder.example("A loop with an experiment", "POST /v1/loops", {"name": "shop", "settings": SHOP})
    recorder.example("Names", "GET /v1/loops")
    recorder.example("A shorter wait", "PATCH /v1/settings", {"wait_time": 300})
    recorder.example("All settings", "GET /v1/settings")
    replaced = {"policy": "squarecb", "gamma": 20, "wait_time": 300, "annotations": {"team": "web"}}
    recorder.example("Another policy", "PUT /v1/settings", replaced)
    recorder.send("POST /v1/loops", {"name": "old"})
    recorder.example("A loop that ends", "DELETE /v1/loops/{loop}", path={"loop": "old"})
    recorder.send("PUT /v1/actions", {"put": [{"id": "n0"}]})
    recorder.example("New articles", "PUT /v1/actions", {"put": ARTICLES, "retire": ["n0"]})
    recorder.example("The articles", "GET /v1/actions")


def recommend(recorder: Recorder) -> None:
    """Fill pages from the catalogue."""
    simple = {"n": 2, "user": "anna", "event_id": "page-2"}
    recorder.example("Two articles", "POST /v1/recommend", simple)
    full = {
        "n": 1,
        "user": "anna",
        "context": {"device": "phone"},
        "filter": {"topic": "science"},
        "exclude": ["n4"],
        "exclude_seen": 3600,
        "event_id": "page-3",
        "defer": False,
        "explain": True,
    }
    recorder.send("POST /v1/recommend", {**full, "exclude_seen": False, "event_id": "page-4"})
    recorder.example("All fields", "POST /v1/recommend", {**full, "user": "dora"})
    event = {
        "action": "n3",
        "reward": 1,
        "user": "anna",
        "context": {"device": "phone"},
        "event_id": "mail-17",
        "time": "2026-11-19T09:30:00Z",
    }
    recorder.example("A click in a newsletter", "POST /v1/feedback", {"events": [event]})
    recorder.send("POST /v1/events/{event_id}/reward", {"value": 1}, path={"event_id": "page-2~1"})
    recorder.settle("default")
    recorder.example("Of the last day", "GET /v1/popular", query={"n": 2, "seconds": 86400})
    recorder.example("Like n3", "GET /v1/similar/{item}", path={"item": "n3"}, query={"n": 2})


def experiment(recorder: Recorder) -> None:
    """Play an experiment, and read its results."""
    shop = {"loop": "shop"}
    order = {"event_id": "order-1", "user": "eve", "actions": [{"id": "boots"}, {"id": "hat"}]}
    recorder.example("A loop with a control group", "POST /v1/loops/{loop}/rank", order, path=shop)
    bought = {"outcomes": {"click": 1, "purchase": 1}}
    at = {**shop, "event_id": "order-1"}
    recorder.example("Named outcomes", "POST /v1/loops/{loop}/events/{event_id}/reward", bought, path=at)
    recorder.send("PATCH /v1/loops/{loop}/settings", SOON, path=shop)
    rng = np.random.default_rng(7)
    for visit in range(16):
        requests = [
            {
                "event_id": f"s{visit}-{user}",
                "user": f"u{user}",
                "context": {"device": "phone" if user % 2 else "desk"},
                "actions": [{"id": "boots", "features": {"price": 80}}, {"id": "hat", "features": {"price": 20}}],
            }
            for user in range(90)
        ]
        decisions = recorder.send("POST /v1/loops/{loop}/rank/batch", {"requests": requests}, path=shop).json()
        rewards = [
            {"event_id": decision["event_id"], "outcomes": outcomes(decision, rng)} for decision in decisions["results"]
        ]
        recorder.send("POST /v1/loops/{loop}/events/rewards", {"rewards": rewards}, path=shop)
        recorder.settle("shop")
    recorder.settle("shop", waiting=1)
    while recorder.send("GET /v1/loops/{loop}/report", path=shop).json()["events"] < 1440:
        time.sleep(0.1)
    for summary, route in (
        ("An experiment", "GET /v1/loops/{loop}/lift"),
        ("A loop with an experiment", "GET /v1/loops/{loop}/report"),
        ("A loop with personal models", "GET /v1/loops/{loop}/personal"),
    ):
        recorder.example(summary, route, path=shop)
    changes = {"settings": [{"policy": "epsilon-greedy", "epsilon": 0.2}]}
    recorder.example("More exploration", "POST /v1/loops/{loop}/what-if", changes, path=shop)
    recorder.example("What it decides", "GET /v1/loops/{loop}/actions/report", path=shop)
    recorder.example("The meaning of settings", "GET /v1/settings/schema")
    recorder.example("A reason", "POST /v1/loops/{loop}/hold", {"reason": "wrong prices"}, path=shop)
    recorder.example("A loop that is held", "GET /v1/loops/{loop}/state", path=shop)
    recorder.example("A loop that was held", "POST /v1/loops/{loop}/resume", path=shop)
    recorder.example("A running experiment", "GET /v1/loops/{loop}/experiments", path=shop)
    policies = {"policies": ["uniform"], "estimators": ["snips", "dr"], "time_uniform": True}
    recorder.example("Uniform draws", "POST /v1/loops/{loop}/evaluations", policies, path=shop)


def outcomes(decision: dict[str, Any], rng: np.random.Generator) -> dict[str, float]:
    """Draw what users do: they click on hats more often, and some buy."""
    chance = 0.6 if decision["action"] == "hat" else 0.3
    clicks = float(rng.random() < chance)
    return {"click": clicks, "purchase": clicks * float(rng.random() < 0.5)}


def users(recorder: Recorder) -> None:
    """Read what is stored about an event and a user."""
    recorder.example("The first events", "GET /v1/events", query={"after": 0, "limit": 2})
    recorder.example("An event with a reward", "GET /v1/events/{event_id}", path={"event_id": "visit-1"})
    recorder.example("A user", "GET /v1/users/{user}/decisions", path={"user": "ben"})
    recorder.example("A user", "GET /v1/users/{user}/events", path={"user": "ben"})
    at = {"loop": "shop", "event_id": "s3-4"}
    recorder.example("An event with outcomes", "GET /v1/loops/{loop}/events/{event_id}", path=at)
    recorder.example("A personal model", "GET /v1/users/{user}/model", path={"user": "anna"})


def devices(recorder: Recorder) -> None:
    """Learn with devices, by both kinds of uploads."""
    round_now = recorder.send("GET /v1/federated/round", query={"model": "residual-kalman"}).json()
    residual = {
        "seq": 1,
        "version": round_now["version"],
        "context": {"weather": "cold"},
        "action": DRINKS[0],
        "local": 0.25,
        "label": 1,
        "variance": 0.1,
        "slopes": [1.0, 0.5, 0.2],
    }
    sent = {"client": "phone-8", "residuals": [residual]}
    recorder.example("The default model", "POST /v1/federated/residuals", sent)
    phones = {"loop": "phones"}
    recorder.send("POST /v1/loops", {"name": "phones", "settings": {"model": "adagrad", "timing": "aligned"}})
    aligned = {name: residual[name] for name in ("seq", "context", "action", "local", "label")}
    aligned |= {"version": 1, "global": 0.0}
    sent = {"client": "phone-8", "residuals": [aligned]}
    recorder.example("Model adagrad, timing aligned", "POST /v1/loops/{loop}/federated/residuals", sent, path=phones)
    recorder.settle("phones")
    scored = {"context": {"weather": "cold"}, "actions": DRINKS}
    recorder.example("Two drinks", "POST /v1/loops/{loop}/federated/scores", scored, path=phones)
    settings = {"model": "adagrad", "global_learner": "fedogd", "bits": 3, "hyperparameters": {"n_clients": 2}}
    watches = {"loop": "watches"}
    recorder.send("POST /v1/loops", {"name": "watches", "settings": settings})
    update = {"seq": 1, "t": 1, "version": 1, "kind": "gradient", "body": as_text(np.full(9, 0.125))}
    joining = {"client": "watch-1", "updates": []}
    recorder.send("POST /v1/loops/{loop}/federated/updates", joining, path=watches, media_type=MSGPACK)
    sent = {"client": "watch-1", "updates": [update]}
    recorder.example("A gradient", "POST /v1/loops/{loop}/federated/updates", sent, path=watches, media_type=MSGPACK)
    recorder.settle("watches")
    recorder.example("Weights that changed", "GET /v1/loops/{loop}/federated/model", path=watches, query={"since": 0})
    asked = {"client": "watch-1", "t": 2, "model": "adagrad"}
    recorder.example("A device", "GET /v1/loops/{loop}/federated/round", path=watches, query=asked)
    recorder.example("All devices", "GET /v1/loops/{loop}/federated/round", path=watches, query={"t": 2})
    recorder.example("One device", "GET /v1/loops/{loop}/devices", path=watches)


def as_text(numbers: np.ndarray) -> str:
    """Return numbers as the base64 of their bytes."""
    return base64.b64encode(numbers.astype("<f4").tobytes()).decode()


def operate(recorder: Recorder) -> None:
    """Look at the service."""
    recorder.example("A loop with pages and devices", "GET /v1/report")
    recorder.example("A service", "GET /v1/status")
    recorder.example("All loops", "GET /v1/overview")
    query = {"has": "sh", "state": "running", "limit": 10}
    recorder.example("Loops by name and state", "GET /v1/overview", query=query)
    recorder.example("A service without keys", "GET /v1/key")
    recorder.example("Counts of decisions", "GET /metrics")
    recorder.example("A process that responds", "GET /healthz")
    recorder.example("A service that is ready", "GET /readyz")


def erase(recorder: Recorder) -> None:
    """Move a model, and erase users."""
    model = recorder.send("GET /v1/model").content
    recorder.example("A model file", "GET /v1/model")
    recorder.example("A model file", "PUT /v1/model", model, media_type="application/octet-stream")
    recorder.example("A user", "DELETE /v1/users/{user}", path={"user": "ben"})
    recorder.example("A user", "DELETE /v1/loops/{loop}/users/{user}", path={"loop": "shop", "user": "u1"})
    recorder.example("A user", "GET /v1/loops/{loop}/users/{user}/events", path={"loop": "shop", "user": "u2"})


if __name__ == "__main__":
    with httpx.Client(base_url=sys.argv[1], timeout=300, trust_env=False) as client:
        examples = play(client)
    FILE.write_text(json.dumps(examples, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{len(examples)} examples of {len({example['route'] for example in examples})} routes: {FILE}")

"""Requests for all routes of the table, drawn from a grammar: right ones, and right ones with something broken."""

import gzip
import json
import random
import urllib.parse

from service.app import declared_routes
from service.http.request import Limits

SLOW = ("/users/{user}", "/evaluations", "/model", "/loops", "/loops/{loop}")  # asked rarely
TEXTS = ["default", "shop", "a", "é", "a/b", "..", "%", "x" * 200, "x" * 201, " ", "\u2028", "a?b#c", "0", "null"]
NASTY = [
    *(None, True, False, 0, -1, 1.5, 1e308, -1e308, 2**63, 2**64, 10**400, 5e-324, "", "x", "x" * 201, "\ud800"),
    *([], {}, [[]], [None], {"": ""}, "💥", "\0", {"a": {"b": {"c": {"d": 1}}}}, [1, "a", None], "NaN", -0.0),
]
FEATURES = [{}, {"x": 1}, {"hour": 3, "tags": ["a", "b"]}, {"a": {"b": [1.5, 2.5]}}, {"t": "text"}, {"f": True}]


class Grammar:
    """Draws requests; the same seed draws the same ones."""

    def __init__(self, seed):
        self.rng = random.Random(f"requests {seed}")
        self.routes = [route for route in declared_routes(None, None, Limits()) if route.path != "/metrics"]
        self.weights = [0.1 if route.path.endswith(SLOW) and route.method != "GET" else 1 for route in self.routes]

    def request(self):
        """Return method, path, headers and body."""
        rng = self.rng
        [route] = rng.choices(self.routes, self.weights)
        method = route.method if rng.random() < 0.97 else rng.choice(["GET", "PUT", "PATCH", "HEAD", "OPTIONS"])
        headers, body = {}, b""
        if route.body_type is not None or method in ("POST", "PUT"):
            headers["Content-Type"] = self.media_type(route)
            body = self.body(route)
            if rng.random() < 0.05:
                body = gzip.compress(body, mtime=0) if rng.random() < 0.5 else body
                headers["Content-Encoding"] = rng.choice(["gzip", "GZIP", "identity", "br"])
        if rng.random() < 0.03:
            headers[rng.choice(["Authorization", "Origin", "Expect", "Range"])] = rng.choice(["Bearer x", "null", "1"])
        return method, self.path(route), headers, body

    def path(self, route):
        path = route.path.replace("{loop}", self.rng.choice(["default", "default", "shop"]))
        for name in ("user", "event_id", "version"):
            usual = ["v1.0"] if name == "version" else ["u1", "e1", f"e{self.rng.randrange(10**6)}"]
            text = self.rng.choice(usual) if self.rng.random() < 0.9 else self.rng.choice(TEXTS)
            path = path.replace("{" + name + "}", urllib.parse.quote(text, safe=""))
        if self.rng.random() < 0.1:
            name = self.rng.choice(["after", "limit", "since", "x"])
            value = self.rng.choice(["0", "1", "-1", "x", "9" * 30, "1.5", ""])
            path += f"?{name}={value}"
        return path

    def media_type(self, route):
        right = route.body_type or "application/json"
        return right if self.rng.random() < 0.97 else self.rng.choice(["text/plain", "", "application/json; charset=x"])

    def body(self, route):
        """Return a body that is right for a route, in two of three cases with something broken."""
        name = route.path.rpartition("/")[2]
        value = getattr(self, f"{name}_body", self.any_body)()
        kind = self.rng.randrange(6)
        if kind == 0:
            value = self.with_change(value)
        text = json.dumps(value).encode()
        if kind == 1:
            at = self.rng.randrange(len(text))
            text = text[:at] + bytes([self.rng.randrange(256)]) + text[at + 1 :]
        elif kind == 2:
            text = text[: self.rng.randrange(len(text))]
        elif kind == 3 and text.startswith(b"{"):
            text = b'{"actions": [], ' + text[1:] if len(text) > 2 else text
        return text

    def with_change(self, value):
        """Return the value with one of its parts replaced, left out or added."""
        rng = self.rng
        if isinstance(value, dict) and value and rng.random() < 0.8:
            name = rng.choice(list(value))
            changed = dict(value)
            if rng.random() < 0.2:
                del changed[name]
            elif rng.random() < 0.2:
                changed[rng.choice(TEXTS)] = rng.choice(NASTY)
            else:
                changed[name] = self.with_change(value[name])
            return changed
        if isinstance(value, list) and value and rng.random() < 0.8:
            at = rng.randrange(len(value))
            return [*value[:at], self.with_change(value[at]), *value[at + 1 :] * rng.choice([1, 1, 200])]
        return rng.choice(NASTY)

    # bodies, by the last part of the path

    def features(self):
        return self.rng.choice(FEATURES)

    def actions(self, n=None):
        return [{"id": f"a{k}", "features": self.features()} for k in range(n or self.rng.randint(1, 5))]

    def rank_body(self):
        body = {"actions": self.actions(), "context": self.features(), "user": self.rng.choice(["u1", "u2"])}
        for name, value in (("event_id", "e1"), ("defer", True), ("explain", True), ("exclude", ["a0"])):
            if self.rng.random() < 0.2:
                body[name] = value
        return body

    def batch_body(self):
        return {"requests": [self.rank_body() for _ in range(self.rng.choice([1, 2, 5, 101]))]}

    def slots_body(self):
        return {"user": "u1", "actions": self.actions(4), "slots": [{"id": "s1"}, {"id": "s2"}]}

    def reward_body(self):
        return {"value": self.rng.choice([0, 1, 0.5, 2, -1]), "id": self.rng.choice(["r1", "r2"])}

    def actions_body(self):
        return {"put": self.actions(), "retire": ["a9"]}

    def settings_body(self):
        return {"epsilon": self.rng.random(), "wait_time": 600, "policy": self.rng.choice(["greedy", "squarecb"])}

    def loops_body(self):
        return {"name": self.rng.choice(["shop", "news", "..", "é"]), "settings": {"bits": 8}}

    def evaluations_body(self):
        return {"policies": ["logged"], "estimators": ["snips"]}

    def residuals_body(self):
        one = {"seq": 1, "version": 1, "context": {}, "action": {"id": "a", "features": {}}, "local": 0, "label": 1}
        return {"client": "phone", "residuals": [one]}

    def any_body(self):
        return self.rng.choice([{}, [], self.rank_body(), self.reward_body(), self.settings_body()])

"""Plays streams of decisions against a running service over HTTP, as a player of ``fedres bench decisions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote
from uuid import uuid4

import httpx

Features = Mapping[str, float]  # by name: "topic=sport" for a string, "price" for a number


class DecisionRound(Protocol):
    """A decision to be made; the first feature of an action is its id."""

    @property
    def user(self) -> str: ...
    @property
    def context(self) -> Mapping[str, float]: ...
    @property
    def actions(self) -> list[dict[str, float]]: ...


class HttpPlayer:
    """Asks the service at ``url``, in a loop of its own with these settings; rewards are sent as they arrive."""

    def __init__(self, url: str, settings: Mapping[str, Any] | None = None) -> None:
        self._client, name = httpx.Client(base_url=url, timeout=60, trust_env=False), f"played-{uuid4().hex[:12]}"
        self._path = f"/v1/loops/{name}"
        self._send("POST", "/v1/loops", {"name": name, "settings": {**(settings or {})}})

    def _send(self, method: str, path: str, body: Any = None) -> httpx.Response:
        try:
            return self._client.request(method, path, json=body).raise_for_status()
        except httpx.HTTPStatusError as error:
            raise ValueError(f"{error.request.url} said {error.response.status_code}: {error.response.text}") from None
        except httpx.HTTPError as error:
            raise ValueError(f"{self._client.base_url} must be a running service, got: {error}") from None

    def decide(self, now: DecisionRound, draw: float) -> tuple[int, str]:
        """Return the action and its event; the service draws by the event's id, and has no use for ``draw``."""
        actions = json_actions(now.actions)
        body = {"user": now.user or None, "context": json_features(now.context), "actions": actions}
        answer = self._send("POST", f"{self._path}/rank", body).json()
        return [action["id"] for action in actions].index(answer["action"]), answer["event_id"]

    def learn(self, token: str, reward: float) -> None:
        self._send("POST", f"{self._path}/events/{quote(token, safe='')}/reward", {"value": reward})

    def close(self) -> None:
        """Delete the loop."""
        self._send("DELETE", self._path)
        self._client.close()


def json_features(named: Features) -> dict[str, Any]:
    """Return features as JSON has them.

    >>> json_features({"topic=sport": 1.0, "word=goal": 1.0, "word=ball": 1.0, "price": 2.5})
    {'topic': 'sport', 'word': ['goal', 'ball'], 'price': 2.5}
    """
    features: dict[str, Any] = {}
    strings: dict[str, list[str]] = {}
    for name, value in named.items():
        field, is_string, text = name.partition("=")
        if is_string:
            texts = strings.setdefault(field, [])
            texts.append(text)
            features[field] = texts if len(texts) > 1 else text
        else:
            features[field] = value
    return features


def json_actions(actions: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return actions with their ids; where two have the same id, all are known by their place and have it as a feature.

    >>> json_actions([{"_id=a": 1.0, "price": 2.0}])
    [{'id': 'a', 'features': {'price': 2.0}}]
    """
    ids = [next(iter(action)).partition("=")[2] for action in actions]
    features = [json_features(dict([*action.items()][1:])) for action in actions]
    if len(set(ids)) == len(ids):
        return [{"id": name, "features": own} for name, own in zip(ids, features, strict=True)]
    return [
        {"id": str(k), "features": {"kind": name, **own}}
        for k, (name, own) in enumerate(zip(ids, features, strict=True))
    ]

"""Plays streams of decisions against a running service over HTTP, as a player of ``fedres bench decisions``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote
from uuid import uuid4

from service.demo import Client

Features = Mapping[str, float]  # by name: "topic=sport" for a string, "price" for a number


class Round(Protocol):
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
        self._client, self._loop = Client(url), f"played-{uuid4().hex[:12]}"
        self._client.ask("POST", "/v1/loops", {"name": self._loop, "settings": {**(settings or {})}})

    def decide(self, now: Round, draw: float) -> tuple[int, str]:
        """Return the action and its event; the service draws by the event's id, and has no use for ``draw``."""
        actions = json_actions(now.actions)
        asked = {"user": now.user, "context": json_features(now.context), "actions": actions}
        answer = self._client.ask("POST", f"/v1/loops/{self._loop}/rank", asked)
        return [action["id"] for action in actions].index(answer["action"]), answer["event_id"]

    def learn(self, token: str, reward: float) -> None:
        self._client.ask("POST", f"/v1/loops/{self._loop}/events/{quote(token, safe='')}/reward", {"value": reward})

    def wait(self) -> None:
        """Return once all that was rewarded is learned and published."""
        self._client.ask("GET", f"/v1/loops/{self._loop}/rewards/unmatched")

    def close(self) -> None:
        """Delete the loop."""
        self._client.ask("DELETE", f"/v1/loops/{self._loop}")


def json_features(named: Features) -> dict[str, Any]:
    """Return features as JSON has them.

    >>> json_features({"topic=sport": 1.0, "price": 2.5})
    {'topic': 'sport', 'price': 2.5}
    """
    found: dict[str, Any] = {}
    for name, value in named.items():
        field, is_string, text = name.partition("=")
        found[field] = text if is_string else value
    return found


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

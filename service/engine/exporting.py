"""Stored events with what came of them, as ``bandits.logs`` reads them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from service.engine.given import GivenReader
from service.engine.joining import Case, Join, Rules
from service.engine.learner import rules_of
from service.engine.records import (
    ACTIVATE,
    RANK,
    REWARD,
    Inline,
    LoggedRank,
    Offered,
    encode,
    read_actions,
    read_offered,
    read_rank,
    read_reward,
)
from service.engine.settings import Settings
from service.store import Entry, EventLog

CHUNK = 500
ABOUT = (RANK, REWARD, ACTIVATE)  # an upload of a device may have the id of a decision, but is none
_NO_CASE = Case(None, b"", b"", 0, 0.0)


class Exporter:
    """Reads ``log``, which nobody else should wait for."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._settings = lru_cache(maxsize=1_000)(self._read_settings)
        self._given = GivenReader(log)
        self._catalogue = lru_cache(maxsize=100)(self._read_catalogue)

    def events(self, loop: str, after: int, limit: int | None) -> Iterator[dict[str, Any]]:
        """Yield at most ``limit`` events after position ``after`` of the log, oldest first, each with its own."""
        now, left = self._log.last_time(), limit
        while left is None or left > 0:
            entries = self._log.read(after, CHUNK, loop)
            if not entries:
                return
            after = entries[-1].seq
            ranks = [entry for entry in entries if entry.kind == RANK][:left]
            left = None if left is None else left - len(ranks)
            yield from self._joined(loop, ranks, now)

    def close(self) -> None:
        self._log.close()

    def rank_of(self, loop: str, event: str) -> tuple[Entry, LoggedRank] | None:
        """Return an event's decision, None if there is none; features that came with the request are in it."""
        for entry in self._log.of_event(loop, event):
            if entry.kind == RANK:
                return entry, self._read_whole(entry)
        return None

    def ranks_of(self, loop: str, events: list[str]) -> dict[str, tuple[Entry, LoggedRank]]:
        """Return the decisions of those events that there are."""
        entries = [entry for entry in self._log.of_events(loop, events) if entry.kind == RANK]
        return {str(entry.event): (entry, self._read_whole(entry)) for entry in entries}

    def _read_whole(self, entry: Entry) -> LoggedRank:
        """Return a decision as it would be had no features been stored apart."""
        rank = read_rank(entry.body)
        offered = [read_offered(raw) for raw in rank.actions]
        rank.actions = [
            msgspec.Raw(encode(Inline(action.id, self._features(action)))) if action.given else raw
            for raw, action in zip(rank.actions, offered, strict=True)
        ]
        return rank

    def _joined(self, loop: str, ranks: list[Entry], now: int) -> Iterator[dict[str, Any]]:
        about: dict[str | None, list[Entry]] = {}
        for entry in self._log.of_events(loop, [entry.event for entry in ranks if entry.event is not None]):
            if entry.kind in ABOUT:
                about.setdefault(entry.event, []).append(entry)
        for entry in ranks:
            if entry.event in about:  # else it was erased this moment
                yield self._event(entry, about[entry.event], now)

    def _event(self, entry: Entry, about: list[Entry], now: int) -> dict[str, Any]:
        body = read_rank(entry.body)
        status, reward = outcome(about, self._rules(body.settings), now)
        offered = [read_offered(raw) for raw in body.actions]
        features = [self._features(action) for action in offered]
        excluded = set(body.exclude)
        allowed = [k for k, action in enumerate(offered) if action.id not in excluded]
        return {
            "event_id": entry.event,
            "time": datetime.fromtimestamp(entry.time / 1e6, UTC).isoformat(timespec="microseconds"),
            "user": entry.user,
            "context": _plain(body.context),
            "actions": [{"id": offered[k].id, "features": _plain(features[k])} for k in allowed],
            "action": offered[body.action].id,
            "probability": body.probabilities[body.action],
            "probabilities": [body.probabilities[k] for k in allowed],
            "model_version": body.version,
            "reward": reward,
            "status": status,
            "position": entry.seq,
        }

    def _features(self, action: Offered) -> msgspec.Raw:
        if action.given:
            return msgspec.Raw(self._given.features(action.given, action.id))
        return self._catalogue(action.put)[action.id] if action.put else action.features

    def _rules(self, position: int) -> Rules:
        return rules_of(self._settings(position))

    def _read_settings(self, position: int) -> Settings:
        [entry] = self._log.read(position - 1, 1)
        return msgspec.json.decode(entry.body, type=Settings)

    def _read_catalogue(self, position: int) -> dict[str, msgspec.Raw]:
        [entry] = self._log.read(position - 1, 1)
        return {action.id: action.features for action in read_actions(entry.body).put}


def outcome(about: list[Entry], rules: Rules, now: int) -> tuple[str, float | None]:
    """Return the status and the reward of the event that all entries are about, at the log's time ``now``."""
    join, reward, event = Join(), None, str(about[0].event)
    for entry in about:
        found = [*join.expire(entry.time), _joined(join, entry, rules)]
        reward = next((settled.reward for settled in found if settled is not None), reward)
    reward = next((settled.reward for settled in join.expire(now)), reward)
    return join.slots[event].status, reward


def _joined(join: Join, entry: Entry, rules: Rules) -> Any:
    event, seq, time = str(entry.event), entry.seq, entry.time
    if entry.kind == RANK:
        return join.rank(event, seq, time, rules, _NO_CASE, read_rank(entry.body).deferred)
    if entry.kind == REWARD:
        body = read_reward(entry.body)
        return join.reward(event, seq, time, body.value, body.key(), rules)
    return join.activate(event, seq, time, rules)


def _plain(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)

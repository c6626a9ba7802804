"""Exports of logged events with their rewards, in the format of ``bandits.evaluation``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from service.learn.join import Decided, Join, Rules, Settled
from service.learn.loop_state import read_settings_body, rules_of
from service.log.protocol import Log
from service.log.records import (
    ACTIVATE,
    RANK,
    REWARD,
    Entry,
    HashedExample,
    LoggedAction,
    decode_actions,
    decode_rank,
    read_decision,
    read_reward,
)
from service.times import iso_time

if TYPE_CHECKING:
    from service.log.workers import Worker

CHUNK = 500
MOST_LINES, MOST_BYTES = 500, 1 << 20  # of a piece of an export
FEEDBACK = "feedback"  # the status of an action that was chosen elsewhere
NO_FEATURES = msgspec.Raw(b"{}")  # of an action named by its id that is not in the catalogue
ABOUT = (RANK, REWARD, ACTIVATE)  # a device's upload may have the id of a decision, but is not one
_NO_FEATURES = HashedExample(b"", b"", 0)
_encode, _decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode


class Exporter:
    """Reads the log of a store."""

    def __init__(self, log: Log, created_at: int = 0) -> None:
        self._log, self._created_at = log, created_at  # earlier records are of a deleted loop
        self._rules = lru_cache(maxsize=1_000)(self._read_rules)
        self._catalogue = lru_cache(maxsize=100)(self._read_catalogue)

    def events(self, loop: str, after: int, limit: int | None, user: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield at most ``limit`` events behind position ``after``, oldest first, each with its reward.

        With a ``user``, those of that user only.
        """
        left = limit
        while left is None or left > 0:
            now = self._log.heads()[loop].time
            if user is None:
                entries = self._log.read(loop, after, CHUNK)
            else:
                entries = self._log.of_user(loop, user, after, CHUNK)
            if not entries:
                return
            ranks = [entry for entry in entries if entry.kind == RANK]
            exported = ranks[:left]
            after = entries[-1].position if len(exported) == len(ranks) else exported[-1].position
            about = self._about(loop, [entry.event for entry in exported if entry.event is not None])
            for entry in exported:
                if entry.event in about:  # else it was just erased
                    yield self._event(entry, about[entry.event], now)
                    left = None if left is None else left - 1

    def stories(self, loop: str, events: list[str]) -> Iterator[tuple[dict[str, Any], list[Entry]]]:
        """Yield the existing ones of the events, each with all records about it."""
        now = self._log.heads()[loop].time
        for about in self._about(loop, events).values():
            for entry in about:
                if entry.kind == RANK:
                    yield self._event(entry, about, now), about

    def _about(self, loop: str, events: list[str]) -> dict[str | None, list[Entry]]:
        about: dict[str | None, list[Entry]] = {}
        for entry in self._log.find(loop, events):
            if entry.kind in ABOUT and entry.position > self._created_at:
                about.setdefault(entry.event, []).append(entry)
        return about

    def _event(self, entry: Entry, about: list[Entry], now: int) -> dict[str, Any]:
        body = decode_rank(entry.body)
        status, reward, outcomes = outcome(about, self._rules(entry.loop, body.settings), now)
        excluded = set(body.exclude)
        allowed = [k for k, action in enumerate(body.actions) if action.id not in excluded]
        offered = [body.actions[k] for k in allowed]
        actions = [{"id": action.id, "features": _decode(self._features(entry.loop, action))} for action in offered]
        event = {
            "event_id": entry.event,
            "time": time_of(entry),
            "user": entry.user,
            "context": _decode(body.context),
            "actions": actions,
            "action": body.actions[body.action].id,
            "probability": None if body.is_feedback else body.probabilities[body.action],
            "probabilities": None if body.is_feedback else [body.probabilities[k] for k in allowed],
            "model_version": body.version,
            "arm": body.arm,
            "reward": reward,
            "outcomes": outcomes or None,
            "status": status,
            "position": entry.position,
        }
        if body.is_feedback:
            event |= {"status": FEEDBACK, "happened": None if body.happened is None else body.happened / 1e6}
        if body.page is not None:  # of all candidates, only the drawn one is logged
            event |= {"probabilities": None, "place": body.page.place, "candidates": body.page.candidates}
        return event

    def _features(self, loop: str, action: LoggedAction) -> msgspec.Raw:
        return self._catalogue(loop, action.put)[action.id] if action.put else action.features or NO_FEATURES

    def _read_rules(self, loop: str, position: int) -> Rules:
        [entry] = self._log.read(loop, position - 1, 1)
        return rules_of(read_settings_body(entry.body))

    def _read_catalogue(self, loop: str, position: int) -> dict[str, msgspec.Raw]:
        [entry] = self._log.read(loop, position - 1, 1)
        return {action.id: action.features for action in decode_actions(entry.body).put}


def exporter(worker: Worker, loop: str, created_at: int) -> Exporter:
    """Return an exporter of a loop; it remembers the settings and catalogues it has read."""
    return worker.kept(_exporter, worker, loop, created_at)


def _exporter(worker: Worker, loop: str, created_at: int) -> Exporter:
    return Exporter(worker.log, created_at)


def export_lines(
    worker: Worker, loop: str, created_at: int, after: int, limit: int | None, user: str | None
) -> tuple[bytes, int]:
    """Return some events behind a position as JSON lines (none at the end), and the position to continue from.

    With a ``user``, those of that user only, and each names its loop.
    """
    size, lines = 0, []
    most = MOST_LINES if limit is None else min(limit, MOST_LINES)
    for event in exporter(worker, loop, created_at).events(loop, after, most, user):
        lines.append(_encode(event if user is None else {"loop": loop, **event}))
        size, after = size + len(lines[-1]), event["position"]
        if size > MOST_BYTES:
            break
    return b"".join(line + b"\n" for line in lines), after


def outcome(about: list[Entry], rules: Rules, now: int) -> tuple[str, float | None, Mapping[str, float]]:
    """Return status, reward and named outcomes of one event from all its entries, at the log's time ``now``."""
    join, event = Join(), str(about[0].event)
    settled = [result for entry in about for result in settle(join, entry, lambda _: rules, 0)]
    settled += join.expire(now)
    reward, outcomes = (settled[0].reward, settled[0].outcomes) if settled else (None, {})
    return join.events[event].status, reward, outcomes


def settle(join: Join, entry: Entry, rules: Callable[[int], Rules], newest: int) -> Iterator[Settled]:
    """Join a record as the learner does; yield the events that are settled by then.

    ``rules`` are those of the settings at a position, ``newest`` is the position of the newest settings.
    """
    yield from join.expire(entry.time)
    if entry.kind not in ABOUT or entry.event is None:
        return
    event, position, time = entry.event, entry.position, entry.time
    if entry.kind == ACTIVATE:
        settled = join.activate(event, position, time, rules(newest))
    elif entry.kind == REWARD:
        assert entry.example is not None
        settled = join.reward(event, position, time, *read_reward(entry.example), rules(newest))
    else:
        assert entry.example is not None
        decision = read_decision(entry.example)
        decided = Decided(entry.user, _NO_FEATURES, decision.settings, decision.baseline_weight, decision.control)
        if decision.feedback is not None:
            settled = join.feedback(event, position, time, decided, decision.feedback)
        else:
            settled = join.rank(event, position, time, rules(decision.settings), decided, decision.deferred)
    if settled is not None:
        yield settled


def time_of(entry: Entry) -> str:
    return iso_time(entry.time, "microseconds")


def time_or_none(microseconds: int) -> str | None:
    """Return a time in ISO 8601, None for 0."""
    return iso_time(microseconds) if microseconds else None

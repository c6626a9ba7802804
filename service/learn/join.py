"""Joins decisions with their rewards: a pure function of what was logged about an event, in order, and of its times.

An event waits for its reward until its deadline. A reward may come before its event, which then takes it, or after the
deadline, when it is listed and counts no more. A repeat is known by the reward's id, or by its value where it has none.
Times are microseconds since 1970.
"""

from __future__ import annotations

import hashlib
import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from service.log.records import Example
from service.outcomes import MARK, formula_of, outcome_name

REMEMBERED = 100_000  # finished events, to tell late rewards from early ones
LISTED = 10_000  # late and unmatched rewards
MOST_REWARDS = 1_000  # of one event; more are kept in the log and listed, and do not count
MOST_EARLY = 100  # of one event that is not decided yet: the same
MOST_LATE = 100  # of one event that is finished, of which repeats are known
MOST_KNOWN = 4_000_000  # rewards of finished events, of which repeats are known: 8 bytes each
EVENT_BYTES, REWARD_BYTES = 600, 200  # of memory that a waiting event and a reward take beside features and ids
LONGEST_EARLY = 3_600_000_000  # microseconds that a reward waits for its event, at most
LONGEST_DEFERRED = 7 * 24 * 3_600_000_000  # that a deferred event waits to be activated; it is not learned from then

HASH_BYTES = 8  # of the id of a finished event's reward

WAITING, DEFERRED, REWARDED, EXPIRED, EARLY = "waiting", "deferred", "rewarded", "expired", "early"


class Rules(NamedTuple):
    """How an event is joined: by the settings that it was decided under."""

    wait: int  # microseconds
    default: float | None
    aggregation: str = "earliest"  # or the sum or the average of all rewards until the deadline
    from_rank: bool = False  # a deferred event waits from its decision on, else from its activation
    formula: str | None = None  # the reward at the deadline, of all outcomes that came within their windows
    windows: Mapping[str, int] = {}  # of outcomes, microseconds
    reward_range: tuple[float, float] = (-math.inf, math.inf)  # what a formula gives is cut off there


class Decided(msgspec.Struct, frozen=True, gc=False):
    """What is learned from once the reward of a decision is known."""

    user: str | None
    features: Example
    settings: int  # position of the settings it was made under
    baseline_weight: float
    control: bool = False  # whether the control group's baseline decided


class PendingEvent(msgspec.Struct, gc=False):
    """An event on its way, or that it is finished."""

    first: int  # position of the first record about it
    order: int  # position of its decision, once that is known
    status: str = EARLY
    deadline: int | None = None  # of a deferred event, until when it may be activated
    rules: Rules | None = None
    decided: Decided | None = None
    user: str | None = None
    rewards: dict[str, float] | None = None  # by id, in the order they came; None once it is finished
    known: bytes = b""  # hashes of the ids of a finished event's rewards
    n_late: int = 0  # of these
    first_reward: int = 0  # its time
    decided_at: int = 0  # time of the decision of a deferred event
    activated: bool = False
    finished: bool = False


class Settled(NamedTuple):
    """An event whose reward is final; None where none came and nothing is to be learned."""

    event: str
    decided: Decided
    reward: float | None
    delay: int | None  # microseconds from the decision, or its activation, to the reward; None without one
    outcomes: Mapping[str, float] = {}  # sums by name, where the reward is a formula


class Unmatched(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reward that does not count."""

    event_id: str
    time: int
    value: float
    reward_id: str
    why: str  # late, unmatched, too many


def _out_of_place(pending: PendingEvent, key: str, time: int, rules: Rules) -> str | None:
    """Return why a reward or an outcome does not count under the rules, None if it does."""
    if _is_foreign(key, rules):
        return "unmatched"
    name = outcome_name(key)
    if name is None or pending.status != WAITING or pending.deadline is None:
        return None
    return "late" if time >= pending.deadline - rules.wait + rules.windows[name] else None


def _is_foreign(key: str, rules: Rules) -> bool:
    """Return whether it is an outcome where the reward is no formula of it, or a reward where that is a formula."""
    name = outcome_name(key)
    return (name is None) != (rules.formula is None) or (name is not None and name not in rules.windows)


def _by_formula(rewards: Mapping[str, float], rules: Rules) -> tuple[dict[str, float], float]:
    """Return the sums of outcomes, and the reward that they are."""
    sums = dict.fromkeys(rules.windows, 0.0)
    for key, value in rewards.items():
        sums[outcome_name(key) or ""] += value
    low, high = rules.reward_range
    assert rules.formula is not None
    return sums, min(max(formula_of(rules.formula)(sums), low), high)


def _event_bytes(event: str, decided: Decided) -> int:
    """Return about how many bytes of memory an event takes that waits."""
    return EVENT_BYTES + len(event) + feature_bytes(decided)


def feature_bytes(decided: Decided) -> int:
    features = decided.features
    return len(features.hashes) + len(features.values) + len(features.fields)


def _reward_bytes(rewards: Mapping[str, float] | None) -> int:
    return sum(REWARD_BYTES + len(key) for key in rewards or ())


def _hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()


class Join:
    """The events of one loop. Call ``expire`` with a record's time before the record itself."""

    def __init__(self, unmatched: Iterable[Unmatched] = ()) -> None:
        self.events: dict[str, PendingEvent] = {}
        self.unmatched: deque[Unmatched] = deque(unmatched, LISTED)
        self.n_waiting = 0
        self.n_bytes = 0  # of memory that waiting events take, about
        self.n_early_rewards = 0
        self._n_known = 0  # rewards of finished events
        self.n_late = self.n_unmatched = 0  # listed since ``take_counts``
        self.n_early = 0  # events that have a reward or were activated, but are not decided
        self.current: str | None = None  # the event that is being settled or learned from
        self._finished: deque[str] = deque()
        self._deadlines: list[tuple[int, int, str]] = []  # a heap of (deadline, order, event)

    def rank(self, event: str, order: int, time: int, rules: Rules, decided: Decided, deferred: bool) -> Settled | None:
        """Let an event wait for its reward; return it settled where that came before."""
        self.n_waiting += 1
        self.n_bytes += _event_bytes(event, decided)
        pending = self.events.get(event)
        if pending is None and not deferred:
            deadline = time + rules.wait
            self.events[event] = PendingEvent(order, order, WAITING, deadline, rules, decided, decided.user)
            heapq.heappush(self._deadlines, (deadline, order, event))
            return None
        if pending is not None:
            self._leave_early(pending)
            self._drop_foreign(event, pending, time, rules)
            self.n_bytes += _reward_bytes(pending.rewards)
        else:
            pending = self.events[event] = PendingEvent(order, order)
        pending.order, pending.rules, pending.decided, pending.user = order, rules, decided, decided.user
        pending.status, pending.decided_at = DEFERRED if deferred and not pending.activated else WAITING, time
        gives_up = pending.status == DEFERRED and not rules.from_rank
        self._wait(event, pending, time + (LONGEST_DEFERRED if gives_up else rules.wait))
        return self._settle_if_final(event, pending)

    def reward(self, event: str, order: int, time: int, value: float, key: str, rules: Rules) -> Settled | None:
        """Count a reward unless it is a repeat or late; return the event if that settles it."""
        pending = self._pending(event, order)
        if pending.finished:
            if pending.deadline is not None and time >= pending.deadline:
                self._late(event, pending, time, value, key)
            return None
        if pending.rewards is None:
            pending.rewards = {}
        if key in pending.rewards:
            return None
        if len(pending.rewards) >= (MOST_EARLY if pending.status == EARLY else MOST_REWARDS):
            self._list(event, time, value, key, "too many")
            return None
        if rules.formula is not None or key.startswith(MARK) or (pending.rules and pending.rules.formula is not None):
            why = _out_of_place(pending, key, time, pending.rules or rules)
            if why is not None:
                self._list(event, time, value, key, why)
                return None
        pending.rewards[key] = value
        pending.first_reward = pending.first_reward or time
        if pending.status != EARLY:
            self.n_bytes += REWARD_BYTES + len(key)
        else:
            self.n_early_rewards += 1
            self._wait(event, pending, max(pending.deadline or 0, time + min(rules.wait, LONGEST_EARLY)))
        return self._settle_if_final(event, pending)

    def activate(self, event: str, order: int, time: int, rules: Rules) -> Settled | None:
        """Let a deferred event wait for its reward; return it if it had that already."""
        pending = self._pending(event, order)
        if pending.activated or pending.status not in (EARLY, DEFERRED):
            return None
        start, wait = time, min(rules.wait, LONGEST_EARLY)
        if pending.status == DEFERRED and pending.rules is not None:
            wait = pending.rules.wait
            start = pending.decided_at if pending.rules.from_rank else time
            if start + wait <= time:  # too late to be learned from
                return None
            pending.status = WAITING
        pending.activated = True
        self._wait(event, pending, start + wait)
        return self._settle_if_final(event, pending)

    def expire(self, time: int) -> Iterable[Settled]:
        """Return what was not settled when its deadline came, by deadline, then by position in the log."""
        return self._expiring(time) if self._deadlines and self._deadlines[0][0] <= time else ()

    def _expiring(self, time: int) -> Iterator[Settled]:
        while self._deadlines and self._deadlines[0][0] <= time:
            deadline, order, event = heapq.heappop(self._deadlines)
            if not self._is_due(deadline, order, event):
                continue
            pending = self.events[event]
            if pending.status == EARLY:
                for key, value in (pending.rewards or {}).items():
                    self._list(event, pending.first_reward, value, key, "unmatched")
                self._leave_early(pending)
                del self.events[event]
            else:
                self.current = event
                yield self._expired(event, pending)

    def next_deadline(self) -> int | None:
        """Return when something expires next, None if nothing will."""
        while self._deadlines and not self._is_due(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def oldest(self) -> int | None:
        """Return the position of the first record about an event that is not finished."""
        return next((pending.first for pending in self.events.values() if not pending.finished), None)  # oldest first

    def take_counts(self) -> tuple[int, int]:
        """Return how many late and how many other rewards were listed since the last call."""
        counts, self.n_late, self.n_unmatched = (self.n_late, self.n_unmatched), 0, 0
        return counts

    def waiting_rewards(self) -> list[Unmatched]:
        """Return the rewards whose event has not come so far; they count if it comes within the wait time."""
        return [
            Unmatched(event, self.events[event].first_reward, value, key, EARLY)
            for event in self.early()
            for key, value in (self.events[event].rewards or {}).items()
        ]

    def early(self) -> list[str]:
        """Return the events that have a reward or were activated, but not decided as far as is known."""
        return [event for event, pending in self.events.items() if pending.status == EARLY]

    def events_of(self, user: str) -> set[str]:
        """Return the events of a user that are known."""
        return {event for event, pending in self.events.items() if pending.user == user}

    def forget(self, events: set[str]) -> None:
        """Leave nothing of events."""
        for event in events & self.events.keys():
            pending = self.events.pop(event)
            self._leave_early(pending)
            self._n_known -= len(pending.known) // HASH_BYTES
            if pending.status in (WAITING, DEFERRED):
                self.n_waiting -= 1
                self.n_bytes -= self._bytes_of(event, pending)
        self._finished = deque(event for event in self._finished if event not in events)
        self._deadlines = [entry for entry in self._deadlines if entry[2] not in events]
        heapq.heapify(self._deadlines)
        self.unmatched = deque((entry for entry in self.unmatched if entry.event_id not in events), LISTED)

    def forget_old(self, cut: int, before: int) -> None:
        """Leave nothing of finished events that were decided up to a position, and of rewards before a time."""
        self.forget({event for event, pending in self.events.items() if pending.finished and pending.order <= cut})
        self.unmatched = deque((entry for entry in self.unmatched if entry.time >= before), LISTED)

    def _is_due(self, deadline: int, order: int, event: str) -> bool:
        """Return whether an event is still to expire then: not settled, forgotten or put off since."""
        pending = self.events.get(event)
        return pending is not None and not pending.finished and (pending.deadline, pending.order) == (deadline, order)

    def _pending(self, event: str, order: int) -> PendingEvent:
        pending = self.events.get(event)
        if pending is None:
            pending = self.events[event] = PendingEvent(order, order)
            self.n_early += 1
        return pending

    def _wait(self, event: str, pending: PendingEvent, deadline: int | None) -> None:
        pending.deadline = deadline
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, pending.order, event))

    def _settle_if_final(self, event: str, pending: PendingEvent) -> Settled | None:
        if pending.status != WAITING or pending.rules is None or not pending.rewards:
            return None
        if pending.rules.aggregation != "earliest" or pending.rules.formula is not None:
            return None
        return self._finish(event, pending, REWARDED, next(iter(pending.rewards.values())))

    def _expired(self, event: str, pending: PendingEvent) -> Settled:
        if pending.status == DEFERRED:  # nobody saw it
            return self._finish(event, pending, EXPIRED, None)
        assert pending.rules is not None
        if pending.rewards and pending.rules.formula is not None:
            return self._finish(event, pending, REWARDED, None)
        if pending.rewards:
            total = sum(pending.rewards.values())
            average = pending.rules.aggregation == "average"
            return self._finish(event, pending, REWARDED, total / len(pending.rewards) if average else total)
        return self._finish(event, pending, EXPIRED, pending.rules.default)

    def _finish(self, event: str, pending: PendingEvent, status: str, reward: float | None) -> Settled:
        assert pending.decided is not None
        assert pending.rules is not None
        assert pending.deadline is not None
        start = pending.deadline - pending.rules.wait
        delay = max(pending.first_reward - start, 0) if status == REWARDED else None
        outcomes: Mapping[str, float] = {}
        if status == REWARDED and pending.rules.formula is not None:
            outcomes, reward = _by_formula(pending.rewards or {}, pending.rules)
        settled = Settled(event, pending.decided, reward, delay, outcomes)
        self.n_waiting -= 1
        self.n_bytes -= self._bytes_of(event, pending)
        pending.known = b"".join([_hash(key) for key in pending.rewards or ()])
        pending.decided, pending.rewards, pending.status, pending.finished = None, None, status, True
        self._n_known += len(pending.known) // HASH_BYTES
        self._finished.append(event)
        while len(self._finished) > REMEMBERED or self._n_known > MOST_KNOWN:
            forgotten = self.events.pop(self._finished.popleft(), None)
            self._n_known -= 0 if forgotten is None else len(forgotten.known) // HASH_BYTES
        return settled

    def _late(self, event: str, pending: PendingEvent, time: int, value: float, key: str) -> None:
        """List a reward that counts no more, unless it is a repeat."""
        hashed = _hash(key)
        if hashed in {pending.known[k : k + HASH_BYTES] for k in range(0, len(pending.known), HASH_BYTES)}:
            return
        if pending.n_late >= MOST_LATE:
            self._list(event, time, value, key, "too many")
            return
        pending.known, pending.n_late, self._n_known = pending.known + hashed, pending.n_late + 1, self._n_known + 1
        self._list(event, time, value, key, "late")

    def _leave_early(self, pending: PendingEvent) -> None:
        """Count an event no more among those that are not decided."""
        if pending.status == EARLY:
            self.n_early -= 1
            self.n_early_rewards -= len(pending.rewards or ())

    def _bytes_of(self, event: str, pending: PendingEvent) -> int:
        assert pending.decided is not None
        return _event_bytes(event, pending.decided) + _reward_bytes(pending.rewards)

    def _drop_foreign(self, event: str, pending: PendingEvent, time: int, rules: Rules) -> None:
        """List early rewards that do not count for the event: no outcomes of its formula, or outcomes without one."""
        for key, value in [*(pending.rewards or {}).items()]:
            if _is_foreign(key, rules):
                assert pending.rewards is not None
                del pending.rewards[key]
                self._list(event, time, value, key, "unmatched")

    def _list(self, event: str, time: int, value: float, key: str, why: str) -> None:
        self.unmatched.append(Unmatched(event, time, value, key, why))
        if why == "late":
            self.n_late += 1
        else:
            self.n_unmatched += 1

"""Joins decisions with their rewards: a pure function of what was logged about an event, in order, and of its times.

An event waits for its reward until its deadline. A reward may arrive before its event and count for it. After
the deadline it is only listed. Repeats are recognized by the reward's id, or by its value if it has no id.
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

from service.log.records import HashedExample
from service.outcomes import MARK, formula_of, outcome_name

REMEMBERED = 100_000  # finished events, to tell late rewards from early ones
LISTED = 10_000  # late and unmatched rewards
MOST_REWARDS = 1_000  # of one event; more are kept in the log and listed, and do not count
MOST_EARLY = 100  # of one event that is not decided yet: the same
MOST_LATE = 100  # of one finished event, whose repeats are recognized
MOST_KNOWN = 4_000_000  # rewards of finished events, whose repeats are recognized: 8 bytes each
EVENT_BYTES, REWARD_BYTES = 600, 200  # of memory that a waiting event and a reward take beside features and ids
EXAMPLE_BYTES = 400  # the same of an event that is learned from after a time
LONGEST_EARLY = 3_600_000_000  # microseconds that a reward waits for its event, at most
# A deferred event waits this long, in microseconds, for its activation; then it is not learned.
LONGEST_DEFERRED = 7 * 24 * 3_600_000_000

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
    reward_range: tuple[float, float] = (-math.inf, math.inf)  # the result of a formula is clipped to it


class Decided(msgspec.Struct, frozen=True, gc=False):
    """The part of a decision that is learned once its reward is final."""

    user: str | None
    features: HashedExample
    settings: int  # position of the settings it was made under
    baseline_weight: float
    control: bool = False  # True: the baseline of the control group decided


class EarlyEvent(msgspec.Struct, gc=False):
    """An event with a reward or an activation whose decision has not arrived yet."""

    first: int  # position of the first record about it
    deadline: int | None = None  # until when its decision may come
    rewards: dict[str, float] = {}  # by id, in the order they came
    first_reward: int = 0  # its time
    activated: bool = False

    status, user = EARLY, None

    @property
    def order(self) -> int:
        return self.first


class PendingEvent(msgspec.Struct, gc=False):
    """A decided event that waits for its reward, or to be activated."""

    first: int  # position of the first record about it
    order: int  # position of its decision
    deadline: int  # of a deferred event, until when it may be activated
    rules: Rules
    decided: Decided
    rewards: dict[str, float] | None = None  # by id, in the order they came
    first_reward: int = 0  # its time
    decided_at: int = 0  # time of the decision of a deferred event
    deferred: bool = False  # and not activated yet
    n_bytes: int = 0  # of memory that it takes, about

    @property
    def status(self) -> str:
        return DEFERRED if self.deferred else WAITING

    @property
    def user(self) -> str | None:
        return self.decided.user


class FinishedEvent(msgspec.Struct, gc=False):
    """An event whose reward is final, to tell repeats and late rewards."""

    order: int  # position of its decision
    deadline: int
    status: str  # rewarded or expired
    user: str | None
    reward_hashes: bytes  # of the ids of its rewards
    n_late: int = 0  # of these


class Settled(msgspec.Struct, gc=False):
    """An event whose reward is final; None where none came and nothing is to be learned."""

    event: str
    decided: Decided
    reward: float | None
    delay: int | None  # microseconds from the decision, or its activation, to the reward; None without one
    outcomes: Mapping[str, float] = {}  # sums by name, where the reward is a formula
    position: int = 0  # of the record that led to it
    counts: bool = True  # in statistics, else it is only learned from
    learns: bool = True  # from it, else it is only counted


class UncountedReward(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reward that does not count."""

    event_id: str
    time: int
    value: float
    reward_id: str
    why: str  # late, unmatched, too many


def _out_of_place(event: EarlyEvent | PendingEvent, key: str, time: int, rules: Rules) -> str | None:
    """Return why a reward or an outcome does not count under the rules, None if it does."""
    if _is_foreign(key, rules):
        return "unmatched"
    name = outcome_name(key)
    if name is None or event.status != WAITING or event.deadline is None:
        return None
    return "late" if time >= event.deadline - rules.wait + rules.windows[name] else None


def _is_foreign(key: str, rules: Rules) -> bool:
    """Return whether it is an outcome in a loop without a formula, or a plain reward in a loop with one."""
    name = outcome_name(key)
    return (name is None) != (rules.formula is None) or (name is not None and name not in rules.windows)


def _by_formula(rewards: Mapping[str, float], rules: Rules) -> tuple[dict[str, float], float]:
    """Return the sums of outcomes, and the reward that the formula makes of them."""
    sums = dict.fromkeys(rules.windows, 0.0)
    for key, value in rewards.items():
        sums[outcome_name(key) or ""] += value
    low, high = rules.reward_range
    assert rules.formula is not None
    return sums, min(max(formula_of(rules.formula)(sums), low), high)


def feature_bytes(decided: Decided) -> int:
    features = decided.features
    return len(features.hashes) + len(features.values) + len(features.fields)


def _hash(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest()


class Join:
    """The events of one loop. Call ``expire`` with a record's time before the record itself."""

    def __init__(self) -> None:
        self.events: dict[str, EarlyEvent | PendingEvent | FinishedEvent] = {}
        self.unmatched: deque[UncountedReward] = deque(maxlen=LISTED)
        self.n_waiting = 0
        self.n_bytes = 0  # of memory that waiting events take, about
        self.n_early = 0  # events that are not decided
        self.n_early_rewards = 0
        self.n_late = self.n_unmatched = 0  # listed since ``take_counts``
        self.current: str | None = None  # the event that is being settled or learned from
        self._n_hashes = 0  # of rewards of finished events
        self._finished: deque[str] = deque()
        self._deadlines: list[tuple[int, int, str]] = []  # a heap of (deadline, order, event)

    def rank(self, event: str, order: int, time: int, rules: Rules, decided: Decided, deferred: bool) -> Settled | None:
        """Let an event wait for its reward; return it settled if the reward arrived before."""
        early = self.events.get(event)
        pending = PendingEvent(order, order, time + rules.wait, rules, decided, decided_at=time)
        pending.n_bytes = EVENT_BYTES + len(event) + feature_bytes(decided)
        if isinstance(early, EarlyEvent):
            self._leave_early(early)
            self._drop_foreign(event, early, time, rules)
            pending.n_bytes += sum(REWARD_BYTES + len(key) for key in early.rewards)
            pending.first, pending.rewards, pending.first_reward = early.first, early.rewards, early.first_reward
            deferred = deferred and not early.activated
        if deferred:
            pending.deferred = True
            if not rules.from_rank:
                pending.deadline = time + LONGEST_DEFERRED
        self.events[event] = pending
        self.n_waiting += 1
        self.n_bytes += pending.n_bytes
        heapq.heappush(self._deadlines, (pending.deadline, order, event))
        return self._settle_if_final(event, pending) if pending.rewards else None

    def reward(self, event: str, order: int, time: int, value: float, key: str, rules: Rules) -> Settled | None:
        """Count a reward unless it is a repeat or late; return the event if that settles it."""
        about = self._event(event, order)
        if isinstance(about, FinishedEvent):
            if time >= about.deadline:
                self._late(event, about, time, value, key)
            return None
        is_early = isinstance(about, EarlyEvent)
        if about.rewards is None:
            about.rewards = {}
        if key in about.rewards:
            return None
        if len(about.rewards) >= (MOST_EARLY if is_early else MOST_REWARDS):
            self._list(event, time, value, key, "too many")
            return None
        own_rules = rules if isinstance(about, EarlyEvent) else about.rules
        if rules.formula is not None or key.startswith(MARK) or own_rules.formula is not None:
            why = _out_of_place(about, key, time, own_rules)
            if why is not None:
                self._list(event, time, value, key, why)
                return None
        about.rewards[key] = value
        about.first_reward = about.first_reward or time
        if isinstance(about, EarlyEvent):
            self.n_early_rewards += 1
            self._wait(event, about, max(about.deadline or 0, time + min(rules.wait, LONGEST_EARLY)))
            return None
        about.n_bytes += REWARD_BYTES + len(key)
        self.n_bytes += REWARD_BYTES + len(key)
        return self._settle_if_final(event, about)

    def feedback(self, event: str, order: int, time: int, decided: Decided, reward: float) -> Settled:
        """Return a settled event that was logged with its reward; earlier and later rewards do not count."""
        early, rules = self.events.pop(event, None), Rules(0, None)
        if isinstance(early, EarlyEvent):
            self._leave_early(early)
            for key, value in early.rewards.items():
                self._list(event, early.first_reward, value, key, "unmatched")
        self.rank(event, order, time, rules, decided, False)
        settled = self.reward(event, order, time, reward, "", rules)
        assert settled is not None
        settled.counts = False
        return settled

    def activate(self, event: str, order: int, time: int, rules: Rules) -> Settled | None:
        """Let a deferred event wait for its reward; return it if the reward had arrived already."""
        about = self._event(event, order)
        if isinstance(about, EarlyEvent):
            if not about.activated:
                about.activated = True
                self._wait(event, about, time + min(rules.wait, LONGEST_EARLY))
            return None
        if isinstance(about, FinishedEvent) or not about.deferred:
            return None
        deadline = (about.decided_at if about.rules.from_rank else time) + about.rules.wait
        if deadline <= time:  # too late to be learned from
            return None
        about.deferred = False
        self._wait(event, about, deadline)
        return self._settle_if_final(event, about)

    def expire(self, time: int) -> Iterable[Settled]:
        """Return the events that were not settled by their deadline, by deadline, then by position in the log."""
        return self._expiring(time) if self._deadlines and self._deadlines[0][0] <= time else ()

    def _expiring(self, time: int) -> Iterator[Settled]:
        while self._deadlines and self._deadlines[0][0] <= time:
            deadline, order, event = heapq.heappop(self._deadlines)
            if not self._is_due(deadline, order, event):
                continue
            about = self.events[event]
            if isinstance(about, EarlyEvent):
                for key, value in about.rewards.items():
                    self._list(event, about.first_reward, value, key, "unmatched")
                self._leave_early(about)
                del self.events[event]
            elif isinstance(about, PendingEvent):
                self.current = event
                yield self._expired(event, about)

    def next_deadline(self) -> int | None:
        """Return when something expires next, None if nothing will."""
        while self._deadlines and not self._is_due(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def oldest(self) -> int | None:
        """Return the position of the first record about an event that is not finished."""
        unfinished = (about for about in self.events.values() if not isinstance(about, FinishedEvent))  # oldest first
        return next((about.first for about in unfinished), None)

    def take_counts(self) -> tuple[int, int]:
        """Return how many late and how many other rewards were listed since the last call."""
        counts, self.n_late, self.n_unmatched = (self.n_late, self.n_unmatched), 0, 0
        return counts

    def waiting_rewards(self) -> list[UncountedReward]:
        """Return the rewards whose event is missing so far; they count if it arrives within the wait time."""
        return [
            UncountedReward(event, early.first_reward, value, key, EARLY)
            for event, early in self.early().items()
            for key, value in early.rewards.items()
        ]

    def early(self) -> dict[str, EarlyEvent]:
        """Return the events with a reward or an activation whose decision has not arrived yet."""
        return {event: about for event, about in self.events.items() if isinstance(about, EarlyEvent)}

    def events_of(self, user: str) -> set[str]:
        """Return the known events of a user."""
        return {event for event, about in self.events.items() if about.user == user}

    def forget(self, events: set[str]) -> None:
        """Leave nothing of events."""
        for event in events & self.events.keys():
            about = self.events.pop(event)
            if isinstance(about, EarlyEvent):
                self._leave_early(about)
            elif isinstance(about, PendingEvent):
                self._leave_waiting(about)
            else:
                self._n_hashes -= len(about.reward_hashes) // HASH_BYTES
        self._finished = deque(event for event in self._finished if event not in events)
        self._deadlines = [entry for entry in self._deadlines if entry[2] not in events]
        heapq.heapify(self._deadlines)
        self.unmatched = deque((entry for entry in self.unmatched if entry.event_id not in events), LISTED)

    def forget_old(self, cut: int, before: int) -> None:
        """Forget finished events decided up to a position, and rewards before a time."""
        old = (event for event, about in self.events.items() if isinstance(about, FinishedEvent) and about.order <= cut)
        self.forget({*old})
        self.unmatched = deque((entry for entry in self.unmatched if entry.time >= before), LISTED)

    def _is_due(self, deadline: int, order: int, event: str) -> bool:
        """Return whether an event still expires then: not settled, forgotten or postponed since."""
        about = self.events.get(event)
        if about is None or isinstance(about, FinishedEvent):
            return False
        return (about.deadline, about.order) == (deadline, order)

    def _event(self, event: str, order: int) -> EarlyEvent | PendingEvent | FinishedEvent:
        about = self.events.get(event)
        if about is None:
            about = self.events[event] = EarlyEvent(order)
            self.n_early += 1
        return about

    def _wait(self, event: str, about: EarlyEvent | PendingEvent, deadline: int) -> None:
        about.deadline = deadline
        heapq.heappush(self._deadlines, (deadline, about.order, event))

    def _settle_if_final(self, event: str, pending: PendingEvent) -> Settled | None:
        rules = pending.rules
        if pending.deferred or not pending.rewards or rules.aggregation != "earliest" or rules.formula is not None:
            return None
        return self._finish(event, pending, REWARDED, next(iter(pending.rewards.values())))

    def _expired(self, event: str, pending: PendingEvent) -> Settled:
        if pending.deferred:  # nobody saw it
            return self._finish(event, pending, EXPIRED, None)
        if pending.rewards and pending.rules.formula is not None:
            return self._finish(event, pending, REWARDED, None)
        if pending.rewards:
            total = sum(pending.rewards.values())
            average = pending.rules.aggregation == "average"
            return self._finish(event, pending, REWARDED, total / len(pending.rewards) if average else total)
        return self._finish(event, pending, EXPIRED, pending.rules.default)

    def _finish(self, event: str, pending: PendingEvent, status: str, reward: float | None) -> Settled:
        start = pending.deadline - pending.rules.wait
        delay = max(pending.first_reward - start, 0) if status == REWARDED else None
        outcomes: Mapping[str, float] = {}
        if status == REWARDED and pending.rules.formula is not None:
            outcomes, reward = _by_formula(pending.rewards or {}, pending.rules)
        self._leave_waiting(pending)
        hashes, user = b"".join([_hash(key) for key in pending.rewards or ()]), pending.decided.user
        self.events[event] = FinishedEvent(pending.order, pending.deadline, status, user, hashes)
        self._n_hashes += len(hashes) // HASH_BYTES
        self._finished.append(event)
        while len(self._finished) > REMEMBERED or self._n_hashes > MOST_KNOWN:
            forgotten = self.events.pop(self._finished.popleft(), None)
            if isinstance(forgotten, FinishedEvent):
                self._n_hashes -= len(forgotten.reward_hashes) // HASH_BYTES
        return Settled(event, pending.decided, reward, delay, outcomes)

    def _late(self, event: str, finished: FinishedEvent, time: int, value: float, key: str) -> None:
        """List a reward that no longer counts, unless it is a repeat."""
        hashed, hashes = _hash(key), finished.reward_hashes
        if hashed in {hashes[k : k + HASH_BYTES] for k in range(0, len(hashes), HASH_BYTES)}:
            return
        if finished.n_late >= MOST_LATE:
            self._list(event, time, value, key, "too many")
            return
        finished.reward_hashes, finished.n_late = hashes + hashed, finished.n_late + 1
        self._n_hashes += 1
        self._list(event, time, value, key, "late")

    def _leave_early(self, early: EarlyEvent) -> None:
        """Remove an event from the count of those without a decision."""
        self.n_early -= 1
        self.n_early_rewards -= len(early.rewards)

    def _leave_waiting(self, pending: PendingEvent) -> None:
        """Remove an event from the count of those that wait."""
        self.n_waiting -= 1
        self.n_bytes -= pending.n_bytes

    def _drop_foreign(self, event: str, early: EarlyEvent, time: int, rules: Rules) -> None:
        """List early rewards that do not count for the event: no outcomes of its formula, or outcomes without one."""
        for key, value in [*early.rewards.items()]:
            if _is_foreign(key, rules):
                del early.rewards[key]
                self._list(event, time, value, key, "unmatched")

    def _list(self, event: str, time: int, value: float, key: str, why: str) -> None:
        self.unmatched.append(UncountedReward(event, time, value, key, why))
        if why == "late":
            self.n_late += 1
        else:
            self.n_unmatched += 1


# Where failures are not sent


class DelayedExample(msgspec.Struct, gc=False):
    """An event to learn from; ``reward`` is None as long as it is pending."""

    event: str
    order: int  # position of its decision
    decided: Decided
    n_bytes: int  # of memory that it takes, about, beside what the join has
    reward: float | None = None


class DelayedExamples:
    """The events of a loop that are learned from after a time.

    If callers send clicks only, an event fails silently: that is certain once its wait time is over. Clicks learned at
    once would be ahead of the failures of the same time, and every action that was ever clicked would look perfect. So
    such an event is learned after a delay logged with its decision, with the reward received by then, else with the
    default. A later reward counts in all statistics but is not learned.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, DelayedExample] = {}  # in the order of their decisions
        self._times: list[tuple[int, int, str]] = []  # a heap of (microseconds, order, event)
        self.n_bytes = 0  # of memory that they take, about
        self.assumed_failed: set[str] = set()  # learned with the default, and still waiting for a reward

    def put(self, event: str, order: int, time: int, decided: Decided) -> None:
        """Let an event be learned from at a time."""
        n_bytes = EXAMPLE_BYTES + len(event)
        self._waiting[event] = DelayedExample(event, order, decided, n_bytes)
        self.n_bytes += n_bytes
        heapq.heappush(self._times, (time, order, event))

    def settle(self, event: str, reward: float | None) -> bool:
        """Note the final reward of an event; return whether the event is (or was) learned at its own time."""
        if event in self.assumed_failed:
            self.assumed_failed.remove(event)
            return True
        example = self._waiting.get(event)
        if example is None:
            return False
        example.reward = reward
        example.n_bytes += feature_bytes(example.decided)  # features that the join no longer holds
        self.n_bytes += feature_bytes(example.decided)
        return True

    def due(self, time: int) -> Iterator[DelayedExample]:
        """Yield the events to be learned by then."""
        while self._times and self._times[0][0] <= time:
            example = self._waiting.pop(heapq.heappop(self._times)[2], None)
            if example is not None:
                self.n_bytes -= example.n_bytes
                if example.reward is None:
                    self.assumed_failed.add(example.event)
                yield example

    def next_time(self) -> int | None:
        """Return when something is due next, None if nothing will be."""
        return self._times[0][0] if self._times else None

    def oldest(self) -> int | None:
        """Return the position of the first decision that is not learned from."""
        return next((example.order for example in self._waiting.values()), None)

    def forget(self, events: set[str]) -> None:
        """Leave nothing of events."""
        for event in events & self._waiting.keys():
            self.n_bytes -= self._waiting.pop(event).n_bytes
        self._times = [entry for entry in self._times if entry[2] not in events]
        heapq.heapify(self._times)
        self.assumed_failed -= events

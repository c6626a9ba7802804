"""Events joined with their rewards: a pure function of what was logged about them, in order, and of the log's times.

An event waits for its reward until its deadline. A reward may come before its event, which then takes it, or after the
deadline, when it is kept in a list and counts no more. Repeats are known by the reward's id, or by its value where it
has none. Times are microseconds since 1970.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

REMEMBERED = 100_000  # events that are finished, to tell late rewards from early ones
LISTED = 10_000  # late and unmatched rewards

NOWHERE = -1
WAITING, DEFERRED, REWARDED, EXPIRED, EARLY = "waiting", "deferred", "rewarded", "expired", "early"


class Rules(NamedTuple):
    """How an event is joined: fixed when it is logged."""

    wait: int  # microseconds
    default: float | None
    summed: bool  # all rewards until the deadline, else the earliest


class Case(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the learner needs of a decision once its reward is known."""

    user: str | None
    hashes: bytes  # uint32, of the context and of the action taken
    values: bytes  # float32
    n_context: int  # features of the context, which come first
    baseline_weight: float  # 1/p where the action taken was the first one offered, else 0


class Slot(msgspec.Struct, array_like=True, gc=False):
    """One event on its way, or that it is finished."""

    order: int  # position in the log of its rank, of the first record about it before that
    status: str = EARLY
    deadline: int | None = None  # None until a deferred event is activated
    rules: Rules | None = None
    case: Case | None = None
    user: str | None = None
    rewards: tuple[tuple[str, float], ...] = ()  # (id, value) as they came, late ones too
    first_reward: int = 0  # its time
    activated: bool = False
    finished: int = 0  # the how-manieth that finished
    place: int = NOWHERE  # in the pages of the snapshot


class Settled(NamedTuple):
    """An event whose reward is final; None where none came and nothing is to be learned."""

    event: str
    case: Case
    reward: float | None
    delay: int | None  # microseconds from the decision, or its activation, to the reward; None without one


class Unmatched(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A reward that counts for nothing: late, or of an event that never came."""

    event_id: str
    time: int
    value: float
    reward_id: str
    why: str  # late, unmatched


class Join:
    """The events of one loop. Call ``expire`` with a record's time before the record itself."""

    def __init__(self, slots: dict[str, Slot] | None = None, unmatched: Iterable[Unmatched] = ()) -> None:
        self.slots = slots or {}
        self.unmatched: deque[Unmatched] = deque(unmatched, LISTED)
        self.changed: dict[str, Slot] = {}  # those of the slots that are not as they were when this was last emptied
        self.left: list[int] = []  # places of events that are gone, since this was last emptied
        self.forgotten: list[tuple[str, set[str]]] = []  # users and their events, since this was last emptied
        self.n_waiting = sum(slot.status in (WAITING, DEFERRED) for slot in self.slots.values())
        done = [(slot.finished, event) for event, slot in self.slots.items() if slot.finished]
        self._finished = deque(event for _, event in sorted(done))
        self._n_finished = max(done)[0] if done else 0
        self._deadlines = [
            (slot.deadline, slot.order, event)
            for event, slot in self.slots.items()
            if slot.deadline is not None and not slot.finished
        ]
        heapq.heapify(self._deadlines)

    def rank(self, event: str, order: int, time: int, rules: Rules, case: Case, deferred: bool) -> Settled | None:
        """Let an event wait for its reward; return it settled where that came before."""
        if not deferred and self.begin(event, order, time, rules, case):
            return None
        self.n_waiting += 1
        slot = self._slot(event, order)
        slot.order, slot.rules, slot.case, slot.user = order, rules, case, case.user
        slot.status = DEFERRED if deferred and not slot.activated else WAITING
        self._wait(event, slot, None if slot.status == DEFERRED else time + rules.wait)
        return self._settle_if_final(event, slot)

    def begin(self, event: str, order: int, time: int, rules: Rules, case: Case) -> bool:
        """Return whether that was all, as it mostly is: nothing was heard of the event before, and nothing is due."""
        if event in self.slots or (self._deadlines and self._deadlines[0][0] <= time):
            return False
        deadline = time + rules.wait
        self.n_waiting += 1
        self.slots[event] = self.changed[event] = Slot(order, WAITING, deadline, rules, case, case.user)
        heapq.heappush(self._deadlines, (deadline, order, event))
        return True

    def reward(self, event: str, order: int, time: int, value: float, key: str, rules: Rules) -> Settled | None:
        """Count a reward unless it is a repeat or late; return the event if that settles it."""
        slot = self._slot(event, order)
        if any(key == known for known, _ in slot.rewards):
            return None
        if slot.finished:
            if slot.deadline is not None and time >= slot.deadline:
                slot.rewards = (*slot.rewards, (key, value))  # counts no more, but a repeat of it is known
                self._list(event, time, value, key, "late")
            return None
        slot.rewards = (*slot.rewards, (key, value))
        slot.first_reward = slot.first_reward or time
        if slot.status == EARLY:
            self._wait(event, slot, max(slot.deadline or 0, time + rules.wait))
        return self._settle_if_final(event, slot)

    def activate(self, event: str, order: int, time: int, rules: Rules) -> Settled | None:
        """Let a deferred event wait from now on; return it if it had its reward already."""
        slot = self._slot(event, order)
        if slot.activated or slot.status not in (EARLY, DEFERRED):
            return None
        slot.activated = True
        if slot.status == DEFERRED and slot.rules is not None:
            slot.status, rules = WAITING, slot.rules
        self._wait(event, slot, time + rules.wait)
        return self._settle_if_final(event, slot)

    def expire(self, time: int) -> Iterable[Settled]:
        """Return what was not settled when its deadline came, by deadline, then by position in the log."""
        return self._expiring(time) if self._deadlines and self._deadlines[0][0] <= time else ()

    def _expiring(self, time: int) -> Iterator[Settled]:
        while self._deadlines and self._deadlines[0][0] <= time:
            deadline, order, event = heapq.heappop(self._deadlines)
            if not self._is_due(deadline, order, event):
                continue
            slot = self.slots[event]
            if slot.status == EARLY:
                self._drop_early(event, slot)
            else:
                yield self._expired(event, slot)

    def next_deadline(self) -> int | None:
        """Return when something expires next, None if nothing will."""
        while self._deadlines and not self._is_due(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def forget(self, user: str, events: Iterable[str]) -> None:
        """Leave nothing of a user: neither the given events nor others of theirs."""
        gone = set(events) | {event for event, slot in self.slots.items() if slot.user == user}
        for event in gone & self.slots.keys():
            self.n_waiting -= self.slots[event].status in (WAITING, DEFERRED)
            self._drop(event)
        self.forgotten.append((user, gone))
        self._finished = deque(event for event in self._finished if event not in gone)
        self._deadlines = [entry for entry in self._deadlines if entry[2] not in gone]
        heapq.heapify(self._deadlines)
        self.unmatched = deque((entry for entry in self.unmatched if entry.event_id not in gone), LISTED)

    def _is_due(self, deadline: int, order: int, event: str) -> bool:
        """Return whether an event is still to expire then: not settled, forgotten or put off since."""
        slot = self.slots.get(event)
        return slot is not None and not slot.finished and (slot.deadline, slot.order) == (deadline, order)

    def _slot(self, event: str, order: int) -> Slot:
        slot = self.slots.get(event)
        if slot is None:
            slot = self.slots[event] = Slot(order)
        self.changed[event] = slot
        return slot

    def _wait(self, event: str, slot: Slot, deadline: int | None) -> None:
        slot.deadline = deadline
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, slot.order, event))

    def _settle_if_final(self, event: str, slot: Slot) -> Settled | None:
        if slot.status != WAITING or slot.rules is None or slot.rules.summed or not slot.rewards:
            return None
        return self._finish(event, slot, REWARDED, slot.rewards[0][1])

    def _expired(self, event: str, slot: Slot) -> Settled:
        if slot.rewards:
            return self._finish(event, slot, REWARDED, sum(value for _, value in slot.rewards))
        assert slot.rules is not None
        return self._finish(event, slot, EXPIRED, slot.rules.default)

    def _finish(self, event: str, slot: Slot, status: str, reward: float | None) -> Settled:
        assert slot.case is not None
        assert slot.rules is not None
        assert slot.deadline is not None
        start = slot.deadline - slot.rules.wait
        delay = max(slot.first_reward - start, 0) if status == REWARDED else None
        settled = Settled(event, slot.case, reward, delay)
        self._n_finished += 1
        slot.case, slot.status, slot.finished = None, status, self._n_finished
        self.n_waiting -= 1
        self.changed[event] = slot
        self._finished.append(event)
        if len(self._finished) > REMEMBERED:
            self._drop(self._finished.popleft())
        return settled

    def _drop_early(self, event: str, slot: Slot) -> None:
        for key, value in slot.rewards:
            self._list(event, slot.first_reward, value, key, "unmatched")
        self._drop(event)

    def _drop(self, event: str) -> None:
        self.changed.pop(event, None)
        place = self.slots.pop(event).place
        if place != NOWHERE:
            self.left.append(place)

    def _list(self, event: str, time: int, value: float, key: str, why: str) -> None:
        self.unmatched.append(Unmatched(event, time, value, key, why))

"""Channels carry messages one way, with delays in whole rounds and faults on demand; none is ever early.

A delay is any function without arguments that returns a whole number of rounds; ``Fixed``, ``Uniform``,
``Geometric`` and ``Recorded`` are ready ones. Give each channel its own delay and generator, so that a new
client changes nobody's draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from fedres import checks
from fedres.checks import Array

Message = TypeVar("Message")

Delay = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same delay for every message."""

    rounds: int

    def __post_init__(self) -> None:
        checks.whole("rounds", self.rounds, least=0)

    def __call__(self) -> int:
        return self.rounds


@dataclass(frozen=True, slots=True)
class Uniform:
    """A delay from ``low`` to ``high``, both included, all equally likely."""

    low: int
    high: int
    rng: np.random.Generator

    def __post_init__(self) -> None:
        checks.whole("low", self.low, least=0)
        checks.whole("high", self.high, least=self.low)

    def __call__(self) -> int:
        return int(self.rng.integers(self.low, self.high, endpoint=True))


@dataclass(frozen=True, slots=True)
class Geometric:
    """A delay of 0, 1, 2, ... rounds: in each of them a message arrives with chance 1/(1+mean)."""

    mean: float
    rng: np.random.Generator

    def __post_init__(self) -> None:
        checks.not_negative("mean", self.mean)

    def __call__(self) -> int:
        return int(self.rng.geometric(1 / (1 + self.mean))) - 1  # numpy counts from 1


class Recorded:
    """The delays of a recording, one per message or copy; after its end it repeats from the start."""

    def __init__(self, rounds: Iterable[int]) -> None:
        self.rounds = _whole_delays("rounds", rounds)
        if not self.rounds:
            raise ValueError("rounds must hold at least one delay, got none")
        self._drawn = 0

    def __call__(self) -> int:
        delay = self.rounds[self._drawn % len(self.rounds)]
        self._drawn += 1
        return delay


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Chances, in [0, 1], that a message is lost, and that one which is not lost arrives twice."""

    loss: float = 0.0
    duplication: float = 0.0
    rng: np.random.Generator

    def __post_init__(self) -> None:
        for name in ("loss", "duplication"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], got {getattr(self, name)}")

    def copies(self) -> int:
        """Draw how many copies of a message arrive: 0, 1 or 2."""
        # Both are always drawn, so that the one chance does not change what the other decides.
        lost = self.rng.random() < self.loss
        twice = self.rng.random() < self.duplication
        return 0 if lost else 1 + twice


class Channel(Generic[Message]):
    """Delivers each message once, at its own time: a later one with a shorter delay overtakes.

    With ``in_order`` a message waits until those sent before it have arrived; a lost one holds nobody up.
    Messages are handed over as they are, not copied. ``sent``, ``lost`` and ``duplicated`` count since the
    start, and ``len`` is the number of messages (copies included) on their way. Rounds are numbered from 0.

    >>> channel = Channel[str](Fixed(2))
    >>> channel.send("hello", now=1)
    >>> channel.receive(now=2), channel.receive(now=3)
    ([], ['hello'])
    """

    def __init__(self, delay: Delay, *, in_order: bool = False, faults: Faults | None = None) -> None:
        self._delay = delay
        self._in_order = in_order
        self._faults = faults
        self._on_the_way: list[tuple[int, int, Message]] = []  # a heap: arrival, place in sending, message
        self._last_send = 0
        self._last_receive = 0
        self._last_arrival = 0
        self._posted = 0
        self.sent = 0
        self.lost = 0
        self.duplicated = 0

    def __len__(self) -> int:
        return len(self._on_the_way)

    def send(self, message: Message, now: int) -> None:
        """Put a message on its way; each copy of it draws its own delay.

        Rounds do not go back: ``now`` is at least that of the last ``send`` and of the last ``receive``.
        """
        _refuse_going_back(now, max(self._last_send, self._last_receive))
        self._last_send = now
        arrival = now + self._draw_delay()  # drawn for a lost message too: a recording keeps its place
        copies = 1 if self._faults is None else self._faults.copies()
        self.sent += 1
        if copies == 0:
            self.lost += 1
            return
        self._post(message, arrival)
        if copies == 2:
            self._post(message, now + self._draw_delay())
            self.duplicated += 1

    def receive(self, now: int) -> list[Message]:
        """Return the messages due by ``now`` and not yet returned, in order of arrival, then of sending."""
        _refuse_going_back(now, self._last_receive)
        self._last_receive = now
        due = []
        while self._on_the_way and self._on_the_way[0][0] <= now:
            due.append(heappop(self._on_the_way)[2])
        return due

    def on_the_way(self) -> Iterator[Message]:
        """Return the messages not yet received, copies included, in no particular order."""
        return (message for _, _, message in self._on_the_way)

    def _draw_delay(self) -> int:
        delay = self._delay()
        if type(delay) is not int or delay < 0:  # else spare a send the cost of the full check
            checks.whole("delay", delay, least=0)
        return delay

    def _post(self, message: Message, arrival: int) -> None:
        if self._in_order:
            arrival = self._last_arrival = max(arrival, self._last_arrival)
        heappush(self._on_the_way, (arrival, self._posted, message))
        self._posted += 1


class DelayGroup(NamedTuple):
    """Clients, by number, whose fixed delays are equal."""

    who: Array
    uplink_delay: int  # α_i
    downlink_delay: int  # β_i


def group_by_delay(uplink_delays: Iterable[int], downlink_delays: Iterable[int]) -> list[DelayGroup]:
    """Return the groups of clients with equal delays (α_i, β_i), in order of their first clients."""
    uplink = _whole_delays("uplink_delays", uplink_delays)
    downlink = _whole_delays("downlink_delays", downlink_delays)
    if len(uplink) != len(downlink):
        raise ValueError(f"downlink_delays must be as many as uplink_delays ({len(uplink)}), got {len(downlink)}")
    clients: dict[tuple[int, int], list[int]] = {}
    for client, delays in enumerate(zip(uplink, downlink, strict=True)):
        clients.setdefault(delays, []).append(client)
    return [DelayGroup(np.array(who), *delays) for delays, who in clients.items()]


def _refuse_going_back(now: int, earliest: int) -> None:
    if now < earliest:
        raise ValueError(f"now must be at least {earliest}, the latest round so far, got {now}")


def _whole_delays(name: str, values: Iterable[int]) -> tuple[int, ...]:
    delays = tuple(values)
    for delay in delays:
        checks.whole(name, delay, least=0)
    return tuple(int(delay) for delay in delays)

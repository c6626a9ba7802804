"""The short way for rank: from the bytes of a request to the store and back, with no task and nothing awaited.

A request goes it if its head is known and its answer needs nothing but memory and one commit. All others, and all that
are to be refused, go the usual way, through the gate, which then does everything anew. Those that come in one turn of
the event loop are decided together, at its end, one step after the other for all, so that a step's code is in the
processor's caches for all but the first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol, TypeAlias

import msgspec

from service.engine import Engine
from service.engine.at_once import Written
from service.engine.deciding import RankRequest
from service.errors import ApiError
from service.http.body import read_head
from service.http.gate import JSON_TYPE, Gate
from service.http.heads import Found, Heads, Way
from service.http.hot import Hot
from service.http.keys import Key
from service.http.replies import Reply, Scope, failure, log
from service.http.table import DEFAULT_LOOP, RANK, of_a_loop
from service.store import StoreUnavailable
from service.store.waiting import Outcome

PATHS = of_a_loop("/rank")
AT_ONCE = 24  # requests decided together; before more are, answers go out and the store has work


class Connection(Protocol):
    """Where requests come from."""

    def answer(self, reply: Reply) -> None:
        """Send the answer to the request that was taken."""

    def answer_json(self, body: bytes) -> None:
        """Send a good answer."""

    def ask_again(self, data: bytes) -> None:
        """Let the request that was taken go the usual way."""


class Lane:
    """Takes requests to rank that nothing speaks against."""

    def __init__(self, engine: Engine, hot: Hot, gate: Gate) -> None:
        self._engine, self._hot, self._gate = engine, hot, gate
        self._heads = Heads()
        self._taken: list[_Asked] = []  # and not decided

    def note(self, data: bytes, scope: Scope) -> None:
        """Remember the head of the request that ``data`` begins with, as the parser read it: the connection is kept."""
        if scope["method"] != "POST" or not scope["raw_path"].endswith(b"/rank"):
            return
        route, parameters = self._gate.table.find(scope["raw_path"])
        head, names = read_head(scope["headers"]), [name for name, _ in scope["headers"]]
        once = names.count(b"content-length") == 1 and not {b"transfer-encoding", b"upgrade"} & set(names)
        if once and head.media_type == JSON_TYPE and head.encoding is None and route.path in PATHS:
            self._heads.keep(data, Way(route.path, parameters.get("loop", DEFAULT_LOOP), head.authorization))

    def find(self, data: bytes) -> Found | None:
        """Return the request that ``data`` begins with, if it may go this way, as far as its head says."""
        found = self._heads.find(data)
        return found if found is not None and found.length <= self._gate.limits.body_bytes else None

    def missing(self, found: Found, data: bytes) -> int:
        """Return how many bytes to wait for, 0 where none are missing or who asks may not: they are refused now."""
        missing = found.start + found.length - len(data)
        return missing if missing > 0 and self._key(found.way) is not None else 0

    def take(self, found: Found, data: bytes, connection: Connection) -> bool:
        """Return whether the request, all of ``data``, was taken; ``connection`` is then told what came of it."""
        if len(data) != found.start + found.length:
            return False
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._decide)
        self._taken.append(_Asked(found, data, connection, perf_counter()))
        return True

    def _key(self, way: Way) -> Key | None:
        """Return whose request it is, None if they may not."""
        try:
            key = self._gate.keys.identify(way.authorization)
        except ApiError:
            return None
        return key if key.role in RANK and key.loop in (None, way.loop) else None

    def _decide(self) -> None:
        """Decide on the first of those that were taken; the rest waits for the event loop's next turn.

        A long list would be answered as one, its clients would ask again as one, and all would wait for each other.
        """
        taken, self._taken = self._taken[:AT_ONCE], self._taken[AT_ONCE:]
        if self._taken:
            asyncio.get_running_loop().call_soon(self._decide)
        by_way: dict[int, list[_Asked]] = {}
        for asked in taken:
            by_way.setdefault(id(asked.found.way), []).append(asked)
        for group in by_way.values():
            way = group[0].found.way
            key = self._key(way)
            n_allowed = 0 if key is None else self._gate.buckets.take_some(key.id, len(group))
            left = group[n_allowed:] + self._store(way, group[:n_allowed])
            if key is not None:
                self._gate.buckets.give_back(key.id, len(left) - len(group) + n_allowed)
            for asked in left:
                asked.connection.ask_again(asked.data)

    def _store(self, way: Way, group: list[_Asked]) -> list[_Asked]:
        """Hand the store what can be decided; return the others: the usual way is to say why not."""
        try:
            decided = self._engine.decide_at_once(way.loop, [self._read(asked) for asked in group])
            storing = [(asked, written) for asked, written in zip(group, decided, strict=True) if written is not None]
            if storing:
                self._engine.store_at_once([written for _, written in storing], _Waiting(self, way, storing))
        except Exception:  # the usual way meets it too, and says what it is
            return group
        return [asked for asked, written in zip(group, decided, strict=True) if written is None]

    def _read(self, asked: _Asked) -> RankRequest | None:
        try:
            return self._hot.read_rank(asked.data, asked.found.start)
        except Exception:
            return None

    def answer(self, way: Way, stored: Sequence[_Stored], outcomes: Sequence[Outcome]) -> None:
        """Answer requests, now that it is known what came of storing the decisions."""
        good = [outcome for outcome in outcomes if isinstance(outcome, int)]
        if good:
            self._engine.stored(good[-1])
        now, took = perf_counter(), list[float]()
        for (asked, written), outcome in zip(stored, outcomes, strict=True):
            try:
                if isinstance(outcome, int):
                    took.append(now - asked.began)
                    asked.connection.answer_json(written.answer)
                else:
                    self._tell(way, asked, outcome, now)
            except Exception:  # of one connection; the others are to be answered
                log.exception("an answer was lost")
        if took:
            self._gate.requests.count(way.path, "POST", 200, *took)

    def _tell(self, way: Way, asked: _Asked, why: Exception, now: float) -> None:
        """Answer a request whose decision could not be stored."""
        if isinstance(why, StoreUnavailable):
            reply = failure(why)
            self._gate.requests.count(way.path, "POST", reply.status, now - asked.began)
            asked.connection.answer(reply)
        else:
            asked.connection.ask_again(asked.data)


class _Asked(msgspec.Struct, frozen=True, gc=False):
    """A request that was taken."""

    found: Found
    data: bytes
    connection: Connection
    began: float


_Stored: TypeAlias = tuple[_Asked, Written]


class _Waiting:
    """Requests of one way whose decisions are on their way to the store."""

    def __init__(self, lane: Lane, way: Way, stored: Sequence[_Stored]) -> None:
        self._loop = asyncio.get_running_loop()
        self._lane, self._way, self._stored = lane, way, stored

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def starts(self) -> bool:
        return True

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        self._lane.answer(self._way, self._stored, outcomes)

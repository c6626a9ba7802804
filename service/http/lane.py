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
from typing import NamedTuple, Protocol

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
AT_ONCE = 32  # requests decided together; before more are, answers go out and the store has work


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
        key = self._key(found.way)
        if key is None or self._gate.buckets.take(key.id):
            return False
        if not self._taken:
            asyncio.get_running_loop().call_soon(self._decide)
        self._taken.append(_Asked(found, key.id, data, connection, perf_counter()))
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
        by_loop: dict[str, list[_Asked]] = {}
        for asked in taken:
            by_loop.setdefault(asked.found.way.loop, []).append(asked)
        for loop, group in by_loop.items():
            self._store(list(zip(group, self._decided(loop, group), strict=True)))

    def _decided(self, loop: str, group: list[_Asked]) -> Sequence[Written | None]:
        """Return what was decided; None where the usual way is to say why not."""
        requests = [self._read(asked) for asked in group]
        try:
            return self._engine.decide_at_once(loop, requests)
        except Exception:  # the usual way meets it too, and says what it is
            return [None] * len(group)

    def _read(self, asked: _Asked) -> RankRequest | None:
        try:
            return self._hot.read_rank(asked.data, asked.found.start)
        except Exception:
            return None

    def _store(self, decided: Sequence[tuple[_Asked, Written | None]]) -> None:
        """Hand the store what was decided, and all else back."""
        storing = [(asked, written) for asked, written in decided if written is not None]
        taken = self._submit(storing) if storing else False
        for asked, written in decided:
            if written is None or not taken:
                self._gate.buckets.give_back(asked.key)
                asked.connection.ask_again(asked.data)

    def _submit(self, storing: Sequence[tuple[_Asked, Written]]) -> bool:
        """Return whether the store has taken them."""
        waiting = _Waiting(self, [asked for asked, _ in storing], [written.answer for _, written in storing])
        try:
            self._engine.store_at_once([written for _, written in storing], waiting)
        except Exception:
            return False
        return True

    def answer(self, asked: Sequence[_Asked], answers: Sequence[bytes], outcomes: Sequence[Outcome]) -> None:
        """Answer requests, now that it is known what came of storing the decisions."""
        stored = [outcome for outcome in outcomes if isinstance(outcome, int)]
        if stored:
            self._engine.stored(stored[-1])
        now = perf_counter()
        for one, answer, outcome in zip(asked, answers, outcomes, strict=True):
            try:
                self._answer(one, answer, outcome, now - one.began)
            except Exception:  # of one connection; the others are to be answered
                log.exception("an answer was lost")

    def _answer(self, asked: _Asked, answer: bytes, outcome: Outcome, seconds: float) -> None:
        if isinstance(outcome, int):
            self._gate.requests.count(asked.found.way.path, "POST", 200, seconds)
            asked.connection.answer_json(answer)
        elif isinstance(outcome, StoreUnavailable):
            reply = failure(outcome)
            self._gate.requests.count(asked.found.way.path, "POST", reply.status, seconds)
            asked.connection.answer(reply)
        else:
            asked.connection.ask_again(asked.data)


class _Asked(NamedTuple):
    """A request that was taken."""

    found: Found
    key: str
    data: bytes
    connection: Connection
    began: float


class _Waiting:
    """Requests whose decisions are on their way to the store."""

    def __init__(self, lane: Lane, asked: Sequence[_Asked], answers: Sequence[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._lane, self._asked, self._answers = lane, asked, answers

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def starts(self) -> bool:
        return True

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        self._lane.answer(self._asked, self._answers, outcomes)

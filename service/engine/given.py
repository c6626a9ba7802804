"""Features that come again and again with requests: the log has them once, in a record that decisions refer to.

Only those that came with requests of two users or more: what one user alone has brought is in that user's records, and
is erased with them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from service.engine.deciding import Action, Apart, Offer, View
from service.engine.recent import Recent
from service.engine.records import GIVEN, GivenBody, Inline, StoredApart, encode, read_given
from service.store import Entry, EventLog, Record, StoreUnavailable

SHORTEST = 12  # bytes of features; a reference saves nothing over less
ROOM = 16_000_000  # bytes for what is remembered
AROUND = 300  # bytes of the objects around a text that is remembered, about

Features = Callable[[int, str], bytes]  # (position of a record, id of an action) -> its features there
_Brought = tuple[int, tuple[str, bytes]]  # the loop's first position, an action's id and its features


class GivenFeatures:
    """Knows what features came with requests, and has those of several users stored; for the event loop's thread.

    ``submit`` hands the store a record that nobody waits for; ``stored`` is told its position.
    """

    def __init__(
        self, submit: Callable[[Record], asyncio.Future[int]], stored: Callable[[int], None], room: int = ROOM
    ) -> None:
        self._submit, self._stored = submit, stored
        self._apart = Recent[_Brought, StoredApart](room // 2, _size)
        self._first = Recent[_Brought, str](room // 2, _size)  # who brought what is not stored apart; "" is nobody
        self._under_way = False
        self._generation = 0  # of what is known: lists are looked at again when it has changed

    def where(
        self, actions: Sequence[Action], offered: Sequence[tuple[str, bytes]], user: str | None, view: View
    ) -> Sequence[StoredApart | None]:
        """Return what ``deciding.Where`` does, and remember who brought the features, which must have been checked.

        As this may hand a record to the store, nothing may be awaited between the view and this.
        """
        if not isinstance(actions, Offer):
            return self._look_up(actions, offered, user or "", view).at
        known = actions.apart.get(view.since)
        if known is None or not (known.final or (known.user == (user or "") and known.generation == self._generation)):
            known = self._settled(actions, view.since) or self._look_up(actions, offered, user or "", view)
            actions.apart[view.since] = known
        return known.at

    def forget(self, since: int, user: str) -> None:
        """Forget what a user of the loop was the first to bring."""
        self._first.drop(lambda key, first: first == user and key[0] == since)
        self._generation += 1

    def _settled(self, offer: Offer, since: int) -> Apart | None:
        """Return what is known of a list of which nothing can change any more, else None."""
        at = [parts.apart for parts in offer.parts if parts.since == since]
        return Apart(at if any(at) else (), True, "", self._generation) if len(at) == len(offer) else None

    def _look_up(self, actions: Sequence[Action], offered: Sequence[tuple[str, bytes]], user: str, view: View) -> Apart:
        since = view.since
        keys = [
            (since, pair) for action, pair in zip(actions, offered, strict=True) if len(action.features) >= SHORTEST
        ]
        apart = {key: self._apart.get(key) for key in keys}
        left = [key for key, found in apart.items() if found is None]
        self._bring(left, user, view)
        at = [apart.get((since, pair)) for pair in offered]
        if isinstance(actions, Offer):
            _settle(actions, since, at, {name for _, (name, _) in left})
        return Apart(at if any(at) else (), not left, user, self._generation)

    def _bring(self, keys: list[_Brought], user: str, view: View) -> None:
        """Remember who was the first to bring what is not stored apart, and have stored what another brought."""
        due: list[_Brought] = []
        for key in keys:
            first = self._first.get(key)
            if first is None:
                self._first.keep(key, user)
            elif first != user:
                due.append(key)
        if due and not self._under_way:
            self._store(view.name, due)

    def _store(self, loop: str, due: list[_Brought]) -> None:
        given = [Inline(action, msgspec.Raw(features)) for _, (action, features) in due]
        try:
            future = self._submit(Record(loop, GIVEN, None, None, encode(GivenBody(given))))
        except StoreUnavailable:
            return
        self._under_way = True
        future.add_done_callback(partial(self._answered, due))

    def _answered(self, due: list[_Brought], future: asyncio.Future[int]) -> None:
        """Let decisions refer to the record if it is durable; else whoever brings the features next makes another."""
        self._under_way = False
        self._generation += 1
        if future.cancelled() or future.exception() is not None:
            return
        for key in due:
            self._apart.keep(key, StoredApart(key[1][0], future.result()))
        self._stored(future.result())


class GivenReader:
    """Finds the features that records of a log have, and remembers them; for any thread."""

    def __init__(self, log: EventLog, room: int = ROOM) -> None:
        self._log = log
        self._turn = threading.Lock()
        self._records = Recent[int, dict[str, bytes]](room, _size_of_record)

    def features(self, position: int, action: str) -> bytes:
        """Return what the record at the position has for the action."""
        with self._turn:
            record = self._records.get(position)
            if record is None:
                record = self._read(position)
                self._records.keep(position, record)
        if action not in record:
            raise LookupError(f"record {position} must have the features of {action!r}, got others")
        return record[action]

    def _read(self, position: int) -> dict[str, bytes]:
        entries = self._log.read(position - 1, 1)
        if not entries or (entries[0].seq, entries[0].kind) != (position, GIVEN):
            raise LookupError(f"record {position} must be of features, got none or another")
        return features_in(entries[0])


def features_in(entry: Entry) -> dict[str, bytes]:
    """Return what a record of features has, by the action's id."""
    return {action.id: bytes(action.features) for action in read_given(entry.body).given}


def _settle(offer: Offer, since: int, at: Sequence[StoredApart | None], left: set[str]) -> None:
    """Leave with each action what will not change in the loop; that of those ``left`` may."""
    for action, parts, apart in zip(offer, offer.parts, at, strict=True):
        if action.id not in left:
            parts.since, parts.apart = since, apart


def _size(key: _Brought, _: object) -> int:
    return AROUND + len(key[1][0]) + len(key[1][1])


def _size_of_record(_: int, record: dict[str, bytes]) -> int:
    return AROUND + sum([AROUND + len(action) + len(features) for action, features in record.items()])

"""Rank requests, read fast where their actions came before, byte for byte: from a catalogue they mostly did.

Fastest where the whole list did.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

import msgspec

from service.engine.deciding import Action, Offer
from service.engine.recent import Recent
from service.http.wire import Rank, UnreadRank

ROOM = 4_000_000  # bytes of lists that are kept; with what is made of them they take about five times as many
LONGEST = 100_000  # bytes of a list that is kept
SEEN = 20_000  # lists that are remembered by a number alone
BEGINNING = 1_000  # bytes by which a longer list is found before the body is read

_NAME = b'"actions":['

_unread = msgspec.json.Decoder(UnreadRank)
_raw = msgspec.json.Decoder(list[msgspec.Raw])


class Offers:
    """The lists of actions that came last, read and checked, and the actions in them; a list has at most ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._offers = Recent[bytes, Offer](ROOM, lambda text, _: len(text))
        self._actions = Recent[bytes, Action](ROOM, lambda text, _: len(text))
        self._seen = Recent[int, bool](SEEN, lambda _, __: 1)  # hashes of lists that came once
        self._long = Recent[bytes, bytes](ROOM, lambda _, text: len(text))  # the last of the lists that begin so
        self._mark = b"[%d]" % secrets.randbits(64)  # stands for a list; nobody else can write it

    def read(self, body: bytes, begin: int = 0) -> UnreadRank | None:
        """Return the request at ``begin`` if its actions are known and plainly no name comes twice in it, else None."""
        start = body.find(_NAME, begin) + len(_NAME) - 1
        text = self._long.get(body[start : start + BEGINNING])
        if text is None or not body.startswith(text, start):
            return self._read(body[begin:], None)
        marked = body[begin:start] + self._mark + body[start + len(text) :]
        return self._read(marked, text) or self._read(body[begin:], None)

    def _read(self, body: bytes, marked: bytes | None) -> UnreadRank | None:
        """Return the request, in which the mark stands for the list ``marked``."""
        try:
            request = _unread.decode(body)
        except (ValueError, RecursionError):
            return None
        text = bytes(request.actions)
        if len(body) != len(text) + shortest_rest(request) or len(request.exclude) > self._most:
            return None
        if marked is not None:
            if text != self._mark:
                return None
            text = marked
        offer = self._offers.get(text) or self._assembled(text)
        if offer is None:
            return None
        request.actions = offer  # type: ignore[assignment]  # read now
        return request

    def _assembled(self, text: bytes) -> Offer | None:
        """Return a list that is new but whose actions are all known."""
        try:
            found = [self._actions.get(bytes(raw)) for raw in _raw.decode(text)]
        except (ValueError, RecursionError):
            return None
        actions = [action for action in found if action is not None]
        return self._kept(text, actions) if len(actions) == len(found) and 0 < len(found) <= self._most else None

    def keep(self, body: bytes, request: Rank) -> None:
        """Remember the actions of a request in which no name comes twice outside of features."""
        text = bytes(_unread.decode(body).actions)
        if len(text) <= LONGEST:
            for raw, action in zip(_raw.decode(text), request.actions, strict=True):
                self._actions.keep(bytes(raw), action)
            request.actions = self._kept(text, request.actions)  # type: ignore[assignment]  # are such actions

    def _kept(self, text: bytes, actions: Sequence[Action]) -> Offer:
        """Return the list, kept if it comes for the second time: most that came once never come again."""
        offer = Offer(actions)
        if self._seen.get(hash(text)) is None:
            self._seen.keep(hash(text), True)
            return offer
        self._offers.keep(text, offer)
        if len(text) > BEGINNING:
            self._long.keep(text[:BEGINNING], text)
        return offer


_CONTEXT, _USER, _EVENT_ID = len(',"context":'), len(',"user":""'), len(',"event_id":""')
_EXCLUDE, _DEFER, _EXPLAIN = len(',"exclude":[]'), len(',"defer":true'), len(',"explain":true')


def shortest_rest(request: Rank | UnreadRank) -> int:
    """Return the least length of a body with these values, its list of actions not counted.

    Characters that take more bytes are counted as one.
    """
    size = len('{"actions":}')
    if len(request.context) > 2:
        size += _CONTEXT + len(request.context)
    if request.user is not None:
        size += _USER + len(request.user)
    if request.event_id is not None:
        size += _EVENT_ID + len(request.event_id)
    if request.exclude:
        size += _EXCLUDE + sum(map(len, request.exclude)) + 3 * len(request.exclude) - 1
    if request.defer:
        size += _DEFER
    if request.explain:
        size += _EXPLAIN
    return size

"""Rank requests, read fast where their list of actions came before, byte for byte: from a catalogue it mostly did."""

from __future__ import annotations

import secrets
from collections import OrderedDict

import msgspec

from service.engine.deciding import Offer
from service.http.wire import Rank, UnreadRank

ROOM = 4_000_000  # bytes of lists that are kept; with what is made of them they take about five times as many
LONGEST = 100_000  # bytes of a list that is kept
BEGINNING = 1_000  # bytes by which a longer list is found before the body is read

_NAME = b'"actions":['

_unread = msgspec.json.Decoder(UnreadRank)


class Offers:
    """The lists of actions that came last, read and checked."""

    def __init__(self) -> None:
        self._offers: OrderedDict[bytes, Offer] = OrderedDict()
        self._room = ROOM
        self._long: dict[bytes, bytes] = {}  # the last of those that begin so
        self._mark = b"[%d]" % secrets.randbits(64)  # stands for a list; nobody else can write it

    def read(self, body: bytes) -> UnreadRank | None:
        """Return the request if its actions are known and it is plain that no name comes twice in it, else None."""
        start = body.find(_NAME) + len(_NAME) - 1
        text = self._long.get(body[start : start + BEGINNING])
        if text is None or not body.startswith(text, start):
            return self._read(body, None)
        return self._read(body[:start] + self._mark + body[start + len(text) :], text) or self._read(body, None)

    def _read(self, body: bytes, marked: bytes | None) -> UnreadRank | None:
        """Return the request, in which the mark stands for the list ``marked``."""
        try:
            request = _unread.decode(body)
        except (ValueError, RecursionError):
            return None
        text = bytes(request.actions)
        if len(body) != len(text) + shortest_rest(request):
            return None
        if marked is not None:
            if text != self._mark:
                return None
            text = marked
        offer = self._offers.get(text)
        if offer is None:
            return None
        self._offers.move_to_end(text)
        request.actions = offer  # type: ignore[assignment]  # read now
        return request

    def keep(self, body: bytes, request: Rank) -> None:
        """Remember the actions of a request in which no name comes twice outside of features."""
        text = bytes(_unread.decode(body).actions)
        if len(text) > LONGEST:
            return
        request.actions = offer = Offer(request.actions)  # type: ignore[assignment]  # are such actions
        self._room += len(text) if self._offers.pop(text, None) is not None else 0
        self._offers[text] = offer
        if len(text) > BEGINNING:
            self._long[text[:BEGINNING]] = text
        self._room -= len(text)
        while self._room < 0:
            oldest, _ = self._offers.popitem(last=False)
            self._long.pop(oldest[:BEGINNING], None)
            self._room += len(oldest)


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

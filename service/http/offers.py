"""Rank requests, read fast where their list of actions came before, byte for byte: from a catalogue it mostly did."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from service.engine.deciding import Offer
from service.http.wire import Rank, UnreadRank

KEPT = 100  # lists
LONGEST = 100_000  # bytes of a list that is kept

_unread = msgspec.json.Decoder(UnreadRank)


class Offers:
    """The lists of actions that came last, read and checked."""

    def __init__(self) -> None:
        self._offers: OrderedDict[bytes, Offer] = OrderedDict()

    def read(self, body: bytes) -> UnreadRank | None:
        """Return the request if its actions are known and it is plain that no name comes twice in it, else None."""
        try:
            request = _unread.decode(body)
        except (ValueError, RecursionError):
            return None
        text = bytes(request.actions)
        offer = self._offers.get(text)
        if offer is None or len(body) != len(text) + shortest_rest(request):
            return None
        self._offers.move_to_end(text)
        request.actions = offer  # type: ignore[assignment]  # read now
        return request

    def keep(self, body: bytes, request: Rank) -> None:
        """Remember the actions of a request in which no name comes twice outside of features."""
        text = bytes(_unread.decode(body).actions)
        if len(text) > LONGEST:
            return
        self._offers[text] = Offer(request.actions)
        if len(self._offers) > KEPT:
            self._offers.popitem(last=False)


_NAMES = {name: len(f',"{name}":') for name in ("context", "user", "event_id", "exclude", "defer", "explain")}


def shortest_rest(request: Rank | UnreadRank) -> int:
    """Return the least length of a body with these values, its list of actions not counted.

    Characters that take more bytes are counted as one.
    """
    size = len('{"actions":}')
    if len(request.context) > 2:
        size += _NAMES["context"] + len(request.context)
    if request.user is not None:
        size += _NAMES["user"] + len(request.user) + 2
    if request.event_id is not None:
        size += _NAMES["event_id"] + len(request.event_id) + 2
    if request.exclude:
        size += _NAMES["exclude"] + sum(map(len, request.exclude)) + 3 * len(request.exclude) + 1
    return size + request.defer * (_NAMES["defer"] + 4) + request.explain * (_NAMES["explain"] + 4)

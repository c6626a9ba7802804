"""Rank requests, read fast where their actions came before, byte for byte: from a catalogue they mostly did.

Fastest where the whole list did.
"""

from __future__ import annotations

import secrets

import msgspec

from service.engine.deciding import Action, KnownAction, Offer, check_actions
from service.engine.recent import Recent
from service.http.wire import Rank, UnreadRank

ROOM = 4_000_000  # bytes of lists that are kept; with what is made of them they take about five times as many
ROOM_OF_ACTIONS = 16_000_000  # bytes of actions that are kept, with what is made of them
AROUND = 500  # bytes of the objects around an action
LONGEST = 100_000  # bytes of a list that is kept
SEEN = 2 * ROOM  # bytes of lists remembered by a number alone; one that comes again later would not be kept for long
BEGINNING = 1_000  # bytes of a list by which it is found; the last of those that begin alike is kept
STEP = 7  # of these bytes one is looked at and six are not: fewer take less time to hash

_NAME, _BEGIN, _BETWEEN, _END = b'"actions":[', b"[{", b"},{", b"}]"

_unread = msgspec.json.Decoder(UnreadRank)
_raw = msgspec.json.Decoder(list[msgspec.Raw])


_Kept = tuple[bytes, Offer]  # a list as it came, and read


class Offers:
    """The lists of actions that came last, read and checked, and the actions in them; a list has at most ``most``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._offers = Recent[bytes, _Kept](ROOM, lambda _, kept: len(kept[0]))  # by the beginning of their text
        self._actions = Recent[bytes, KnownAction](ROOM_OF_ACTIONS, _size)  # by their text between the braces
        self._seen = Recent[int, int](SEEN, lambda _, n: max(n, AROUND))  # lengths of lists that came, by a hash
        self._mark = b"[%d]" % secrets.randbits(64)  # stands for a list; nobody else can write it
        self._raw_mark = msgspec.Raw(self._mark)

    def read(self, body: bytes, begin: int = 0) -> UnreadRank | None:
        """Return the request at ``begin`` if its actions are known and plainly no name comes twice in it, else None.

        Its list of actions is not parsed: from where it seems to begin to where it seems to end, it is one if it is
        known, and the request's if a mark in its place is.
        """
        start = body.find(_NAME, begin) + len(_NAME) - 1
        kept = self._offers.get(body[start : start + BEGINNING : STEP])
        if kept is None or not body.startswith(kept[0], start):
            kept = self._assembled(body[start : body.rfind(_END, start) + len(_END)])
        if kept is None:
            return None
        text, offer = kept
        return self._read(body[begin:start] + self._mark + body[start + len(text) :], offer)

    def _read(self, body: bytes, offer: Offer) -> UnreadRank | None:
        """Return the request, in which the mark stands for the list."""
        try:
            request = _unread.decode(body)
        except (ValueError, RecursionError):
            return None
        if request.actions != self._raw_mark or len(request.exclude) > self._most:
            return None
        if len(body) != len(self._mark) + shortest_rest(request):
            return None
        request.actions = offer  # type: ignore[assignment]  # read now
        return request

    def _assembled(self, text: bytes) -> _Kept | None:
        """Return a list that is short, or new, and whose actions are all known."""
        kept = self._offers.get(text[::STEP]) if len(text) < BEGINNING else None
        if kept is not None and kept[0] == text:
            return kept
        if not text.startswith(_BEGIN):
            return None
        texts = text[len(_BEGIN) : -len(_END)].split(_BETWEEN)
        if len(texts) > self._most:
            return None
        found = [*map(self._actions.newer.get, texts)]
        if not all(found):
            found = [self._actions.get(one) for one in texts]
        return self._kept(text, Offer.of(found)) if all(found) else None  # type: ignore[arg-type]  # they are there

    def keep(self, body: bytes, request: Rank) -> None:
        """Remember the actions of a request in which no name comes twice outside of features."""
        text = bytes(_unread.decode(body).actions)
        if len(text) <= LONGEST:
            check_actions(request.actions)
            texts = [bytes(raw)[1:-1] for raw in _raw.decode(text)]
            known = [self._known(*one) for one in zip(texts, request.actions, strict=True)]
            _, request.actions = self._kept(text, Offer.of(known))  # type: ignore[assignment]  # are such actions

    def _known(self, text: bytes, action: Action) -> KnownAction:
        known = self._actions.get(text)
        if known is None:
            known = KnownAction.of(action)
            self._actions.keep(text, known)
        return known

    def _kept(self, text: bytes, offer: Offer) -> _Kept:
        """Return the list, kept if it comes for the second time: most that came once never come again."""
        number = hash(offer.parts)
        if self._seen.get(number) is None:
            self._seen.keep(number, len(text))
        else:
            self._offers.keep(text[:BEGINNING:STEP], (text, offer))
        return text, offer


def _size(text: bytes, _: KnownAction) -> int:
    """Return about how many bytes an action takes: its text, its features and those hashed."""
    return AROUND + 3 * len(text)


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

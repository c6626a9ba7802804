"""The events of a loop in pages, as snapshots have them: a page is written once, and what changes goes into another.

So a snapshot costs what has changed, a few large rows of it, and the work can be done page by page as events change. A
place of a page is dead once its event is gone or newer in another page. A page with few living places is written anew,
so that what is kept stays within a small factor of what lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from fedres.checks import Array
from service.engine.joining import NOWHERE, Slot

SIZE = 128  # events of a page at most, a fifth of a millisecond of work; fixed in a format: a place fits a byte
SPARSE = SIZE // 4  # living places; with fewer a page is written anew


class Body(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a page holds: never changed."""

    events: list[str]
    slots: list[Slot]


@dataclass(slots=True)
class Written:
    """What is to be written of a loop's pages, by their number."""

    bodies: dict[int, bytes] = field(default_factory=dict)
    dead: dict[int, bytes] = field(default_factory=dict)  # all dead places of pages that have more than before
    gone: list[int] = field(default_factory=list)

    def after(self, earlier: Written) -> Written:
        """Return this with what could not be written before."""
        bodies, dead = {**earlier.bodies, **self.bodies}, {**earlier.dead, **self.dead}
        for n in self.gone:
            bodies.pop(n, None)
            dead.pop(n, None)
        return Written(bodies, dead, [*earlier.gone, *self.gone])


class _Page(msgspec.Struct, gc=False):
    events: tuple[str, ...]  # dead ones too; a tuple of texts is nothing the garbage collector looks into
    owners: Array  # hashes of whom its entries are about
    dead: bytearray  # places


class Pages:
    """What each page holds; where an event is, its slot knows. All methods are for one thread."""

    def __init__(self) -> None:
        self._pages: dict[int, _Page] = {}
        self._sparse: set[int] = set()
        self._next = 0  # page numbers only rise
        self._written = Written()
        self._encode = msgspec.msgpack.Encoder().encode

    @property
    def n_unwritten(self) -> int:
        """Return how many pages wait to be taken."""
        return len(self._written.bodies)

    @property
    def n_sparse(self) -> int:
        return len(self._sparse)

    def put(self, slots: Mapping[str, Slot]) -> None:
        """Take at most ``SIZE`` events as they are now."""
        body = Body(list(slots), list(slots.values()))
        self.kill([slot.place for slot in body.slots if slot.place != NOWHERE])
        self._written.bodies[self._next] = self._encode(body)
        self._add(self._next, body, b"")

    def kill(self, places: Iterable[int]) -> None:
        """Let places be dead, except in pages that are gone."""
        touched = {}
        for where in places:
            n = where // SIZE
            page = self._pages.get(n)
            if page is not None:
                page.dead.append(where % SIZE)
                touched[n] = page
        for n, page in touched.items():
            self._note_dead(n, page)

    def load(self, n: int, body: bytes, dead: bytes) -> list[tuple[str, Slot]]:
        """Take a page that is in the file, pages by rising numbers; return what lives in it."""
        page = msgspec.msgpack.decode(body, type=Body)
        self._add(n, page, dead)
        pairs = enumerate(zip(page.events, page.slots, strict=True))
        return [pair for place, pair in pairs if place not in dead]

    def purge(self, user: str, events: Iterable[str]) -> Iterator[list[str]]:
        """Drop all pages with anything about a user or of the events; yield what must be put in again, page by page."""
        wanted = np.unique(np.fromiter(map(hash, (user, *events)), np.int64))
        for n, page in list(self._pages.items()):
            found = wanted.take(np.searchsorted(wanted, page.owners), mode="clip") == page.owners
            yield self._drop(n) if found.any() else []

    def thin_out(self) -> Iterator[list[str]]:
        """Drop pages with few living places; yield what must be put in again, page by page."""
        for n in sorted(self._sparse):
            yield self._drop(n)

    def take(self) -> Written:
        """Return what has changed since this was last called."""
        written, self._written = self._written, Written()
        return written

    def _add(self, n: int, body: Body, dead: bytes) -> None:
        for where, slot in enumerate(body.slots, n * SIZE):
            slot.place = where
        self._pages[n] = _Page(tuple(body.events), _owners(body), bytearray(dead))
        self._next = n + 1
        if len(body.events) - len(dead) < SPARSE:
            self._sparse.add(n)

    def _note_dead(self, n: int, page: _Page) -> None:
        n_alive = len(page.events) - len(page.dead)
        if n_alive == 0:
            self._drop(n)
            return
        self._written.dead[n] = bytes(page.dead)
        if n_alive < SPARSE:
            self._sparse.add(n)

    def _drop(self, n: int) -> list[str]:
        """Let go of a page; return what lived in it."""
        page = self._pages.pop(n)
        self._sparse.discard(n)
        self._written.dead.pop(n, None)
        if self._written.bodies.pop(n, None) is None:  # else it was never written
            self._written.gone.append(n)
        dead = set(page.dead)
        return [event for place, event in enumerate(page.events) if place not in dead]


def _owners(body: Body) -> Array:
    """Return hashes of the users; of the event where its user is not known yet."""
    owners = [slot.user for slot in body.slots]
    if None in owners:
        owners = [event if user is None else user for event, user in zip(body.events, owners, strict=True)]
    return np.fromiter(map(hash, owners), np.int64, len(owners))

"""A loop's catalogue in shared memory: numbered pieces, each with some actions that were put or retired.

A change is published as new pieces at the end, so its cost is in proportion to its size; readers apply the pieces that
are new to them. Replaced actions stay in memory at first. When half of all bytes are replaced, the writer moves the
current actions of the oldest pieces to the end, a few pieces with each change, and frees these pieces.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import msgspec

from fedres.scoring.features import Hashed
from service.log.records import CatalogueReference
from service.models.loop_metadata import CatalogueAction
from service.models.memory import Key, MemoryReader, MemoryWriter, TornRead, key_of

PIECE_BYTES = 1 << 16  # of actions in a piece, unless one action has more
SPARE_BYTES = 1 << 20  # allowance for replaced actions, beside half of all
MOST_PIECES = 1_000  # beside those that are full: a new reader reads all of them
MOVED = 4  # bytes that are moved, at most, for each byte that is published

Pieces = tuple[int, int]  # the numbers of the first existing piece and of the next new one
Change = tuple[str, CatalogueAction | None]  # None: the action was retired

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(list[Change]).decode


def _key(loop: str, number: int) -> Key:
    return key_of(f"catalogue\0{loop}\0{number}")


class _Piece(NamedTuple):
    number: int
    n_bytes: int
    ids: list[str]


class CatalogueWriter:
    """The learner's side, for the loop with this ``id``."""

    def __init__(self, memory: MemoryWriter, loop: str) -> None:
        self._memory, self._loop = memory, loop
        self._pieces: deque[_Piece] = deque()
        self._next = 0
        self._bytes = self._newest_bytes = 0  # of all pieces, and of the actions that are not replaced
        self._newest: dict[str, tuple[int, int]] = {}  # in which piece an action is, and its bytes there
        self._unused: list[int] = []  # pieces that the next view does not name

    def publish(self, catalogue: Mapping[str, CatalogueAction], changed: Iterable[str] | None) -> Pieces:
        """Publish the changed actions, all if ``changed`` is None; return the pieces for the next view."""
        self._free(self._unused)
        self._unused = []
        published = self._append(catalogue, {**self._newest, **catalogue} if changed is None else changed)
        moved, to_move = 0, MOVED * published
        left: list[str] = []
        while moved < to_move and self._is_wasteful():
            oldest = self._pieces.popleft()
            self._unused.append(oldest.number)
            self._bytes -= oldest.n_bytes
            moved += oldest.n_bytes
            left += [name for name in oldest.ids if self._newest.get(name, (-1, 0))[0] == oldest.number]
        self._append(catalogue, left)
        return (self._pieces[0].number if self._pieces else self._next), self._next

    def free(self) -> None:
        self._free([*self._unused, *(piece.number for piece in self._pieces)])

    def _free(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._memory.free(_key(self._loop, number))

    def _is_wasteful(self) -> bool:
        is_scattered = len(self._pieces) > MOST_PIECES + 2 * self._bytes // PIECE_BYTES
        return is_scattered or self._bytes > 2 * self._newest_bytes + SPARE_BYTES

    def _append(self, catalogue: Mapping[str, CatalogueAction], names: Iterable[str]) -> int:
        """Put actions into new pieces; return how many bytes."""
        changes: list[Change] = []
        n_bytes = total = 0
        for name in names:
            action = catalogue.get(name)
            size = len(name) + (0 if action is None else len(action.features))
            if changes and n_bytes + size > PIECE_BYTES:
                self._write(changes, n_bytes)
                changes, n_bytes = [], 0
            changes.append((name, action))
            n_bytes += size
            total += size
            self._newest_bytes -= self._newest.pop(name, (0, 0))[1]
            if action is not None:
                self._newest[name] = self._next, size
                self._newest_bytes += size
        if changes:
            self._write(changes, n_bytes)
        return total

    def _write(self, changes: list[Change], n_bytes: int) -> None:
        self._memory.write(_key(self._loop, self._next), _pack(changes))
        self._pieces.append(_Piece(self._next, n_bytes, [name for name, _ in changes]))
        self._bytes += n_bytes
        self._next += 1


class CatalogueCopy:
    """A ranker's side: the published actions, and what rankers computed for them."""

    def __init__(self) -> None:
        self.actions: dict[str, CatalogueAction] = {}
        self.references: dict[str, CatalogueReference] = {}  # as logged for each
        self.prepared: dict[str, Hashed] = {}  # their hashed features, cached
        self.n_bytes = 0  # of ids and features
        self.largest = 0  # bytes of features of any action so far
        self.listeners: list[Callable[[str], None]] = []  # called with the id of each action that changes
        self._next = -1  # the piece to read next

    def refresh(self, memory: MemoryReader, loop: str, pieces: Pieces) -> None:
        """Apply new pieces; raise ``TornRead``, and change nothing, if a piece does not exist yet or any more."""
        first, end = pieces
        if self._next == end:
            return
        is_behind = self._next < first  # some of the pieces that it needs were freed
        changes: list[Change] = []
        for number in range(first if is_behind else self._next, end):
            data = memory.read(_key(loop, number))
            if data is None:
                raise TornRead(f"piece {number} of the catalogue of loop {loop!r} is not published")
            changes += _unpack(data)
        if is_behind:
            newest = dict(changes)
            changes += [(name, None) for name in self.actions if name not in newest]
        for name, action in changes:
            self._apply(name, action)
        self._next = end

    def _apply(self, name: str, action: CatalogueAction | None) -> None:
        before = self.actions.get(name)
        if before is not None:
            if action is not None and action.put == before.put:
                return  # it was moved to another piece
            self.n_bytes -= len(name) + len(before.features)
            del self.actions[name], self.references[name]
            self.prepared.pop(name, None)
        if action is not None:
            self.actions[name], self.references[name] = action, CatalogueReference(name, action.put)
            self.n_bytes += len(name) + len(action.features)
            self.largest = max(self.largest, len(action.features))
        for listener in self.listeners:
            listener(name)

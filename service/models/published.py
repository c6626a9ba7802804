"""Loops as rankers see them, and how the learner publishes them in shared memory.

Each loop has a block with its ``LoopView``, one with its clients and one with its shared weights, each written when it
has changed, and pieces of its catalogue. Weights are published by chunks of 1,024: readers copy what is new to them.
"""

from __future__ import annotations

import contextlib
import copy
import math
import mmap
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.compiling import kernel
from fedres.policies import loop_rule
from fedres.scoring.batch import CHUNK_BITS
from service.models.catalogue import CatalogueCopy, CatalogueWriter, Pieces
from service.models.loop_metadata import CatalogueAction, Clients, LearnerView, LoopView
from service.models.memory import (
    HEAD,
    HEARTBEAT_AT,
    PUBLISHED_AT,
    RETRIES,
    TORN,
    WAITING_AT,
    Key,
    MemoryReader,
    MemoryWriter,
    TornRead,
    begin_change,
    end_change,
    fence,
    find_block,
    key_of,
)
from service.models.protocol import PublishedModel
from service.models.table import model_kind
from service.settings import Settings

LOOPS, LEARNER = key_of("loops"), key_of("learner")
LEAST_ROOM = 1 << 28  # bytes that must stay free in a folder beside a second file, else it is made elsewhere
NO_RULE: Array = np.zeros(0)
CURRENT = "current"  # the file that says which published file is the newest
COMPILING = "compiling"  # a file that exists while code is compiled in the background


_pack = msgspec.msgpack.Encoder().encode


class _UnreadView(LoopView):
    """A view with settings not decoded yet: they seldom change, and checking them takes longer than all the rest."""

    settings: msgspec.Raw  # type: ignore[assignment]


_unpack_view = msgspec.msgpack.Decoder(_UnreadView).decode
_unpack_settings = msgspec.msgpack.Decoder(Settings).decode
_unpack_clients = msgspec.msgpack.Decoder(Clients).decode
_unpack_learner = msgspec.msgpack.Decoder(LearnerView).decode
_unpack_names = msgspec.msgpack.Decoder(list[str]).decode


loop_key = lru_cache(maxsize=1_000)(key_of)  # of blocks that exist once for each loop


def weights_key(loop: str) -> Key:
    return loop_key(f"weights\0{loop}")


# The data of a block of weights: their number, a word for each chunk with its last change, the weights.


@kernel
def _publish_weights(words: Array, offset: int, key: Key, weights: Array, changed: Array, publication: int) -> None:
    """Copy the chunks that changed, as 32-bit numbers of any type."""
    begin_change(words, offset)
    words[offset + 1], words[offset + 2] = np.uint64(key[0]), np.uint64(key[1])
    data = offset + HEAD
    words[data] = np.uint64(weights.size)
    into, first = words.view(np.uint32), 2 * (data + 1 + changed.size)
    for chunk in range(changed.size):
        if changed[chunk]:
            words[data + 1 + chunk] = np.uint64(publication)
            for k in range(chunk << CHUNK_BITS, min((chunk + 1) << CHUNK_BITS, weights.size)):
                into[first + k] = weights[k]
            changed[chunk] = 0
    end_change(words, offset)


@kernel
def _copy_weights(words: Array, offset: int, key: Key, weights: Array, seen: Array) -> int:
    """Copy the chunks that are newer than ``seen``; return 0, or ``TORN`` if ``weights`` must not be used."""
    data = offset + HEAD
    source, first = words.view(np.uint32), 2 * (data + 1 + seen.size)
    for _ in range(RETRIES):
        before = words[offset]
        fence()
        if before & np.uint64(1) or words[offset + 1] != np.uint64(key[0]) or words[offset + 2] != np.uint64(key[1]):
            continue
        if words[data] != np.uint64(weights.size):  # it has just grown
            return TORN
        for chunk in range(seen.size):
            at = words[data + 1 + chunk]
            if at != seen[chunk]:
                seen[chunk] = 0  # until the whole copy is valid
                for k in range(chunk << CHUNK_BITS, min((chunk + 1) << CHUNK_BITS, weights.size)):
                    weights[k] = source[first + k]
        fence()
        if words[offset] == before:
            for chunk in range(seen.size):
                seen[chunk] = words[data + 1 + chunk]
            return 0
    return TORN


class Publisher:
    """The learner's side: a new file, and the name under which rankers find it."""

    def __init__(self, folder: Path, generation: int, spare: Path | None = None) -> None:
        self.folder = folder
        self.memory = MemoryWriter(_place(folder, f"models-{generation}", spare))
        self._generation, self._publications = generation, 0
        self._catalogues: dict[str, CatalogueWriter] = {}  # by the loop's id

    def publish(self, view: LoopView, weights: Array, changed: Array) -> None:
        """Publish a loop's view and those of its weights that changed; ``changed`` is emptied."""
        self._publications += 1
        if changed.any():
            key, n_words = weights_key(view.id), 1 + changed.size + (weights.size + 1) // 2
            if self.memory.find(key) < 0:
                changed[:] = 1
            offset = self.memory.room_for(key, n_words)
            numbers = weights.view(np.uint32)
            _publish_weights(self.memory.words, offset, key, numbers, changed, self._publications)
            self.memory.show(key, offset)
        self.memory.write(key_of(f"view\0{view.name}"), _pack(view))

    def publish_catalogue(
        self, loop: str, catalogue: Mapping[str, CatalogueAction], changed: Iterable[str] | None = None
    ) -> Pieces:
        """Publish the changed actions of the loop with this ``id``, all if ``changed`` is None.

        Return the pieces for the view that is published next, which lets readers find them.
        """
        if loop not in self._catalogues:
            self._catalogues[loop] = CatalogueWriter(self.memory, loop)
        return self._catalogues[loop].publish(catalogue, changed)

    def publish_clients(self, view: LoopView, clients: Clients) -> None:
        self.memory.write(key_of(f"clients\0{view.id}"), _pack(clients))

    def publish_names(self, names: list[str]) -> None:
        self.memory.write(LOOPS, _pack(names))

    def drop(self, name: str, loop: str) -> None:
        """Remove the loop with this ``id``."""
        for key in (key_of(f"view\0{name}"), weights_key(loop), key_of(f"clients\0{loop}")):
            self.memory.free(key)
        if loop in self._catalogues:
            self._catalogues.pop(loop).free()

    def publish_learner(self, view: LearnerView) -> None:
        self.memory.write(LEARNER, _pack(view))

    def done(self) -> None:
        """Announce a publication, and give a sign of life."""
        self.beat()
        self.memory.published()

    def note_waiting(self, n_bytes: int) -> None:
        """Show the bytes of events of all loops that wait for their reward."""
        self.memory.words[WAITING_AT] = np.uint64(n_bytes)

    def beat(self) -> None:
        """Give a sign of life."""
        self.memory.words[HEARTBEAT_AT] = np.uint64(time.monotonic_ns())

    def show(self) -> None:
        """Let rankers see this file instead of the one before."""
        current = self.folder / CURRENT
        with contextlib.suppress(FileExistsError):
            make_current(self.folder)
        with open(current, "r+b") as file:
            file.write(self._generation.to_bytes(8, "little"))
        for old in self.folder.glob("models-*"):
            if old.resolve() != self.memory.path.resolve():
                old.resolve().unlink(missing_ok=True)
                old.unlink(missing_ok=True)

    def close(self) -> None:
        self.memory.close()


def _place(folder: Path, name: str, spare: Path | None) -> Path:
    """Return where to make a file: in the folder or, if that has no room for a second one, elsewhere with a link.

    Rankers keep the old file until the new one is complete.
    """
    before = max([0, *(512 * path.stat().st_blocks for path in folder.glob("models-*") if path.exists())])
    room = os.statvfs(folder)
    if spare is None or room.f_bavail * room.f_frsize > before + LEAST_ROOM:
        return folder / name
    elsewhere = spare.with_name(f"{spare.name}-{name}").resolve()
    elsewhere.unlink(missing_ok=True)
    (folder / name).symlink_to(elsewhere)
    return elsewhere


def make_current(folder: Path) -> None:
    """Create the file ``current``, which names no published file yet."""
    with open(folder / CURRENT, "xb") as file:
        file.write(bytes(8))


class NotPublished(Exception):  # noqa: N818
    """There are no models yet, or incomplete ones: the learner was stopped while it wrote them."""


class Loop:
    """A ranker's copy of a loop: its view, its weights and its catalogue."""

    def __init__(self, view: LoopView) -> None:
        self.view = view
        self.copied = CatalogueCopy()
        self.catalogue, self.references = self.copied.actions, self.copied.references
        self.prepared = self.copied.prepared
        self.clients = Clients()
        self.weights: Array = np.zeros(0, np.float32)  # the numbers of ``model``, of 32 bits
        self.model: PublishedModel  # once it is read
        self.spare: Array = self.weights
        self.seen: Array = np.zeros(0, np.uint64)
        self.spare_seen: Array = self.seen
        self.clients_version = -1
        self.lent: Counter[int] = Counter()  # copies on other threads, by the id of their weights
        # Values that follow from a view, computed once for all decisions under it:
        self.id = view.id
        self.policy: tuple[Array, int] = (NO_RULE, 0)  # how it explores: a rule, and the number of rewards learned
        self.learn_after: int | None = None  # microseconds after which an event without a reward is learned

    @property
    def n_learned(self) -> int:
        """How many rewards it has learned."""
        return self.model.n_learned(self.view.statistics)

    @contextlib.contextmanager
    def lend(self, names: Iterable[str]) -> Iterator[Loop]:
        """Yield a copy for another thread, with these actions of the catalogue; publications do not change it.

        What it prepares of them is kept.
        """
        lent = copy.copy(self)
        lent.catalogue = {name: self.catalogue[name] for name in names if name in self.catalogue}
        lent.references = {name: self.references[name] for name in lent.catalogue}
        lent.prepared = {name: self.prepared[name] for name in lent.catalogue if name in self.prepared}
        self.lent[id(lent.weights)] += 1
        try:
            yield lent
        finally:
            self.lent[id(lent.weights)] -= 1
            for name, row in lent.prepared.items():
                if self.catalogue.get(name) is lent.catalogue[name]:  # else it was changed meanwhile
                    self.prepared[name] = row


class PublishedModels:
    """A ranker's side: ``loop`` returns the published state, ``memory`` has the personal models."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with open(folder / CURRENT, "r+b") as file:
            self._current = mmap.mmap(file.fileno(), 8, mmap.MAP_SHARED, mmap.PROT_READ)
        self._generation = 0
        self._published = -1
        self._loops: dict[str, Loop] = {}
        self._names: list[str] = []
        self._kept: dict[str, Loop] = {}  # by name, from the file before: those that the newest does not show yet
        self._fresh: set[str] = set()  # loops that were read since the last publication
        self.memory: MemoryReader | None = None
        self._compiling = True  # until the file ``compiling`` is gone

    @property
    def ready(self) -> bool:
        return self._look() is not None

    def _look(self) -> MemoryReader | None:
        """Return the newest published file, None before the first."""
        generation = int.from_bytes(self._current[:8], "little")
        if generation != self._generation:
            with contextlib.suppress(OSError):  # just being replaced: the old one is good enough for now
                memory = MemoryReader(self._folder / f"models-{generation}")
                self._keep(memory)
                self.memory = memory
                self._generation, self._published, self._loops = generation, -1, {}
        if self.memory is not None and (published := int(self.memory.words[PUBLISHED_AT])) != self._published:
            self._published = published
            self._fresh.clear()
        return self.memory

    def _keep(self, memory: MemoryReader) -> None:
        """Keep the loops that a new file does not show yet: they decide with these models until it does."""
        if self.memory is None:
            return
        kept = {}
        for name in _learner_view(memory).incomplete:
            with contextlib.suppress(NotPublished):
                loop = self._read_loop(self.memory, name)
                if loop is not None:
                    kept[name] = loop
        self._kept = kept

    @property
    def compiling(self) -> bool:
        """Whether code for rarer requests is still being compiled in the background."""
        self._compiling = self._compiling and (self._folder / COMPILING).exists()
        return self._compiling

    def names(self) -> list[str]:
        """Return the names of all loops."""
        memory = self._look()
        with contextlib.suppress(TornRead):
            data = None if memory is None else memory.read(LOOPS)
            self._names = [] if data is None else sorted(_unpack_names(data))
            for name in self._loops.keys() - {
                *self._names
            }:  # they were deleted, or are so new that they are read again
                del self._loops[name]
                self._fresh.discard(name)
        return self._names

    def loop(self, name: str) -> Loop | None:
        """Return a loop as published, None if it does not exist."""
        memory, generation = self.memory, int.from_bytes(self._current[:8], "little")
        if memory is None or generation != self._generation or memory.words[PUBLISHED_AT] != self._published:
            memory = self._look()
        if memory is None:
            raise NotPublished("no models are published yet")
        if name in self._fresh:
            return self._loops.get(name)
        return self._read_loop(memory, name)

    def _read_loop(self, memory: MemoryReader, name: str) -> Loop | None:
        """Read the changes of a loop."""
        loop = self._loops.get(name)
        try:
            data = memory.read(loop_key(f"view\0{name}"))
            if data is None:
                self._loops.pop(name, None)
                return self._kept_loop(memory, name)
            unread = _unpack_view(data)
            if loop is not None and loop.view.created_at != unread.created_at:
                loop = None  # it was another loop with this name
            view = _read_view(unread, None if loop is None else loop.view)
            loop = loop or Loop(view)
            self._refresh(memory, loop, view)
        except TornRead as torn:  # the last copy is used until the learner is back
            if name not in self._loops:
                raise NotPublished(str(torn)) from None
            return self._loops[name]
        self._loops[name] = loop
        self._fresh.add(name)
        return loop

    def _kept_loop(self, memory: MemoryReader, name: str) -> Loop | None:
        """Return a loop as another learner has left it if the new one does not show it yet."""
        if name not in _learner_view(memory).incomplete:
            self._kept.pop(name, None)
        elif name not in self._kept:
            raise NotPublished(f"the models of loop {name!r} are still learned from the log")
        return self._kept.get(name)

    def _refresh(self, memory: MemoryReader, loop: Loop, view: LoopView) -> None:
        """Copy the changes."""
        loop.copied.refresh(memory, loop.id, view.catalogue_pieces)
        if view.clients_version != loop.clients_version:
            loop.clients = _unpack_clients(_read(memory, f"clients\0{loop.id}"))
            loop.clients_version = view.clients_version
        if view.version != loop.view.version or not loop.weights.size:
            self._refresh_weights(memory, loop, view)
        loop.view, loop.learn_after = view, view.learn_after
        loop.policy = loop_rule(view.settings), 0 if view.knows_successes_only else loop.n_learned

    def _refresh_weights(self, memory: MemoryReader, loop: Loop, view: LoopView) -> None:
        key = weights_key(loop.id)
        offset = find_block(memory.words, *key)
        if offset < 0:
            raise TornRead(f"the weights of loop {view.name!r} are not published yet")
        size = int(memory.words[offset + HEAD])
        if loop.spare.size != size or loop.lent[id(loop.spare)]:
            n_chunks = (size >> CHUNK_BITS) + 1
            loop.spare, loop.spare_seen = np.zeros(size, np.float32), np.zeros(n_chunks, np.uint64)
        if _copy_weights(memory.words, offset, key, loop.spare.view(np.uint32), loop.spare_seen) != 0:
            raise TornRead(f"the weights of loop {view.name!r} are half written")
        loop.model = model_kind(view.settings).read_published(loop.spare)
        loop.weights, loop.spare = loop.spare, loop.weights
        loop.seen, loop.spare_seen = loop.spare_seen, loop.seen

    def learner(self) -> LearnerView | None:
        memory = self._look()
        return None if memory is None else _learner_view(memory)

    @property
    def all_waiting_bytes(self) -> int:
        """Bytes of the events of all loops that wait for their reward, as of the learner's last turn."""
        return 0 if self.memory is None else int(self.memory.words[WAITING_AT])

    def staleness(self) -> float:
        """Return the seconds since the learner's last sign of life."""
        memory = self._look()
        if memory is None:
            return math.inf
        return max(0.0, (time.monotonic_ns() - int(memory.words[HEARTBEAT_AT])) / 1e9)


def _learner_view(memory: MemoryReader) -> LearnerView:
    """Return the state of the learner as published."""
    with contextlib.suppress(TornRead):
        data = memory.read(LEARNER)
        if data is not None:
            return _unpack_learner(data)
    return LearnerView()


def _read_view(unread: _UnreadView, before: LoopView | None) -> LoopView:
    """Return a view with its settings, reusing those of the previous view if they are the same."""
    is_same = before is not None and before.settings_version == unread.settings_version
    settings = before.settings if before is not None and is_same else _unpack_settings(unread.settings)
    msgspec.structs.force_setattr(unread, "settings", settings)
    return unread


def _read(memory: MemoryReader, name: str) -> bytes:
    data = memory.read(key_of(name))
    if data is None:
        raise TornRead(f"{name!r} is not published yet")
    return data


def new_generation(folder: Path) -> int:
    """Return a number for the next published file; remove files of starts that never showed theirs."""
    current = int.from_bytes((folder / CURRENT).read_bytes(), "little") if (folder / CURRENT).exists() else 0
    taken = []
    for path in folder.glob("models-*"):
        taken.append(int(path.name.partition("-")[2]))
        if taken[-1] != current:
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    return max([current, *taken]) + 1

"""The personal models that are in memory: those used last, within a bound, and those not yet in the snapshot."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable

from fedres.scoring.model import PersonalModel
from service.engine.snapshots import Key, Snapshots


class PersonalModels:
    """Published models: never changed, only replaced. One thread publishes and flushes, any thread reads, no locks.

    A model is held until it is in the snapshot file, however full the cache is. That a user has none is remembered too.
    """

    def __init__(self, snapshots: Snapshots, cache_bytes: int) -> None:
        self.generation = 0  # rises whenever the file or a removal may have made a reader's answer old
        self._snapshots = snapshots
        self._room = cache_bytes
        self._changing = threading.Lock()  # what is cached, not what is read
        self._cache: OrderedDict[Key, PersonalModel | None] = OrderedDict()
        self._unsaved: dict[Key, PersonalModel] = {}
        self._flushing: dict[Key, PersonalModel] = {}

    def cached(self, key: Key) -> tuple[bool, PersonalModel | None]:
        """Return whether the answer is known without the disk, and the answer."""
        try:
            model = self._cache[key]
            self._cache.move_to_end(key)
        except KeyError:
            model = self._unsaved.get(key) or self._flushing.get(key)
            return model is not None, model
        return True, model

    def load(self, key: Key) -> PersonalModel | None:
        """Return a user's model, from the disk if need be; for the thread that publishes."""
        known, model = self.cached(key)
        if not known:
            model = self._snapshots.personal(key)
            self._keep(key, model)
        return model

    def read(self, key: Key) -> tuple[int, PersonalModel | None]:
        """Return the generation and what the disk has, for ``remember``; for other threads."""
        generation = self.generation
        known, model = self.cached(key)
        return generation, model if known else self._snapshots.personal(key)

    def remember(self, key: Key, generation: int, model: PersonalModel | None) -> bool:
        """Keep what ``read`` returned unless it may be old by now; return whether it is good."""
        if generation != self.generation:
            return False
        if key not in self._cache:
            self._keep(key, model)
        return True

    def publish(self, models: Iterable[tuple[Key, PersonalModel]]) -> None:
        """Take models that nobody will change any more."""
        for key, model in models:
            self.generation += 1
            self._unsaved[key] = model
            self._keep(key, model)

    def start_flush(self) -> dict[Key, PersonalModel]:
        """Return what must be written, which does not change; it stays readable until ``end_flush``."""
        self._flushing, self._unsaved = self._unsaved, {}
        return self._flushing

    def end_flush(self, *, written: bool) -> None:
        """Let go of what was written, or take it back."""
        if not written:
            self._unsaved = {**self._flushing, **self._unsaved}
        self._flushing = {}
        self.generation += 1

    def remove(self, key: Key) -> None:
        """Forget a user's model."""
        self.generation += 1
        self._unsaved.pop(key, None)
        if key in self._flushing:
            self._flushing = {other: model for other, model in self._flushing.items() if other != key}
        self._keep(key, None)

    def is_saved(self, key: Key) -> bool:
        """Return whether a user's model is in the snapshot as it was published last."""
        return key not in self._unsaved and key not in self._flushing

    def clear(self) -> None:
        """Forget all."""
        self.generation += 1
        with self._changing:
            self._room += sum(_size(model) for model in self._cache.values())
            self._cache.clear()
        self._unsaved, self._flushing = {}, {}

    @property
    def n_unsaved(self) -> int:
        return len(self._unsaved)

    def __len__(self) -> int:
        return len(self._cache)

    def _keep(self, key: Key, model: PersonalModel | None) -> None:
        with self._changing:
            if key in self._cache:
                self._room += _size(self._cache.pop(key))
            self._cache[key] = model
            self._room -= _size(model)
            while self._room < 0 and len(self._cache) > 1:
                self._room += _size(self._cache.popitem(last=False)[1])


def _size(model: PersonalModel | None) -> int:
    """Return about how many bytes an entry takes, 300 of them for its key and place."""
    return 300 + (0 if model is None else model.nbytes)

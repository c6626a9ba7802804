"""The device without the network: it decides, learns, and queues uploads."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.client import upload_bodies
from fedres.client.choosing import Round, choose, probabilities
from fedres.client.models import ACKNOWLEDGED, LOCAL, MODEL, Acknowledged, DeviceModels, JournalEntry
from fedres.client.offers import Offer, checked_name
from fedres.client.store import DeviceStore, Queued
from fedres.local_learners.vw import vowpal_wabbit
from fedres_client.inputs import Id, number

if TYPE_CHECKING:
    from fedres.client.privacy import Privacy

TIMINGS = ("immediate", "aligned")
LARGEST = 1e9  # label or part of a score that the service accepts
WARN_SECONDS = 60.0  # between two warnings of the same kind

log = logging.getLogger("fedres.client")


@dataclass(frozen=True, slots=True)
class DeviceDecision:
    """A device's decision; ``model_version`` 0 means without a shared model."""

    event_id: str
    action: Any  # the id as the caller gave it: a str, an int or a UUID
    probability: float
    scores: dict[Any, float]
    model_version: int


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a device."""

    model_version: int
    waiting: int  # decisions without a reward
    queued: int  # uploads that the service does not have yet
    dropped: int  # uploads that it will never have
    trouble: str | None  # of the last sync


class Scored(NamedTuple):
    """The models' scores for an offer."""

    version: int
    means: Array
    widths: Array
    n_learned: int  # rewards, on which exploration depends
    waiting: Callable[[int], bytes]  # returns the record of an action until its reward comes


class Device(ABC):
    """A device without the network; thread safe. ``clock`` is the time of day in seconds."""

    model: str  # required model of the loop
    learners: tuple[str, ...]
    fetches_first = False  # True: fetch the newest model before a burst of uploads

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        client: Id,
        loop: str = "default",
        learner: str = "vw",
        timing: str = "immediate",
        download: bool = True,
        privacy: Privacy | None = None,
        queue_limit: int = 10_000,
        clock: Callable[[], float] = time.time,
        rng: np.random.Generator | None = None,
    ) -> None:
        client, loop = checked_name("client", client), checked_name("loop", loop)
        checks.one_of("learner", learner, self.learners)
        if learner == "vw":
            vowpal_wabbit()  # an error without it, before the folder is made
        checks.one_of("timing", timing, TIMINGS)
        checks.whole("queue_limit", queue_limit)
        self.client, self.loop, self.download = client, loop, download
        self.lock = threading.RLock()
        self.trouble: str | None = None
        self.shared_version = 0  # the newest version reported by the service, if models are not downloaded
        self._timing, self._privacy, self._queue_limit = timing, privacy, queue_limit
        self._clock, self._rng = clock, rng or np.random.default_rng()
        self._warned = -math.inf
        self._pid = os.getpid()
        self._store = DeviceStore(folder)
        try:
            self._open(learner)
        except BaseException:
            self._store.close()
            raise

    def _open(self, learner: str) -> None:
        with self._store.transaction():
            for name, value in (("client", self.client), ("loop", self.loop), ("learner", learner)):
                kept = self._store.meta(name)
                if kept is None:
                    self._store.keep(name, value)
                elif kept != value:
                    raise ValueError(f"{name} must be {kept!r}, whose folder this is, got {value!r}")
        # Numbers start from the time of day, so that a folder restored from a copy reuses none.
        self._seq = max(self._store.last_seq(), int(self._clock() * 1000))
        self._learner = learner
        self._models = self._read()

    def _read(self) -> DeviceModels:
        kept = self._store.meta("round")
        self.has_settings = kept is not None  # of the loop
        self.dropped = int(self._store.meta("dropped") or 0)
        return self._read_models(kept)

    @abstractmethod
    def _read_models(self, kept: str | None) -> DeviceModels:
        """Read the models in the store; ``kept`` has the loop's settings, None before the first reply."""

    @property
    def settings(self) -> Round:
        return self._models.settings

    @property
    def route(self) -> str:
        """The route of uploads: residuals or updates."""
        return self._models.side.route

    @property
    def version(self) -> int:
        """The version of the shared model in decisions, 0 before the first."""
        return self._models.side.version if self.download else self.shared_version

    @property
    def tag(self) -> str:
        """The service's tag of the downloaded shared model."""
        with self._turn():
            return self._models.side.tag

    @property
    def seq(self) -> int:
        """The number of the newest upload."""
        return self._seq

    def status(self) -> Status:
        """Return the device's status, without waiting for other threads."""
        self._check_open()
        return Status(self.version, self._store.n_waiting, self._store.n_queued, self.dropped, self.trouble)

    def close(self) -> None:
        """Save the models and close the file; closing twice is allowed."""
        with self.lock:
            if self._pid != os.getpid():
                return
            self._pid = 0
            try:
                self._save()
            finally:  # the journal has what could not be saved
                self._models.close()
                self._store.close()

    @property
    def closed(self) -> bool:
        return self._pid == 0

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError("this device is closed")
        if self._pid != os.getpid():
            raise RuntimeError(f"this device belongs to process {self._pid}: close it there, and open one here")

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Hold the lock; refuse a closed device, or another process than the one that opened it."""
        with self.lock:
            self._check_open()
            yield

    # Deciding

    def decide(self, offer: Offer, shared_scores: tuple[int, Sequence[float]] | None = None) -> DeviceDecision:
        """Return the decision on an offer; without a downloaded model, ``shared_scores`` are the service's version and
        its scores."""
        with self._turn():
            if self._store.waiting(offer.event_id) is not None:
                raise ValueError(f"event_id must be new, got {offer.event_id!r}, which waits for its reward")
            scored = self._scored(offer, shared_scores)
            chances = probabilities(scored.means, scored.widths, offer.allowed, self.settings, scored.n_learned)
            k = choose(offer.event_id, chances, self.settings.draw_prefix)
            with self._store.transaction(durable=False):
                self._store.wait(offer.event_id, scored.waiting(k), self._queue_limit)
        named = dict(zip(offer.caller_ids, scored.means.tolist(), strict=True))
        return DeviceDecision(offer.event_id, offer.caller_ids[k], float(chances[k]), named, scored.version)

    @abstractmethod
    def _scored(self, offer: Offer, shared_scores: tuple[int, Sequence[float]] | None) -> Scored:
        """Return the models' scores for an offer."""

    # Learning

    def reward(self, event_id: Id, value: float) -> None:
        """Learn the reward of a decision, and queue its upload."""
        event_id = checked_name("event_id", event_id)
        label = self._label(value)
        with self._turn():
            body = self._store.waiting(event_id)
            if body is None:
                raise ValueError(f"event_id must be of a decision that waits for its reward, got {event_id!r}")
            with self._as_on_disk():
                self._reward(event_id, body, label)
            self._save_if_grown()

    def _label(self, value: float) -> float:
        label = number("value", value)
        low, high = self.settings.reward_range if self.has_settings else (-LARGEST, LARGEST)
        if not low <= label <= high:
            raise ValueError(f"value must be in the loop's reward_range [{low:g}, {high:g}], got {value}")
        return label

    @abstractmethod
    def _reward(self, event_id: str, body: bytes, label: float) -> None:
        """Learn the reward of a decision that waited with ``body``, and queue an upload."""

    def _enqueue(self, upload: Mapping[str, Any] | None, version: int, entries: list[JournalEntry]) -> int | None:
        """Queue an upload, drop the oldest of too many; return its number."""
        if upload is None:
            return None
        self._seq += 1
        body = upload_bodies.residual(upload) if self.route == "residuals" else upload_bodies.update(upload)
        self._store.enqueue(Queued(self._seq, version, body))
        excess = self._store.n_queued - self._queue_limit
        if excess > 0:
            self._drop([old.seq for old in self._store.oldest(excess)], entries)
            self._warn("the queue is full: %d uploads dropped so far, the oldest first", self.dropped)
        return self._seq

    # State that a sync changes

    def batch(self, n: int) -> list[Queued]:
        """Return up to ``n`` uploads, the oldest first."""
        with self._turn():
            return self._store.oldest(n)

    def sent(self, batch: Sequence[Queued], positions: Sequence[int]) -> None:
        """Record that uploads are stored, and at which positions of the log."""
        with self._turn(), self._change() as entries:
            for upload, position in zip(batch, positions, strict=True):
                self._store.place(upload.seq, position)
                if self.route == "updates":
                    done = {**upload_bodies.read_upload(upload.body), "version": upload.version}
                    entries.append((ACKNOWLEDGED, msgspec.msgpack.encode(Acknowledged(done, position))))
            self._store.dequeue([upload.seq for upload in batch])
            self._release_due(entries)

    def refused(self, uploads: Sequence[Queued], reason: str) -> None:
        """Drop uploads that the service will never accept."""
        with self._turn(), self._change() as entries:
            self._drop([upload.seq for upload in uploads], entries)
        log.warning("%d uploads are dropped, which the service refuses: %s", len(uploads), reason)

    @abstractmethod
    def received(self, payload: bytes, version: int) -> None:
        """Apply a downloaded model."""

    def note_version(self, version: int) -> None:
        """Record the version in a reply of the service, on a device that does not download models."""
        with self._turn(), self._change() as entries:
            self.shared_version = version
            self._release_due(entries)

    def forget_model(self) -> None:
        """Start from version 0 again: the service does not have the versions of this device."""
        with self._turn():
            with self._change() as entries:
                self._release(self._store.due(2**62), entries)
            self.shared_version = 0
            self._rebuild(self.settings, keep_side=False)

    @abstractmethod
    def adopt(self, settings: Round) -> None:
        """Adopt the loop's settings from the service."""

    def give_version(self, version: int, *, to_all: bool) -> None:
        """Set the version of queued uploads: of those made before the first version, or of all."""
        with self._turn(), self._store.transaction():
            self._store.renumber(version, only_unknown=not to_all)

    def _rebuild(self, settings: Round, *, keep_side: bool) -> None:
        """Reopen the models with other settings: the local one unchanged, the shared side if it still fits."""
        with self._store.transaction():
            self._models.save()
            if not keep_side:
                self._store.save(MODEL, None)
            self._store.keep("round", msgspec.json.encode(settings).decode())
        self._reopen()

    def _reopen(self) -> None:
        old, self._models = self._models, self._read()
        old.close()

    def _save(self) -> None:
        with self._store.transaction():
            self._models.save()

    @contextlib.contextmanager
    def _change(self) -> Iterator[list[JournalEntry]]:
        """Commit the journal entries added to the list, then apply them."""
        entries: list[JournalEntry] = []
        with self._as_on_disk():
            with self._store.transaction():
                yield entries
                for entry in entries:
                    self._store.write(*entry)
            for entry in entries:
                self._models.apply(*entry)

    def _note(self, kind: str, body: bytes) -> None:
        """Write a journal entry for a change that the models have made already."""
        self._store.write(kind, body)
        self._models.count(body)

    @contextlib.contextmanager
    def _as_on_disk(self) -> Iterator[None]:
        """Read the models again after an exception, such as Ctrl-C, since they may differ from the disk."""
        try:
            yield
        except BaseException:
            self._reopen()
            raise

    def _save_if_grown(self) -> None:
        if self._models.grown:
            self._save()

    def _drop(self, seqs: Sequence[int], entries: list[JournalEntry]) -> None:
        self.dropped += self._store.dequeue(seqs)
        self._store.keep("dropped", str(self.dropped))
        for seq in seqs:
            self._release(self._store.held(seq), entries)

    def _release_due(self, entries: list[JournalEntry]) -> None:
        self._release(self._store.due(self.version), entries)

    def _release(self, held: Sequence[tuple[int, bytes]], entries: list[JournalEntry]) -> None:
        """Take the steps that waited."""
        entries += [(LOCAL, step) for _, step in held]
        self._store.release([seq for seq, _ in held])

    def _warn(self, message: str, *values: object) -> None:
        """Log a warning, limited in frequency."""
        now = self._clock()
        if abs(now - self._warned) >= WARN_SECONDS:
            self._warned = now
            log.warning(message, *values)


def bounded(part: float) -> float:
    """Return a part of a score, clipped to what the service accepts; 0 for NaN."""
    return min(max(part, -LARGEST), LARGEST) if part == part else 0.0


def short(part: float) -> float:
    """Return the shortest decimal number that is equal in 32 bits."""
    return float(str(np.float32(part)))

"""A device of a loop with ``residual-kalman``: it keeps its examples, from which its model is computed.

The model is a function of the last downloaded shared model and of the examples in the device's file: first of those
that existed at the download, then of each later one. Opening a device learns them again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from fedres.client import upload_bodies
from fedres.client.choosing import Round
from fedres.client.device import Device, Scored, bounded, short
from fedres.client.global_side import Route
from fedres.client.models import MODEL
from fedres.client.offers import Offer
from fedres.client.store import DeviceStore, Queued
from fedres.decisions.constants import START_EVENTS
from fedres.decisions.federated_kalman import DeviceKalman, KalmanExample, Part
from fedres.decisions.kalman_document import Document, read_document
from fedres.decisions.kalman_state import KalmanRequest
from fedres.policies import HOSTED
from fedres.scoring.features import Hashed, Named, Preparer
from fedres.scoring.flattening import FeatureError

if TYPE_CHECKING:
    from fedres.client.privacy import Privacy

NAME, POLICY = "residual-kalman", "optimistic-squarecb"
MOST_EXAMPLES = 2_000  # kept when a model is downloaded; twice as many in between
RELEARNED = "relearned"  # in the store: the last example when all were last learned again


class StoredExample(msgspec.Struct, array_like=True, frozen=True):
    """An example in the device's file."""

    hashes: bytes
    values: bytes
    fields: bytes
    n_context: int
    n_seen: int
    label: float = 0.0

    def read(self) -> KalmanExample:
        hashes, fields = (np.frombuffer(bytearray(column), np.uint32) for column in (self.hashes, self.fields))
        values = np.frombuffer(bytearray(self.values), np.float32)
        return KalmanExample(hashes, values, fields, self.n_context, self.n_seen, self.label)


class WaitingExample(msgspec.Struct, array_like=True, frozen=True):
    """A decision until its reward comes."""

    context: bytes  # JSON, nothing private
    action: str
    features: bytes
    example: StoredExample


class KalmanModels:
    """The two models, computed from the store; for one thread at a time."""

    route: Route = "residuals"
    grown = False  # examples are on the disk one by one

    def __init__(self, store: DeviceStore, settings: Round) -> None:
        self._store, self.settings, self.side = store, settings, self
        self._preparer = Preparer(crosses=False)
        saved = store.saved(MODEL)
        self.document: Document | None = None if saved is None else read_document(saved)
        self.model = DeviceKalman(settings.reward_range, personal=settings.personal)
        last, rows = int(store.meta(RELEARNED) or 0), read_examples(store)
        self.n_examples = len(rows)
        self.model.relearn(self._shared, [example for seq, example in rows if seq <= last])
        for seq, example in rows:
            if seq > last:
                self.model.learn(example)

    @property
    def _shared(self) -> Any:
        return None if self.document is None else self.document.shared

    @property
    def version(self) -> int:
        return 0 if self.document is None else self.document.metadata.version

    @property
    def tag(self) -> str:
        return "" if self.document is None else self.document.metadata.tag

    @property
    def n_learned(self) -> int:
        """The number of rewards learned by the models that decide."""
        if self._shared is not None and self.document is not None:
            return self.document.metadata.learned
        return self.n_examples if self.model.own is not None else 0

    @property
    def begins(self) -> bool:
        """Whether the examples are now enough for a model without a shared one."""
        return self._shared is None and self.model.own is None and self.n_examples >= START_EVENTS

    def relearn(self) -> list[tuple[int, Part]]:
        """Learn the last examples again; return each one's part, by sequence number. Inside a transaction."""
        self._store.keep_examples(MOST_EXAMPLES)
        rows = read_examples(self._store)
        self.n_examples = len(rows)
        if rows:
            self._store.keep(RELEARNED, str(rows[-1][0]))
        parts = self.model.relearn(self._shared, [example for _, example in rows])
        return [(seq, part) for (seq, _), part in zip(rows, parts, strict=True)]

    def hashed(self, offer: Offer) -> tuple[KalmanRequest, int]:
        """Return an offer's hashed features, and how many features of the context the service may see."""
        named = [Named("context", None, offer.context), Named("private", None, offer.own_context)]
        named += [Named(f"actions[{name!r}]", name, features) for name, features in offer.actions]
        rows: list[Hashed] = []
        for row in self._preparer.hash_all(named):
            if isinstance(row, FeatureError):
                raise row
            rows.append(row)
        seen, *rows = rows
        request = KalmanRequest(
            np.frombuffer(bytearray().join([row.hashes for row in rows]), np.uint32),
            np.frombuffer(bytearray().join([row.values for row in rows]), np.float32),
            np.frombuffer(bytearray().join([row.fields for row in rows]), np.uint32),
            np.cumsum([row.size for row in rows], dtype=np.int64),
        )
        return request, seen.size

    def save(self) -> None:
        """Do nothing: all of it is on the disk."""

    def apply(self, kind: str, body: bytes) -> None:
        """Do nothing: there is no journal."""

    def count(self, body: bytes) -> None:
        """Do nothing, likewise."""

    def close(self) -> None:
        """Do nothing: there is nothing to free."""


def read_examples(store: DeviceStore) -> list[tuple[int, KalmanExample]]:
    return [(seq, msgspec.msgpack.decode(body, type=StoredExample).read()) for seq, body in store.examples()]


class KalmanDevice(Device):
    """A device whose own model is the other half of a loop's ``residual-kalman``."""

    model = NAME
    learners = (NAME,)
    fetches_first = True
    _models: KalmanModels

    def __init__(self, folder: str | os.PathLike[str], **options: Any) -> None:
        if options.get("timing", "immediate") != "immediate":
            raise ValueError(f"timing must be 'immediate' for {NAME}, got {options['timing']!r}")
        if not options.get("download", True):
            raise ValueError(f"download must be True for {NAME}, got False")
        super().__init__(folder, **{"learner": NAME, **options})

    def _read_models(self, kept: str | None) -> KalmanModels:
        if kept is None:
            settings = Round(model=NAME, policy=POLICY, gamma=HOSTED[POLICY]["gamma"])
        else:
            settings = msgspec.json.decode(kept, type=Round)
        return KalmanModels(self._store, settings)

    def _scored(self, offer: Offer, shared_scores: tuple[int, Sequence[float]] | None) -> Scored:
        models = self._models
        request, n_seen = models.hashed(offer)
        prediction, first = models.model.predict(request, n_seen), int(request.starts[0])

        def waiting(k: int) -> bytes:
            name, features = offer.actions[k]
            mine = slice(request.starts[k], request.starts[k + 1])
            hashes, values, fields = (column[:first].tobytes() + column[mine].tobytes() for column in request[:3])
            kept = StoredExample(hashes, values, fields, first, n_seen)
            return msgspec.msgpack.encode(WaitingExample(offer.context, name, features, kept))

        return Scored(models.version, prediction.means, prediction.widths, models.n_learned, waiting)

    def _reward(self, event_id: str, body: bytes, label: float) -> None:
        decision, models = msgspec.msgpack.decode(body, type=WaitingExample), self._models
        kept = msgspec.structs.replace(decision.example, label=label)
        example = kept.read()
        action = {"id": decision.action, "features": msgspec.Raw(decision.features)}
        event = {"context": msgspec.Raw(decision.context), "action": action, "label": label}
        upload = {**event, **self._said(models.model.part(example))}
        with self._change() as entries:
            self._store.rewarded(event_id)
            seq = self._enqueue(upload, models.version, entries)
            assert seq is not None
            self._store.add_example(seq, msgspec.msgpack.encode(kept))
            models.n_examples += 1
            if models.begins or models.n_examples >= 2 * MOST_EXAMPLES:
                models.relearn()
            else:
                models.model.learn(example)

    def _said(self, part: Part) -> dict[str, Any]:
        """Return an upload's fields about the own part; with privacy, a noisy prediction and a fixed variance."""
        span = self._models.model.span
        if self._privacy is not None:
            released = self._privacy.release(bounded(part.mean * span), self._rng)
            return {"local": short(released), "variance": short(_spread(self._privacy, span)), "slopes": []}
        return {
            "local": short(bounded(part.mean * span)),
            "variance": short(bounded(max(part.variance, 0.0) * span * span)),
            "slopes": [short(bounded(slope * span)) for slope in part.slopes.tolist()],
        }

    def received(self, payload: bytes, version: int) -> None:
        """Apply a model: learn all examples again beside it, and rewrite waiting uploads."""
        with self._turn(), self._as_on_disk():
            document = read_document(payload)
            if document.metadata.tag == self.tag:
                return
            with self._change():
                self._store.save(MODEL, payload)
                self._models.document = document
                parts = dict(self._models.relearn())
                if self._privacy is None:  # released predictions are not released again
                    for upload in self._store.oldest(self._store.n_queued):
                        if upload.seq in parts:
                            self._store.rewrite(self._said_anew(upload, parts[upload.seq], document.metadata.version))

    def _said_anew(self, upload: Queued, part: Part, version: int) -> Queued:
        said = {**msgspec.json.decode(upload.body, type=dict[str, msgspec.Raw]), **self._said(part)}
        return Queued(upload.seq, version, upload_bodies.residual(said))

    def adopt(self, settings: Round) -> None:
        with self._turn():
            old = self.settings
            with self._store.transaction():
                self._store.keep("round", msgspec.json.encode(settings).decode())
            if self.has_settings and (old.reward_range, old.personal) == (settings.reward_range, settings.personal):
                self._models.settings = settings
            else:
                self._reopen()


def _spread(privacy: Privacy, span: float) -> float:
    """Return a variance that reveals nothing about the device: that of the noise plus the largest possible part's."""
    clip, scale = privacy.clip or span, privacy.scale or 0.0
    return clip**2 + (scale**2 if privacy.noise == "gaussian" else 2 * scale**2)

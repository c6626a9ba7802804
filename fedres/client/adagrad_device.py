"""A device of a loop with ``adagrad``: its local model takes steps, which are written to a journal."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from fedres.client.choosing import Round
from fedres.client.device import Device, Scored, bounded, short
from fedres.client.local import LEARNERS, Step, local_example, read_example
from fedres.client.models import LOCAL, MODEL, OUTCOME, AdaGradModels, JournalEntry, Rewarded, rebuilt, replaced
from fedres.client.offers import Offer
from fedres.scoring.model import expand


class WaitingDecision(msgspec.Struct, array_like=True, frozen=True):
    """A decision until its reward comes."""

    context: bytes
    action: str
    features: bytes
    version: int
    shared: float
    indices: bytes  # of the local features
    values: bytes


class AdaGradDevice(Device):
    """A device with a local learner, VW or its twin, beside the loop's global learner."""

    model = "adagrad"
    learners = LEARNERS
    _models: AdaGradModels

    def _read_models(self, kept: str | None) -> AdaGradModels:
        return AdaGradModels(self._store, self._learner, msgspec.json.decode(kept or "{}", type=Round))

    def _scored(self, offer: Offer, shared_scores: tuple[int, Sequence[float]] | None) -> Scored:
        self._models.check_numbers(offer.own_context, offer.actions)
        version, shared = self._shared(offer) if shared_scores is None else shared_scores
        hashed = self._models.prepare(offer.own_context, offer.actions)
        examples = [local_example(expand(hashed, k)) for k in range(len(offer.actions))]
        local = [self._models.local_score(example) for example in examples]
        means = (np.asarray(shared, np.float32) + np.asarray(local, np.float32)).astype(np.float64)

        def waiting(k: int) -> bytes:
            name, features = offer.actions[k]
            parts = (offer.context, name, features, version, float(shared[k]))
            return msgspec.msgpack.encode(WaitingDecision(*parts, examples[k][0].tobytes(), examples[k][1].tobytes()))

        return Scored(version, means, np.zeros(means.size), self.settings.n_learned, waiting)

    def _shared(self, offer: Offer) -> tuple[int, Sequence[float]]:
        if not self.download:
            return 0, [0.0] * len(offer.actions)
        return self._models.side.version, self._models.shared_scores(offer.context, offer.actions).tolist()

    def _reward(self, event_id: str, body: bytes, label: float) -> None:
        decision = msgspec.msgpack.decode(body, type=WaitingDecision)
        version, shared = self._shared_now(decision)
        local = bounded(self._models.local_score(read_example(decision.indices, decision.values)))
        released = local if self._privacy is None else self._privacy.release(local, self._rng)
        fields = (decision.context, decision.action, decision.features, version, short(shared), short(released), label)
        rewarded = Rewarded(*fields)
        upload = self._models.learn(rewarded)
        with self._change() as entries:
            self._store.rewarded(event_id)
            if self.route == "updates":
                self._note(OUTCOME, msgspec.msgpack.encode(rewarded))
            seq = self._enqueue(upload, version, entries)
            if self.settings.personal:
                self._learn_locally(decision, label, shared, local, seq, entries)

    def _shared_now(self, decision: WaitingDecision) -> tuple[int, float]:
        """Return version and shared part of the newest model, or those of the decision if no model is downloaded."""
        if not self.download:
            return decision.version, decision.shared
        actions = [(decision.action, decision.features)]
        return self.version, bounded(float(self._models.shared_scores(decision.context, actions)[0]))

    def _learn_locally(
        self,
        decision: WaitingDecision,
        label: float,
        shared: float,
        local: float,
        seq: int | None,
        entries: list[JournalEntry],
    ) -> None:
        """Learn at once; if aligned, hold a step with the current slope until the shared model includes the upload."""
        example = (decision.indices, decision.values)
        if self._timing == "immediate" or seq is None:
            entries.append(_step("learn", label, shared, *example))
            return
        low, high = self._models.local.label_range
        prediction = min(max(shared + local, min(low, label)), max(high, label))
        entries.append(_step("see", label))
        self._store.hold(seq, _step("correct", 2 * (prediction - label), 0.0, *example)[1])

    def received(self, payload: bytes, version: int) -> None:
        """Apply a model or its changes; an older version also replaces a newer one: the service was restored."""
        with self._turn():
            if version < self.version:
                self.forget_model()
            with self._as_on_disk(), self._change() as entries:
                self._models.side.receive(payload)  # before the journal, so that a refused one is not written
                self._note(MODEL, payload)
                self._widen(entries)
                self._release_due(entries)
            self._save_if_grown()

    def adopt(self, settings: Round) -> None:
        """Adopt the loop's settings from the service."""
        with self._turn():
            old, route = self.settings, self.route
            if self.has_settings and not rebuilt(old, settings):
                with self._store.transaction():
                    self._store.keep("round", msgspec.json.encode(settings).decode())
                self._models.settings = settings
                return
            self._rebuild(settings, keep_side=not replaced(old, settings))
            if replaced(old, settings) and "updates" in (route, self.route) and self._store.n_queued:
                uploads = self._store.oldest(self._store.n_queued)
                self.refused(uploads, f"they are not for the learner {settings.global_learner}")

    def _widen(self, entries: list[JournalEntry]) -> None:
        """Widen the range of joint predictions to the rewards that the shared model has seen."""
        low, high = self._models.local.label_range
        least, most = self._models.side.reward_range
        entries += [_step("see", bound) for bound in (least, most) if not low <= bound <= high]


def _step(kind: str, number: float, offset: float = 0.0, indices: bytes = b"", values: bytes = b"") -> JournalEntry:
    return LOCAL, msgspec.msgpack.encode(Step(kind, number, offset, indices, values))

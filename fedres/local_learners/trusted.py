"""A local model weighted by how much it has improved predictions."""

from __future__ import annotations

from typing import Any, Protocol

from fedres.local_learners.evidence import Evidence
from fedres.local_learners.protocol import Features, LocalLearner

DOUBT = 0.3  # evidence of no worth that every model starts with


class RangedLearner(LocalLearner, Protocol):
    """A local learner with the range of labels to which it clamps."""

    @property
    def label_range(self) -> tuple[float, float]: ...


class Trusted:
    """``learner`` with its part of every prediction multiplied by a trust in [0, 1].

    Trust is the least-squares answer to "how much of the local part explains the residual of the global part", from the
    learner's own predictions before it learned their labels. If the shared model explains everything, a young local
    model is mostly noise and gets no weight; if clients differ, trust soon is near 1. The learner inside keeps
    learning the whole residual, trusted or not.
    """

    def __init__(self, learner: RangedLearner) -> None:
        self.learner = learner
        self.evidence = Evidence()

    @property
    def trust(self) -> float:
        return self.evidence.ratio(0.0, DOUBT)

    @property
    def label_range(self) -> tuple[float, float]:
        return self.learner.label_range

    def score(self, features: Features) -> float:
        """Return the trusted local part of a prediction: no offset, no clamp."""
        return self.trust * self.learner.score(features)

    def predict(self, features: Features, offset: float = 0.0) -> float:
        """Return offset plus trusted local part, clamped to the range of the labels seen."""
        return self._clamp(offset + self.score(features))

    def learn(self, features: Features, label: float, offset: float = 0.0) -> None:
        """Compare the local model's prediction with the label, then let it learn."""
        part = self.learner.score(features)
        self.learner.learn(features, label, offset)
        without = self._clamp(offset)
        self.evidence.add(label - without, self._clamp(offset + part) - without)

    def correct(self, features: Features, slope: float) -> None:
        """Take the step of an earlier prediction; its residual is missing, so trust does not change."""
        self.learner.correct(features, slope)

    def see(self, label: float) -> None:
        self.learner.see(label)

    def weigh(self, importance: float) -> None:
        self.learner.weigh(importance)

    def close(self) -> None:
        """Free memory that the learner holds outside Python, as VW's does."""
        close: Any = getattr(self.learner, "close", None)
        if close is not None:
            close()

    def _clamp(self, prediction: float) -> float:
        low, high = self.learner.label_range
        return min(max(prediction, low), high)

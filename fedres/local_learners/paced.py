"""A fast and a slow learner combined: only time shows which errors are noise and which are changes."""

from __future__ import annotations

from typing import Any

from fedres.local_learners.evidence import Evidence
from fedres.local_learners.protocol import Features
from fedres.local_learners.trusted import RangedLearner

PRIOR = 0.1  # evidence for the quick one that every pair starts with


class Paced:
    """Both learn every label; a prediction lies between theirs, as near to the quick one's as has been right so far.

    Where labels follow from features, large steps pay; where labels are noisy, their predictions are noise too. The
    share is the least-squares answer to "how far from the slow one's prediction towards the quick one's", from both
    predictions before the labels were learned.
    """

    def __init__(self, quick: RangedLearner, slow: RangedLearner) -> None:
        self.quick, self.slow = quick, slow
        self.evidence = Evidence()

    @property
    def share(self) -> float:
        return self.evidence.ratio(PRIOR, PRIOR)

    @property
    def label_range(self) -> tuple[float, float]:
        return self.quick.label_range

    def score(self, features: Features) -> float:
        """Return the local part of a prediction: no offset, no clamp."""
        share = self.share
        return share * self.quick.score(features) + (1 - share) * self.slow.score(features)

    def predict(self, features: Features, offset: float = 0.0) -> float:
        """Return offset plus local part, clamped to the range of the labels seen."""
        return self._clamp(offset + self.score(features))

    def learn(self, features: Features, label: float, offset: float = 0.0) -> None:
        """Compare the predictions both would have made, then let them learn."""
        quick, slow = self.quick.score(features), self.slow.score(features)
        self.quick.learn(features, label, offset)
        self.slow.learn(features, label, offset)
        base = self._clamp(offset + slow)
        self.evidence.add(label - base, self._clamp(offset + quick) - base)

    def correct(self, features: Features, slope: float) -> None:
        """Let both take the step of an earlier prediction; the share stays."""
        self.quick.correct(features, slope)
        self.slow.correct(features, slope)

    def see(self, label: float) -> None:
        self.quick.see(label)
        self.slow.see(label)

    def weigh(self, importance: float) -> None:
        self.quick.weigh(importance)
        self.slow.weigh(importance)

    def close(self) -> None:
        """Free memory that the learners hold outside Python, as VW's do."""
        for learner in (self.quick, self.slow):
            close: Any = getattr(learner, "close", None)
            if close is not None:
                close()

    def _clamp(self, prediction: float) -> float:
        low, high = self.label_range
        return min(max(prediction, low), high)

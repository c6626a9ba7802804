"""A device's own model: Vowpal Wabbit, or its exact twin, over hashed pairs of features (docs/reference/hashing.md)."""

from __future__ import annotations

import zlib
from typing import Any

import msgspec
import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.local_learners.linear import LinearLearner
from fedres.local_learners.vw import VWLearner
from fedres.scoring.model import Example

LEARNERS = ("vw", "linear")
BITS = 18  # 2^18 local weights

_LAST = 2**BITS - 1  # reserved by VWLearner
_CONSTANT = 11650396 & _LAST  # and VW this one, for its constant


class Step(msgspec.Struct, array_like=True, frozen=True):
    """One change of a local model, written to the journal before it is made."""

    kind: str  # learn, correct or see
    number: float  # the label; of correct the slope
    offset: float = 0.0  # the shared part of the prediction, of learn
    indices: bytes = b""  # int32
    values: bytes = b""  # float32


class LocalModel:
    """A device's own model; each change is one ``Step``, so that steps can be replayed to the bit."""

    def __init__(self, learner: str, learning_rate: float, state: bytes | None = None) -> None:
        checks.one_of("learner", learner, LEARNERS)
        self.learner = learner
        self.learning_rate = learning_rate
        self._model: Any = _make(learner, learning_rate)
        if state is not None:
            self._model.set_state(zlib.decompress(state))

    @property
    def label_range(self) -> tuple[float, float]:
        """The least and the greatest label seen, and 0: where joint predictions lie."""
        low, high = self._model.label_range
        return float(low), float(high)

    def score(self, example: Example) -> float:
        """Return the local part of a prediction for indices and values as ``local_example`` makes them."""
        return float(self._model.score(example))

    def apply(self, step: Step) -> None:
        """Make a change."""
        if step.kind == "see":
            self._model.see(step.number)
            return
        example = read_example(step.indices, step.values)
        if step.kind == "learn":
            self._model.learn(example, step.number, step.offset)
        else:
            self._model.correct(example, step.number)

    def get_state(self) -> bytes:
        """Return the state of the model."""
        return zlib.compress(self._model.get_state(), 1)

    def close(self) -> None:
        """Free VW's memory."""
        if self.learner == "vw":
            self._model.close()


def _make(learner: str, learning_rate: float) -> VWLearner | LinearLearner:
    if learner == "vw":
        return VWLearner(learning_rate, bits=BITS)
    return LinearLearner(_LAST, learning_rate)


def local_example(hashed: Example) -> Example:
    """Return local indices (int32) and values of hashed pairs; the two indices that VW needs give way to others."""
    keys, values = hashed
    indices = (keys >> np.uint32(32 - BITS)).astype(np.int32)
    indices[indices == _LAST] = _LAST - 1
    indices[indices == _CONSTANT] = _CONSTANT - 1
    return indices, values


def read_example(indices: bytes, values: bytes) -> tuple[Array, Array]:
    """Return an example from its bytes."""
    return np.frombuffer(indices, np.int32), np.frombuffer(values, np.float32)

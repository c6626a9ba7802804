"""FedRes with AdaGrad at the server: the step of ``vw --adaptive`` on every residual, as it arrives.

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020. Its experiments (section 6) train both
sides with this step; Algorithm 4 itself is plain gradient descent (``fedres_sgd``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedres import checks
from fedres.checks import Array
from fedres.compiling import bare_kernel
from fedres.global_learners.base import Server, Setting
from fedres.global_learners.fedres_sgd import TripletClient
from fedres.least_squares import needs_squared_loss
from fedres.local_learners.adagrad import Real, clamp, joint, see, weighted_step
from fedres.local_learners.evidence import Evidence
from fedres.local_learners.paced import PRIOR
from fedres.messages import Triplet, Up


@dataclass(frozen=True, kw_only=True, eq=False)
class FedResAdaGrad(Setting):
    """A step of AdaGrad for each residual, at the newest shared model and the local prediction that was sent.

    Weights are 32-bit floats and joint predictions are clamped to the labels seen, as Vowpal Wabbit has it. With
    ``slower`` there is a second model whose steps are that many times smaller, and the weights that clients get lie
    between the two, as ``Paced`` has it: labels that are noise to single clients are noise to the shared model too.
    """

    learning_rate: float = 1.0  # η
    slower: float = 1.0  # 1: no second model

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive("learning_rate", self.learning_rate)
        checks.positive("slower", self.slower)
        needs_squared_loss("fedres-adagrad", self.model, self.loss)

    def client(self, who: npt.ArrayLike | None = None) -> TripletClient:
        return TripletClient(self, who)

    def server(self) -> FedResAdaGradServer:
        return FedResAdaGradServer(self)


class FedResAdaGradServer(Server[FedResAdaGrad]):
    kinds = ("triplet",)

    def __init__(self, learner: FedResAdaGrad) -> None:
        super().__init__(learner)
        dim = learner.model.dim
        self.state: Array = np.zeros(4 + 2 * dim, dtype=np.float32)
        self.state[2 : 2 + dim] = self.weights
        self.slow = self.state.copy() if learner.slower != 1 else None
        self.evidence = Evidence()
        self.positions = np.arange(dim)

    def add(self, up: Up) -> None:
        body = up.body
        assert isinstance(body, Triplet)
        importance = self.learner.importance(up.who)
        for x, part, label, weight in zip(body.features, body.local_prediction, body.label, importance, strict=True):
            if weight > 0:
                self._learn(x, label, part, weight)

    def _learn(self, x: Array, label: float, part: float, weight: float) -> None:
        rate = self.learner.learning_rate
        quick = learn(self.state, self.positions, 0, x, label, part, weight, rate)
        if self.slow is not None:
            slow = learn(self.slow, self.positions, 0, x, label, part, weight, rate / self.learner.slower)
            self.evidence.add(label - slow, quick - slow)

    def next_weights(self, t: int) -> Array:
        here = slice(2, 2 + self.weights.size)
        quick = self.state[here].astype(np.float64)
        if self.slow is None:
            return quick
        share = self.evidence.ratio(PRIOR, PRIOR)
        return share * quick + (1 - share) * self.slow[here].astype(np.float64)


@bare_kernel
def learn(
    state: Array, indices: Array, shift: int, values: Array, label: Real, offset: Real, weight: Real, rate: Real
) -> Real:
    """Take the step of one residual of VW's importance weight ``weight``; return the joint prediction before it.

    The model has no constant.
    """
    see(state, label)
    none = np.float32(0)
    prediction = clamp(state, joint(state, indices, shift, values, none, offset))
    error = np.float32(label) - prediction
    weighted_step(state, indices, shift, values, none, error, rate, np.float32(weight))
    return prediction

"""Independent problems in one federation: a round of many costs little more than a round of one.

A model predicts the sum of the problems' risks, so that each block of the weights has its own problem's gradient.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from fedres.mirror_maps import project_to_ball


@dataclass(frozen=True)
class Itself:
    """The loss of a model that predicts its own risk."""

    curvature: float = 0.0

    def value(self, prediction, label):
        return prediction

    def slope(self, prediction, label):
        return np.ones_like(prediction)

    def bend(self, prediction):
        return np.zeros_like(prediction)

    def check(self, label):
        pass


@dataclass(frozen=True)
class HalfSquaredDistance:
    """½‖w − x‖²: one problem, or one in every coordinate."""

    features: int
    outputs: int = 0

    @property
    def dim(self):
        return self.features

    def predict(self, weights, features):
        return ((weights - features) ** 2).sum(axis=-1) / 2

    def gradient(self, weights, features, slope):
        return slope[:, None] * (weights - features)


@dataclass(frozen=True)
class LogisticRisks:
    """Σ of ln(1 + exp(−γh·w)) over problems of ``size`` weights each; x holds each one's γh."""

    problems: int
    size: int
    outputs: int = 0

    @property
    def features(self):
        return self.problems * self.size

    @property
    def dim(self):
        return self.features

    def predict(self, weights, features):
        return np.logaddexp(0, -self.margin(weights, features)).sum(axis=-1)

    def gradient(self, weights, features, slope):
        each = -expit(-self.margin(weights, features))[..., None] * self.apart(features)
        return slope[:, None] * each.reshape(len(features), -1)

    def margin(self, weights, features):
        return (self.apart(weights) * self.apart(features)).sum(axis=-1)

    def apart(self, rows):
        return rows.reshape(*rows.shape[:-1], self.problems, self.size)


@dataclass(frozen=True)
class Balls:
    """The mirror map of a ``Ball`` of this radius for each problem of ``size`` weights."""

    radius: float
    size: int = 1
    averages_states: bool = False

    def first(self, dim):
        return np.zeros(dim)

    def state(self, point):
        return project_to_ball(point.reshape(*point.shape[:-1], -1, self.size), self.radius).reshape(point.shape)

    def advance(self, state, gradient, step_size):
        return self.state(state - step_size * gradient)

    def point(self, state):
        return state

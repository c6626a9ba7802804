"""Federated residual learning: a shared and a personal model that predict together.

Each learns what the other leaves over. ``global_learner`` makes a rule for the shared model, ``VWLearner`` and
``LinearLearner`` are personal models, and ``Federation`` plays both against each other over delayed links.
"""

from fedres.channels import Channel, Faults, Fixed, Geometric, Recorded, Uniform
from fedres.federation import Example, Federation, Round, Site, delayed_sites
from fedres.global_learners import global_learner
from fedres.local_learners.each import Each
from fedres.local_learners.least_squares import LocalLeastSquares
from fedres.local_learners.linear import LinearLearner
from fedres.local_learners.sgd import LocalSGD
from fedres.local_learners.vw import VWLearner
from fedres.losses import Logistic, Softmax, Squared
from fedres.messages import Down, Up
from fedres.mirror_maps import Ball, PNorm, Simplex
from fedres.models import Linear, Network
from fedres.quantizer import Quantizer, ofediq_parameters

__all__ = [
    "Ball",
    "Channel",
    "Down",
    "Each",
    "Example",
    "Faults",
    "Federation",
    "Fixed",
    "Geometric",
    "Linear",
    "LinearLearner",
    "LocalLeastSquares",
    "LocalSGD",
    "Logistic",
    "Network",
    "PNorm",
    "Quantizer",
    "Recorded",
    "Round",
    "Simplex",
    "Site",
    "Softmax",
    "Squared",
    "Uniform",
    "Up",
    "VWLearner",
    "delayed_sites",
    "global_learner",
    "ofediq_parameters",
]

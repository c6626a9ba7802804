"""Federated residual learning: a shared and a personal model that predict together.

Each learns the residual of the other. ``global_learner`` makes a rule for the shared model, ``VWLearner`` and
``LinearLearner`` are personal models, and ``Federation`` trains both over delayed links.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedres.loading import load

if TYPE_CHECKING:
    from fedres.channels import Channel, Faults, Fixed, Geometric, Recorded, Uniform
    from fedres.federation import Example, Federation, Round, Site, delayed_sites
    from fedres.global_learners import global_learner
    from fedres.local_learners.each import Each
    from fedres.local_learners.least_squares import LocalLeastSquares
    from fedres.local_learners.linear import LinearLearner
    from fedres.local_learners.sgd import LocalSGD
    from fedres.local_learners.trusted import Trusted
    from fedres.local_learners.vw import VWLearner
    from fedres.losses import Logistic, Softmax, Squared
    from fedres.messages import Down, Up
    from fedres.mirror_maps import Ball, PNorm, Simplex
    from fedres.models import Linear, Network
    from fedres.quantizer import Quantizer, ofediq_parameters

_HOME = {
    "Ball": "mirror_maps",
    "Channel": "channels",
    "Down": "messages",
    "Each": "local_learners.each",
    "Example": "federation",
    "Faults": "channels",
    "Federation": "federation",
    "Fixed": "channels",
    "Geometric": "channels",
    "Linear": "models",
    "LinearLearner": "local_learners.linear",
    "LocalLeastSquares": "local_learners.least_squares",
    "LocalSGD": "local_learners.sgd",
    "Logistic": "losses",
    "Network": "models",
    "PNorm": "mirror_maps",
    "Quantizer": "quantizer",
    "Recorded": "channels",
    "Round": "federation",
    "Simplex": "mirror_maps",
    "Site": "federation",
    "Softmax": "losses",
    "Squared": "losses",
    "Trusted": "local_learners.trusted",
    "Uniform": "channels",
    "Up": "messages",
    "VWLearner": "local_learners.vw",
    "delayed_sites": "federation",
    "global_learner": "global_learners",
    "ofediq_parameters": "quantizer",
}

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
    "Trusted",
    "Uniform",
    "Up",
    "VWLearner",
    "delayed_sites",
    "global_learner",
    "ofediq_parameters",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: SciPy, numba and VW take a second of processor time."""
    if name == "__version__":
        return version("fedres")
    if name not in _HOME:
        raise AttributeError(f"module 'fedres' has no attribute {name!r}")
    return getattr(load(f"fedres.{_HOME[name]}"), name)

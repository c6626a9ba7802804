"""Rules for the shared weights, by name."""

from __future__ import annotations

from dataclasses import fields
from importlib.metadata import entry_points
from typing import Any

from fedres import checks
from fedres.global_learners.base import Setting
from fedres.global_learners.dynamic_fedavg import DynamicFedAvg
from fedres.global_learners.fedogd import FedOGD
from fedres.global_learners.fedomd import FedOMD
from fedres.global_learners.fedres_adagrad import FedResAdaGrad
from fedres.global_learners.fedres_erm import FedResERM
from fedres.global_learners.fedres_sgd import FedResSGD
from fedres.global_learners.fedsea import FedSEA
from fedres.global_learners.fictitious_play import FictitiousPlay
from fedres.global_learners.ofedavg import OFedAvg
from fedres.global_learners.ofediq import OFedIQ
from fedres.losses import Logistic, Loss, Softmax, Squared
from fedres.models import Linear

GLOBAL_LEARNERS: dict[str, type[Setting]] = {
    "fedres-sgd": FedResSGD,
    "fedres-adagrad": FedResAdaGrad,
    "fedres-erm": FedResERM,
    "fictitious-play": FictitiousPlay,
    "fedogd": FedOGD,
    "ofedavg": OFedAvg,
    "ofediq": OFedIQ,
    "fedomd": FedOMD,
    "fedsea": FedSEA,
    "dynamic-fedavg": DynamicFedAvg,
}
ENTRY_POINTS = "fedres.global_learners"  # where other packages offer learners
LOSSES = ("squared", "logistic", "softmax")


def global_learner(name: str, **hyperparameters: Any) -> Any:
    """Return the learner of this name, e.g. ``global_learner("fedogd", dim=8, n_clients=3, step_size=0.1)``.

    ``dim`` (and ``outputs`` for softmax) stands for a linear model on that many global features; pass any other as
    ``model``. ``loss`` is "squared" (the default), "logistic", "softmax" or a loss object.
    """
    learner = learner_class(name)
    arguments = dict(hyperparameters)
    outputs = arguments.pop("outputs", 0)
    if outputs and "dim" not in arguments:
        raise ValueError(f"outputs must come with dim, got {outputs}: a model knows its own")
    if "dim" in arguments:
        if "model" in arguments:
            raise ValueError(f"dim and model must not both be given, got {arguments['dim']} and {arguments['model']!r}")
        checks.whole("dim", arguments["dim"])
        arguments["model"] = Linear(arguments.pop("dim"), outputs)
    if "model" not in arguments:
        raise ValueError(f"dim must be given for {name!r}: the number of global features")
    if isinstance(arguments.get("loss"), str):
        checks.has("model", arguments["model"], "predict", "gradient")
        arguments["loss"] = _loss(arguments["loss"], arguments["model"].outputs)
    names = [field.name for field in fields(learner)]
    for key in arguments:
        if key not in names:
            raise ValueError(f"{key} is not a hyperparameter of {name!r}, which has dim, {', '.join(names)}")
    return learner(**arguments)


def learner_class(name: str) -> type[Setting]:
    """Return the class of a learner: one of ours, or of a package with an entry point ``fedres.global_learners``."""
    if name in GLOBAL_LEARNERS:
        return GLOBAL_LEARNERS[name]
    for point in entry_points(group=ENTRY_POINTS, name=name):
        kind: type[Setting] = point.load()
        return kind
    raise ValueError(f"name must be one of {', '.join(learner_names())}, got {name!r}")


def learner_names() -> list[str]:
    """Return the names of our learners, then those of installed packages."""
    return [
        *GLOBAL_LEARNERS,
        *sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(GLOBAL_LEARNERS)),
    ]


def _loss(name: str, outputs: int) -> Loss:
    if name == "squared":
        return Squared()
    if name == "logistic":
        return Logistic()
    if name == "softmax":
        return Softmax(outputs)
    raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {name!r}")

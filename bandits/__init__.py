"""Contextual bandits on federated residual learning: decide, explore, learn from rewards, evaluate from logs.

``Bandit`` decides for many clients, with a model (``Kalman``, ``AdaGrad``, ``LinearUCB``, ``Federated``) and a policy;
``Action`` names what can be chosen and its features; ``arms``, ``rows`` and ``sparse`` take numbers;
``policy`` makes a policy by name; ``evaluate`` tells from logged decisions what another policy would have earned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedres.loading import load

if TYPE_CHECKING:
    from bandits.actions import Action, Actions, arms, rows, sparse
    from bandits.bandit import Bandit
    from bandits.decisions import Decision, UnknownDecisionError
    from bandits.evaluation.compare import evaluate
    from bandits.federated import FederatedBandit
    from bandits.models.kinds import AdaGrad, Federated, Kalman, Kind, LinearUCB
    from fedres.policies import (
        EpsilonGreedy,
        ExploreEvery,
        Greedy,
        LinUCB,
        OptimisticSquareCB,
        Softmax,
        SquareCB,
        policy,
    )

_HOME = {
    "Action": "bandits.actions",
    "Actions": "bandits.actions",
    "arms": "bandits.actions",
    "rows": "bandits.actions",
    "sparse": "bandits.actions",
    "Bandit": "bandits.bandit",
    "AdaGrad": "bandits.models.kinds",
    "Federated": "bandits.models.kinds",
    "Kalman": "bandits.models.kinds",
    "Kind": "bandits.models.kinds",
    "LinearUCB": "bandits.models.kinds",
    "Decision": "bandits.decisions",
    "UnknownDecisionError": "bandits.decisions",
    "FederatedBandit": "bandits.federated",
    "evaluate": "bandits.evaluation.compare",
    "EpsilonGreedy": "fedres.policies",
    "ExploreEvery": "fedres.policies",
    "Greedy": "fedres.policies",
    "LinUCB": "fedres.policies",
    "OptimisticSquareCB": "fedres.policies",
    "Softmax": "fedres.policies",
    "SquareCB": "fedres.policies",
    "policy": "fedres.policies",
}

__all__ = [
    "Action",
    "Actions",
    "AdaGrad",
    "Bandit",
    "Decision",
    "EpsilonGreedy",
    "ExploreEvery",
    "Federated",
    "FederatedBandit",
    "Greedy",
    "Kalman",
    "Kind",
    "LinUCB",
    "LinearUCB",
    "OptimisticSquareCB",
    "Softmax",
    "SquareCB",
    "UnknownDecisionError",
    "arms",
    "evaluate",
    "policy",
    "rows",
    "sparse",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: numba and VW take longer to import than most scripts run."""
    if name not in _HOME:
        raise AttributeError(f"module 'bandits' has no attribute {name!r}")
    return getattr(load(_HOME[name]), name)

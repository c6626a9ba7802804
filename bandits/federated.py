"""``FederatedBandit``: a bandit by names and options, as earlier versions had it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bandits.bandit import Bandit
from bandits.models.kinds import MODELS, AdaGrad, Federated, Kind, default_model, model_kind
from fedres import checks
from fedres.policies import Policy
from fedres.policies import policy as make_policy


def FederatedBandit(  # noqa: N802 - once a class
    policy: str | Policy | None = None,
    *,
    model: str | None = None,
    scheme: str = "fedres",
    global_learner: str = "fedres-adagrad",
    local_learner: str = "linear",
    hyperparameters: Mapping[str, Any] | None = None,
    rates: tuple[float, float] | None = None,
    uplink_delay: int | Sequence[int] = 0,
    downlink_delay: int | Sequence[int] = 0,
    capacity: int = 100,
    reward_range: tuple[float, float] = (0.0, 1.0),
    max_waiting: int = 100_000,
    seed: int = 0,
    **policy_options: Any,
) -> Bandit:
    """Return a ``Bandit`` that learns in rounds, its model and its policy given by name.

    ``model`` is "adagrad", "linucb" or "residual-kalman". Model and policy are what suits the other unless given. With
    neither, they are the service's, residual-kalman and optimistic-squarecb, or adagrad and epsilon-greedy where
    options of adagrad are given (``global_learner``, ``local_learner``, ``hyperparameters``, ``rates``, or delays that
    differ by client; ``Federated`` explains them).
    """
    stepped = Federated(
        global_learner,
        hyperparameters=dict(hyperparameters or {}),
        local_learner=local_learner,
        rates=rates,
        uplink_delay=uplink_delay,
        downlink_delay=downlink_delay,
        capacity=capacity,
        scheme=scheme,
    )
    plain = global_learner == "fedres-adagrad" and not hyperparameters and stepped.delay is not None
    if policy is None:
        name = model or ("residual-kalman" if plain and rates is None and local_learner == "linear" else "adagrad")
        checks.one_of("model", name, MODELS)
        policy = MODELS[name].suits
    chosen = make_policy(policy, **policy_options)
    name = model or default_model(chosen)
    kind: Kind = model_kind(name, chosen, scheme, stepped.delay or 0)
    if name != "adagrad" and not (plain and rates is None):
        arguments = (global_learner, hyperparameters, rates, uplink_delay, downlink_delay)
        raise ValueError(
            f"{name} must have no global_learner, hyperparameters or rates, and one delay for all:"
            f" it has models of its own, got {arguments}"
        )
    if name == "adagrad":
        compiled = plain and local_learner == "linear"
        kind = AdaGrad(rates=rates, scheme=scheme, delay=stepped.delay or 0) if compiled else stepped
    return Bandit(kind, chosen, reward_range=reward_range, max_waiting=max_waiting, seed=seed, rounds=True)

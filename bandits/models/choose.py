"""Which model serves a bandit, and the settings that work untuned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from bandits.actions import Actions
from bandits.models.adagrad import SLOWER
from bandits.models.compiled import AdaGradModel
from bandits.models.kalman import KalmanModel
from bandits.models.least_squares import LeastSquaresModel
from bandits.models.protocol import MODELS, Model
from fedres import checks
from fedres.global_learners.base import Setting
from fedres.local_learners.protocol import LocalLearner
from fedres.local_learners.trusted import RangedLearner
from fedres.policies import LinUCB, Policy, name_of

LOCAL_LEARNERS = ("vw", "linear")

# AdaGrad's first step moves a prediction by rate · Σ|x|: these say how far, in units of the reward's range.
SHARED_REACH, PERSONAL_REACH = 2.0, 3.0


@dataclass(frozen=True, slots=True)
class Choice:
    """What the user asked for; ``model`` answers once the first actions are known."""

    policy: Policy
    scheme: str
    global_learner: str
    local_learner: str
    hyperparameters: dict[str, Any]
    rates: tuple[float, float] | None
    uplink_delay: int | Sequence[int]
    downlink_delay: int | Sequence[int]
    capacity: int
    model_asked_for: str | None = None  # what suits the policy, unless given

    def __post_init__(self) -> None:
        from fedres.global_learners import learner_names

        checks.one_of("global_learner", self.global_learner, learner_names())
        checks.one_of("local_learner", self.local_learner, LOCAL_LEARNERS)
        checks.whole("capacity", self.capacity)
        for name in ("uplink_delay", "downlink_delay"):
            delay = np.asarray(getattr(self, name))
            if delay.shape not in ((), (self.capacity,)) or delay.dtype.kind not in "iu" or (delay < 0).any():
                wanted = f"whole numbers of rounds, one or {self.capacity}"
                raise ValueError(f"{name} must be {wanted}, got {delay.tolist()}")
        if self.rates is not None and len(self.rates) != 2:
            raise ValueError(f"rates must be two, shared and personal, got {self.rates!r}")
        for rate in self.rates or ():
            checks.positive("rates", rate)
        check_model(self.model_name, self.policy)
        if self.model_name != "adagrad":
            self._check_own()

    def _check_own(self) -> None:
        delays = self.uplink_delay, self.downlink_delay
        if only_adagrad_has(self.global_learner, self.hyperparameters, self.rates, *delays):
            given = (self.global_learner, self.hyperparameters, self.rates, self.uplink_delay, self.downlink_delay)
            raise ValueError(
                f"{self.model_name} must have no global_learner, hyperparameters or rates, and one delay for all:"
                f" it has models of its own, got {given}"
            )

    @property
    def model_name(self) -> str:
        return default_model(self.policy) if self.model_asked_for is None else self.model_asked_for

    @property
    def _one_delay(self) -> bool:
        return is_one(self.uplink_delay, self.downlink_delay)

    def model(self, shared: Actions, private: Actions) -> Model:
        """Return an empty model for actions like these."""
        dims = (shared.dim, private.dim)
        delay = int(self.uplink_delay) + int(self.downlink_delay) if self._one_delay else 0  # type: ignore[arg-type]
        if self.model_name == "linucb":
            return least_squares(self.policy, self.scheme, shared, private, delay)
        if self.model_name == "residual-kalman":
            return KalmanModel(self.scheme, delay)
        rates = self.rates or default_rates(shared, private)
        plain = self.global_learner == "fedres-adagrad" and not self.hyperparameters and self._one_delay
        if plain and self.local_learner == "linear":
            return AdaGradModel(self.scheme, dims, private.stride, rates, delay)
        return self._readable(shared, dims, rates)

    def _readable(self, shared: Actions, dims: tuple[int, int], rates: tuple[float, float]) -> Model:
        from bandits.models.federation import AloneModel, FederationModel
        from fedres.global_learners import global_learner, learner_class
        from fedres.local_learners.paced import Paced
        from fedres.local_learners.trusted import Trusted

        def alone(rate: float = rates[1]) -> RangedLearner:
            return new_learner(self.local_learner, dims[1], rate)

        def beside() -> LocalLearner:
            return Paced(alone(), Trusted(alone(rates[1] / SLOWER)))

        if self.scheme == "independent" or (self.scheme == "fedres" and not dims[0]):
            return AloneModel(alone)
        make = None if self.scheme == "central" or not dims[1] else beside
        kind = learner_class(self.global_learner)
        options = [field.name for field in fields(kind)]
        given = {**self._step(shared, rates[0], kind, options), **self.hyperparameters}
        if "slower" in options and make is not None:
            given.setdefault("slower", SLOWER)
        if kind.brings_local_model:
            given.setdefault("local_dim", (dims[1] if self.scheme == "fedres" else 0) or 1)
        learner = global_learner(self.global_learner, dim=dims[0], n_clients=self.capacity, **given)
        return FederationModel(learner, make, dims, self.uplink_delay, self.downlink_delay)

    def _step(self, shared: Actions, rate: float, kind: type[Setting], options: list[str]) -> dict[str, float]:
        """Return the step that suits the size of the features, under the name the learner has for it."""
        if "learning_rate" in options:
            return {"learning_rate": rate}
        if "step_size" not in options:
            return {}
        clients = self.capacity if kind.sums_clients else 1
        return {"step_size": 0.25 / clients / (float((shared.values**2).sum(axis=1).max()) or 1.0)}


def is_one(*delays: int | Sequence[int]) -> bool:
    """Return whether delays are the same for all clients."""
    return all(np.ndim(delay) == 0 for delay in delays)


def only_adagrad_has(global_learner: str, hyperparameters: object, rates: object, *delays: int | Sequence[int]) -> bool:
    """Return whether options are given that no other model has."""
    return global_learner != "fedres-adagrad" or bool(hyperparameters) or rates is not None or not is_one(*delays)


def default_policy(model: str | None, *, adagrad: bool) -> str:
    """Return the policy that suits a model; if none is asked for, ``adagrad`` says that options of that one are."""
    name = model or ("adagrad" if adagrad else "residual-kalman")
    checks.one_of("model", name, MODELS)
    return {"adagrad": "epsilon-greedy", "linucb": "linucb", "residual-kalman": "optimistic-squarecb"}[name]


def default_model(policy: Policy) -> str:
    """Return the model that a policy is used with unless another is asked for."""
    if isinstance(policy, LinUCB):
        return "linucb"
    return "residual-kalman" if policy.needs_widths else "adagrad"


def check_model(name: str, policy: Policy) -> None:
    checks.one_of("model", name, MODELS)
    if policy.needs_widths and name == "adagrad":
        raise ValueError(
            f"model must know widths for {name_of(policy)}, as linucb and residual-kalman do, got {name!r}"
        )


def least_squares(policy: Policy, scheme: str, shared: Actions, private: Actions, delay: int = 0) -> LeastSquaresModel:
    """Return the model ``linucb``, with the ridge and the half-life that the policy of this name has as options."""
    options = policy if isinstance(policy, LinUCB) else LinUCB()
    return LeastSquaresModel(scheme, shared, private, options.ridge, delay, options.half_life)


def default_rates(shared: Actions, private: Actions) -> tuple[float, float]:
    """Return AdaGrad's rates for features of this size, the shared and the personal one."""
    return SHARED_REACH / (size(shared) or 1.0), PERSONAL_REACH / (size(private) + 1)  # 1: personal models' constant


def size(actions: Actions) -> float:
    """Return Σ|x| of an action, on average."""
    return float(np.abs(actions.values).sum(axis=1).mean())


def new_learner(name: str, dim: int, rate: float) -> RangedLearner:
    """Return an empty local learner whose predictions lie in [0, 1]."""
    from fedres.local_learners.linear import LinearLearner
    from fedres.local_learners.vw import VWLearner, bits_for

    learner = LinearLearner(dim, rate) if name == "linear" else VWLearner(rate, bits=bits_for(dim))
    learner.see(1.0)
    return learner

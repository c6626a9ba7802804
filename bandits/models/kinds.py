"""The models of a bandit as objects: their options, the defaults that work untuned, and ``start``, which makes one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from bandits.actions import Actions
from bandits.models.adagrad import SLOWER
from bandits.models.compiled import AdaGradModel
from bandits.models.kalman import KalmanModel
from bandits.models.least_squares import LeastSquaresModel
from bandits.models.protocol import SCHEMES, BanditModel
from fedres import checks
from fedres.global_learners.base import Setting
from fedres.local_learners.protocol import LocalLearner
from fedres.local_learners.trusted import RangedLearner
from fedres.policies import LinUCB, Policy, name_of

LOCAL_LEARNERS = ("vw", "linear")

# AdaGrad's first step moves a prediction by rate · Σ|x|: these say how far, in units of the reward's range.
SHARED_REACH, PERSONAL_REACH = 2.0, 3.0


@dataclass(frozen=True, kw_only=True)
class Kind(ABC):
    """A kind of model with its options.

    ``scheme`` is "fedres" (a shared and a personal model for each client) or one of its baselines: "independent" (each
    client alone) and "central" (one model for all).
    """

    name: ClassVar[str]
    suits: ClassVar[str]  # the policy it is used with unless another is given
    # True: scores have standard deviations.
    knows_widths: ClassVar[bool] = True
    # True: features may have names, and each decision its own actions.
    takes_names: ClassVar[bool] = False

    scheme: str = "fedres"

    def __post_init__(self) -> None:
        checks.one_of("scheme", self.scheme, SCHEMES)

    @abstractmethod
    def start(self, shared: Actions, private: Actions) -> BanditModel:
        """Return an empty model for actions like these."""


@dataclass(frozen=True, kw_only=True)
class Kalman(Kind):
    """The model of hosted loops, ``residual-kalman``. A reward is learned ``delay`` rounds later."""

    name = "residual-kalman"
    suits = "optimistic-squarecb"
    takes_names = True

    delay: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("delay", self.delay, least=0)

    def start(self, shared: Actions, private: Actions) -> BanditModel:
        return KalmanModel(self.scheme, self.delay)


@dataclass(frozen=True, kw_only=True)
class LinearUCB(Kind):
    """Least squares for shared and personal weights jointly, with the widths that LinUCB needs.

    With a ``half_life``, a reward counts half after that many more rewards of its client. An upload takes ``delay``
    rounds.
    """

    name = "linucb"
    suits = "linucb"

    ridge: float = 0.5
    half_life: float = math.inf
    delay: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        # The learner checks its options.
        LinUCB(ridge=self.ridge, half_life=self.half_life)
        checks.whole("delay", self.delay, least=0)

    def start(self, shared: Actions, private: Actions) -> BanditModel:
        return LeastSquaresModel(self.scheme, shared, private, self.ridge, self.delay, self.half_life)


@dataclass(frozen=True, kw_only=True)
class AdaGrad(Kind):
    """Linear models with VW's steps, compiled. ``rates`` are the shared and the personal one.

    Unless given, they are set from the size of the features of the first decision. Uploads take ``delay`` rounds.
    """

    name = "adagrad"
    suits = "epsilon-greedy"
    knows_widths = False

    rates: tuple[float, float] | None = None
    delay: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rates(self.rates)
        checks.whole("delay", self.delay, least=0)

    def start(self, shared: Actions, private: Actions) -> BanditModel:
        rates = self.rates or default_rates(shared, private)
        return AdaGradModel(self.scheme, (shared.dim, private.dim), private.stride, rates, self.delay)


@dataclass(frozen=True, kw_only=True)
class Federated(Kind):
    """Any global learner, and personal models of VW's steps (``local_learner`` "linear") or VW itself ("vw").

    ``learner`` is an object, e.g. ``FedOGD(model=Linear(8), n_clients=20)``, or a name of ``fedres.global_learner``,
    which is made with ``hyperparameters`` for ``capacity`` clients. Delays are in rounds, one number or one for each
    client in the order they join.
    """

    name = "federated"
    suits = "epsilon-greedy"
    knows_widths = False

    learner: str | Setting = field(default="fedres-adagrad", kw_only=False)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    local_learner: str = "linear"
    rates: tuple[float, float] | None = None
    uplink_delay: int | Sequence[int] = 0
    downlink_delay: int | Sequence[int] = 0
    capacity: int = 100

    def __post_init__(self) -> None:
        from fedres.global_learners import learner_names

        super().__post_init__()
        if isinstance(self.learner, str):
            checks.one_of("global_learner", self.learner, learner_names())
        elif self.hyperparameters:
            raise ValueError(f"hyperparameters must come with a name, got them beside {self.learner!r}")
        else:
            object.__setattr__(self, "capacity", self.learner.n_clients)
        checks.one_of("local_learner", self.local_learner, LOCAL_LEARNERS)
        checks.whole("capacity", self.capacity)
        for name in ("uplink_delay", "downlink_delay"):
            delay = np.asarray(getattr(self, name))
            if delay.shape not in ((), (self.capacity,)) or delay.dtype.kind not in "iu" or (delay < 0).any():
                rule = f"whole numbers of rounds, one or {self.capacity}"
                raise ValueError(f"{name} must be {rule}, got {delay.tolist()}")
        check_rates(self.rates)

    @property
    def delay(self) -> int | None:
        """The round trip of messages, where it is the same for all clients."""
        delays = self.uplink_delay, self.downlink_delay
        return sum(map(int, delays)) if all(np.ndim(delay) == 0 for delay in delays) else None  # type: ignore[arg-type]

    def start(self, shared: Actions, private: Actions) -> BanditModel:
        from bandits.models.federation import AloneModel, FederationModel
        from fedres.local_learners.paced import Paced
        from fedres.local_learners.trusted import Trusted

        dims, rates = (shared.dim, private.dim), self.rates or default_rates(shared, private)

        def alone(rate: float = rates[1]) -> RangedLearner:
            return new_learner(self.local_learner, dims[1], rate)

        def beside() -> LocalLearner:
            return Paced(alone(), Trusted(alone(rates[1] / SLOWER)))

        if self.scheme == "independent" or (self.scheme == "fedres" and not dims[0]):
            return AloneModel(alone)
        make = None if self.scheme == "central" or not dims[1] else beside
        if isinstance(self.learner, str):
            learner = self._made(self.learner, shared, rates[0], dims[1] if make is not None else 0)
        else:
            learner = self.learner
            if learner.model.features != dims[0]:
                raise ValueError(f"learner must have a model of {dims[0]} features, got {learner.model.features}")
        return FederationModel(learner, make, dims, self.uplink_delay, self.downlink_delay)

    def _made(self, name: str, shared: Actions, rate: float, local_dim: int) -> Any:
        """Return the learner of this name, with steps that suit the size of the features."""
        from fedres.global_learners import global_learner, learner_class

        kind, usual = learner_class(name), {}
        names = [option.name for option in fields(kind)]
        if "learning_rate" in names:
            usual["learning_rate"] = rate
        elif "step_size" in names:
            clients = self.capacity if kind.sums_clients else 1
            usual["step_size"] = 0.25 / clients / (float((shared.values**2).sum(axis=1).max()) or 1.0)
        if "slower" in names and local_dim:
            usual["slower"] = SLOWER
        if kind.brings_local_model:
            usual["local_dim"] = local_dim or 1
        return global_learner(name, dim=shared.dim, n_clients=self.capacity, **{**usual, **self.hyperparameters})


MODELS: dict[str, type[AdaGrad] | type[LinearUCB] | type[Kalman]] = {
    "adagrad": AdaGrad,
    "linucb": LinearUCB,
    "residual-kalman": Kalman,
}


def model_kind(name: str, policy: Policy, scheme: str, delay: int) -> Kind:
    """Return the model of this name for a policy; of ``linucb``, the policy has the model's options."""
    check_model(name, policy)
    if name == "linucb" and isinstance(policy, LinUCB):
        return LinearUCB(ridge=policy.ridge, half_life=policy.half_life, scheme=scheme, delay=delay)
    return MODELS[name](scheme=scheme, delay=delay)


def default_model(policy: Policy) -> str:
    """Return the model that a policy is used with unless another is chosen."""
    if isinstance(policy, LinUCB):
        return "linucb"
    return "residual-kalman" if policy.needs_widths else "adagrad"


def check_model(name: str, policy: Policy) -> None:
    checks.one_of("model", name, MODELS)
    check_widths(MODELS[name], policy)


def check_widths(kind: Kind | type[Kind], policy: Policy) -> None:
    if policy.needs_widths and not kind.knows_widths:
        rule = f"model must know widths for {name_of(policy)}, as linucb and residual-kalman do"
        raise ValueError(f"{rule}, got {kind.name!r}")


def check_rates(rates: tuple[float, float] | None) -> None:
    if rates is not None and len(rates) != 2:
        raise ValueError(f"rates must be two, shared and personal, got {rates!r}")
    for rate in rates or ():
        checks.positive("rates", rate)


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

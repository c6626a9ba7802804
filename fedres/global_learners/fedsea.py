"""FedSEA: online SGD on the clients with an average every τ rounds, against a stochastically extended adversary.

[FedSEA] H. Sahu, P. Jawanpuria, P. Sharma. FedSEA: Achieving Benefit of Parallelization in Federated Online Learning.
2026.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy.typing as npt

from fedres import checks
from fedres.checks import Array
from fedres.global_learners.base import Setting
from fedres.global_learners.fedomd import FedOMD, FedOMDClient, FedOMDServer
from fedres.mirror_maps import Ball
from fedres.step_sizes import StepSize, as_schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class FedSEA(Setting):
    """The iterates of FedOMD on a Euclidean ball [FedSEA, Alg. 1], synchronized if t mod τ = 0.

    Its steps (``fedres.step_sizes``), regret (on expected losses) and bounds (``fedres.bounds``) are its own.
    """

    keeps_state = True

    step_size: StepSize = 0.1  # η_t
    period: int = 1  # τ
    radius: float = math.inf

    def __post_init__(self) -> None:
        super().__post_init__()
        as_schedule(self.step_size)
        checks.whole("period", self.period)
        Ball(self.radius)

    def as_fedomd(self) -> FedOMD:
        """Return the same iterates as an instance of FedOMD."""
        setting = {field.name: getattr(self, field.name) for field in fields(Setting)}
        return FedOMD(**setting, step_size=self.step_size, mirror_map=Ball(self.radius), sync=self.period)

    def takes_part(self, t: int, who: Array) -> Array:
        return self.as_fedomd().takes_part(t, who)

    def client(self, who: npt.ArrayLike | None = None) -> FedOMDClient:
        return self.as_fedomd().client(who)

    def server(self) -> FedOMDServer:
        return self.as_fedomd().server()

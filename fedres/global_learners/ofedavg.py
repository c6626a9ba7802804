"""OFedAvg: FedOGD in which each client takes part by the flip of a coin.

[OFedIQ] D. Kwon, J. Park, S. Hong. Tighter Regret Analysis and Optimization of Online Federated Learning. 2023.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedres import checks, draws
from fedres.checks import Array
from fedres.global_learners.base import Client, ObservedRound, Setting
from fedres.global_learners.fedogd import MeanGradientServer
from fedres.messages import BITS_PER_REAL, Up
from fedres.step_sizes import StepSize, as_schedule


@dataclass(frozen=True, kw_only=True, eq=False)
class OFedAvg(Setting):
    """Participants send g_k/p_k; all clients predict every round [OFedIQ, Alg. 2 with L = 1, no quantizer]."""

    step_size: StepSize = 0.1  # η
    participation: npt.ArrayLike = 1.0  # p_k, one number for all or one each
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("seed", self.seed, least=0)
        as_schedule(self.step_size)
        self.keep("participation", checked_participation(self.participation, self.n_clients))

    def takes_part(self, t: int, who: Array) -> Array:
        return heads(self.seed, t, who, self.participation)

    def client(self, who: npt.ArrayLike | None = None) -> OFedAvgClient:
        return OFedAvgClient(self, who)

    def server(self) -> MeanGradientServer:
        return MeanGradientServer(self, self.step_size)


def checked_participation(participation: npt.ArrayLike, n_clients: int) -> Array:
    """Return chances of taking part: one number in (0, 1], or one for each client."""
    shape = () if np.ndim(participation) == 0 else (n_clients,)
    result = checks.array("participation", participation, shape)
    for chance in result.ravel():
        checks.probability("participation", float(chance))
    return result


def chances(participation: npt.ArrayLike, who: Array) -> Array:
    """Return p of the clients ``who``."""
    each = np.asarray(participation, dtype=np.float64)
    return np.full(len(who), each) if each.ndim == 0 else each[who]


def heads(seed: int, t: int, who: Array, participation: npt.ArrayLike) -> Array:
    """Return which clients take part in round t by their coins."""
    result: Array = draws.uniform(seed, t, who) < chances(participation, who)
    return result


class OFedAvgClient(Client[OFedAvg]):
    def __init__(self, learner: OFedAvg, who: npt.ArrayLike | None) -> None:
        super().__init__(learner, who)
        self.chance = chances(learner.participation, self.who)

    def update(self, t: int, seen: ObservedRound) -> Up | None:
        rows = np.flatnonzero(seen.present & self.learner.takes_part(t, self.who))
        if not rows.size:
            return None
        gradient = self.learner.factors(self.shared, self.who[rows], seen.take(rows)).scaled(1 / self.chance[rows])
        return Up(t, self.who[rows], "gradient", self.version, gradient, BITS_PER_REAL * self.shared.size)

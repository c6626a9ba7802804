"""OFedIQ: intermittent transmission and quantization of gradients.

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
from fedres.global_learners.ofedavg import chances, checked_participation, heads
from fedres.messages import BITS_PER_REAL, Up
from fedres.quantizer import Quantizer

_ROUNDING = 0x2545F4914F6CDD1D


@dataclass(frozen=True, kw_only=True, eq=False)
class OFedIQ(Setting):
    """L local steps, then with probability p_k a quantized message [OFedIQ, Alg. 2].

    ``fedres.ofediq_parameters`` chooses participation, levels and blocks for a budget of bits.
    """

    step_size: float = 0.1  # η, the same on both sides
    participation: npt.ArrayLike = 1.0  # p_k
    period: int = 1  # L
    levels: int | None = None  # s; None sends exact reals (s = ∞)
    blocks: int = 1  # b
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.whole("seed", self.seed, least=0)
        if not isinstance(self.step_size, int | float):
            raise ValueError(f"step_size must be one number, the same on both sides, got {self.step_size!r}")
        checks.positive("step_size", self.step_size)
        self.keep("participation", checked_participation(self.participation, self.n_clients))
        checks.whole("period", self.period)
        if self.levels is not None:
            Quantizer(self.levels, self.blocks).bits(self.model.dim)

    def takes_part(self, t: int, who: Array) -> Array:
        return heads(self.seed, t, who, self.participation) & (t % self.period == 0)

    def client(self, who: npt.ArrayLike | None = None) -> OFedIQClient:
        return OFedIQClient(self, who)

    def server(self) -> OFedIQServer:
        return OFedIQServer(self)


class OFedIQClient(Client[OFedIQ]):
    def __init__(self, learner: OFedIQ, who: npt.ArrayLike | None) -> None:
        super().__init__(learner, who)
        self.chance = chances(learner.participation, self.who)
        self.quantizer = None if learner.levels is None else Quantizer(learner.levels, learner.blocks)
        self.rows = np.empty(0, dtype=np.intp)  # clients that send at the end of this period
        self.period_start: Array = self.shared  # w_{t-L+1}
        self.local: Array = np.empty((0, self.shared.size))  # g_{k,t} of those rows
        self.active: Array = np.empty(0, dtype=bool)

    def update(self, t: int, seen: ObservedRound) -> Up | None:
        if (t - 1) % self.learner.period == 0:
            self._begin(t)
        if not self.rows.size:
            return None
        chosen = seen.take(self.rows)
        if (t - 1) % self.learner.period:
            chosen = chosen._replace(offset=None)  # the offset of w, not of θ
        gradient = self.learner.factors(self.local, self.who[self.rows], chosen)
        self.active |= chosen.present
        chance = self.chance[self.rows]
        if self.learner.period == 1:  # then (w − θ)/η is the gradient
            return self._upload(t, gradient.scaled(1 / chance).rows())
        self.local = gradient.step(self.local, self.learner.step_size)  # θ_{k,t+1}, [OFedIQ, eq. 7]
        if t % self.learner.period:
            return None
        return self._upload(t, (self.period_start - self.local) / (self.learner.step_size * chance[:, None]))

    def _begin(self, t: int) -> None:
        """Start a period. Its last round's coins are drawn now, so clients that will not send need not compute."""
        end = t + self.learner.period - 1
        self.rows = np.flatnonzero(self.learner.takes_part(end, self.who))
        self.period_start = self.shared
        self.local = np.broadcast_to(self.shared, (len(self.rows), self.shared.size))
        self.active = np.zeros(len(self.rows), dtype=bool)

    def _upload(self, t: int, message: Array) -> Up | None:
        """Return (w − θ)/(η p_k) [OFedIQ, eq. 8] of clients that had data, quantized."""
        if not self.active.any():
            return None
        who = self.who[self.rows[self.active]]
        message = message if self.active.all() else message[self.active]
        if self.quantizer is None:
            return Up(t, who, "gradient", self.version, message, BITS_PER_REAL * message.shape[1])
        packed = self.quantizer.encode_rows(message, _seeds(self.learner.seed, t, who))
        bits = np.array([self.quantizer.payload_bits(data) for data in packed])
        return Up(t, who, "quantised gradient", self.version, packed, bits)


def _seeds(seed: int, t: int, who: Array) -> Array:
    """Return the seeds of the clients' roundings, which have nothing to do with their coins."""
    numbers = draws.uniform(seed ^ _ROUNDING, t, who)
    result: Array = (numbers * 2.0**53).astype(np.uint64)
    return result


class OFedIQServer(MeanGradientServer):
    """Adds up the uploads, decoded if quantized [OFedIQ, eq. 9]."""

    kinds = ("gradient", "quantised gradient")

    def __init__(self, learner: OFedIQ) -> None:
        super().__init__(learner, learner.step_size)
        self.quantizer = None if learner.levels is None else Quantizer(learner.levels, learner.blocks)

    def add(self, up: Up) -> None:
        if isinstance(up.body, tuple) and self.quantizer is not None:
            self.total += self.quantizer.decode_sum(up.body, self.weights.size)
        else:
            super().add(up)

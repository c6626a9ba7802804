"""What a run of the engine, or of its readable twin, receives and returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.local_learners.linear import finite

SCHEMES = ("independent", "central", "fedres")
TIMINGS = ("on-arrival", "aligned")
LOCAL_TIMINGS = ("immediate", "aligned")
SERVERS = ("sequential", "summed")


@dataclass(frozen=True, slots=True)
class RunSetting:
    """One run. Delays are in rounds: one number for all clients, or one each.

    ``timing`` is at which models the server takes the error of a FedRes upload: its newest (``on-arrival``) or those
    that predicted (``aligned``). Central's clients send rows, which the server always learns from as it is then.
    ``local_timing`` is when a client's own model learns: at once, or one round trip later (``aligned``).
    ``server`` takes a round's uploads one after another, or in one step with the sum of their gradients.
    With ``alone`` a client of FedRes has a second model of its own, which learns from the same features as if nothing
    were shared, and predicts with the mean of that and the joint prediction.
    """

    scheme: str
    uplink_delay: int | Sequence[int] = 0  # α
    downlink_delay: int | Sequence[int] = 0  # β
    timing: str = "on-arrival"
    local_timing: str = "immediate"
    server: str = "sequential"
    alone: bool = False
    learning_rate: float = 10.0  # of the shared model
    local_learning_rate: float = 10.0
    curve_every: int = 0  # rounds between two points of the accuracy curve; 0 is no curve

    def __post_init__(self) -> None:
        checks.one_of("scheme", self.scheme, SCHEMES)
        checks.one_of("timing", self.timing, TIMINGS)
        checks.one_of("local_timing", self.local_timing, LOCAL_TIMINGS)
        checks.one_of("server", self.server, SERVERS)
        for name in ("learning_rate", "local_learning_rate"):
            checks.positive(name, getattr(self, name))
            finite(name, getattr(self, name))
        for name in ("uplink_delay", "downlink_delay"):
            for delay in np.ravel(np.asarray(getattr(self, name), dtype=object)):
                checks.whole(name, delay, least=0)
        checks.whole("curve_every", self.curve_every, least=0)

    def delays(self, n_clients: int) -> tuple[Array, Array]:
        """Return α and β of every client."""
        return self._delay("uplink_delay", n_clients), self._delay("downlink_delay", n_clients)

    def _delay(self, name: str, n_clients: int) -> Array:
        delay = np.asarray(getattr(self, name), dtype=np.int64)
        if delay.shape not in ((), (n_clients,)):
            raise ValueError(f"{name} must be one number or {n_clients}, one per client, got shape {delay.shape}")
        return np.broadcast_to(delay, n_clients).copy()

    def stops(self, n_rounds: int) -> list[int]:
        """Return after which rounds accuracy is measured; the last is always the end."""
        inner = range(self.curve_every, n_rounds, self.curve_every) if self.curve_every else ()
        return [*inner, n_rounds]


@dataclass(frozen=True, slots=True)
class RunResult:
    """What came out. A scheme without a shared model, or without local ones, has None for its weights."""

    accuracy: Array  # (P,) on the test rows, after the last round
    predictions: Array  # (T, P) float32, made before the label was seen
    curve: Array  # (number of stops, P): accuracy after each stop of the setting
    global_weights: Array | None  # the constant's last
    local_weights: Array | None  # (P, ...)

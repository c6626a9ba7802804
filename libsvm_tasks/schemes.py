"""The contenders of a replay, and what they cost on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedres import checks
from fedres.global_learners import GLOBAL_LEARNERS
from libsvm_tasks.tasks import Task

SCHEMES = ("independent", "central", "fedres")
TIMINGS = {"aligned": ("aligned", "aligned"), "on-arrival": ("on_arrival", "immediate")}  # server's, client's
LONGEST_DELAY = 100_000
LOCAL_LEARNERS = ("linear", "vw")
LOCAL_FEATURES = ("half", "all")


@dataclass(frozen=True, slots=True)
class Scheme:
    """One contender; ``delay`` is the round trip in rounds, half of it (rounded up) on the way to the server."""

    scheme: str = "fedres"
    global_learner: str = "fedres-sgd"
    local_learner: str = "linear"
    local_features: str = "all"
    timing: str = "on-arrival"
    delay: int = 0

    def __post_init__(self) -> None:
        checks.one_of("scheme", self.scheme, SCHEMES)
        checks.one_of("global_learner", self.global_learner, GLOBAL_LEARNERS)
        checks.one_of("local_learner", self.local_learner, LOCAL_LEARNERS)
        checks.one_of("local_features", self.local_features, LOCAL_FEATURES)
        checks.one_of("timing", self.timing, TIMINGS)
        checks.whole("delay", self.delay, least=0)
        if self.delay > LONGEST_DELAY:
            raise ValueError(f"delay must be at most {LONGEST_DELAY}, got {self.delay}")
        if self.global_learner == "fedres-erm" and (self.local_learner, self.timing) != ("linear", "on-arrival"):
            given = f"local_learner {self.local_learner!r} and timing {self.timing!r}"
            raise ValueError(f"fedres-erm must have local_learner 'linear' and timing 'on-arrival', got {given}")

    @property
    def alone(self) -> bool:
        """Whether each client of FedRes also learns alone and predicts with the mean: in the setting we recommend.

        Chosen on digits, letter, pendigits and usps (10 and 50 clients, delays 0, 80 and 200, seeds 2000 to 2059). Of
        the joint prediction and four weighted means of it with the one alone, at rates 1, 3 and 10 of the shared model,
        and of weights or choices by losses so far at rate 3, the plain mean at VW's own rate of 10 gained most on
        average, and it gained in every cell. The figure ``beyond`` uses other seeds.
        """
        return (self.scheme, self.local_features, self.timing) == ("fedres", "all", "on-arrival")

    @property
    def uplink_delay(self) -> int:
        return -(-self.delay // 2)

    @property
    def downlink_delay(self) -> int:
        return self.delay // 2


def shared_bits(task: Task, scheme: Scheme) -> tuple[float, float]:
    """Return the bits a client sends and is sent: 32 a real, every round."""
    if scheme.scheme == "independent":
        return 0.0, 0.0
    rounds, dim = task.order.shape[1], len(task.global_features)
    extra = 1 if scheme.scheme == "central" or scheme.timing == "aligned" else 2  # y or slope; local part and y
    return 32.0 * rounds * (dim + extra), 32.0 * rounds * (dim + 1)


def at_delays(schemes: Sequence[Scheme], delays: Sequence[int]) -> list[Scheme]:
    """Return the schemes at each delay; Independent, which sends nothing, once."""
    rows = [scheme for scheme in schemes if scheme.scheme == "independent"]
    rows += [replace(s, delay=d) for s in schemes if s.scheme != "independent" for d in dict.fromkeys(delays)]
    return rows

"""The contenders of a replay, and what they cost on the wire."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

from fedres import checks
from fedres.global_learners import learner_class, learner_names
from fedres.global_learners.base import Setting
from libsvm_tasks.tasks import Task

SCHEMES = ("independent", "central", "fedres")
TIMINGS = {"aligned": ("aligned", "aligned"), "on-arrival": ("on-arrival", "immediate")}  # server's, client's
LONGEST_DELAY = 100_000
LOCAL_LEARNERS = ("linear", "vw")
LOCAL_FEATURES = ("half", "all")
VW_RATES = ("learning_rate", "local_learning_rate")


@dataclass(frozen=True, slots=True)
class Scheme:
    """One contender; ``delay`` is the round trip in rounds, half of it (rounded up) on the way to the server.

    ``global_learner`` is a name, or a name with hyperparameters: ``ofediq:levels=3,blocks=9``. Those of ``fedres-sgd``,
    which is played with VW's own steps, are ``learning_rate`` and ``local_learning_rate``. It may also be a class, or a
    function, that is called with ``model`` and ``n_clients`` and returns a learner.
    """

    scheme: str = "fedres"
    global_learner: str | Callable[..., Any] = "fedres-sgd"
    local_learner: str = "linear"
    local_features: str = "all"
    timing: str = "on-arrival"
    delay: int = 0

    def __post_init__(self) -> None:
        checks.one_of("scheme", self.scheme, SCHEMES)
        if isinstance(self.global_learner, str):
            checks.one_of("global_learner", self.learner_name, learner_names())
            self._check_hyperparameters()
        elif not callable(self.global_learner):
            raise ValueError(f"global_learner must be a name or a class, got {self.global_learner!r}")
        checks.one_of("local_learner", self.local_learner, LOCAL_LEARNERS)
        checks.one_of("local_features", self.local_features, LOCAL_FEATURES)
        checks.one_of("timing", self.timing, TIMINGS)
        checks.whole("delay", self.delay, least=0)
        if self.delay > LONGEST_DELAY:
            raise ValueError(f"delay must be at most {LONGEST_DELAY}, got {self.delay}")
        if self.learner_name == "fedres-erm" and (self.local_learner, self.timing) != ("linear", "on-arrival"):
            names = f"local_learner {self.local_learner!r} and timing {self.timing!r}"
            raise ValueError(f"fedres-erm must have local_learner 'linear' and timing 'on-arrival', got {names}")

    @property
    def learner_name(self) -> str:
        """The learner without its hyperparameters."""
        return self.learner.partition(":")[0]

    @property
    def learner(self) -> str:
        """The learner as it is shown."""
        if isinstance(self.global_learner, str):
            return self.global_learner
        made = getattr(self.global_learner, "func", self.global_learner)  # of a functools.partial
        keywords = getattr(self.global_learner, "keywords", {})
        name = getattr(made, "__name__", type(made).__name__)
        return name + ("" if not keywords else ":" + ",".join(f"{key}={value}" for key, value in keywords.items()))

    @property
    def hyperparameters(self) -> dict[str, Any]:
        """Return what was given after the learner's name."""
        text = self.global_learner.partition(":")[2] if isinstance(self.global_learner, str) else ""
        return dict(_hyperparameter(word, self.learner) for word in text.split(",")) if text else {}

    def _check_hyperparameters(self) -> None:
        name, hyperparameters = self.learner_name, self.hyperparameters
        names = VW_RATES if name == "fedres-sgd" else hyperparameter_names(name)
        for key, value in hyperparameters.items():
            if key not in names:
                raise ValueError(f"{key} is not a hyperparameter of {name}, which has {', '.join(names)}")
            if name == "fedres-sgd":
                checks.positive(key, value)

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


def hyperparameter_names(learner: str) -> list[str]:
    """Return the hyperparameters of a learner: what it adds to the problem it is set."""
    problem = {field.name for field in fields(Setting)}
    return [field.name for field in fields(learner_class(learner)) if field.name not in problem]


def _hyperparameter(word: str, learner: str) -> tuple[str, Any]:
    key, equals, text = word.partition("=")
    if not (key.strip() and equals):
        raise ValueError(f"global_learner must be NAME or NAME:KEY=VALUE,KEY=VALUE, got {learner!r}")
    return key.strip(), _value(text.strip())


def _value(text: str) -> int | float | str:
    for number in (int, float):
        with suppress(ValueError):
            return number(text)
    return text


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

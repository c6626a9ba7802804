"""The settings of a loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from fedres import checks
from fedres.policies import HOSTED, POLICIES
from fedres.scoring.federated import dense_learner, takes_residuals
from fedres.scoring.model import LEARNING_RATE
from service.control_group import Control
from service.errors import ApiError
from service.hints import hint
from service.outcomes import Guardrail, check_outcomes

LARGEST_REWARD = 1e9
NARROWEST_RANGE = 1e-9  # of rewards, also relative to the larger end
DEFAULT_LOOP = "default"  # the loop of paths that name none
LONGEST_WAIT = 366 * 86_400.0
LONGEST_RETENTION = 100 * 366 * 86_400.0
LONGEST_ANNOTATIONS = 20_000  # characters, all together
MOST_BITS = 24  # of AdaGrad, whose steps touch few weights
FIXED = ("model", "global_learner", "hyperparameters", "bits")  # from the making of a loop on


class ModelSettings(NamedTuple):
    """What a model makes of settings."""

    policy: str  # the one that it has by default
    has_widths: bool = False  # whether it knows how unsure scores are, as some policies need
    takes: tuple[str, ...] = ()  # settings that only models that name them take


MODELS = {  # a model is a line here and the module of ``service.models`` with its name
    "residual-kalman": ModelSettings("optimistic-squarecb", has_widths=True),
    "adagrad": ModelSettings(
        "epsilon-greedy", takes=("learning_rate", "crosses", "global_learner", "hyperparameters", "bits", "timing")
    ),
}
DEFAULT_MODEL = next(iter(MODELS))
DEVICE_MODEL = "adagrad"  # of devices that name none
if TYPE_CHECKING:
    Model = str
    Policy = str
else:
    Model, Policy = Literal[tuple(MODELS)], Literal[tuple(HOSTED)]

Learner = Literal["fedres-adagrad", "fedres-sgd", "fedogd", "ofedavg", "ofediq", "fedomd", "fedsea", "dynamic-fedavg"]
Combine = Literal["mean", "trimmed-mean", "median"]


class Defences(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Setting ``defences`` of a loop; None turns one off."""

    max_norm: float | None = 2.0  # times the norm that three in four clients keep
    client_share: float | None = 2.0  # times the mean client's uploads in a window
    client_pull: float | None = 1.0  # times the mean client's pull in a window
    combine: Combine = "mean"  # of gradients and deltas

    def __post_init__(self) -> None:
        for name in ("max_norm", "client_share", "client_pull"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 1e6:
                raise ValueError(f"{name} must be None or in [1, 1e6], got {value}")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a loop; a record of them in the log applies from its position on."""

    model: Model = DEFAULT_MODEL  #: The model; fixed when the loop is created.
    #: How scores become probabilities. null: optimistic-squarecb; for adagrad epsilon-greedy.
    policy: Policy | None = None
    #: Both SquareCB policies: γ = gamma·√(rewards learned); larger explores less. null: 300 or 10.
    gamma: float | None = None
    #: optimistic-squarecb: share of the probability that is spread evenly, for off-policy evaluation.
    floor: float = HOSTED["optimistic-squarecb"]["floor"]
    epsilon: float = HOSTED["epsilon-greedy"]["epsilon"]  #: epsilon-greedy: probability of a uniform draw.
    learning_rate: float = LEARNING_RATE  #: adagrad: learning rate of the shared and the personal models.
    reward_range: tuple[float, float] = (0.0, 1.0)  #: Smallest and largest reward; others are rejected.
    wait_time: float = 600.0  #: Seconds that an event waits for its reward; make it short if only clicks are sent.
    default_reward: float | None = 0.0  #: Learned if no reward arrives in time; null: nothing is learned.
    #: When the wait time of a deferred event begins: when it is activated, or with its decision.
    wait_from: Literal["activation", "rank"] = "activation"
    #: The first reward counts, or the sum or the average of all within the wait time.
    aggregation: Literal["earliest", "sum", "average"] = "earliest"
    outcomes: dict[str, float] = {}  #: Named outcomes, each with the seconds from the decision within which it counts.
    formula: str | None = None  #: The reward as a formula over outcomes.
    guardrails: list[Guardrail] = []  #: How far outcomes may rise or fall against the control group.
    control: Control = Control()  #: The control group.
    #: Always return the first action and learn from it; the status shows how often the policy agreed.
    apprentice: bool = False
    crosses: bool = True  #: A weight for every pair of a context and an action feature; false for adagrad only.
    personal: bool = True  #: One model per user beside the shared one.
    update_interval: float = 0.025  #: Minimum seconds between two publications of the models.
    global_learner: Learner = "fedres-adagrad"  #: adagrad: learner of the shared model; fixed.
    hyperparameters: dict[str, float | int | None] = {}  #: adagrad: of that learner; fixed.
    bits: int = 18  #: adagrad: 2^bits shared weights; fixed.
    #: Which model the error of a device's residual is computed with: the newest, or the one that it was made with.
    timing: Literal["on-arrival", "aligned"] = "on-arrival"
    defences: Defences = Defences()  #: Bounds on what one device can do to the shared model; null turns one off.
    #: Seconds after which events are removed from the log, at least wait_time; null keeps them.
    retention: float | None = None
    annotations: dict[str, str] = {}  #: Strings by name, for other tools.

    def __post_init__(self) -> None:
        if self.policy is None:
            msgspec.structs.force_setattr(self, "policy", MODELS[self.model].policy)
        _within("epsilon", self.epsilon, 0, 1)
        _within("floor", self.floor, 0, 1)
        if self.gamma is not None:
            checks.not_negative("gamma", self.gamma)
        checks.positive("learning_rate", self.learning_rate)
        _within("learning_rate", self.learning_rate, 0, 1e6)
        _range(self.reward_range)
        _within("wait_time", self.wait_time, 0.001, LONGEST_WAIT)
        if self.default_reward is not None:
            _within("default_reward", self.default_reward, *self.reward_range)
        check_outcomes(self.outcomes, self.formula, self.wait_time)
        for guardrail in self.guardrails:
            if guardrail.outcome not in self.outcomes:
                raise ValueError(f"guardrails must be about the loop's outcomes, got {guardrail.outcome!r}")
        if self.retention is not None:
            _within("retention", self.retention, self.wait_time, LONGEST_RETENTION)
        _within("update_interval", self.update_interval, 0.001, 60)
        _within("bits", self.bits, 1, MOST_BITS)
        if self.timing == "aligned" and not self.takes_residuals:
            raise ValueError(f"timing must be 'on-arrival' for {self.global_learner}, got 'aligned'")
        _hyperparameters(self)
        _suits_model(self)
        _annotations(self.annotations)

    @property
    def greed(self) -> float:
        """γ of the squarecb policies for one reward, in units of the rewards' range for the optimistic one."""
        default = HOSTED[str(self.policy)].get("gamma", HOSTED["squarecb"]["gamma"])
        return float(default if self.gamma is None else self.gamma)

    @property
    def n_weights(self) -> int:
        """How many weights the shared model has; ``residual-kalman`` has none."""
        return 1 << self.bits if self.has_effect("bits") else 0

    def has_effect(self, name: str) -> bool:
        """Return whether the loop's model looks at a setting."""
        return name in MODELS[self.model].takes or not any(name in model.takes for model in MODELS.values())

    @property
    def has_widths(self) -> bool:
        """Whether the model knows how unsure scores are; then devices say so of theirs, and fetch it as a whole."""
        return MODELS[self.model].has_widths

    @property
    def is_dense(self) -> bool:
        """Whether every step may change every weight."""
        return self.global_learner != "fedres-adagrad"

    @property
    def takes_residuals(self) -> bool:
        """Whether devices upload residuals, else updates."""
        return takes_residuals(self.global_learner)

    @property
    def n_clients(self) -> int:
        """How many clients the learner numbers."""
        return int(self.hyperparameters.get("n_clients") or 1)


def read_settings(fields: dict[str, Any]) -> Settings:
    """Return settings from plain values, those that are missing at their defaults."""
    try:
        settings = msgspec.convert(fields, Settings)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        named = _named(message)  # before the hint, which names others
        message += hint(message, place, Settings)
        target = place.strip("`.") or named
        raise ApiError(
            422, "invalid_settings", f"{target}: {message}" if place.strip("`.") else message, target
        ) from None
    _wide_enough(settings.reward_range)
    return settings


def _wide_enough(span: tuple[float, float]) -> None:
    """Refuse a range that arithmetic cannot tell from a point; a loop that has one in the log is still read."""
    low, high = span
    least = NARROWEST_RANGE * max(1.0, abs(low), abs(high))
    if high - low < least:
        message = f"reward_range must be at least {least:g} wide, got {low}, {high}: send rewards in another unit"
        raise ApiError(422, "invalid_settings", message, "reward_range")


def _named(message: str) -> str | None:
    """Return the setting that a message names first."""
    places = [(message.find(name), name) for name in Settings.__struct_fields__ if name in message]
    return min(places)[1] if places else None


def _hyperparameters(settings: Settings) -> None:
    if not settings.is_dense:
        if settings.hyperparameters:
            names = ", ".join(settings.hyperparameters)
            raise ValueError(f"hyperparameters must be none for {settings.global_learner}, got {names}")
        return
    try:
        dense_learner(settings.global_learner, settings.bits, settings.hyperparameters)
    except (TypeError, ValueError) as error:
        raise ValueError(str(error) if str(error).startswith("bits") else f"hyperparameters: {error}") from None


def _suits_model(settings: Settings) -> None:
    """Refuse what would have no effect."""
    model = MODELS[settings.model]
    if POLICIES[str(settings.policy)].needs_widths and not model.has_widths:
        raise ValueError(f"policy must not be {settings.policy!r} for model {settings.model!r}, which knows no widths")
    for name, default in _MODEL_DEFAULTS.items():
        value = getattr(settings, name)
        if name not in model.takes and value != default:
            raise ValueError(f"{name} must be {default!r} for model {settings.model!r}, got {value!r}")


_MODEL_DEFAULTS: dict[str, Any] = {  # of settings that not all models take
    field.name: field.default_factory() if callable(field.default_factory) else field.default
    for field in msgspec.structs.fields(Settings)
    if any(field.name in model.takes for model in MODELS.values())
}


def _annotations(annotations: dict[str, str]) -> None:
    size = sum(len(name) + len(text) for name, text in annotations.items())
    if size > LONGEST_ANNOTATIONS:
        raise ValueError(f"annotations must have at most {LONGEST_ANNOTATIONS} characters, got {size}")


def _within(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} must be in [{least:g}, {most:g}], got {value}")


def _range(span: tuple[float, float]) -> None:
    low, high = span
    if not -LARGEST_REWARD <= low < high <= LARGEST_REWARD:
        raise ValueError(f"reward_range must be two rising numbers within ±{LARGEST_REWARD:g}, got {low}, {high}")

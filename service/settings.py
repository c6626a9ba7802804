"""The settings of a loop."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec

from fedres import checks
from fedres.draws import event_draw
from fedres.policies import HOSTED, POLICIES
from fedres.scoring.federated import dense_learner, takes_residuals
from fedres.scoring.flattening import LARGEST
from fedres.scoring.model import LEARNING_RATE
from fedres_client.event_ids import LONGEST_ID
from service.errors import ApiError
from service.hints import about, complaint
from service.outcomes import Guardrail, check_outcomes

LARGEST_REWARD = 1e9
NARROWEST_RANGE = 1e-9  # least width of a reward range, also relative to its larger end
SHORTEST_INTERVAL = 0.005  # of updates; the learner looks for records as often, also where none come
DEFAULT_LOOP = "default"  # the loop of paths that name none
LONGEST_WAIT = 366 * 86_400.0
LEAST_RETENTION = 3_600.0  # seconds; a shorter one in an earlier log is read, and works as this
LONGEST_RETENTION = 100 * 366 * 86_400.0
LONGEST_REASON = 1_000  # characters of why a control group is held
LONGEST_ANNOTATIONS = 20_000  # characters, all together
LARGEST_NUMBER = 30.0  # of features in new loops with adagrad, whose steps diverge on larger ones
MOST_BITS = 24  # of AdaGrad, whose steps touch few weights
# Settings that cannot change after a loop's creation.
FIXED = ("model", "global_learner", "hyperparameters", "bits", "draws_by_loop")


class ModelSettings(NamedTuple):
    """How a model uses settings."""

    policy: str  # the default
    # True: scores have standard deviations, which some policies need.
    has_widths: bool = False
    takes: tuple[str, ...] = ()  # settings that only some models use


MODELS = {  # a model is a line here and the module of ``service.models`` with its name
    "residual-kalman": ModelSettings("optimistic-squarecb", has_widths=True),
    "adagrad": ModelSettings(
        "epsilon-greedy",
        takes=("learning_rate", "crosses", "global_learner", "hyperparameters", "bits", "timing", "largest_number"),
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


class Control(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A control group: users whose decisions a baseline makes. Any change of it begins a new experiment."""

    share: Annotated[
        float, about("Share of the users in the control group, or of events without a user; 0 ends the experiment.")
    ] = 0.0
    baseline: Annotated[
        Literal["first", "uniform"],
        about("The rule of the control group: the caller's first action, or any action with equal probability."),
    ] = "first"
    experiment: Annotated[str, about("Name of the experiment, which also decides who is in the group.")] = (
        "experiment 1"
    )
    learn: Annotated[
        bool | None,
        about(
            "Whether models learn from the group; null: unless the baseline is first, whose actions are not drawn.",
            True,
        ),
    ] = None
    hold: Annotated[
        str | None, about("Why the baseline decides for everybody at the moment; null if it does not.", "out of stock")
    ] = None
    by_loop: Annotated[bool, about("Whether the group is drawn for this loop alone; the service sets it.")] = False

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 0.95:
            raise ValueError(f"control.share must be in [0, 0.95], got {self.share}")
        if not 1 <= len(self.experiment) <= LONGEST_ID:
            raise ValueError(f"control.experiment must have 1 to {LONGEST_ID} characters, got {len(self.experiment)}")
        if self.hold is not None and not 1 <= len(self.hold) <= LONGEST_REASON:
            raise ValueError(f"control.hold must have 1 to {LONGEST_REASON} characters, got {len(self.hold)}")
        if self.learn and self.baseline == "first":
            raise ValueError("control.learn must be false for the baseline 'first', whose actions are not drawn")

    @property
    def learns(self) -> bool:
        return self.baseline != "first" and self.learn is not False

    def has(self, loop: str, name: str) -> bool:
        """Return whether a user of a loop, or an event without one, is in the group; the result never changes."""
        drawn_by = f"{loop}\0{self.experiment}\0{name}" if self.by_loop else f"{self.experiment}\0{name}"
        return self.share > 0 and event_draw(drawn_by) < self.share

    def decides_for(self, loop: str, name: str) -> bool:
        """Return whether the baseline decides for a user of a loop, or for an event without one."""
        return bool(self.hold) or self.has(loop, name)

    def after(self, before: Control) -> Control:
        """Return this control group with the draws of the one before while its experiment goes on, else of its loop."""
        goes_on = before.share > 0 and before.experiment == self.experiment
        return msgspec.structs.replace(self, by_loop=before.by_loop if goes_on else self.share > 0)


class Defences(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Setting ``defences`` of a loop; None turns one off."""

    max_norm: Annotated[
        float | None,
        about("Largest norm of an upload, as a multiple of the norm that three in four clients stay below."),
    ] = 2.0
    client_share: Annotated[
        float | None, about("Most uploads of a client in a window, as a multiple of the mean client's.")
    ] = 2.0
    client_pull: Annotated[
        float | None, about("Largest pull of a client in a window, as a multiple of the mean client's.")
    ] = 1.0
    combine: Annotated[Combine, about("How gradients and deltas of several clients are combined.")] = "mean"

    def __post_init__(self) -> None:
        for name in ("max_norm", "client_share", "client_pull"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= 1e6:
                raise ValueError(f"{name} must be None or in [1, 1e6], got {value}")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a loop; a record of them in the log applies from its position on."""

    model: Annotated[Model, about("The model; fixed when the loop is created.")] = DEFAULT_MODEL
    policy: Annotated[
        Policy | None,
        about("How scores become probabilities. null: optimistic-squarecb; for adagrad epsilon-greedy."),
    ] = None
    gamma: Annotated[
        float | None,
        about("Both SquareCB policies: γ = gamma·√(rewards learned); larger explores less. null: 300 or 10."),
    ] = None
    floor: Annotated[
        float,
        about("optimistic-squarecb: share of the probability that is spread evenly, for off-policy evaluation."),
    ] = HOSTED["optimistic-squarecb"]["floor"]
    epsilon: Annotated[float, about("epsilon-greedy: probability of a uniform draw.")] = HOSTED["epsilon-greedy"][
        "epsilon"
    ]
    learning_rate: Annotated[float, about("adagrad: learning rate of the shared and the personal models.")] = (
        LEARNING_RATE
    )
    largest_number: Annotated[
        float,
        about("adagrad: numbers in features beyond it are refused, as its steps would diverge; 30 in new loops."),
    ] = LARGEST
    reward_range: Annotated[tuple[float, float], about("Smallest and largest reward; others are rejected.")] = (
        0.0,
        1.0,
    )
    wait_time: Annotated[
        float, about("Seconds that an event waits for its reward; make it short if only clicks are sent.")
    ] = 600.0
    default_reward: Annotated[
        float | None, about("Learned if no reward arrives in time; null: nothing is learned.")
    ] = 0.0
    wait_from: Annotated[
        Literal["activation", "rank"],
        about("When the wait time of a deferred event begins: when it is activated, or with its decision."),
    ] = "activation"
    aggregation: Annotated[
        Literal["earliest", "sum", "average"],
        about("The first reward counts, or the sum or the average of all within the wait time."),
    ] = "earliest"
    outcomes: Annotated[
        dict[str, float],
        about("Named outcomes, each with the seconds from the decision within which it counts."),
    ] = {}
    formula: Annotated[str | None, about("The reward as a formula over outcomes.")] = None
    guardrails: Annotated[list[Guardrail], about("How far outcomes may rise or fall against the control group.")] = []
    control: Annotated[Control, about("The control group.")] = Control()
    apprentice: Annotated[
        bool,
        about("Always return the first action and learn from it; the status shows how often the policy agreed."),
    ] = False
    crosses: Annotated[
        bool, about("A weight for every pair of a context and an action feature; false for adagrad only.")
    ] = True
    personal: Annotated[bool, about("One model per user beside the shared one.")] = True
    update_interval: Annotated[
        float,
        about(
            "Minimum seconds between two publications of the models; "
            "large ones are published less often, up to every 0.5 s."
        ),
    ] = 0.025
    global_learner: Annotated[Learner, about("adagrad: learner of the shared model; fixed.")] = "fedres-adagrad"
    hyperparameters: Annotated[
        dict[str, float | int | None], about("adagrad: of that learner; fixed.", {"n_clients": 20})
    ] = {}
    bits: Annotated[int, about("adagrad: 2^bits shared weights; fixed.")] = 18
    timing: Annotated[
        Literal["on-arrival", "aligned"],
        about(
            "Which model the error of a device's residual is computed with: "
            "the newest, or the one that it was made with."
        ),
    ] = "on-arrival"
    defences: Annotated[
        Defences, about("Bounds on what one device can do to the shared model; null turns one off.")
    ] = Defences()
    retention: Annotated[
        float | None,
        about(
            "Seconds after which events are removed from the log, at least wait_time and an hour; null keeps them.",
            7_776_000,
        ),
    ] = None
    annotations: Annotated[dict[str, str], about("Strings by name, for other tools.")] = {}
    draws_by_loop: Annotated[
        bool,
        about(
            "Whether an event's draw depends on the loop's name and the event's id, or on the id alone. "
            "The service sets it: true for new loops, false for loops of versions without this setting; fixed."
        ),
    ] = False

    def __post_init__(self) -> None:
        if self.policy is None:
            msgspec.structs.force_setattr(self, "policy", MODELS[self.model].policy)
        _within("epsilon", self.epsilon, 0, 1)
        _within("floor", self.floor, 0, 1)
        if self.gamma is not None:
            checks.not_negative("gamma", self.gamma)
        checks.positive("learning_rate", self.learning_rate)
        _within("learning_rate", self.learning_rate, 0, 1e6)
        _within("largest_number", self.largest_number, 1e-6, LARGEST)
        low, high = self.reward_range
        if not -LARGEST_REWARD <= low < high <= LARGEST_REWARD:
            message = f"reward_range must be two rising numbers within ±{LARGEST_REWARD:g}, got {low}, {high}"
            raise ValueError(message)
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
        size = sum(len(name) + len(text) for name, text in self.annotations.items())
        if size > LONGEST_ANNOTATIONS:
            raise ValueError(f"annotations must have at most {LONGEST_ANNOTATIONS} characters, got {size}")

    @property
    def greed(self) -> float:
        """γ of the SquareCB policies after one reward, in units of the reward range for the optimistic one."""
        default = HOSTED[str(self.policy)].get("gamma", HOSTED["squarecb"]["gamma"])
        return float(default if self.gamma is None else self.gamma)

    def draw_prefix(self, loop: str) -> str:
        """Return what precedes an event's id where its number is drawn, in a loop of this name."""
        return f"{loop}\0" if self.draws_by_loop else ""

    @property
    def n_weights(self) -> int:
        """How many weights the shared model has; ``residual-kalman`` has none."""
        return 1 << self.bits if self.has_effect("bits") else 0

    def has_effect(self, name: str) -> bool:
        """Return whether the loop's model uses a setting."""
        return name in MODELS[self.model].takes or not any(name in model.takes for model in MODELS.values())

    @property
    def has_widths(self) -> bool:
        """Whether scores have standard deviations; then devices report theirs too, and fetch the whole model."""
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
    """Return settings from plain values; missing ones get the defaults of new loops."""
    if fields.get("model") == "adagrad":
        fields = {"largest_number": LARGEST_NUMBER, **fields}
    try:
        settings = msgspec.convert(fields, Settings)
    except msgspec.ValidationError as error:
        message, place = complaint(error, Settings)
        message = f"{place}: {message}" if place else message
        raise ApiError(422, "invalid_settings", message, place or _named(str(error))) from None
    low, high = settings.reward_range
    least = NARROWEST_RANGE * max(1.0, abs(low), abs(high))
    if high - low < least:  # arithmetic cannot tell it from a point; a loop that has one in the log is still read
        message = f"reward_range must be at least {least:g} wide, got {low}, {high}: send rewards in another unit"
        raise ApiError(422, "invalid_settings", message, "reward_range")
    if settings.retention is not None and settings.retention < LEAST_RETENTION:
        message = f"retention must be at least an hour ({LEAST_RETENTION:g} s), got {settings.retention}"
        raise ApiError(422, "invalid_settings", message, "retention")
    if settings.update_interval < SHORTEST_INTERVAL:  # the same
        message = f"update_interval must be at least {SHORTEST_INTERVAL:g}, got {settings.update_interval:g}"
        raise ApiError(422, "invalid_settings", message, "update_interval")
    return settings


def of_new_loop(settings: Settings) -> Settings:
    """Return the settings of a new loop: draws of events and of its control group depend on its name."""
    control = settings.control.after(Control())
    return msgspec.structs.replace(settings, control=control, draws_by_loop=True)


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
    """Refuse settings without effect on the loop's model."""
    model = MODELS[settings.model]
    if POLICIES[str(settings.policy)].needs_widths and not model.has_widths:
        raise ValueError(f"policy must not be {settings.policy!r} for model {settings.model!r}, which knows no widths")
    for name, default in _MODEL_DEFAULTS.items():
        value = getattr(settings, name)
        if name not in model.takes and value != default:
            raise ValueError(f"{name} must be {default!r} for model {settings.model!r}, got {value!r}")


_MODEL_DEFAULTS: dict[str, Any] = {  # of settings that only some models use
    field.name: field.default_factory() if callable(field.default_factory) else field.default
    for field in msgspec.structs.fields(Settings)
    if any(field.name in model.takes for model in MODELS.values())
}


def _within(name: str, value: float, least: float, most: float) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise ValueError(f"{name} must be in [{least:g}, {most:g}], got {value}")

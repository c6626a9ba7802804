"""Types of settings and reports, from the service's OpenAPI document. Made by a program: do not edit."""

from __future__ import annotations

from typing import Literal, TypedDict


class ArmReport(TypedDict):
    """The users of an arm of the experiment, and their rewards."""

    users: int
    events: int
    reward: float | None


class Bounds(TypedDict):
    """An estimate with its 95% interval."""

    value: float
    low: float
    high: float


class Control(TypedDict, total=False):
    """A control group: users whose decisions a baseline makes. Any change of it begins a new experiment."""

    share: float
    baseline: Literal["first", "uniform"]
    experiment: str
    learn: bool | None
    hold: str | None
    by_loop: bool


class Defences(TypedDict, total=False):
    """Setting ``defences`` of a loop; None turns one off."""

    max_norm: float | None
    client_share: float | None
    client_pull: float | None
    combine: Literal["mean", "median", "trimmed-mean"]


class FeedbackStored(TypedDict):
    """How many events are new, and how many existed already."""

    stored: int
    repeated: int


class _Guardrail(TypedDict):
    outcome: str


class Guardrail(_Guardrail, total=False):
    """How far the mean of an outcome per event may move against the control group."""

    rise: float | None
    fall: float | None
    revert: bool


class HeldPeriod(TypedDict):
    """A hold that goes on: the baseline decides for everybody."""

    since: str
    reason: str


class _LiftReport(TypedDict):
    experiment: str
    began: str
    share: float
    baseline: str
    control: ArmReport
    treatment: ArmReport
    absolute: Bounds | None
    relative: Bounds | None
    sentence: str
    missing: str | None
    sample_ratio_is_wrong: bool
    variance_left: float
    more_users: int | None
    outcomes: list[OutcomeLift]


class LiftReport(_LiftReport, total=False):
    """Treatment against control, from the beginning of the experiment on; what was decided during holds is left out."""

    events_since: str | None
    held: HeldPeriod | None
    paused_seconds: float
    ended: str | None


class OutcomeLift(TypedDict):
    """Treatment against control for a named outcome, by its sum per event."""

    outcome: str
    control: float | None
    treatment: float | None
    absolute: Bounds | None
    relative: Bounds | None


class PopularItem(TypedDict):
    """An item and what it earned."""

    id: str
    score: float
    events: int


class Settings(TypedDict, total=False):
    """The settings of a loop; a record of them in the log applies from its position on."""

    model: Literal["adagrad", "residual-kalman"]
    policy: Literal["epsilon-greedy", "greedy", "optimistic-squarecb", "squarecb"] | None
    gamma: float | None
    floor: float
    epsilon: float
    learning_rate: float
    largest_number: float
    reward_range: list[float]
    wait_time: float
    default_reward: float | None
    wait_from: Literal["activation", "rank"]
    aggregation: Literal["average", "earliest", "sum"]
    outcomes: dict[str, float]
    formula: str | None
    guardrails: list[Guardrail]
    control: Control
    apprentice: bool
    crosses: bool
    personal: bool
    update_interval: float
    global_learner: Literal[
        "dynamic-fedavg",
        "fedogd",
        "fedomd",
        "fedres-adagrad",
        "fedres-sgd",
        "fedsea",
        "ofedavg",
        "ofediq",
    ]
    hyperparameters: dict[str, float | int | None]
    bits: int
    timing: Literal["aligned", "on-arrival"]
    defences: Defences
    retention: float | None
    annotations: dict[str, str]
    draws_by_loop: bool


class SimilarItem(TypedDict):
    """An item and how similar it is."""

    id: str
    score: float


class UnmatchedReward(TypedDict):
    """A reward that does not count, or not yet."""

    event_id: str
    time: str
    value: float
    id: str | None
    status: str

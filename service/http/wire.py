"""What travels: the bodies that the service takes and gives, as msgspec reads and writes them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, field

from fedres.event_ids import LONGEST_ID
from fedres.scoring.federated import LAST_ROUND
from service.engine import deciding, federated, slots
from service.engine.deciding import RankRequest, RankResult
from service.engine.federated import LAST
from service.engine.settings import Settings
from service.engine.slots import LONGEST_CALL_ID, SlotsRequest, SlotsResult

Id = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
Count = Annotated[int, Meta(ge=1, le=LAST)]
RoundNumber = Annotated[int, Meta(ge=1, le=LAST_ROUND)]
Version = Annotated[int, Meta(ge=0, le=LAST)]
Features = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})]
Fields = Annotated[dict[str, Any], Meta(extra_json_schema={"$ref": "#/components/schemas/Settings"})]
Either = Annotated[
    Any,
    Meta(extra_json_schema={"anyOf": [{"$ref": f"#/components/schemas/{kind}"} for kind in ("RankResult", "Error")]}),
]


class Action(deciding.Action, forbid_unknown_fields=True):
    """An action; in a rank call, one without features is the one of that id in the catalogue."""

    id: Id
    features: Features = field(default_factory=Raw)


class Rank(RankRequest, kw_only=True, forbid_unknown_fields=True):
    """A request for a decision."""

    actions: Annotated[list[Action], Meta(min_length=1)]  # type: ignore[assignment]  # narrower than the engine's
    context: Features = field(default_factory=lambda: Raw(b"{}"))
    user: Id | None = None
    exclude: list[Id] = field(default_factory=list)
    event_id: Id | None = None


class UnreadRank(RankRequest, kw_only=True, forbid_unknown_fields=True):
    """The same, the list of actions still as it came."""

    actions: Raw  # type: ignore[assignment]
    user: Id | None = None
    exclude: list[Id] = field(default_factory=list)
    event_id: Id | None = None


class Batch(Struct, forbid_unknown_fields=True):
    """Many requests at once, each decided or refused on its own."""

    requests: Annotated[list[Rank], Meta(min_length=1)]


class Decisions(Struct):
    """What became of each request of a batch, in its order."""

    results: list[Either]


class Slot(slots.PageSlot, kw_only=True, forbid_unknown_fields=True):
    """A place for one action, its features, and what it must not show."""

    id: Id
    features: Features = field(default_factory=Raw)
    exclude: list[Id] = field(default_factory=list)


class RankSlots(SlotsRequest, kw_only=True, forbid_unknown_fields=True):
    """A request for a decision on each slot of a page, no action twice."""

    actions: Annotated[list[Action], Meta(min_length=1)]  # type: ignore[assignment]
    slots: Annotated[list[Slot], Meta(min_length=1)]  # type: ignore[assignment]
    context: Features = field(default_factory=lambda: Raw(b"{}"))
    user: Id | None = None
    event_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_CALL_ID)] | None = None


class Reward(Struct, forbid_unknown_fields=True):
    """What came of an event; an id that comes twice, or without ids a value that comes twice, counts once."""

    value: float
    id: Id | None = None


class CatalogueChange(Struct, forbid_unknown_fields=True):
    """Actions to add or change, and ids to retire."""

    put: list[Action] = []
    retire: list[Id] = []


class Catalogue(Struct):
    """The actions that can be named by id alone."""

    actions: list[Action]


class UnmatchedReward(Struct):
    event_id: str
    time: int  # microseconds since 1970
    value: float
    id: str | None
    status: str  # why it does not count


class Unmatched(Struct):
    """Rewards that came too late or have no event, the newest of them, oldest first."""

    rewards: list[UnmatchedReward]


class LoopMade(Struct, forbid_unknown_fields=True):
    """A loop to be made; settings that are missing are at their defaults."""

    name: Id
    settings: Fields = {}


class Loops(Struct):
    loops: list[str]


class SettingsInForce(Struct):
    """A loop's settings and their version, which is their position in the log."""

    version: int
    settings: Settings


class Evaluate(Struct, forbid_unknown_fields=True):
    """Policies to value on the stored events, by these estimators."""

    policies: Annotated[list[Id], Meta(min_length=1, max_length=20)]
    estimators: Annotated[list[Id], Meta(min_length=1, max_length=20)] = field(default_factory=lambda: ["snips", "dr"])


class Health(Struct):
    status: str


class Residual(federated.Residual, kw_only=True, forbid_unknown_fields=True):
    """An example of a device, less what is private: the shared features, the local prediction and the label."""

    seq: Count
    version: Version
    context: Features
    action: Action


class Residuals(Struct, forbid_unknown_fields=True):
    """Examples of one device; a sequence number that comes twice counts once."""

    client: Id
    residuals: Annotated[list[Residual], Meta(min_length=1)]


class ResidualsStored(Struct):
    """Where in the log each of them is, and the version that is published."""

    positions: list[int]
    version: int


class Update(federated.Update, kw_only=True, forbid_unknown_fields=True):
    """What a device uploads after round ``t``: a gradient or a delta of the shared weights."""

    seq: Count
    t: RoundNumber
    version: Version
    kind: Id


class Updates(Struct, forbid_unknown_fields=True):
    """Updates of one device; none make it known."""

    client: Id
    updates: list[Update]


class UpdatesStored(Struct):
    """The same, and the device's number in the loop."""

    positions: list[int]
    version: int
    number: int | None


class Scoring(Struct, forbid_unknown_fields=True):
    """Actions to score by the shared model alone; nothing is stored."""

    actions: Annotated[list[Action], Meta(min_length=1)]
    context: Features = field(default_factory=lambda: Raw(b"{}"))


class Score(Struct):
    id: str
    score: float


class Scores(Struct):
    """The shared part of each action's score, in the order they came."""

    version: int
    scores: list[Score]


class Round(Struct):
    """How a loop learns; with a round who uploads after it, or with a client too whether it does."""

    global_learner: str
    hyperparameters: dict[str, float | None]
    bits: int
    timing: str
    crosses: bool
    personal: bool
    policy: str
    epsilon: float
    gamma: float
    learning_rate: float
    reward_range: Annotated[list[float], Meta(min_length=2, max_length=2)]
    settings_version: int
    version: int
    n_learned: int
    number: int | None
    t: int | None
    senders: list[int] | None
    takes_part: bool | None


KINDS: tuple[type, ...] = (
    Rank,
    RankResult,
    Batch,
    Decisions,
    RankSlots,
    SlotsResult,
    Reward,
    Catalogue,
    CatalogueChange,
    Unmatched,
    LoopMade,
    Loops,
    Settings,
    SettingsInForce,
    Evaluate,
    Health,
    Residuals,
    ResidualsStored,
    Updates,
    UpdatesStored,
    Scoring,
    Scores,
    Round,
)

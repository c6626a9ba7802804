"""What travels: the bodies that the service takes and gives, as msgspec reads and writes them."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, field

from service.engine import deciding
from service.engine.deciding import LONGEST_ID, RankRequest, RankResult
from service.engine.settings import Settings

Id = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
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


KINDS: tuple[type, ...] = (
    Rank,
    RankResult,
    Batch,
    Decisions,
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
)

"""What a recommendation is asked with and answered with."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, field

from service.models.protocol import Explained
from service.rank.requests import Features, Id
from service.rank.slots import LONGEST_CALL_ID

MOST_PLACES = 100
LONGEST_SEEN = 365 * 86_400.0  # seconds

Seconds = Annotated[float, Meta(gt=0, le=LONGEST_SEEN)]


class RecommendRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for the best items of the catalogue, for a user in a context."""

    n: Annotated[int, Meta(ge=1, le=MOST_PLACES)] = 10
    user: Id | None = None
    context: Features = field(default_factory=lambda: Raw(b"{}"))
    filter: dict[str, Any] = field(default_factory=dict)
    exclude: list[Id] = field(default_factory=list)
    exclude_seen: bool | Seconds = False  # what the user was shown, ever or within so many seconds
    event_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_CALL_ID)] | None = None
    defer: bool = False
    explain: bool = False


class RecommendedItem(Struct, omit_defaults=True):
    """An item in its place; its reward goes to ``event_id``."""

    id: str
    event_id: str
    score: float  # the reward that is expected of it
    probability: float  # of this item in this place, given those before
    arm: str | None = None  # control, treatment or held, where the loop has a control group


class RecommendResult(Struct, omit_defaults=True):
    """The items of a page, in the order of their places."""

    event_id: str
    items: list[RecommendedItem]
    candidates: int  # items that filter, exclusions and availability left
    model_version: int
    explanations: list[Explained] | None = None

"""Requests for decisions, the prepared form in which they are decided, and the results."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Raw, Struct, field

from fedres.scoring.features import Hashed
from fedres_client.event_ids import LONGEST_ID
from service.errors import invalid
from service.hints import about
from service.models.protocol import Explained

Id = Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
Features = Annotated[Raw, Meta(extra_json_schema={"type": ["object", "null"]})]

_PLAIN = f"[\x01-\x7f]{{1,{LONGEST_ID}}}"
is_plain_id = re.compile(_PLAIN).fullmatch  # ids that need no further checks
are_plain_ids = re.compile(f"{_PLAIN}(?:\0{_PLAIN})*").fullmatch  # the same of ids with a NUL between them


class Action(Struct, forbid_unknown_fields=True, gc=False):
    """An action; one without features has those of the catalogue, or its id alone if it is not in there."""

    id: Annotated[Id, about("Id of the action; it is a feature, too.")]
    features: Annotated[Features, about("Features of the action. Without them, those of the catalogue.")] = field(
        default_factory=Raw
    )


class RankRequest(Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A request for a decision."""

    actions: Annotated[
        Annotated[list[Action], Meta(min_length=1)],
        about("The actions to choose from, in your own order of preference."),
    ]
    context: Annotated[Features, about("Features of the situation, known before the decision.")] = field(
        default_factory=lambda: Raw(b"{}")
    )
    user: Annotated[
        Id | None,
        about("Id of the user: selects the personal model. Without it, only the shared model decides."),
    ] = None
    exclude: Annotated[list[Id], about("Ids of actions that must not be chosen; they get probability 0.")] = field(
        default_factory=list
    )
    event_id: Annotated[
        Id | None,
        about("Id of this event, generated if missing. A repeat with the same id gets the same decision."),
    ] = None
    defer: Annotated[bool, about("Do not start the wait for a reward until the event is activated.")] = False
    explain: Annotated[bool, about("Add explanations of the scores to the response.")] = False


class PreparedRequest(Struct, frozen=True, gc=False):
    """A request that is checked, with its features hashed."""

    request: RankRequest
    event_id: str
    rows: list[Hashed]  # the context, then each action
    allowed: list[bool]  # per action: not excluded; empty if all are allowed
    draw: float  # the event's uniform number
    key: tuple[int, int]  # of the user's model in shared memory


class Ranked(Struct, gc=False):
    """An action with its score and its probability."""

    id: Annotated[str, about("Id of the action.")]
    probability: Annotated[float, about("Probability of the action; 0 if it was excluded.")]
    score: Annotated[float, about("Expected reward.")]


class RankResult(Struct, omit_defaults=True, gc=False):
    """The decision; ``action_id`` is called ``action`` in JSON."""

    event_id: Annotated[str, about("Id to send the reward to.")]
    action_id: Annotated[str, about("The chosen action.")] = field(name="action")
    probability: Annotated[float, about("Probability that the action was drawn with.")]
    ranking: Annotated[list[Ranked], about("All actions, best score first.")]
    model_version: Annotated[int, about("Position in the loop's log up to which the models had learned.")]
    arm: Annotated[str | None, about("control, treatment or held, if the loop has a control group.")] = None
    explanations: Annotated[list[Explained] | None, about("With explain: the parts of each action's score.")] = None


def check_actions(actions: Sequence[Action]) -> None:
    """Refuse actions whose ids are too long or come twice."""
    ids = [action.id for action in actions]
    if not ids:
        raise invalid("actions must hold at least one action, got none", "actions")
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise invalid(f"actions must have different ids, got {twice!r} twice", "actions")
    sizes = [*map(len, ids)]
    if not 1 <= min(sizes) <= max(sizes) <= LONGEST_ID or "\0" in "".join(ids):
        for name in ids:
            check_id("actions", name)


def check_id(target: str, name: str, longest: int = LONGEST_ID) -> None:
    """Refuse invalid ids: too short, too long, not text, or with a character that ends text in other tools."""
    if not 1 <= len(name) <= longest:
        raise invalid(f"{target} must have 1 to {longest} characters, got {len(name)}", target)
    if "\0" in name:
        raise invalid(f"{target} must have no NUL (the character U+0000), got {name!r}", target)
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise invalid(f"{target} must be valid Unicode, got {name!a}", target) from None

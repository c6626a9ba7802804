"""From a request and the published models to a decision: probabilities, a draw, and what goes into the log."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np

from bandits.exploration import epsilon_greedy, pick, squarecb
from fedres.checks import Array
from service.errors import ApiError, invalid
from service.event_ids import new_event_id
from service.features import FeatureError, Preparer
from service.learner import CatalogueAction, Statistics
from service.model import PersonalModel, SharedModel, explain, learn, score
from service.records import LoggedRank, RankBody, Registered, read_offered
from service.settings import Settings
from service.store import Entry

LONGEST_ID = 200  # characters of an id: of an event, a user, an action, a loop


class Action(msgspec.Struct, forbid_unknown_fields=True):
    """An action on offer; without features it is looked up in the catalogue."""

    id: str
    features: msgspec.Raw = msgspec.Raw(b"")


class RankRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    actions: list[Action]
    context: msgspec.Raw = msgspec.Raw(b"{}")
    user: str | None = None
    exclude: list[str] = []
    event_id: str | None = None
    defer: bool = False
    explain: bool = False


class Ranked(msgspec.Struct):
    id: str
    probability: float
    score: float


class Strongest(msgspec.Struct):
    """What a pair of features adds to a score; an empty name is none, and two of them are the constant."""

    context: str
    action: str
    shared: float
    personal: float


class Explained(msgspec.Struct):
    id: str
    shared: float
    personal: float
    strongest: list[Strongest]


class RankResult(msgspec.Struct, omit_defaults=True):
    """The answer, as it goes out: ``action_id`` is called ``action`` in JSON."""

    event_id: str
    action_id: str = msgspec.field(name="action")
    probability: float
    ranking: list[Ranked]  # best score first
    model_version: int
    explanations: list[Explained] | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What ``rank`` reads of a loop: never changed, replaced as a whole."""

    name: str
    since: int
    settings: Settings
    settings_version: int
    catalogue: Mapping[str, CatalogueAction]
    weights: Array
    version: int
    statistics: Statistics
    n_waiting: int


@dataclass(frozen=True, slots=True)
class Decision:
    event_id: str
    body: RankBody
    result: RankResult


def draw(event_id: str) -> float:
    """Return the event's uniform number in [0, 1): the first 53 bits of the SHA-256 of its id in UTF-8.

    >>> draw("a")
    0.7914827144317304
    """
    return (int.from_bytes(hashlib.sha256(event_id.encode()).digest()[:8], "big") >> 11) * 2.0**-53


def probabilities(scores: Array, allowed: Array, settings: Settings, n_learned: int) -> Array:
    """Return what each action is drawn with.

    No prediction counts as less than the least reward: actions that are expected to earn nothing tie, or a greedy
    policy would stay with one of them for ever. The gaps that squarecb weighs are between rewards within their range.
    """
    out = np.empty(scores.size)
    if settings.policy == "squarecb":
        squarecb(np.clip(scores, *settings.reward_range), allowed, settings.gamma * max(n_learned, 1) ** 0.5, out)
    else:
        share = settings.epsilon if settings.policy == "epsilon-greedy" else 0.0
        epsilon_greedy(np.maximum(scores, settings.reward_range[0]), allowed, share, out)
    return out


def decide(request: RankRequest, view: View, personal: PersonalModel | None, preparer: Preparer) -> Decision:
    """Return the decision on a request that ``check_request`` has passed."""
    offered = _offered(request, view)
    context = bytes(request.context) or b"{}"
    try:
        prepared = preparer.prepare(context, offered)
    except FeatureError as error:
        target = str(error).split(":", 1)[0]
        raise ApiError(422, "invalid_features", str(error), target) from None
    shared, own = score(prepared, view.weights, personal)
    scores = (shared + own).astype(np.float64)
    allowed = _allowed(request)
    chances = probabilities(scores, allowed, view.settings, view.statistics.settled)
    event_id = request.event_id or new_event_id()
    action, wished = int(pick(chances, draw(event_id))), None
    if view.settings.apprentice:
        wished, action = action, int(allowed.argmax())
        chances = np.zeros(scores.size)
        chances[action] = 1.0
    body = RankBody(
        msgspec.Raw(context),
        _logged(request, view),
        action,
        chances.tolist(),
        scores.tolist(),
        view.version,
        view.settings_version,
        request.exclude,
        request.defer,
        wished,
    )
    result = _result(event_id, [name for name, _ in offered], body)
    if request.explain:
        result.explanations = _explanations(context, offered, view, personal)
    return Decision(event_id, body, result)


def check_request(request: RankRequest) -> None:
    """Refuse ids that are too long or come twice, and a request that leaves nothing to choose from."""
    ids = [action.id for action in request.actions]
    if not ids:
        raise invalid("actions must hold at least one action, got none", "actions")
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise invalid(f"actions must have different ids, got {twice!r} twice", "actions")
    longest = max(ids, key=len)
    check_id("actions", longest if len(longest) > LONGEST_ID else min(ids, key=len))
    if request.user is not None:
        check_id("user", request.user)
    if request.event_id is not None:
        check_id("event_id", request.event_id)
    if request.exclude and set(ids) <= set(request.exclude):
        raise invalid(f"exclude must leave at least one action, got all {len(ids)} of them", "exclude")


def check_id(target: str, name: str) -> None:
    """Refuse what cannot be an id: too short, too long or not text."""
    if not 1 <= len(name) <= LONGEST_ID:
        raise invalid(f"{target} must have 1 to {LONGEST_ID} characters, got {len(name)}", target)
    if not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise invalid(f"{target} must be valid Unicode, got {name!a}", target) from None


def repeated(request: RankRequest, entry: Entry, stored: LoggedRank) -> RankResult:
    """Return the stored answer to a request that is the same as the one it was given for."""
    offered = [read_offered(raw) for raw in stored.actions]
    same = (
        entry.user == request.user
        and bytes(stored.context) == (bytes(request.context) or b"{}")
        and stored.deferred == request.defer
        and stored.exclude == request.exclude
        and [(action.id, bytes(action.features)) for action in offered]
        == [(action.id, bytes(action.features)) for action in request.actions]
    )
    if not same:
        message = f"event_id must be new or come with the same request, got {entry.event!r} with another"
        raise ApiError(409, "event_exists", message, "event_id")
    assert entry.event is not None
    return _result(entry.event, [action.id for action in offered], stored)


def _offered(request: RankRequest, view: View) -> list[tuple[str, bytes]]:
    return [(action.id, bytes(action.features) or _known(action.id, view).features) for action in request.actions]


def _known(name: str, view: View) -> CatalogueAction:
    action = view.catalogue.get(name)
    if action is None:
        raise invalid(f"actions must have features or be registered, got {name!r} with neither", "actions")
    return action


def _logged(request: RankRequest, view: View) -> Sequence[Action | Registered]:
    if all(map(_has_features, request.actions)):
        return request.actions
    return [
        action if len(action.features) else Registered(action.id, view.catalogue[action.id].put)
        for action in request.actions
    ]


def _has_features(action: Action) -> bool:
    return len(action.features) > 0


def _allowed(request: RankRequest) -> Array:
    if not request.exclude:
        return _all(len(request.actions))
    return np.array([action.id not in request.exclude for action in request.actions])


@lru_cache(maxsize=1_000)
def _all(n: int) -> Array:
    return np.ones(n, dtype=bool)


def _result(event_id: str, ids: list[str], body: RankBody | LoggedRank) -> RankResult:
    chances, scores, taken = body.probabilities, body.scores, body.action
    order = sorted(range(len(ids)), key=scores.__getitem__, reverse=True)  # stable, reversed or not
    ranking = [Ranked(ids[k], chances[k], scores[k]) for k in order]
    return RankResult(event_id, ids[taken], chances[taken], ranking, body.version)


def _explanations(
    context: bytes, offered: list[tuple[str, bytes]], view: View, personal: PersonalModel | None
) -> list[Explained]:
    found = [explain(context, action, view.weights, personal, crosses=view.settings.crosses) for action in offered]
    return [
        Explained(name, why.shared, why.personal, [Strongest(*pair) for pair in why.strongest])
        for (name, _), why in zip(offered, found, strict=True)
    ]


def warm_up() -> None:
    """Compile what a decision and its reward need, so that no request waits for it."""
    prepared = Preparer().prepare(b'{"a": 1}', [("a", b"{}"), ("b", b"{}")])
    shared, personal = SharedModel(bits=1), PersonalModel()
    learn(prepared, 0, 1.0, shared, personal)
    learn(prepared, 0, 1.0, shared)
    scores = np.add(*score(prepared, shared.weights.copy(), personal)).astype(np.float64)
    probabilities(scores, _all(2), Settings(policy="squarecb"), 1)
    pick(probabilities(scores, _all(2), Settings(), 1), draw(""))

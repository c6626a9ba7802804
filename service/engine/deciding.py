"""From a request and the published models to a decision: probabilities, a draw, and what goes into the log."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.event_ids import LONGEST_ID, draw, new_event_id
from fedres.scoring.explaining import explain
from fedres.scoring.features import Given, HashedOffer, Made, Prepared, Preparer
from fedres.scoring.flattening import FeatureError
from fedres.scoring.model import PersonalModel, SharedModel, arrays, expand, learn, score
from service.engine.answers import Ids, written
from service.engine.choosing import ALL, Asked, choose_kernel, choose_together, how_to_choose
from service.engine.heads import CatalogueAction, Clients, Statistics
from service.engine.history import History
from service.engine.records import LoggedRank, RankBody, Registered, StoredApart, encode, read_offered
from service.engine.settings import Settings
from service.errors import ApiError, invalid
from service.store import Entry


class Action(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An action on offer; without features it is looked up in the catalogue."""

    id: str
    features: msgspec.Raw = msgspec.Raw(b"")


class RankRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    actions: list[Action]
    context: msgspec.Raw = msgspec.Raw(b"{}")
    user: str | None = None
    exclude: list[str] = []
    event_id: str | None = None
    defer: bool = False
    explain: bool = False


class Parts(Made):
    """What was made of an action that may come again, and where a loop's log has its features."""

    __slots__ = ("apart", "since")

    def __init__(self) -> None:
        self.limits = None
        self.apart: StoredApart | None = None
        self.since = 0  # the first position of a loop in which ``apart`` will not change, 0 is none


class KnownAction(NamedTuple):
    """An action that may come again, in other lists too; lists are put together from its parts."""

    action: Action
    given: tuple[str, bytes] | None  # its id and features; none where the catalogue has them
    name: bytes  # its id as JSON
    size: bytes  # native int64, of the name
    parts: Parts

    @classmethod
    def of(cls, action: Action) -> KnownAction:
        """Return an action that ``check_actions`` has passed, no longer part of the body that it came in."""
        features, name = bytes(action.features), encode(action.id)
        own = msgspec.structs.replace(action, features=msgspec.Raw(features))
        return cls(own, (own.id, features) if features else None, name, struct.pack("=q", len(name)), Parts())


class Offer(list[Action]):
    """A list of actions, checked, that may come again and is never changed; what was made of it is left here."""

    __slots__ = ("_at", "_given", "_ids", "_looked_up", "_own", "_ready", "_shown", "apart", "parts")

    def __init__(self, actions: Sequence[Action]) -> None:
        check_actions(actions)
        self._put_together([KnownAction.of(action) for action in actions])

    @classmethod
    def of(cls, known: Sequence[KnownAction]) -> Offer:
        """Return a list of known actions."""
        offer = cls.__new__(cls)
        offer._put_together(known)
        return offer

    def _put_together(self, known: Sequence[KnownAction]) -> None:
        actions, self._own, names, sizes, self.parts = zip(*known, strict=False)
        if len(set(names)) < len(names):
            check_actions(actions)
        super().__init__(actions)
        self._ids = Ids(b"".join(names), b"".join(sizes))
        self._given = Given.of(self._own, self.parts) if all(self._own) else None
        self._looked_up: Mapping[str, CatalogueAction] | None = None  # where features come from that are not here
        self._shown: Shown | None = None
        self._at: Sequence[StoredApart | None] | None = None  # where it was last shown for
        self._ready: Ready | None = None
        self.apart: dict[int, Apart] = {}  # by the loop's first position

    def given(self, view: View) -> Given:
        """Return it as ``looked_up`` does."""
        if self._given is None or not (self._looked_up is None or self._looked_up is view.catalogue):
            both = [*zip(self._own, self, strict=True)]
            pairs = [own or (action.id, _known(action.id, view).features) for own, action in both]
            each = [parts if own else Made() for own, parts in zip(self._own, self.parts, strict=True)]
            self._given, self._looked_up = Given.of(pairs, each), view.catalogue
            self._at = self._ready = None
        return self._given

    def shown(self, view: View, at: Sequence[StoredApart | None]) -> Shown:
        """Return it as JSON, for a log that has its features ``at`` these places, as ``Where`` says."""
        self.given(view)
        if self._shown is None or (self._at is not at and self._at != at):
            self._shown, self._at = Shown(self._ids, encode(_logged(self, view, at))), at
        return self._shown

    def ready(self, view: View, preparer: Preparer) -> Ready | None:
        """Return what decisions of the loop need of it, if that was left here and cannot have changed."""
        ready = self._ready
        if ready is None or ready.since != view.since or ready.preparer is not preparer:
            return None
        return ready if self._looked_up is None or self._looked_up is view.catalogue else None

    def readied(self, view: View, preparer: Preparer, hashed: HashedOffer, shown: Shown) -> Ready:
        """Return the same, and leave it here where nothing more can be stored apart."""
        ready = Ready(view.since, preparer, hashed, shown)
        known = self.apart.get(view.since)
        if known is not None and known.final:
            self._ready = ready
        return ready


class Apart(NamedTuple):
    """Where the log has the features of a list's actions, as far as one user's requests told."""

    at: Sequence[StoredApart | None]  # as ``Where`` says
    final: bool  # whether no more can be stored apart
    user: str  # "" is nobody
    generation: int  # of what was known


class Shown(msgspec.Struct, frozen=True, gc=False):
    """A list of actions as decisions write it, in JSON."""

    ids: Ids
    logged: bytes  # the list, as the log has it


class Ready(NamedTuple):
    """A list of actions as decisions of one loop need it."""

    since: int  # the loop's first position
    preparer: Preparer
    hashed: HashedOffer
    shown: Shown


class Ranked(msgspec.Struct, gc=False):
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


class RankResult(msgspec.Struct, omit_defaults=True, gc=False):
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
    seen_range: tuple[float, float]  # of the rewards that the shared model has seen
    newest: int  # the largest round of a device inside, where devices count rounds
    clients: Clients  # grows in place
    history: History | None  # of the weights, once a device has asked


# (actions that a decision is made on, the same looked up, who brought them, loop) -> where the log has each one's
# features as they came, None where the decision's own record is to have them; nothing where it is to have all.
Where = Callable[[Sequence[Action], Sequence[tuple[str, bytes]], str | None, View], Sequence[StoredApart | None]]


class Decision(NamedTuple):
    event_id: str
    body: RankBody
    result: RankResult
    prepared: Prepared


def choose(
    prepared: Prepared, allowed: Array, view: View, personal: PersonalModel | None, u: float
) -> tuple[int, list[float], list[float]]:
    """Return the action that ``u`` falls on, and the scores and the probabilities of all."""
    out = np.empty((2, allowed.size))
    how = how_to_choose(view.settings, view.statistics.learned)
    action = choose_kernel(prepared, arrays(view.weights, personal), allowed, how, u, out)
    scores, chances = out.tolist()
    return action, scores, chances


def decide(
    request: RankRequest, view: View, personal: PersonalModel | None, preparer: Preparer, where: Where
) -> Decision:
    """Return the decision on a request that ``check_request`` has passed."""
    offered = looked_up(request.actions, view)
    context = bytes(request.context) or b"{}"
    try:
        prepared = preparer.prepare(context, offered)
    except FeatureError as error:
        target = str(error).split(":", 1)[0]
        raise ApiError(422, "invalid_features", str(error), target) from None
    allowed = allowed_in(request)
    event_id, wished = request.event_id or new_event_id(), None
    action, scores, chances = choose(prepared, allowed, view, personal, draw(event_id))
    if view.settings.apprentice:
        wished, action = action, int(allowed.argmax())
        chances = [float(k == action) for k in range(len(scores))]
    body = RankBody(
        msgspec.Raw(context),
        _logged(request.actions, view, where(request.actions, offered, request.user, view)),
        action,
        chances,
        scores,
        view.version,
        view.settings_version,
        request.exclude,
        request.defer,
        wished,
    )
    result = _result(event_id, [name for name, _ in offered], body)
    if request.explain:
        result.explanations = _explanations(context, offered, view, personal)
    return Decision(event_id, body, result, prepared)


def check_request(request: RankRequest) -> None:
    """Refuse ids that are too long or come twice, and a request that leaves nothing to choose from."""
    if not isinstance(request.actions, Offer):
        check_actions(request.actions)
    if request.user is not None:
        check_id("user", request.user)
    if request.event_id is not None:
        check_id("event_id", request.event_id)
    if request.exclude and {action.id for action in request.actions} <= set(request.exclude):
        n = len(request.actions)
        raise invalid(f"exclude must leave at least one action, got all {n} of them", "exclude")


def check_actions(actions: Sequence[Action]) -> None:
    """Refuse actions whose ids are too long or come twice."""
    ids = [action.id for action in actions]
    if not ids:
        raise invalid("actions must hold at least one action, got none", "actions")
    if len(set(ids)) < len(ids):
        twice = next(name for name in ids if ids.count(name) > 1)
        raise invalid(f"actions must have different ids, got {twice!r} twice", "actions")
    longest = max(ids, key=len)
    check_id("actions", longest if len(longest) > LONGEST_ID else min(ids, key=len))


def check_id(target: str, name: str, longest: int = LONGEST_ID) -> None:
    """Refuse what cannot be an id: too short, too long or not text."""
    if not 1 <= len(name) <= longest:
        raise invalid(f"{target} must have 1 to {longest} characters, got {len(name)}", target)
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


def looked_up(actions: Sequence[Action], view: View) -> Sequence[tuple[str, bytes]]:
    """Return actions with their features, those that came without as the catalogue has them."""
    if isinstance(actions, Offer):
        return actions.given(view)
    return [(action.id, bytes(action.features) or _known(action.id, view).features) for action in actions]


def _known(name: str, view: View) -> CatalogueAction:
    action = view.catalogue.get(name)
    if action is None:
        raise invalid(f"actions must have features or be registered, got {name!r} with neither", "actions")
    return action


def _logged(
    actions: Sequence[Action], view: View, at: Sequence[StoredApart | None]
) -> Sequence[Action | Registered | StoredApart | None]:
    if at and all(at):
        return at
    places = at or [None] * len(actions)
    return [apart or _logged_here(action, view) for action, apart in zip(actions, places, strict=True)]


def _logged_here(action: Action, view: View) -> Action | Registered:
    return action if len(action.features) else Registered(action.id, view.catalogue[action.id].put)


def allowed_in(request: RankRequest) -> Array:
    """Return which actions are not excluded."""
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
    context: bytes, offered: Sequence[tuple[str, bytes]], view: View, personal: PersonalModel | None
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
    shared.correct(expand(prepared, 0), 0.5, 0.0)
    score(prepared, shared.weights.copy())
    weights = shared.weights.copy()
    how, u = how_to_choose(Settings(), 0), draw("")
    for own in (None, personal):
        choose_kernel(prepared, arrays(weights, own), _all(2), how, u, np.empty((2, 2)))
    asked = Asked(*Preparer().hashed(b'{"a": 1}', [("a", b"{}"), ("b", b"{}")]), personal, u)
    written([""], [Ids(b'"a""b"', struct.pack("=2q", 3, 3))], *choose_together([asked], weights, True, ALL, how), 0)

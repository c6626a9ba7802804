"""The decision path: requests are prepared, decided together, and become records and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from fedres.draws import event_draws
from fedres.event_ids import new_event_ids
from fedres.scoring.explaining import explain
from fedres.scoring.features import Hashed, Named, Preparer, check_crosses
from fedres.scoring.flattening import FeatureError
from service.errors import ApiError
from service.learn.heads import CatalogueAction
from service.log.records import (
    RANK,
    CatalogueReference,
    DecisionExample,
    Entry,
    Example,
    InlineAction,
    LoggedRank,
    RankBody,
    Record,
    encode,
)
from service.models.personal import personal_key, read_personal
from service.models.published import Loop, Models
from service.ranking.choosing import NO_KEY, NO_MEMORY, Question, choose, policy_of
from service.ranking.requests import Action, Explained, Ranked, RankRequest, RankResult, Strongest, check_request

MOST_EXPLAINED = 20_000  # pairs of features whose parts are looked at for one call


class Prepared(NamedTuple):
    """A request with its features hashed."""

    request: RankRequest
    event_id: str
    rows: list[Hashed]  # the context, then each action


class Decision(NamedTuple):
    """What was decided, under which model and settings."""

    prepared: Prepared
    action: int
    probabilities: list[float]
    scores: list[float]
    policy_action: int | None  # what the policy drew, where an apprentice took the first action
    version: int
    settings: int

    def result(self) -> RankResult:
        """Return the answer."""
        ids = [action.id for action in self.prepared.request.actions]
        return answer(self.prepared.event_id, ids, self.action, self.probabilities, self.scores, self.version)

    def record(self, loop: Loop) -> Record:
        """Return what is logged."""
        request, action = self.prepared.request, self.action
        body = RankBody(
            msgspec.Raw(_context(request)),
            [
                InlineAction(offered.id, offered.features) if offered.features else _reference(offered.id, loop)
                for offered in request.actions
            ],
            action,
            self.probabilities,
            self.scores,
            self.version,
            self.settings,
            request.exclude,
            request.defer,
            self.policy_action,
        )
        return Record(loop.view.name, RANK, self.prepared.event_id, request.user, self._example(), encode(body))

    def _example(self) -> bytes:
        request, rows, action = self.prepared.request, self.prepared.rows, self.action
        context, taken = rows[0], rows[1 + action]
        features = Example(context.hashes + taken.hashes, context.values + taken.values, context.size)
        baseline = _allowed(request).index(True) if request.exclude else 0
        weight = 1 / self.probabilities[action] if action == baseline else 0.0
        agreed = None if self.policy_action is None else self.policy_action == action
        return DecisionExample(features, self.settings, weight, request.defer, agreed).encode()


def prepare_all(requests: Sequence[RankRequest], loop: Loop, preparer: Preparer) -> list[Prepared | ApiError]:
    """Hash all features that come with requests by one call; those of the catalogue are hashed once."""
    found: list[Prepared | ApiError] = []
    named: list[Named] = []
    known = loop.prepared
    for request, event_id in zip(requests, new_event_ids(len(requests)), strict=True):
        try:
            check_request(request)
            rows = [None, *[None if action.features else known.get(action.id) for action in request.actions]]
            new = [
                Named(f"actions[{k}]", action.id, features_of(action, loop.catalogue))
                for k, action in enumerate(request.actions)
                if rows[k + 1] is None
            ]
        except ApiError as error:
            found.append(error)
            continue
        named.append(Named("context", None, _context(request)))
        named += new
        found.append(Prepared(request, request.event_id or event_id, rows))  # type: ignore[arg-type]
    hashed = iter(preparer.hash_all(named))
    return [one if isinstance(one, ApiError) else _fill(one, hashed, loop) for one in found]


def _fill(prepared: Prepared, hashed: Iterator[Hashed | FeatureError], loop: Loop) -> Prepared | ApiError:
    """Put in the rows that were just hashed, and keep those of the catalogue."""
    error: FeatureError | None = None
    for k, known in enumerate(prepared.rows):
        if known is None:
            row = next(hashed)
            if isinstance(row, FeatureError):
                error = error or row
                continue
            prepared.rows[k] = row
            if k and not (action := prepared.request.actions[k - 1]).features and action.id in loop.catalogue:
                loop.prepared[action.id] = row
    return prepared if error is None else invalid_features(error)


def decide(
    requests: Sequence[RankRequest], loop: Loop, models: Models, preparer: Preparer
) -> list[Decision | ApiError]:
    """Return a decision on each request, or why it was refused. Rank, batch and slots all come here."""
    prepared = prepare_all(requests, loop, preparer)
    view, settings = loop.view, loop.view.settings
    if settings.crosses:
        prepared = [_checked(one, preparer) for one in prepared]
    good = [one for one in prepared if isinstance(one, Prepared)]
    if not good:
        return [one for one in prepared if isinstance(one, ApiError)]
    questions = [
        Question(one.rows, _allowed(one.request), u, _personal_key(one.request, loop))
        for one, u in zip(good, event_draws([one.event_id for one in good]), strict=True)
    ]
    memory = NO_MEMORY if models.memory is None else models.memory.words
    policy = policy_of(settings, view.statistics.learned)
    choices = iter(choose(questions, loop.weights, memory, policy, crosses=settings.crosses))
    decisions: list[Decision | ApiError] = []
    for one in prepared:
        if isinstance(one, ApiError):
            decisions.append(one)
            continue
        action, probabilities, scores = next(choices)
        policy_action = None
        if settings.apprentice:
            allowed = _allowed(one.request)
            policy_action, action = action, allowed.index(True) if allowed else 0
            probabilities = [float(k == action) for k in range(len(scores))]
        decisions.append(
            Decision(one, action, probabilities, scores, policy_action, view.version, view.settings_version)
        )
    return decisions


def _checked(prepared: Prepared | ApiError, preparer: Preparer) -> Prepared | ApiError:
    if isinstance(prepared, Prepared):
        try:
            n_context = prepared.rows[0].size
            check_crosses(n_context, sum([row.size for row in prepared.rows]) - n_context, preparer.limits)
        except FeatureError as error:
            return invalid_features(error)
    return prepared


def _personal_key(request: RankRequest, loop: Loop) -> tuple[int, int]:
    if request.user is None or not loop.view.settings.personal:
        return NO_KEY
    return personal_key(loop.view.id, request.user)


def _context(request: RankRequest) -> bytes:
    return bytes(request.context) or b"{}"


def _allowed(request: RankRequest) -> list[bool]:
    """Return which actions are not excluded; nothing where all are allowed."""
    if not request.exclude:
        return []
    excluded = set(request.exclude)
    return [action.id not in excluded for action in request.actions]


def features_of(action: Action, catalogue: Mapping[str, CatalogueAction]) -> bytes:
    """Return the features of an action as JSON: its own, those of the catalogue, or none, as its id is a feature."""
    if action.features:
        return bytes(action.features)
    known = catalogue.get(action.id)
    return b"{}" if known is None else known.features


def _reference(action_id: str, loop: Loop) -> CatalogueReference:
    """Return what is logged of an action named by its id; position 0 is none: it is not in the catalogue."""
    return loop.references.get(action_id) or CatalogueReference(action_id, 0)


def invalid_features(error: FeatureError) -> ApiError:
    return ApiError(422, "invalid_features", str(error), str(error).split(":", 1)[0])


def answer(
    event_id: str,
    ids: Sequence[str],
    action: int,
    probabilities: Sequence[float],
    scores: Sequence[float],
    version: int,
) -> RankResult:
    order = sorted(range(len(ids)), key=scores.__getitem__, reverse=True)  # equal scores stay in their order
    ranking = [Ranked(ids[k], probabilities[k], scores[k]) for k in order]
    return RankResult(event_id, ids[action], probabilities[action], ranking, version)


def repeated(request: RankRequest, entry: Entry, logged: LoggedRank) -> RankResult:
    """Return the logged answer to a request that is the same as the one it was given for."""
    same = (
        entry.user == request.user
        and bytes(logged.context) == _context(request)
        and logged.deferred == request.defer
        and logged.exclude == request.exclude
        and [(action.id, bytes(action.features)) for action in logged.actions]
        == [(action.id, bytes(action.features)) for action in request.actions]
    )
    if not same:
        message = f"event_id must be new or come with the same request, got {entry.event!r} with another"
        raise ApiError(409, "event_exists", message, "event_id")
    assert entry.event is not None
    ids = [action.id for action in logged.actions]
    return answer(entry.event, ids, logged.action, logged.probabilities, logged.scores, logged.version)


def explanations(prepared: Prepared, loop: Loop, models: Models, most: int = MOST_EXPLAINED) -> list[Explained]:
    """Return why each action scores as it does; refuse where that takes a look at more than ``most`` pairs."""
    request, rows = prepared.request, prepared.rows
    crosses = loop.view.settings.crosses
    n_pairs = sum((rows[0].size + 1) * (row.size + 1) for row in rows[1:]) if crosses else 0
    if n_pairs > most:
        message = f"explain must look at no more than {most} pairs of context and action features, got {n_pairs}"
        raise ApiError(422, "too_much_to_explain", message, "explain")
    personal = None
    if request.user is not None and loop.view.settings.personal and models.memory is not None:
        personal = read_personal(models.memory, loop.view.id, request.user)
    found = []
    for action in request.actions:
        features = features_of(action, loop.catalogue)
        why = explain(_context(request), (action.id, features), loop.weights, personal, crosses=crosses)
        found.append(Explained(action.id, why.shared, why.personal, [Strongest(*pair) for pair in why.strongest]))
    return found

"""The decision path: requests are prepared, decided together, and become records and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from fedres.checks import Array
from fedres.draws import event_draw, event_draws
from fedres.event_ids import new_event_ids
from fedres.scoring.features import Hashed, Named, Preparer, check_crosses
from fedres.scoring.flattening import FeatureError
from service.control_group import Control
from service.errors import ApiError
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
from service.models.loop_metadata import CatalogueAction
from service.models.personal import personal_key
from service.models.published import Loop, Models
from service.rank.choosing import NO_KEY, NO_MEMORY, Choice, Question, choose, policy_of
from service.rank.requests import Action, Ranked, RankRequest, RankResult, check_request

NOTHING: Mapping[str, Hashed] = {}
MOST_EXPLAINED = 20_000  # pairs of features whose parts are looked at for one call
CONTROL, TREATMENT, HELD = "control", "treatment", "held"  # arms; in the last the baseline decides for everybody


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
    arm: str | None = None  # control, treatment or held, where the loop has a control group

    def result(self) -> RankResult:
        """Return the answer."""
        ids = [action.id for action in self.prepared.request.actions]
        result = answer(self.prepared.event_id, ids, self.action, self.probabilities, self.scores, self.version)
        result.arm = self.arm
        return result

    def record(self, loop: Loop) -> Record:
        """Return what is logged."""
        request, action = self.prepared.request, self.action
        body = RankBody(
            msgspec.Raw(context_of(request)),
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
            self.arm,
        )
        example = self._example(loop.view.patience)
        return Record(loop.view.name, RANK, self.prepared.event_id, request.user, example, encode(body))

    def _example(self, patience: int | None) -> bytes:
        request, rows, action = self.prepared.request, self.prepared.rows, self.action
        context, taken = rows[0], rows[1 + action]
        features = Example(context.hashes + taken.hashes, context.values + taken.values, context.size, taken.fields)
        baseline = _allowed(request).index(True) if request.exclude else 0
        weight = 1 / self.probabilities[action] if action == baseline else 0.0
        agreed = None if self.policy_action is None else self.policy_action == action
        is_control = self.arm in (CONTROL, HELD)
        if request.defer or is_control:
            patience = None
        return DecisionExample(features, self.settings, weight, request.defer, agreed, is_control, patience).encode()


def prepare_all(
    requests: Sequence[RankRequest], loop: Loop, preparer: Preparer, hashed: Mapping[str, Hashed] = NOTHING
) -> list[Prepared | ApiError]:
    """Hash all features that come with requests by one call; those of the catalogue are hashed once.

    A request that comes alone may have actions that are ``hashed`` already, by id.
    """
    found: list[Prepared | ApiError] = []
    named: list[Named] = []
    known = loop.prepared
    for request, event_id in zip(requests, new_event_ids(len(requests)), strict=True):
        try:
            check_request(request)
            rows = [None, *[(hashed if action.features else known).get(action.id) for action in request.actions]]
            new = [
                Named(f"actions[{k}]", action.id, features_of(action, loop.catalogue))
                for k, action in enumerate(request.actions)
                if rows[k + 1] is None
            ]
        except ApiError as error:
            found.append(error)
            continue
        named.append(Named("context", None, context_of(request)))
        named += new
        found.append(Prepared(request, request.event_id or event_id, rows))  # type: ignore[arg-type]
    new_rows = iter(preparer.hash_all(named))
    return [one if isinstance(one, ApiError) else _fill(one, new_rows, loop) for one in found]


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
    requests: Sequence[RankRequest],
    loop: Loop,
    models: Models,
    preparer: Preparer,
    hashed: Mapping[str, Hashed] = NOTHING,
    most_explained: int = MOST_EXPLAINED,
) -> list[Decision | ApiError]:
    """Return a decision on each request, or why it was refused. Rank, batch and slots all come here.

    ``hashed`` is as in ``prepare_all``. To explain a decision may take a look at ``most_explained`` pairs of features.
    """
    prepared = prepare_all(requests, loop, preparer, hashed)
    view, settings = loop.view, loop.view.settings
    if settings.crosses:
        prepared = [_checked(one, preparer, most_explained) for one in prepared]
    good = [one for one in prepared if isinstance(one, Prepared)]
    if not good:
        return [one for one in prepared if isinstance(one, ApiError)]
    questions = [
        Question(one.rows, _allowed(one.request), u, _personal_key(one.request, loop))
        for one, u in zip(good, event_draws([one.event_id for one in good]), strict=True)
    ]
    memory = NO_MEMORY if models.memory is None else models.memory.words
    policy = policy_of(settings, 0 if view.knows_successes_only else loop.n_learned)
    choices = iter(choose(questions, loop.shared, memory, policy, crosses=settings.crosses))
    pinned = iter(_by_pinned(good, questions, loop, memory))
    decisions: list[Decision | ApiError] = []
    for one in prepared:
        if isinstance(one, ApiError):
            decisions.append(one)
            continue
        action, probabilities, scores = next(choices)
        decision = Decision(one, action, probabilities, scores, None, view.version, view.settings_version)
        if settings.apprentice:
            decision = _with_first(decision)._replace(policy_action=action)
        elif settings.control.share or settings.control.hold:
            decision = _in_its_arm(decision, settings.control, pinned)
        decisions.append(decision)
    return decisions


def _in_its_arm(decision: Decision, control: Control, pinned: Iterator[tuple[int, Choice]]) -> Decision:
    """Return what the baseline decides where the user is in the control group."""
    if not _is_in_control(decision.prepared, control):
        return decision._replace(arm=TREATMENT)
    if control.baseline == "pinned":
        version, (action, probabilities, scores) = next(pinned)
        decided = decision._replace(action=action, probabilities=probabilities, scores=scores, version=version)
    else:
        decided = _with_first(decision) if control.baseline == "first" else _with_any(decision)
    return decided._replace(arm=HELD if control.hold else CONTROL)


def _is_in_control(prepared: Prepared, control: Control) -> bool:
    request = prepared.request
    return bool(control.hold) or control.has(prepared.event_id if request.user is None else request.user)


def _by_pinned(
    good: Sequence[Prepared], questions: Sequence[Question], loop: Loop, memory: Array
) -> Iterator[tuple[int, Choice]]:
    """Yield the pinned model's version and choice for each of the control group, without users' own models."""
    settings, pinned = loop.view.settings, loop.pinned
    if settings.control.baseline != "pinned" or settings.apprentice:
        return
    each = zip(good, questions, strict=True)
    some = [asked._replace(key=NO_KEY) for one, asked in each if _is_in_control(one, settings.control)]
    if not some:
        return
    if pinned is None:
        raise ApiError(503, "starting", "the pinned model is not read yet; try again")
    policy = policy_of(settings, pinned.n_learned)
    for choice in choose(some, pinned.shared, memory, policy, crosses=settings.crosses):
        yield pinned.version, choice


def _with_first(decision: Decision) -> Decision:
    allowed = _allowed(decision.prepared.request)
    action = allowed.index(True) if allowed else 0
    return decision._replace(action=action, probabilities=[float(k == action) for k in range(len(decision.scores))])


def _with_any(decision: Decision) -> Decision:
    """Return a draw from all allowed actions, by the event's number."""
    allowed = _allowed(decision.prepared.request) or [True] * len(decision.scores)
    chosen = [k for k, one in enumerate(allowed) if one]
    action = chosen[int(event_draw(decision.prepared.event_id) * len(chosen))]
    return decision._replace(action=action, probabilities=[one / len(chosen) for one in allowed])


def _checked(prepared: Prepared | ApiError, preparer: Preparer, most_explained: int) -> Prepared | ApiError:
    if isinstance(prepared, ApiError):
        return prepared
    try:
        n_context = prepared.rows[0].size
        check_crosses(n_context, sum([row.size for row in prepared.rows]) - n_context, preparer.limits)
    except FeatureError as error:
        return invalid_features(error)
    if prepared.request.explain and (n_pairs := n_explained_pairs(prepared)) > most_explained:
        message = f"explain must look at no more than {most_explained} pairs of context and action features"
        return ApiError(422, "too_much_to_explain", f"{message}, got {n_pairs}", "explain")
    return prepared


def n_explained_pairs(prepared: Prepared) -> int:
    """Return how many pairs of features have to be looked at to explain a decision, where they are crossed."""
    context, *actions = [row.size + 1 for row in prepared.rows]
    return context * sum(actions)


def _personal_key(request: RankRequest, loop: Loop) -> tuple[int, int]:
    if request.user is None or not loop.view.settings.personal:
        return NO_KEY
    return personal_key(loop.view.id, request.user)


def context_of(request: RankRequest) -> bytes:
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
        and bytes(logged.context) == context_of(request)
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
    result = answer(entry.event, ids, logged.action, logged.probabilities, logged.scores, logged.version)
    result.arm = logged.arm
    return result

"""How decisions are made, top to bottom: prepare requests, choose actions for all at once, record, reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import msgspec
import numpy as np
from msgspec.structs import replace

from fedres.checks import Array
from fedres.draws import event_draws
from fedres.scoring.features import Hashed, Named, Preparer, check_crosses
from fedres.scoring.flattening import FeatureError
from fedres_client.event_ids import new_event_id
from service.errors import ApiError, invalid
from service.log.records import (
    EMPTY,
    RANK,
    CatalogueReference,
    DecisionExample,
    Entry,
    HashedExample,
    InlineAction,
    LoggedRank,
    RankBody,
    Record,
    encode,
)
from service.models.loop_metadata import CatalogueAction
from service.models.memory import Key, personal_key
from service.models.protocol import Policy, PublishedModel, RequestColumns
from service.models.published import Loop, PublishedModels
from service.rank.requests import (
    Action,
    PreparedRequest,
    Ranked,
    RankRequest,
    RankResult,
    are_plain_ids,
    check_actions,
    check_id,
    is_plain_id,
)

NO_ROWS: Mapping[str, Hashed] = {}
NO_KEY: Key = (0, 0)  # of requests without a user
NO_MEMORY: Array = np.zeros(8, np.uint64)
NO_MEMORY.flags.writeable = False  # read-only like the models' memory: kernels are compiled for such an array
Choice = tuple[int, list[float], list[float]]  # an action, the probabilities and the scores of all
CONTROL, TREATMENT, HELD = "control", "treatment", "held"  # arms; in the last the baseline decides for everybody


# The work of a decision, in microseconds, roughly: of a feature, and of a pair of one of the context and of an action.
FEATURE_WORK, PAIR_WORK = 0.7, 0.02
FEATURE_BYTES = 12  # of the JSON of a feature, usually
FEW_BYTES = 10_000  # of the features of all actions, which need not be looked at one by one


def work_of(request: RankRequest, loop: Loop) -> float:
    """Return how much work a decision is, by the bytes of its features."""
    actions = request.actions
    n_inline = sum([len(action.features) for action in actions])
    n_bytes = n_inline + len(actions) * loop.copied.largest
    if n_bytes > FEW_BYTES and loop.catalogue:
        listed = [loop.catalogue.get(action.id) for action in actions if not action.features]
        n_bytes = n_inline + sum([len(each.features) for each in listed if each is not None])
    n_features = n_bytes / FEATURE_BYTES + len(actions)
    n_context = len(request.context) / FEATURE_BYTES
    return (n_features + n_context) * FEATURE_WORK + n_features * n_context * PAIR_WORK


def decide(
    requests: Sequence[RankRequest],
    loop: Loop,
    models: PublishedModels,
    preparer: Preparer,
    hashed: Mapping[str, Hashed] = NO_ROWS,
) -> list[Decision | ApiError]:
    """Return a decision on each request, or its refusal. Used for rank calls, batches and slots.

    ``hashed`` are the hashed rows, by id, of actions with features.
    """
    prepared = prepare(requests, loop, preparer, hashed)
    good = [each for each in prepared if isinstance(each, PreparedRequest)]
    if not good:
        return [each for each in prepared if isinstance(each, ApiError)]
    view, settings = loop.view, loop.view.settings
    memory = NO_MEMORY if models.memory is None else models.memory.words
    choices = choose(good, loop.model, memory, loop.policy, crosses=settings.crosses)
    decisions = [
        Decision(each, action, probabilities, scores, None, view.version, view.settings_version)
        for each, (action, probabilities, scores) in zip(good, choices, strict=True)
    ]
    if settings.apprentice:
        decisions = [replace(first_action(each), policy_action=each.action) for each in decisions]
    elif settings.control.share or settings.control.hold:
        decisions = in_arms(decisions, loop)
    if len(good) == len(prepared):
        return [*decisions]
    rest = iter(decisions)
    return [each if isinstance(each, ApiError) else next(rest) for each in prepared]


def prepare(
    requests: Sequence[RankRequest], loop: Loop, preparer: Preparer, hashed: Mapping[str, Hashed] = NO_ROWS
) -> list[PreparedRequest | ApiError]:
    """Check requests and hash their features, all by one call; actions of the catalogue are hashed once.

    ``hashed`` is as in ``decide``.
    """
    accepted: list[tuple[RankRequest, list[Any], list[int]] | ApiError] = []
    event_ids: list[str] = []
    to_hash: list[Named] = []
    for request in requests:
        try:
            check_request(request)
        except ApiError as refusal:
            accepted.append(refusal)
            continue
        actions = request.actions
        rows: list[Any] = [None, *[(hashed if action.features else loop.prepared).get(action.id) for action in actions]]
        missing = [place for place, row in enumerate(rows) if row is None]
        accepted.append((request, rows, missing))
        event_ids.append(request.event_id or new_event_id())
        to_hash.append(Named("context", None, bytes(request.context) or EMPTY))
        for place in missing[1:]:
            action = actions[place - 1]
            to_hash.append(Named(f"actions[{place - 1}]", action.id, features_of(action, loop.catalogue)))
    new_rows = iter(preparer.hash_all(to_hash))
    settings = loop.view.settings
    draws = event_draws(event_ids, settings.draw_prefix(loop.view.name))
    events = zip(event_ids, draws, strict=True)
    prepared: list[PreparedRequest | ApiError] = []
    for each in accepted:
        if isinstance(each, ApiError):
            prepared.append(each)
            continue
        request, rows, missing = each
        event_id, draw = next(events)
        error: FeatureError | None = None
        for place in missing:
            row = rows[place] = next(new_rows)
            if isinstance(row, FeatureError):
                error = error or row
            elif place and not (action := request.actions[place - 1]).features and action.id in loop.catalogue:
                loop.prepared[action.id] = row  # for the next request
        if error is None:
            try:
                n_context = rows[0].size if settings.crosses else 0
                check_crosses(n_context, sum([row.size for row in rows[1:]]), preparer.limits)
            except FeatureError as too_many:
                error = too_many
        if error is not None:
            prepared.append(invalid_features(error))
            continue
        user, excluded = request.user, set(request.exclude)
        key = NO_KEY if user is None or not settings.personal else personal_key(loop.id, user)
        allowed = [action.id not in excluded for action in request.actions] if excluded else []
        prepared.append(PreparedRequest(request, event_id, rows, allowed, draw, key))
    return prepared


def choose(
    prepared: Sequence[PreparedRequest], model: PublishedModel, memory: Array, policy: Policy, *, crosses: bool
) -> list[Choice]:
    """Return a choice for each request, all by one compiled call; ``memory`` has the users' models."""
    rows = [row for each in prepared for row in each.rows]
    n_actions = [len(each.rows) - 1 for each in prepared]
    allowed = all_allowed(sum(n_actions))
    if any(each.allowed for each in prepared):
        flags = [each.allowed or [True] * size for each, size in zip(prepared, n_actions, strict=True)]
        allowed = np.array([flag for request_flags in flags for flag in request_flags], np.bool_)
    columns = RequestColumns(
        np.array(n_actions, np.int64),
        np.array([row.size for row in rows], np.int64),
        np.frombuffer(b"".join([row.hashes for row in rows]), np.uint32),
        np.frombuffer(b"".join([row.values for row in rows]), np.float32),
        np.frombuffer(b"".join([row.fields for row in rows]), np.uint32),
        np.array([word for each in prepared for word in each.key], np.int64).reshape(-1, 2),
        allowed,
        np.array([each.draw for each in prepared]),
    )
    try:
        actions, numbers = model.choose(columns, memory, policy, crosses)
    except AttributeError as error:
        # Numba raises this for a tuple if memory is short.
        raise MemoryError from error
    probabilities, scores = numbers.tolist()
    choices, first = [], 0
    for action, size in zip(actions.tolist(), n_actions, strict=True):
        last = first + size
        choices.append((action, probabilities[first:last], scores[first:last]))
        first = last
    return choices


@lru_cache(maxsize=10_000)
def all_allowed(n: int) -> Array:
    return np.ones(n, np.bool_)


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A decision, with the versions of the model and the settings behind it."""

    prepared: PreparedRequest
    action: int
    probabilities: list[float]
    scores: list[float]
    # The action that the policy drew, if an apprentice took the first one.
    policy_action: int | None
    version: int
    settings: int
    arm: str | None = None  # control, treatment or held, where the loop has a control group

    def record(self, loop: Loop) -> Record:
        """Return the log record: a body for readers, and an example for the learner."""
        prepared, request, action = self.prepared, self.prepared.request, self.action
        body = RankBody(
            msgspec.Raw(bytes(request.context) or EMPTY),
            [
                InlineAction(each.id, each.features)
                if each.features
                else loop.references.get(each.id) or CatalogueReference(each.id, 0)  # 0: not in the catalogue
                for each in request.actions
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
        context, taken = prepared.rows[0], prepared.rows[1 + action]
        baseline = prepared.allowed.index(True) if prepared.allowed else 0  # the first action that is allowed
        is_control = self.arm in (CONTROL, HELD)
        example = DecisionExample(
            HashedExample(context.hashes + taken.hashes, context.values + taken.values, context.size, taken.fields),
            self.settings,
            1 / self.probabilities[action] if action == baseline else 0.0,
            request.defer,
            None if self.policy_action is None else self.policy_action == action,
            is_control,
            None if request.defer or is_control else loop.learn_after,
        )
        return Record(loop.view.name, RANK, prepared.event_id, request.user, example.encode(), encode(body))

    def result(self) -> RankResult:
        """Return the reply, the best score first."""
        prepared, probabilities, scores = self.prepared, self.probabilities, self.scores
        ids = [action.id for action in prepared.request.actions]
        order = sorted(range(len(ids)), key=scores.__getitem__, reverse=True)  # equal scores stay in their order
        ranking = [Ranked(ids[k], probabilities[k], scores[k]) for k in order]
        action = self.action
        return RankResult(prepared.event_id, ids[action], probabilities[action], ranking, self.version, self.arm)


# Checks


def check_request(request: RankRequest) -> None:
    """Refuse ids that are too long or repeated, and a request without allowed actions."""
    ids = [action.id for action in request.actions]
    joined = "\0".join(ids)
    if len({*ids}) < len(ids) or joined.count("\0") >= len(ids) or not are_plain_ids(joined):
        check_actions(request.actions)
    if request.user is not None and not is_plain_id(request.user):
        check_id("user", request.user)
    if request.event_id is not None and not is_plain_id(request.event_id):
        check_id("event_id", request.event_id)
    if request.exclude and {*ids} <= {*request.exclude}:
        raise invalid(f"exclude must leave at least one action, got all {len(ids)} of them", "exclude")


def invalid_features(error: FeatureError) -> ApiError:
    return ApiError(422, "invalid_features", str(error), str(error).split(":", 1)[0])


def joined(context: Hashed, action: Hashed) -> HashedExample:
    """Return the features of a context and of the action taken in it, as logged."""
    return HashedExample(context.hashes + action.hashes, context.values + action.values, context.size, action.fields)


def example_at(at: str, rows: Sequence[Hashed | FeatureError], loop: Loop, preparer: Preparer) -> HashedExample:
    """Return a hashed context and action as one example; ``at`` is their place for error messages."""
    for row in rows:
        if isinstance(row, FeatureError):
            raise invalid_features(row)
    context, action = cast(Sequence[Hashed], rows)
    if loop.view.settings.crosses:
        try:
            check_crosses(context.size, action.size, preparer.limits)
        except FeatureError as error:
            raise ApiError(422, "invalid_features", f"{at}: {error}", at) from None
    return joined(context, action)


def features_of(action: Action, catalogue: Mapping[str, CatalogueAction]) -> bytes:
    """Return the features of an action as JSON: its own, else the catalogue's, else none (its id is a feature)."""
    if action.features:
        return bytes(action.features)
    listed = catalogue.get(action.id)
    return EMPTY if listed is None else listed.features


# Control groups and apprentices: a baseline decides


def in_arms(decisions: Sequence[Decision], loop: Loop) -> list[Decision]:
    """Return the decisions with their arm; in the control group, those of the baseline."""
    control = loop.view.settings.control
    name = loop.view.name
    in_control = [control.decides_for(name, each.prepared.request.user or each.prepared.event_id) for each in decisions]
    of_control = [each for each, is_in in zip(decisions, in_control, strict=True) if is_in]
    of_control = [*map(first_action if control.baseline == "first" else any_action, of_control)]
    arm, baseline = HELD if control.hold else CONTROL, iter(of_control)
    return [
        replace(next(baseline), arm=arm) if is_in else replace(each, arm=TREATMENT)
        for each, is_in in zip(decisions, in_control, strict=True)
    ]


def first_action(decision: Decision) -> Decision:
    """Return the decision for the first action that is not excluded."""
    allowed = decision.prepared.allowed
    action = allowed.index(True) if allowed else 0
    return replace(decision, action=action, probabilities=[float(k == action) for k in range(len(decision.scores))])


def any_action(decision: Decision) -> Decision:
    """Return a draw from all allowed actions, by the event's number."""
    allowed = decision.prepared.allowed or [True] * len(decision.scores)
    places = [k for k, is_allowed in enumerate(allowed) if is_allowed]
    action = places[int(decision.prepared.draw * len(places))]
    return replace(decision, action=action, probabilities=[is_allowed / len(places) for is_allowed in allowed])


# A repeat of an event id


def repeated(request: RankRequest, entry: Entry, logged: LoggedRank) -> RankResult:
    """Return the logged reply to a repeated request; refuse a different request with this event id."""
    same = (
        entry.user == request.user
        and bytes(logged.context) == (bytes(request.context) or EMPTY)
        and logged.deferred == request.defer
        and logged.exclude == request.exclude
        and [(action.id, bytes(action.features)) for action in logged.actions]
        == [(action.id, bytes(action.features)) for action in request.actions]
    )
    if not same:
        message = f"event_id {entry.event!r} was already used with a different request"
        raise ApiError(409, "event_exists", message, "event_id")
    return logged_decision(entry, logged, request).result()


def logged_decision(entry: Entry, logged: LoggedRank, request: RankRequest) -> Decision:
    """Return a logged decision, without its features; the current settings do not matter."""
    prepared = PreparedRequest(request, str(entry.event), [], [], 0.0, NO_KEY)
    choice = logged.action, logged.probabilities, logged.scores
    return Decision(prepared, *choice, logged.policy_action, logged.version, logged.settings, logged.arm)

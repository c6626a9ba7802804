"""Decisions on many requests at once, as ``deciding`` makes them one by one: the answers and the records, written.

Here no structure is made of a decision. Its numbers become text once, and that goes into the answer and the record.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.event_ids import draws, new_event_ids
from fedres.scoring.features import Preparer
from fedres.scoring.flattening import FeatureError
from fedres.scoring.model import PersonalModel
from service.engine.answers import written
from service.engine.choosing import ALL, Asked, choose_together, how_to_choose
from service.engine.deciding import Offer, RankRequest, Shown, View, Where, allowed_in, check_request
from service.engine.handed import Known, known_body
from service.engine.joining import Case
from service.engine.records import RANK, encode
from service.errors import ApiError
from service.store import Record


class Written(msgspec.Struct, frozen=True, gc=False):
    """A decision: what goes out, once what goes into the log is there."""

    answer: bytes
    record: Record


class Undecided(msgspec.Struct, frozen=True, gc=False):
    """A request to decide on."""

    place: int  # among those that were asked together
    request: RankRequest
    personal: PersonalModel | None


class Readied(Asked, frozen=True, gc=False):
    """A request with all that a decision needs."""

    place: int
    request: RankRequest
    event_id: str
    text: bytes  # the context as JSON
    shown: Shown


def readied(asked: Sequence[Undecided], view: View, preparer: Preparer, where: Where) -> list[Readied]:
    """Return requests for ``decide_all``, but those that ``deciding.decide`` would refuse."""
    if not asked:
        return []
    texts = [bytes(one.request.context) or b"{}" for one in asked]
    ids = [one.request.event_id or new for one, new in zip(asked, new_event_ids(len(asked)), strict=True)]
    found = []
    for one, text, plain, event_id, u in zip(asked, texts, preparer.contexts(texts), ids, draws(ids), strict=True):
        request = one.request
        try:
            check_request(request)
            offer = request.actions if isinstance(request.actions, Offer) else Offer(request.actions)
            ready = offer.ready(view, preparer)
            context, hashed = preparer.hashed(plain or text, ready.hashed if ready else offer.given(view))
            if ready is None:
                shown = offer.shown(view, where(offer, offer.given(view), request.user, view))
                ready = offer.readied(view, preparer, hashed, shown)
        except (ApiError, FeatureError):
            continue
        found.append(Readied(context, hashed, one.personal, u, one.place, request, event_id, text, ready.shown))
    return found


def decide_all(asked: Sequence[Readied], view: View) -> list[Written]:
    """Return the decisions on requests of one loop, whose answers explain nothing."""
    if not asked:
        return []
    settings, excluding = view.settings, any(one.request.exclude for one in asked)
    allowed = np.concatenate([allowed_in(one.request) for one in asked]) if excluding else ALL
    how = how_to_choose(settings, view.statistics.learned)
    places, numbers = choose_together(asked, view.weights, settings.crosses, allowed, how)
    wished: list[int | None] = [None] * len(asked)
    if settings.apprentice:
        wished = places[: len(asked)].tolist()
        _take_first(asked, places, numbers)
    taken = places[: len(asked)].tolist()
    texts = written([one.event_id for one in asked], [one.shown.ids for one in asked], places, numbers, view.version)
    end, first, found = _end(view, [], False, None), 0, []
    for one, action, wish, answer, chances, scores in zip(asked, taken, wished, *texts, strict=True):
        case = _case(one, action, 0.0 if action else 1 / float(numbers[first]))
        found.append(Written(answer, _record(one, view, action, wish, chances, scores, end, case)))
        first += len(one.offer.places) - 1
    return found


def _take_first(asked: Sequence[Readied], places: Array, numbers: Array) -> None:
    """Let an apprentice take the first action that is not excluded, whatever was drawn."""
    first = 0
    for k, one in enumerate(asked):
        last = first + len(one.request.actions)
        places[k] = allowed_in(one.request).argmax()
        numbers[first:last] = 0
        numbers[first + places[k]] = 1
        first = last


def _record(
    one: Readied, view: View, action: int, wished: int | None, chances: bytes, scores: bytes, end: bytes, case: Case
) -> Record:
    """Return a ``RankBody`` as JSON, and with it what the learner needs, as ``handed`` does."""
    request = one.request
    if request.exclude or request.defer or wished is not None:
        end = _end(view, request.exclude, request.defer, wished)
    taken = b',"action":%d,"probabilities":[' % action
    parts = (b'{"context":', one.text, b',"actions":', one.shown.logged, taken, chances, b'],"scores":[', scores, end)
    body = b"".join(parts)
    if not request.exclude:
        body = known_body(body, Known(case, request.defer, None if wished is None else wished == action))
    return Record(view.name, RANK, one.event_id, request.user, body)


def _end(view: View, exclude: list[str], deferred: bool, wished: int | None) -> bytes:
    """Return the end of a ``RankBody``."""
    return b'],"version":%d,"settings":%d,"exclude":%b,"deferred":%b,"wished":%b}' % (
        view.version,
        view.settings_version,
        encode(exclude),
        encode(deferred),
        encode(wished),
    )


def _case(one: Readied, action: int, baseline_weight: float) -> Case:
    context, offer = one.context, one.offer
    first, last = offer.places[action], offer.places[action + 1]
    hashes, values = context.hashes + offer.hashes[first:last], context.values + offer.values[first:last]
    return Case(one.request.user, hashes, values, len(context.hashes) // 4, baseline_weight)

"""Decisions on many requests at once, as ``deciding`` makes them one by one: the answers and the records, written.

Here no structure is made of a decision. Its numbers become text once, and that goes into the answer and the record.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from service.engine.choosing import ALL, Asked, choose_together, how_to_choose
from service.engine.deciding import Offer, RankRequest, Shown, View, allowed_in, check_request, draw
from service.engine.event_ids import new_event_id
from service.engine.handed import Known, known_body
from service.engine.joining import Case
from service.engine.records import RANK, encode
from service.scoring.features import Preparer
from service.scoring.model import PersonalModel
from service.store import Record


class Written(msgspec.Struct, frozen=True, gc=False):
    """A decision: what goes out, once what goes into the log is there."""

    answer: bytes
    record: Record


class Readied(Asked, frozen=True, gc=False):
    """A request with all that a decision needs."""

    request: RankRequest
    event_id: str
    text: bytes  # the context as JSON
    shown: Shown


def readied(request: RankRequest, view: View, personal: PersonalModel | None, preparer: Preparer) -> Readied:
    """Return a request for ``decide_all``; what ``deciding.decide`` would refuse raises here too."""
    check_request(request)
    offer = request.actions if isinstance(request.actions, Offer) else Offer(request.actions)
    shown, text = offer.shown(view), bytes(request.context) or b"{}"
    event_id = request.event_id or new_event_id()
    context, hashed = preparer.hashed(text, shown.given)
    return Readied(context, hashed, personal, draw(event_id), request, event_id, text, shown)


def decide_all(asked: Sequence[Readied], view: View) -> list[Written]:
    """Return the decisions on requests of one loop, whose answers explain nothing."""
    if not asked:
        return []
    settings, excluding = view.settings, any(one.request.exclude for one in asked)
    allowed = np.concatenate([allowed_in(one.request) for one in asked]) if excluding else ALL
    how = how_to_choose(settings, view.statistics.learned)
    chosen = choose_together(asked, view.weights, settings.crosses, allowed, how)
    texts, n, written, first = _texts(chosen.numbers), len(chosen.order), [], 0
    for one, action in zip(asked, chosen.drawn, strict=True):
        last = first + len(one.shown.ids)
        order, chances, scores = chosen.order[first:last], texts[first:last], texts[n + first : n + last]
        written.append(_written(one, view, action, order, chances, scores))
        first = last
    return written


def _texts(numbers: list[float]) -> list[str]:
    """Return each number as JSON."""
    return encode(numbers)[1:-1].decode().split(",")


def _written(one: Readied, view: View, action: int, order: list[int], chances: list[str], scores: list[str]) -> Written:
    wished = None
    if view.settings.apprentice:
        wished, action = action, int(allowed_in(one.request).argmax())
        chances = ["1.0" if k == action else "0.0" for k in range(len(chances))]
    body = _body(one, view, action, wished, chances, scores)
    record = Record(view.name, RANK, one.event_id, one.request.user, body)
    return Written(_answer(one, view.version, action, order, chances, scores), record)


def _answer(one: Readied, version: int, action: int, order: list[int], chances: list[str], scores: list[str]) -> bytes:
    """Return a ``RankResult`` as JSON."""
    ids, event_id = one.shown.ids, encode(one.event_id).decode()
    ranking = "},{".join([f'"id":{ids[k]},"probability":{chances[k]},"score":{scores[k]}' for k in order])
    return (
        f'{{"event_id":{event_id},"action":{ids[action]},"probability":{chances[action]},'
        f'"ranking":[{{{ranking}}}],"model_version":{version}}}'
    ).encode()


def _body(one: Readied, view: View, action: int, wished: int | None, chances: list[str], scores: list[str]) -> bytes:
    """Return a ``RankBody`` as JSON, and with it what the learner needs, as ``handed`` does."""
    request = one.request
    exclude = encode(request.exclude).decode() if request.exclude else "[]"
    numbers = (
        f',"action":{action},"probabilities":[{",".join(chances)}],"scores":[{",".join(scores)}],'
        f'"version":{view.version},"settings":{view.settings_version},"exclude":{exclude},'
        f'"deferred":{"true" if request.defer else "false"},"wished":{"null" if wished is None else wished}}}'
    )
    body = b"".join((b'{"context":', one.text, b',"actions":', one.shown.logged, numbers.encode()))
    if request.exclude:
        return body
    context, offer = one.context, one.offer
    first, last = offer.places[action], offer.places[action + 1]
    hashes, values = context.hashes + offer.hashes[first:last], context.values + offer.values[first:last]
    case = Case(request.user, hashes, values, len(context.hashes) // 4, 0.0 if action else 1 / float(chances[0]))
    return known_body(body, Known(case, request.defer, None if wished is None else wished == action))

"""Decisions on many requests at once, as ``deciding`` makes them one by one: the answers and the records, written.

Here no structure is made of a decision. Its numbers become text once, and that goes into the answer and the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from service.engine.choosing import Chosen, arrays_of_all, choose_together, how_to_choose
from service.engine.deciding import Offer, RankRequest, Shown, View, allowed_in, check_request, draw
from service.engine.event_ids import new_event_id
from service.engine.handed import Known, known_body
from service.engine.joining import Case
from service.engine.records import RANK, encode
from service.scoring.features import Hashed, HashedOffer, Preparer
from service.scoring.model import PersonalModel
from service.store import Record


class Written(NamedTuple):
    """A decision: what goes out, once what goes into the log is there."""

    answer: bytes
    record: Record


class Readied(NamedTuple):
    """A request with all that a decision needs."""

    request: RankRequest
    event_id: str
    context: bytes
    shown: Shown
    hashed: tuple[Hashed, HashedOffer]  # the context's features, and the actions'
    personal: PersonalModel | None


class Texts(NamedTuple):
    """What was chosen, the numbers as JSON."""

    action: int
    wished: int | None  # what the policy drew, where the loop is an apprentice
    order: list[int]  # of the actions, the best first
    chances: list[str]
    scores: list[str]


def readied(request: RankRequest, view: View, personal: PersonalModel | None, preparer: Preparer) -> Readied:
    """Return a request for ``decide_all``; what ``deciding.decide`` would refuse raises here too."""
    check_request(request)
    offer = request.actions if isinstance(request.actions, Offer) else Offer(request.actions)
    shown, context = offer.shown(view), bytes(request.context) or b"{}"
    hashed = preparer.hashed(context, shown.given)
    return Readied(request, request.event_id or new_event_id(), context, shown, hashed, personal)


def decide_all(asked: Sequence[Readied], view: View) -> list[Written]:
    """Return the decisions on requests of one loop, whose answers explain nothing."""
    if not asked:
        return []
    chosen = _chosen(asked, view)
    drawn, order, chances, scores = chosen.drawn.tolist(), chosen.order.tolist(), *map(_texts, chosen[2:])
    written, first = [], 0
    for one, action in zip(asked, drawn, strict=True):
        last = first + len(one.shown.ids)
        texts = Texts(action, None, order[first:last], chances[first:last], scores[first:last])
        written.append(_written(one, view, _as_apprentice(one, texts) if view.settings.apprentice else texts))
        first = last
    return written


def _chosen(asked: Sequence[Readied], view: View) -> Chosen:
    models = arrays_of_all(view.weights, [one.personal for one in asked])
    how = how_to_choose(view.settings, view.statistics.learned)
    u = [draw(one.event_id) for one in asked]
    return choose_together([one.hashed for one in asked], models, view.settings.crosses, _allowed(asked), how, u)


def _allowed(asked: Sequence[Readied]) -> Array:
    if any(one.request.exclude for one in asked):
        return np.concatenate([allowed_in(one.request) for one in asked])
    return np.ones(sum([len(one.shown.ids) for one in asked]), dtype=bool)


def _texts(numbers: Array) -> list[str]:
    """Return each number as JSON."""
    return encode(numbers.tolist())[1:-1].decode().split(",")


def _as_apprentice(one: Readied, texts: Texts) -> Texts:
    """Return the choice of the first action that is allowed."""
    first = int(allowed_in(one.request).argmax())
    chances = ["1.0" if k == first else "0.0" for k in range(len(texts.chances))]
    return texts._replace(action=first, wished=texts.action, chances=chances)


def _written(one: Readied, view: View, texts: Texts) -> Written:
    record = Record(view.name, RANK, one.event_id, one.request.user, _body(one, view, texts))
    return Written(_answer(one, view.version, texts), record)


def _answer(one: Readied, version: int, texts: Texts) -> bytes:
    """Return a ``RankResult`` as JSON."""
    ids, (action, _, order, chances, scores) = one.shown.ids, texts
    event_id = encode(one.event_id).decode()
    ranking = "},{".join([f'"id":{ids[k]},"probability":{chances[k]},"score":{scores[k]}' for k in order])
    return (
        f'{{"event_id":{event_id},"action":{ids[action]},"probability":{chances[action]},'
        f'"ranking":[{{{ranking}}}],"model_version":{version}}}'
    ).encode()


def _body(one: Readied, view: View, texts: Texts) -> bytes:
    """Return a ``RankBody`` as JSON, as ``handed`` does."""
    request, (action, wished, _, chances, scores) = one.request, texts
    exclude = encode(request.exclude).decode() if request.exclude else "[]"
    numbers = (
        f',"action":{action},"probabilities":[{",".join(chances)}],"scores":[{",".join(scores)}],'
        f'"version":{view.version},"settings":{view.settings_version},"exclude":{exclude},'
        f'"deferred":{"true" if request.defer else "false"},"wished":{"null" if wished is None else wished}}}'
    )
    body = b"".join((b'{"context":', one.context, b',"actions":', one.shown.logged, numbers.encode()))
    if request.exclude:
        return body
    row, offer = one.hashed
    (hashes, values), weight = offer.row(action), 0.0 if action else 1 / float(chances[0])
    case = Case(request.user, row.hashes + hashes, row.values + values, len(row.hashes) // 4, weight)
    return known_body(body, Known(case, request.defer, None if wished is None else wished == action))

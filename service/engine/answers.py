"""Answers to many requests as JSON, put together from texts by a compiled loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.local_learners.adagrad import kernel

_COMMA = ord(",")


def _bytes(text: bytes) -> Array:
    return np.frombuffer(text, np.uint8)


_EVENT, _ACTION, _CHANCE = _bytes(b'{"event_id":'), _bytes(b',"action":'), _bytes(b',"probability":')
_RANKING, _ID, _SCORE = _bytes(b',"ranking":['), _bytes(b'{"id":'), _bytes(b',"score":')
_NEXT, _VERSION, _END = _bytes(b"},"), _bytes(b'}],"model_version":'), _bytes(b"}")
_AROUND = 150  # bytes of an answer beside its ids and numbers, at most
_AROUND_EACH = 40  # of an action


class Ids(msgspec.Struct, frozen=True, gc=False):
    """The ids of a list of actions as JSON, one after the other."""

    text: bytes
    sizes: bytes  # native int64, in bytes


class Texts(NamedTuple):
    """For each request, one after the other."""

    answers: list[bytes]
    chances: list[bytes]  # of its actions, with commas between them
    scores: list[bytes]


def written(events: Sequence[str], ids: Sequence[Ids], places: Array, numbers: Array, version: int) -> Texts:
    """Return a ``RankResult`` as JSON for each request, and its numbers, from what ``choose_together`` returned."""
    n_requests, n_numbers = len(events), numbers.size
    event_texts = [msgspec.json.encode(event) for event in events]
    text, id_text = msgspec.json.encode(numbers.tolist()), b"".join([one.text for one in ids])
    sizes = [*map(len, event_texts), *[len(one.sizes) // 8 for one in ids]]
    n_around = n_requests * _AROUND + n_numbers * _AROUND_EACH
    out = np.empty(2 * (len(text) + len(id_text)) + sum(sizes) + n_around, np.uint8)
    cuts = np.empty((5, n_requests), np.int64)
    write_kernel(
        _bytes(text),
        _bytes(id_text),
        np.frombuffer(b"".join([one.sizes for one in ids]), np.int64),
        _bytes(b"".join(event_texts)),
        np.array(sizes, np.int64),
        _bytes(b"%d" % version),
        places,
        out,
        cuts,
    )
    ends, *of_numbers = cuts.tolist()
    return Texts(_cut(out.tobytes(), [0, *ends[:-1]], ends), _cut(text, *of_numbers[:2]), _cut(text, *of_numbers[2:]))


def _cut(text: bytes, starts: list[int], ends: list[int]) -> list[bytes]:
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


@kernel
def _put(out: Array, at: int, text: Array) -> int:
    for k in range(text.size):
        out[at + k] = text[k]
    return at + text.size


@kernel
def write_kernel(
    text: Array,
    id_text: Array,
    id_sizes: Array,
    events: Array,
    sizes: Array,  # bytes of each request's event id, then how many actions each has
    version: Array,
    places: Array,
    out: Array,
    cuts: Array,
) -> None:
    """Fill in the answers, and for each request the end of its answer and where its chances and its scores are."""
    n_requests, n = cuts.shape[1], id_sizes.size
    numbers, id_starts = np.empty(2 * n + 1, np.int64), np.empty(n + 1, np.int64)
    numbers[0], found = 1, 1  # after the bracket
    for k in range(text.size):
        if text[k] == _COMMA:
            numbers[found], found = k + 1, found + 1
    numbers[found] = text.size  # the bracket counts as a comma
    id_starts[0] = 0
    for k in range(n):
        id_starts[k + 1] = id_starts[k] + id_sizes[k]
    at, event, first = 0, 0, 0
    for k in range(n_requests):
        last, taken = first + sizes[n_requests + k], first + places[k]
        at = _put(out, at, _EVENT)
        at = _put(out, at, events[event : event + sizes[k]])
        at = _put(out, at, _ACTION)
        at = _put(out, at, id_text[id_starts[taken] : id_starts[taken + 1]])
        at = _put(out, at, _CHANCE)
        at = _put(out, at, text[numbers[taken] : numbers[taken + 1] - 1])
        at = _put(out, at, _RANKING)
        for place in range(first, last):
            this = first + places[n_requests + place]
            if place > first:
                at = _put(out, at, _NEXT)
            at = _put(out, at, _ID)
            at = _put(out, at, id_text[id_starts[this] : id_starts[this + 1]])
            at = _put(out, at, _CHANCE)
            at = _put(out, at, text[numbers[this] : numbers[this + 1] - 1])
            at = _put(out, at, _SCORE)
            at = _put(out, at, text[numbers[n + this] : numbers[n + this + 1] - 1])
        at = _put(out, at, _VERSION)
        at = _put(out, at, version)
        at = _put(out, at, _END)
        cuts[0, k] = at
        cuts[1, k], cuts[2, k] = numbers[first], numbers[last] - 1
        cuts[3, k], cuts[4, k] = numbers[n + first], numbers[n + last] - 1
        event, first = event + sizes[k], last

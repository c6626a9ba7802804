"""How ``residual-kalman`` lies in shared memory: the arrays that predicting needs, one after the other.

First a head of words of 8 bytes: whether the start is over, events learned, the least reward and the span of the
rewards, the position from which personal models count; then the shape of each array, in the order of ``Shared``, and
the arrays, each from a whole word on.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.decisions.kalman_state import BLOCKS, LEARNED, LEARNING_ONLY, Shared, new_shared
from fedres.decisions.residual_kalman import ResidualKalman
from fedres.local_learners.adagrad import kernel
from fedres.scoring.batch import CHUNK_BITS

HEAD, DIMENSIONS = 5, 3  # words before the shapes; of a shape
WHOLE: Array = np.zeros(1, np.int64)  # the only row of an array that is copied as a whole
PUBLISHED = tuple(name for name in Shared._fields if name not in LEARNING_ONLY)


class PublishedKalman(NamedTuple):
    """The shared model as rankers have it."""

    shared: Shared
    settled: bool  # whether the start is over; before, all actions are alike
    learned: int
    low: float
    span: float
    model_replaced_at: int  # personal models that learned last before this position are of another shared model


@lru_cache(maxsize=1)
def template() -> Shared:
    """Return a model with all arrays at their smallest."""
    return new_shared(1, 1.0, 2, 1)


def _places(shapes: Array) -> list[tuple[str, Any, tuple[int, ...], int]]:
    """Return name, type, shape and first word of each array."""
    found, first = [], HEAD + DIMENSIONS * len(PUBLISHED)
    for name, row in zip(PUBLISHED, shapes.tolist(), strict=True):
        like = getattr(template(), name)
        shape = tuple(row[: like.ndim])
        found.append((name, like.dtype, shape, first))
        first += (math.prod(shape) * like.dtype.itemsize + 7) // 8
    return found


class KalmanPublication:
    """The learner's side: ``words`` as they are to be published, ``changed`` by chunks since they last were."""

    def __init__(self) -> None:
        self.words: Array = np.zeros(0, np.uint64)
        self.changed: Array = np.zeros(0, np.uint8)
        self._arrays: dict[str, Array] = {}
        self._learned = 0  # events, when rows of blocks were last looked at
        self._means: Array | None = None  # of the model that they were of: first events may be learned again by another

    def update(self, model: ResidualKalman, model_replaced_at: int) -> None:
        """Take in what has changed."""
        shared = model.shared or template()
        shapes = np.zeros((len(PUBLISHED), DIMENSIONS), np.int64)
        for k, name in enumerate(PUBLISHED):
            shapes[k, : getattr(shared, name).ndim] = getattr(shared, name).shape
        head = np.zeros(HEAD, np.uint64)
        head[:2] = model.shared is not None, model.learned
        head[2:4] = np.array([model.low, model.span]).view(np.uint64)
        head[4] = model_replaced_at
        if not np.array_equal(shapes.ravel(), self.words[HEAD : HEAD + shapes.size].view(np.int64)):
            self._make_room(shapes)
        self._copy(head[None], self.words[None, :HEAD], WHOLE)
        if shared.means is not self._means:
            self._means, self._learned = shared.means, 0
        used = shared.block_used[: shared.counts[BLOCKS]]
        rows = np.flatnonzero(used >= self._learned)
        for name, into in self._arrays.items():
            if name in ("means", "covariances"):
                self._copy(getattr(shared, name), into, rows)
            else:
                self._copy(getattr(shared, name)[None], into[None], WHOLE)
        self._learned = int(shared.counts[LEARNED])

    def _make_room(self, shapes: Array) -> None:
        places = _places(shapes)
        _, dtype, shape, last = places[-1]
        n_words = last + (math.prod(shape) * dtype.itemsize + 7) // 8
        self.words = np.zeros(n_words, np.uint64)
        self.words[HEAD : HEAD + shapes.size] = shapes.ravel().view(np.uint64)
        self._arrays, self._learned = _views(self.words, places), 0
        self.changed = np.ones((2 * n_words >> CHUNK_BITS) + 1, np.uint8)

    def _copy(self, source: Array, into: Array, rows: Array) -> None:
        first = (into.__array_interface__["data"][0] - self.words.__array_interface__["data"][0]) // 4
        flat = np.ascontiguousarray(source).reshape(len(source), -1).view(np.uint32)
        copy_changed(flat, rows, first, self.words.view(np.uint32), self.changed)


@kernel
def copy_changed(source: Array, rows: Array, first: int, into: Array, changed: Array) -> None:
    """Copy some rows of numbers of 32 bits, row 0 of which is at ``first``, and mark the chunks that change."""
    for row in rows:
        for k in range(source.shape[1]):
            place = first + row * source.shape[1] + k
            if into[place] != source[row, k]:
                into[place] = source[row, k]
                changed[place >> CHUNK_BITS] = 1


def _views(words: Array, places: list[tuple[str, Any, tuple[int, ...], int]]) -> dict[str, Array]:
    found = {}
    for name, dtype, shape, first in places:
        size = math.prod(shape)
        n_words = (size * dtype.itemsize + 7) // 8
        found[name] = words[first : first + n_words].view(dtype)[:size].reshape(shape)
    return found


def read_published(weights: Array) -> PublishedKalman:
    """Return the model that lies in a copy of what was published."""
    words = weights.view(np.uint64)
    shapes = words[HEAD : HEAD + DIMENSIONS * len(PUBLISHED)].view(np.int64).reshape(-1, DIMENSIONS)
    low, span = words[2:4].view(np.float64).tolist()
    shared = template()._replace(**_views(words, _places(shapes)))
    return PublishedKalman(shared, bool(words[0]), int(words[1]), low, span, int(words[4]))

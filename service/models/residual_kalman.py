"""The model ``residual-kalman`` in the service: learning, layout in shared memory, decisions and explanations.

The shared part is published as words of 8 bytes. First a head: whether the start is over, events learned, the least
reward and the span of the rewards, the position from which personal models count; then the shape of each array, in the
order of ``Shared``, and the arrays, each from a whole word on.

The data of a user's block: 0 and how many words of 32 bits the model has (two 32-bit numbers), the position of the last
event learned from, then the words, as in ``fedres.decisions.kalman_state``.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.compiling import free_kernel, kernel
from fedres.decisions.array_checks import check_arrays
from fedres.decisions.constants import BIAS_WORDS, MOST_PAIRED, OWN_BYTES, START_EVENTS
from fedres.decisions.constants import HEAD as OWN_HEAD
from fedres.decisions.explaining import explain, personal_variances
from fedres.decisions.federated_kalman import Part, learn_residual, residual_of
from fedres.decisions.kalman_document import write_document
from fedres.decisions.kalman_kernels import predict, predict_in
from fedres.decisions.kalman_own import (
    BASIS,
    BIAS_KEY,
    BIAS_NUMBERS,
    BIASES,
    CLOCK,
    COUNT,
    SLOT_FIELD,
    SLOT_KEY,
    turn_own,
    weights_of,
)
from fedres.decisions.kalman_rows import predict_rows
from fedres.decisions.kalman_state import (
    ARRAYS,
    BASES,
    BLOCKS,
    DRIFT_SINCE,
    LEARNED,
    OWN,
    Events,
    KalmanRequest,
    Shared,
    copy_words,
    new_shared,
    scratch_for,
    slot_words,
)
from fedres.decisions.residual_kalman import NO_MODEL, NO_OWNS, Owns, ResidualKalman, in_present_basis
from fedres.key_tables import table_words
from fedres.policies.kernels import explore, pick
from fedres.scoring.batch import CHUNK_BITS
from fedres.scoring.features import Hashed
from fedres.scoring.flattening import FeatureLimits, action_features, flatten
from fedres.scoring.sealing import sealed, unsealed
from service.log.records import Entry, read_residual
from service.models.loop_metadata import LoopMetadata, LoopStatistics, LoopView
from service.models.memory import HEAD, Key, begin_change, end_change, find_block, read_block
from service.models.personal import PersonalModels, keys_of
from service.models.protocol import (
    Explained,
    ItemRows,
    LearnedEvent,
    Policy,
    RequestColumns,
    ScoredRequest,
    joined_rows,
    strongest,
    users_of,
)
from service.settings import Settings

SHARED_FORMAT, PERSONAL_FORMAT = b"FRKA", b"FRK5"
PUBLISHED_HEAD, DIMENSIONS = 5, 3  # words before the shapes; of a shape
PUBLISHED = tuple(name for name, spec in ARRAYS.items() if spec.predicts)
FINITE = (  # arrays that are checked as a whole
    "numbers", "drift", "log_tau", "slope_squares", "pair_log_tau", "pair_slope_squares", "scale_stats", "tail",
    "moment", "bases",
)  # fmt: skip
PIECE = 256  # numbers that are compared at once
WHOLE: Array = np.zeros(1, np.int64)  # the only row of an array that is copied as a whole
EVENTS_TO_COMPILE = START_EVENTS + 2
DATA = 2  # words of a user's block before the model
MOST_WORDS = OWN_BYTES // 4  # of 32 bits, of a user's model
ROOM = DATA + MOST_WORDS // 2  # words of a user's block at most

_SHARED_HEADER = struct.Struct("<4sdd")  # format, least and greatest reward
_PERSONAL_HEADER = struct.Struct("<4s")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[str, tuple[str, list[int], bytes]]).decode


# The kind


def new(settings: Settings) -> KalmanShared:
    return KalmanShared(settings.reward_range)


def is_of_another_version(state: bytes) -> bool:
    """Return whether another version of this file wrote a model, shared or personal."""
    mark = bytes(state[:4])
    return mark.startswith(SHARED_FORMAT[:3]) and mark not in (SHARED_FORMAT, PERSONAL_FORMAT)


def from_bytes(settings: Settings, state: bytes) -> KalmanShared:
    """Return the model that ``to_bytes`` wrote; refuse arrays that are unsafe for kernels."""
    mark = bytes(state[:4])
    if mark.startswith(SHARED_FORMAT[:3]) and mark != SHARED_FORMAT:
        raise ValueError(
            f"state must be of this version of the model, {SHARED_FORMAT!r}, got {mark!r}; learn it from the log again"
        )
    reward_range, body = unsealed(state, SHARED_FORMAT, _SHARED_HEADER)
    shared = KalmanShared(reward_range)
    try:
        rows = _unpack(body)
        arrays = {name: np.frombuffer(data, kind).reshape(shape) for name, (kind, shape, data) in rows.items()}
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise ValueError(f"state must be readable: {error}") from None
    check_arrays(arrays)
    shared.model.load_arrays(arrays)
    return shared


def check(settings: Settings, state: bytes, ranges: Collection[tuple[float, float]]) -> None:
    reward_range = from_bytes(settings, state).reward_range
    if reward_range not in (settings.reward_range, *ranges):
        low, high = settings.reward_range
        raise ValueError(f"state must hold a model of rewards in [{low}, {high}], got {list(reward_range)}")


def read_published(weights: Array) -> PublishedKalman:
    words = weights.view(np.uint64)
    shapes = words[PUBLISHED_HEAD : PUBLISHED_HEAD + DIMENSIONS * len(PUBLISHED)].view(np.int64)
    low, span = words[2:4].view(np.float64).tolist()
    shared = template()._replace(**_views(words, _places(shapes.tobytes())))
    return PublishedKalman(shared, bool(words[0]), int(words[1]), low, span, int(words[4]))


def read_personal(data: Array) -> tuple[int, PersonalKalman]:
    return int(data[1]), PersonalKalman(data[DATA:].view(np.uint32)[: int(data[0]) >> 32].copy())


def personal_data(changed: int, state: bytes) -> bytes:
    model = PersonalKalman.from_bytes(state)
    data = np.zeros(data_words(model.words.size), np.uint64)
    data[0], data[1] = model.words.size << 32, changed
    data[DATA:].view(np.uint32)[: model.words.size] = model.words
    return data.tobytes()


# The learner's side


class KalmanShared:
    """A ``ResidualKalman`` and its publication."""

    newest = 0  # devices count no rounds here
    weights = None  # devices fetch the whole published model

    def __init__(self, reward_range: tuple[float, float]) -> None:
        self.reward_range = reward_range
        self.model = ResidualKalman(reward_range)
        self._publication = Publication()
        self._finite: tuple[Array | None, int] = (None, 0)  # means of a model, and how many events all was finite after

    def learn(
        self, events: Sequence[LearnedEvent], settings: Settings, metadata: LoopMetadata, personal: PersonalModels
    ) -> None:
        users, changed, places = users_of(events, settings)
        memory, keys = personal.memory, keys_of(metadata.id, users)
        offsets = np.empty(len(users), np.int64)
        owns = Owns(*_load_all(memory.words, keys, metadata.model_replaced_at, offsets))
        left = np.zeros((len(events), 2))  # the error of each event before it was learned, and the length of its inputs
        learned = self.model.learn_packed(_batch(events, places), owns, None, left)
        has_model = np.flatnonzero(learned.sizes).tolist()  # not all have: the start gives none
        n_new = int(np.count_nonzero(offsets[has_model] < 0))
        moved = []
        for u in has_model:
            needed = data_words(int(learned.sizes[u]))
            if offsets[u] < 0 or int(memory.words[offsets[u] + 3]) < needed:
                offsets[u] = memory.allocate(needed)
                moved.append(u)
        _store_all(memory.words, offsets, keys, learned.words, learned.sizes, changed)
        for u in moved:
            memory.show((int(keys[u, 0]), int(keys[u, 1])), int(offsets[u]))
        personal.note_learned(metadata.id, [users[u] for u in has_model], n_new)
        for event, (error, length) in zip(events, left.tolist(), strict=True):
            if length > 0:  # not of the start
                metadata.guard.count(event.user, length, error)

    def learn_upload(self, entry: Entry, metadata: LoopMetadata) -> bool:
        """Learn the residual of a device's own part; return False if the defenses refuse it.

        An example with long inputs, or beyond its client's budget, is learned with more noise than the device reports.
        """
        assert entry.example is not None
        residual, client, defences = read_residual(entry.example), str(entry.user), metadata.settings.defences
        assert residual.spread is not None
        model, guard = self.model, metadata.guard
        event = _batch([LearnedEvent(None, residual.features, residual.label, 0)], np.array([-1], np.int64))
        if model.shared is None:  # the start learns labels, also those of events
            _, weight = guard.weigh(client, np.ones(1), defences)
            if weight > 0:
                model.learn_packed(event, NO_OWNS)
            return weight > 0
        variance, slopes = residual.spread
        part = Part(residual.local / model.span, variance / model.span / model.span, np.array(slopes) / model.span)
        left = residual_of(model, event, part)
        kept, weight = guard.weigh(client, np.array([left.length]), defences, lambda _: left.error)
        weight *= float(kept[0] / left.length) ** 2
        if weight > 0:
            learn_residual(model, event, part, left, weight)
        return weight > 0

    def is_finite(self) -> bool:
        """Return whether all numbers are finite; of the blocks, only those learned since the last call are checked."""
        shared = self.model.shared
        if shared is None:
            return True
        means, learned = self._finite
        since = learned if shared.means is means else 0
        self._finite = shared.means, int(shared.counts[LEARNED])
        rows = np.flatnonzero(shared.block_used[: shared.counts[BLOCKS]] >= since)
        blocks = [getattr(shared, name)[rows] for name in ("means", "covariances", "mean_slopes", "block_log_tau")]
        return all(np.isfinite(numbers).all() for numbers in (*[getattr(shared, name) for name in FINITE], *blocks))

    def publish(self, replaced_at: int) -> tuple[Array, Array]:
        publication = self._publication
        publication.update(self.model, replaced_at)
        return publication.words.view(np.float32), publication.changed

    def forget_client(self, number: int) -> None:
        """Do nothing: devices have no numbers here."""

    def forget_events(self) -> bool:
        return self.model.forget_events()

    def to_bytes(self, *, events: bool = True) -> bytes:
        """Return the model without personal models; with or without the single events that it keeps."""
        arrays = self.model.to_arrays(events=events)
        rows = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}
        return sealed(_SHARED_HEADER.pack(SHARED_FORMAT, *self.reward_range), [_pack(rows)])

    def exported(self, *, start: bool = False) -> bytes:
        return self.to_bytes(events=start and self.model.shared is None)


def _batch(events: Sequence[LearnedEvent], places: Array) -> Events:
    features = [event.features for event in events]
    sizes = [len(each.hashes) // 4 for each in features]
    return Events(
        np.frombuffer(bytearray().join([each.hashes for each in features]), np.uint32),
        np.frombuffer(bytearray().join([each.values for each in features]), np.float32),
        np.frombuffer(bytearray().join([bytes(4 * each.n_context) + each.fields for each in features]), np.uint32),
        np.cumsum([0, *sizes], dtype=np.int64),
        np.array([each.n_context for each in features], np.int64),
        np.array([event.reward for event in events], np.float32),
        places,
    )


class Publication:
    """The arrays that predicting needs: ``words`` to be published, ``changed`` by chunks since they last were."""

    def __init__(self) -> None:
        self.words: Array = np.zeros(0, np.uint64)
        self.changed: Array = np.zeros(0, np.uint8)
        self._firsts: dict[str, int] = {}  # where each array begins, in numbers of 32 bits
        self._learned = 0  # events learned when rows of blocks were last copied
        self._means: Array | None = None  # of the model copied last; relearning the first events makes a new one

    def update(self, model: ResidualKalman, replaced_at: int) -> None:
        """Copy the changes of a model."""
        shared = model.shared or template()
        shapes = np.zeros((len(PUBLISHED), DIMENSIONS), np.int64)
        for k, name in enumerate(PUBLISHED):
            shapes[k, : getattr(shared, name).ndim] = getattr(shared, name).shape
        head = np.zeros(PUBLISHED_HEAD, np.uint64)
        head[:2] = model.shared is not None, model.learned
        head[2:4] = np.array([model.low, model.span]).view(np.uint64)
        head[4] = replaced_at
        before = self.words[PUBLISHED_HEAD : PUBLISHED_HEAD + shapes.size].view(np.int64)
        if not np.array_equal(shapes.ravel(), before):
            self._make_room(shapes)
        self._copy(head[None], 0, WHOLE)
        if shared.means is not self._means:
            self._means, self._learned = shared.means, 0
        used = shared.block_used[: shared.counts[BLOCKS]]
        all_drifted = shared.drift[DRIFT_SINCE] > self._learned
        rows = np.flatnonzero((used >= self._learned) | all_drifted)
        for name, first in self._firsts.items():
            if name in ("means", "covariances"):
                self._copy(getattr(shared, name), first, rows)
            else:
                self._copy(getattr(shared, name)[None], first, WHOLE)
        self._learned = int(shared.counts[LEARNED])

    def _make_room(self, shapes: Array) -> None:
        places = _places(shapes.tobytes())
        _, dtype, shape, last = places[-1]
        n_words = last + (math.prod(shape) * dtype.itemsize + 7) // 8
        self.words = np.zeros(n_words, np.uint64)
        self.words[PUBLISHED_HEAD : PUBLISHED_HEAD + shapes.size] = shapes.ravel().view(np.uint64)
        self._firsts, self._learned = {name: 2 * word for name, _, _, word in places}, 0
        self.changed = np.ones((2 * n_words >> CHUNK_BITS) + 1, np.uint8)

    def _copy(self, source: Array, first: int, rows: Array) -> None:
        flat = np.ascontiguousarray(source).reshape(len(source), -1).view(np.uint32)
        copy_changed(flat, rows, first, self.words.view(np.uint32), self.changed)


@kernel
def copy_changed(source: Array, rows: Array, first: int, into: Array, changed: Array) -> None:
    """Copy some rows of numbers of 32 bits, row 0 of which is at ``first``, and mark the chunks that change.

    Most numbers do not change, so pieces are compared first, many numbers at once.
    """
    size = source.shape[1]
    for row in rows:
        for begin in range(0, size, PIECE):
            place = first + row * size + begin
            piece = source[row, begin : begin + PIECE]
            before, differ = into[place : place + piece.size], np.uint32(0)
            for k in range(piece.size):
                differ |= piece[k] ^ before[k]
            if differ:
                for k in range(piece.size):
                    if before[k] != piece[k]:
                        before[k] = piece[k]
                        changed[(place + k) >> CHUNK_BITS] = 1


@lru_cache(maxsize=1)
def template() -> Shared:
    """Return a model with all arrays at their smallest."""
    return new_shared(1, 1.0, 2, 1)


@lru_cache(maxsize=100)
def _places(shapes: bytes) -> list[tuple[str, Any, tuple[int, ...], int]]:
    """Return name, type, shape and first word of each array; they seldom change."""
    places, first = [], PUBLISHED_HEAD + DIMENSIONS * len(PUBLISHED)
    for name, row in zip(PUBLISHED, np.frombuffer(shapes, np.int64).reshape(-1, DIMENSIONS).tolist(), strict=True):
        like = getattr(template(), name)
        shape = tuple(row[: like.ndim])
        places.append((name, like.dtype, shape, first))
        first += (math.prod(shape) * like.dtype.itemsize + 7) // 8
    return places


def _views(words: Array, places: list[tuple[str, Any, tuple[int, ...], int]]) -> dict[str, Array]:
    views = {}
    for name, dtype, shape, first in places:
        size = math.prod(shape)
        n_words = (size * dtype.itemsize + 7) // 8
        views[name] = words[first : first + n_words].view(dtype)[:size].reshape(shape)
    return views


# Users' models


class PersonalKalman:
    """A user's model, as words."""

    def __init__(self, words: Array) -> None:
        if not OWN_HEAD < words.size <= MOST_WORDS:
            raise ValueError(f"a personal model must have {OWN_HEAD + 1} to {MOST_WORDS} words, got {words.size}")
        self.words: Array = words

    def to_bytes(self) -> bytes:
        return sealed(_PERSONAL_HEADER.pack(PERSONAL_FORMAT), [self.words.astype("<u4", copy=False).tobytes()])

    @classmethod
    def from_bytes(cls, state: bytes) -> PersonalKalman:
        """Return the model that ``to_bytes`` wrote."""
        _, body = unsealed(state, PERSONAL_FORMAT, _PERSONAL_HEADER)
        return cls(np.frombuffer(body, "<u4").astype(np.uint32))


@kernel
def data_words(size: int) -> int:
    """Return how many words of data a model of ``size`` words of 32 bits takes."""
    return DATA + (size + 1) // 2


@kernel
def size_in(data: Array, replaced_at: int) -> Any:
    """Return the number of words of the model in a block's data, 0 if it belongs to another shared model."""
    return np.int64(data[0] >> np.uint64(32)) if np.int64(data[1]) >= replaced_at else 0


@kernel
def _load_all(words: Array, keys: Array, replaced_at: int, offsets: Array) -> Any:
    """Fill in where the models are; return their words one after the other, and how many each has."""
    sizes = np.zeros(offsets.size, np.int64)
    for u in range(offsets.size):
        offsets[u] = find_block(words, keys[u, 0], keys[u, 1])
        if offsets[u] >= 0:
            sizes[u] = size_in(words[offsets[u] + HEAD :], replaced_at)
    owns, first, source = np.empty(sizes.sum(), np.uint32), 0, words.view(np.uint32)
    for u in range(offsets.size):
        begin = 2 * (offsets[u] + HEAD + DATA)
        copy_words(source[begin : begin + sizes[u]], owns[first:])
        first += sizes[u]
    return owns, sizes


@kernel
def _store_all(words: Array, offsets: Array, keys: Array, owns: Array, sizes: Array, changed: Array) -> None:
    into, first = words.view(np.uint32), 0
    for u in range(offsets.size):
        offset, size = offsets[u], sizes[u]
        if size:
            begin_change(words, offset)
            words[offset + 1], words[offset + 2] = np.uint64(keys[u, 0]), np.uint64(keys[u, 1])
            words[offset + 4] = np.uint64(8 * data_words(size))
            words[offset + HEAD] = np.uint64(size) << np.uint64(32)
            words[offset + HEAD + 1] = np.uint64(changed[u])
            begin = 2 * (offset + HEAD + DATA)
            words[offset + HEAD + data_words(size) - 1] = np.uint64(0)
            copy_words(owns[first : first + size], into[begin:])
            end_change(words, offset)
        first += size


# The ranker's side


class PublishedKalman(NamedTuple):
    """The rankers' side of the shared model."""

    shared: Shared
    # False at the start, when all actions are alike.
    settled: bool
    learned: int
    low: float
    span: float
    replaced_at: int  # personal models that learned last before this position are of another shared model

    @property
    def device_learners(self) -> str:
        return "'residual-kalman'"

    def n_learned(self, statistics: LoopStatistics) -> int:
        return self.learned

    def choose(self, columns: RequestColumns, memory: Array, policy: Policy, crosses: bool) -> tuple[Array, Array]:
        actions, numbers = np.empty(columns.n_actions.size, np.int64), np.empty((2, columns.allowed.size))
        _choose_all(columns, self, memory, policy, actions, numbers)
        return actions, numbers

    def predict_items(
        self, items: ItemRows, context: Hashed, memory: Array, key: Key, crosses: bool
    ) -> tuple[Array, Array]:
        means, widths = np.full(items.n_rows, self.low), np.full(items.n_rows, self.span)
        if self.settled:
            hashes, values = np.frombuffer(context.hashes, np.uint32), np.frombuffer(context.values, np.float32)
            _predict_items(self, items.numbered(self.shared), hashes, values, memory, key, means, widths)
        return means, widths

    def read_personal(self, data: Array) -> PersonalKalman | None:
        changed, model = read_personal(data)
        return None if changed < self.replaced_at else model

    def described(self, personal: PersonalKalman) -> dict[str, Any]:
        """Return how many events it has learned; for each feature b and h of its bias, and weights of directions."""
        own, k = personal.words, self.shared.bases.shape[2]
        blocks, biases = {}, {}
        for slot in range(int(own[COUNT])):
            head = own[OWN_HEAD + slot * slot_words(k) :]
            tau = float(np.exp(self.shared.log_tau[head[SLOT_FIELD], OWN]))
            blocks[str(head[SLOT_KEY])] = weights_of(own, slot, k, tau).tolist()
        for bias in range(int(own[BIASES])):
            words = own[own.size - BIAS_WORDS * (bias + 1) :][:BIAS_WORDS]
            biases[str(words[BIAS_KEY])] = words[BIAS_NUMBERS:].view(np.float32).tolist()
        return {"events": int(own[CLOCK]), "biases": biases, "blocks": blocks}

    def score_parts(self, scored: ScoredRequest) -> list[tuple[float, float]]:
        rows, own = scored.rows, _own_words(scored)
        parts = np.zeros((len(rows) - 1, 3))
        if self.settled:
            request = KalmanRequest(*joined_rows(rows), np.cumsum([row.size for row in rows], dtype=np.int64))
            predict(self.shared, NO_MODEL if own is None else own, own is not None, request, parts)
        return [(self.low + self.span * part[0], self.span * part[1]) for part in parts.tolist()]

    def n_explained(self, rows: Sequence[Hashed], settings: Settings) -> int:
        context, *actions = [row.size for row in rows]
        return sum((context + 1) * (n + 1) + math.comb(min(n, MOST_PAIRED), 2) for n in actions)

    def explain(self, scored: ScoredRequest, context: bytes, action: tuple[str, bytes]) -> Explained:
        low, span = self.low, self.span
        if not self.settled:
            return Explained(action[0], low, 0.0, [], span)
        own = _own_words(scored)
        if own is not None:
            own = in_present_basis(self.shared, own)
        names = flatten(context, FeatureLimits()), action_features(*action, FeatureLimits())
        why = explain(self.shared, own, (scored.rows[0], scored.rows[1]), names)
        parts = low + span * why.shared, span * why.personal
        return Explained(action[0], *parts, strongest(why.strongest, span), span * why.width)

    def personal_variances(self, scored: ScoredRequest) -> tuple[float, float] | None:
        own = _own_words(scored)
        if own is None or not self.settled:
            return None
        return personal_variances(self.shared, own, (scored.rows[0], scored.rows[1]))

    def tag(self, version: int, weights: Array) -> str:
        """Return the tag of all that is in use but hash tables, which are others in each process."""
        seen = zlib.crc32(np.array([self.settled, self.learned, self.low, self.span], "<f8").tobytes())
        for name in PUBLISHED:
            array, spec = getattr(self.shared, name), ARRAYS[name]
            if spec.saved:
                used = array if spec.rows is None else array[: self.shared.counts[spec.rows]]
                seen = zlib.crc32(used.tobytes(), seen)
        return f"{version}-{seen:08x}"

    def for_devices(self, view: LoopView, weights: Array, since: int | None, changed: Array | None) -> bytes:
        tag = self.tag(view.version, weights)
        return write_document(self.shared if self.settled else None, view.version, tag, self.learned)


def _own_words(scored: ScoredRequest) -> Array | None:
    """Return the user's model, empty if there is none yet; None without a user."""
    if not scored.is_personal:
        return None
    return NO_MODEL if scored.personal is None else scored.personal.words


@free_kernel
def _choose_all(columns: Any, kalman: Any, memory: Array, policy: Any, actions: Array, numbers: Array) -> None:
    """Fill in the actions drawn, and the probabilities and scores of all, by means and widths."""
    n_actions, sizes, hashes, values, fields, keys, allowed, draws = columns
    shared, settled, _, low, span, replaced_at = kalman
    own, most = np.empty(ROOM, np.uint64), max(n_actions)
    blocks = np.empty(table_words(hashes.size), np.uint32), np.empty(hashes.size, np.uint32), np.empty((hashes.size, 3))
    scratch = scratch_for(shared.bases.shape[1], shared.bases.shape[2], hashes.size, hashes.size, 1)
    starts, parts, widths = np.empty(most + 1, np.int64), np.empty((most, 3)), np.empty(most)
    rule, n_learned = policy
    row = first = action = 0
    for k in range(n_actions.size):
        n = n_actions[k]
        starts[0] = sizes[row]
        for a in range(n):
            starts[a + 1] = starts[a] + sizes[row + 1 + a]
        last = first + starts[n]
        if settled:
            request = KalmanRequest(hashes[first:last], values[first:last], fields[first:last], starts[: n + 1])
            words = _read_own(memory, keys[k, 0], keys[k, 1], replaced_at, own)
            if words.size and words[BASIS] != shared.counts[BASES] - 1:
                turn_own(shared, words, scratch)
            predict_in(scratch, blocks, shared, words, keys[k, 0] != 0, request, parts[:n])
        else:
            parts[:n, 0], parts[:n, 1], parts[:n, 2] = 0.0, 0.0, 1.0
        scores, chances = numbers[1, action : action + n], numbers[0, action : action + n]
        for a in range(n):
            scores[a] = low + span * parts[a, 0] + span * parts[a, 1]
            widths[a] = span * np.sqrt(max(parts[a, 2], 0.0))
        explore(rule, 0, n_learned, scores, widths[:n], allowed[action : action + n], chances)
        actions[k] = pick(chances, draws[k])
        row, first, action = row + n + 1, last, action + n


@free_kernel
def _predict_items(
    kalman: Any, rows: Any, hashes: Array, values: Array, memory: Array, key: Any, means: Array, widths: Array
) -> None:
    """Fill in the expected rewards of items and their standard deviations."""
    shared, _, _, low, span, replaced_at = kalman
    words = _read_own(memory, key[0], key[1], replaced_at, np.empty(ROOM, np.uint64))
    parts = np.empty((means.size, 3))
    predict_rows(shared, words, key[0] != 0, hashes, values, rows, parts)
    for k in range(means.size):
        means[k] = low + span * parts[k, 0] + span * parts[k, 1]
        widths[k] = span * np.sqrt(max(parts[k, 2], 0.0))


@kernel
def _read_own(memory: Array, key0: int, key1: int, replaced_at: int, own: Array) -> Array:
    """Copy a user's model; return its words, none if it is missing or stays half written."""
    size = 0
    if key0 != 0 and read_block(memory, key0, key1, own) > 0:
        size = size_in(own, replaced_at)
    return own[DATA:].view(np.uint32)[:size]

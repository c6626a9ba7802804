"""The model ``adagrad`` in the service: weights of hashed features, learned by AdaGrad or by a device learner.

The shared part is published as it is: 2^bits weights and a constant. The data of a user's block: slots and features
held (two 32-bit numbers), the position of the last event learned from, then the table of keys, the weights and the sums
of squared gradients, as in ``fedres.scoring.model.PersonalModel``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedres import key_tables
from fedres.checks import Array
from fedres.compiling import free_kernel, kernel
from fedres.decisions.kalman_document import write_safetensors
from fedres.key_tables import TAIL, clear, slots_in
from fedres.policies.kernels import explore, pick
from fedres.scoring.batch import (
    CHUNK_BITS,
    AdaGradEvents,
    AdaGradShared,
    fill_model,
    learn_batch,
    model_in,
    slots_for,
    workspace_for,
)
from fedres.scoring.explaining import explain
from fedres.scoring.features import Hashed
from fedres.scoring.features import Prepared as Features
from fedres.scoring.federated import FederatedModel, Pool
from fedres.scoring.model import MAX_SLOTS, Example, PersonalModel, SharedModel, expand, score, shift_of
from fedres.scoring.scores import score_in, scratch_for
from fedres.scoring.sealing import checksum, model_tag
from service.log import records
from service.log.records import RESIDUAL, Entry, ResidualExample, decode_update, read_residual
from service.models.guard import combine
from service.models.loop_metadata import LoopMetadata, LoopStatistics, LoopView
from service.models.memory import HEAD, NOT_FOUND, Key, begin_change, end_change, find_block, read_block
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

DATA = HEAD + 2  # words of a user's block before the table
EVENTS_TO_COMPILE = 2
MOST_POOLED = 20  # uploads of as many clients are combined, if so many have joined


# The kind


def new(settings: Settings) -> AdagradShared:
    if settings.is_dense:
        return DenseShared(FederatedModel(settings.global_learner, settings.bits, settings.hyperparameters))
    return AdagradShared(SharedModel(settings.bits))


def is_of_another_version(state: bytes) -> bool:
    """Return whether another version of this file wrote a model; there is one version so far."""
    return False


def from_bytes(settings: Settings, state: bytes) -> AdagradShared:
    if not settings.is_dense:
        return AdagradShared(SharedModel.from_bytes(state))
    try:
        return DenseShared(FederatedModel.from_bytes(state))
    except msgspec.MsgspecError as error:
        raise ValueError(f"state must be readable: {error}") from None


def check(settings: Settings, state: bytes, ranges: Collection[tuple[float, float]]) -> None:
    model = from_bytes(settings, state).model
    if model.bits != settings.bits:
        raise ValueError(f"state must hold a model of {settings.bits} bits, got {model.bits}")
    if isinstance(model, FederatedModel):
        learner, hyperparameters = settings.global_learner, settings.hyperparameters
        if (model.wire.name, model.wire.hyperparameters) != (learner, hyperparameters):
            raise ValueError(f"state must be of {learner} {hyperparameters}, got {model.wire.name}")


def read_published(weights: Array) -> PublishedAdagrad:
    return PublishedAdagrad(weights)


def read_personal(data: Array) -> tuple[int, PersonalModel]:
    head = int(data[0])
    table, weights, squares = views(data, 2, head & 0xFFFFFFFF)
    return int(data[1]), PersonalModel.of_arrays(table, weights, squares, head >> 32)


def personal_data(changed: int, state: bytes) -> bytes:
    return written(changed, PersonalModel.from_bytes(state))


def written(changed: int, model: PersonalModel) -> bytes:
    """Return the data of a block."""
    table, weights, squares = model.arrays
    size = slots_in(table)
    data = np.zeros(words_for(size), np.uint64)
    data[0], data[1] = size | len(model) << 32, changed
    for into, array in zip(views(data, 2, size), (table, weights, squares), strict=True):
        into[:] = array
    return data.tobytes()


# The learner's side


class AdagradShared:
    """A ``SharedModel``, and which chunks of its weights are not published."""

    def __init__(self, model: SharedModel) -> None:
        self.model = model
        self._changed: Array = np.ones((model.weights.size >> CHUNK_BITS) + 1, np.uint8)

    @property
    def reward_range(self) -> tuple[float, float]:
        return self.model.reward_range

    @property
    def newest(self) -> int:
        return self.model.newest

    @property
    def weights(self) -> Array:
        return self.model.weights

    def learn(
        self, events: Sequence[LearnedEvent], settings: Settings, metadata: LoopMetadata, personal: PersonalModels
    ) -> None:
        users, changed, places = users_of(events, settings)
        features = [event.features for event in events]
        sizes = [len(each.hashes) // 4 for each in features]
        batch = AdaGradEvents(
            np.frombuffer(b"".join([each.hashes for each in features]), np.uint32),
            np.frombuffer(b"".join([each.values for each in features]), np.float32),
            np.cumsum([0, *sizes], dtype=np.int64),
            np.array([each.n_context for each in features], np.int64),
            np.array([event.reward for event in events], np.float32),
            places,
        )
        shared = AdaGradShared(*self.model.arrays, 32 - self.model.bits, self._changed)
        memory, keys, n = personal.memory, keys_of(metadata.id, users), len(users)
        offsets = np.empty(n, np.int64)
        counts = np.zeros(n, np.int64)
        slots_before = np.zeros(n, np.int64)
        _find_all(memory.words, keys, offsets, counts, slots_before)
        workspace = workspace_for(batch, settings.crosses, counts, slots_before, key_tables.new_secret())
        _load_all(memory.words, offsets, slots_before, workspace)
        learn_batch(batch, shared, workspace, settings.crosses, float(settings.learning_rate))
        slots = _compact(workspace.counts)
        n_new = int(np.count_nonzero(offsets == NOT_FOUND))
        grown = np.flatnonzero((slots > slots_before) | (offsets == NOT_FOUND)).tolist()
        for u in grown:
            offsets[u] = memory.room_for((int(keys[u, 0]), int(keys[u, 1])), words_for(int(slots[u])))
        _store_all(memory.words, offsets, keys, workspace, slots, changed)
        for u in grown:
            memory.show((int(keys[u, 0]), int(keys[u, 1])), int(offsets[u]))
        personal.note_learned(metadata.id, users, n_new)

    def learn_upload(self, entry: Entry, metadata: LoopMetadata) -> bool:
        self._changed[:] = 1
        return self._learn_residual(entry, metadata)

    def _learn_residual(self, entry: Entry, metadata: LoopMetadata) -> bool:
        """Learn the residual of the label after the device's own part; return False if the defenses refuse it."""
        assert entry.example is not None
        residual, settings, model = read_residual(entry.example), metadata.settings, self.model
        keys, values = expanded_example(residual.features, settings.crosses)
        clipped, weight = metadata.guard.weigh(
            str(entry.user), values, settings.defences, lambda clipped: self._error(residual, (keys, clipped))
        )
        if not weight > 0:
            return False
        model.learning_rate = settings.learning_rate
        if residual.global_ is None:
            model.learn((keys, clipped), residual.label, residual.local, weight)
        else:
            model.correct((keys, clipped), residual.label, residual.global_ + residual.local, weight)
        return True

    def _error(self, residual: ResidualExample, example: Example) -> float:
        """Return label − prediction as in the step: AdaGrad clamps predictions to the labels seen."""
        prediction, label = _prediction(self.model, residual, example), residual.label
        low, high = self.model.reward_range
        return label - min(max(prediction, min(low, label)), max(high, label))

    def is_finite(self) -> bool:
        return bool(np.isfinite(self.weights.sum(dtype=np.float64)))  # of 32-bit numbers: not finite if one is not

    def publish(self, replaced_at: int) -> tuple[Array, Array]:
        return self.weights, self._changed

    def forget_client(self, number: int) -> None:
        """Do nothing: devices have no numbers here."""

    def forget_events(self) -> bool:
        return False

    def to_bytes(self) -> bytes:
        return self.model.to_bytes()

    def exported(self, *, start: bool = False) -> bytes:
        return self.to_bytes()


class DenseShared(AdagradShared):
    """The same for learners of devices whose steps change every weight: events are learned one by one."""

    model: FederatedModel

    def learn(
        self, events: Sequence[LearnedEvent], settings: Settings, metadata: LoopMetadata, personal: PersonalModels
    ) -> None:
        loop, model = metadata.id, self.model
        model.learning_rate = settings.learning_rate
        for event in events:
            user, reward, example = event.user, event.reward, expanded_example(event.features, settings.crosses)
            if user is None or not settings.personal:
                model.learn(example, reward, 0.0)
                continue
            data, offset = personal.data(loop, user), model.score(example)
            own = PersonalModel() if data is None else read_personal(data)[1]
            own.learning_rate = settings.learning_rate
            model.learn(example, reward, own.score(example))
            own.learn(example, reward, offset, model.reward_range)
            personal.put(loop, user, written(event.position, own))
        self._changed[:] = 1

    def learn_upload(self, entry: Entry, metadata: LoopMetadata) -> bool:
        """Learn from a residual, a gradient or a delta; return False if the defenses refuse it."""
        self._changed[:] = 1
        if entry.kind == RESIDUAL:
            return self._learn_residual(entry, metadata)
        body, learned = decode_update(entry.body), False

        def clip(vector: Array) -> Array | None:
            nonlocal learned
            defences, n_clients = metadata.settings.defences, len(metadata.clients.numbers)
            clipped = metadata.guard.clip(str(entry.user), vector, defences, n_clients)
            learned = clipped is not None
            return clipped

        self.model.receive(body.number, body.t, body.version, body.kind, body.body, clip=clip, pool=_pool(metadata))
        return learned

    def _error(self, residual: ResidualExample, example: Example) -> float:
        return residual.label - _prediction(self.model, residual, example)

    def forget_client(self, number: int) -> None:
        self.model.forget(number)

    def exported(self, *, start: bool = False) -> bytes:
        learned = FederatedModel.from_bytes(self.to_bytes())
        learned.forget_all()
        return learned.to_bytes()


def _prediction(model: SharedModel, residual: ResidualExample, example: Example) -> float:
    return residual.local + (model.score(example) if residual.global_ is None else residual.global_)


def _pool(metadata: LoopMetadata) -> Pool | None:
    """Return how many clients' uploads are combined: half of those that joined, as others may have left."""
    how = metadata.settings.defences.combine
    if how == "mean":
        return None
    return Pool(min(MOST_POOLED, math.ceil(len(metadata.clients.numbers) / 2)), partial(combine, how=how))


def expanded_example(features: records.HashedExample, crosses: bool) -> Example:
    """Return the keys and values of all features of an example: of the context, the action's own, and their crosses."""
    hashes, values = np.frombuffer(features.hashes, np.uint32), np.frombuffer(features.values, np.float32)
    return expand(Features(hashes, values, np.array([features.n_context, hashes.size], np.int64), crosses), 0)


# Users' models in shared memory


@kernel
def words_for(n_slots: int) -> int:
    """Return how many words of data a model takes."""
    return 2 + (3 * n_slots + 2 + TAIL + 1) // 2


@kernel
def views(words: Array, data: int, n_slots: int) -> Any:
    """Return the table, the weights and the sums that lie at word ``data``."""
    keys, numbers, at = words.view(np.uint32), words.view(np.float32), 2 * data
    middle = at + n_slots + (TAIL if n_slots else 0)
    last = middle + n_slots + 1
    return keys[at:middle], numbers[middle:last], numbers[last : last + n_slots + 1]


@kernel
def _find_all(words: Array, keys: Array, offsets: Array, counts: Array, n_slots: Array) -> None:
    for u in range(offsets.size):
        offsets[u] = find_block(words, keys[u, 0], keys[u, 1])
        if offsets[u] >= 0:
            n_slots[u] = np.int64(words[offsets[u] + HEAD] & np.uint64(0xFFFFFFFF))
            counts[u] = np.int64(words[offsets[u] + HEAD] >> np.uint64(32))


@kernel
def _load_all(words: Array, offsets: Array, n_slots: Array, workspace: Any) -> None:
    for u in range(offsets.size):
        if n_slots[u] > 0:
            table, weights, squares = model_in(workspace, u)
            fill_model(table, weights, squares, views(words, offsets[u] + DATA, n_slots[u]))


@kernel
def _store_all(words: Array, offsets: Array, keys: Array, workspace: Any, n_slots: Array, changed: Array) -> None:
    for u in range(offsets.size):
        offset = offsets[u]
        begin_change(words, offset)
        words[offset + 1], words[offset + 2] = np.uint64(keys[u, 0]), np.uint64(keys[u, 1])
        words[offset + 4] = np.uint64(8 * words_for(n_slots[u]))
        words[offset + HEAD] = np.uint64(n_slots[u]) | np.uint64(workspace.counts[u]) << np.uint64(32)
        words[offset + HEAD + 1] = np.uint64(changed[u])
        table, weights, squares = views(words, offset + DATA, n_slots[u])
        model = model_in(workspace, u)
        if model[0].size == table.size:
            table[:], weights[:], squares[:] = model
        else:
            clear(table, model[0])
            weights[:], squares[:] = 0, 0
            fill_model(table, weights, squares, model)
        end_change(words, offset)


@kernel
def _compact(counts: Array) -> Array:
    slots = np.empty(counts.size, np.int64)
    for u in range(counts.size):
        slots[u] = slots_for(counts[u])
    return slots


# The ranker's side


class PublishedAdagrad(NamedTuple):
    """The shared weights as rankers have them."""

    weights: Array

    @property
    def device_learners(self) -> str:
        return "'linear' (in Python also 'vw')"

    def n_learned(self, statistics: LoopStatistics) -> int:
        return statistics.learned

    def choose(self, columns: RequestColumns, memory: Array, policy: Policy, crosses: bool) -> tuple[Array, Array]:
        actions, numbers = np.empty(columns.n_actions.size, np.int64), np.empty((2, columns.allowed.size))
        _choose_all(columns, self.weights, shift_of(self.weights), crosses, memory, policy, actions, numbers)
        return actions, numbers

    def predict_items(
        self, items: ItemRows, context: Hashed, memory: Array, key: Key, crosses: bool
    ) -> tuple[Array, Array]:
        (hashes, values, ends), means = items.features(), np.zeros(items.n_rows)
        features = Features(
            np.concatenate([np.frombuffer(context.hashes, np.uint32), hashes]),
            np.concatenate([np.frombuffer(context.values, np.float32), values]),
            ends + context.size,
            crosses,
        )
        _predict_items(features, self.weights, shift_of(self.weights), memory, key, means)
        return means, np.zeros(items.n_rows)

    def read_personal(self, data: Array) -> PersonalModel:
        return read_personal(data)[1]

    def described(self, personal: PersonalModel) -> dict[str, Any]:
        weights = {str(key): weight for key, weight in personal.weights.items()}
        return {"constant": personal.constant, "weights": weights}

    def score_parts(self, scored: ScoredRequest) -> list[tuple[float, float]]:
        hashes, values, _ = joined_rows(scored.rows)
        starts = np.cumsum([row.size for row in scored.rows], dtype=np.int64)
        features = Features(hashes, values, starts, scored.settings.crosses)
        shared, personal = score(features, self.weights, scored.personal)
        return [*zip(shared.tolist(), personal.tolist(), strict=True)]

    def n_explained(self, rows: Sequence[Hashed], settings: Settings) -> int:
        return (rows[0].size + 1) * sum(row.size + 1 for row in rows[1:]) if settings.crosses else 0

    def explain(self, scored: ScoredRequest, context: bytes, action: tuple[str, bytes]) -> Explained:
        why = explain(context, action, self.weights, scored.personal, crosses=scored.settings.crosses)
        return Explained(action[0], why.shared, why.personal, strongest(why.strongest))

    def personal_variances(self, scored: ScoredRequest) -> None:
        return None

    def tag(self, version: int, weights: Array) -> str:
        return model_tag(version, weights)

    def for_devices(self, view: LoopView, weights: Array, since: int | None, changed: Array | None) -> bytes:
        """Return all weights as safetensors, or those that ``changed`` since a version.

        Version 0 is a model of zeros. If changes are no longer known, or would take more bytes, all are sent.
        """
        facts = {"version": str(view.version), "bits": str(weights.size.bit_length() - 1)}
        facts |= {"low": repr(view.seen_range[0]), "high": repr(view.seen_range[1]), "newest": str(view.newest)}
        facts["crc32"] = str(checksum(weights))  # of all weights, whatever is sent
        if since == 0:
            changed = np.flatnonzero(weights.view(np.uint32) != 0)
        if changed is None or 2 * changed.size >= weights.size:
            return write_safetensors({"weights": weights}, facts)
        parts = {"indices": changed.astype(np.uint32), "values": weights[changed]}
        return write_safetensors(parts, {**facts, "since": str(since)})


@free_kernel
def _choose_all(
    columns: Any, weights: Array, shift: int, crosses: bool, memory: Array, policy: Any, actions: Array, numbers: Array
) -> None:
    """Fill in the actions drawn, and the probabilities and scores of all."""
    n_actions, sizes, hashes, values, _fields, keys, allowed, draws = columns
    own, most = np.empty(words_for(MAX_SLOTS), np.uint64), max(n_actions)
    scratch, parts = scratch_for(hashes.size, MAX_SLOTS), np.empty((most, 2), np.float32)
    starts, widths, (rule, n_learned) = np.empty(most + 1, np.int64), np.zeros(most), policy
    row = first = action = 0
    for k in range(n_actions.size):
        n = n_actions[k]
        starts[0] = sizes[row]
        for a in range(n):
            starts[a + 1] = starts[a] + sizes[row + 1 + a]
        last = first + starts[n]
        prepared = Features(hashes[first:last], values[first:last], starts[: n + 1], crosses)
        n_slots = _read_own(memory, keys[k, 0], keys[k, 1], own)
        table, own_weights, _ = views(own, 2, n_slots)
        score_in(scratch, prepared, (weights, shift, table, own_weights), parts[:n])
        scores, chances = numbers[1, action : action + n], numbers[0, action : action + n]
        for a in range(n):
            scores[a] = parts[a, 0] + parts[a, 1]
        explore(rule, 0, n_learned, scores, widths[:n], allowed[action : action + n], chances)
        actions[k] = pick(chances, draws[k])
        row, first, action = row + n + 1, last, action + n


@free_kernel
def _predict_items(features: Any, weights: Array, shift: int, memory: Array, key: Any, means: Array) -> None:
    """Fill in the expected rewards of items."""
    own = np.empty(words_for(MAX_SLOTS), np.uint64)
    table, own_weights, _ = views(own, 2, _read_own(memory, key[0], key[1], own))
    parts = np.empty((means.size, 2), np.float32)
    score_in(scratch_for(features.hashes.size, MAX_SLOTS), features, (weights, shift, table, own_weights), parts)
    for k in range(means.size):
        means[k] = parts[k, 0] + parts[k, 1]


@kernel
def _read_own(memory: Array, key0: int, key1: int, own: Array) -> Any:
    """Copy a user's model; return its number of slots, 0 if it is missing or stays half written."""
    if key0 == 0:
        return 0
    if read_block(memory, key0, key1, own) <= 0:
        return 0
    return np.int64(own[0] & np.uint64(0xFFFFFFFF))

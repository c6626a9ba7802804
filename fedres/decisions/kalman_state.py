"""The state of ``residual-kalman`` in plain arrays: one shared struct, and one array of words for each user.

The words (uint32) of a personal model: how many slots it has, the number of its basis, events learned, how many biases
it has; then for each slot the key of its block, the place of its field, the event that learned it last, and b and h
(float32) for each of the leading coordinates. Biases are at the end, the first one last: the key of a block, the event
that learned it last, and b and h (float32). Slot 0 and bias 0 are block 0's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel, kernel
from fedres.decisions.constants import (
    BIAS_WORDS,
    CORE_SIZE,
    FIRST_LOG_TAU,
    FIRST_NOISE,
    FIRST_PAIR_LOG_TAU,
    FIRST_SHARED_LOG_TAU,
    FIRST_VALUES,
    HEAD,
    LEAST_LOG_DRIFT,
    MAX_BASES,
    MAX_FIELDS,
    MAX_SCALES,
    MOST_PAIRED,
    OWN_SIZE,
    SLOT_HEAD,
)
from fedres.key_tables import LONGEST, MOST_PROBES, new_table, put_all, table_words
from fedres.key_tables import TAIL as TABLE_TAIL

LEARNED, BLOCKS, BASES, FIELDS, SCALES = range(5)  # of ``counts``
NOISE, LENGTH = range(2)  # of ``numbers``
LOG_DRIFT, DRIFT_SQUARES, DRIFT_IDLE, DRIFT_SINCE = range(4)  # of ``drift``
UNIT, MEAN, DEVIATION, RMS = range(4)  # of a scale's statistics
# Columns of ``log_tau``: of personal, tail and shared core weights, personal biases, and of the constant's weight in
# the core.
OWN, TAIL, CORE, OWN_BIAS, CONSTANT = range(5)
# Columns of ``where``: the place of a block and of its field, its personal slot, the first word of its personal bias.
AT_BLOCK, AT_FIELD, AT_SLOT, AT_BIAS = range(4)
AT_PAIR, AT_LOW, AT_HIGH = range(3)  # columns of ``pair_places``: where a pair's weight is in the tail, and its fields
SCALE_ROWS = 2048  # of which MAX_SCALES are used


class Shared(NamedTuple):
    """The shared model; d coordinates in the core, k of them in personal blocks."""

    counts: Array  # int64: events learned, blocks, bases, fields, scales
    numbers: Array  # float64: noise, length of a context
    drift: Array  # float64: log φ, the sum of squared slopes by it; drift of idle blocks, which adds up since an event
    scale_table: Array  # uint32, as in ``key_tables``
    scale_keys: Array  # uint32, 0 where unused
    scale_core: Array  # int32, the coordinate in the core, −1 is none
    scale_seen: Array  # int32, how many of the first values there are
    scale_first: Array  # float32, the first values, until there are enough to settle the scale
    scale_stats: Array  # float64: unit, mean, deviation, root mean square
    field_keys: Array  # uint32
    log_tau: Array  # float64, fields × 5: OWN, TAIL, CORE, OWN_BIAS, CONSTANT
    slope_squares: Array  # float64, the sums of squared slopes by log τ
    pair_log_tau: Array  # float64, fields × fields, above the diagonal: of pairs; none where pairs have no weights
    pair_slope_squares: Array  # float64, the sums of squared slopes by it
    block_table: Array  # uint32, as in ``key_tables``
    block_keys: Array  # uint32
    block_used: Array  # int64, the event that learned it last
    block_log_tau: Array  # float64, of the prior that is in its covariance: of the constant, of all other coordinates
    means: Array  # float64, W: blocks × d
    covariances: Array  # float64, P: blocks × d × d
    mean_slopes: Array  # float64, of W by φ: blocks × d
    tail: Array  # float32, (b, h) by hash; of pairs too
    moment: Array  # float64, the sum of zz'
    bases: Array  # float64, U: bases × d × k


class Events(NamedTuple):
    """Hashed examples with their rewards, in the order they are learned from."""

    hashes: Array  # uint32, of all events: the context's, then the chosen action's
    values: Array  # float32
    fields: Array  # uint32, hashes of the JSON keys; those of contexts are not looked at
    starts: Array  # int64: event k has those from starts[k] up to starts[k + 1]
    n_context: Array  # int64, how many of them are the context's
    rewards: Array  # float32
    users: Array  # int64, which personal model is the user's; −1 is none


class KalmanRequest(NamedTuple):
    """A context and actions, hashed: the context's features come first, up to ``starts[0]``."""

    hashes: Array  # uint32
    values: Array  # float32
    fields: Array  # uint32
    starts: Array  # int64, one more than there are actions


class Workspace(NamedTuple):
    """The personal models of a batch: model u has the words from ``starts[u]`` up to ``starts[u + 1]``."""

    starts: Array  # int64
    words: Array  # uint32
    limit: int  # slots of a model at most
    most_biases: int


class Scratch(NamedTuple):
    """Room to work in, for contexts of c features and actions of m."""

    z: Array  # float64, d
    places: Array  # int64, d: where z is not 0
    r: Array  # float64, k
    t_keys: Array  # uint32, c
    t: Array  # float64, c
    keys: Array  # uint32, 1 + m: blocks
    seen: Array  # uint32, room for a table of them
    xs: Array  # float64, 1 + m
    names: Array  # uint32, 1 + m: fields
    where: Array  # int64, (1 + m) × 4: where the weights of a block are
    slopes: Array  # float64, (1 + m) × 5
    gains: Array  # float64, (1 + m) × d
    squares: Array  # float64, 3 × d × d
    pair_fields: Array  # int64, 1 + m: the fields of features, −1 of one that is in no pair
    pair_places: Array  # int64, pairs × 3: where their weights are
    pair_inputs: Array  # float64, pairs
    pair_slopes: Array  # float64, pairs
    pair_taus: Array  # float64, fields × fields


@kernel
def scratch_for(d: int, k: int, n_context: int, n_action: int, n_gains: int) -> Scratch:
    m, paired = 1 + n_action, min(n_action, MOST_PAIRED)
    n_pairs = paired * (paired - 1) // 2
    return Scratch(
        np.empty(d),
        np.empty(d, np.int64),
        np.empty(k),
        np.empty(n_context, np.uint32),
        np.empty(n_context),
        np.empty(m, np.uint32),
        np.empty(table_words(m), np.uint32),
        np.empty(m),
        np.empty(m, np.uint32),
        np.empty((m, 4), np.int64),
        np.empty((m, 5)),
        np.empty((n_gains, d)),
        np.empty((3, d, d)),
        np.empty(m, np.int64),
        np.empty((n_pairs, 3), np.int64),
        np.empty(n_pairs),
        np.empty(n_pairs),
        np.empty((MAX_FIELDS, MAX_FIELDS)),
    )


class ArraySpec(NamedTuple):
    """How one array of ``Shared`` is made. Allocation, growth, files and their checks follow from it."""

    dtype: Any
    shape: tuple[int | str, ...]  # of the array or, if rows are counted, of a row; names are those of ``sizes_of``
    rows: int | None = None  # which of ``counts`` has the number of rows in use: only those are saved
    predicts: bool = True  # whether predictions need it
    saved: bool = True


CORE_COORDINATES, OWN_DIRECTIONS, TAIL_PLACES = "coordinates of the core", "directions of users", "places of the tail"
ARRAYS = {
    "counts": ArraySpec(np.int64, (5,)),
    "numbers": ArraySpec(np.float64, (2,)),
    "drift": ArraySpec(np.float64, (4,), predicts=False),
    "scale_table": ArraySpec(np.uint32, (0,), saved=False),
    "scale_keys": ArraySpec(np.uint32, (SCALE_ROWS,)),
    "scale_core": ArraySpec(np.int32, (SCALE_ROWS,)),
    "scale_seen": ArraySpec(np.int32, (SCALE_ROWS,), predicts=False),
    "scale_first": ArraySpec(np.float32, (SCALE_ROWS, FIRST_VALUES), predicts=False),
    "scale_stats": ArraySpec(np.float64, (SCALE_ROWS, 4)),
    "field_keys": ArraySpec(np.uint32, (), FIELDS),
    "log_tau": ArraySpec(np.float64, (5,), FIELDS),
    "slope_squares": ArraySpec(np.float64, (5,), FIELDS, predicts=False),
    "pair_log_tau": ArraySpec(np.float64, (MAX_FIELDS,), FIELDS),
    "pair_slope_squares": ArraySpec(np.float64, (MAX_FIELDS,), FIELDS, predicts=False),
    "block_table": ArraySpec(np.uint32, (0,), saved=False),
    "block_keys": ArraySpec(np.uint32, (), BLOCKS),
    "block_used": ArraySpec(np.int64, (), BLOCKS, predicts=False),
    "block_log_tau": ArraySpec(np.float64, (2,), BLOCKS),
    "means": ArraySpec(np.float64, (CORE_COORDINATES,), BLOCKS),
    "covariances": ArraySpec(np.float64, (CORE_COORDINATES, CORE_COORDINATES), BLOCKS),
    "mean_slopes": ArraySpec(np.float64, (CORE_COORDINATES,), BLOCKS, predicts=False),
    "tail": ArraySpec(np.float32, (TAIL_PLACES, 2)),
    "moment": ArraySpec(np.float64, (CORE_COORDINATES, CORE_COORDINATES), predicts=False),
    "bases": ArraySpec(np.float64, (CORE_COORDINATES, OWN_DIRECTIONS), BASES),
}
TABLES = {SCALES: ("scale_table", "scale_keys"), BLOCKS: ("block_table", "block_keys")}
# How many rows are allocated at first. Blocks grow, by ``with_room``; kernels rely on the others.
FIRST_ROWS = {FIELDS: MAX_FIELDS, BASES: MAX_BASES, BLOCKS: 1}


def sizes_of(d: int, tail_bits: int) -> dict[str, int]:
    """Return the sizes of a model that the shapes in ``ARRAYS`` name."""
    return {CORE_COORDINATES: d, OWN_DIRECTIONS: min(d, OWN_SIZE), TAIL_PLACES: 1 << tail_bits}


def shape_of(spec: ArraySpec, sizes: Mapping[str, int], rows: Mapping[int, int] | Array) -> tuple[int, ...]:
    """Return the shape of an array; ``rows`` has the number of rows for each of ``counts``."""
    rest = tuple(sizes[size] if isinstance(size, str) else size for size in spec.shape)
    return rest if spec.rows is None else (int(rows[spec.rows]), *rest)


def new_shared(d: int, length: float, max_blocks: int, tail_bits: int) -> Shared:
    """Return a model that has learned nothing, with d coordinates in its core; its scales are yet to be filled in."""
    sizes = sizes_of(d, tail_bits)
    arrays = {name: np.zeros(shape_of(spec, sizes, FIRST_ROWS), spec.dtype) for name, spec in ARRAYS.items()}
    tables = {"scale_table": new_table(MAX_SCALES), "block_table": new_table(max_blocks)}
    shared = Shared(**arrays | tables)
    shared.counts[BASES] = shared.counts[FIELDS] = 1
    shared.numbers[NOISE] = FIRST_NOISE
    shared.numbers[LENGTH] = length
    shared.drift[LOG_DRIFT] = LEAST_LOG_DRIFT
    shared.scale_core[:] = -1
    shared.log_tau[:] = FIRST_LOG_TAU
    shared.log_tau[:, [CORE, CONSTANT]] = FIRST_SHARED_LOG_TAU
    shared.pair_log_tau[:] = FIRST_PAIR_LOG_TAU
    shared.bases[0] = np.eye(d)[:, : sizes[OWN_DIRECTIONS]]
    return shared


def with_room(shared: Shared, n: int) -> Shared:
    """Return the model with room for n blocks."""
    grown: dict[str, Array] = {}
    for name, spec in ARRAYS.items():
        if spec.rows == BLOCKS:
            old = getattr(shared, name)
            grown[name] = np.zeros((n, *old.shape[1:]), old.dtype)
            grown[name][: len(old)] = old
    return shared._replace(**grown)


def with_table(shared: Shared, count: int, n: int) -> Shared:
    """Return the model with a new table of its scales or blocks, for n of them."""
    name, keys = TABLES[count]
    table = new_table(n)
    put_all(table, getattr(shared, keys), shared.counts[count])
    return shared._replace(**{name: table})


def with_sound_tables(shared: Shared) -> Shared:
    """Return the model with new tables, which have other secrets, where a key is too far from its first slot."""
    for count, (name, _) in TABLES.items():
        table = getattr(shared, name)
        if table[LONGEST] > MOST_PROBES:
            shared = with_table(shared, count, (table.size - TABLE_TAIL) // 2)
    return shared


def saved_arrays(shared: Shared) -> dict[str, Array]:
    """Return copies of the arrays that are in files, with the rows in use."""
    arrays = {}
    for name, spec in ARRAYS.items():
        if spec.saved:
            array = getattr(shared, name)
            arrays[name] = np.array(array if spec.rows is None else array[: shared.counts[spec.rows]])
    return arrays


def restored(arrays: Mapping[str, Array], max_blocks: int, tail_bits: int) -> Shared:
    """Return the model whose arrays ``saved_arrays`` returned; refuse arrays that do not fit together."""
    check_shapes(arrays, max_blocks, tail_bits)
    shared = new_shared(len(arrays["moment"]), 1.0, max_blocks, tail_bits)
    shared = with_room(shared, int(arrays["counts"][BLOCKS]))
    order = np.argsort(arrays["scale_keys"] == 0, kind="stable")  # older files have unused rows in between
    for name, array in arrays.items():
        is_of_scales = ARRAYS[name].shape[:1] == (SCALE_ROWS,)
        getattr(shared, name)[: len(array)] = array[order] if is_of_scales else array
    return with_table(with_table(shared, BLOCKS, max_blocks), SCALES, MAX_SCALES)


def check_shapes(arrays: Mapping[str, Array], max_blocks: int, tail_bits: int) -> None:
    """Refuse arrays that are not those of one model of these sizes: kernels would write outside of them."""
    names = sorted(name for name, spec in ARRAYS.items() if spec.saved)
    require(sorted(arrays) == names, "arrays", f"must be {names}", sorted(arrays))
    counts, moment = arrays["counts"], arrays["moment"]
    require(counts.dtype == np.int64 and counts.shape == (5,), "counts", "must be five whole numbers", counts.shape)
    most = {LEARNED: 2**48, SCALES: MAX_SCALES, BLOCKS: max_blocks, BASES: MAX_BASES, FIELDS: MAX_FIELDS}
    for count, bound in most.items():
        least = 0 if count in (LEARNED, SCALES) else 1
        require(least <= counts[count] <= bound, f"counts[{count}]", f"must be in [{least}, {bound}]", counts[count])
    d = moment.shape[0] if moment.ndim else 0
    require(1 <= d <= CORE_SIZE, "moment", f"must have 1 to {CORE_SIZE} coordinates", d)
    sizes = sizes_of(d, tail_bits)
    for name in names:
        dtype, shape = arrays[name].dtype, shape_of(ARRAYS[name], sizes, counts)
        require(dtype == ARRAYS[name].dtype, name, f"must be of type {np.dtype(ARRAYS[name].dtype)}", dtype)
        require(arrays[name].shape == shape, name, f"must have the shape {shape}", arrays[name].shape)


def require(good: Any, name: str, rule: str, value: Any) -> None:
    if not good:
        raise ValueError(f"state: {name} {rule}, got {value}")


@bare_kernel
def slot_words(k: int) -> int:
    """Return the number of words of a slot."""
    return SLOT_HEAD + 2 * k


@inner_kernel
def copy_words(words: Array, into: Array) -> None:
    """Copy as many words as ``words`` has; numba compiles messages of errors for seconds where slices are assigned."""
    for k in range(words.size):
        into[k] = words[k]


@inner_kernel
def _copy_own(words: Array, into: Array, k: int) -> None:
    """Copy a personal model to where there is more or less room between its slots and its biases."""
    n, m = HEAD + slot_words(k) * np.int64(words[0]), BIAS_WORDS * np.int64(words[HEAD - 1])
    copy_words(words[:n], into)
    copy_words(words[words.size - m :], into[into.size - m :])


@kernel
def workspace_for(events: Any, owns: Array, sizes: Array, limit: int, most_biases: int, k: int) -> Workspace:
    """Return a workspace with room for everything a batch can add; ``owns`` are the models' current words."""
    stride, first = slot_words(k), 0
    needed = np.zeros(sizes.size, np.int64)
    for e in range(events.users.size):
        if events.users[e] >= 0:
            needed[events.users[e]] += 1 + events.starts[e + 1] - events.starts[e] - events.n_context[e]
    starts = np.zeros(sizes.size + 1, np.int64)
    for u in range(sizes.size):
        slots = np.int64(owns[first]) if sizes[u] else 0
        biases = max(sizes[u] - HEAD - stride * slots, 0) // BIAS_WORDS
        slots, biases = max(min(slots + needed[u], limit), slots), max(min(biases + needed[u], most_biases), biases)
        starts[u + 1] = starts[u] + HEAD + stride * slots + BIAS_WORDS * biases
        first += sizes[u]
    words, first = np.zeros(starts[sizes.size], np.uint32), 0
    for u in range(sizes.size):
        if sizes[u]:
            _copy_own(owns[first : first + sizes[u]], words[starts[u] : starts[u + 1]], k)
        first += sizes[u]
    return Workspace(starts, words, limit, most_biases)


@kernel
def packed_owns(workspace: Any, k: int) -> Any:
    """Return the words of all models that are in use, and how many each has; a model without blocks has none."""
    sizes = np.zeros(workspace.starts.size - 1, np.int64)
    for u in range(sizes.size):
        head = workspace.words[workspace.starts[u] : workspace.starts[u] + HEAD]
        slots, biases = np.int64(head[0]), np.int64(head[HEAD - 1])
        sizes[u] = HEAD + slots * slot_words(k) + BIAS_WORDS * biases if slots else 0
    words, first = np.empty(sizes.sum(), np.uint32), 0
    for u in range(sizes.size):
        if sizes[u]:
            source = workspace.words[workspace.starts[u] : workspace.starts[u + 1]]
            _copy_own(source, words[first : first + sizes[u]], k)
        first += sizes[u]
    return words, sizes


assert MAX_SCALES <= SCALE_ROWS

"""Learning from a batch of events by one compiled call, bit for bit as ``model.learn`` does one by one.

The personal models of a batch lie one after the other in three arrays (``AdaGradWorkspace``): model u has the slots
from ``starts[u]`` up to ``starts[u + 1]``, the words behind the slots of tables before it not counted, and weights
and sums for those and a constant from ``starts[u] + u`` on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.compiling import kernel
from fedres.key_tables import TAIL
from fedres.scoring.features import Prepared
from fedres.scoring.kernels import expanded, indices_of, learn_personal, learn_shared, part_of, put, slots_of
from fedres.scoring.model import MAX_SLOTS, SMALLEST_TABLE

CHUNK_BITS = 10  # weights of a chunk that is published whole: 1,024


class AdaGradEvents(NamedTuple):
    """Hashed examples with their rewards, in the order they are learned from."""

    hashes: Array  # uint32, of all events
    values: Array  # float32
    starts: Array  # int64: event k has those from starts[k] up to starts[k + 1]
    n_context: Array  # int64, how many of them are the context's
    rewards: Array  # float32
    users: Array  # int64, which personal model is the user's; −1 is none


class AdaGradWorkspace(NamedTuple):
    """The personal models of a batch."""

    starts: Array  # int64, one more than there are models
    counts: Array  # int64, features held by each
    tables: Array  # uint32
    weights: Array  # float32
    squares: Array  # float32


class AdaGradShared(NamedTuple):
    """The shared model."""

    weights: Array
    squares: Array
    span: Array
    shift: int
    changed: Array  # uint8, for each chunk of weights whether it changed


@kernel
def slots_for(n_features: int) -> int:
    """Return the least table, a power of two, that ``n_features`` fill to four fifths at most, and MAX_SLOTS."""
    n_slots = SMALLEST_TABLE
    while 5 * n_features > 4 * n_slots:
        n_slots *= 2
    return min(n_slots, MAX_SLOTS)


@kernel
def workspace_for(events: Any, crosses: bool, counts: Array, n_slots: Array, secret: Array) -> AdaGradWorkspace:
    """Return room for a batch's new features in each model, which has ``counts`` in ``n_slots`` slots now."""
    needed = counts.copy()
    for k in range(events.users.size):
        if events.users[k] >= 0:
            n, m = events.n_context[k], events.starts[k + 1] - events.starts[k] - events.n_context[k]
            needed[events.users[k]] += n + m + (n * m if crosses else 0)
    starts = np.zeros(counts.size + 1, np.int64)
    for u in range(counts.size):
        starts[u + 1] = starts[u] + max(slots_for(needed[u]), n_slots[u])
    size = starts[counts.size]
    numbers = size + counts.size
    tables = np.zeros(size + TAIL * counts.size, np.uint32)
    for u in range(counts.size):
        end = starts[u + 1] + TAIL * u
        tables[end], tables[end + 1] = secret[0], secret[1]
    return AdaGradWorkspace(starts, counts.copy(), tables, np.zeros(numbers, np.float32), np.zeros(numbers, np.float32))


@kernel
def model_in(workspace: Any, u: int) -> Any:
    """Return the table, the weights and the sums of one model."""
    first, last = workspace.starts[u], workspace.starts[u + 1]
    numbers = slice(first + u, last + u + 1)
    table = workspace.tables[first + TAIL * u : last + TAIL * (u + 1)]
    return table, workspace.weights[numbers], workspace.squares[numbers]


@kernel
def fill_model(table: Array, weights: Array, squares: Array, model: Any) -> None:
    """Put the features of another table into an empty one, with their numbers."""
    keys, old_weights, old_squares = model
    held = np.flatnonzero(keys[: keys.size - TAIL])
    slots, _ = put(table, keys[held], 0)
    for k in range(held.size):
        weights[slots[k]], squares[slots[k]] = old_weights[held[k]], old_squares[held[k]]
    weights[-1], squares[-1] = old_weights[-1], old_squares[-1]


@kernel
def learn_batch(events: Any, shared: Any, workspace: Any, crosses: bool, rate: float) -> None:
    """Let the shared model and the personal ones learn from events, each from the residuals of the other."""
    how = (1.0, rate)
    for k in range(events.users.size):
        first, last, user, label = events.starts[k], events.starts[k + 1], events.users[k], events.rewards[k]
        starts = np.array([events.n_context[k], last - first])
        prepared = Prepared(events.hashes[first:last], events.values[first:last], starts, crosses)
        example = expanded(prepared, 0)
        keys, values = example
        indices = indices_of(keys, shared.shift)
        for j in range(indices.size):
            shared.changed[indices[j] >> CHUNK_BITS] = 1
        shared.changed[-1] = 1  # the constant's
        if user < 0:
            learn_shared(shared.weights, shared.squares, shared.span, example, shared.shift, label, 0.0, how)
            continue
        table, weights, squares = model_in(workspace, user)
        offset = part_of(shared.weights, indices, values, 0.0)
        own = part_of(weights, slots_of(keys, table), values, 0.0)
        learn_shared(shared.weights, shared.squares, shared.span, example, shared.shift, label, own, how)
        span = (shared.span[0], shared.span[1])
        workspace.counts[user] = learn_personal(
            table, weights, squares, workspace.counts[user], example, span, label, offset, how
        )

"""``residual-kalman``: one Bayesian regression for all users and a cheap one for each, with learned prior variances.

The equations are in ``residual_kalman_reference``, to which tests hold this compiled version. The shared state is a
``Shared`` of plain arrays, a user's an array of words that the caller keeps, so that both can be published and saved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.decisions.constants import (
    CONTEXT_UNIT,
    CORE_COUNT,
    CORE_SIZE,
    HEAD,
    MAX_BLOCKS,
    OWN_BYTES,
    START_EVENTS,
    TAIL_BITS,
    own_slots,
)
from fedres.decisions.kalman_inputs import action_value, find_scale, key_of, put_block, scale_of
from fedres.decisions.kalman_kernels import learn_all, predict
from fedres.decisions.kalman_own import turn_own
from fedres.decisions.kalman_state import (
    BLOCKS,
    LEARNED,
    ROWS_BY_COUNT,
    Events,
    Request,
    Shared,
    new_shared,
    packed_owns,
    scratch_for,
    with_room,
    workspace_for,
)

Numbers = Sequence[int] | Sequence[float] | Array
NO_MODEL: Array = np.zeros(0, np.uint32)  # of a user who has learned nothing yet


class Prediction(NamedTuple):
    """Expected rewards of actions, and how uncertain they are."""

    means: Array  # shared + personal
    widths: Array  # standard deviations
    shared: Array
    personal: Array


class Owns(NamedTuple):
    """Personal models one after the other."""

    words: Array  # uint32
    sizes: Array  # int64, words of each


NO_OWNS = Owns(NO_MODEL, np.zeros(0, np.int64))


class ResidualKalman:
    """The model of a loop. Rewards lie in ``reward_range``.

    >>> model = ResidualKalman()
    >>> request = request_of(([7], [3.5]), [([11], [1.0], [5]), ([12], [1.0], [5])])
    >>> model.predict(request).means
    array([0., 0.])
    """

    def __init__(
        self,
        reward_range: tuple[float, float] = (0.0, 1.0),
        *,
        max_blocks: int = MAX_BLOCKS,
        tail_bits: int = TAIL_BITS,
        own_bytes: int = OWN_BYTES,
    ) -> None:
        low, high = reward_range
        if not -np.inf < low < high < np.inf:
            raise ValueError(f"reward_range must be two finite rising numbers, got {reward_range}")
        checks.whole("max_blocks", max_blocks, least=2)
        checks.whole("tail_bits", tail_bits)
        checks.whole("own_bytes", own_bytes)
        self.low, self.span = float(low), float(high) - float(low)
        self.max_blocks, self.tail_bits, self.own_bytes = max_blocks, tail_bits, own_bytes
        self.start = events_of([])
        self.shared: Shared | None = None

    @property
    def learned(self) -> int:
        """How many rewards were learned, those of the start included."""
        return self.start.users.size if self.shared is None else int(self.shared.counts[LEARNED])

    def predict(self, request: Request, own: Array | None = None) -> Prediction:
        """Return means and widths of the actions of a request for the user with the model ``own``.

        ``NO_MODEL`` is a user who has none yet, None is nobody. Before 16 rewards are known all actions are alike.
        """
        n = request.starts.size - 1
        if self.shared is None:
            low, zeros = np.full(n, self.low), np.zeros(n)
            return Prediction(low, np.full(n, self.span), low, zeros)
        parts = np.empty((n, 3))
        predict(self.shared, NO_MODEL if own is None else own, own is not None, request, parts)
        shared, personal = self.low + self.span * parts[:, 0], self.span * parts[:, 1]
        return Prediction(shared + personal, self.span * np.sqrt(np.maximum(parts[:, 2], 0.0)), shared, personal)

    def learn(self, events: Events, owns: Sequence[Array] = ()) -> list[Array]:
        """Learn from events in their order; return the models of their users, ``owns[events.users[k]]`` being of k.

        The first 16 events are kept until they are complete, then learned by the shared model only.
        """
        sizes = np.array([own.size for own in owns], np.int64)
        for u in np.flatnonzero((sizes > 0) & (sizes < HEAD)).tolist():
            raise ValueError(f"owns[{u}] must be a personal model or empty, got {sizes[u]} words")
        words = np.concatenate([NO_MODEL, *owns]).astype(np.uint32, copy=False)
        learned = self.learn_packed(events, Owns(words, sizes))
        return [np.array(own) for own in np.split(learned.words, np.cumsum(learned.sizes))[: len(owns)]]

    def learn_packed(self, events: Events, owns: Owns, beside: Array | None = None) -> Owns:
        """Do so with personal models that lie one after the other.

        ``beside`` has the mean and the variance of what another model predicts of each event, in shares of the range
        of rewards: then this one learns what that leaves over. The start does not look at it.
        """
        if self.shared is None:
            n = min(START_EVENTS - self.start.users.size, events.users.size)
            self.start = _joined(self.start, _nobodys(_part(events, 0, n)))
            events, beside = _part(events, n, events.users.size), None if beside is None else beside[n:]
            if self.start.users.size < START_EVENTS:
                return owns
            self.shared = _settled(self.start, self.max_blocks, self.tail_bits)
            self._learn(self.start, NO_OWNS, None, new=False)
            self.start = events_of([])
        return self._learn(events, owns, beside, new=True)

    def _learn(self, events: Events, owns: Owns, beside: Array | None, *, new: bool) -> Owns:
        if self.shared is None or events.users.size == 0:
            return owns
        n_blocks = 1 + int(self.shared.counts[BLOCKS]) + int((np.diff(events.starts) - events.n_context).sum())
        room = min(self.max_blocks, 1 << (n_blocks - 1).bit_length())
        if room > self.shared.block_keys.size:
            self.shared = with_room(self.shared, room)
        k = self.shared.bases.shape[2]
        workspace = workspace_for(events, *owns, own_slots(k, self.own_bytes), k)
        beside = np.zeros((events.users.size, 2)) if beside is None else beside
        learn_all(self.shared, events, workspace, self.low, self.span, new, beside)
        return Owns(*packed_owns(workspace, k))

    def to_arrays(self) -> dict[str, Array]:
        """Return all that was learned, but for personal models: the same arrays however events were batched."""
        if self.shared is None:
            return {f"start.{name}": array for name, array in self.start._asdict().items()}
        found = self.shared._asdict()
        del found["block_table"]
        for name, count in ROWS_BY_COUNT.items():
            found[name] = found[name][: self.shared.counts[count]]
        return {name: np.array(array) for name, array in found.items()}

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Go on from what ``to_arrays`` of a model with the same settings returned."""
        if "start.users" in arrays:
            self.start = Events(*[np.array(arrays[f"start.{name}"]) for name in Events._fields])
            self.shared = None
            return
        shared = new_shared(arrays["moment"].shape[0], 1.0, self.max_blocks, self.tail_bits)
        for name, old in shared._asdict().items():
            if name in arrays and name.startswith(("block", "mean", "covariances")):
                shared = shared._replace(**{name: np.array(arrays[name])})
            elif name in arrays:
                old[: len(arrays[name])] = arrays[name]
        for place, key in enumerate(shared.block_keys):
            put_block(shared.block_table, key, place)
        self.start, self.shared = events_of([]), shared


def _settled(start: Events, max_blocks: int, tail_bits: int) -> Shared:
    """Return a model whose scales and core are settled by the start's events."""
    counts: dict[int, int] = {}
    for k in range(start.users.size):
        first, middle = start.starts[k], start.starts[k] + start.n_context[k]
        held = {int(key_of(key)) for key in start.hashes[first:middle][start.values[first:middle] != 0]}
        for key in held:
            counts[key] = counts.get(key, 0) + 1
    frequent = sorted((-n, key) for key, n in counts.items() if n >= CORE_COUNT)[: CORE_SIZE - 1]
    length = float(np.sqrt(1 + sum(counts.values()) / start.users.size))
    shared = new_shared(1 + len(frequent), length, max_blocks, tail_bits)
    for k in range(start.users.size):
        for j in range(start.starts[k], start.starts[k + 1]):
            value = float(start.values[j])
            if value and j < start.starts[k] + start.n_context[k]:
                scale_of(shared, key_of(start.hashes[j]), value, True, CONTEXT_UNIT)
            elif value:
                action_value(shared, start.hashes[j], value, start.fields[j], True)
    for place, (_, key) in enumerate(frequent):
        shared.scale_core[find_scale(shared.scale_keys, np.uint32(key))] = 1 + place
    return shared


def in_present_basis(shared: Shared, own: Array) -> Array:
    """Return a personal model turned to the basis of the shared one."""
    turned, (d, k) = own.copy(), shared.bases.shape[1:]
    if own.size:
        turn_own(shared, turned, scratch_for(d, k, 1, 1, 1))
    return turned


def request_of(
    context: tuple[Sequence[int], Sequence[float]],
    actions: Sequence[tuple[Sequence[int], Sequence[float], Sequence[int]]],
) -> Request:
    """Return a context (hashes, values) and actions (hashes, values, fields) as a request."""
    rows = [(*context, np.zeros(len(context[0]))), *actions]
    return Request(
        np.concatenate([np.asarray(row[0], np.uint32) for row in rows]),
        np.concatenate([np.asarray(row[1], np.float32) for row in rows]),
        np.concatenate([np.asarray(row[2], np.uint32) for row in rows]),
        np.cumsum([len(row[0]) for row in rows], dtype=np.int64),
    )


def events_of(examples: Sequence[tuple[Request, int, float, int]]) -> Events:
    """Return events from (request, action taken, reward, user's model or −1)."""
    rows, n_context = [], []
    for request, action, _, _ in examples:
        n, first, last = request.starts[0], request.starts[action], request.starts[action + 1]
        rows.append([np.concatenate([array[:n], array[first:last]]) for array in request[:3]])
        n_context.append(n)
    columns = [*zip(*rows, strict=True)] or [(), (), ()]
    return Events(
        np.concatenate([np.zeros(0, np.uint32), *columns[0]]),
        np.concatenate([np.zeros(0, np.float32), *columns[1]]),
        np.concatenate([np.zeros(0, np.uint32), *columns[2]]),
        np.cumsum([0, *[row[0].size for row in rows]], dtype=np.int64),
        np.array(n_context, np.int64),
        np.array([reward for *_, reward, _ in examples], np.float32),
        np.array([user for *_, user in examples], np.int64),
    )


def _part(events: Events, first: int, last: int) -> Events:
    inside = slice(events.starts[first], events.starts[last])
    return Events(
        events.hashes[inside],
        events.values[inside],
        events.fields[inside],
        events.starts[first : last + 1] - events.starts[first],
        *[array[first:last] for array in events[4:]],
    )


def _joined(one: Events, other: Events) -> Events:
    columns = {name: np.concatenate([getattr(one, name), getattr(other, name)]) for name in Events._fields}
    columns["starts"] = np.concatenate([one.starts, one.starts[-1] + other.starts[1:]])
    return Events(**columns)


def _nobodys(events: Events) -> Events:
    return events._replace(users=np.full(events.users.size, -1, np.int64))

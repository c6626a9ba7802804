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
    CHOICE_EVENTS,
    CHOICE_FIELDS,
    CORE_COUNT,
    CORE_SIZE,
    FIRST_LOG_TAU,
    FIRST_SHARED_LOG_TAU,
    FIRST_VALUES,
    HEAD,
    MAX_BLOCKS,
    MOST_KEPT,
    OWN_BYTES,
    START_EVENTS,
    TAIL_BITS,
    own_biases,
    own_slots,
)
from fedres.decisions.kalman_inputs import find_scale, key_of, settle_events
from fedres.decisions.kalman_kernels import learn_all, predict
from fedres.decisions.kalman_own import turn_own
from fedres.decisions.kalman_state import (
    BLOCKS,
    CONSTANT,
    CORE,
    FIELDS,
    LEARNED,
    Events,
    KalmanRequest,
    Shared,
    new_shared,
    packed_owns,
    restored,
    saved_arrays,
    scratch_for,
    with_room,
    with_sound_tables,
    workspace_for,
)

NO_MODEL: Array = np.zeros(0, np.uint32)  # of a user who has learned nothing yet


class Prediction(NamedTuple):
    """Expected rewards of actions, and how uncertain they are."""

    means: Array  # shared + personal
    widths: Array  # how unsure they are, in rewards
    shared: Array
    personal: Array


class Owns(NamedTuple):
    """Personal models one after the other."""

    words: Array  # uint32
    sizes: Array  # int64, words of each


NO_OWNS = Owns(NO_MODEL, np.zeros(0, np.int64))


class KeptEvents:
    """Events that are kept to be learned again, and how many they are."""

    def __init__(self, parts: Sequence[Events] = ()) -> None:
        self.parts: list[Events] = []
        self.n_events = 0
        self.n_features = 0
        for part in parts:
            self.add(part)

    def add(self, part: Events) -> None:
        self.parts.append(part)
        self.n_events += part.users.size
        self.n_features += part.hashes.size

    def joined(self) -> Events:
        return _joined(self.parts)


class ResidualKalman:
    """The model of a loop. Rewards lie in ``reward_range``.

    After ``choice_events`` they are learned again to choose a field (``_choose``), never if 0.

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
        choice_events: int = CHOICE_EVENTS,
    ) -> None:
        low, high = reward_range
        if not -np.inf < low < high < np.inf:
            raise ValueError(f"reward_range must be two finite rising numbers, got {reward_range}")
        checks.whole("max_blocks", max_blocks, least=2)
        checks.whole("tail_bits", tail_bits)
        checks.whole("own_bytes", own_bytes)
        checks.whole("choice_events", choice_events, least=0)
        self.low, self.span = float(low), float(high) - float(low)
        self.max_blocks, self.tail_bits, self.own_bytes = max_blocks, tail_bits, own_bytes
        self.choice_events = choice_events
        self.first: KeptEvents | None = KeptEvents()  # all events so far, until they were learned again
        self.shared: Shared | None = None

    @property
    def learned(self) -> int:
        """How many rewards were learned, those of the start included."""
        if self.shared is not None:
            return int(self.shared.counts[LEARNED])
        return 0 if self.first is None else self.first.n_events

    def predict(self, request: KalmanRequest, own: Array | None = None) -> Prediction:
        """Return means and widths of the actions of a request for the user with the model ``own``.

        ``NO_MODEL`` is for a user without a model, None for no user. Before 16 rewards all actions are equal.
        """
        n = request.starts.size - 1
        if self.shared is None:
            low, zeros = np.full(n, self.low), np.zeros(n)
            return Prediction(low, np.full(n, self.span), low, zeros)
        parts = np.empty((n, 3))
        predict(self.shared, NO_MODEL if own is None else own, own is not None, fixed(request), parts)
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

    def learn_packed(
        self, events: Events, owns: Owns, beside: Array | None = None, left: Array | None = None
    ) -> Owns:  # fmt: skip
        """Do the same with personal models in one array, one after the other.

        ``beside`` has mean and variance of another model's prediction for each event, in shares of the range of
        rewards: then this model learns the residuals. The start ignores it.

        ``left``, zeros, is filled with the error of each event before it was learned and the length of its inputs;
        those of the start stay 0.
        """
        left = np.zeros((events.users.size, 2)) if left is None else left
        if beside is not None:
            left[:] = beside
        while self.first is not None and events.users.size:
            if self.shared is not None and beside is not None:
                self.first = None  # residuals cannot be learned again
                break
            n = self._n_kept(self.first, events)
            part = _part(events, 0, n)
            self.first.add(_kept(part))
            if self.shared is None:
                self._settle(self.first)
            else:
                owns = self._learn(part, owns, left[:n])
            events, left = _part(events, n, events.users.size), left[n:]
            self._choose(self.first)
        return self._learn(events, owns, left)

    def _n_kept(self, first: KeptEvents, events: Events) -> int:
        """Return how many of the events fit before the next step: the end of the start, or the choice."""
        until = START_EVENTS if self.shared is None else self.choice_events
        n = min(until - first.n_events, events.users.size)
        if self.shared is None:
            return n
        room = MOST_KEPT - first.n_features
        return min(n, 1 + int(np.searchsorted(events.starts[1:] - events.starts[0], room)))

    def _settle(self, first: KeptEvents) -> None:
        """Begin, once the events of the start are complete."""
        if first.n_events == START_EVENTS:
            start = first.joined()
            self.shared = _settled(start, self.max_blocks, self.tail_bits)
            self.shared, _, _ = self._learned(self.shared, start, NO_OWNS, None, new=False)
            if self.choice_events <= START_EVENTS:
                self.first = None

    def _choose(self, first: KeptEvents | None) -> None:
        """Learn the first events again: with τ of one field of actions at a time at 1, and of the others at 0.01.

        The trial with the least error stays. Blocks learn as if independent: fields with the same effect, such as an
        article and its topic, share it by their τ, and each keeps its share even if its τ is learned better later.
        """
        if first is None or self.shared is None:
            return
        if first.n_events < self.choice_events and first.n_features < MOST_KEPT:
            return
        events = first.joined()
        self.first = None
        n_fields, n, least = int(self.shared.counts[FIELDS]), events.users.size, np.inf
        start, *rest = (_part(events, at, min(at + START_EVENTS, n)) for at in range(0, n, START_EVENTS))
        fields = range(1, min(n_fields, 1 + CHOICE_FIELDS)) if n_fields > 2 and rest else ()
        for field in fields:
            trial = _settled(start, self.max_blocks, self.tail_bits)
            trial.log_tau[1:n_fields, CORE] = trial.log_tau[1:n_fields, CONSTANT] = FIRST_LOG_TAU
            trial.log_tau[field, CORE] = trial.log_tau[field, CONSTANT] = FIRST_SHARED_LOG_TAU
            trial, _, _ = self._learned(trial, start, NO_OWNS, None, new=False)
            squares = 0.0
            for part in rest:  # a few at a time, as room is made for all possible blocks
                trial, _, more = self._learned(trial, part, NO_OWNS, None, new=True)
                squares += more
            if squares < least:
                self.shared, least = trial, squares

    def _learn(self, events: Events, owns: Owns, beside: Array) -> Owns:
        if self.shared is not None and events.users.size:
            self.shared, owns, _ = self._learned(self.shared, events, owns, beside, new=True)
        return owns

    def _learned(
        self, shared: Shared, events: Events, owns: Owns, beside: Array | None, *, new: bool
    ) -> tuple[Shared, Owns, float]:
        """Learn events with a shared model; return it, the personal ones, and the sum of squared errors."""
        shared = with_sound_tables(shared)
        n_blocks = 1 + int(shared.counts[BLOCKS]) + int((np.diff(events.starts) - events.n_context).sum())
        room = min(self.max_blocks, 1 << (n_blocks - 1).bit_length())
        if room > shared.block_keys.size:
            shared = with_room(shared, room)
        k = shared.bases.shape[2]
        workspace = workspace_for(events, *owns, own_slots(k, self.own_bytes), own_biases(self.own_bytes), k)
        beside = np.zeros((events.users.size, 2)) if beside is None else beside
        squares = learn_all(shared, events, workspace, self.low, self.span, new, beside)
        return shared, Owns(*packed_owns(workspace, k)), squares

    def forget_events(self) -> bool:
        """Forget the events kept for relearning; an unfinished start begins again. Return whether any were kept.

        Scales that wait for further values stay as they are.
        """
        kept = self.first is not None and self.first.n_events > 0
        if self.shared is not None:
            kept |= bool(self.shared.scale_first.any())
        self.first = KeptEvents() if self.shared is None else None
        if self.shared is not None:
            _forget_values(self.shared)
        return kept

    def to_arrays(self, *, events: bool = True) -> dict[str, Array]:
        """Return the model without personal models: the same arrays however events were batched.

        Without ``events``, the arrays are those after ``forget_events``.
        """
        kept: dict[str, Array] = {}
        if events and self.first is not None and self.first.n_events:
            kept = {f"first.{name}": array for name, array in self.first.joined()._asdict().items()}
        if self.shared is None:
            return kept
        shared = self.shared
        if not events:
            shared = shared._replace(scale_first=shared.scale_first.copy(), scale_seen=shared.scale_seen.copy())
            _forget_values(shared)
        return saved_arrays(shared) | kept

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        """Restore the arrays that ``to_arrays`` of a model with the same settings returned; refuse any others."""
        first = {name.removeprefix("first."): array for name, array in arrays.items() if name.startswith("first.")}
        of_shared = {name: array for name, array in arrays.items() if not name.startswith("first.")}
        shared = restored(of_shared, self.max_blocks, self.tail_bits) if of_shared else None
        kept = [Events(**{name: np.array(array) for name, array in first.items()})] if first else []
        self.shared = shared
        self.first = KeptEvents(kept) if kept or not of_shared else None


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
    settle_events(shared, start)
    for place, (_, key) in enumerate(frequent):
        shared.scale_core[find_scale(shared, np.uint32(key))] = 1 + place
    return shared


def _forget_values(shared: Shared) -> None:
    """Settle all scales by the values so far."""
    shared.scale_first[:] = 0.0
    shared.scale_seen[shared.scale_seen > 0] = FIRST_VALUES


def in_present_basis(shared: Shared, own: Array) -> Array:
    """Return a personal model turned to the basis of the shared one."""
    turned, (d, k) = own.copy(), shared.bases.shape[1:]
    if own.size:
        turn_own(shared, turned, scratch_for(d, k, 1, 1, 1))
    return turned


def fixed(request: KalmanRequest) -> KalmanRequest:
    """Return a request that cannot be written to, as a ranker's: kernels are compiled once for both."""
    hashes, values, fields = (column.view() for column in request[:3])
    for column in (hashes, values, fields):
        column.flags.writeable = False
    return KalmanRequest(hashes, values, fields, request.starts)


def request_of(
    context: tuple[Sequence[int], Sequence[float]],
    actions: Sequence[tuple[Sequence[int], Sequence[float], Sequence[int]]],
) -> KalmanRequest:
    """Return a context (hashes, values) and actions (hashes, values, fields) as a request."""
    rows = [(*context, np.zeros(len(context[0]))), *actions]
    return KalmanRequest(
        np.concatenate([np.asarray(row[0], np.uint32) for row in rows]),
        np.concatenate([np.asarray(row[1], np.float32) for row in rows]),
        np.concatenate([np.asarray(row[2], np.uint32) for row in rows]),
        np.cumsum([len(row[0]) for row in rows], dtype=np.int64),
    )


def events_of(examples: Sequence[tuple[KalmanRequest, int, float, int]]) -> Events:
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


def _kept(events: Events) -> Events:
    """Return a copy that names no users."""
    copied = {name: np.array(array) for name, array in events._asdict().items()}
    return Events(**copied | {"users": np.full(events.users.size, -1, np.int64)})


def _joined(parts: Sequence[Events]) -> Events:
    parts = [events_of([]), *parts]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in Events._fields}
    columns["starts"] = np.cumsum([0, *np.concatenate([np.diff(part.starts) for part in parts])], dtype=np.int64)
    return Events(**columns)

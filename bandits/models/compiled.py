"""FedRes on AdaGrad, compiled, asked from Python one decision at a time.

A call of compiled code costs by what is handed over, number or array, here more than what is done with it. So all
models are one array (``state``), what never changes is another (``setup``: the sizes of the shared and of a personal
model, and their rates), features that both sides share are handed over once, and a reward is learned with the next
decision. ``room`` is for kernels to work in: four numbers an action, and a context.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from bandits.actions import Actions
from bandits.models.adagrad import (
    SEEN,
    WEIGHED,
    Table,
    average,
    centre,
    learn_alone,
    learn_residual,
    learn_shared,
    new_state,
    offset_of,
    predict,
)
from bandits.models.protocol import SCHEMES, Choice, Draw, Prediction, Sample
from fedres import checks
from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel
from fedres.policies.kernels import draw, explore, pick

Maybe = Any  # a table, or None for private features that are the shared ones: numba compiles a kernel for each


@inner_kernel
def parts(state: Array, setup: Array, stride: int, slot: int) -> tuple[Array, Array, Array, Array]:
    """Return the shared model, a client's own, quick and slow, and what else it keeps.

    ``stride`` is the size of a private context, 0 where actions have rows.
    """
    common, own = int(setup[0]), int(setup[1])
    slow = own if common > 4 else 0  # nothing is slow where nothing is shared
    kept = 2 * (SEEN + stride) if own > 4 else 2 * SEEN  # numbers of 64 bits in places of 32
    start = common + slot * (own + slow + kept)
    half, end = start + own, start + own + slow
    return state[:common], state[start:half], state[half:end], state[end : end + kept].view(np.float64)


@inner_kernel
def _scores(state: Array, setup: Array, slot: int, x: Table, z: Table, out: Array, room: Array) -> None:
    indices, values, stride = z
    shared, mine, slow, its = parts(state, setup, stride, slot)
    if its.size > SEEN:
        seen = room[room.size - stride :].reshape((1, stride))
        centre(its, values[0], seen[0])
        predict(shared, mine, slow, its, x, (indices, seen, stride), out, room)
    else:
        predict(shared, mine, slow, its, x, z, out, room)


@bare_kernel
def scores(state: Array, setup: Array, slot: int, x: Table, z: Maybe, out: Array, room: Array) -> None:
    """Write the predictions for one of many clients; private features that are None are the shared ones."""
    if z is None:
        _scores(state, setup, slot, x, x, out, room)
    else:
        _scores(state, setup, slot, x, z, out, room)


@bare_kernel
def decide(
    state: Array,
    setup: Array,
    slot: int,
    x: Table,
    z: Maybe,
    some: bool,
    rule: Array,
    drawn: Draw,
    out: Array,
    room: Array,
) -> tuple[int, float]:
    """Write the predictions, and return the action drawn and its probability.

    Where only ``some`` are allowed, ``out`` says which, 1 or 0, before it is written.
    """
    (n, seed, client), n_actions = drawn, out.size
    probabilities, allowed = room[2 * n_actions : 3 * n_actions], room[3 * n_actions : 4 * n_actions]
    for a in range(n_actions):
        allowed[a] = out[a] if some else 1.0
    scores(state, setup, slot, x, z, out, room)
    explore(rule, n, n, out, out, allowed, probabilities)  # no widths: its policies look at none
    action = pick(probabilities, draw(seed, client, n))
    return action, probabilities[action]


@inner_kernel
def _learn(
    state: Array, setup: Array, slot: int, action: int, x: Table, z: Table, reward: float, alone: bool, room: Array
) -> float:
    (g_indices, g_values, g_stride), (l_indices, l_values, l_stride) = x, z
    where, features = g_indices[min(action, len(g_indices) - 1)], g_values[min(action, len(g_values) - 1)]
    here, seen = l_indices[min(action, len(l_indices) - 1)], l_values[min(action, len(l_values) - 1)]
    shift, there = action * g_stride, action * l_stride
    shared, mine, slow, its = parts(state, setup, l_stride, slot)
    shared_rate, personal_rate = setup[2], setup[3]
    part = 0.0
    if mine.size > 4:
        own = seen
        if its.size > SEEN:
            own = room[room.size - l_stride :]
            centre(its, seen, own)
        if shared.size > 4:
            offset = offset_of(shared, where, shift, features)
            part = learn_residual(mine, slow, its, here, there, own, reward, offset, personal_rate)
        else:
            learn_alone(mine, here, there, own, reward, personal_rate)
        average(its, seen)
    if alone and shared.size > 4:
        learn_shared(shared, where, shift, features, reward, part, shared_rate, mine.size > 4)
    return part


@bare_kernel
def learn(
    state: Array, setup: Array, slot: int, action: int, x: Table, z: Maybe, reward: float, alone: bool, room: Array
) -> float:
    """Let a client learn, and if it is ``alone`` in its round the shared model too; return what it uploads."""
    if z is None:
        return _learn(state, setup, slot, action, x, x, reward, alone, room)
    return _learn(state, setup, slot, action, x, z, reward, alone, room)


@bare_kernel
def learn_and_decide(
    state: Array,
    setup: Array,
    slot: int,
    action: int,
    last: Table,
    reward: float,
    next_slot: int,
    x: Table,
    rule: Array,
    drawn: Draw,
    out: Array,
    room: Array,
) -> tuple[int, float]:
    """Do both, where private features are the shared ones: a call costs more than it does."""
    learn(state, setup, slot, action, last, None, reward, True, room)
    return decide(state, setup, next_slot, x, None, False, rule, drawn, out, room)


class AdaGradModel:
    """``BanditModel`` of the three schemes; personal models of 16 bytes a feature, 8 where nothing is shared.

    ``dims`` are the shared and the private weights, and ``stride`` is that of the private actions.
    """

    reusable = True

    def __init__(
        self, scheme: str, dims: tuple[int, int], stride: int, rates: tuple[float, float], delay: int = 0
    ) -> None:
        checks.one_of("scheme", scheme, SCHEMES)
        shared = new_state(0 if scheme == "independent" else dims[0])
        shared[1] = 0  # as in fedres-adagrad: its range grows with the rewards that come in
        own = new_state(0 if scheme == "central" else dims[1])
        slow = own if shared.size > 4 else own[:0]
        if shared.size > 4 and own.size > 4:
            shared = np.concatenate([shared, shared, np.zeros(WEIGHED, dtype=np.float32)])
        kept = np.zeros(SEEN + stride if own.size > 4 else SEEN)
        self.newcomer = np.concatenate([own, slow, kept.view(np.float32)])
        self.common, self.own = shared.size, own.size
        self.state = np.append(shared, self.newcomer)
        self.setup = np.array([self.common, self.own, *rates])
        self.stride = stride
        self._make_room(1)
        self.version = 0
        self.due: Sample | None = None  # the only sample of the last round, learned with the next decision
        self.waiting: deque[list[tuple[Sample, float]]] = deque([] for _ in range(delay))

    @property
    def shared(self) -> Array:
        return self.state[: self.common]

    @property
    def clients(self) -> Array:
        """One row a client."""
        return self.state[self.common :].reshape(-1, self.newcomer.size)

    def join(self, slot: int) -> None:
        self._settle()
        while slot >= len(self.clients):
            self.state = np.append(self.state, np.tile(self.newcomer, len(self.clients)))
        self.leave(slot)

    def leave(self, slot: int) -> None:
        self._settle()
        self.clients[slot] = self.newcomer

    def predict(self, slot: int, shared: Actions, private: Actions) -> Prediction:
        self._settle()
        self._make_room(shared.n)
        out = np.empty(shared.n)
        scores(self.state, self.setup, slot, shared[2:], private[2:], out, self.room)
        return out, None

    def progress(self, slot: int, n: int) -> int:
        return n

    def decide(
        self, slot: int, shared: Actions, private: Actions, allowed: Array | None, rule: Array, drawn: Draw
    ) -> Choice:
        """Do what ``Predicting`` does, in one call of compiled code, which learns what is due as well."""
        n, x = shared.n, shared[2:]
        if n != self.n_actions:
            self._make_room(n)
        due, self.due = self.due, None
        models, room = (self.state, self.setup), self.room
        if due is not None and allowed is None and private is shared and due[2] is due[3]:
            out = np.empty(n)
            who, taken, last, _, reward = due
            action, probability = learn_and_decide(
                *models, who, taken, last[2:], reward, slot, x, rule, drawn, out, room
            )
            return action, probability, out, None
        if due is not None:
            self._learn(due, True)
        out = np.empty(n) if allowed is None else allowed.astype(np.float64)
        z, some = None if private is shared else private[2:], allowed is not None
        action, probability = decide(*models, slot, x, z, some, rule, drawn, out, room)
        return action, probability, out, None

    def play(self, samples: list[Sample]) -> None:
        if self.due is not None:
            self._settle()
        if len(samples) == 1 and not self.waiting:
            self.due = samples[0]
            self.version += self.common > 4
            return
        self.waiting.append([(sample, self._learn(sample, False)) for sample in samples])
        arrived = self.waiting.popleft()
        if arrived and self.common > 4:
            self._learn_shared(arrived)
            self.version += 1

    def close(self) -> None:
        """Nothing to free."""

    def to_arrays(self) -> dict[str, Array]:
        self._settle()
        return {"shared": self.shared.copy(), "clients": self.clients.copy()}

    def load_arrays(self, arrays: Mapping[str, Array]) -> None:
        self.due, self.state = None, np.concatenate([arrays["shared"], arrays["clients"].ravel()])

    def _make_room(self, n: int) -> None:
        self.n_actions, self.room = n, np.empty(4 * n + self.stride)

    def _settle(self) -> None:
        """Learn what is due."""
        if self.due is not None:
            self._learn(self.due, True)
            self.due = None

    def _learn(self, sample: Sample, alone: bool) -> float:
        slot, action, shared, private, reward = sample
        z = None if private is shared else private[2:]
        return learn(self.state, self.setup, slot, action, shared[2:], z, reward, alone, self.room)

    def _learn_shared(self, arrived: list[tuple[Sample, float]]) -> None:
        for (_, action, x, _, reward), part in arrived:
            indices, shift, values = x.take(action)
            learn_shared(self.shared, indices, shift, values, reward, part, self.setup[2], self.own > 4)

"""A policy against a stream: the very decisions that ``FederatedBandit`` would make, faster; with AdaGrad, compiled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from bandits.actions import Actions
from bandits.models.adagrad import SEEN, average, centre, learn_residual, learn_shared, predict, step_from
from bandits.models.compiled import AdaGradModel
from bandits.models.kinds import Kind, check_model, default_model, default_rates, model_kind
from bandits.models.protocol import SCHEMES
from bandits.streams import Chunk, Stream
from fedres import checks
from fedres.checks import Array
from fedres.compiling import bare_kernel
from fedres.policies import Compiled, Policy, name_of
from fedres.policies.kernels import AMOUNT, CODE, EXPLORE_EVERY, check_seed, draw, explore, pick

_ONE = np.float32(1)

# Arrays that belong together; a kernel unpacks them on its first lines.
Group = tuple[Any, ...]


class Outcome(NamedTuple):
    """What came of a replay, round by round and client by client: all are (T, P)."""

    action: Array
    probability: Array
    reward: Array
    regret: Array  # expected reward of the best action less that of the chosen


def replay(
    stream: Stream,
    policy: Policy,
    scheme: str = "fedres",
    *,
    model: str | None = None,
    delay: int = 0,
    rates: tuple[float, float] | None = None,
    seed: int = 0,
) -> Outcome:
    """Play all clients of a stream in turn, round by round; messages take ``delay`` rounds, there and back together."""
    player: ReplayPlayer | None = None
    parts = []
    for chunk in stream:
        if player is None:
            player = make_player(stream, chunk, policy, scheme, model=model, delay=delay, rates=rates, seed=seed)
        action, probability = player.play(chunk)
        parts.append(_judge(chunk, action, probability))
    return Outcome(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def make_player(
    stream: Stream,
    first: Chunk,
    policy: Policy,
    scheme: str = "fedres",
    *,
    model: str | None = None,
    delay: int = 0,
    rates: tuple[float, float] | None = None,
    seed: int = 0,
) -> ReplayPlayer:
    """Return what plays a stream chunk by chunk, beginning with ``first``: ``play`` gives actions and probabilities."""
    checks.one_of("scheme", scheme, SCHEMES)
    checks.whole("delay", delay, least=0)
    check_seed(seed)
    name = default_model(policy) if model is None else model
    check_model(name, policy)
    if not isinstance(policy, Compiled):
        raise ValueError(f"policy must be one of fedres itself for a compiled replay, got {name_of(policy)}")
    if name == "adagrad":
        return _AdaGrad(stream, policy, scheme, delay, rates, seed, first)
    return _Stepped(stream, policy, model_kind(name, policy, scheme, delay), seed, first)


def _judge(chunk: Chunk, action: Array, probability: Array) -> Outcome:
    picked = action[..., None]
    reward = np.take_along_axis(chunk.rewards, picked, axis=2)[..., 0]
    regret = chunk.expected.max(axis=2) - np.take_along_axis(chunk.expected, picked, axis=2)[..., 0]
    return Outcome(action, probability, reward, regret)


class ReplayPlayer(ABC):
    """What all kinds of model share: the layouts, the policy and the clock."""

    def __init__(self, stream: Stream, policy: Compiled, seed: int) -> None:
        self.n_actions, self.layouts = stream.n_actions, (stream.shared, stream.private)
        self.policy, self.rule, self.seed, self.t = policy, policy.rule((0.0, 1.0)), seed, 0

    @abstractmethod
    def play(self, chunk: Chunk) -> tuple[Array, Array]:
        """Return the actions taken and their probabilities."""

    def actions(self, chunk: Chunk, r: int, p: int) -> tuple[Actions, Actions]:
        """Return what client p chooses from in round r of a chunk, shared and private."""
        shared, private = self.layouts
        return shared.actions(self.n_actions, chunk.shared[r, p]), private.actions(self.n_actions, chunk.private[r, p])

    def outputs(self, chunk: Chunk) -> tuple[Array, Array]:
        shape = chunk.rewards.shape[:2]
        self.t += shape[0]
        return np.empty(shape, dtype=np.int64), np.empty(shape)


class _AdaGrad(ReplayPlayer):
    def __init__(
        self,
        stream: Stream,
        policy: Compiled,
        scheme: str,
        delay: int,
        rates: tuple[float, float] | None,
        seed: int,
        chunk: Chunk,
    ) -> None:
        super().__init__(stream, policy, seed)
        self.rates = rates or default_rates(*self.actions(chunk, 0, 0))
        dims = [layout.dim(stream.n_actions) for layout in self.layouts]
        model = AdaGradModel(scheme, (dims[0], dims[1]), stream.private.stride, self.rates)
        self.shared = model.shared
        self.personal = np.tile(model.newcomer[: model.own], (stream.n_clients, 1))
        self.slow = self.personal.copy()
        self.seen = np.empty((stream.n_clients, *chunk.private.shape[2:]), dtype=np.float32)
        self.kept = np.zeros((stream.n_clients, SEEN + stream.private.stride))
        # Uploads in transit, by round.
        self.ring = np.zeros((delay + 1, stream.n_clients, stream.shared.width + 4))
        n, allowed = stream.n_actions, np.ones(stream.n_actions, dtype=np.bool_)
        self.room = allowed, np.empty(n), np.empty(n), np.empty(2 * n), np.empty(stream.n_clients)

    def play(self, chunk: Chunk) -> tuple[Array, Array]:
        t = self.t
        action, probability = self.outputs(chunk)
        (_, g_stride), (_, l_stride) = self.layouts
        _play_adagrad(
            t,
            (self.shared, self.personal, self.slow, self.kept, self.seen, self.ring),
            (self.layouts[0].indices, chunk.shared, g_stride),
            (self.layouts[1].indices, chunk.private, l_stride),
            chunk.rewards,
            (self.rule, self.seed),
            self.rates,
            (action, probability),
            self.room,
        )
        return action, probability


@bare_kernel
def _play_adagrad(
    t0: int,
    models: Group,
    xg: Group,
    xl: Group,
    rewards: Array,
    policy: Group,
    rates: Group,
    outputs: Group,
    room: Group,
) -> None:
    """Play the rounds of a chunk. The ring holds (whether there is one, local prediction, reward, shift, features).

    The shared model learns when a round is over, so that ``offset``, the global part of what each client chose, still
    holds when clients learn.
    """
    shared, personal, slow, kept, seen, ring = models
    (g_indices, g_values, g_stride), (l_indices, l_values, l_stride) = xg, xl
    (rule, seed), (chosen, probability) = policy, outputs
    allowed, scores, probabilities, parts, offset = room
    n_rounds, n_clients, _ = rewards.shape
    use_shared, use_personal = shared.size > 4, personal.shape[1] > 4
    g_row, l_row = g_indices[0], l_indices[0]
    for r in range(n_rounds):
        n = t0 + r + 1
        learns = rule[CODE] != EXPLORE_EVERY or n % rule[AMOUNT] < 1
        for p in range(n_clients):
            mine, its, x, z = personal[p], kept[p], g_values[r, p], seen[p]
            if use_personal:
                for k in range(len(z)):
                    centre(its, l_values[r, p, k], z[k])
            predict(shared, mine, slow[p], its, (g_indices, x, g_stride), (l_indices, z, l_stride), scores, parts)
            explore(rule, n, n, scores, scores, allowed, probabilities)
            a = pick(probabilities, draw(seed, p, n))
            chosen[r, p], probability[r, p], offset[p] = a, probabilities[a], parts[a]
            if learns and not use_shared:  # nobody else is concerned
                shift, row, reward = a * l_stride, z[min(a, len(z) - 1)], rewards[r, p, a]
                step_from(mine, l_row, shift, row, _ONE, scores[a], reward, rates[1])
                average(its, l_values[r, p, 0])
        if not use_shared:
            continue
        sent, due = ring[n % len(ring)], ring[(n + 1) % len(ring)]
        for p in range(n_clients):
            sent[p, 0] = learns
            if not learns:
                continue
            a, part = chosen[r, p], 0.0
            reward, x = rewards[r, p, a], g_values[r, p, min(a, g_values.shape[2] - 1)]
            if use_personal:
                mine, its, z = personal[p], kept[p], seen[p, min(a, seen.shape[1] - 1)]
                part = learn_residual(mine, slow[p], its, l_row, a * l_stride, z, reward, offset[p], rates[1])
                average(its, l_values[r, p, 0])
            sent[p, 1], sent[p, 2], sent[p, 3] = part, reward, a * g_stride
            for k in range(x.size):
                sent[p, 4 + k] = x[k]
        for p in range(n_clients):
            if due[p, 0]:
                shift = int(due[p, 3])
                learn_shared(shared, g_row, shift, due[p, 4:], due[p, 2], due[p, 1], rates[0], use_personal)


class _Stepped(ReplayPlayer):
    """A model that decides and learns by its own methods: their work is more than the calls."""

    def __init__(self, stream: Stream, policy: Compiled, kind: Kind, seed: int, chunk: Chunk) -> None:
        super().__init__(stream, policy, seed)
        self.model, self.n_clients = kind.start(*self.actions(chunk, 0, 0)), stream.n_clients
        for p in range(self.n_clients):
            self.model.join(p)

    def play(self, chunk: Chunk) -> tuple[Array, Array]:
        t = self.t
        action, probability = self.outputs(chunk)
        for r in range(len(chunk.rewards)):
            n, samples = t + r + 1, []
            for p in range(self.n_clients):
                xg, xl = self.actions(chunk, r, p)
                a, chance, _, _ = self.model.decide(p, xg, xl, None, self.rule, (n, self.seed, p))
                action[r, p], probability[r, p] = a, chance
                samples.append((p, a, xg, xl, float(chunk.rewards[r, p, a])))
            self.model.play(samples if self.policy.learns(n) else [])
        return action, probability

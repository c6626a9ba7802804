"""``residual-kalman`` in plain NumPy: the readable twin, which the compiled model is tested against.

docs/how-it-works/decision-model.md has the reasons. Only learning changes the state, whose size is bounded: the least
recently learned entries make room, in the shared model and in each personal one.

    z    scaled context: the constant and the core, at most 64 coordinates    t    all others: the tail
    U    leading eigenvectors of the mean of zz';  r = U'z                    x_f  value of f; 1 for categories
    predict   m_a = Σ_f x_f (W_f·z + w_f·t + β_uf + w_uf·r)     over block 0 and the blocks of a
                    + Σ_fg w_fg x_f x_g                         over pairs of features of a, of different fields
              v_f = x_f² (z'P_f z + Σ c t² + min(c_uf + Σ c r², ¼));       v_a = v_id + Σ v_f²/Σ v_f of others
    learn     e = reward − m,  q = noise + the sum of all variances;  every weight takes a Kalman step with this e and q
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.decisions import constants as the
from fedres.decisions.jacobi_reference import eigenvectors
from fedres.decisions.kalman_inputs_reference import Action, Hashed, Inputs, KalmanEvent, Tail


class Prior:
    """Variance τ = exp(l) of the weights of a field. l follows −d(e²/2)/dl = e dm/dl with AdaGrad's steps."""

    rate, least, most, forgets = the.LOG_TAU_RATE, the.LEAST_LOG_TAU, the.MOST_LOG_TAU, 0.0

    def __init__(self, log_tau: float = the.FIRST_LOG_TAU) -> None:
        self.log_tau, self.squares = log_tau, 0.0

    @property
    def tau(self) -> float:
        return math.exp(self.log_tau)

    def step(self, slope: float, *, moves: bool = True) -> None:
        self.squares += slope * slope - self.forgets * self.squares
        if slope and moves:
            moved = self.log_tau + self.rate * slope / math.sqrt(self.squares)
            self.log_tau = min(max(moved, self.least), self.most)


class DriftPrior(Prior):
    """Share φ = exp(l) of a block's covariance that goes back to its prior when it is learned; l steps as log τ."""

    rate, least, most, forgets = the.LOG_DRIFT_RATE, the.LEAST_LOG_DRIFT, the.MOST_LOG_DRIFT, the.DRIFT_FORGETS
    idle, since = 0.0, 0  # accumulated drift of the blocks not learned since an event


class Field:
    """The priors of a field's kinds of weights."""

    def __init__(
        self, shared: float = the.FIRST_SHARED_LOG_TAU, tail: float = the.FIRST_LOG_TAU, prior: type[Prior] = Prior
    ) -> None:  # fmt: skip
        self.constant, self.core, self.tail, self.own = prior(shared), prior(shared), prior(tail), prior()
        self.bias = Prior()

    def log_tau(self, size: int) -> Array:
        """Return log τ of each core weight."""
        return np.array([self.constant.log_tau, *[self.core.log_tau] * (size - 1)])


class Information:
    """Independent weights without their prior: c = 1/(1/τ + h), w = c b. As τ moves, they move with it.

    A user's weights of directions; or one tail weight, bias or pair.
    """

    def __init__(self, size: int = 1) -> None:
        self.b, self.h = np.zeros(size, np.float32), np.zeros(size, np.float32)

    def posterior(self, tau: float) -> tuple[Array, Array]:
        c = 1 / (1 / tau + self.h.astype(float))
        return c, c * self.b

    def predict(self, r: Array, tau: float) -> Array:
        """Return mean Σ w r, variance Σ c r² and d mean/d log τ = Σ c w r/τ."""
        c, w = self.posterior(tau)
        return np.array([w @ r, (c * r) @ r, (c * r) @ w / tau])

    def learn(self, r: Array, tau: float, error: float, q: float) -> None:
        """w += c r e/q and c −= (c r)²/q, the latter as h += r²/(q − c r²)."""
        c, w = self.posterior(tau)
        self._set(w + c * r * error / q, self.h + r * r / (q - c * r * r), tau)

    def turned(self, turn: Array, tau: float) -> Information:
        """Return it in another basis: means are turned, precisions keep their diagonals."""
        information = Information(len(self.b))
        information._set(turn @ self.posterior(tau)[1], turn**2 @ self.h.astype(float), tau)
        return information

    def _set(self, mean: Array, h: Array, tau: float) -> None:
        self.h = h.astype(np.float32)
        self.b = ((self.h.astype(float) + 1 / tau) * mean).astype(np.float32)


class Dense:
    """Weights with their covariance P."""

    def __init__(self, log_tau: Array) -> None:
        self.log_tau = log_tau  # of the prior of each weight
        self.mean: Array = np.zeros(len(log_tau))
        self.covariance: Array = np.diag(np.exp(log_tau))
        self.slope: Array = np.zeros(len(log_tau))  # d mean/d φ

    def predict(self, z: Array) -> Array:
        """Return mean W·z, variance z'Pz and d mean/d log τ = z'PW/τ; of the latter the constant's and the others'."""
        gain = self.covariance @ z
        slopes = gain * self.mean / np.exp(self.log_tau)
        return np.array([[0, self.mean @ z], [0, gain @ z], [slopes[0], slopes[1:].sum()]])

    def learn(self, inputs: Array, error: float, q: float, phi: float, ahead: float) -> None:
        """Learn; then a share φ of P goes back to the prior. ``ahead`` is d(all means)/dφ, so that −ahead is de/dφ."""
        gain, tau = self.covariance @ inputs, np.exp(self.log_tau)
        self.slope += ((tau * inputs - gain) * error - gain * ahead) / q  # of P i e/q, with dP/dφ ≈ τ I − P
        self.mean += gain * error / q  # W += P i e/q
        self.covariance -= np.outer(gain, gain) / q  # P −= P i (P i)'/q
        self.drift(phi)

    def drift(self, share: float) -> None:
        self.covariance += share * (np.diag(np.exp(self.log_tau)) - self.covariance)

    def rebase(self, log_tau: Array) -> None:
        """Take other priors, if they are far from the present ones: P⁻¹ += 1/τ' − 1/τ on its diagonal; P⁻¹W stays."""
        if np.abs(self.log_tau - log_tau).max() > the.REBASE:
            A = np.eye(len(self.mean)) + self.covariance * (np.exp(-log_tau) - np.exp(-self.log_tau))
            self.mean, self.covariance = np.linalg.solve(A, self.mean), np.linalg.solve(A, self.covariance)
            self.log_tau = log_tau


@dataclass
class Block:
    """The weights of one action feature."""

    key: int
    field: int
    weights: Any  # Dense, or Information of one user
    used: int  # when it was learned last


class BlockTable:
    """Blocks in rows, as many as there is room for."""

    def __init__(self, limit: int) -> None:
        self.limit, self.rows = limit, list[Block]()

    def find(self, key: int) -> Block | None:
        return next((block for block in self.rows if block.key == key), None)

    def weights(self) -> dict[int, Any]:
        return {block.key: block.weights for block in self.rows}

    def touch(self, key: int, name: int, now: int, new: Any, *, displaces: bool = True) -> Block | None:
        """Return the block of a key, or one with these new weights; None if there is no room for it.

        Without room it takes the row that was learned least recently, unless that is part of this event.
        """
        block, row = self.find(key), len(self.rows)
        if block is None:
            if row == self.limit:
                row = min(range(1, row) if displaces else (), key=lambda k: self.rows[k].used, default=-1)
                if row < 0 or self.rows[row].used == now:
                    return None
            block = Block(key, name, new, now)
            self.rows[row : row + 1] = [block]
        block.used = now
        return block


class Own:
    """A user's model."""

    def __init__(self, basis: int, n_blocks: int, n_biases: int) -> None:
        self.basis, self.clock = basis, 0  # events learned
        self.blocks, self.biases = BlockTable(n_blocks), BlockTable(n_biases)


class Term(NamedTuple):
    """Weights of a feature in information form, with their inputs and their prior."""

    side: int  # the column of ``Used.parts``
    weights: Information
    inputs: Array
    prior: Prior


class Used(NamedTuple):
    """A feature in a prediction: its value, its field, its weights, and their prediction at x = 1.

    Rows of ``parts`` are mean, variance and slope by log τ; columns are the constant, of which the next one has mean
    and variance, core, tail, personal weights, bias.
    """

    x: float
    of: Field
    dense: Dense
    terms: list[Term]
    parts: Array


def tail_place(block: int, coordinate: int, bits: int) -> int:
    """Return the place of a tail weight: collisions share one."""
    mixed = (block * 0x9E3779B1 ^ coordinate * 0x85EBCA77) & 0xFFFFFFFF
    mixed = ((mixed ^ mixed >> 15) * 0x2C1B3C6D) & 0xFFFFFFFF
    return (mixed ^ mixed >> 13) & (1 << bits) - 1


class ResidualKalman(Inputs):
    """The model: ``predict`` means and widths of actions, ``learn`` rewards; ``reward_range`` is where they lie."""

    def __init__(
        self, reward_range: tuple[float, float] = (0.0, 1.0), *, max_blocks: int = the.MAX_BLOCKS,
        tail_bits: int = the.TAIL_BITS, own_bytes: int = the.OWN_BYTES, own_size: int = the.OWN_SIZE,
        choice_events: int = the.CHOICE_EVENTS, most_paired: int = the.MOST_PAIRED,
    ) -> None:  # fmt: skip
        super().__init__()
        self.low, self.span = reward_range[0], reward_range[1] - reward_range[0]
        self.tail_bits, self.own_bytes, self.own_size = tail_bits, own_bytes, own_size
        self.choice_events, self.most_paired = choice_events, most_paired
        self.pairs: dict[frozenset[Field], Prior] = {}  # of every two fields
        self.first: list[KalmanEvent] | None = []  # until they are learned again
        self.learned, self.noise = 0, the.FIRST_NOISE
        self.bases: list[Array] = []
        self.drift = DriftPrior(the.LEAST_LOG_DRIFT)
        self.fields: dict[int, Field] = {0: Field()}
        self.blocks = BlockTable(max_blocks)
        self.tail: dict[int, Information] = {}
        self.own: dict[Hashable, Own] = {}

    def predict(self, user: Hashable, context: Hashed, actions: Sequence[Action]) -> tuple[Array, Array]:
        """Return the mean and the width of each action's reward; all are equal before the start is over."""
        if not self.bases:
            return np.full(len(actions), self.low), np.full(len(actions), self.span)
        z, t = self._context(context)
        shared, mine = self.blocks.weights(), self.own.get(user)
        own, biases = self._turned(mine), mine.biases.weights() if mine else {}

        def predicted(key: int, x: float, name: int) -> Used:
            fresh = Information(self.bases[-1].shape[1]), Information()
            personal = () if user is None else (own.get(key, fresh[0]), biases.get(key, fresh[1]))
            return self._predicted(key, x, self._field(name), z, t, shared.get(key), *personal)

        base = predicted(0, 1.0, 0).parts[0].sum()
        means, variances = np.full(len(actions), base), np.zeros(len(actions))
        for k, action in enumerate(actions):
            features = self._features(action)
            means[k] += sum(term.weights.predict(term.inputs, term.prior.tau)[0] for term in self._pairs(features))
            others = [0.0]
            for key, (x, name) in features.items():
                use = predicted(key, x, name)
                variance = use.parts[1, :3].sum() + min(use.parts[1, 3:].sum(), the.MOST_OWN_VARIANCE)
                means[k] += x * use.parts[0].sum()
                if name == the.ID_FIELD:
                    variances[k] += x * x * variance
                else:
                    others.append(x * x * variance)
            variances[k] += np.square(others).sum() / max(sum(others), 1e-300)
        return self.low + self.span * means, self.span * np.sqrt(np.maximum(variances, 0.0))

    def learn(self, event: KalmanEvent) -> None:
        """Learn a reward. The first 16 begin the shared model; early ones are kept until they are learned again."""
        if self.first is not None:
            self.first.append(event._replace(user=None))
        if self.bases:
            self._learn(event, new=True)
        elif self.first and len(self.first) == the.START_EVENTS:
            self._begin(self.first)
        size = sum(len(kept.context[0]) + len(kept.action[0]) for kept in self.first or ())
        if self.first and (len(self.first) == self.choice_events or size >= the.MOST_KEPT):
            self._choose()

    def _choose(self) -> None:
        """Learn the first events again, with τ of one field at a time at 1, of all others at 0.01; keep the best."""
        first, self.first, least = self.first or [], None, math.inf
        several = len(self.fields) > 2 and len(first) > the.START_EVENTS
        for main in [*self.fields][1 : 1 + the.CHOICE_FIELDS] if several else []:
            trial = type(self)(
                (self.low, self.low + self.span), max_blocks=self.blocks.limit, tail_bits=self.tail_bits,
                own_bytes=self.own_bytes, own_size=self.own_size,
            )  # fmt: skip
            for name in [*self.fields][1:]:
                trial.fields[name] = Field(the.FIRST_SHARED_LOG_TAU if name == main else the.FIRST_LOG_TAU)
            trial._begin(first[: the.START_EVENTS])
            squares = sum(trial._learn(each, new=True) ** 2 for each in first[the.START_EVENTS :])
            if squares < least:
                least, self.noise, self.drift, self.pairs = squares, trial.noise, trial.drift, trial.pairs
                self.fields, self.blocks, self.tail = trial.fields, trial.blocks, trial.tail

    def _begin(self, start: Sequence[KalmanEvent]) -> None:
        """Choose the core by the start's events, and learn them."""
        self._settle(start)
        d = len(self.core)
        self.bases, self.moment = [np.eye(d)[:, : self.own_size]], np.zeros((d, d))
        for event in start:
            self._learn(event, new=False)

    def _field(self, name: int, *, new: bool = False) -> Field:
        if name not in self.fields and len(self.fields) == the.MAX_FIELDS:
            return [*self.fields.values()][-1]
        if name not in self.fields and new:
            self.fields[name] = Field()
        return self.fields.get(name) or Field()

    def _predicted(
        self, key: int, x: float, of: Field, z: Array, t: Tail, shared: Dense | None, own: Any = None, bias: Any = None
    ) -> Used:
        """Return the prediction of a feature's weights, including the personal ones if any."""
        dense, terms, parts = shared or Dense(of.log_tau(len(z))), list[Term](), np.zeros((3, 5))
        parts[:, :2] = dense.predict(z)
        for coordinate, value in t:
            weight = self.tail.get(tail_place(key, coordinate, self.tail_bits)) or Information()
            terms.append(Term(2, weight, np.array([value]), of.tail))
        if own:
            terms.append(Term(3, own, self.bases[-1].T @ z, of.own))
        if bias:
            terms.append(Term(4, bias, np.ones(1), of.bias))
        for term in terms:
            parts[:, term.side] += term.weights.predict(term.inputs, term.prior.tau)
        return Used(x, of, dense, terms, parts)

    def _pairs(self, features: dict[int, tuple[float, int]]) -> Iterator[Term]:
        """Yield the weights of pairs of an action's features. The product of two extremes would outweigh all else."""
        fields = [*self.fields.values()]
        first = [(key, x, self._field(name), name) for key, (x, name) in [*features.items()][: self.most_paired]]
        paired = [each[:3] for each in first if each[3] != the.ID_FIELD and each[2] in fields]
        pairs = [(one, other) for k, other in enumerate(paired) for one in paired[:k]]
        for (key, x, of), (other, y, beside) in pairs:
            if of is not beside:
                coordinate = max(key, other) ^ the.ACTION_KEYS or 1
                place = tail_place(min(key, other), coordinate, self.tail_bits)
                prior = self.pairs.setdefault(frozenset((of, beside)), Prior(the.FIRST_PAIR_LOG_TAU))
                inputs = np.array([min(max(x, -1.0), 1.0) * min(max(y, -1.0), 1.0)])
                yield Term(5, self.tail.setdefault(place, Information()), inputs, prior)

    def _touch(self, key: int, name: int, of: Field, size: int) -> Block | None:
        """Return the block that a feature learns in; None if there is no room for it."""
        fresh = Dense(of.log_tau(size))
        block = self.blocks.touch(key, name, self.learned, fresh)
        if block is not None:
            block.weights.rebase(fresh.log_tau)
        return block

    def _turned(self, own: Own | None) -> dict[int, Information]:
        """Return a user's weights of directions by key, in the present basis."""
        if own is None or own.basis == len(self.bases) - 1:
            return own.blocks.weights() if own else {}
        turn = self.bases[-1].T @ self.bases[own.basis]
        return {block.key: block.weights.turned(turn, self._field(block.field).own.tau) for block in own.blocks.rows}

    def _opened(self, user: Hashable) -> Own | None:
        """Return the personal model that learns, in the present basis from now on."""
        if user is None:
            return None
        n_blocks = the.own_slots(min(len(self.core), self.own_size), self.own_bytes)
        fresh = Own(len(self.bases) - 1, n_blocks, the.own_biases(self.own_bytes))
        own, turned = self.own.setdefault(user, fresh), self._turned(self.own[user])
        for block in own.blocks.rows:
            block.weights = turned[block.key]
        own.basis, own.clock = len(self.bases) - 1, own.clock + 1
        return own

    def _use(self, key: int, x: float, name: int, z: Array, t: Tail, own: Own | None) -> Used | None:
        """Find the weights that a feature of an event learns in, and predict; None without room."""
        of, mine, bias = self._field(name, new=True), None, None
        block = self._touch(key, name, of, len(z))
        if block is None:
            return None
        if own:  # a feature new to the user replaces no other's directions
            fresh = Information(self.bases[-1].shape[1])
            mine = own.blocks.touch(key, name, own.clock, fresh, displaces=own.biases.find(key) is not None)
            bias = own.biases.touch(key, name, own.clock, Information())
        for coordinate, _ in t:
            self.tail.setdefault(tail_place(key, coordinate, self.tail_bits), Information())
        personal = [each.weights if each else None for each in (mine, bias)]
        return self._predicted(key, x, of, z, t, block.weights, *personal)

    def _learn(self, event: KalmanEvent, *, new: bool, beside: tuple[float, float] = (0.0, 0.0)) -> float:
        """Learn an event beside the mean and the variance of another model; return the error."""
        n, basis_from = self.learned, 2 * max(the.START_EVENTS, len(self.core))
        if n >= basis_from and n & (n - 1) == 0 and len(self.bases) < the.MAX_BASES:  # at 32, 64, ... events
            self.bases.append(eigenvectors(self.moment / n, self.own_size))
        z, t = self._context(event.context, new=new)
        self.moment += np.outer(z, z)
        own, features = self._opened(event.user), {0: (1.0, 0)} | self._features(event.action, new=new)
        uses = {key: self._use(key, x, name, z, t, own) for key, (x, name) in features.items()}
        used = [use for use in uses.values() if use]
        pairs = [*self._pairs({key: features[key] for key, use in uses.items() if use and key})]
        pair_parts = np.array([pair.weights.predict(pair.inputs, pair.prior.tau) for pair in pairs]).reshape(-1, 3)
        mean = sum(use.x * use.parts[0].sum() for use in used) + pair_parts[:, 0].sum()
        variance = sum(use.x * use.x * use.parts[1].sum() for use in used) + pair_parts[:, 1].sum() + beside[1]
        error = (event.reward - self.low) / self.span - mean - beside[0]
        ahead = sum(use.x * float(use.dense.slope @ z) for use in used)  # d m/d φ
        q, phi = self.noise + variance, self.drift.tau
        for use in used:
            use.dense.learn(use.x * z, error, q, phi, ahead)
            for term in use.terms:
                term.weights.learn(use.x * term.inputs, term.prior.tau, error, q)
        taus = [pair.prior.tau for pair in pairs]
        for pair, tau in zip(pairs, taus, strict=True):
            pair.weights.learn(pair.inputs, tau, error, q)
        for pair, slope in zip(pairs, pair_parts[:, 2], strict=True):  # after the weights: all of them used the old τ
            pair.prior.step(error * slope)
        for use in used:
            self._step_priors(use, error)
        self.drift.step(error * ahead, moves=n >= the.CORE_TAU_START)
        self.learned += 1
        # Blocks that are not learned drift too, by φ in the time in which each block is learned once on average.
        self.drift.idle += phi / max(len(self.blocks.rows) - 1, 1)
        if self.drift.idle >= the.IDLE_DRIFT:
            for block in self.blocks.rows:
                if block.used < self.drift.since:
                    block.weights.drift(1 - math.exp(-self.drift.idle))
            self.drift.idle, self.drift.since = 0.0, self.learned
        # Noise: its expected square given e (expectation-maximization), in a running mean that keeps a least rate.
        square, rate = (self.noise / q * error) ** 2 + self.noise * variance / q, 1 / (self.learned + 20)
        noise = self.noise + max(rate, the.LEAST_NOISE_RATE) * (square - self.noise)
        self.noise = min(max(noise, the.LEAST_NOISE), the.MOST_NOISE)
        return float(error)

    def _step_priors(self, use: Used, error: float) -> None:
        """Let priors follow their slopes: that of the constant by itself where actions have one field."""
        of, slopes, n, start = use.of, error * use.x * use.parts[2], self.learned, the.CORE_TAU_START
        if len(self.fields) > 2:  # a sum of constants, which cannot be separated
            of.core.step(slopes[0] + slopes[1] if n >= start else 0.0)
            of.constant.log_tau = of.core.log_tau
        else:
            of.constant.step(slopes[0] if n >= start else 0.0)
            of.core.step(slopes[1] if n >= min(start, the.CONTEXT_TAU_EVENTS * len(self.blocks.rows)) else 0.0)
        for prior, slope in zip((of.tail, of.own, of.bias), slopes[2:], strict=True):
            prior.step(slope)

"""``residual-kalman`` in plain NumPy: the readable twin, which the compiled model is tested against.

docs/how-it-works/decision-model.md has the reasons. Only learning changes anything, and what is kept is bounded: what
was not learned for the longest time makes room, in the shared model and in each personal one.

    z    scaled context: the constant and the core, at most 64 coordinates    t    all others: the tail
    U    leading eigenvectors of the mean of zz';  r = U'z                    x_f  value of f; 1 for categories
    predict   m_a = Σ_f x_f (W_f·z + w_f·t + β_uf + w_uf·r)     over block 0 and the blocks of a
              v_a = Σ_f x_f² (ρ (z'P_f z + Σ c t²) + ρ_u (c_uf + r'C_uf r))   over the blocks of a but block 0
    learn     e = reward − m,  q = noise + v with block 0;  every block takes a Kalman step with the same e and q
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.decisions import constants as the
from fedres.decisions.jacobi_reference import eigenvectors
from fedres.decisions.kalman_inputs_reference import Action, Event, Hashed, Inputs


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


class LightPrior(Prior):
    """Of light entries: as of blocks, unless users who meet a feature first are the worse for what they say.

    Of the slope of errors by what they say, the upper end of one standard error decides: entries that do not count are
    rarely chosen, and would stay so by bad luck.
    """

    gain = 0.0

    def count(self, said: float, error: float, noise: float, usual: float) -> None:
        if self.log_tau > self.least:
            error += said
        self.gain += said * error
        self.squares += said * said
        helps = self.gain + math.sqrt(noise * self.squares) >= 0
        self.log_tau = min(max(math.log(usual) if helps else self.least, self.least), self.most)


class Drift(Prior):
    """Share φ = exp(l) of a block's covariance that goes back to its prior when it is learned; l steps as log τ."""

    rate, least, most, forgets = the.LOG_DRIFT_RATE, the.LEAST_LOG_DRIFT, the.MOST_LOG_DRIFT, the.DRIFT_FORGETS
    idle, since = 0.0, 0  # what adds up for blocks that have not learned since an event


class Reuse:
    """Share ρ = 1 − (features learned once)/(all that were learned): a running mean that starts at 1 (Good and Turing).

    What is learned for the first time counts 0, for the second time 2, as the first one has been of use by then.
    """

    def __init__(self) -> None:
        self.share, self.count = 1.0, 0

    def add(self, times: int) -> None:
        """Count a feature that was learned so many times before."""
        self.count += 1
        value, rate = (0, 2, 1)[min(times, 2)], max(1 / (self.count + 4), the.LEAST_REUSE_RATE)
        self.share = min(self.share + rate * (value - self.share), 1.0)


class Field:
    """What is learned of a field of actions: priors of its kinds of weights, and its reuse."""

    def __init__(
        self, shared: float = the.FIRST_SHARED_LOG_TAU, tail: float = the.FIRST_LOG_TAU, prior: type[Prior] = Prior
    ) -> None:  # fmt: skip
        self.constant, self.core, self.tail, self.own = prior(shared), prior(shared), prior(tail), prior()
        self.bias, self.light = Prior(), LightPrior(the.LEAST_LOG_TAU)
        self.reuse, self.own_reuse = Reuse(), Reuse()

    def log_tau(self, size: int) -> Array:
        """Return log τ of each core weight."""
        return np.array([self.constant.log_tau, *[self.core.log_tau] * (size - 1)])


class Information:
    """Weights in information form, without their prior: C = (H + I/τ)⁻¹, w = C b. As τ moves, they move with it.

    A user's weights of directions, of which H is dense over the first; or one tail weight, bias or light entry.
    """

    def __init__(self, size: int = 1) -> None:
        self.b, self.H = np.zeros(size, np.float32), np.zeros((size, size), np.float32)
        first = np.arange(size) < the.OWN_DENSE
        self.kept, self.first = np.eye(size) + np.outer(first, first) > 0, first

    def posterior(self, tau: float) -> tuple[Array, Array]:
        C = np.linalg.inv(self.H.astype(float) + np.eye(len(self.b)) / tau)
        return C, C @ self.b

    def predict(self, r: Array, tau: float) -> Array:
        """Return mean w·r, variance r'Cr and d mean/d log τ = r'Cw/τ."""
        C, w = self.posterior(tau)
        return np.array([w @ r, r @ C @ r, r @ C @ w / tau])

    def learn(self, r: Array, tau: float, error: float, q: float) -> None:
        """w += C r e/q and C −= C r (C r)'/q, the latter as H += rr'/(q − r'Cr); of each part by itself."""
        C, w = self.posterior(tau)
        gain = C @ r
        rest = q - np.where(self.first, gain[self.first] @ r[self.first], gain * r)
        self._set(w + gain * error / q, self.H + np.outer(r, r) / rest, tau)

    def turned(self, turn: Array, tau: float) -> Information:
        """Return it in another basis: means are turned, precisions keep what there is room for."""
        found = Information(len(self.b))
        found._set(turn @ self.posterior(tau)[1], turn @ self.H.astype(float) @ turn.T, tau)
        return found

    def _set(self, mean: Array, H: Array, tau: float) -> None:
        self.H = np.where(self.kept, H, 0).astype(np.float32)
        self.b = ((self.H.astype(float) + np.eye(len(mean)) / tau) @ mean).astype(np.float32)


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

    def to_light(self, z: Array) -> Information:
        """Return what it says of a usual context z: h is the precision that was learned, b that times the value."""
        variance, light = z @ self.covariance @ z, Information()
        light.H[0, 0] = max(float(1 / variance - 1 / (np.exp(self.log_tau) @ z**2)), 0.0)
        light.b[0] = self.mean @ z / variance
        return light

    def from_light(self, light: Information, z: Array) -> None:
        """Learn what a light entry says: at a usual context z the value b/h, with the noise 1/h."""
        gain, b, h = np.exp(self.log_tau) * z, float(light.b[0]), float(light.H[0, 0])
        self.mean = b * gain / (1 + h * (gain @ z))
        self.covariance = self.covariance - h * np.outer(gain, gain) / (1 + h * (gain @ z))

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
    weights: Any  # Dense, or Information of a light entry or of one user
    used: int  # when it was learned last
    times: int = 0  # learned


class Table:
    """Blocks in rows, as many as there is room for."""

    def __init__(self, limit: int) -> None:
        self.limit, self.rows = limit, list[Block]()

    def find(self, key: int) -> Block | None:
        return next((block for block in self.rows if block.key == key), None)

    def times(self, key: int) -> int:
        return sum(block.times for block in self.rows if block.key == key)

    def weights(self) -> dict[int, Any]:
        return {block.key: block.weights for block in self.rows}

    def touch(self, key: int, name: int, now: int, new: Any, window: Sequence[int] | None = None) -> Block | None:
        """Return the block of a key, or one with these new weights; None if there is no room for it.

        Without room it takes the row of the window that was learned least recently, unless that is part of this event.
        """
        block = self.find(key)
        if block is None:
            block, row = Block(key, name, new, now), len(self.rows)
            if row == self.limit:
                row = min(range(1, row) if window is None else window, key=lambda k: self.rows[k].used, default=-1)
                if row < 0 or self.rows[row].used == now:
                    return None
            self.rows[row : row + 1] = [block]
        block.used, block.times = now, block.times + 1
        return block


class Own:
    """A user's model."""

    def __init__(self, basis: int, n_blocks: int, n_biases: int) -> None:
        self.basis, self.clock = basis, 0  # events learned
        self.blocks, self.biases = Table(n_blocks), Table(n_biases)


class Used(NamedTuple):
    """A feature in an event: its value, its field, its weights, and what they predict at x = 1 (``_part``)."""

    key: int
    x: float
    of: Field
    shared: Dense | Information
    mine: Information | None
    bias: Information | None
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
        choice_events: int = the.CHOICE_EVENTS, max_light: int = the.MAX_LIGHT,
    ) -> None:  # fmt: skip
        super().__init__()
        self.low, self.span = reward_range[0], reward_range[1] - reward_range[0]
        self.tail_bits, self.own_bytes, self.own_size = tail_bits, own_bytes, own_size
        self.choice_events = choice_events
        self.first: list[Event] | None = []  # until they are learned again
        self.learned, self.noise = 0, the.FIRST_NOISE
        self.bases: list[Array] = []
        self.drift = Drift(the.LEAST_LOG_DRIFT)
        self.fields: dict[int, Field] = {0: Field()}
        self.blocks, self.light = Table(max_blocks), Table(max_light)
        self.tail: dict[int, Information] = {}
        self.own: dict[Hashable, Own] = {}

    def predict(self, user: Hashable, context: Hashed, actions: Sequence[Action]) -> tuple[Array, Array]:
        """Return the mean and the width of each action's reward; nothing is known before the start is over."""
        if not self.bases:
            return np.full(len(actions), self.low), np.full(len(actions), self.span)
        inputs = self._inputs(context)
        shared, mine = self.shared_weights(), self.own.get(user)
        own, biases = self._turned(mine), mine.biases.weights() if mine else {}
        sides = slice(None, 3 if user is None else 5)  # without a user there is no personal side
        base = self._part(0, self._field(0), inputs, shared.get(0), own.get(0), biases.get(0))[0, sides].sum()
        found = []
        for action in actions:
            mean, variance = base, 0.0
            for key, (x, name) in self._features(action).items():
                of = self._field(name)
                parts = self._part(key, of, inputs, shared.get(key), own.get(key), biases.get(key))
                reuse = np.repeat([of.reuse.share, of.own_reuse.share], [3, 2])
                mean += x * parts[0, sides].sum()
                variance += x * x * (reuse * parts[1])[sides].sum()
            found.append((self.low + self.span * mean, self.span * math.sqrt(max(variance, 0.0))))
        means, widths = np.array(found).T
        return means, widths

    def shared_weights(self) -> dict[int, Dense | Information]:
        """Return those of all features; a feature with a block may have an old light entry."""
        return self.light.weights() | self.blocks.weights()

    def learn(self, event: Event) -> None:
        """Learn a reward. The first 16 begin the shared model; all first ones are kept until they are learned again."""
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
        """Learn the first events again, with τ of one field at a time at 1 and of all others at .01; keep the best."""
        first, self.first, least = self.first or [], None, math.inf
        several = len(self.fields) > 2 and len(first) > the.START_EVENTS
        for main in [*self.fields][1 : 1 + the.CHOICE_FIELDS] if several else []:
            trial = type(self)(
                (self.low, self.low + self.span), max_blocks=self.blocks.limit, max_light=self.light.limit,
                tail_bits=self.tail_bits, own_bytes=self.own_bytes, own_size=self.own_size,
            )  # fmt: skip
            for name in [*self.fields][1:]:
                trial.fields[name] = Field(the.FIRST_SHARED_LOG_TAU if name == main else the.FIRST_LOG_TAU)
            trial._begin(first[: the.START_EVENTS])
            squares = sum(trial._learn(each, new=True) ** 2 for each in first[the.START_EVENTS :])
            for name, of in self.fields.items():  # trials know no users
                trial.fields[name].own_reuse = of.own_reuse
            if squares < least:
                least, self.noise, self.drift = squares, trial.noise, trial.drift
                self.fields, self.blocks, self.light, self.tail = trial.fields, trial.blocks, trial.light, trial.tail

    def _begin(self, start: Sequence[Event]) -> None:
        """Choose the core by the start's events, and learn them."""
        self._settle(start)
        d = len(self.core)
        self.bases, self.moment = [np.eye(d)[:, : self.own_size]], np.zeros((d, d))
        for event in start:
            self._learn(event, new=False)

    def _inputs(self, context: Hashed, *, new: bool = False) -> tuple[Array, list[tuple[int, float]], Array]:
        """Return z, the tail's coordinates and values, and r."""
        z, t = self._context(context, new=new)
        return z, t, self.bases[-1].T @ z

    def _field(self, name: int, *, new: bool = False) -> Field:
        if name not in self.fields and len(self.fields) == the.MAX_FIELDS:
            return [*self.fields.values()][-1]
        if name not in self.fields and new:
            self.fields[name] = Field()
        return self.fields.get(name) or Field()

    def _part(self, key: int, of: Field, inputs: Any, shared: Any, own: Any, bias: Any) -> Array:
        """Return mean, variance and slope by log τ (rows) of a block's weights, x = 1.

        Columns: the constant, of which the next one has mean and variance, core, tail, personal weights, bias.
        """
        z, t, r = inputs
        parts = np.zeros((3, 5))
        if isinstance(shared, Information):
            parts[:, 1] = shared.predict(np.ones(1), of.light.tau)
        else:
            parts[:, :2] = (shared or Dense(of.log_tau(len(z)))).predict(z)
        for coordinate, value in t:
            weight = self.tail.get(tail_place(key, coordinate, self.tail_bits)) or Information()
            parts[:, 2] += weight.predict(np.array([value]), of.tail.tau)
        parts[:, 3] = (own or Information(len(r))).predict(r, of.own.tau)
        parts[:, 4] = (bias or Information()).predict(np.ones(1), of.bias.tau)
        return parts

    def _usual(self) -> Array:
        """Return a usual context, the mean of z."""
        usual: Array = self.moment[0] * (self._constant() / self.moment[0, 0])
        return usual

    def _usual_tau(self, of: Field) -> float:
        """Return the prior variance of what a block of the field says of a usual context."""
        return float(np.exp(of.log_tau(len(self.core))) @ self._usual() ** 2)

    def _touch(self, key: int, name: int, of: Field) -> Block | None:
        """Return the block or the light entry that a feature learns in; None if there is no room for it."""
        light, usual, before = self.light.find(key), self._usual(), [*self.blocks.rows]
        often = not self.light.limit or (light is not None and light.times >= the.LIGHT_TIMES)
        fresh = Dense(of.log_tau(len(usual)))
        block = self.blocks.touch(key, name, self.learned, fresh, window=None if often else ())
        if block is None:
            return self._touch_light(key, name)
        if light and block.weights is fresh:
            fresh.from_light(light.weights, usual)
            block.times = light.times + 1
            gone = next(each for each in before if each not in self.blocks.rows)
            if old := self._touch_light(gone.key, gone.field):
                old.weights, old.times, old.used = gone.weights.to_light(usual), gone.times, gone.used
        elif block.weights is not fresh:
            block.weights.rebase(of.log_tau(len(usual)))
        return block

    def _touch_light(self, key: int, name: int) -> Block | None:
        n = len(self.light.rows)
        window = [(key + k) % n for k in range(min(n, the.LIGHT_WINDOW))]
        return self.light.touch(key, name, self.learned, Information(), window)

    def _step_core(self, of: Field, of_constant: float, of_context: float) -> None:
        """Let priors of core weights follow their slopes: of the constant by itself where actions have one field."""
        n, start = self.learned, the.CORE_TAU_START
        if len(self.fields) > 2:  # a sum of constants, which cannot be told apart
            of.core.step(of_constant + of_context if n >= start else 0.0)
            of.constant.log_tau = of.core.log_tau
            return
        of.constant.step(of_constant if n >= start else 0.0)
        of.core.step(of_context if n >= min(start, the.CONTEXT_TAU_EVENTS * len(self.blocks.rows)) else 0.0)

    def _drift_idle(self, phi: float) -> None:
        """Let blocks drift that are not learned, by φ in the time in which each block is learned once on average."""
        drift = self.drift
        drift.idle += phi / max(len(self.blocks.rows) - 1, 1)
        if drift.idle >= the.IDLE_DRIFT:
            for block in self.blocks.rows:
                if block.used < drift.since:
                    block.weights.drift(1 - math.exp(-drift.idle))
            drift.idle, drift.since = 0.0, self.learned + 1

    def _turned(self, own: Own | None) -> dict[int, Information]:
        """Return a user's weights of directions by key, in the present basis."""
        if own is None or own.basis == len(self.bases) - 1:
            return own.blocks.weights() if own else {}
        turn = self.bases[-1].T @ self.bases[own.basis]
        return {block.key: block.weights.turned(turn, self._field(block.field).own.tau) for block in own.blocks.rows}

    def _renew_basis(self) -> None:
        """Take the leading eigenvectors of the mean of zz' at 32, 64, ... events; from twice the core's size on."""
        n = self.learned
        if n >= 2 * max(the.START_EVENTS, len(self.core)) and n & (n - 1) == 0 and len(self.bases) < the.MAX_BASES:
            self.bases.append(eigenvectors(self.moment / n, self.own_size))

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

    def _use(self, key: int, x: float, name: int, inputs: Any, own: Own | None) -> Used | None:
        """Find the weights that a feature of an event learns in, count its reuse, and predict; None without room."""
        of, mine, bias, met = self._field(name, new=True), None, None, own.biases.times(key) if own else 0
        of.reuse.add(self.blocks.times(key) or self.light.times(key))
        if own:
            of.own_reuse.add(met)
        shared = self._touch(key, name, of)
        if shared is None:
            return None
        if own:  # what is new to the user takes no other's directions
            fresh = Information(len(inputs[2]))
            mine = own.blocks.touch(key, name, own.clock, fresh, window=None if met else ())
            bias = own.biases.touch(key, name, own.clock, Information())
        own_weights, own_bias = mine.weights if mine else None, bias.weights if bias else None
        parts = self._part(key, of, inputs, shared.weights, own_weights, own_bias)
        parts[:, 3:] *= [bool(mine), bool(bias)]  # weights that there are not are not uncertain
        if isinstance(shared.weights, Information):  # what it would predict, if it counts, for a user who is new to it
            parts[2, 1] = 0.0 if met else shared.weights.predict(np.ones(1), self._usual_tau(of))[0]
        return Used(key, x, of, shared.weights, own_weights, own_bias, parts)

    def _learn(self, event: Event, *, new: bool, beside: tuple[float, float] = (0.0, 0.0)) -> float:
        """Learn an event beside the mean and the variance of another model; return the error."""
        self._renew_basis()
        z, *_ = inputs = self._inputs(event.context, new=new)
        self.moment += np.outer(z, z)
        own, features = self._opened(event.user), {0: (1.0, 0)} | self._features(event.action, new=new)
        used = [use for key, (x, name) in features.items() if (use := self._use(key, x, name, inputs, own))]
        error = (event.reward - self.low) / self.span - sum(use.x * use.parts[0].sum() for use in used) - beside[0]
        variance = sum(use.x * use.x * use.parts[1].sum() for use in used) + beside[1]
        ahead = sum(use.x * float(use.shared.slope @ z) for use in used if isinstance(use.shared, Dense))  # d m/d φ
        for use in used:
            self._learn_weights(use, inputs, error, self.noise + variance, ahead)
        for use in used:  # after the weights: all of them used the old τ
            self._step_priors(use, error)
        phi = self.drift.tau
        self.drift.step(error * ahead, moves=self.learned >= the.CORE_TAU_START)
        self._drift_idle(phi)
        self.learned += 1
        self._step_noise(error, variance)
        return float(error)

    def _learn_weights(self, use: Used, inputs: Any, error: float, q: float, ahead: float) -> None:
        (z, t, r), x, of = inputs, use.x, use.of
        if isinstance(use.shared, Dense):
            use.shared.learn(x * z, error, q, self.drift.tau, ahead)
        else:
            use.shared.learn(np.array([x]), of.light.tau, error, q)
        for coordinate, value in t:
            place = tail_place(use.key, coordinate, self.tail_bits)
            self.tail.setdefault(place, Information()).learn(np.array([x * value]), of.tail.tau, error, q)
        if use.mine:
            use.mine.learn(x * r, of.own.tau, error, q)
        if use.bias:
            use.bias.learn(np.array([x]), of.bias.tau, error, q)

    def _step_priors(self, use: Used, error: float) -> None:
        of, slopes = use.of, error * use.x * use.parts[2]
        if isinstance(use.shared, Dense):
            self._step_core(of, slopes[0], slopes[1])
        else:
            of.light.count(use.x * use.parts[2, 1], error, self.noise, self._usual_tau(of))
        for prior, slope in zip((of.tail, of.own, of.bias), slopes[2:], strict=True):
            prior.step(slope)

    def _step_noise(self, error: float, variance: float) -> None:
        """Noise: its expected square given e (expectation-maximisation), as a running mean that keeps a least rate."""
        q = self.noise + variance
        square, rate = (self.noise / q * error) ** 2 + self.noise * variance / q, 1 / (self.learned + 20)
        noise = self.noise + max(rate, the.LEAST_NOISE_RATE) * (square - self.noise)
        self.noise = min(max(noise, the.LEAST_NOISE), the.MOST_NOISE)

"""Predicting and learning of ``residual-kalman``, compiled; ``residual_kalman_reference`` has the equations.

Sums are in the order written, so that the same events give the same bits, however they are split into batches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.compiling import inner_kernel, kernel
from fedres.decisions.constants import (
    BIAS_WORDS,
    CONTEXT_TAU_EVENTS,
    CORE_TAU_START,
    DRIFT_FORGETS,
    ID_FIELD,
    IDLE_DRIFT,
    LEAST_LOG_DRIFT,
    LEAST_NOISE,
    LEAST_NOISE_RATE,
    LOG_DRIFT_RATE,
    MAX_BASES,
    MOST_LOG_DRIFT,
    MOST_NOISE,
    MOST_OWN_VARIANCE,
    START_EVENTS,
)
from fedres.decisions.elementary import exp
from fedres.decisions.kalman_diagonal import diagonal_part, learn_diagonal, step_log_tau
from fedres.decisions.kalman_inputs import (
    action_blocks,
    context_inputs,
    eigenvectors,
    field_place,
    find_block,
    prior_of,
    tail_place,
    touch_block,
    turn_inputs,
)
from fedres.decisions.kalman_own import (
    BASIS,
    BIAS_NUMBERS,
    CLOCK,
    COUNT,
    find_bias,
    find_slot,
    learn_own,
    own_part,
    tau_of,
    touch_bias,
    touch_slot,
    turn_own,
)
from fedres.decisions.kalman_pairs import fill_pair_fields, fill_pair_taus, find_pairs, learn_pairs, pairs_mean
from fedres.decisions.kalman_state import (
    AT_BIAS,
    AT_BLOCK,
    AT_FIELD,
    AT_SLOT,
    BASES,
    BLOCKS,
    CONSTANT,
    CORE,
    DRIFT_IDLE,
    DRIFT_SINCE,
    DRIFT_SQUARES,
    FIELDS,
    LEARNED,
    LOG_DRIFT,
    NOISE,
    OWN,
    OWN_BIAS,
    TAIL,
    scratch_for,
)
from fedres.key_tables import Key, clear, find_key, put_key, table_words


@inner_kernel
def core_part(shared: Any, block: int, field: int, z: Array, places: Array, gain: Array) -> Any:
    """Return mean and variance of core weights at z, of a block or of none: −1. Fill in P z of a block."""
    if block >= 0:
        return dense_part(shared.means[block], shared.covariances[block], z, places, gain)
    constant, context, variance = tau_of(shared, field, CONSTANT), tau_of(shared, field, CORE), 0.0
    for j in range(places.size):
        variance += (context if places[j] else constant) * z[places[j]] * z[places[j]]
    return 0.0, variance


@inner_kernel
def dense_part(means: Array, covariance: Array, z: Array, places: Array, gain: Array) -> Any:
    """Fill in P z; return mean W z and variance z'P z."""
    mean, variance = 0.0, 0.0
    gain[:] = 0.0
    for j in range(places.size):
        factor, row = z[places[j]], covariance[places[j]]
        mean += means[places[j]] * factor
        for i in range(gain.size):
            gain[i] += row[i] * factor
    for j in range(places.size):
        variance += gain[places[j]] * z[places[j]]
    return mean, variance


@inner_kernel
def core_slopes(shared: Any, block: int, gain: Array) -> Any:
    """Return the slopes of a block's mean by log τ, of the constant and of the context; ``core_part`` fills in P z."""
    means, slope = shared.means[block], 0.0
    for i in range(1, gain.size):
        slope += gain[i] * means[i]
    return gain[0] * means[0] / prior_of(shared, block, 0), slope / prior_of(shared, block, 1)


@inner_kernel
def core_slope(shared: Any, block: int, gain: Array) -> float:
    """Return the slope by log τ of the mean of a block or of none: −1, after ``core_part``."""
    if block < 0:
        return 0.0
    of_constant, of_context = core_slopes(shared, block, gain)
    return float(of_constant + of_context)


@inner_kernel
def tail_part(shared: Any, key: Key, t_keys: Array, t: Array, tau: float) -> Any:
    """Return mean, variance and slope by log τ of a block's tail weights."""
    mean, variance, slope = 0.0, 0.0, 0.0
    for j in range(t.size):
        part = diagonal_part(shared.tail[tail_place(key, t_keys[j], shared.tail.shape[0])], t[j], tau)
        mean += part[0]
        variance += part[1]
        slope += part[2]
    return mean, variance, slope


@kernel
def predict(shared: Any, own: Array, personal: bool, request: Any, parts: Array) -> None:
    """Fill in the shared mean, the personal mean and the variance of each action; ``own`` may be empty.

    The variance is that of its id, plus Σv²/Σv of those of its other features. A reward tells the sum of what they
    mean, and should reduce the variance of the sum by (Σv)²/q; blocks, which learn it as if each of them were alone,
    reduce theirs by Σv²/q together.
    """
    n_context, n_features = request.starts[0], request.hashes.size - request.starts[0]
    scratch = scratch_for(shared.bases.shape[1], shared.bases.shape[2], n_context, n_features, 1)
    if own.size and own[BASIS] != shared.counts[BASES] - 1:
        own = own.copy()
        turn_own(shared, own, scratch)
    blocks = np.empty(table_words(n_features), np.uint32), np.empty(n_features, np.uint32), np.empty((n_features, 3))
    predict_in(scratch, blocks, shared, own, personal, request, parts)


@inner_kernel
def inputs_in(scratch: Any, shared: Any, hashes: Array, values: Array, new: bool) -> Any:
    """Fill in the inputs of a context; return at how many places z is not 0, and the length of the tail."""
    n_places, n_tail = context_inputs(
        shared, hashes, values, new, scratch.z, scratch.places, scratch.t_keys, scratch.t
    )  # fmt: skip
    places = scratch.places[:n_places]
    turn_inputs(shared.bases[shared.counts[BASES] - 1], scratch.z, places, scratch.r)
    return n_places, n_tail


@inner_kernel
def predict_in(
    scratch: Any, blocks: Any, shared: Any, own: Array, personal: bool, request: Any, parts: Array
) -> None:  # fmt: skip
    """Do the same; ``blocks`` is room for the blocks already computed: a table, their keys and their parts."""
    (words, block_keys, block_parts), (hashes, values, fields, starts) = blocks, request
    ready, n_ready = words[: table_words(hashes.size - starts[0])], 0
    clear(ready, shared.block_table)
    keys, xs, names, gain = scratch.keys, scratch.xs, scratch.names, scratch.gains[0]
    n_places, n_tail = inputs_in(scratch, shared, hashes[: starts[0]], values[: starts[0]], False)
    inputs = scratch.z, scratch.places[:n_places], scratch.t_keys[:n_tail], scratch.t[:n_tail], scratch.r
    base = block_part(shared, own, personal, np.uint32(0), np.uint32(0), inputs, gain)
    fill_pair_taus(scratch, shared)
    for a in range(starts.size - 1):
        parts[a, 0], parts[a, 1] = base[0], base[1]
        mine = slice(starts[a], starts[a + 1])
        n_blocks = action_blocks(shared, hashes[mine], values[mine], fields[mine], False, scratch)
        of_id, of_others, squares = 0.0, 0.0, 0.0
        for f in range(1, n_blocks):
            place = find_key(ready, block_keys, keys[f])
            if place < 0:
                place = n_ready
                block_keys[place] = keys[f]
                put_key(ready, keys[f], place)
                n_ready += 1
                part = block_part(shared, own, personal, keys[f], names[f], inputs, gain)
                block_parts[place, 0], block_parts[place, 1], block_parts[place, 2] = part
            parts[a, 0] += xs[f] * block_parts[place, 0]
            parts[a, 1] += xs[f] * block_parts[place, 1]
            variance = xs[f] * xs[f] * block_parts[place, 2]
            if names[f] == np.uint32(ID_FIELD):
                of_id += variance
            else:
                of_others += variance
                squares += variance * variance
        fill_pair_fields(scratch, shared, n_blocks)
        parts[a, 0] += pairs_mean(scratch, shared, n_blocks)
        parts[a, 2] = of_id + (squares / of_others if of_others > 0 else 0.0)


@inner_kernel
def block_part(shared: Any, own: Array, personal: bool, key: Key, name: Key, inputs: Any, gain: Array) -> Any:
    """Return shared mean, personal mean and variance of a block."""
    z, places, t_keys, t, r = inputs
    field = field_place(shared, name, False)
    mean, variance = core_part(shared, find_block(shared, key), field, z, places, gain)
    if t.size:
        tail_mean, tail_variance, _ = tail_part(shared, key, t_keys, t, tau_of(shared, field, TAIL))
        mean += tail_mean
        variance += tail_variance
    if not personal:
        return mean, 0.0, variance
    slot = find_slot(own, key, r.size)
    own_mean, own_variance, _ = own_part(own, slot, r, tau_of(shared, field, OWN))
    bias, tau = find_bias(own, key), tau_of(shared, field, OWN_BIAS)
    if bias >= 0:
        numbers = own[bias + BIAS_NUMBERS : bias + BIAS_WORDS].view(np.float32)
        bias_mean, bias_variance, _ = diagonal_part(numbers, 1.0, tau)
        own_mean += bias_mean
        own_variance += bias_variance
    else:
        own_variance += tau
    return mean, own_mean, variance + min(own_variance, MOST_OWN_VARIANCE)


@inner_kernel
def learn_core(
    shared: Any, block: int, z: Array, x: float, gain: Array, error: float, q: float, ahead: float, phi: float
) -> None:
    """W += P i e/q and P −= P i (P i)'/q with i = x z, of which then a share φ goes back to the prior.

    The slopes of W by φ follow those of P i e/q, where dP/dφ is taken to be τ I − P, and of e: −``ahead``.
    """
    means, covariance, slopes = shared.means[block], shared.covariances[block], shared.mean_slopes[block]
    constant, context = prior_of(shared, block, 0), prior_of(shared, block, 1)
    for i in range(gain.size):
        tau = context if i else constant
        slopes[i] += ((tau * z[i] - gain[i]) * error - gain[i] * ahead) * (x / q)
        means[i] += gain[i] * (x * error / q)
    for i in range(gain.size):
        factor, row = gain[i] * (x * x / q), covariance[i]
        for j in range(gain.size):
            row[j] = (row[j] - factor * gain[j]) * (1 - phi)
        row[i] += phi * (context if i else constant)


@inner_kernel
def step_drift(shared: Any, slope: float) -> None:
    """log φ follows −d(e²/2)/dφ with AdaGrad's steps: up where errors go on in the direction of those before.

    A model with φ = 0 never drifts.
    """
    drift = shared.drift
    drift[DRIFT_SQUARES] += slope * slope - DRIFT_FORGETS * drift[DRIFT_SQUARES]
    if slope != 0 and shared.counts[LEARNED] >= CORE_TAU_START and drift[LOG_DRIFT] >= LEAST_LOG_DRIFT:
        moved = drift[LOG_DRIFT] + LOG_DRIFT_RATE * slope / math.sqrt(drift[DRIFT_SQUARES])
        drift[LOG_DRIFT] = min(max(moved, LEAST_LOG_DRIFT), MOST_LOG_DRIFT)


@inner_kernel
def drift_idle(shared: Any, phi: float) -> None:
    """Let idle blocks drift: by φ in the time in which each block is learned once, on average.

    Actions that are no longer chosen may have become good. The drift adds up until an update of all blocks pays.
    """
    drift = shared.drift
    drift[DRIFT_IDLE] += phi / max(shared.counts[BLOCKS] - 1, 1)
    if drift[DRIFT_IDLE] < IDLE_DRIFT:
        return
    share = 1 - exp(-drift[DRIFT_IDLE])
    for block in range(shared.counts[BLOCKS]):
        if shared.block_used[block] < drift[DRIFT_SINCE]:
            covariance = shared.covariances[block]
            for i in range(len(covariance)):
                for j in range(len(covariance)):
                    covariance[i, j] *= 1 - share
                covariance[i, i] += share * prior_of(shared, block, i)
    drift[DRIFT_IDLE], drift[DRIFT_SINCE] = 0.0, shared.counts[LEARNED] + 1


@inner_kernel
def step_prior(shared: Any, field: int, side: int, slope: float) -> None:
    step_log_tau(shared.log_tau, shared.slope_squares, field, side, slope)


@inner_kernel
def step_core(shared: Any, field: int, of_constant: float, of_context: float) -> None:
    """Let log τ of core weights follow its slopes: that of the constant separately if actions have one field.

    With several, an action's usual reward is a sum of constants that cannot be separated: they share their τ.
    """
    n = shared.counts[LEARNED]
    if shared.counts[FIELDS] > 2:
        if n >= CORE_TAU_START:
            step_prior(shared, field, CORE, of_constant + of_context)
        shared.log_tau[field, CONSTANT] = shared.log_tau[field, CORE]
        return
    if n >= CORE_TAU_START:
        step_prior(shared, field, CONSTANT, of_constant)
    if n >= min(CORE_TAU_START, CONTEXT_TAU_EVENTS * shared.counts[BLOCKS]):
        step_prior(shared, field, CORE, of_context)


@kernel
def learn_all(
    shared: Any, events: Any, workspace: Any, low: float, span: float, new: bool, beside: Array
) -> float:  # fmt: skip
    """Learn from events in their order; ``new`` says that their numbers may settle scales. Return the sum of e².

    ``beside`` has mean and variance of another model's prediction for each event, in shares of the span. It is
    overwritten by the error of each event and the length of its inputs.
    """
    most = 1
    for e in range(events.users.size):
        most = max(most, events.starts[e + 1] - events.starts[e])
    scratch = scratch_for(shared.bases.shape[1], shared.bases.shape[2], most, most, 1 + most)
    squares: float = learn_in(scratch, shared, events, workspace, low, span, new, beside)
    return squares


@inner_kernel
def renew_basis(shared: Any, squares: Array) -> None:
    """Take the leading eigenvectors of the mean of zz' at 32, 64, 128, ... events; from twice the core's size on."""
    n, n_bases, d = shared.counts[LEARNED], shared.counts[BASES], shared.bases.shape[1]
    if n >= 2 * max(START_EVENTS, d) and n & (n - 1) == 0 and n_bases < MAX_BASES:
        for i in range(d):
            for j in range(d):
                squares[0, i, j] = shared.moment[i, j] / n
        eigenvectors(squares[0], squares[1], shared.bases[n_bases])
        shared.counts[BASES] += 1


@inner_kernel
def length_of(scratch: Any, n_places: int, n_tail: int, n_blocks: int) -> float:
    """Return the length of an example's inputs: of its context, times that of its blocks."""
    inputs, blocks = 0.0, 0.0
    for j in range(n_places):
        inputs += scratch.z[scratch.places[j]] * scratch.z[scratch.places[j]]
    for j in range(n_tail):
        inputs += scratch.t[j] * scratch.t[j]
    for f in range(n_blocks):
        blocks += scratch.xs[f] * scratch.xs[f]
    return math.sqrt(inputs * blocks)


@inner_kernel
def learn_weights(
    scratch: Any, shared: Any, own: Array, n_blocks: int, n_tail: int, error: float, q: float, ahead: float, phi: float
) -> None:
    """Let all weights of the blocks of an event take their Kalman step."""
    where, t_keys, t = scratch.where, scratch.t_keys[:n_tail], scratch.t[:n_tail]
    for f in range(n_blocks):
        block, field, x = where[f, AT_BLOCK], where[f, AT_FIELD], scratch.xs[f]
        slot, bias = where[f, AT_SLOT], where[f, AT_BIAS]
        learn_core(shared, block, scratch.z, x, scratch.gains[f], error, q, ahead, phi)
        tau = tau_of(shared, field, TAIL)
        for j in range(n_tail):
            weight = shared.tail[tail_place(scratch.keys[f], t_keys[j], shared.tail.shape[0])]
            learn_diagonal(weight, x * t[j], tau, error, q)
        if slot >= 0:
            tau = tau_of(shared, field, OWN)
            learn_own(own, slot, scratch.r, x, tau, error, q)
        if bias >= 0:
            numbers = own[bias + BIAS_NUMBERS : bias + BIAS_WORDS].view(np.float32)
            learn_diagonal(numbers, x, tau_of(shared, field, OWN_BIAS), error, q)


@inner_kernel
def step_priors(scratch: Any, shared: Any, n_blocks: int, error: float) -> None:
    """Let all log τ of the blocks of an event follow their slopes; after the weights, which used the old ones."""
    for f in range(n_blocks):
        field, slopes, factor = scratch.where[f, AT_FIELD], scratch.slopes[f], error * scratch.xs[f]
        step_prior(shared, field, OWN, factor * slopes[OWN])
        step_prior(shared, field, TAIL, factor * slopes[TAIL])
        step_prior(shared, field, OWN_BIAS, factor * slopes[OWN_BIAS])
        step_core(shared, field, factor * slopes[CONSTANT], factor * slopes[CORE])


@inner_kernel
def step_noise(shared: Any, error: float, q: float, variance: float) -> None:
    """Let the noise follow its expected square given the error, as a running mean that keeps a least rate."""
    noise = shared.numbers[NOISE]
    square = (noise / q * error) ** 2 + noise * variance / q
    rate = max(1 / (shared.counts[LEARNED] + 20), LEAST_NOISE_RATE)
    shared.numbers[NOISE] = min(max(noise + rate * (square - noise), LEAST_NOISE), MOST_NOISE)


@inner_kernel
def read_event(scratch: Any, shared: Any, events: Any, e: int, new: bool) -> Any:
    """Fill in the inputs and the features of an event; return the numbers of places, of the tail and of features."""
    first, middle, last = events.starts[e], events.starts[e] + events.n_context[e], events.starts[e + 1]
    n_places, n_tail = inputs_in(scratch, shared, events.hashes[first:middle], events.values[first:middle], new)
    z, places = scratch.z, scratch.places[:n_places]
    for a in range(n_places):
        for b in range(n_places):
            shared.moment[places[a], places[b]] += z[places[a]] * z[places[b]]
    n_features = action_blocks(
        shared, events.hashes[middle:last], events.values[middle:last], events.fields[middle:last], new,
        scratch,
    )  # fmt: skip
    return n_places, n_tail, n_features


@inner_kernel
def open_own(scratch: Any, shared: Any, own: Array) -> None:
    """Count an event of a personal model, and turn the model to the present basis."""
    if own[COUNT] == 0:
        own[BASIS] = shared.counts[BASES] - 1
    own[CLOCK] += 1
    turn_own(shared, own, scratch)


@inner_kernel
def touch_all(scratch: Any, shared: Any, own: Array, workspace: Any, n_features: int) -> int:
    """Find room for the weights of an event's features; return how many of them have room."""
    keys, where, m = scratch.keys, scratch.where, 0
    for f in range(n_features):
        key, field = keys[f], field_place(shared, scratch.names[f], True)
        block = touch_block(shared, key, field, scratch.squares)
        if block < 0:
            continue
        keys[m], scratch.xs[m], scratch.names[m] = key, scratch.xs[f], scratch.names[f]
        where[m, AT_BLOCK], where[m, AT_FIELD] = block, field
        where[m, AT_SLOT], where[m, AT_BIAS] = -1, -1
        if own.size:
            has_met = find_bias(own, key) >= 0
            where[m, AT_SLOT] = touch_slot(own, key, field, scratch.r.size, workspace.limit, has_met)
            where[m, AT_BIAS] = touch_bias(own, key, workspace.most_biases)
        m += 1
    return m


@inner_kernel
def learning_part(scratch: Any, shared: Any, own: Array, f: int, n_places: int, n_tail: int) -> Any:
    """Return mean and variance of a block's prediction at x = 1; fill in gains and slopes by log τ."""
    where, slopes = scratch.where[f], scratch.slopes[f]
    block, field, slot, bias = where[AT_BLOCK], where[AT_FIELD], where[AT_SLOT], where[AT_BIAS]
    for side in range(slopes.size):
        slopes[side] = 0.0
    gain = scratch.gains[f]
    mean, variance = core_part(shared, block, field, scratch.z, scratch.places[:n_places], gain)
    slopes[CONSTANT], slopes[CORE] = core_slopes(shared, block, gain)
    if n_tail:
        tail_mean, tail_variance, slopes[TAIL] = tail_part(
            shared, scratch.keys[f], scratch.t_keys[:n_tail], scratch.t[:n_tail], tau_of(shared, field, TAIL)
        )
        mean += tail_mean
        variance += tail_variance
    if slot >= 0:
        own_mean, own_variance, slopes[OWN] = own_part(own, slot, scratch.r, tau_of(shared, field, OWN))
        mean += own_mean
        variance += own_variance
    if bias >= 0:
        numbers = own[bias + BIAS_NUMBERS : bias + BIAS_WORDS].view(np.float32)
        bias_mean, bias_variance, slopes[OWN_BIAS] = diagonal_part(numbers, 1.0, tau_of(shared, field, OWN_BIAS))
        mean += bias_mean
        variance += bias_variance
    return mean, variance


@inner_kernel
def slope_by_drift(scratch: Any, shared: Any, n_places: int, n_blocks: int) -> float:
    """Return the slope of an event's mean by φ."""
    slope, z, places = 0.0, scratch.z, scratch.places
    for f in range(n_blocks):
        block = scratch.where[f, AT_BLOCK]
        for j in range(n_places):
            slope += scratch.xs[f] * shared.mean_slopes[block, places[j]] * z[places[j]]
    return slope


@inner_kernel
def learn_in(
    scratch: Any, shared: Any, events: Any, workspace: Any, low: float, span: float, new: bool, beside: Array
) -> float:  # fmt: skip
    squares = 0.0
    for e in range(events.users.size):
        renew_basis(shared, scratch.squares)
        n_places, n_tail, n_features = read_event(scratch, shared, events, e, new)
        user, own = events.users[e], workspace.words[:0]
        if user >= 0:
            own = workspace.words[workspace.starts[user] : workspace.starts[user + 1]]
            open_own(scratch, shared, own)
        n_blocks = touch_all(scratch, shared, own, workspace, n_features)
        mean, variance = 0.0, 0.0
        for f in range(n_blocks):
            part_mean, part_variance = learning_part(scratch, shared, own, f, n_places, n_tail)
            mean += scratch.xs[f] * part_mean
            variance += scratch.xs[f] * scratch.xs[f] * part_variance
        pair_mean, pair_variance, n_pairs = find_pairs(scratch, shared, n_blocks)
        mean += pair_mean
        variance += pair_variance
        error = (np.float64(events.rewards[e]) - low) / span - mean - beside[e, 0]
        variance += beside[e, 1]
        beside[e, 0], beside[e, 1] = error, length_of(scratch, n_places, n_tail, n_blocks)
        q, phi = shared.numbers[NOISE] + variance, exp(shared.drift[LOG_DRIFT])
        ahead = slope_by_drift(scratch, shared, n_places, n_blocks)
        learn_weights(scratch, shared, own, n_blocks, n_tail, error, q, ahead, phi)
        learn_pairs(scratch, shared, n_pairs, error, q)
        step_priors(scratch, shared, n_blocks, error)
        step_drift(shared, error * ahead)
        drift_idle(shared, phi)
        shared.counts[LEARNED] += 1
        step_noise(shared, error, q, variance)
        squares += error * error
    return squares

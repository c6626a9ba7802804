"""Predicting and learning of ``residual-kalman``, compiled; ``residual_kalman_reference`` has the equations.

Sums are in the order written, so that the same events give the same bits, however they are split into batches.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedres.checks import Array
from fedres.decisions.constants import (
    CORE_TAU_START,
    FIRST_LOG_TAU,
    FIRST_SHARED_LOG_TAU,
    HEAD,
    LEAST_LOG_TAU,
    LEAST_NOISE,
    LEAST_NOISE_RATE,
    LOG_TAU_RATE,
    MAX_BASES,
    MOST_LOG_TAU,
    MOST_NOISE,
    SLOT_HEAD,
    START_EVENTS,
)
from fedres.decisions.kalman_inputs import (
    Key,
    action_blocks,
    context_inputs,
    eigenvectors,
    field_place,
    find_block,
    tail_place,
    touch_block,
    turn_inputs,
)
from fedres.decisions.kalman_state import BASES, CORE, LEARNED, NOISE, OWN, TAIL, scratch_for, slot_words
from fedres.local_learners.adagrad import bare_kernel, kernel

COUNT, BASIS, CLOCK = range(3)  # of a personal model's words
SLOT_KEY, SLOT_FIELD, SLOT_USED = range(3)  # of a slot's


@bare_kernel
def tau_of(shared: Any, field: Any, side: int) -> float:
    return math.exp(log_tau_of(shared, field, side))


@bare_kernel
def log_tau_of(shared: Any, field: Any, side: int) -> Any:
    if field >= 0:
        return shared.log_tau[field, side]
    return FIRST_SHARED_LOG_TAU if side == CORE else FIRST_LOG_TAU


@bare_kernel
def core_part(shared: Any, block: int, z: Array, places: Array, tau: float, gain: Array) -> Any:
    """Fill in P z; return mean, variance and slope by log τ of a block's core weights at z; τ is a new block's."""
    mean, variance, slope = 0.0, 0.0, 0.0
    if block < 0:
        for j in range(places.size):
            variance += tau * z[places[j]] * z[places[j]]
        return mean, variance, slope
    means, covariance = shared.means[block], shared.covariances[block]
    gain[:] = 0.0
    for j in range(places.size):
        factor, row = z[places[j]], covariance[places[j]]
        mean += means[places[j]] * factor
        for i in range(gain.size):
            gain[i] += row[i] * factor
    for j in range(places.size):
        variance += gain[places[j]] * z[places[j]]
    for i in range(gain.size):
        slope += gain[i] * means[i]
    return mean, variance, slope * math.exp(-shared.block_log_tau[block])


@bare_kernel
def tail_part(shared: Any, key: Key, t_keys: Array, t: Array, tau: float) -> Any:
    """Return mean, variance and slope by log τ of a block's tail weights."""
    mean, variance, slope = 0.0, 0.0, 0.0
    for j in range(t.size):
        place = tail_place(key, t_keys[j], shared.tail.shape[0])
        c = 1 / (1 / tau + np.float64(shared.tail[place, 1]))
        term = np.float64(shared.tail[place, 0]) * c * t[j]
        mean += term
        variance += c * t[j] * t[j]
        slope += term * c / tau
    return mean, variance, slope


@bare_kernel
def own_part(words: Array, slot: int, r: Array, tau: float) -> Any:
    """Return the same of a personal block, or of none: slot −1."""
    mean, variance, slope, k = 0.0, 0.0, 0.0, r.size
    if slot < 0:
        for i in range(k):
            variance += tau * r[i] * r[i]
        return mean, variance, slope
    first = numbers_at(slot, k)
    numbers = words[first : first + 2 * k].view(np.float32)
    for i in range(k):
        c = 1 / (1 / tau + np.float64(numbers[k + i]))
        term = np.float64(numbers[i]) * c * r[i]
        mean += term
        variance += c * r[i] * r[i]
        slope += term * c / tau
    return mean, variance, slope


@bare_kernel
def numbers_at(slot: int, k: int) -> int:
    """Return where b of a slot begins; h follows."""
    return HEAD + slot * slot_words(k) + SLOT_HEAD


@bare_kernel
def find_slot(words: Array, key: Key, k: int) -> Any:
    stride = slot_words(k)
    if words.size:
        for slot in range(np.int64(words[COUNT])):
            if words[HEAD + slot * stride + SLOT_KEY] == key:
                return slot
    return -1


@bare_kernel
def touch_slot(words: Array, key: Key, field: int, k: int, limit: int) -> Any:
    """Return the slot of a block, of a new one if need be; −1 if all are in use by this event."""
    stride, n = slot_words(k), np.int64(words[COUNT])
    slot = find_slot(words, key, k)
    if slot < 0:
        if n < limit:
            slot = n
            words[COUNT] = n + 1
        else:
            slot = 0
            for i in range(1, n):
                at_slot, at_i = HEAD + slot * stride, HEAD + i * stride
                if slot == 0 or words[at_i + SLOT_USED] < words[at_slot + SLOT_USED]:
                    slot = i
            if words[HEAD + slot * stride + SLOT_USED] == words[CLOCK]:
                return -1
        first = HEAD + slot * stride
        words[first : first + stride] = 0
        words[first + SLOT_KEY], words[first + SLOT_FIELD] = key, field
    words[HEAD + slot * stride + SLOT_USED] = words[CLOCK]
    return slot


@bare_kernel
def turn_own(shared: Any, words: Array, k: int, squares: Array) -> None:
    """Bring a personal model to the present basis: means are turned, precisions keep their diagonal."""
    last = shared.counts[BASES] - 1
    if words[BASIS] == last:
        return
    old, new, d = shared.bases[words[BASIS]], shared.bases[last], shared.bases.shape[1]
    turn, mean, h = squares[0], squares[1, 0], squares[2, 0]
    turn[:] = 0.0
    for a in range(k):
        for i in range(d):
            for b in range(k):
                turn[a, b] += new[i, a] * old[i, b]
    for slot in range(np.int64(words[COUNT])):
        tau = tau_of(shared, np.int64(words[HEAD + slot * slot_words(k) + SLOT_FIELD]), OWN)
        first = numbers_at(slot, k)
        numbers = words[first : first + 2 * k].view(np.float32)
        mean[:], h[:] = 0.0, 0.0
        for a in range(k):
            for b in range(k):
                mean[a] += turn[a, b] * (np.float64(numbers[b]) / (1 / tau + np.float64(numbers[k + b])))
                h[a] += turn[a, b] * turn[a, b] * np.float64(numbers[k + b])
        for a in range(k):
            numbers[k + a] = h[a]
            numbers[a] = mean[a] * (1 / tau + np.float64(numbers[k + a]))
    words[BASIS] = last


@kernel
def predict(shared: Any, own: Array, personal: bool, request: Any, parts: Array) -> None:
    """Fill in the shared mean, the personal mean and the variance of each action; ``own`` may be empty."""
    n_context, n_features, n_slots = request.starts[0], request.hashes.size - request.starts[0], 4
    while n_slots < 2 * n_features:
        n_slots *= 2
    scratch = scratch_for(shared.bases.shape[1], shared.bases.shape[2], n_context, n_features, 1)
    if own.size and own[BASIS] != shared.counts[BASES] - 1:
        own = own.copy()
        turn_own(shared, own, shared.bases.shape[2], scratch.squares)
    known = np.zeros(n_slots, np.uint32), np.empty((n_slots, 3))
    predict_in(scratch, known, shared, own, personal, request, parts)


@bare_kernel
def inputs_in(scratch: Any, shared: Any, hashes: Array, values: Array, new: bool) -> Any:
    """Fill in the inputs of a context; return at how many places z is not 0, and the length of the tail."""
    n_places, n_tail = context_inputs(
        shared, hashes, values, new, scratch.z, scratch.places, scratch.t_keys, scratch.t
    )  # fmt: skip
    places = scratch.places[:n_places]
    turn_inputs(shared.bases[shared.counts[BASES] - 1], scratch.z, places, scratch.r)
    return n_places, n_tail


@bare_kernel
def predict_in(
    scratch: Any, blocks: Any, shared: Any, own: Array, personal: bool, request: Any, parts: Array
) -> None:  # fmt: skip
    """Do so; ``blocks`` is a table, with empty slots, of those that came before."""
    (known, known_parts), (hashes, values, fields, starts) = blocks, request
    keys, xs, names, gain, n_slots = scratch.keys, scratch.xs, scratch.names, scratch.gains[0], known.size
    n_places, n_tail = inputs_in(scratch, shared, hashes[: starts[0]], values[: starts[0]], False)
    inputs = scratch.z, scratch.places[:n_places], scratch.t_keys[:n_tail], scratch.t[:n_tail], scratch.r
    base = block_part(shared, own, personal, np.uint32(0), np.uint32(0), inputs, gain)
    for a in range(starts.size - 1):
        parts[a, 0], parts[a, 1], parts[a, 2] = base[0], base[1], 0.0
        mine = slice(starts[a], starts[a + 1])
        n_blocks = action_blocks(shared, hashes[mine], values[mine], fields[mine], False, keys, xs, names)
        for f in range(1, n_blocks):
            slot = np.int64(keys[f]) & (n_slots - 1)
            while known[slot] != 0 and known[slot] != keys[f]:
                slot = (slot + 1) & (n_slots - 1)
            if known[slot] == 0:
                known[slot] = keys[f]
                part = block_part(shared, own, personal, keys[f], names[f], inputs, gain)
                known_parts[slot, 0], known_parts[slot, 1], known_parts[slot, 2] = part
            parts[a, 0] += xs[f] * known_parts[slot, 0]
            parts[a, 1] += xs[f] * known_parts[slot, 1]
            parts[a, 2] += xs[f] * xs[f] * known_parts[slot, 2]


@bare_kernel
def block_part(shared: Any, own: Array, personal: bool, key: Key, name: Key, inputs: Any, gain: Array) -> Any:
    """Return shared mean, personal mean and variance of a block."""
    z, places, t_keys, t, r = inputs
    field = field_place(shared, name, False)
    mean, variance, _ = core_part(shared, find_block(shared, key), z, places, tau_of(shared, field, CORE), gain)
    if t.size:
        tail_mean, tail_variance, _ = tail_part(shared, key, t_keys, t, tau_of(shared, field, TAIL))
        mean += tail_mean
        variance += tail_variance
    if not personal:
        return mean, 0.0, variance
    slot = find_slot(own, key, r.size)
    own_mean, own_variance, _ = own_part(own, slot, r, tau_of(shared, field, OWN))
    return mean, own_mean, variance + own_variance


@bare_kernel
def learn_diagonal(numbers: Array, b_at: int, h_at: int, value: float, tau: float, error: float, q: float) -> None:
    """w += c i e/q and c −= (c i)²/q, the latter as h += i²/(q − c i²)."""
    b, h = np.float64(numbers[b_at]), np.float64(numbers[h_at])
    c = 1 / (1 / tau + h)
    numbers[h_at] = h + value * value / (q - c * value * value)
    numbers[b_at] = (b * c + c * value * error / q) * (1 / tau + np.float64(numbers[h_at]))


@bare_kernel
def step_prior(shared: Any, field: int, side: int, slope: float) -> None:
    """l follows −d(e²/2)/dl with AdaGrad's steps."""
    shared.slope_squares[field, side] += slope * slope
    if slope != 0:
        moved = shared.log_tau[field, side] + LOG_TAU_RATE * slope / math.sqrt(shared.slope_squares[field, side])
        shared.log_tau[field, side] = min(max(moved, LEAST_LOG_TAU), MOST_LOG_TAU)


@kernel
def learn_all(shared: Any, events: Any, workspace: Any, low: float, span: float, new: bool) -> None:
    """Learn from events in their order; ``new`` says that their numbers may settle scales."""
    most = 1
    for e in range(events.users.size):
        most = max(most, events.starts[e + 1] - events.starts[e])
    scratch = scratch_for(shared.bases.shape[1], shared.bases.shape[2], most, most, 1 + most)
    learn_in(scratch, shared, events, workspace, low, span, new)


@bare_kernel
def renew_basis(shared: Any, squares: Array) -> None:
    """Take the leading eigenvectors of the mean of zz' at 32, 64, 128, ... events; from twice the core's size on."""
    n, n_bases, d = shared.counts[LEARNED], shared.counts[BASES], shared.bases.shape[1]
    if n >= 2 * max(START_EVENTS, d) and n & (n - 1) == 0 and n_bases < MAX_BASES:
        for i in range(d):
            for j in range(d):
                squares[0, i, j] = shared.moment[i, j] / n
        eigenvectors(squares[0], squares[1], shared.bases[n_bases])
        shared.counts[BASES] += 1


@bare_kernel
def learn_in(scratch: Any, shared: Any, events: Any, workspace: Any, low: float, span: float, new: bool) -> None:
    d, k = shared.bases.shape[1], shared.bases.shape[2]
    keys, xs, names, gains = scratch.keys, scratch.xs, scratch.names, scratch.gains
    where, slopes = scratch.where, scratch.slopes
    for e in range(events.users.size):
        renew_basis(shared, scratch.squares)
        first, middle, last = events.starts[e], events.starts[e] + events.n_context[e], events.starts[e + 1]
        n_places, n_tail = inputs_in(scratch, shared, events.hashes[first:middle], events.values[first:middle], new)
        z, places, t_keys, t, r = (
            scratch.z, scratch.places[:n_places], scratch.t_keys[:n_tail], scratch.t[:n_tail], scratch.r
        )  # fmt: skip
        for a in range(places.size):
            for b in range(places.size):
                shared.moment[places[a], places[b]] += z[places[a]] * z[places[b]]
        user = events.users[e]
        own = workspace.words[:0]
        if user >= 0:
            own = workspace.words[workspace.starts[user] : workspace.starts[user + 1]]
            if own[COUNT] == 0:
                own[BASIS] = shared.counts[BASES] - 1
            own[CLOCK] += 1
            turn_own(shared, own, k, scratch.squares)
        n_blocks = action_blocks(
            shared, events.hashes[middle:last], events.values[middle:last], events.fields[middle:last], new,
            keys, xs, names,
        )  # fmt: skip
        mean, variance, m = 0.0, 0.0, 0
        for f in range(n_blocks):
            field = field_place(shared, names[f], True)
            block = touch_block(shared, keys[f], shared.log_tau[field, CORE], scratch.squares)
            if block < 0:
                continue
            slot = touch_slot(own, keys[f], field, k, workspace.limit) if user >= 0 else -1
            part_mean, part_variance, slopes[m, CORE] = core_part(shared, block, z, places, 1.0, gains[m])
            slopes[m, OWN], slopes[m, TAIL] = 0.0, 0.0
            if n_tail:
                tail_mean, tail_variance, slopes[m, TAIL] = tail_part(
                    shared, keys[f], t_keys, t, tau_of(shared, field, TAIL)
                )
                part_mean += tail_mean
                part_variance += tail_variance
            if slot >= 0:
                own_mean, own_variance, slopes[m, OWN] = own_part(own, slot, r, tau_of(shared, field, OWN))
                part_mean += own_mean
                part_variance += own_variance
            mean += xs[f] * part_mean
            variance += xs[f] * xs[f] * part_variance
            keys[m], xs[m], where[m, 0], where[m, 1], where[m, 2] = keys[f], xs[f], block, field, slot
            m += 1
        error = (np.float64(events.rewards[e]) - low) / span - mean
        noise = shared.numbers[NOISE]
        q = noise + variance
        for f in range(m):
            block, field, slot, x = where[f, 0], where[f, 1], where[f, 2], xs[f]
            gain, means, covariance = gains[f], shared.means[block], shared.covariances[block]
            for i in range(d):
                means[i] += gain[i] * (x * error / q)
            for i in range(d):
                factor, row = gain[i] * (x * x / q), covariance[i]
                if factor != 0:
                    for j in range(d):
                        row[j] -= factor * gain[j]
            tau = tau_of(shared, field, TAIL)
            for j in range(n_tail):
                weight = shared.tail[tail_place(keys[f], t_keys[j], shared.tail.shape[0])]
                learn_diagonal(weight, 0, 1, x * t[j], tau, error, q)
            if slot >= 0:
                at_b, tau = numbers_at(slot, k), tau_of(shared, field, OWN)
                numbers = own[at_b : at_b + 2 * k].view(np.float32)
                for i in range(k):
                    learn_diagonal(numbers, i, k + i, x * r[i], tau, error, q)
        for f in range(m):
            step_prior(shared, where[f, 1], OWN, error * xs[f] * slopes[f, OWN])
            step_prior(shared, where[f, 1], TAIL, error * xs[f] * slopes[f, TAIL])
            if shared.counts[LEARNED] >= CORE_TAU_START:
                step_prior(shared, where[f, 1], CORE, error * xs[f] * slopes[f, CORE])
        shared.counts[LEARNED] += 1
        noise_square = (noise / q * error) ** 2 + noise * variance / q
        rate = max(1 / (shared.counts[LEARNED] + 20), LEAST_NOISE_RATE)
        shared.numbers[NOISE] = min(max(noise + rate * (noise_square - noise), LEAST_NOISE), MOST_NOISE)

"""Compiled rounds of many linear models with the steps of ``vw --adaptive``, bit for bit those of ``LinearLearner``.

A model's weights are one row of features and a constant, and so are examples. A zero changes no sum and moves no
weight, so nothing is skipped. Arrays are contiguous: 32-bit floats, and 64-bit integers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.compiling import bare_kernel, inner_kernel
from fedres.local_learners.adagrad import Real, at, multiply_add, step_in_a_row


class Models(NamedTuple):
    """n models: n rows of weights and sums, and each one's range of labels seen."""

    weights: Array  # (n, width)
    squares: Array  # G, the sums of squared gradients
    low: Array  # (n,)
    high: Array
    rate: Real  # η


class ClientRows(NamedTuple):
    """What each of P clients sees in T rounds: its rows, and their order."""

    values: Array  # (P, R, width)
    label: Array  # (P, R)
    order: Array  # (P, T): which of its R rows


class Notes(NamedTuple):
    """What the rounds of a run write down: all predictions, and the rest for as many rounds as delays need.

    Round t is kept in place ``t & mask``.
    """

    offset: Array  # (mask + 1, P), the shared model's part, filled in when that model is made
    score: Array  # the local part
    error: Array  # label − prediction, clamped to a range that holds the label
    mask: int
    prediction: Array  # ŷ, (T, P)


class ClientDelays(NamedTuple):
    """Rounds, of each client."""

    uplink: Array  # α
    downlink: Array  # β
    wait: Array  # until the local model learns from a round


class EngineServer(NamedTuple):
    """How the server steps: ``gradient`` is a sum over a round, of no numbers if the server takes uploads in turn."""

    on_arrival: bool
    gradient: Array


@inner_kernel
def _example(stream: ClientRows, t: int, i: int) -> tuple[Array, Real]:
    """Return the row that client i has in round t, and its label."""
    row = at(stream.order[at(i), at(t)])
    return stream.values[at(i), row], stream.label[at(i), row]


@inner_kernel
def _number(total: Real) -> Real:
    """Return 0 instead of what is no number, as VW does."""
    return total if total == total else np.float32(0)


@inner_kernel
def _see(models: Models, which: int, label: Real) -> None:
    models.low[at(which)] = min(models.low[at(which)], label)
    models.high[at(which)] = max(models.high[at(which)], label)


@inner_kernel
def _clamp(models: Models, which: int, joint: Real) -> Real:
    return min(max(joint, models.low[at(which)]), models.high[at(which)])


@inner_kernel
def _step(models: Models, which: int, x: Array, error: Real) -> None:
    if error * error > 0:
        squared_slope, pull = np.float32(4) * error * error, np.float32(2) * error * models.rate
        step_in_a_row(models.weights[at(which)], models.squares[at(which)], x, squared_slope, pull)


@inner_kernel
def _sum(weights: Array, x: Array, total: Real) -> Real:
    """Return w·x from ``total`` on, in order."""
    for k in range(x.size):
        total = multiply_add(weights[k], x[k], total)
    return total


@inner_kernel
def _two_sums(weights: Array, x: Array, first: Real, second: Real) -> tuple[Real, Real]:
    """Return w·x from two numbers on, side by side: one addition does not wait for the other."""
    for k in range(x.size):
        first = multiply_add(weights[k], x[k], first)
        second = multiply_add(weights[k], x[k], second)
    return _number(first), _number(second)


@inner_kernel
def _act(t: int, local: Models, stream: ClientRows, notes: Notes) -> None:
    """Let every client predict and see its label."""
    place = t & notes.mask
    for i in range(len(stream.order)):
        x, label = _example(stream, t, i)
        joint, own = _two_sums(local.weights[at(i)], x, notes.offset[at(place), at(i)], np.float32(0))
        notes.score[at(place), at(i)] = own
        notes.prediction[at(t), at(i)] = _clamp(local, i, joint)
        _see(local, i, label)
        notes.error[at(place), at(i)] = label - _clamp(local, i, joint)


@inner_kernel
def _publish(
    t: int, shared: Models, stream: ClientRows, delays: ClientDelays, clamp: bool, out: Array, mask: int
) -> None:
    """Fill in what the shared model of round t says to the rows that clients will have when they meet it."""
    n_rounds = stream.order.shape[1]
    for i in range(len(stream.order)):
        met = t + 1 + delays.downlink[at(i)]
        if met < n_rounds:
            x, _ = _example(stream, met, i)
            total = _number(_sum(shared.weights[0], x, np.float32(0)))
            out[at(met & mask), at(i)] = _clamp(shared, 0, total) if clamp else total


@inner_kernel
def _see_arrivals(t: int, shared: Models, stream: ClientRows, delays: ClientDelays) -> None:
    for i in range(len(stream.order)):
        s = t - delays.uplink[at(i)]
        if s >= 0:
            _see(shared, 0, _example(stream, s, i)[1])


@inner_kernel
def _use(shared: Models, server: EngineServer, x: Array, error: Real) -> None:
    """Let the server use an upload: at once, or for the sum where there is one."""
    if not server.gradient.size:
        _step(shared, 0, x, error)
    for k in range(server.gradient.size):
        server.gradient[k] += np.float32(2) * error * x[k]


@inner_kernel
def _summed_step(shared: Models, server: EngineServer) -> None:
    """One AdaGrad step with the sum of a round's gradients, which is then 0 again."""
    weights, squares = shared.weights[0], shared.squares[0]
    for k in range(server.gradient.size):
        downhill = server.gradient[k]
        squares[k] += downhill * downhill
        if squares[k] > 0:
            weights[k] += shared.rate * downhill / np.sqrt(squares[k])
        server.gradient[k] = 0


@inner_kernel
def _learn_arrived(shared: Models, server: EngineServer, x: Array, label: Real, part: Real) -> None:
    """Let the server learn from an upload at its newest model, beside the local part that was sent."""
    total = _number(_sum(shared.weights[0], x, part))
    _see(shared, 0, label)
    _use(shared, server, x, label - _clamp(shared, 0, total))


@bare_kernel
def independent(first: int, last: int, local: Models, stream: ClientRows, notes: Notes) -> None:
    """Play rounds first..last − 1 of clients that learn alone."""
    for t in range(first, last):
        _act(t, local, stream, notes)
        for i in range(len(stream.order)):
            _step(local, i, _example(stream, t, i)[0], notes.error[at(t & notes.mask), at(i)])


@bare_kernel
def central(
    first: int, last: int, shared: Models, stream: ClientRows, notes: Notes, delays: ClientDelays, server: EngineServer
) -> None:
    """Play rounds first..last − 1 of one model that learns from everybody's rows."""
    for t in range(first, last):
        if server.gradient.size:
            _see_arrivals(t, shared, stream, delays)
        for i in range(len(stream.order)):
            s = t - delays.uplink[at(i)]
            if s >= 0:
                x, label = _example(stream, s, i)
                _learn_arrived(shared, server, x, label, np.float32(0))
        _summed_step(shared, server)
        _publish(t, shared, stream, delays, True, notes.prediction, -1)


@bare_kernel
def fedres(
    first: int,
    last: int,
    shared: Models,
    local: Models,
    stream: ClientRows,
    own: ClientRows,
    notes: Notes,
    delays: ClientDelays,
    server: EngineServer,
) -> None:
    """Play rounds first..last − 1 of FedRes."""
    for t in range(first, last):
        _act(t, local, own, notes)
        if server.gradient.size and server.on_arrival:
            _see_arrivals(t, shared, stream, delays)
        for i in range(len(own.order)):
            u, s = t - delays.wait[at(i)], t - delays.uplink[at(i)]
            if u >= 0:  # the local step that is due
                _step(local, i, _example(own, u, i)[0], notes.error[at(u & notes.mask), at(i)])
            if s >= 0:  # the upload that arrives
                x, label = _example(stream, s, i)
                if server.on_arrival:
                    _learn_arrived(shared, server, x, label, notes.score[at(s & notes.mask), at(i)])
                else:
                    _use(shared, server, x, notes.error[at(s & notes.mask), at(i)])
        _summed_step(shared, server)
        _publish(t, shared, stream, delays, False, notes.offset, notes.mask)


@bare_kernel
def add_scores(weights: Array, rows: Array, out: Array) -> None:
    """Add one model's sums over rows to what ``out`` holds."""
    for r in range(len(rows)):
        out[at(r)] = _number(_sum(weights, rows[at(r)], out[at(r)]))

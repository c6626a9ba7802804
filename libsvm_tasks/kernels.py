"""Compiled rounds of many linear models with the steps of ``vw --adaptive``, bit for bit those of ``LinearLearner``.

A model's weights are one row of features and a constant, filled up with zeros to whole lanes; so are examples. A zero
changes no sum and moves no weight, so nothing is skipped. Sums run in strict order, which leaves a processor waiting:
several sums are therefore made side by side, and one beside the roots and divisions of a step.

Arrays come as addresses (see ``lanes``): 32-bit floats and 64-bit integers, contiguous, kept alive by the caller.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.local_learners.adagrad import Real, kernel, multiply_add
from libsvm_tasks import lanes
from libsvm_tasks.lanes import LANES, Lanes, get, get_whole, load, put, spread, store

_SMALLEST_SQUARE = np.float32(1.084202e-19) * np.float32(1.084202e-19)  # VW's X2_MIN

_multiply, _multiply_add, _square = lanes.multiply, lanes.multiply_add, lanes.square
_inverse_root, _where_positive = lanes.inverse_root, lanes.where_positive

Address = Any  # an integer; Any, as mypy does not know what intrinsics return


class Models(NamedTuple):
    """n models: n rows of ``width`` weights and sums, and each one's range of labels seen."""

    weights: Address
    squares: Address  # G, the sums of squared gradients
    low: Address
    high: Address
    width: int
    rate: Real  # η


class Stream(NamedTuple):
    """What each of P clients sees in T rounds: its rows, each client's after another's, and their order."""

    values: Address  # (P, R, width)
    label: Address  # (P, R)
    order: Address  # (P, T): which of its R rows
    n_clients: int
    n_rows: int
    n_rounds: int
    size: int  # of a row, in bytes


class Notes(NamedTuple):
    """What the rounds of a run write down: all predictions, and the rest for as many rounds as delays need.

    Round t is kept in place ``t & mask``, each place with one number per client.
    """

    offset: Address  # the shared model's part, filled in when that model is made
    score: Address  # the local part
    error: Address  # label − prediction, clamped to a range that holds the label
    mask: int
    n_clients: int
    prediction: Address  # ŷ, (T, P)


class Delays(NamedTuple):
    """Rounds, of each client."""

    uplink: Address  # α
    downlink: Address  # β
    wait: Address  # until the local model learns from a round


class Server(NamedTuple):
    """How the server steps: ``gradient`` has room for a sum of ``summed`` numbers, 0 if it takes uploads in turn."""

    on_arrival: bool
    gradient: Address
    summed: int


@kernel
def _number(total: Real) -> Real:
    return total if total == total else np.float32(0)


@kernel
def _row_number(stream: Stream, t: int, i: int) -> Any:
    return i * stream.n_rows + get_whole(stream.order, i * stream.n_rounds + t)


@kernel
def _row(stream: Stream, t: int, i: int) -> Address:
    return stream.values + stream.size * _row_number(stream, t, i)


@kernel
def _label(stream: Stream, t: int, i: int) -> Real:
    return get(stream.label, _row_number(stream, t, i))


@kernel
def _place(notes: Notes, t: int, i: int) -> int:
    return (t & notes.mask) * notes.n_clients + i


@kernel
def _see(models: Models, which: int, label: Real) -> None:
    put(models.low, which, min(get(models.low, which), label))
    put(models.high, which, max(get(models.high, which), label))


@kernel
def _clamp(models: Models, which: int, joint: Real) -> Real:
    return min(max(joint, get(models.low, which)), get(models.high, which))


@kernel
def _move(models: Models, j: int, x: Address, k: int, squared_slope: Lanes, pull: Lanes) -> None:
    """G_j += (4·e·e)·(x·x); w_j += (2·e·η)·(x·(1/√G_j)), for four weights and features at once."""
    values = load(x, k)
    squares = _multiply_add(squared_slope, _square(values, spread(_SMALLEST_SQUARE)), load(models.squares, j))
    store(models.squares, j, squares)
    old = load(models.weights, j)
    new = _multiply_add(pull, _multiply(values, _inverse_root(squares)), old)
    store(models.weights, j, _where_positive(squares, new, old))


@kernel
def _step(models: Models, which: int, x: Address, error: Real) -> None:
    if error * error > 0:
        squared_slope = spread(np.float32(4) * error * error)
        pull = spread(np.float32(2) * error * models.rate)
        for k in range(0, models.width, LANES):
            _move(models, which * models.width + k, x, k, squared_slope, pull)


@kernel
def _add_four(weights: Address, x: Address, k: int, total: Real) -> Real:
    for lane in range(LANES):
        total = multiply_add(get(weights, k + lane), get(x, k + lane), total)
    return total


@kernel
def _sum(models: Models, x: Address, total: Real) -> Real:
    """Return the sum of the only model, from ``total`` on."""
    for k in range(0, models.width, LANES):
        total = _add_four(models.weights, x, k, total)
    return total


@kernel
def _step_beside_sum(
    local: Models, i: int, x: Address, error: Real, shared: Models, x_shared: Address, total: Real
) -> Real:
    """Step the local model i and return the shared model's sum from ``total`` on."""
    if not error * error > 0:
        return _sum(shared, x_shared, total)
    squared_slope = spread(np.float32(4) * error * error)
    pull = spread(np.float32(2) * error * local.rate)
    both = min(local.width, shared.width)
    for k in range(0, both, LANES):
        _move(local, i * local.width + k, x, k, squared_slope, pull)
        total = _add_four(shared.weights, x_shared, k, total)
    for k in range(both, local.width, LANES):
        _move(local, i * local.width + k, x, k, squared_slope, pull)
    for k in range(both, shared.width, LANES):
        total = _add_four(shared.weights, x_shared, k, total)
    return total


@kernel
def _two_models(
    models: Models, i: int, j: int, x_i: Address, x_j: Address, offset_i: Real, offset_j: Real
) -> tuple[Real, Real, Real, Real]:
    """Return the joint predictions of models i and j, not clamped, then their own parts alone."""
    w_i, w_j = models.weights + 4 * i * models.width, models.weights + 4 * j * models.width
    joint_i, joint_j, own_i, own_j = offset_i, offset_j, np.float32(0), np.float32(0)
    for first in range(0, models.width, LANES):
        for k in range(first, first + LANES):
            joint_i = multiply_add(get(w_i, k), get(x_i, k), joint_i)
            own_i = multiply_add(get(w_i, k), get(x_i, k), own_i)
            joint_j = multiply_add(get(w_j, k), get(x_j, k), joint_j)
            own_j = multiply_add(get(w_j, k), get(x_j, k), own_j)
    return _number(joint_i), _number(joint_j), _number(own_i), _number(own_j)


@kernel
def _four_rows(
    models: Models, which: int, a: Address, b: Address, c: Address, d: Address, starts: tuple[Real, Real, Real, Real]
) -> tuple[Real, Real, Real, Real]:
    """Return one model's sums over four rows."""
    w = models.weights + 4 * which * models.width
    first, second, third, fourth = starts
    for k in range(models.width):
        weight = get(w, k)
        first = multiply_add(weight, get(a, k), first)
        second = multiply_add(weight, get(b, k), second)
        third = multiply_add(weight, get(c, k), third)
        fourth = multiply_add(weight, get(d, k), fourth)
    return _number(first), _number(second), _number(third), _number(fourth)


@kernel
def _note(notes: Notes, models: Models, t: int, i: int, label: Real, joint: Real, score: Real) -> None:
    put(notes.score, _place(notes, t, i), score)
    put(notes.prediction, t * notes.n_clients + i, _clamp(models, i, joint))
    _see(models, i, label)
    put(notes.error, _place(notes, t, i), label - _clamp(models, i, joint))


@kernel
def _act(t: int, local: Models, stream: Stream, notes: Notes) -> None:
    """Let every client predict and see its label, two side by side; an odd last one beside itself."""
    for i in range(0, stream.n_clients, 2):
        j = min(i + 1, stream.n_clients - 1)
        offset_i, offset_j = get(notes.offset, _place(notes, t, i)), get(notes.offset, _place(notes, t, j))
        joint_i, joint_j, score_i, score_j = _two_models(
            local, i, j, _row(stream, t, i), _row(stream, t, j), offset_i, offset_j
        )
        _note(notes, local, t, i, _label(stream, t, i), joint_i, score_i)
        if j > i:
            _note(notes, local, t, j, _label(stream, t, j), joint_j, score_j)


@kernel
def _met(t: int, i: int, delays: Delays) -> Any:
    """Return the round in which client i meets the shared model made in round t."""
    return t + 1 + get_whole(delays.downlink, i)


@kernel
def _met_row(t: int, i: int, stream: Stream, delays: Delays) -> Address:
    return _row(stream, min(_met(t, i, delays), stream.n_rounds - 1), i)


@kernel
def _tell(t: int, i: int, stream: Stream, delays: Delays, out: Address, mask: int, said: Real) -> None:
    u = _met(t, i, delays)
    if u < stream.n_rounds:
        put(out, (u & mask) * stream.n_clients + i, said)


@kernel
def _publish(t: int, shared: Models, stream: Stream, delays: Delays, clamp: bool, out: Address, mask: int) -> None:
    """Fill in what the shared model of round t says to the rows that clients will have when they meet it."""
    zero, last = np.float32(0), stream.n_clients - 1
    for i in range(0, stream.n_clients, 4):
        b, c, d = min(i + 1, last), min(i + 2, last), min(i + 3, last)
        rows = (_met_row(t, i, stream, delays), _met_row(t, b, stream, delays))
        more = (_met_row(t, c, stream, delays), _met_row(t, d, stream, delays))
        sums = _four_rows(shared, 0, rows[0], rows[1], more[0], more[1], (zero, zero, zero, zero))
        for client, total in zip((i, b, c, d), sums):  # noqa: B905 (numba has no strict)
            _tell(t, client, stream, delays, out, mask, _clamp(shared, 0, total) if clamp else total)


@kernel
def _see_arrivals(t: int, shared: Models, stream: Stream, delays: Delays) -> None:
    for i in range(stream.n_clients):
        s = t - get_whole(delays.uplink, i)
        if s >= 0:
            _see(shared, 0, _label(stream, s, i))


@kernel
def _summed_step(shared: Models, server: Server) -> None:
    """One AdaGrad step with the sum of a round's gradients, which is then 0 again."""
    for k in range(server.summed):
        downhill = get(server.gradient, k)
        squares = get(shared.squares, k) + downhill * downhill
        put(shared.squares, k, squares)
        if squares > 0:
            put(shared.weights, k, get(shared.weights, k) + shared.rate * downhill / np.sqrt(squares))
        put(server.gradient, k, np.float32(0))


@kernel
def _use(shared: Models, server: Server, x: Address, error: Real) -> None:
    """Let the server use an upload: at once, or for the sum where there is one."""
    if not server.summed:
        _step(shared, 0, x, error)
    for k in range(server.summed):
        put(server.gradient, k, get(server.gradient, k) + np.float32(2) * error * get(x, k))


@kernel
def _arrival_error(shared: Models, label: Real, total: Real) -> Real:
    _see(shared, 0, label)
    return label - _clamp(shared, 0, _number(total))


@kernel
def independent(first: int, last: int, local: Models, stream: Stream, notes: Notes) -> None:
    """Play rounds first..last − 1 of clients that learn alone."""
    for t in range(first, last):
        _act(t, local, stream, notes)
        for i in range(stream.n_clients):
            _step(local, i, _row(stream, t, i), get(notes.error, _place(notes, t, i)))


@kernel
def central(
    first: int, last: int, shared: Models, stream: Stream, notes: Notes, delays: Delays, server: Server
) -> None:
    """Play rounds first..last − 1 of one model that learns from everybody's rows."""
    for t in range(first, last):
        if server.summed:
            _see_arrivals(t, shared, stream, delays)
        for i in range(stream.n_clients):
            s = t - get_whole(delays.uplink, i)
            if s >= 0:
                x = _row(stream, s, i)
                error = _arrival_error(shared, _label(stream, s, i), _sum(shared, x, np.float32(0)))
                _use(shared, server, x, error)
        _summed_step(shared, server)
        _publish(t, shared, stream, delays, True, notes.prediction, -1)


@kernel
def _client_and_server(
    t: int,
    i: int,
    shared: Models,
    local: Models,
    stream: Stream,
    own: Stream,
    notes: Notes,
    delays: Delays,
    server: Server,
) -> None:
    """Take client i's local step that is due in round t, and the server's on its upload that arrives."""
    u, s = t - get_whole(delays.wait, i), t - get_whole(delays.uplink, i)
    x, x_shared = _row(own, max(u, 0), i), _row(stream, max(s, 0), i)
    error = get(notes.error, _place(notes, u, i)) if u >= 0 else np.float32(0)
    if s >= 0 and server.on_arrival:
        total = _step_beside_sum(local, i, x, error, shared, x_shared, get(notes.score, _place(notes, s, i)))
        _use(shared, server, x_shared, _arrival_error(shared, _label(stream, s, i), total))
        return
    _step(local, i, x, error)
    if s >= 0:
        _use(shared, server, x_shared, get(notes.error, _place(notes, s, i)))


@kernel
def fedres(
    first: int,
    last: int,
    shared: Models,
    local: Models,
    stream: Stream,
    own: Stream,
    notes: Notes,
    delays: Delays,
    server: Server,
) -> None:
    """Play rounds first..last − 1 of FedRes."""
    for t in range(first, last):
        _act(t, local, own, notes)
        if server.summed and server.on_arrival:
            _see_arrivals(t, shared, stream, delays)
        for i in range(own.n_clients):
            _client_and_server(t, i, shared, local, stream, own, notes, delays, server)
        _summed_step(shared, server)
        _publish(t, shared, stream, delays, False, notes.offset, notes.mask)


@kernel
def gather(features: Array, columns: Array, width: int, out: Address) -> bool:
    """Write rows of the columns, a constant and zeros to whole lanes; return whether all is finite in 32 bits."""
    ok = True
    for r in range(features.shape[0]):
        row = out + 4 * r * width
        for k in range(columns.size):
            value = np.float32(features[r, columns[k]])
            ok &= np.isfinite(value)
            put(row, k, value)
        put(row, columns.size, np.float32(1))
        for k in range(columns.size + 1, width):
            put(row, k, np.float32(0))
    return ok


@kernel
def add_scores(models: Models, which: int, rows: Address, n_rows: int, out: Address) -> None:
    """Add one model's sums over ``n_rows`` rows to what ``out`` holds."""
    size, last = 4 * models.width, n_rows - 1
    for r in range(0, n_rows, 4):
        b, c, d = min(r + 1, last), min(r + 2, last), min(r + 3, last)
        starts = (get(out, r), get(out, b), get(out, c), get(out, d))
        sums = _four_rows(models, which, rows + r * size, rows + b * size, rows + c * size, rows + d * size, starts)
        for row, total in zip((r, b, c, d), sums):  # noqa: B905 (numba has no strict)
            put(out, row, total)

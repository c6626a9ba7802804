"""From models and settings to probabilities and a draw, compiled: one call for all requests of a turn."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.decisions.kalman_kernels import predict_in
from fedres.decisions.kalman_own import BASIS, turn_own
from fedres.decisions.kalman_state import BASES, Request
from fedres.decisions.kalman_state import scratch_for as kalman_scratch
from fedres.local_learners.adagrad import kernel
from fedres.policies.kernels import explore, pick
from fedres.scoring.features import Prepared as Features
from fedres.scoring.model import MAX_SLOTS, shift_of
from fedres.scoring.scores import score_in, scratch_for
from service.models.kalman import PublishedKalman
from service.models.kalman_personal import DATA, ROOM, size_in
from service.models.memory import Key, read_block
from service.models.personal import views, words_for
from service.rank.requests import Prepared

NO_KEY: Key = (0, 0)  # of nobody's model
NO_MEMORY: Array = np.zeros(8, np.uint64)


Policy = tuple[Array, int]  # how a loop explores: a rule, and the number of rewards learned
Choice = tuple[int, list[float], list[float]]  # an action, the probabilities and the scores of all


def choose(
    prepared: Sequence[Prepared], shared: Array | PublishedKalman, memory: Array, policy: Policy, *, crosses: bool
) -> list[Choice]:
    """Return a choice for each request; ``shared`` are weights or another model, ``memory`` is where users' are."""
    rows = [row for each in prepared for row in each.rows]
    n_actions = [len(each.rows) - 1 for each in prepared]
    n = sum(n_actions)
    allowed = _all_allowed(n)
    if any(each.allowed for each in prepared):
        flags = [each.allowed or [True] * size for each, size in zip(prepared, n_actions, strict=True)]
        allowed = np.array([flag for some in flags for flag in some], np.bool_)
    actions, numbers = np.empty(len(prepared), np.int64), np.empty((2, n))
    columns = Columns(
        np.array(n_actions, np.int64),
        np.array([row.size for row in rows], np.int64),
        np.frombuffer(b"".join([row.hashes for row in rows]), np.uint32),
        np.frombuffer(b"".join([row.values for row in rows]), np.float32),
        np.array([word for each in prepared for word in each.key], np.int64).reshape(-1, 2),
        allowed,
        np.array([each.draw for each in prepared]),
    )
    try:
        if isinstance(shared, PublishedKalman):
            fields = np.frombuffer(b"".join([row.fields for row in rows]), np.uint32)
            _choose_kalman(columns, fields, shared, memory, policy, actions, numbers)
        else:
            _choose_all(columns, shared, shift_of(shared), crosses, memory, policy, actions, numbers)
    except AttributeError as error:  # what numba makes of a tuple that it finds no memory to look at
        raise MemoryError from error
    probabilities, scores = numbers.tolist()
    choices, first = [], 0
    for action, size in zip(actions.tolist(), n_actions, strict=True):
        last = first + size
        choices.append((action, probabilities[first:last], scores[first:last]))
        first = last
    return choices


class Columns(NamedTuple):
    """All requests of a turn, in arrays."""

    n_actions: Array  # of each request
    sizes: Array  # features of each row: context, actions, next context, ...
    hashes: Array
    values: Array
    keys: Array  # of the users' models
    allowed: Array
    draws: Array


@lru_cache(maxsize=10_000)
def _all_allowed(n: int) -> Array:
    return np.ones(n, np.bool_)


@kernel
def _choose_all(
    columns: Any, weights: Array, shift: int, crosses: bool, memory: Array, policy: Any, actions: Array, numbers: Array
) -> None:
    """Fill in the actions drawn, and the probabilities and scores of all."""
    n_actions, sizes, hashes, values, keys, allowed, draws = columns
    own, most = np.empty(words_for(MAX_SLOTS), np.uint64), max(n_actions)
    scratch, parts = scratch_for(hashes.size, MAX_SLOTS), np.empty((most, 2), np.float32)
    starts, widths, (rule, n_learned) = np.empty(most + 1, np.int64), np.zeros(most), policy
    row = first = action = 0
    for k in range(n_actions.size):
        n = n_actions[k]
        starts[0] = sizes[row]
        for a in range(n):
            starts[a + 1] = starts[a] + sizes[row + 1 + a]
        last = first + starts[n]
        prepared = Features(hashes[first:last], values[first:last], starts[: n + 1], crosses)
        n_slots = _read_own(memory, keys[k, 0], keys[k, 1], own)
        table, own_weights, _ = views(own, 2, n_slots)
        score_in(scratch, prepared, (weights, shift, table, own_weights), parts[:n])
        scores, chances = numbers[1, action : action + n], numbers[0, action : action + n]
        for a in range(n):
            scores[a] = parts[a, 0] + parts[a, 1]
        explore(rule, 0, n_learned, scores, widths[:n], allowed[action : action + n], chances)
        actions[k] = pick(chances, draws[k])
        row, first, action = row + n + 1, last, action + n


@kernel
def _choose_kalman(
    columns: Any, fields: Array, kalman: Any, memory: Array, policy: Any, actions: Array, numbers: Array
) -> None:
    """Do the same by means and widths."""
    n_actions, sizes, hashes, values, keys, allowed, draws = columns
    shared, settled, _, low, span, model_replaced_at = kalman
    own, most, n_table = np.empty(ROOM, np.uint64), max(n_actions), 4
    while n_table < 2 * hashes.size:
        n_table *= 2
    known, known_parts = np.empty(n_table, np.uint32), np.empty((n_table, 3))
    scratch = kalman_scratch(shared.bases.shape[1], shared.bases.shape[2], hashes.size, hashes.size, 1)
    starts, parts, widths = np.empty(most + 1, np.int64), np.empty((most, 3)), np.empty(most)
    rule, n_learned = policy
    row = first = action = 0
    for k in range(n_actions.size):
        n = n_actions[k]
        starts[0] = sizes[row]
        for a in range(n):
            starts[a + 1] = starts[a] + sizes[row + 1 + a]
        last = first + starts[n]
        if settled:
            request = Request(hashes[first:last], values[first:last], fields[first:last], starts[: n + 1])
            n_slots = 4
            while n_slots < 2 * (starts[n] - starts[0]):
                n_slots *= 2
            known[:n_slots] = 0
            words = _read_kalman(memory, keys[k, 0], keys[k, 1], model_replaced_at, own)
            if words.size and words[BASIS] != shared.counts[BASES] - 1:
                turn_own(shared, words, scratch)
            blocks = known[:n_slots], known_parts[:n_slots]
            predict_in(scratch, blocks, shared, words, keys[k, 0] != 0, request, parts[:n])
        else:
            parts[:n, 0], parts[:n, 1], parts[:n, 2] = 0.0, 0.0, 1.0
        scores, chances = numbers[1, action : action + n], numbers[0, action : action + n]
        for a in range(n):
            scores[a] = low + span * parts[a, 0] + span * parts[a, 1]
            widths[a] = span * np.sqrt(max(parts[a, 2], 0.0))
        explore(rule, 0, n_learned, scores, widths[:n], allowed[action : action + n], chances)
        actions[k] = pick(chances, draws[k])
        row, first, action = row + n + 1, last, action + n


@kernel
def _read_kalman(memory: Array, key0: int, key1: int, model_replaced_at: int, own: Array) -> Array:
    """Copy a user's model; return its words, none where there is no model or it is being written for too long."""
    size = 0
    if key0 != 0 and read_block(memory, key0, key1, own) > 0:
        size = size_in(own, model_replaced_at)
    return own[DATA:].view(np.uint32)[:size]


@kernel
def _read_own(memory: Array, key0: int, key1: int, own: Array) -> Any:
    """Copy a user's model; return how many slots it has, 0 where there is none or it is being written for too long."""
    if key0 == 0:
        return 0
    if read_block(memory, key0, key1, own) <= 0:
        return 0
    return np.int64(own[0] & np.uint64(0xFFFFFFFF))

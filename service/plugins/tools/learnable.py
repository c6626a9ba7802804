"""Whether a learner can read a record: checksums have no key, so a file from elsewhere may hold anything."""

from __future__ import annotations

import math
import struct

import msgspec
import numpy as np

from service.log.records import (
    ACTIONS,
    ERASE,
    ERASED,
    RANK,
    RESIDUAL,
    REWARD,
    UPDATE,
    Entry,
    decode_actions,
    decode_erase,
    decode_erased,
    decode_update,
    read_decision,
    read_residual,
    read_reward,
)


def check_learnable(entry: Entry) -> None:
    """Raise ``ValueError`` for a record that no learner could read."""
    try:
        _check(entry)
    except (ValueError, struct.error, msgspec.MsgspecError) as error:
        name = f"record {entry.position} of loop {entry.loop!r} ({entry.kind})"
        raise ValueError(f"{name} cannot be learned from: {error}") from None


def _check(entry: Entry) -> None:
    if entry.kind in (RANK, REWARD, RESIDUAL):
        _require(entry.event is not None, "it must name its event")
        _require(entry.example is not None, "it must have an example")
    if entry.kind in (RANK, RESIDUAL, REWARD) and entry.example is not None:
        _require(all(map(math.isfinite, _numbers(entry.kind, entry.example))), "its numbers must be finite")
    elif entry.kind == ERASED:
        base = decode_erased(entry.body).base
        _require(0 <= base < entry.position, f"its base must be in front of it, got {base}")
    elif entry.kind in _BODIES:
        _BODIES[entry.kind](entry.body)


def _numbers(kind: str, example: bytes) -> list[float]:
    """Return the numbers of an example; its values as their sum, which is not finite if one of them is not."""
    if kind == REWARD:
        return [read_reward(example)[0]]
    if kind == RANK:
        decision = read_decision(example)
        return [decision.baseline_weight, decision.feedback or 0.0, _sum(decision.features.values)]
    residual = read_residual(example)
    spread = () if residual.spread is None else (residual.spread.variance, *residual.spread.slopes)
    return [residual.label, residual.local, residual.global_ or 0.0, *spread, _sum(residual.features.values)]


def _sum(values: bytes) -> float:
    return float(np.frombuffer(values, np.float32).sum(dtype=np.float64))


def _require(good: bool, rule: str) -> None:
    if not good:
        raise ValueError(rule)


_BODIES = {ACTIONS: decode_actions, ERASE: decode_erase, UPDATE: decode_update}

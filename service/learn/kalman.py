"""The shared ``residual-kalman`` model of a loop: learned in batches, written as bytes, published by what changed."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.decisions.constants import (
    CHOICE_EVENTS,
    CORE_SIZE,
    MAX_BASES,
    MAX_BLOCKS,
    MAX_FIELDS,
    MAX_SCALES,
    START_EVENTS,
    TAIL_BITS,
)
from fedres.decisions.kalman_state import (
    BASES,
    BLOCKS,
    FIELDS,
    LEARNED,
    ROWS_BY_COUNT,
    SCALES,
    Events,
    Shared,
    new_shared,
)
from fedres.decisions.residual_kalman import ResidualKalman
from fedres.scoring.sealing import sealed, unsealed
from service.models.kalman import KalmanPublication, template

_HEADER = struct.Struct("<4sdd")  # format, least and greatest reward
MARK = b"FRK5"

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[str, tuple[str, list[int], bytes]]).decode


class KalmanShared:
    """A ``ResidualKalman``, and what of it is published."""

    newest = 0  # devices count no rounds here

    def __init__(self, reward_range: tuple[float, float]) -> None:
        self.reward_range = reward_range
        self.model = ResidualKalman(reward_range)
        self.publication = KalmanPublication()
        self._finite: tuple[Array | None, int] = (None, 0)  # means of a model, and how many events all was finite after

    def is_finite(self) -> bool:
        """Return whether all numbers are finite; blocks are looked at that have learned since the last call."""
        shared = self.model.shared
        if shared is None:
            return True
        means, learned = self._finite
        n = int(shared.counts[BLOCKS])
        rows = np.flatnonzero(shared.block_used[:n] >= (learned if shared.means is means else 0))
        whole = (shared.numbers, shared.drift, shared.log_tau, shared.slope_squares, shared.scale_stats, shared.moment)
        by_block = (shared.means, shared.covariances, shared.mean_slopes, shared.block_log_tau)
        tail = shared.tail.sum(dtype=np.float64)  # of 32-bit numbers: not finite if one of them is not
        arrays = [*whole, tail, shared.bases, *(array[rows] for array in by_block)]
        self._finite = shared.means, int(shared.counts[LEARNED])
        return all(bool(np.isfinite(array).all()) for array in arrays)

    def to_bytes(self, *, events: bool = True) -> bytes:
        """Return all that was learned but for personal models; with what is kept of single events, or not."""
        arrays = self.model.to_arrays(events=events)
        rows = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()}
        return sealed(_HEADER.pack(MARK, *self.reward_range), [_pack(rows)])

    @classmethod
    def from_bytes(cls, state: bytes) -> KalmanShared:
        """Return the model that ``to_bytes`` wrote; refuse what kernels must not see."""
        (low, high), body = unsealed(state, MARK, _HEADER)
        found = cls((low, high))
        try:
            rows = _unpack(body)
            arrays = {name: np.frombuffer(data, kind).reshape(shape) for name, (kind, shape, data) in rows.items()}
        except (msgspec.MsgspecError, TypeError) as error:
            raise ValueError(f"state must be readable: {error}") from None
        check_arrays(arrays)
        found.model.load_arrays(arrays)
        return found


def check_arrays(arrays: dict[str, Array]) -> None:
    """Refuse arrays that are not a model's: other names, types or shapes, or places that do not exist."""
    first = {name.removeprefix("first."): array for name, array in arrays.items() if name.startswith("first.")}
    arrays = {name: array for name, array in arrays.items() if not name.startswith("first.")}
    if first and not arrays:
        _check_first(first, None)
        return
    names = {name for name in Shared._fields if name != "block_table"}
    _require(arrays.keys() == names, "must have all arrays of a model, and no others")
    counts, d = arrays["counts"], arrays["moment"].shape[0]
    _require(counts.dtype == np.int64 and counts.shape == template().counts.shape, "must count what it holds")
    if first:
        _check_first(first, int(counts[LEARNED]))
    least = {LEARNED: 0, SCALES: 0, BLOCKS: 1, BASES: 1, FIELDS: 1}
    most = {LEARNED: 2**62, SCALES: MAX_SCALES, BLOCKS: MAX_BLOCKS, BASES: MAX_BASES, FIELDS: MAX_FIELDS}
    _require(all(least[at] <= counts[at] <= most[at] for at in most), "must keep within the bounds of a model")
    _require(1 <= d <= CORE_SIZE, f"must have 1 to {CORE_SIZE} coordinates")
    like = new_shared(d, 1.0, MAX_BLOCKS, TAIL_BITS)._asdict()
    for name in names:
        array, shape = arrays[name], [*like[name].shape]
        if name in ROWS_BY_COUNT:
            shape[0] = int(counts[ROWS_BY_COUNT[name]])
        _require(array.dtype == like[name].dtype and [*array.shape] == shape, f"must have {name} as a model has")
        _require(array.dtype.kind != "f" or bool(np.isfinite(array).all()), f"must have finite {name}")
    core, seen, keys = arrays["scale_core"], arrays["scale_seen"], arrays["scale_keys"]
    _require(bool(((core >= -1) & (core < d)).all()), "must have a core of its own coordinates")
    _require(bool(((seen >= 0) & (seen <= arrays["scale_first"].shape[1])).all()), "must have counted first values")
    _require(np.count_nonzero(keys) <= MAX_SCALES, "must leave room for scales")
    reuse = arrays["reuse"]
    _require(bool(((reuse >= 0) & (reuse <= 1)).all()), "must have shares of features that come again")
    _require(np.unique(arrays["block_keys"]).size == counts[BLOCKS], "must have every block once")
    _require(bool((arrays["numbers"] > 0).all()), "must have a noise and a length")


def _check_first(first: dict[str, Array], learned: int | None) -> None:
    """Refuse what cannot be all events of a model that has learned this many, or of one whose start is not over."""
    kinds = dict(zip(Events._fields, ("u4", "f4", "u4", "i8", "i8", "f4", "i8"), strict=True))
    _require(first.keys() == kinds.keys(), "must have all arrays of events, and no others")
    _require(all(first[name].dtype == kind and first[name].ndim == 1 for name, kind in kinds.items()), "must be typed")
    n, starts = first["users"].size, first["starts"]
    whole = n < START_EVENTS if learned is None else START_EVENTS <= n == learned < CHOICE_EVENTS
    _require(whole and starts.size == n + 1, "must have all of its first events")
    sizes, n_context = np.diff(starts), first["n_context"]
    columns = [first[name].size for name in ("hashes", "values", "fields")]
    _require(starts[0] == 0 and columns == [starts[-1]] * 3, "must have columns of one length")
    _require(n_context.size == first["rewards"].size == n, "must have a reward for each event")
    _require(bool(((sizes >= 0) & (n_context >= 0) & (n_context <= sizes)).all()), "must have its events in order")
    _require(bool((first["users"] == -1).all()), "must name no users")
    _require(all(bool(np.isfinite(first[name]).all()) for name in ("values", "rewards")), "must be finite")


def _require(good: Any, rule: str) -> None:
    if not good:
        raise ValueError(f"state {rule}")

"""The shared ``residual-kalman`` model of a loop: learned in batches, written as bytes, published by what changed."""

from __future__ import annotations

import struct

import msgspec
import numpy as np

from fedres.checks import Array
from fedres.decisions.kalman_state import BLOCKS, LEARNED
from fedres.decisions.residual_kalman import ResidualKalman
from fedres.scoring.sealing import sealed, unsealed
from service.models.kalman import KalmanPublication
from service.models.kalman_checks import check_arrays

_HEADER = struct.Struct("<4sdd")  # format, least and greatest reward
MARK = b"FRK6"

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
        tails = [array.sum(dtype=np.float64) for array in (shared.tail, shared.light)]  # NaN if a number is
        arrays = [*whole, *tails, shared.bases, *(array[rows] for array in by_block)]
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
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise ValueError(f"state must be readable: {error}") from None
        check_arrays(arrays)
        found.model.load_arrays(arrays)
        return found

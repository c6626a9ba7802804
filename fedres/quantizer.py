"""The (s, b)-stochastic quantizer of OFedIQ: an unbiased vector at a few bits a coordinate, as bytes.

[OFedIQ] Kwon, Park, Hong, "Tighter Regret Analysis and Optimization of Online Federated Learning".
[Dud13] Duda, "Asymmetric numeral systems: entropy coding combining speed of Huffman coding with compression
rate of arithmetic coding", 2013.
[SLF14] Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014.

The bytes, all little-endian: b block norms (float32), the packed codes, a CRC-32 of both. Codes are uint32 words and
the last pile of digits without its leading zero bytes (see ``_pack``): 1 to 8 bytes alone, 5 to 8 after words.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from fedres import checks
from fedres.checks import Array

_MOST_LEVELS = 2**29  # a digit, up to 2s, then fits into a word with room to spare
_CHECK_BYTES = 4
_PILE_WORDS = 2
_LEAST = 2.0**-149  # the least float32 above 0: no block that is not all zeros has a smaller norm
_TINY = 1e-280  # a sum of squares from here on has lost nothing that its root would show


@dataclass(frozen=True, slots=True)
class Quantizer:
    """Q_{s,b} [OFedIQ, Def. 2]: b contiguous blocks, each a norm and one code in [-s, s] a coordinate."""

    levels: int  # s
    blocks: int  # b

    def __post_init__(self) -> None:
        checks.whole("levels", self.levels)
        checks.whole("blocks", self.blocks)
        if self.levels > _MOST_LEVELS:
            raise ValueError(f"levels must be at most {_MOST_LEVELS}, got {self.levels}")

    def encode(self, vector: npt.ArrayLike, rng: np.random.Generator) -> bytes:
        """Return ``vector``, rounded at random without bias, as bytes. Takes one draw from ``rng``."""
        values = self._checked(vector)
        return self._encode(values[None], rng.integers(2**64, size=1, dtype=np.uint64))[0]

    def encode_rows(self, vectors: npt.ArrayLike, seeds: npt.ArrayLike) -> tuple[bytes, ...]:
        """Return each row as ``encode`` does, with one integer seed a row instead of a drawn one."""
        values = np.ascontiguousarray(checks.array("vectors", vectors, (None, None)))
        self._check_dim(values.shape[1])
        each = np.asarray(seeds, dtype=np.uint64)
        if each.shape != values.shape[:1]:
            raise ValueError(f"seeds must be {len(values)} integers, got shape {each.shape}")
        return self._encode(values, each)

    def decode(self, data: bytes, dim: int) -> Array:
        """Return the rounded vector, float64 of length ``dim``, that ``encode`` wrote."""
        return self.decode_sum((data,), dim)

    def decode_sum(self, messages: Iterable[bytes], dim: int) -> Array:
        """Return the sum of the rounded vectors."""
        self._check_dim(dim)
        total, digits = np.zeros(dim), np.empty(dim, np.uint32)
        for data in messages:
            words = self._words(data)
            if words is None or not _add_decoded(words, self.blocks, self.levels, digits, total):
                raise ValueError(self._fault(data, dim))
        return total

    def variance(self, vector: npt.ArrayLike) -> float:
        """Return E‖Q(u) − u‖² exactly: Σ f(1−f)N²/s²."""
        values = self._checked(vector)
        norms = np.empty(self.blocks, np.float32)
        _fill_norms(values, norms)
        _check_norms(norms, values)
        return float(_variance(values, norms, self.levels))

    def variance_bound(self, dim: int) -> float:
        """Return σ_q²: E‖Q(u) − u‖² ≤ σ_q²‖u‖².

        The exception is a block whose norm is not 0 but below 1.2e-38, where float32 has few digits left.
        """
        self._check_dim(dim)
        size = -(-dim // self.blocks)  # n = ⌈D/b⌉
        return min(size / self.levels**2, math.sqrt(size) / self.levels)

    def bits(self, dim: int) -> float:
        """Return q, the paper's count of the bits of one vector [OFedIQ, eq. 13]."""
        self._check_dim(dim)
        return 32 * self.blocks + dim * (1 + math.log2(self.levels + 1))

    def payload_bits(self, data: bytes) -> int:
        """Return the bits of a message's norms and codes, without its checksum and the padding of its last byte."""
        first = 4 * self.blocks
        return 8 * first + int.from_bytes(data[first:-_CHECK_BYTES], "little").bit_length()

    def _encode(self, vectors: Array, seeds: Array) -> tuple[bytes, ...]:
        norms, words, counts = _encode(vectors, self.blocks, self.levels, seeds)
        _check_norms(norms, vectors)
        norms, words = norms.astype("<f4", copy=False), words.astype("<u4", copy=False)
        bodies = (norms[n].tobytes() + _trimmed(words[n, :count].tobytes()) for n, count in enumerate(counts))
        return tuple(body + _check(body) for body in bodies)

    def _checked(self, vector: npt.ArrayLike) -> Array:
        values = np.ascontiguousarray(checks.array("vector", vector, (None,)))
        self._check_dim(values.size)
        return values

    def _check_dim(self, dim: int) -> None:
        checks.whole("dim", dim)
        if self.blocks > dim:
            raise ValueError(f"blocks must be at most the dimension {dim}, got {self.blocks}")

    def _words(self, data: bytes) -> Array | None:
        """Return data that passes its check as words, norms then codes; None if these are not as ``_trimmed`` cuts."""
        first = 4 * self.blocks
        least = first + 1 + _CHECK_BYTES
        if len(data) < least:
            raise ValueError(f"data must have at least {least} bytes, got {len(data)}")
        check, expected = data[-_CHECK_BYTES:], _check(data[:-_CHECK_BYTES])
        if check != expected:
            raise ValueError(f"data must end with its CRC-32, {expected.hex()}, got {check.hex()}")
        codes = data[first:-_CHECK_BYTES]
        padded = codes.ljust(max(-(-len(codes) // 4), _PILE_WORDS) * 4, b"\0")
        if _trimmed(padded) != codes:
            return None
        return np.frombuffer(data[:first] + padded, "<u4").astype(np.uint32, copy=False)

    def _fault(self, data: bytes, dim: int) -> str:
        """Return the error of a message that cannot be decoded."""
        norms = np.frombuffer(data[: 4 * self.blocks], "<f4")
        wrong = norms[~(np.isfinite(norms) & (norms >= 0))]
        if wrong.size:
            return f"data must hold norms that are finite and at least 0, got {wrong[0]}"
        return f"data must hold {dim} codes from {-self.levels} to {self.levels}, got other bytes"


def _trimmed(words: bytes) -> bytes:
    """Return packed words without trailing zero bytes, as long as the number of words can still be recovered."""
    size = max(1 if len(words) == 4 * _PILE_WORDS else len(words) - 3, len(words.rstrip(b"\0")))
    return words[:size]


class OFedIQParameters(NamedTuple):
    """The parameters that algorithm 3 chooses."""

    levels: int  # s
    blocks: int  # b
    participation: float  # p


def ofediq_parameters(gamma: float, dim: int) -> OFedIQParameters:
    """Return s, b and p that cut the uplink to ``gamma`` times that of dense gradients [OFedIQ, Alg. 3].

    ``participation`` counts the bits of the whole b; the paper's line takes b before it is rounded down.
    """
    checks.probability("gamma", gamma)
    checks.whole("dim", dim)
    levels = _best_levels(gamma)
    blocks = max(1, math.floor((gamma / levels) ** (2 / 3) * dim))
    participation = min(1.0, 32 * gamma * dim / Quantizer(levels, blocks).bits(dim))
    return OFedIQParameters(levels, blocks, participation)


def _best_levels(gamma: float) -> int:
    """Return the s that minimises [OFedIQ, eq. 20].

    The first term alone grows with s: where it reaches the least value so far, no larger s can be better.
    """
    best, least, levels = 1, math.inf, 1
    while math.log2(levels + 1) / 16 < least:
        objective = math.log2(levels + 1) / 16 + 4 * (gamma / levels) ** (2 / 3)
        if objective < least:
            best, least = levels, objective
        levels += 1
    return best


def _check(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(_CHECK_BYTES, "little")


def _check_norms(norms: Array, vectors: Array) -> None:
    if norms.size and norms.max() == np.inf:
        largest, most = np.abs(vectors).max(), np.finfo(np.float32).max
        raise ValueError(f"vector must have block norms of at most {most} (float32), got entries up to {largest}")


@njit(cache=True)
def _span(block: int, blocks: int, dim: int) -> tuple[int, int]:
    """Return where a block begins and ends: sizes differ by at most one, larger blocks first."""
    size, larger = dim // blocks, dim % blocks
    first = block * size + min(block, larger)
    return first, first + size + (1 if block < larger else 0)


@njit(cache=True)
def _fill_norms(vector: Array, norms: Array) -> None:
    """Set each block's N, a float32 rounded up: no |u_i| is above it, and only zeros have N = 0."""
    for block in range(norms.size):
        first, last = _span(block, norms.size, vector.size)
        total = 0.0
        for i in range(first, last):
            total += vector[i] * vector[i]
        norm = math.sqrt(total)
        if total < _TINY:  # the square of a tiny value is 0
            for i in range(first, last):
                norm = max(norm, abs(vector[i]))
        near = np.float32(norm)
        norms[block] = near if near >= norm else np.nextafter(near, np.float32(np.inf))


@njit(cache=True)
def _position(value: float, scale: float, levels: int) -> tuple[int, float]:
    """Return m and f of x = |u_i|s/N = m + f. At x = s that is s + 0, which has the code of (s−1) + 1."""
    x = min(abs(value) * scale, float(levels))
    below = int(x)
    return below, x - below


@njit(cache=True)
def _uniform(seed: np.uint64, i: int) -> float:
    """Return the i-th uniform number in [0, 1) of a seed [SLF14, SplitMix64]: 3 times faster than numpy's."""
    z = seed + np.uint64(i + 1) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return float(np.int64(z >> np.uint64(11))) * 2.0**-53


@njit(cache=True)
def _draw(vector: Array, norms: Array, levels: int, seed: np.uint64, digits: Array) -> None:
    """Set the digits, code + s; |code| is m + 1 with probability f, else m."""
    for block in range(norms.size):
        first, last = _span(block, norms.size, vector.size)
        scale = levels / max(np.float64(norms[block]), _LEAST)
        for i in range(first, last):
            if vector[i] == 0.0:
                digits[i] = levels
            else:
                below, fraction = _position(vector[i], scale, levels)
                code = below + (_uniform(seed, i) < fraction)
                digits[i] = levels + (code if vector[i] > 0.0 else -code)


@njit(cache=True)
def _variance(vector: Array, norms: Array, levels: int) -> float:
    total = 0.0
    for block in range(norms.size):
        first, last = _span(block, norms.size, vector.size)
        scale = levels / max(np.float64(norms[block]), _LEAST)
        for i in range(first, last):
            fraction = _position(vector[i], scale, levels)[1]
            total += fraction * (1.0 - fraction) / scale**2
    return total


@njit(cache=True)
def _add_values(digits: Array, norms: Array, levels: int, total: Array) -> None:
    """Add the vector that digits and norms stand for."""
    for block in range(norms.size):
        first, last = _span(block, norms.size, total.size)
        unit = np.float64(norms[block]) / levels
        part, own = total[first:last], digits[first:last]
        for i in range(part.size):
            part[i] += (np.float64(own[i]) - levels) * unit


# Digits of radix r = 2s+1 pile up in one 64-bit number; before a digit that might not fit, the low 32 bits
# leave as a word [Dud13, all symbols equally likely]. Whole digits in 64-bit words would waste up to 14%;
# here none is wasted: D digits take D log2(r) bits and at most 8 bytes more. Words are read back last first.
# The pile starts at 1, so that only the right number of digits leads back to it.


@njit(cache=True)
def _pack(digits: Array, radix: int, words: Array) -> int:
    """Set the first words to the digits and return how many they are; the last two are the final pile."""
    base, half, low = np.uint64(radix), np.uint64(32), np.uint64(0xFFFFFFFF)
    full = (np.uint64(2**32) // base) << half
    pile, count = np.uint64(1), 0
    for digit in digits:
        if pile >= full:
            words[count] = pile & low
            pile >>= half
            count += 1
        pile = pile * base + np.uint64(digit)
    words[count] = pile & low
    words[count + 1] = pile >> half
    return count + 2


@njit(cache=True)
def _unpack(words: Array, radix: int, digits: Array) -> bool:
    """Fill ``digits`` from the words, and return whether packing them gives exactly these words."""
    base, half = np.uint64(radix), np.uint64(32)
    least = np.uint64(2**32) // base * base  # once a word has left, the pile stays in [least, 2³²·least)
    chunk, together = _chunk(radix)
    left, i = words.size - 2, digits.size
    pile = (np.uint64(words[left + 1]) << half) | np.uint64(words[left])
    if (pile >> half) >= least or (left > 0 and pile < least):
        return False
    while i > 0:
        if together > 1 and i >= together and pile >= least * chunk:
            rest = pile // chunk
            _split(pile - rest * chunk, base, digits[i - together : i])
            i -= together
        else:
            rest = pile // base
            i -= 1
            digits[i] = pile - rest * base
        pile = rest
        if pile < least and left > 0:
            left -= 1
            pile = (pile << half) | np.uint64(words[left])
    return bool(pile == np.uint64(1))  # no pile with words left is that small


@njit(cache=True)
def _chunk(radix: int) -> tuple[np.uint64, int]:
    """Return the largest power of the radix up to 2¹⁶, and which it is: a 64-bit division takes so many digits off.

    The division is what unpacking costs. It may be shared where the pile is so large that no word is due in between.
    """
    base, chunk, power = np.uint64(radix), np.uint64(radix), 1
    while chunk * base <= np.uint64(2**16):
        chunk *= base
        power += 1
    return chunk, power


@njit(cache=True)
def _split(number: np.uint64, base: np.uint64, digits: Array) -> None:
    """Set the digits of a number below 2¹⁶; its quotients are exact by multiplication, as base·2¹⁶ ≤ 2³²."""
    half = np.uint64(32)
    inverse = np.uint64(2**32) // base + np.uint64(1)
    for i in range(digits.size - 1, -1, -1):
        rest = (number * inverse) >> half
        digits[i] = number - rest * base
        number = rest


@njit(cache=True)
def _encode(vectors: Array, blocks: int, levels: int, seeds: Array) -> tuple[Array, Array, Array]:
    """Return norms and words of each row, and how many of the words count."""
    n, dim = vectors.shape
    norms = np.empty((n, blocks), np.float32)
    most = int(dim * math.log2(2 * levels + 1) / 32) + 4
    words, counts = np.empty((n, most), np.uint32), np.empty(n, np.int64)
    digits = np.empty(dim, np.uint32)
    for row in range(n):
        _fill_norms(vectors[row], norms[row])
        _draw(vectors[row], norms[row], levels, seeds[row], digits)
        counts[row] = _pack(digits, 2 * levels + 1, words[row])
    return norms, words, counts


@njit(cache=True)
def _add_decoded(words: Array, blocks: int, levels: int, digits: Array, total: Array) -> bool:
    """Add the vector of one message, and return whether it was one; if not, nothing is added."""
    norms = words[:blocks].view(np.float32)
    for norm in norms:
        if not 0.0 <= norm < np.inf:
            return False
    if not _unpack(words[blocks:], 2 * levels + 1, digits):
        return False
    _add_values(digits, norms, levels, total)
    return True

"""The OFedIQ quantizer: unbiased, with the exact variance, in the bits that the paper counts."""

from __future__ import annotations

import math
import zlib
from contextlib import suppress
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedres.checks import Array
from fedres.quantizer import OFedIQParameters, Quantizer, ofediq_parameters

SETTINGS = [(1, 1), (3, 150), (17, 20), (4, 600)]  # levels, blocks for 1,200 coordinates


def norms_of(data: bytes, quantizer: Quantizer) -> Array:
    return np.frombuffer(data[: 4 * quantizer.blocks], "<f4").astype(np.float64)


def norm_per_coordinate(data: bytes, quantizer: Quantizer, dim: int) -> Array:
    sizes = [len(block) for block in np.array_split(np.arange(dim), quantizer.blocks)]
    return np.repeat(norms_of(data, quantizer), sizes)


def coordinate_variances(vector: Array, quantizer: Quantizer) -> Array:
    """Return f(1−f)N²/s² by the definition, one number a coordinate."""
    norms = norm_per_coordinate(quantizer.encode(vector, np.random.default_rng(0)), quantizer, vector.size)
    x = np.abs(vector) * quantizer.levels / norms
    fraction = x - np.minimum(np.floor(x), quantizer.levels - 1)
    return fraction * (1 - fraction) * (norms / quantizer.levels) ** 2


def errors(vector: Array, quantizer: Quantizer, draws: int, seed: int) -> Array:
    """Return Q(u) − u for many draws, one row each."""
    rng = np.random.default_rng(seed)
    return np.array([quantizer.decode(quantizer.encode(vector, rng), vector.size) for _ in range(draws)]) - vector


def sealed(norms: list[float], codes: list[int] | bytes) -> bytes:
    """Return data with a right check around whatever it holds: bytes as they are, words without zeros at their end."""
    if not isinstance(codes, bytes):
        size = 1 if len(codes) == 2 else 4 * len(codes) - 3
        codes = np.array(codes, "<u4").tobytes().rstrip(b"\0").ljust(size, b"\0")
    body = np.array(norms, "<f4").tobytes() + codes
    return body + zlib.crc32(body).to_bytes(4, "little")


sizes = st.floats(1e-30, 1e30) | st.just(0.0)
signed = st.builds(math.copysign, sizes, st.sampled_from([-1.0, 1.0]))
extreme = st.floats(-1e37, 1e37) | st.floats(-1e-37, 1e-37) | st.sampled_from([0.0, -0.0, 5e-324, 2.0**-149])
vectors = st.lists(extreme, min_size=1, max_size=60).map(np.array)
constant = st.builds(np.full, st.integers(1, 60), extreme)


@pytest.mark.parametrize(("levels", "blocks"), SETTINGS)
def test_the_quantizer_is_unbiased(levels: int, blocks: int) -> None:
    vector = np.random.default_rng(1).uniform(-1, 1, 1200)
    quantizer = Quantizer(levels, blocks)
    variances = coordinate_variances(vector, quantizer)
    random = variances > 1e-3 * variances.max()
    z = errors(vector, quantizer, draws=800, seed=2).mean(axis=0)[random] / np.sqrt(variances[random] / 800)
    assert z.size > 1000
    assert 0.8 < np.mean(z**2) < 1.2  # its standard error is 0.04


@pytest.mark.parametrize(("levels", "blocks"), SETTINGS)
def test_the_variance_is_exact_and_under_its_bound(levels: int, blocks: int) -> None:
    vector = np.random.default_rng(3).normal(size=1200)
    quantizer = Quantizer(levels, blocks)
    exact = quantizer.variance(vector)
    assert exact == pytest.approx(coordinate_variances(vector, quantizer).sum(), rel=1e-9)
    measured = (errors(vector, quantizer, draws=2400, seed=4) ** 2).sum(axis=1).mean()
    assert measured == pytest.approx(exact, rel=0.02)
    assert exact <= quantizer.variance_bound(1200) * (vector @ vector)


def test_errors_of_different_coordinates_are_uncorrelated() -> None:
    vector = np.random.default_rng(5).normal(size=300)
    quantizer = Quantizer(3, 10)
    seen = errors(vector, quantizer, draws=4000, seed=6)
    for lag in (1, 2, 30):
        products = (seen[:, lag:] * seen[:, :-lag]).sum(axis=1)
        assert abs(products.mean()) < 4.5 * products.std() / math.sqrt(4000)
    assert seen.sum(axis=1).var() == pytest.approx(quantizer.variance(vector), rel=0.1)


@settings(deadline=None)  # the first call compiles
@given(st.lists(signed, min_size=1, max_size=60).map(np.array), st.integers(1, 40), st.data())
def test_the_variance_never_exceeds_its_bound(vector: Array, levels: int, data: st.DataObject) -> None:
    quantizer = Quantizer(levels, data.draw(st.integers(1, vector.size)))
    bound = quantizer.variance_bound(vector.size) * float(vector @ vector)
    assert 0 <= quantizer.variance(vector) <= bound * (1 + 1e-6)


@settings(deadline=None)
@given(vectors | constant, st.integers(1, 1000), st.data(), st.integers(0, 2**32))
def test_every_coordinate_becomes_a_neighbour_on_its_grid(
    vector: Array, levels: int, data: st.DataObject, seed: int
) -> None:
    quantizer = Quantizer(levels, data.draw(st.integers(1, vector.size)))
    encoded = quantizer.encode(vector, np.random.default_rng(seed))
    decoded = quantizer.decode(encoded, vector.size)
    norms = norm_per_coordinate(encoded, quantizer, vector.size)
    assert np.all(norms >= np.abs(vector))
    assert np.all((norms > 0) | (vector == 0))
    units = np.where(norms > 0, norms, 1) / levels
    codes = decoded / units
    assert np.abs(codes - np.rint(codes)).max() <= 1e-9
    assert np.all(codes * vector >= 0)
    assert np.abs(np.abs(codes) - np.abs(vector) / units).max() < 1 + 1e-9


def test_blocks_are_contiguous_and_the_larger_come_first() -> None:
    vector = np.random.default_rng(7).normal(size=23)
    quantizer = Quantizer(5, 6)
    exact = [np.linalg.norm(block) for block in np.array_split(vector, 6)]
    norms = norms_of(quantizer.encode(vector, np.random.default_rng(0)), quantizer)
    np.testing.assert_allclose(norms, exact, rtol=2.0**-22)
    assert np.all(norms >= np.array(exact) * (1 - 1e-15))


def test_zeros_stay_zeros_beside_a_block_that_is_not() -> None:
    quantizer = Quantizer(2, 2)
    decoded = quantizer.decode(quantizer.encode([0.0, 0.0, 0.0, 4.0, 0.0], np.random.default_rng(0)), 5)
    np.testing.assert_array_equal(decoded, [0, 0, 0, 4, 0])
    assert decoded.dtype == np.float64


def test_the_bytes_depend_on_the_vector_and_the_generator_alone() -> None:
    vector = np.random.default_rng(8).normal(size=200)
    quantizer = Quantizer(4, 3)
    rng = np.random.default_rng(9)
    first, second = quantizer.encode(vector, rng), quantizer.encode(vector, rng)
    assert first == quantizer.encode(vector, np.random.default_rng(9))
    assert first == quantizer.encode(np.repeat(vector, 2)[::2], np.random.default_rng(9))
    assert first != second


@pytest.mark.parametrize("dim", [1, 2, 7, 17, 40, 650])
def test_packed_bytes_stay_within_the_papers_bits(dim: int) -> None:
    assert_sizes([*range(1, 130), *range(130, 1001, 10), 1000], dim)


@pytest.mark.parametrize("dim", [7850, 34_826, 50_000])
def test_packed_bytes_of_large_vectors_stay_within_the_papers_bits(dim: int) -> None:
    assert_sizes([*range(1, 40), *range(40, 1001, 24), 128, 1000], dim)


def assert_sizes(all_levels: list[int], dim: int) -> None:
    rng = np.random.default_rng(dim)
    vector = rng.normal(size=dim)
    for levels in all_levels:
        for blocks in {1, -(-dim // 30), dim}:
            quantizer = Quantizer(levels, blocks)
            for signs in (vector, np.abs(vector), -np.abs(vector)):
                data = quantizer.encode(signs, rng)
                bits = quantizer.payload_bits(data)
                if dim >= 17:
                    assert bits <= 1.03 * quantizer.bits(dim)
                assert bits <= 32 * blocks + dim * math.log2(2 * levels + 1) + 2
                assert len(data) <= max(bits / 8, 4 * blocks + 1) + 6  # the check, and at most two bytes to fill up


@pytest.mark.parametrize("levels", [1, 2, 2**16, 2**24, 2**29])
def test_any_number_of_levels_survives_packing(levels: int) -> None:
    vector = np.random.default_rng(10).normal(size=500)
    quantizer = Quantizer(levels, 7)
    encoded = quantizer.encode(vector, np.random.default_rng(11))
    units = norm_per_coordinate(encoded, quantizer, 500) / levels
    assert np.all(np.abs(quantizer.decode(encoded, 500) - vector) <= units * (1 + 1e-6))


def test_every_damaged_byte_every_truncation_and_every_extension_is_refused() -> None:
    quantizer = Quantizer(3, 2)
    good = quantizer.encode(np.random.default_rng(12).normal(size=30), np.random.default_rng(13))
    damaged = [good[:i] + bytes([good[i] ^ flip]) + good[i + 1 :] for i in range(len(good)) for flip in range(1, 256)]
    truncated = [good[:i] for i in range(len(good))]
    extended = [good + bytes(n) for n in range(1, 13)] + [bytes(4) + good]
    for bad in damaged + truncated + extended:
        with pytest.raises(ValueError, match="data must"):
            quantizer.decode(bad, 30)


@pytest.mark.parametrize("norm", [math.nan, math.inf, -math.inf, -1.0])
def test_a_norm_that_no_vector_has_is_refused(norm: float) -> None:
    with pytest.raises(ValueError, match="norms that are finite and at least 0, got"):
        Quantizer(1, 2).decode(sealed([1.0, norm], [10, 0]), 2)


def test_only_words_that_packing_can_give_are_accepted() -> None:
    quantizer = Quantizer(1, 1)
    accepted = {}
    for words in [[low, high] for low in range(64) for high in (0, 1)]:
        with suppress(ValueError):
            accepted[tuple(words)] = tuple(quantizer.decode(sealed([1.0], words), 2))
    assert len(accepted) == len(set(accepted.values())) == 9  # two codes of three kinds
    for words in [[first, low, 0] for first in range(8) for low in range(8)]:
        with pytest.raises(ValueError, match="data must hold 2 codes from -1 to 1"):
            quantizer.decode(sealed([1.0], words), 2)
    with pytest.raises(ValueError, match="data must hold 40 codes from -1 to 1"):
        quantizer.decode(sealed([1.0], [2**32 - 1, 2**32 - 1]), 40)  # packing would have shed a word


@pytest.mark.parametrize("dim", [20, 49, 51, 52, 100])
def test_data_of_another_dimension_is_refused(dim: int) -> None:
    quantizer = Quantizer(3, 2)
    for vector in (np.zeros(50), np.ones(50), -np.ones(50)):
        data = quantizer.encode(vector, np.random.default_rng(14))
        with pytest.raises(ValueError, match=f"data must hold {dim} codes from -3 to 3"):
            quantizer.decode(data, dim)


def test_words_left_over_or_missing_are_refused_behind_a_right_check() -> None:
    quantizer = Quantizer(3, 1)
    data = quantizer.encode(np.random.default_rng(15).normal(size=50), np.random.default_rng(16))
    codes = data[4:-4]
    norm, words = norms_of(data, quantizer).tolist(), np.frombuffer(codes + bytes(-len(codes) % 4), "<u4").tolist()
    assert sealed(norm, words) == data
    with pytest.raises(ValueError, match="50 codes from -3 to 3"):
        quantizer.decode(sealed(norm, codes + bytes(-len(codes) % 4 or 4)), 50)  # zeros that packing leaves out
    for wrong in ([0, *words], [7, *words], words[1:], [*words, 0, 0], [*words[:-2], 0, 0]):
        with pytest.raises(ValueError, match="50 codes from -3 to 3"):
            quantizer.decode(sealed(norm, wrong), 50)


def test_bits_and_bound_follow_the_papers_formulas() -> None:
    assert Quantizer(3, 10).bits(100) == 320 + 100 * 3
    assert Quantizer(3, 8).variance_bound(100) == pytest.approx(math.sqrt(13) / 3)
    assert Quantizer(7, 8).variance_bound(100) == pytest.approx(13 / 49)


def test_norms_beyond_float32_are_refused_and_the_largest_are_not() -> None:
    largest = float(np.finfo(np.float32).max)
    quantizer = Quantizer(2, 1)
    rng = np.random.default_rng(17)
    np.testing.assert_array_equal(quantizer.decode(quantizer.encode([largest, 0], rng), 2), [largest, 0])
    for vector in ([largest, largest], [0, 1e200], [np.nextafter(largest, math.inf)]):
        with pytest.raises(ValueError, match="vector must have block norms of at most"):
            quantizer.encode(vector, rng)
        with pytest.raises(ValueError, match="vector must have block norms of at most"):
            quantizer.variance(vector)


@pytest.mark.parametrize(
    ("levels", "blocks", "message"),
    [
        (0, 1, "levels must be an integer of at least 1, got 0"),
        (2.0, 1, "levels must be an integer of at least 1, got 2.0"),
        (2**29 + 1, 1, "levels must be at most 536870912, got 536870913"),
        (1, 0, "blocks must be an integer of at least 1, got 0"),
        (1, True, "blocks must be an integer of at least 1, got True"),
    ],
)
def test_bad_settings_are_refused(levels: int, blocks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Quantizer(levels, blocks)


def test_vectors_that_do_not_fit_are_refused() -> None:
    quantizer = Quantizer(2, 3)
    rng = np.random.default_rng(18)
    with pytest.raises(ValueError, match="blocks must be at most the dimension 2, got 3"):
        quantizer.encode([1.0, 2.0], rng)
    for call in (quantizer.bits, quantizer.variance_bound, lambda dim: quantizer.decode(b"", dim)):
        with pytest.raises(ValueError, match="blocks must be at most the dimension 2, got 3"):
            call(2)
    with pytest.raises(ValueError, match="dim must be an integer of at least 1, got 0"):
        quantizer.encode([], rng)
    with pytest.raises(ValueError, match=r"vector must have shape \(any\), got \(1, 3\)"):
        quantizer.encode([[1.0, 2.0, 3.0]], rng)
    with pytest.raises(ValueError, match="vector must be finite, got nan"):
        quantizer.encode([1.0, math.nan, 3.0], rng)


def test_a_quantizer_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Quantizer(2, 3).levels = 4  # type: ignore[misc]


@pytest.mark.parametrize(("gamma", "expected"), [(0.1, (17, 1134, 0.5151)), (0.01, (3, 777, 0.0862))])
def test_algorithm_3_gives_the_papers_parameters(gamma: float, expected: tuple[int, int, float]) -> None:
    chosen = ofediq_parameters(gamma, 34_826)
    assert chosen[:2] == expected[:2]
    assert round(chosen.participation, 4) == expected[2]


@given(st.floats(1e-12, 1), st.integers(1, 10**6))
def test_algorithm_3_keeps_to_its_budget_and_finds_the_best_levels(gamma: float, dim: int) -> None:
    levels, blocks, participation = ofediq_parameters(gamma, dim)
    s = np.arange(1, 5000)
    objective = np.log2(s + 1) / 16 + 4 * (gamma / s) ** (2 / 3)
    assert objective[levels - 1] <= objective.min() * (1 + 1e-12)
    assert 1 <= blocks <= dim
    assert 0 < participation <= 1
    assert participation * Quantizer(levels, blocks).bits(dim) <= 32 * gamma * dim * (1 + 1e-12)


def test_algorithm_3_sends_every_round_when_nothing_must_be_saved() -> None:
    assert ofediq_parameters(1.0, 10_000) == OFedIQParameters(levels=162, blocks=336, participation=1.0)


@pytest.mark.parametrize("gamma", [0.0, -0.1, 1.01, math.nan])
def test_a_share_of_the_bits_outside_0_to_1_is_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match=r"gamma must be in \(0, 1\], got"):
        ofediq_parameters(gamma, 100)


@pytest.mark.parametrize("dim", [0, -3, 2.5])
def test_algorithm_3_refuses_a_dimension_that_is_none(dim: int) -> None:
    with pytest.raises(ValueError, match="dim must be an integer of at least 1, got"):
        ofediq_parameters(0.1, dim)

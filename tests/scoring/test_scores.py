import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedres.key_tables import TAIL, empty_table
from fedres.scoring.features import Prepared
from fedres.scoring.flattening import LARGEST
from fedres.scoring.kernels import indices_of, part_of, put, slots_of
from fedres.scoring.model import expand
from fedres.scoring.scores import score_kernel

VALUES = [[0.0, -0.0], [1e-30, -1e-45], [LARGEST, -LARGEST]]  # products of the second are 0
WEIGHTS = [[0.0, -0.0], [1e-38, 1e-45], [1e30, -3e38], [np.inf, -np.inf, np.nan]]


@st.composite
def numbers(draw, rng, size, odd):
    """Return numbers of which none, a few or many are odd."""
    share = draw(st.sampled_from([0.0, 0.03, 0.5]))
    return np.where(rng.random(size) < share, rng.choice(draw(st.sampled_from(odd)), size), rng.normal(size=size))


@st.composite
def requests(draw, rng):
    sizes = [draw(st.integers(0, 12)), *draw(st.lists(st.integers(0, 20), max_size=6))]
    hashes = rng.integers(2 ** draw(st.sampled_from([2, 32])), size=sum(sizes), dtype=np.uint32)
    values = draw(numbers(rng, hashes.size, VALUES)).astype(np.float32)
    return Prepared(hashes, values, np.cumsum(sizes), draw(st.booleans()))


@st.composite
def models(draw, rng, prepared):
    """Return both models; the personal one holds some of the request's pairs and some others, or is none."""
    bits, size = draw(st.sampled_from([1, 7, 18])), draw(st.sampled_from([0, 32, 256]))
    table = empty_table(size) if size else np.zeros(0, np.uint32)
    pairs = np.concatenate([np.zeros(1, np.uint32), *[expand(prepared, a)[0] for a in range(prepared.n_actions)]])
    keys = np.append(rng.choice(pairs, size=size // 4), rng.integers(2**32, size=size // 4))
    put(table, keys.astype(np.uint32), 0)
    shared, own = [draw(numbers(rng, n, WEIGHTS)).astype(np.float32) for n in (2**bits + 1, size + 1)]
    return shared, 32 - bits, table, own


def parts_one_by_one(prepared, weights, shift, table, own):
    for action in range(prepared.n_actions):
        keys, values = expand(prepared, action)
        yield part_of(weights, indices_of(keys, shift), values, 0.0)
        yield part_of(own, slots_of(keys, table), values, 0.0) if table.size else 0.0


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_scores_of_all_actions_are_to_the_bit_those_of_their_pairs_summed_in_order(data, seed):
    rng = np.random.default_rng(seed)
    prepared = data.draw(requests(rng))
    both = data.draw(models(rng, prepared))
    expected = np.array(list(parts_one_by_one(prepared, *both)), np.float32)
    assert score_kernel(prepared, *both).tobytes() == expected.tobytes()


@pytest.mark.parametrize("tiny", [0.0, -0.0, 1e-30])
@pytest.mark.parametrize("weight", [np.inf, np.nan])
def test_a_pair_whose_value_is_0_or_rounded_to_it_adds_nothing_whatever_its_weight(tiny, weight):
    values = np.array([2, tiny, 3, tiny, 5, 7, tiny], np.float32)
    prepared = Prepared(np.arange(1, 8, dtype=np.uint32), values, np.array([3, 5, 7]), True)
    examples = [expand(prepared, action) for action in range(2)]
    table, bits = empty_table(64), 18
    shared, own = np.full(2**bits + 1, weight, np.float32), np.full(65, weight, np.float32)
    shared[-1] = own[-1] = 1
    for keys, products in examples:
        slots, _ = put(table, keys, np.count_nonzero(table[:-TAIL]))
        shared[indices_of(keys, 32 - bits)[products != 0]] = own[slots[products != 0]] = 0.5
    assert any((products == 0).any() for _, products in examples)
    parts = score_kernel(prepared, shared, 32 - bits, table, own)
    assert parts.tolist() == [[1 + 0.5 * float(products.sum())] * 2 for _, products in examples]

"""Running sums against the block system solved at once."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandits.actions import arms, none, rows
from bandits.models.least_squares import EVERY, SHRINK, LeastSquaresModel
from bandits.models.protocol import SCHEMES

K, G, L, RIDGE = 3, 3, 2, 0.7


def samples(n, seed, width=(G, L)):
    """Return (slot, x^g, x^l, reward) of n rounds."""
    rng = np.random.default_rng(seed)
    return [
        (int(rng.integers(K)), rng.normal(size=width[0]), rng.normal(size=width[1]), rng.random()) for _ in range(n)
    ]


def play(model, data):
    for slot in range(K):
        model.join(slot)
    for slot, xg, xl, y in data:
        model.play([(slot, 0, rows(xg[None]), rows(xl[None]), y)])
    return model


def joint_rows(data, g=G, width=L):
    """Return the samples as rows over (w^g, w_1, ..., w_K)."""
    table = np.zeros((len(data), g + K * width))
    for row, (slot, xg, xl, _) in zip(table, data, strict=True):
        row[:g] = xg[:g]
        row[g + slot * width : g + (slot + 1) * width] = xl[:width]
    return table


def brute_force(data, g=G, width=L):
    """Return the joint ridge minimiser, and the inverse of its matrix."""
    own = RIDGE * SHRINK if g else RIDGE
    table, y = joint_rows(data, g, width), np.array([sample[3] for sample in data])
    matrix = np.diag([RIDGE] * g + [own] * (K * width)) + table.T @ table
    return np.linalg.solve(matrix, table.T @ y), np.linalg.inv(matrix)


def model_of(scheme="fedres", delay=0):
    return LeastSquaresModel(scheme, rows(np.ones((1, G))), rows(np.ones((1, L))), RIDGE, delay)


def weights_of(model):
    """Return (w^g, w_1, ..., w_K): w_i = m − B w^g."""
    own = [fitted[0] - coupling[0] @ model.weights[0] for _, coupling, fitted, _, _ in model.personal.values()]
    return np.concatenate([model.weights[0], *own])


@settings(max_examples=25)
@given(st.integers(0, 60), st.integers(0, 10_000))
def test_both_models_are_the_joint_minimiser_after_any_samples(n, seed):
    data = samples(n, seed)
    assert weights_of(play(model_of(), data)) == pytest.approx(brute_force(data)[0], abs=1e-8)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_means_and_widths_are_those_of_the_joint_problem(scheme):
    data = samples(40, 1)
    g, width = (0 if scheme == "independent" else G), (0 if scheme == "central" else L)
    solution, inverse = brute_force(data, g, width)
    model, rng = play(model_of(scheme), data), np.random.default_rng(2)
    for slot in range(K):
        xg, xl = rng.normal(size=(4, G)), rng.normal(size=(4, L))
        probe = joint_rows([(slot, a, b, 0) for a, b in zip(xg, xl, strict=True)], g, width)
        variance = np.einsum("nd,de,ne->n", probe, inverse, probe)
        means, widths = model.predict(slot, rows(xg), rows(xl))
        assert means == pytest.approx(probe @ solution, abs=1e-8)
        assert widths == pytest.approx(np.sqrt(variance), abs=1e-8)


def test_delay_changes_when_the_server_knows_and_never_what():
    data = samples(50, 3)
    prompt, late = play(model_of(), data), play(model_of(delay=7), data)
    assert np.abs(weights_of(prompt) - weights_of(late)).max() > 1e-4
    for _ in range(7):
        late.play([])
    assert weights_of(late) == pytest.approx(weights_of(prompt), abs=1e-9)
    assert late.version == prompt.version


def test_arms_are_problems_of_their_own():
    """Solved block by block, they score as one problem over all arms' weights."""
    rng, n_arms = np.random.default_rng(0), 3

    def unrolled(context):
        table = np.zeros((n_arms, arms(context, n_arms).dim))
        for a, row in enumerate(table):
            arms(context, n_arms).take(a).add_to(row)
        return rows(table)

    first = arms(np.ones(2), n_arms)
    blocks = LeastSquaresModel("fedres", first, first, RIDGE)
    whole = LeastSquaresModel("fedres", unrolled(np.ones(2)), unrolled(np.ones(2)), RIDGE)
    assert (blocks.blocks, whole.blocks) == (n_arms, 1)
    for model in (blocks, whole):
        for slot in range(K):
            model.join(slot)
    for _ in range(40):
        context, slot, a, y = rng.normal(size=2), int(rng.integers(K)), int(rng.integers(n_arms)), rng.random()
        for model, actions in ((blocks, arms(context, n_arms)), (whole, unrolled(context))):
            model.play([(slot, a, actions, actions, y)])
        one, two = arms(context, n_arms), unrolled(context)
        for mine, theirs in zip(blocks.predict(slot, one, one), whole.predict(slot, two, two), strict=True):
            assert mine == pytest.approx(theirs, abs=1e-8)


def test_a_client_without_features_of_its_own_uploads_its_samples_as_they_are():
    data = samples(20, 5)
    model = LeastSquaresModel("fedres", rows(np.ones((1, G))), none(1), RIDGE)
    for slot in range(K):
        model.join(slot)
    for slot, xg, _, y in data:
        model.play([(slot, 0, rows(xg[None]), none(1), y)])
    assert model.weights[0] == pytest.approx(brute_force(data, G, 0)[0], abs=1e-8)


@pytest.mark.parametrize("scheme", ["independent", "central"])
def test_old_samples_count_by_halves_and_the_ridge_stays(scheme):
    """Made anew, a model is ridge regression on samples weighted 2^(−age/half-life), age in a client's own samples."""
    half_life, n = 20.0, EVERY
    model = LeastSquaresModel(scheme, rows(np.ones((1, G))), rows(np.ones((1, L))), RIDGE, half_life=half_life)
    model.join(0)
    data = samples(n, 7)
    for _, xg, xl, y in data:
        model.play([(0, 0, rows(xg[None]), rows(xl[None]), y)])
    x = np.array([sample[2 if scheme == "independent" else 1] for sample in data])
    y = np.array([sample[3] for sample in data])
    weight = 0.5 ** (np.arange(n)[::-1] / half_life)
    expected = np.linalg.solve(x.T @ (weight[:, None] * x) + RIDGE * np.eye(x.shape[1]), x.T @ (weight * y))
    weights = model.personal[0][2][0] if scheme == "independent" else model.weights[0]
    assert weights == pytest.approx(expected, abs=1e-9)


def test_an_arm_that_is_not_chosen_grows_wide_again_up_to_where_it_began():
    first = arms(np.ones(2), 2)
    model = LeastSquaresModel("independent", none(2), first, RIDGE, half_life=5.0)
    model.join(0)
    wide = []
    for t in range(80):
        context = arms(np.array([1.0, 0.5]), 2)
        model.play([(0, 0 if t < 20 else 1, none(2), context, 0.0)])
        wide.append(model.predict(0, none(2), context)[1][0])
    start = np.sqrt((1 + 0.25 + 1) / RIDGE)  # arms add a constant
    assert wide[19] < 0.5 * start
    assert (np.diff(wide[19:]) >= 0).all()
    assert wide[-1] == pytest.approx(start)


def test_a_half_life_finds_weights_that_flipped_and_none_does_not():
    """Regret is half of the gap between the two arms' rewards while a model believes the old weights."""
    rng, errors = np.random.default_rng(0), {}
    for half_life in (math.inf, 100.0):
        model = LeastSquaresModel("central", rows(np.ones((1, G))), none(1), RIDGE, half_life=half_life)
        model.join(0)
        rng = np.random.default_rng(0)
        for t in range(2000):
            x = rng.normal(size=G)
            model.play([(0, 0, rows(x[None]), none(1), (1 if t < 1500 else -1) * x[0])])
        errors[half_life] = abs(model.weights[0][0] + 1)
    assert errors[100.0] < 0.1
    assert errors[math.inf] > 1


def test_large_features_cost_no_digits():
    """Features 10⁴ times as large, 5,000 samples: rank-one updates alone were off by far more than what is left."""
    rng, size, n = np.random.default_rng(3), 1e4, 5000
    model = LeastSquaresModel("central", rows(np.ones((1, G))), none(1), RIDGE)
    model.join(0)
    x = size * (rng.normal(size=(n, 1)) + 1e-3 * rng.normal(size=(n, G)))  # nearly one direction
    y = x @ np.array([1.0, -2.0, 0.5]) / size + 0.1 * rng.normal(size=n)
    worst = 0.0
    for k in range(n):
        model.play([(0, 0, rows(x[k : k + 1]), none(1), y[k])])
        if k % EVERY == EVERY - 1:
            exact = np.linalg.lstsq(
                np.vstack([x[: k + 1], np.sqrt(RIDGE) * np.eye(G)]), np.append(y[: k + 1], np.zeros(G)), rcond=None
            )[0]
            worst = max(worst, np.abs((model.weights[0] - exact) * size).max())
    assert worst < 1e-5

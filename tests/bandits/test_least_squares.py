"""Running sums against the block system solved at once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bandits.actions import arms, none, rows
from bandits.models.least_squares import SHRINK, LeastSquaresModel
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


def model_of(scheme="fedres", delay=0, alpha=0.5):
    return LeastSquaresModel(scheme, rows(np.ones((1, G))), rows(np.ones((1, L))), alpha, RIDGE, delay)


def weights_of(model):
    """Return (w^g, w_1, ..., w_K): w_i = m − B w^g."""
    own = [fitted[0] - coupling[0] @ model.weights[0] for _, coupling, fitted in model.personal.values()]
    return np.concatenate([model.weights[0], *own])


@settings(max_examples=25)
@given(st.integers(0, 60), st.integers(0, 10_000))
def test_both_models_are_the_joint_minimiser_after_any_samples(n, seed):
    data = samples(n, seed)
    assert weights_of(play(model_of(), data)) == pytest.approx(brute_force(data)[0], abs=1e-8)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_scores_are_mean_plus_width_of_the_joint_problem(scheme):
    alpha, data = 1.3, samples(40, 1)
    g, width = (0 if scheme == "independent" else G), (0 if scheme == "central" else L)
    solution, inverse = brute_force(data, g, width)
    model, rng = play(model_of(scheme, alpha=alpha), data), np.random.default_rng(2)
    for slot in range(K):
        xg, xl = rng.normal(size=(4, G)), rng.normal(size=(4, L))
        probe = joint_rows([(slot, a, b, 0) for a, b in zip(xg, xl, strict=True)], g, width)
        variance = np.einsum("nd,de,ne->n", probe, inverse, probe)
        expected = probe @ solution + alpha * np.sqrt(variance)
        assert model.scores(slot, rows(xg), rows(xl)) == pytest.approx(expected, abs=1e-8)


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
    blocks = LeastSquaresModel("fedres", first, first, 0.5, RIDGE)
    whole = LeastSquaresModel("fedres", unrolled(np.ones(2)), unrolled(np.ones(2)), 0.5, RIDGE)
    assert (blocks.blocks, whole.blocks) == (n_arms, 1)
    for model in (blocks, whole):
        for slot in range(K):
            model.join(slot)
    for _ in range(40):
        context, slot, a, y = rng.normal(size=2), int(rng.integers(K)), int(rng.integers(n_arms)), rng.random()
        for model, actions in ((blocks, arms(context, n_arms)), (whole, unrolled(context))):
            model.play([(slot, a, actions, actions, y)])
        one, two = arms(context, n_arms), unrolled(context)
        assert blocks.scores(slot, one, one) == pytest.approx(whole.scores(slot, two, two), abs=1e-8)


def test_a_client_without_features_of_its_own_uploads_its_samples_as_they_are():
    data = samples(20, 5)
    model = LeastSquaresModel("fedres", rows(np.ones((1, G))), none(1), 0.5, RIDGE)
    for slot in range(K):
        model.join(slot)
    for slot, xg, _, y in data:
        model.play([(slot, 0, rows(xg[None]), none(1), y)])
    assert model.weights[0] == pytest.approx(brute_force(data, G, 0)[0], abs=1e-8)

"""OFedIQ: its bits, its bounds, and its first two moments in closed form; `fedres reproduce` has its figures.

[OFedIQ] D. Kwon, J. Park, S. Hong. Tighter Regret Analysis and Optimization of Online Federated Learning. 2023.
"""

import math

import numpy as np
import pytest

from fedres import (
    Example,
    Federation,
    Logistic,
    Quantizer,
    Squared,
    bounds,
    draws,
    global_learner,
    step_sizes,
)
from fedres.comparators import best_fixed
from fedres.heterogeneity import sigma_diff2
from fedres.regret import sum_regret


@pytest.mark.parametrize(("period", "chance", "levels", "blocks"), [(1, 0.5, 17, 10), (1, 1.0, 7, 40), (3, 0.4, 60, 5)])
def test_uplink_bits_are_those_of_the_formula(stream, run, period, chance, levels, blocks):
    """(p/L)·[32b + D(1 + log2(s + 1))]: each message within 3%, their number within 4.5 standard errors."""
    n_rounds, n_clients, dim = 30, 100, 1000
    learner = global_learner(
        "ofediq", dim=dim, n_clients=n_clients, step_size=0.1,
        period=period, participation=chance, levels=levels, blocks=blocks,
    )  # fmt: skip
    _, federation = run(learner, stream(n_rounds, n_clients, dim))
    message = 32 * blocks + dim * (1 + math.log2(levels + 1))
    occasions = n_clients * n_rounds / period
    sent = federation.bits_up.sum() / message
    assert sent == pytest.approx(
        chance * occasions, abs=0.03 * sent + 4.5 * math.sqrt(chance * (1 - chance) * occasions)
    )
    coins = [draws.uniform(learner.seed, t, np.arange(n_clients)) for t in range(period, n_rounds + 1, period)]
    assert sent == pytest.approx((np.array(coins) < chance).sum(), rel=0.03)


# --- theorems 1 and 2: regret under the bound ---

CLIENTS, ROUNDS, DIM, CHANCE, QUANTIZER = 10, 300, 4, 0.3, Quantizer(2, 2)


class Problem:
    """Noisy linear examples of clients that agree on the model, and the constants that the theorems ask for."""

    def __init__(self, loss):
        rng = np.random.default_rng(0)
        self.features = rng.normal(size=(ROUNDS, CLIENTS, DIM)) / np.sqrt(DIM)
        score = self.features @ np.full(DIM, 1.5) + rng.normal(size=(ROUNDS, CLIENTS))
        self.label = score if isinstance(loss, Squared) else np.sign(score)
        self.loss = loss
        self.best = best_fixed(self.features.reshape(-1, DIM), self.label.ravel(), loss)
        self.constants = {
            "n_rounds": ROUNDS,
            "comparator_norm": float(np.linalg.norm(self.best)),
            "sigma_diff2": sigma_diff2(self.features, self.label, self.best, loss),
            "smoothness": loss.curvature * float((self.features**2).sum(axis=2).max()),
        }

    def regret(self, name, **hyperparameters):
        """Return the sum regret of the whole run."""
        learner = global_learner(name, dim=DIM, n_clients=CLIENTS, loss=self.loss, **hyperparameters)
        stream = (Example(x, y) for x, y in zip(self.features, self.label, strict=True))
        paid = np.array([played.loss for played in Federation(learner).run(stream)])
        return sum_regret(paid, self.loss.value(self.features @ self.best, self.label))[-1]


def upper_mean(regrets):
    """Return the mean and four standard errors."""
    return np.mean(regrets) + 4 * np.std(regrets, ddof=1) / math.sqrt(len(regrets))


@pytest.mark.parametrize("loss", [Squared(), Logistic()])
def test_the_regret_of_fedogd_is_under_its_bound_and_positive(loss):
    problem = Problem(loss)
    eta = step_sizes.fedogd(**problem.constants)
    bound = bounds.fedogd(n_clients=CLIENTS, step_size=eta, **problem.constants)
    assert 0 < problem.regret("fedogd", step_size=eta) <= bound


@pytest.mark.parametrize("loss", [Squared(), Logistic()])
def test_the_mean_regret_of_ofedavg_is_under_its_bound(loss):
    problem = Problem(loss)
    eta = step_sizes.ofedavg(p_min=CHANCE, **problem.constants)
    bound = bounds.ofedavg(n_clients=CLIENTS, p_min=CHANCE, step_size=eta, **problem.constants)
    regrets = [problem.regret("ofedavg", step_size=eta, participation=CHANCE, seed=seed) for seed in range(6)]
    assert upper_mean(regrets) <= bound


@pytest.mark.parametrize("loss", [Squared(), Logistic()])
def test_the_mean_regret_of_ofediq_is_under_its_bound(loss):
    problem = Problem(loss)
    constants = {
        "n_clients": CLIENTS, "period": 1, "p_min": CHANCE, "p_sum": CHANCE * CLIENTS,
        "quantizer_variance": QUANTIZER.variance_bound(DIM), **problem.constants,
    }  # fmt: skip
    eta = step_sizes.ofediq(**constants)
    settings = {
        "step_size": eta,
        "participation": CHANCE,
        "levels": QUANTIZER.levels,
        "blocks": QUANTIZER.blocks,
    }
    regrets = [problem.regret("ofediq", seed=seed, **settings) for seed in range(6)]
    assert upper_mean(regrets) <= bounds.ofediq(step_size=eta, **constants)


# --- what the coins and the quantizer add: no bias, and exactly so much variance ---

CHANCES, ETA, DRAWS = np.array([0.2, 0.4, 0.6, 0.8, 1.0]), 0.2, 1500


@pytest.fixture(scope="module")
def rounds():
    """Return three rounds of five clients, four features each."""
    rng = np.random.default_rng(1)
    return [Example(rng.normal(size=(5, 4)), rng.normal(size=5)) for _ in range(3)]


def server_step(rounds, name, **hyperparameters):
    learner = global_learner(name, dim=4, n_clients=5, step_size=ETA, start=np.ones(4), **hyperparameters)
    federation = Federation(learner)
    for example in rounds:
        federation.play(example)
    return federation.server.weights - 1


def random_steps(rounds, name, **hyperparameters):
    return np.array(
        [server_step(rounds, name, participation=CHANCES, seed=seed, **hyperparameters) for seed in range(DRAWS)]
    )


def gradients(rounds):
    """Return each client's gradient of the squared loss at w_1 = 1 in the first round."""
    x, y = rounds[0].features, rounds[0].label
    return 2 * (x.sum(axis=1) - y)[:, None] * x


def assert_unbiased(drawn, expected):
    error = drawn.std(axis=0, ddof=1) / math.sqrt(DRAWS)
    assert np.abs((drawn.mean(axis=0) - expected) / error).max() < 4.5


def assert_variance(drawn, mean, expected):
    squares = ((drawn - mean) ** 2).sum(axis=1)
    assert abs(squares.mean() - expected) < 4.5 * squares.std(ddof=1) / math.sqrt(DRAWS)


def test_the_step_of_ofedavg_is_that_of_fedogd_in_the_mean(rounds):
    drawn = random_steps(rounds[:1], "ofedavg")
    mean = server_step(rounds[:1], "fedogd")
    assert_unbiased(drawn, mean)
    coins = ((1 - CHANCES) / CHANCES) @ (gradients(rounds) ** 2).sum(axis=1)
    assert_variance(drawn, mean, (ETA / 5) ** 2 * coins)


def test_the_step_of_ofediq_is_that_of_fedogd_in_the_mean(rounds):
    drawn = random_steps(rounds[:1], "ofediq", levels=QUANTIZER.levels, blocks=QUANTIZER.blocks)
    mean = server_step(rounds[:1], "fedogd")
    assert_unbiased(drawn, mean)
    coins = ((1 - CHANCES) / CHANCES) @ (gradients(rounds) ** 2).sum(axis=1)
    rounding = CHANCES @ [QUANTIZER.variance(g / p) for g, p in zip(gradients(rounds), CHANCES, strict=True)]
    assert_variance(drawn, mean, (ETA / 5) ** 2 * (coins + rounding))


def test_three_local_steps_of_ofediq_are_in_the_mean_those_of_everybody_in_full(rounds):
    drawn = random_steps(rounds, "ofediq", period=3, levels=QUANTIZER.levels, blocks=QUANTIZER.blocks)
    assert_unbiased(drawn, server_step(rounds, "ofediq", period=3))

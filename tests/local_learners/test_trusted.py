"""A local model that counts for as much as it has been worth."""

import numpy as np
import pytest

from fedres import LinearLearner, VWLearner
from fedres.local_learners.evidence import FORGET
from fedres.local_learners.trusted import DOUBT, Trusted


def test_trust_is_least_squares_of_the_residual_on_the_local_part():
    rng, rate = np.random.default_rng(0), 0.2
    trusted, twin = Trusted(LinearLearner(3, rate)), LinearLearner(3, rate)
    for learner in (trusted, twin):
        learner.see(-9.0)
        learner.see(9.0)
    parts, residuals = [], []
    for _ in range(60):
        x, offset, label = rng.normal(size=3), rng.normal(), rng.normal()
        parts.append(twin.score(x))
        residuals.append(label - offset)
        trusted.learn(x, label, offset)
        twin.learn(x, label, offset)
        ages = FORGET ** np.arange(len(parts))[::-1]
        explained, squares = ages @ np.multiply(residuals, parts), ages @ np.square(parts)
        assert trusted.trust == pytest.approx(np.clip(explained / (squares + DOUBT), 0, 1), abs=1e-9)
        assert trusted.score(x) == pytest.approx(trusted.trust * twin.score(x), abs=1e-9)
        assert trusted.predict(x, 0.5) == pytest.approx(np.clip(0.5 + trusted.trust * twin.score(x), -9, 9), abs=1e-6)


def test_nothing_is_trusted_before_it_has_been_of_worth():
    trusted = Trusted(LinearLearner(2))
    assert trusted.trust == 0
    trusted.learn([1.0, 1.0], 1.0)
    assert trusted.trust == 0
    assert trusted.learner.score([1.0, 1.0]) > 0
    assert trusted.score([1.0, 1.0]) == 0


def test_trust_vanishes_where_the_local_part_is_noise():
    rng = np.random.default_rng(1)
    trusted = Trusted(LinearLearner(8, 1.0))
    for _ in range(600):
        trusted.learn(rng.normal(size=8), rng.random(), offset=0.5)
    assert trusted.trust < 0.4
    assert trusted.evidence.squares > 10 * DOUBT


def test_trust_nears_one_where_the_local_part_explains_what_is_left_over():
    rng, weights = np.random.default_rng(2), np.array([0.5, -0.3, 0.2])
    trusted = Trusted(LinearLearner(3, 0.3))
    for learner_label in (-3.0, 3.0):
        trusted.see(learner_label)
    for _ in range(400):
        x, offset = rng.normal(size=3), rng.normal()
        trusted.learn(x, offset + weights @ x, offset)
    assert trusted.trust > 0.97


class Stubborn(LinearLearner):
    """Always says the same, and never learns."""

    def score(self, features):
        return 0.3

    def learn(self, features, label, offset=0.0):
        self.see(label)


def test_trust_follows_when_the_world_changes():
    trusted = Trusted(Stubborn(1))
    """With patience: what is remembered is about a fifth of all that was seen."""
    for label, n, expected in ((0.8, 1000, 1.0), (0.5, 3000, 0.0), (0.65, 12_000, 0.5)):
        for _ in range(n):
            trusted.learn([1.0], label, offset=0.5)
        assert trusted.trust == pytest.approx(expected, abs=0.04)


def test_a_correction_reaches_the_learner_and_leaves_trust_alone():
    trusted, twin = Trusted(LinearLearner(2)), LinearLearner(2)
    trusted.correct([1.0, 0.5], 0.4)
    twin.correct([1.0, 0.5], 0.4)
    assert trusted.learner.get_state() == twin.get_state()
    assert trusted.trust == 0


def test_vowpal_wabbit_can_be_trusted_as_its_twin():
    rng = np.random.default_rng(4)
    with VWLearner(bits=10) as vw:
        one, two = Trusted(vw), Trusted(LinearLearner(3))
        for _ in range(40):
            x, label, offset = rng.normal(size=3), rng.random(), rng.random()
            assert one.predict(x, offset) == pytest.approx(two.predict(x, offset), abs=1e-12)
            one.learn(x, label, offset)
            two.learn(x, label, offset)
        assert one.label_range == two.label_range
        assert one.trust == pytest.approx(two.trust, abs=1e-12)


def test_a_workspace_is_closed_with_what_trusts_it():
    vw = VWLearner(bits=10)
    for trusted in (Trusted(vw), Trusted(LinearLearner(1))):
        trusted.close()
    with pytest.raises(RuntimeError, match="closed"):
        vw.score(np.ones(1))

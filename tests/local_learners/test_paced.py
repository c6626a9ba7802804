"""A quick and a slow learner as one."""

import numpy as np
import pytest

from fedres import LinearLearner, VWLearner
from fedres.local_learners.evidence import FORGET, Evidence, kept
from fedres.local_learners.paced import PRIOR, Paced


def pair(dim=3, quick=1.0, slow=0.05):
    """Return a pair of learners for labels in [0, 1]."""
    made = Paced(LinearLearner(dim, quick), LinearLearner(dim, slow))
    made.see(1.0)
    return made


def fed(paced, label_of, n, seed=0):
    """Return the pair after n samples, and the squared errors of what it, the quick and the slow one said before."""
    rng, errors = np.random.default_rng(seed), []
    for _ in range(n):
        x = rng.normal(size=3)
        label = label_of(rng, x)
        said = (paced.predict(x, 0.5), paced.quick.predict(x, 0.5), paced.slow.predict(x, 0.5))
        errors.append(np.square(np.subtract(said, label)))
        paced.learn(x, label, 0.5)
    return paced, np.mean(errors[n // 2 :], axis=0)


def coin(rng, x):
    return float(rng.random() < 0.5 + 0.1 * np.tanh(x[0]))


def sign(rng, x):
    return float(x[0] > 0.5 * x[1])


def test_the_share_is_least_squares_between_the_two_predictions():
    rng, paced = np.random.default_rng(0), pair()
    towards, residuals = [], []
    for _ in range(60):
        x, label, offset = rng.normal(size=3), rng.random(), rng.random()
        quick, slow = paced.quick.predict(x, offset), paced.slow.predict(x, offset)
        towards.append(quick - slow)
        residuals.append(label - slow)
        paced.learn(x, label, offset)
        ages = FORGET ** np.arange(len(towards))[::-1]
        explained, squares = ages @ np.multiply(residuals, towards), ages @ np.square(towards)
        assert paced.share == pytest.approx(np.clip((explained + PRIOR) / (squares + PRIOR), 0, 1), abs=1e-6)
        between = paced.share * paced.quick.score(x) + (1 - paced.share) * paced.slow.score(x)
        assert paced.score(x) == pytest.approx(between, abs=1e-12)


def test_noise_leaves_the_slow_one_and_rules_the_quick_one():
    noisy, noisy_errors = fed(pair(), coin, 2000)
    clear, clear_errors = fed(pair(), sign, 2000)
    assert noisy.share < 0.2
    assert clear.share > 0.8
    for both, quick, slow in (noisy_errors, clear_errors):
        assert both < min(quick, slow) + 0.01
    assert noisy_errors[1] > noisy_errors[2] + 0.02
    assert clear_errors[2] > 2 * clear_errors[1]


def test_vowpal_wabbit_goes_at_the_pace_of_its_twin_and_is_closed_by_the_pair():
    rng, quick, slow = np.random.default_rng(1), VWLearner(1.0, bits=10), VWLearner(0.05, bits=10)
    one, two = Paced(quick, slow), pair()
    one.see(1.0)
    for _ in range(40):
        x, label, offset = rng.normal(size=3), rng.random(), rng.random()
        assert one.predict(x, offset) == pytest.approx(two.predict(x, offset), abs=1e-9)
        one.learn(x, label, offset)
        two.learn(x, label, offset)
    assert one.label_range == two.label_range
    one.close()
    two.close()
    for learner in (quick, slow):
        with pytest.raises(RuntimeError, match="closed"):
            learner.score(x)


def test_a_correction_reaches_both_and_leaves_the_share_alone():
    paced, twin = pair(), LinearLearner(3, 0.05)
    twin.see(1.0)
    paced.correct([1.0, 0.5, 0.0], 0.4)
    twin.correct([1.0, 0.5, 0.0], 0.4)
    assert paced.slow.get_state() == twin.get_state()
    assert paced.quick.score([1.0, 0.5, 0.0]) < paced.slow.score([1.0, 0.5, 0.0]) < 0
    assert paced.share == 1


def test_evidence_is_remembered_for_a_hundred_samples_and_later_for_a_fifth_of_all():
    assert [kept(n) for n in (1, 400)] == [FORGET, FORGET]
    assert kept(4000) == pytest.approx(0.999)
    evidence = Evidence()  # the m-th of n counts (m/n)⁴
    for n in range(1, 8001):
        evidence.add(1.0 if n > 4000 else 0.0, 1.0)
    assert evidence.ratio(0.0, 0.0) == pytest.approx(1 - 0.5**5, abs=1e-3)

"""The device's own model over hashed features."""

import numpy as np
import pytest

from fedres.client.local import BITS, LocalModel, Step, local_example
from fedres.scoring.features import Preparer
from fedres.scoring.model import expand


def examples(n):
    preparer, rng = Preparer(), np.random.default_rng(0)
    for _ in range(n):
        context = b'{"day":%d,"private":{"age":%f,"job":"j%d"}}' % (rng.integers(7), rng.normal(), rng.integers(5))
        yield local_example(expand(preparer.prepare(context, [(f"a{rng.integers(4)}", b'{"hot":true}')]), 0))


def steps(n):
    rng = np.random.default_rng(1)
    for indices, values in examples(n):
        kind = ("learn", "learn", "correct", "see")[rng.integers(4)]
        yield Step(kind, rng.normal(), rng.normal(), indices.tobytes(), values.tobytes())


def test_the_twin_scores_as_vowpal_wabbit_does_to_the_bit():
    vw, twin = LocalModel("vw", 0.1), LocalModel("linear", 0.1)
    for step, example in zip(steps(200), examples(200), strict=True):
        assert vw.score(example) == twin.score(example)
        vw.apply(step)
        twin.apply(step)
    assert vw.label_range == twin.label_range
    vw.close()


@pytest.mark.parametrize("learner", ["vw", "linear"])
def test_a_model_goes_on_from_its_state_to_the_bit(learner):
    made = list(steps(300))
    straight, before = LocalModel(learner, 0.1), LocalModel(learner, 0.1)
    for step in made[:150]:
        before.apply(step)
    after = LocalModel(learner, 0.1, before.get_state())
    for step in made:
        straight.apply(step)
    for step in made[150:]:
        after.apply(step)
    assert [after.score(each) for each in examples(50)] == [straight.score(each) for each in examples(50)]
    for model in (straight, before, after):
        model.close()


def test_indices_that_vowpal_wabbit_needs_for_itself_give_way():
    last = 2**BITS - 1
    keys = np.array([last, 11650396 & last, 5], np.uint32) << np.uint32(32 - BITS)
    indices, values = local_example((keys, np.ones(3, np.float32)))
    assert indices.tolist() == [last - 1, (11650396 & last) - 1, 5]
    for learner in ("vw", "linear"):
        model = LocalModel(learner, 0.1)
        model.apply(Step("learn", 1.0, 0.0, indices.tobytes(), values.tobytes()))
        assert model.score((indices, values)) > 0
        model.close()

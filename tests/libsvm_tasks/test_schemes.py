"""What the contenders of a replay are: the paper's FedRes as printed, ours with a model alone beside it."""

import numpy as np
import pytest

from libsvm_tasks import engine
from libsvm_tasks.hosted import hosted_accuracy
from libsvm_tasks.load import load
from libsvm_tasks.replay import play
from libsvm_tasks.schemes import Scheme
from libsvm_tasks.tasks import paper_task


def digits(local_features, n_rounds=80):
    return paper_task(load("digits"), 6, seed=1, local_features=local_features, n_rounds=n_rounds)


@pytest.mark.parametrize("local_features", ["half", "all"])
@pytest.mark.parametrize(
    ("timing", "rules"), [("aligned", ("aligned", "aligned")), ("on-arrival", ("on_arrival", "immediate"))]
)
def test_only_the_recommended_setting_has_a_model_alone(local_features, timing, rules):
    task, wanted = digits(local_features), (local_features, timing) == ("all", "on-arrival")
    options = {"uplink_delay": 3, "downlink_delay": 2, "timing": rules[0], "local_timing": rules[1]}
    without, with_it = (engine.run(task, "fedres", alone=alone, **options).accuracy.mean() for alone in (False, True))
    assert with_it != without
    found = play(task, Scheme(local_features=local_features, timing=timing, delay=5)).accuracy
    assert found == (with_it if wanted else without)


@pytest.mark.parametrize("local_learner", ["linear", "vw"])
@pytest.mark.parametrize("name", ["fedres-sgd", "fedogd"])
def test_where_nothing_ever_arrives_every_global_learner_leaves_clients_alone(name, local_learner):
    task = digits("all")
    scheme = Scheme(global_learner=name, local_learner=local_learner, delay=2 * task.order.shape[1])
    accuracy, bits_up, _ = hosted_accuracy(task, scheme)
    np.testing.assert_array_equal(accuracy, engine.run(task, "independent").accuracy)
    assert bits_up > 0

"""What the contenders of a replay are: the paper's FedRes as printed, ours with a model alone beside it."""

import numpy as np
import pytest

from libsvm_tasks import engine
from libsvm_tasks.hosted import hosted_accuracy
from libsvm_tasks.load import load
from libsvm_tasks.schemes import Scheme
from libsvm_tasks.task_replay import play
from libsvm_tasks.tasks import paper_task


def digits(local_features, n_rounds=80):
    return paper_task(load("digits"), 6, seed=1, local_features=local_features, n_rounds=n_rounds)


@pytest.mark.parametrize("local_features", ["half", "all"])
@pytest.mark.parametrize(
    ("timing", "rules"), [("aligned", ("aligned", "aligned")), ("on-arrival", ("on-arrival", "immediate"))]
)
def test_only_the_recommended_setting_has_a_model_alone(local_features, timing, rules):
    task, recommended = digits(local_features), (local_features, timing) == ("all", "on-arrival")
    options = {"uplink_delay": 3, "downlink_delay": 2, "timing": rules[0], "local_timing": rules[1]}
    without, with_it = (engine.run(task, "fedres", alone=alone, **options).accuracy.mean() for alone in (False, True))
    assert with_it != without
    accuracy = play(task, Scheme(local_features=local_features, timing=timing, delay=5)).accuracy
    assert accuracy == (with_it if recommended else without)


@pytest.mark.parametrize("local_learner", ["linear", "vw"])
@pytest.mark.parametrize("name", ["fedres-sgd", "fedogd"])
def test_where_nothing_ever_arrives_every_global_learner_leaves_clients_alone(name, local_learner):
    task = digits("all")
    scheme = Scheme(global_learner=name, local_learner=local_learner, delay=2 * task.order.shape[1])
    accuracy, bits_up, _ = hosted_accuracy(task, scheme)
    np.testing.assert_array_equal(accuracy, engine.run(task, "independent").accuracy)
    assert bits_up > 0


def test_hyperparameters_after_the_name_replace_the_defaults():
    task = digits("all")
    rare, often = (hosted_accuracy(task, Scheme(global_learner=f"ofedavg:participation={p}")) for p in (0.05, 0.5))
    assert 2 * rare[1] < often[1]  # bits sent
    assert Scheme(global_learner="ofediq:levels=3,step_size=0.5").hyperparameters == {"levels": 3, "step_size": 0.5}


@pytest.mark.parametrize("local_learner", ["linear", "vw"])
def test_the_rates_of_fedres_sgd_are_those_of_the_engine(local_learner):
    task, rates = digits("half"), {"learning_rate": 2.0, "local_learning_rate": 3.0}
    text = ",".join(f"{name}={rate}" for name, rate in rates.items())
    scheme = Scheme(global_learner=f"fedres-sgd:{text}", local_learner=local_learner, local_features="half")
    options = {"timing": "on-arrival", "local_timing": "immediate"}
    assert play(task, scheme).accuracy == engine.run(task, "fedres", **options, **rates).accuracy.mean()


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        ("ofedavg:levels=3", "levels is not a hyperparameter of ofedavg, which has step_size, participation, seed"),
        ("fedres-sgd:step_size=1", "step_size is not a hyperparameter of fedres-sgd, which has learning_rate, "),
        ("fedres-sgd:learning_rate=0", "learning_rate must be .*positive.* got 0"),
        ("ofedavg:participation", "global_learner must be NAME or NAME:KEY=VALUE,KEY=VALUE, got 'ofedavg:"),
        ("fedavg:x=1", "global_learner must be one of"),
    ],
)
def test_hyperparameters_that_a_learner_does_not_have_are_refused(learner, message):
    with pytest.raises(ValueError, match=message):
        Scheme(global_learner=learner)

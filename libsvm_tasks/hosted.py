"""Any global learner of the core as the shared half of FedRes, on a task, through the protocol objects."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from fedres import Each, Example, Federation, Linear, delayed_sites, global_learner, ofediq_parameters
from fedres.checks import Array
from fedres.local_learners.protocol import LocalGroup, LocalLearner
from fedres.step_sizes import stable_step
from libsvm_tasks import readable
from libsvm_tasks.schemes import TIMINGS, Scheme, hyperparameter_names, shared_bits
from libsvm_tasks.tasks import Task

RATE = 10.0  # VW's


def hosted_accuracy(task: Task, scheme: Scheme) -> tuple[Array, float, float]:
    """Return every client's test accuracy, and the mean bits a client sent and was sent."""
    if scheme.learner_name == "fedres-sgd":
        return _with_vw_everywhere(task, scheme)
    with ExitStack() as stack:
        make, dim, n_clients = readable.maker(scheme.local_learner, stack), len(task.local_features), len(task.label)
        learners = [make(dim, RATE) for _ in range(n_clients)] if scheme.learner_name != "fedres-erm" else []
        alone = [make(dim, RATE) for _ in range(n_clients)] if scheme.alone else []
        return _play(task, scheme, learners, alone)


def _play(
    task: Task, scheme: Scheme, learners: list[LocalLearner], alone: list[LocalLearner]
) -> tuple[Array, float, float]:
    n_clients, n_rounds = task.order.shape

    def group(who: Array) -> LocalGroup:
        return Each([learners[k] for k in who])

    learner = make_learner(task, scheme)
    sites = delayed_sites(n_clients, scheme.uplink_delay, scheme.downlink_delay, group if learners else None)
    timing = "aligned" if scheme.timing == "aligned" else "immediate"
    federation = Federation(learner, sites, local_timing=timing)
    who = np.arange(n_clients)
    shared, own = _with_constant(task.features[:, :, task.global_features]), task.features[:, :, task.local_features]
    for t in range(n_rounds):
        rows = task.order[:, t]
        federation.play(Example(shared[who, rows], task.label[who, rows], own[who, rows]))
        for i, learner in enumerate(alone):
            learner.learn(own[i, rows[i]], task.label[i, rows[i]])
    accuracy = _test(task, federation, learners, alone)
    return accuracy, float(federation.bits_up.mean()), float(federation.bits_down.mean())


def make_learner(task: Task, scheme: Scheme) -> Any:
    """Return the rule for the shared model: one of a name, with defaults, or what a class or function makes."""
    dim, n_clients = len(task.global_features) + 1, len(task.label)
    if not isinstance(scheme.global_learner, str):
        return scheme.global_learner(model=Linear(dim), n_clients=n_clients)
    defaults = default_hyperparameters(scheme.learner_name, task, scheme.delay)
    settings = {name: value for name, value in defaults.items() if name in hyperparameter_names(scheme.learner_name)}
    return global_learner(scheme.learner_name, dim=dim, n_clients=n_clients, **settings | scheme.hyperparameters)


def _test(task: Task, federation: Federation, learners: list[LocalLearner], alone: list[LocalLearner]) -> Array:
    """Return the accuracy on its test rows of the newest shared model with each client's own."""
    offset = _with_constant(task.test_features[:, :, task.global_features]) @ federation.server.weights
    own = task.test_features[:, :, task.local_features]
    if learners:
        part = _scores(learners, own)
    else:
        client: Any = federation.parties[0].client
        part = np.array([client.score(own[:, j]) for j in range(own.shape[1])]).T
    total = offset + part + (_scores(alone, own) if alone else 0)  # twice the mean
    return np.asarray((total * task.test_label > 0).mean(axis=1))


def _scores(learners: list[LocalLearner], features: Array) -> Array:
    return np.array([[learner.score(x) for x in rows] for learner, rows in zip(learners, features, strict=True)])


def default_hyperparameters(name: str, task: Task, delay: int) -> dict[str, Any]:
    """Return settings that are stable on any scale of features and any delay, and cut the uplink where they can."""
    squares = (_with_constant(task.features[:, :, task.global_features]) ** 2).sum(axis=2)
    step = min(0.25 / squares.max(), 0.5 * stable_step(2 * squares.mean(), delay))
    n_clients = len(task.label)
    if name == "fedres-erm":
        return {"local_dim": len(task.local_features), "ridge": 1.0}
    if name == "fictitious-play":
        return {"ridge": 1.0}
    if name == "fedres-adagrad":
        return {"learning_rate": RATE}
    extra: dict[str, dict[str, Any]] = {
        "ofedavg": {"participation": 0.1},
        "ofediq": ofediq_parameters(0.1, len(task.global_features) + 1)._asdict(),
        "fedomd": {"sync": 5},
        "fedsea": {"period": 5},
        "dynamic-fedavg": {"participants": max(1, n_clients // 2), "buffer": 20, "batch": 10, "epochs": 2},
    }
    return {"step_size": float(step), **extra.get(name, {})}


def _with_vw_everywhere(task: Task, scheme: Scheme) -> tuple[Array, float, float]:
    timing, local_timing = TIMINGS[scheme.timing]
    result = readable.run(
        task,
        "fedres",
        learner="vw",
        uplink_delay=scheme.uplink_delay,
        downlink_delay=scheme.downlink_delay,
        timing=timing,
        local_timing=local_timing,
        alone=scheme.alone,
        **scheme.hyperparameters,
    )
    return result.accuracy, *shared_bits(task, scheme)


def _with_constant(features: Array) -> Array:
    return np.concatenate([features, np.ones((*features.shape[:-1], 1))], axis=-1)

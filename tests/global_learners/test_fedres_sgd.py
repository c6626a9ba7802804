"""FedRes.SGD against its equations written out, with every delay the paper allows."""

import numpy as np
import pytest

from fedres import LocalSGD, Site, global_learner
from fedres.federation import delayed_sites

P, D, LOCAL, T, ETA, ETA_LOCAL = 4, 3, 2, 80, 0.05, 0.1
ALPHA, BETA = [0, 2, 1, 2], [0, 1, 3, 1]


def equations(examples, timing, local_timing, radius):
    """Algorithms 3 and 4, index by index: global[t] and local[t] are the models that round t starts with."""
    global_ = {t: np.zeros(D) for t in range(-20, 2)}
    local = {1: np.zeros((P, LOCAL))}
    slope, sent, predictions = {}, {}, []

    def clip(w):
        norm = np.linalg.norm(w)
        return w if norm <= radius else w * radius / norm

    for t in range(1, T + 1):
        e = examples[t - 1]
        used = np.array([global_[t - BETA[i]] for i in range(P)])  # a Down made in round s serves from s+1+β
        part = (local[t] * e.local_features).sum(axis=1)
        prediction = (used * e.features).sum(axis=1) + part
        predictions.append(prediction)
        slope[t], sent[t] = 2 * (prediction - e.label), part
        total = np.zeros(D)
        for i in range(P):
            s = t - ALPHA[i]
            if s >= 1:
                old = examples[s - 1]
                now = 2 * (global_[t] @ old.features[i] + sent[s][i] - old.label[i])
                total += (slope[s][i] if timing == "aligned" else now) * old.features[i]
        global_[t + 1] = clip(global_[t] - ETA * total)
        local[t + 1] = local[t].copy()
        for i in range(P):
            s = t if local_timing == "immediate" else t - ALPHA[i] - BETA[i]
            if s >= 1:
                gradient = slope[s][i] * examples[s - 1].local_features[i]
                local[t + 1][i] = clip(local[t][i] - ETA_LOCAL * gradient)
    return np.array(predictions), global_[T + 1]


@pytest.mark.parametrize("timing", ["aligned", "on-arrival"])
@pytest.mark.parametrize("local_timing", ["aligned", "immediate"])
@pytest.mark.parametrize("radius", [np.inf, 0.4])
def test_the_protocol_plays_the_papers_equations(stream, run, timing, local_timing, radius):
    examples = stream(T, P, D, local_dim=LOCAL)
    learner = global_learner("fedres-sgd", dim=D, n_clients=P, step_size=ETA, timing=timing, radius=radius)
    sites = delayed_sites(P, ALPHA, BETA, lambda who: LocalSGD(LOCAL, len(who), step_size=ETA_LOCAL, radius=radius))
    assert len(sites) == 3  # clients 1 and 3 share a link
    rounds, federation = run(learner, examples, sites, local_timing=local_timing)
    predictions, weights = equations(examples, timing, local_timing, radius)
    assert np.array([r.prediction for r in rounds]) == pytest.approx(predictions, abs=1e-12)
    assert federation.server.weights == pytest.approx(weights, abs=1e-12)


def test_timings_part_ways_under_delay(stream, run):
    examples = stream(T, P, D)
    models = [
        run(
            global_learner("fedres-sgd", dim=D, n_clients=P, step_size=ETA, timing=timing),
            examples,
            delayed_sites(P, 5, 5),
        )[1].server.weights
        for timing in ("aligned", "on-arrival")
    ]
    assert np.abs(models[0] - models[1]).max() > 1e-3


@pytest.mark.parametrize("timing", ["aligned", "on-arrival"])
def test_a_batch_is_one_step_on_its_mean_gradient(stream, run, timing):
    """Section 4 without delay: both models move once per b rounds, by the mean gradient at the batch's start."""
    b, examples = 5, stream(40, P, D, local_dim=LOCAL)
    learner = global_learner("fedres-sgd", dim=D, n_clients=P, step_size=ETA, timing=timing, batch=b)
    site = Site(np.arange(P), local=LocalSGD(LOCAL, P, step_size=ETA_LOCAL))
    rounds, federation = run(learner, examples, [site], local_timing="aligned")
    weights, local = np.zeros(D), np.zeros((P, LOCAL))
    for start in range(0, 40, b):
        step, local_step = np.zeros(D), np.zeros((P, LOCAL))
        for t in range(start, start + b):
            e = examples[t]
            prediction = e.features @ weights + (local * e.local_features).sum(axis=1)
            assert rounds[t].prediction == pytest.approx(prediction, abs=1e-12)
            slope = 2 * (prediction - e.label) / b
            step += slope @ e.features
            local_step += slope[:, None] * e.local_features
        weights, local = weights - ETA * step, local - ETA_LOCAL * local_step
    assert federation.server.weights == pytest.approx(weights, abs=1e-12)
    assert federation.bits_down.tolist() == [32 * D * 40 // b] * P


def test_batches_cost_fewer_bits_both_ways_when_aligned(stream, run):
    examples = stream(40, P, D)
    single, batched = (
        run(global_learner("fedres-sgd", dim=D, n_clients=P, step_size=ETA, batch=b), examples)[1] for b in (1, 8)
    )
    assert (batched.bits_up < single.bits_up / 8).all()
    assert (batched.bits_down == single.bits_down // 8).all()


def test_a_lost_upload_costs_a_step_and_nothing_else(stream, run):
    from fedres import Channel, Faults, Fixed

    examples = stream(30, 1, D)
    faults = Faults(loss=1.0, rng=np.random.default_rng(0))
    sites = [Site(np.arange(1), Channel(Fixed(0), faults=faults), Channel(Fixed(0)))]
    _, federation = run(global_learner("fedres-sgd", dim=D, step_size=ETA), examples, sites)
    assert not federation.server.weights.any()
    assert federation.bits_up[0] == 30 * 32 * (D + 1)


@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_joint_training_beats_the_global_model_alone(stream, run, loss):
    examples = stream(600, P, D, local_dim=LOCAL, loss=loss)
    learner = global_learner("fedres-sgd", dim=D, n_clients=P, step_size=0.1, loss=loss)
    site = Site(np.arange(P), local=LocalSGD(LOCAL, P, step_size=0.1, loss=learner.loss))
    joint = np.mean([r.loss for r in run(learner, examples, [site])[0][-200:]])
    alone = np.mean([r.loss for r in run(learner, examples)[0][-200:]])
    assert joint < 0.7 * alone


@pytest.mark.parametrize(("alpha", "beta"), [(0, 2), (3, 4), (7, 1)])
def test_both_models_stay_as_they_are_inside_a_batch_under_delay(stream, run, alpha, beta):
    """Eq. 10: FedRes.SGD on batches n = 1, 2, ... of b rounds, whose loss is a mean at one pair of models."""
    b, radius, examples = 5, 0.4, stream(60, P, D, local_dim=LOCAL)
    learner = global_learner("fedres-sgd", dim=D, n_clients=P, step_size=ETA, batch=b, radius=radius)
    local = LocalSGD(LOCAL, P, step_size=ETA_LOCAL, radius=radius)
    rounds, federation = run(learner, examples, delayed_sites(P, alpha, beta, lambda _: local))

    def clip(w):
        return w * np.minimum(1, radius / np.maximum(np.linalg.norm(w, axis=-1, keepdims=True), 1e-300))

    uplink = -(-alpha // b)  # in batches: the server steps at the end of the batch in which an upload arrives
    back = -(-beta // b)  # and clients fetch at the start of a batch
    gradients, shared, own = [], [np.zeros(D)], np.zeros((P, LOCAL))
    for n in range(60 // b):
        fetched = shared[max(n - back, 0)]
        done = n - 1 - uplink - back  # the newest batch that the fetched model includes
        if done >= 0:
            own = clip(own - ETA_LOCAL * gradients[done][1])
        step, local_step = np.zeros(D), np.zeros((P, LOCAL))
        for t in range(n * b, (n + 1) * b):
            e = examples[t]
            prediction = e.features @ fetched + (own * e.local_features).sum(axis=1)
            assert rounds[t].prediction == pytest.approx(prediction, abs=1e-12)
            slope = 2 * (prediction - e.label) / b
            step, local_step = step + slope @ e.features, local_step + slope[:, None] * e.local_features
        gradients.append((step, local_step))
        arrived = gradients[n - uplink][0] if n >= uplink else np.zeros(D)
        shared.append(clip(shared[-1] - ETA * arrived))
    assert federation.server.weights == pytest.approx(shared[-1], abs=1e-12)
    assert np.linalg.norm(own, axis=1).max() == pytest.approx(radius)  # the projection was at work


def test_a_weighted_client_steps_further(stream, run):
    """λ_i multiplies both gradients of client i [FedRes, eq. 1]."""
    lam, examples = np.array([1.0, 3.0, 0.5, 0.0]), stream(1, P, D, local_dim=LOCAL)
    learner = global_learner("fedres-sgd", dim=D, n_clients=P, step_size=ETA, client_weights=lam)
    for timing in ("aligned", "immediate"):
        local = LocalSGD(LOCAL, P, step_size=ETA_LOCAL)
        _, federation = run(learner, examples * 2, [Site(np.arange(P), local=local)], local_timing=timing)
        first = ETA_LOCAL * (lam * 2 * examples[0].label)[:, None] * examples[0].local_features
        assert federation.parties[0].covers.tolist() == [1] * P
        if timing == "aligned":
            assert local.weights == pytest.approx(first, abs=1e-12)
        assert not local.weights[3].any()

"""FedRes.ERM and fictitious play against brute force over all past samples."""

import pickle

import numpy as np
import pytest

from fedres import Example, LocalLeastSquares, Site, global_learner
from fedres.federation import delayed_sites

P, D, LOCAL = 3, 2, 2


def ridge_fit(rows, targets, start, ridge, weights=None):
    """Return argmin Σ weight (target − row·w)² + ridge ‖w − start‖² by stacking the rows."""
    weights = np.ones(len(rows)) if weights is None else weights
    rows, targets = np.asarray(rows) * np.sqrt(weights)[:, None], np.asarray(targets) * np.sqrt(weights)
    stacked = np.vstack([rows, np.sqrt(ridge) * np.eye(len(start))])
    return np.linalg.lstsq(stacked, np.concatenate([targets, np.sqrt(ridge) * start]), rcond=None)[0]


@pytest.mark.parametrize(("alpha", "beta"), [(0, 0), (2, 0), (0, 3), (2, 3)])
def test_erm_refits_everything_to_the_newest_models_of_the_other_side(stream, run, alpha, beta):
    n_rounds, ridge, lam = 25, 0.01, np.array([1.0, 2.0, 0.5])
    examples = stream(n_rounds, P, D, local_dim=LOCAL)
    learner = global_learner(
        "fedres-erm", dim=D, n_clients=P, local_dim=LOCAL, ridge=ridge, client_weights=lam, start=[0.3, -0.2]
    )
    rounds, _ = run(learner, examples, delayed_sites(P, alpha, beta))
    first = np.array([0.3, -0.2])
    global_, local = dict.fromkeys(range(-10, 2), first), {}
    for t in range(1, n_rounds + 1):
        shared = global_[t - beta]
        past = examples[: t - 1]
        local[t] = np.array(
            [
                ridge_fit(
                    np.array([e.local_features[i] for e in past]).reshape(-1, LOCAL),
                    np.array([e.label[i] - shared @ e.features[i] for e in past]),
                    np.zeros(LOCAL),
                    ridge,
                )
                for i in range(P)
            ]
        )
        e = examples[t - 1]
        expected = e.features @ shared + (local[t] * e.local_features).sum(axis=1)
        assert rounds[t - 1].prediction == pytest.approx(expected, abs=1e-8)
        global_[t + 1] = global_[t]
        if t - alpha >= 1:  # eq. 3, with w_{i,t-α} on all samples up to t-α
            newest, seen = local[t - alpha], examples[: t - alpha]
            rows = [e.features[i] for e in seen for i in range(P)]
            targets = [e.label[i] - newest[i] @ e.local_features[i] for e in seen for i in range(P)]
            global_[t + 1] = ridge_fit(rows, targets, first, ridge, np.tile(lam, len(seen)))


def test_erm_keeps_no_samples_so_that_a_round_costs_the_same_for_ever(stream, run):
    learner = global_learner("fedres-erm", dim=D, n_clients=P, local_dim=LOCAL)
    sizes = []
    for n_rounds in (10, 400):
        _, federation = run(learner, stream(n_rounds, P, D, local_dim=LOCAL))
        sizes.append(len(pickle.dumps((federation.server, federation.parties[0].client))))
    assert sizes[0] == pytest.approx(sizes[1], abs=64)


def test_erm_models_stay_inside_their_ball(stream, run):
    learner = global_learner("fedres-erm", dim=D, n_clients=P, local_dim=LOCAL, radius=0.3)
    _, federation = run(learner, stream(40, P, D, local_dim=LOCAL))
    assert np.linalg.norm(federation.server.weights) <= 0.3 + 1e-9
    assert (np.linalg.norm(federation.parties[0].client.local_weights, axis=1) <= 0.3 + 1e-9).all()


def test_erm_needs_the_local_features_of_a_round():
    client = global_learner("fedres-erm", dim=D, n_clients=P, local_dim=LOCAL).client()
    with pytest.raises(ValueError, match="local_features must be given to learn before observe"):
        client.observe(1, np.ones((P, D)), 0.0, np.ones(P))


def test_erm_brings_its_own_local_model(run):
    learner = global_learner("fedres-erm", dim=D, n_clients=P, local_dim=LOCAL)
    with pytest.raises(ValueError, match="local must be None"):
        run(learner, [], [Site(np.arange(P), local=LocalLeastSquares(LOCAL, P))])


def test_fictitious_play_fits_the_past_as_it_was(stream, run):
    n_rounds, ridge = 25, 0.1
    examples = stream(n_rounds, P, D, local_dim=LOCAL)
    learner = global_learner("fictitious-play", dim=D, n_clients=P, ridge=ridge)
    site = Site(np.arange(P), local=LocalLeastSquares(LOCAL, P, ridge=ridge))
    rounds, federation = run(learner, examples, [site], local_timing="immediate")
    part = [r.prediction - r.offset for r in rounds]
    rows = [e.features[i] for e in examples for i in range(P)]
    targets = [e.label[i] - part[t][i] for t, e in enumerate(examples) for i in range(P)]
    assert federation.server.weights == pytest.approx(ridge_fit(rows, targets, np.zeros(D), ridge), abs=1e-9)
    for i in range(P):
        rows = [e.local_features[i] for e in examples]
        targets = [e.label[i] - r.offset[i] for e, r in zip(examples, rounds, strict=True)]
        assert site.local.weights[i] == pytest.approx(ridge_fit(rows, targets, np.zeros(LOCAL), ridge), abs=1e-9)


def test_least_squares_says_that_it_cannot_be_aligned(stream, run):
    learner = global_learner("fictitious-play", dim=D, n_clients=P)
    site = Site(np.arange(P), local=LocalLeastSquares(LOCAL, P))
    with pytest.raises(ValueError, match="local_timing must be 'immediate' for least squares"):
        run(learner, stream(3, P, D, local_dim=LOCAL), [site], local_timing="aligned")


def test_erm_hears_the_newest_local_models_of_clients_without_data(stream, run):
    """Algorithm 2 receives w_i of all clients in every round: those without a sample have refitted theirs too."""
    n_rounds, ridge, rng = 30, 0.01, np.random.default_rng(3)
    present = rng.random((n_rounds, P)) < 0.4
    examples = [
        Example(e.features, e.label, e.local_features, here)
        for e, here in zip(stream(n_rounds, P, D, local_dim=LOCAL), present, strict=True)
    ]
    learner = global_learner("fedres-erm", dim=D, n_clients=P, local_dim=LOCAL, ridge=ridge)
    rounds, federation = run(learner, examples)
    shared = np.zeros(D)
    for t in range(n_rounds):
        seen = [[e for e, here in zip(examples[:t], present, strict=False) if here[i]] for i in range(P)]
        own = [
            ridge_fit(
                np.array([e.local_features[i] for e in past]).reshape(-1, LOCAL),
                np.array([e.label[i] - shared @ e.features[i] for e in past]),
                np.zeros(LOCAL),
                ridge,
            )
            for i, past in enumerate(seen)
        ]
        e, here = examples[t], present[t]
        expected = e.features @ shared + (np.array(own) * e.local_features).sum(axis=1)
        assert rounds[t].prediction[here] == pytest.approx(expected[here], abs=1e-8)
        seen = [[*past, e] if here[i] else past for i, past in enumerate(seen)]
        pairs = [(i, old) for i, past in enumerate(seen) for old in past]
        if pairs:
            rows = [old.features[i] for i, old in pairs]
            targets = [old.label[i] - own[i] @ old.local_features[i] for i, old in pairs]
            shared = ridge_fit(rows, targets, np.zeros(D), ridge)
    assert federation.server.weights == pytest.approx(shared, abs=1e-8)
    first = present.argmax(axis=0)
    silent = np.array([(~present[first[i] :, i]).sum() for i in range(P)])
    assert federation.bits_up.tolist() == (32 * ((2 * D + 1) * present.sum(axis=0) + D * silent)).tolist()

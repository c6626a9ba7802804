"""What stands for many rows at once is, row by row, what it stands for."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedres import Linear, Network, Quantizer, global_learner
from fedres.models import factored

K, D = 6, 5


@dataclass(frozen=True)
class Bent:
    """A model from outside the library: one number a row, (w·x)³."""

    features: int = D
    outputs: int = 0
    dim: int = D

    def predict(self, weights, features):
        return (weights * features).sum(axis=-1) ** 3

    def gradient(self, weights, features, slope):
        return (3 * slope * (weights * features).sum(axis=-1) ** 2)[:, None] * features


MODELS = [Linear(D), Linear(D, 3), Network((D, 4, 1)), Network((D, 4, 3, 2)), Bent()]


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("own_weights", [False, True])
def test_factors_are_the_dense_gradients_not_multiplied_out(model, own_weights):
    rng = np.random.default_rng(0)
    weights = (
        rng.normal(size=(K, model.dim)) if own_weights else np.broadcast_to(rng.normal(size=model.dim), (K, model.dim))
    )
    features, scale = rng.normal(size=(K, D)), rng.normal(size=K)
    slope = rng.normal(size=(K, model.outputs) if model.outputs else K)
    dense, factors = model.gradient(weights, features, slope), factored(model, weights, features, slope)
    assert dense.shape == (K, model.dim)
    assert factors.rows() == pytest.approx(dense, abs=1e-12)
    assert factors.sum() == pytest.approx(dense.sum(axis=0), abs=1e-12)
    assert factors.scaled(scale).rows() == pytest.approx(scale[:, None] * dense, abs=1e-12)
    assert factors.step(weights, 0.3) == pytest.approx(weights - 0.3 * dense, abs=1e-12)


def test_a_step_leaves_the_weights_it_starts_from_alone():
    weights, features = np.ones((K, D)), np.ones((K, D))
    Linear(D).factors(weights, features, np.ones(K)).step(weights, 0.5)
    assert (weights == 1).all()


@pytest.mark.parametrize(("levels", "blocks"), [(1, 1), (3, 20), (17, 7), (127, 3), (128, 900), (5000, 2)])
def test_rows_are_encoded_and_summed_as_one_by_one(levels, blocks):
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(8, 900)) * (rng.random((8, 900)) < 0.3) * 10.0 ** rng.integers(-300, 30, size=(8, 1))
    quantizer = Quantizer(levels, blocks)
    seeds = [int(np.random.default_rng(k).integers(2**64, dtype=np.uint64)) for k in range(8)]
    single = tuple(quantizer.encode(row, np.random.default_rng(k)) for k, row in enumerate(rows))
    assert quantizer.encode_rows(rows, seeds) == single
    total = np.sum([quantizer.decode(data, 900) for data in single], axis=0)
    assert quantizer.decode_sum(single, 900).tolist() == total.tolist()


def test_rows_that_cannot_be_encoded_are_refused():
    quantizer = Quantizer(3, 2)
    with pytest.raises(ValueError, match=r"vectors must have shape \(any, any\), got \(4,\)"):
        quantizer.encode_rows(np.ones(4), [0])
    with pytest.raises(ValueError, match=r"seeds must be 2 integers, got shape \(3,\)"):
        quantizer.encode_rows(np.ones((2, 4)), [0, 1, 2])
    with pytest.raises(ValueError, match="vector must have block norms of at most"):
        quantizer.encode_rows([[0, 0, 0, 1], [0, 0, 0, 1e200]], [0, 1])
    with pytest.raises(ValueError, match="data must hold 4 codes from -3 to 3"):
        quantizer.decode_sum(
            [*quantizer.encode_rows(np.ones((2, 4)), [0, 1]), quantizer.encode(np.ones(5), np.random.default_rng(0))], 4
        )


@pytest.mark.parametrize(("name", "extra"), [("fedogd", {}), ("ofedavg", {"participation": 0.5})])
def test_an_upload_of_factors_costs_and_means_its_dense_rows(name, extra):
    rng = np.random.default_rng(2)
    learner = global_learner(name, dim=D, outputs=3, loss="softmax", n_clients=K, **extra)
    features, label = rng.normal(size=(K, D)), rng.integers(3, size=K).astype(float)
    up = learner.client().observe(1, features, 0.0, label)
    rows = up.body.rows()
    assert up.bits == 32 * 3 * D
    assert rows.shape == (len(up.who), 3 * D)
    servers = [learner.server(), learner.server()]
    for server, body in zip(servers, (up.body, rows), strict=True):
        server.receive(replace(up, body=body))
        server.step(1)
    assert np.abs(servers[0].weights).max() > 0.01
    assert servers[0].weights == pytest.approx(servers[1].weights, abs=1e-12)
    features[:] = 9  # an upload on its way does not depend on what the caller does next
    assert (up.body.rows() == rows).all()


def test_clients_without_a_delay_share_one_model_after_a_synchronisation(stream, run):
    """Told apart from K equal copies only by the memory that it takes."""
    learner = global_learner("fedomd", dim=D, n_clients=K, sync=2)
    rounds, _ = run(learner, stream(5, K, D))
    assert [r.weights.strides[0] == 0 for r in rounds] == [True, False, True, False, True]

"""The fair table: peers against their definitions, the choice of hyperparameters, and the tests behind its verdicts."""

import csv
from dataclasses import replace

import numpy as np
import pytest

from libsvm_tasks.task_replay import dataset
from libsvm_tasks.tasks import paper_task
from research.fair import averaging, table
from research.fair.cells import Tuning, choose, held_out, key, tune
from research.fair.learned_prior import SharedPrior, client, server
from research.fair.methods import METHODS, accuracy, mean_of, reshuffled
from research.fair.second_order import Ridge, counts, with_constant


@pytest.fixture(scope="module")
def task():
    return paper_task(dataset("digits"), 4, seed=1, local_features="all", n_rounds=120)


def sums_of(task, upto):
    """Return each client's rows, as often as they came up, with the constant."""
    rows, unit = with_constant(task.features)
    seen = [order[:upto] for order in task.order]
    return [x[s] for x, s in zip(rows, seen, strict=True)], [y[s] for y, s in zip(task.label, seen, strict=True)], unit


@pytest.mark.parametrize("delay", [0, 50])
def test_second_order_residuals_are_the_joint_minimiser(task, delay):
    """w minimises over all rows that have arrived with every u_i free; then each u_i is fitted to all of its rows."""
    local_ridge, global_ridge = 3.0, 0.5
    shared, own = Ridge(task, task.global_features, delay).fedres(local_ridge, global_ridge)
    rows, label, unit = sums_of(task, task.order.shape[1] - delay)
    dim, columns = rows[0].shape[1], np.append(task.global_features, rows[0].shape[1] - 1)
    size = len(columns)
    total = np.zeros((size + len(rows) * dim,) * 2)
    target = np.zeros(len(total))
    for i, (x, y) in enumerate(zip(rows, label, strict=True)):
        joint = np.zeros((len(x), len(total)))
        joint[:, :size] = x[:, columns]
        joint[:, size + i * dim : size + (i + 1) * dim] = x
        total += joint.T @ joint
        target += joint.T @ y
    penalty = np.repeat([global_ridge * unit, local_ridge * unit], [size, len(rows) * dim])
    best = np.linalg.solve(total + np.diag(penalty), target)
    assert shared[columns] == pytest.approx(best[:size], abs=1e-8)
    if delay == 0:
        assert own == pytest.approx(best[size:].reshape(len(rows), dim), abs=1e-8)


def test_alone_and_central_are_ridge_regressions(task):
    ridge = Ridge(task, task.global_features, 0)
    rows, label, unit = sums_of(task, task.order.shape[1])
    eye = np.eye(rows[0].shape[1])
    expected = [np.linalg.solve(x.T @ x + 2 * unit * eye, x.T @ y) for x, y in zip(rows, label, strict=True)]
    assert ridge.alone(2.0) == pytest.approx(np.array(expected), abs=1e-8)
    x, y = np.concatenate(rows)[:, ridge.columns], np.concatenate(label)
    expected = np.linalg.solve(x.T @ x + 2 * unit * 4 * np.eye(len(ridge.columns)), x.T @ y)
    assert ridge.central(2.0)[ridge.columns] == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("diagonal", [False, True])
def test_a_clients_sums_are_the_posterior_moments(diagonal):
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(7, 4)), rng.normal(size=7), rng.normal(size=4)
    root = rng.normal(size=(4, 4))
    spread = np.diag([1.0, 2.0, 0.5, 3.0]) if diagonal else root @ root.T
    sums = client(x, y, SharedPrior(w, np.diag(spread) if diagonal else spread, 0.3))
    covariance = np.linalg.inv(np.linalg.inv(spread) + x.T @ x / 0.3)
    mean = covariance @ x.T @ (y - x @ w) / 0.3
    moment = covariance + np.outer(mean, mean)
    assert sums.second_moment == pytest.approx(np.diag(moment) if diagonal else moment)
    residual = y - x @ (w + mean)
    assert sums.squares == pytest.approx(residual @ residual + np.trace(x @ covariance @ x.T))
    marginal = np.linalg.inv(x @ spread @ x.T + 0.3 * np.eye(7))
    assert sums.gram == pytest.approx(x.T @ marginal @ x)
    assert sums.target == pytest.approx(x.T @ marginal @ y)


def test_round_trips_of_the_learned_prior_raise_the_likelihood():
    """EM without a prior: the marginal likelihood of all clients' labels never falls."""
    rng = np.random.default_rng(1)
    own = rng.normal(size=(30, 3)) * np.array([2.0, 0.5, 0.1])
    rows = rng.normal(size=(30, 8, 3))
    label = np.einsum("pnd,pd->pn", rows, own + np.array([1.0, 0.0, -1.0])) + 0.3 * rng.normal(size=(30, 8))

    def likelihood(shared):
        total = 0.0
        for x, y in zip(rows, label, strict=True):
            cov = x @ shared.spread @ x.T + shared.noise * np.eye(8)
            error = y - x @ shared.weights
            total -= np.linalg.slogdet(cov)[1] + error @ np.linalg.solve(cov, error)
        return total

    start = 1e6 * np.eye(3)  # as good as no penalty on w
    shared, likelihoods = SharedPrior(np.zeros(3), np.eye(3), 1.0), []
    for _ in range(8):
        shared = server([client(x, y, shared) for x, y in zip(rows, label, strict=True)], start, 0.0)
        likelihoods.append(likelihood(shared))
    assert (np.diff(likelihoods) > -1e-6).all()
    assert np.diag(shared.spread)[0] > 10 * np.diag(shared.spread)[2]


def test_without_delay_federated_averaging_is_fedavg(task):
    """Own steps of AdaGrad, and every tenth round everybody goes on from the mean."""
    rate, (rows, _) = 0.3, with_constant(task.features)
    weights, squares = np.zeros((4, rows.shape[2])), np.zeros((4, rows.shape[2]))
    for t in range(task.order.shape[1]):
        for i in range(4):
            x, y = rows[i, task.order[i, t]], task.label[i, task.order[i, t]]
            gradient = 2 * (np.clip(weights[i] @ x, -1, 1) - y) * x
            squares[i] += gradient**2
            weights[i] -= rate * gradient / np.sqrt(squares[i] + 1e-300)
        if (t + 1) % averaging.PERIOD == 0:
            weights[:] = weights.mean(axis=0)
    models = averaging.fedavg(task, rate, 0)
    assert models.fedavg == pytest.approx(weights, abs=1e-9)
    assert models.shared == pytest.approx(weights[0], abs=1e-9)


def test_ditto_and_apfl_lie_between_the_shared_model_and_a_client_alone(task):
    """λ = 0 and α = 1 learn alone; a large λ keeps a client at the shared model."""
    free, bound = (averaging.ditto(task, 0.3, 0, pull).personal for pull in (0.0, 1e4))
    assert averaging.apfl(task, 0.3, 0, 1.0).personal == pytest.approx(free, abs=1e-9)
    shared = averaging.fedavg(task, 0.3, 0).shared
    assert np.linalg.norm(bound - shared) < np.linalg.norm(free - shared)
    single = replace(task, features=task.features[:1], label=task.label[:1], order=task.order[:1])
    alone = averaging.ditto(single, 0.3, 0, 0.0).personal
    assert averaging.fedavg(single, 0.3, 0).fedavg == pytest.approx(alone, abs=1e-9)


def test_a_late_average_loses_nobodys_steps(task):
    """With equal delays a client's model is the average made a round trip ago, and its own steps since."""
    models = averaging.fedavg(task, 0.3, 35)
    assert np.abs(models.fedavg - averaging.fedavg(task, 0.3, 0).fedavg).max() > 1e-3
    never = averaging.fedavg(task, 0.3, 10_000)
    assert not never.shared.any()
    assert never.fedavg == pytest.approx(averaging.ditto(task, 0.3, 0, 0.0).personal, abs=1e-9)


def test_rows_set_aside_are_no_training_rows(task):
    inner = held_out(task, 7)
    n = task.label.shape[1] // 2
    assert inner.test_label.shape == (4, 2 * (n // 5))
    for i in range(4):
        train, test, every = (
            {row.tobytes() for row in part} for part in (inner.features[i], inner.test_features[i], task.features[i])
        )
        assert not train & test
        assert train | test == every
        assert (inner.test_label[i] == 1).sum() == n // 5
    assert counts(inner.order, 2 * (n - n // 5), 120).sum() == 4 * 120
    other = reshuffled(task, 7)
    assert counts(other.order, 2 * n, 120).tolist() == counts(task.order, 2 * n, 120).tolist()
    assert (other.order != task.order).any()


def test_the_choice_is_the_best_on_the_rows_set_aside_and_one_rule_for_all():
    rates = len(METHODS["independent"].choices)
    piece = {
        key(name, delay): [[0.5] * (1 + rates) for _ in method.choices]
        for name, method in METHODS.items()
        for delay in ((0, 80) if method.delayed else (0,))
    }
    piece[key("independent", 0)][2][0] = 0.8
    piece[key("ditto", 80)][4][1 + 2] = 0.9  # with the own model of the rate that Independent chooses
    piece[key("ditto", 0)][4][1 + 1] = 0.9  # with one of another rate, which is not offered
    chosen = {(one.method, one.delay): one for one in choose([piece, piece], (0, 80))}
    assert chosen["independent", 80].choice == METHODS["independent"].choices[2]
    assert (chosen["ditto", 80].choice, chosen["ditto", 80].alone) == (METHODS["ditto"].choices[4], 1.0)
    assert (chosen["ditto", 0].choice, chosen["ditto", 0].alone) == (METHODS["ditto"].choices[0], 0.0)


def test_a_mean_counts_both_within_the_labels():
    one, other = np.array([[9.0, -0.2]]), np.array([[-0.5, 0.4]])
    assert mean_of(one, other) == pytest.approx(np.array([[0.25, 0.1]]))
    assert accuracy(mean_of(one, other), np.array([[1.0, -1.0]])) == 0.5


def test_holm_steps_down_from_the_smallest_p_value():
    assert table.holm([0.01, 0.04, 0.03, 0.005], 0.05).tolist() == [True, False, False, True]
    assert table.holm([0.04], 0.05).tolist() == [True]
    assert table.holm([0.03, 0.03], 0.05).tolist() == [False, False]


def test_a_paired_interval_is_students():
    from scipy import stats

    differences = np.random.default_rng(0).normal(0.3, 1, 12)
    mean, low, high, p = table.paired(differences)
    expected = stats.ttest_1samp(differences, 0)
    assert (mean, p) == (pytest.approx(differences.mean()), pytest.approx(expected.pvalue))
    assert (low, high) == pytest.approx(tuple(expected.confidence_interval()))
    assert table.paired(np.zeros(4))[3] == 1.0


def test_the_whole_table_on_digits_resumes_and_is_written(tmp_path, monkeypatch):
    few = {name: replace(method, choices=method.choices[:2]) for name, method in METHODS.items()}
    for name, method in few.items():
        monkeypatch.setitem(METHODS, name, method)
    design = table.Design(("digits",), (3,), (0, 40), rollouts=2, tuning_rows=1)
    calls = []
    cells = table.run(design, jobs=1, journal=tmp_path / "j", progress=lambda done, of: calls.append((done, of)))
    assert calls[-1] == (4, 4)
    again = table.run(design, jobs=1, journal=tmp_path / "j", progress=None)
    assert [cell.accuracy["ditto"].tolist() for cell in cells] == [cell.accuracy["ditto"].tolist() for cell in again]
    both = replace(design, clients=(3, 4))  # of which 4 were never run
    some = table.run(both, jobs=1, journal=tmp_path / "j", progress=None, finished=True)
    assert [(cell.clients, cell.delay) for cell in some] == [(3, 0), (3, 40)]
    table.write(some, both, tmp_path)
    assert "Not run, each at delays 0, 40: digits with 4 clients." in (tmp_path / "fair.md").read_text()
    comparisons = table.write(cells, design, tmp_path)
    assert "Not run" not in (tmp_path / "fair.md").read_text()
    assert {one.verdict for one in comparisons} <= {"ahead", "level", "behind"}
    with (tmp_path / "fair-cells.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(METHODS) * 2
    assert "| fedres learned prior |" in (tmp_path / "fair.md").read_text()
    work = Tuning("digits", 3, (0,), 5, "x")
    assert tune(work) == tune(work)

"""Federated Residual Learning, appendix C: figures 6 and 7, where fictitious play gets stuck.

[FedRes] A. Agarwal, J. Langford, C.-Y. Wei. Federated Residual Learning. 2020.

The paper averages 50 rollouts; here 8, as the bands are narrow already. Its step η = 1 diverges, so SGD has η = 0.02.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt

from fedres import Example, Federation, LocalLeastSquares, LocalSGD, Site, global_learner
from fedres.checks import Array
from libsvm_tasks import grid
from libsvm_tasks.plots import lines, save
from research.reproduce.curves import band, log_spaced, mean_error, rows, text
from research.reproduce.figure import Claim, Figure, Run, judged, verdict

START, BEST = np.array([1.0, 0.0]), np.array([0.0, 1.0])  # w_1 and w_*, of both models
TITLES = {"sgd": "FedRes.SGD", "erm": "FedRes.ERM", "fictitious": "fictitious play"}
COLOURS = {"sgd": "tab:green", "erm": "tab:blue", "fictitious": "tab:red"}


class AppendixC(NamedTuple):
    """One rollout of one algorithm."""

    algorithm: str
    n_rounds: int
    seed: int
    step_size: float = 0.02  # η of SGD


def play(cell: AppendixC) -> dict[str, Any]:
    """Return the average loss so far, w^g and the largest loss of all, the first two at ``log_spaced`` rounds."""
    federation = Federation(*_contender(cell), local_timing="immediate")
    losses, models = np.empty(cell.n_rounds), np.empty((cell.n_rounds, 2))
    for t, example in enumerate(_examples(cell)):
        played = federation.play(example)
        losses[t], models[t] = played.loss[0], played.weights[0]
    points = log_spaced(cell.n_rounds)
    average = losses.cumsum()[points - 1] / points
    return {"loss": average.tolist(), "weights": models[points - 1].T.tolist(), "largest": float(losses.max())}


def _examples(cell: AppendixC) -> list[Example]:
    a, b, noise = np.random.default_rng(cell.seed).normal(size=(3, cell.n_rounds))
    shared, own = np.stack([a + 0.5 * noise, b], axis=1), np.stack([1 - a, 1 - b], axis=1)
    return [Example(shared[t : t + 1], np.ones(1), own[t : t + 1]) for t in range(cell.n_rounds)]


def _contender(cell: AppendixC) -> tuple[Any, list[Site]]:
    """Return the algorithm's global half, and a site with its local half."""
    one, eta = np.arange(1), cell.step_size
    if cell.algorithm == "sgd":
        learner = global_learner("fedres-sgd", dim=2, start=START, step_size=eta)
        return learner, [Site(one, local=LocalSGD(2, start=START, step_size=eta))]
    if cell.algorithm == "erm":
        return global_learner("fedres-erm", dim=2, local_dim=2, start=START, local_start=START), [Site(one)]
    return global_learner("fictitious-play", dim=2, start=START), [Site(one, local=LocalLeastSquares(2, start=START))]


def _rollouts(run: Run) -> tuple[Array, dict[str, Array], dict[str, Array]]:
    """Return the rounds looked at, and by algorithm the losses (seeds, points) and w^g (seeds, 2, points)."""
    seeds, n_rounds = range(3 if run.quick else 8), 6000 if run.quick else 20_000
    cells = [AppendixC(name, n_rounds, seed) for name in TITLES for seed in seeds]
    results = grid.run(play, cells, jobs=run.jobs, journal=run.journal, progress=run.progress)
    by_name = {name: results[k * len(seeds) : (k + 1) * len(seeds)] for k, name in enumerate(TITLES)}
    losses = {name: np.array([piece["loss"] for piece in pieces]) for name, pieces in by_name.items()}
    models = {name: np.array([piece["weights"] for piece in pieces]) for name, pieces in by_name.items()}
    return log_spaced(n_rounds), losses, models


def average_loss(run: Run) -> list[Claim]:
    """Figure 6: the average loss over time of the three algorithms."""
    name = "fedres-6"
    points, losses, _ = _rollouts(run)
    figure, axes = plt.subplots(figsize=(5.6, 3.8))
    series = {TITLES[key]: band(points, runs) for key, runs in losses.items()}
    styles = {TITLES[key]: {"color": colour, "markevery": [-1]} for key, colour in COLOURS.items()}
    lines(axes, series, "round t", f"average loss so far, mean ± s.e. of {len(losses['sgd'])} rollouts", styles)
    axes.set(xscale="log", yscale="log", title="Appendix C: η = 0.02 for SGD")
    save(figure, run.picture(name))
    run.write_csv(name, [row for key in TITLES for row in rows({"algorithm": key}, "round", points, losses[key])])
    last = {key: runs[:, -1] for key, runs in losses.items()}
    stuck, sgd, erm = (mean_error(last[key])[0] for key in ("fictitious", "sgd", "erm"))
    short = [AppendixC("sgd", 10, seed, 1.0) for seed in range(10)]
    largest = [piece["largest"] for piece in grid.run(play, short, journal=run.journal)]
    return [
        judged(
            "fedres-6/fictitious",
            f"average loss at T = {points[-1]}: "
            + "; ".join(f"{TITLES[key]} {text(values)}" for key, values in last.items()),
            verdict([stuck > 5 * sgd, stuck > 5 * erm]),
        ),
        judged(
            "fedres-6/step",
            f"it diverges; largest loss: median {np.median(largest):.1g}, least {min(largest):.1g} of 10 rollouts",
            verdict([value < 100 for value in largest]),
        ),
    ]


def components(run: Run) -> list[Claim]:
    """Figure 7: the two components of w^g over time, a panel for each algorithm."""
    name = "fedres-7"
    points, _, models = _rollouts(run)
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True)
    for panel, (key, runs) in zip(axes, models.items(), strict=True):
        series = {f"component {c + 1}, to {goal:.0f}": band(points, runs[:, c]) for c, goal in enumerate(BEST)}
        styles = dict(zip(series, ({"color": c, "markevery": [-1]} for c in ("tab:blue", "tab:red")), strict=True))
        lines(panel, series, "round t", "$w^g_t$" if key == "sgd" else "", styles)
        panel.set(xscale="log", title=TITLES[key], ylim=(-0.3, 1.3))
        panel.get_legend().remove()
    axes[0].legend(fontsize="small", loc="center left")
    save(figure, run.picture(name))
    table = []
    for key, runs in models.items():
        for c in range(2):
            table += rows({"algorithm": key, "component": c + 1}, "round", points, runs[:, c])
    run.write_csv(name, table)
    distance = {key: np.linalg.norm(runs[:, :, -1] - BEST, axis=1) for key, runs in models.items()}
    listed = "; ".join(f"{TITLES[key]} {text(values)}" for key, values in distance.items())
    near, far = [distance[key].max() < 0.1 for key in ("sgd", "erm")], distance["fictitious"].min() > 0.1
    return [
        judged(
            "fedres-7/optimum",
            f"distance of w^g to w_* at T = {points[-1]}: {listed}",
            verdict([*near, far]),
        )
    ]


FIGURES = [
    Figure("fedres-6", "FedRes", "average loss of SGD, ERM and fictitious play (appendix C)", average_loss),
    Figure("fedres-7", "FedRes", "the global model of SGD, ERM and fictitious play (appendix C)", components),
]

"""Dynamic Federated Learning: figure 1a to 1d, the mean-square deviation (MSD) from the minimiser that walks away.

[DynFed] E. Rizk, S. Vlaski, A. H. Sayed. Dynamic Federated Learning. 2020.

The paper leaves open N_k (20 here), ρ (0.1), the start (0) and μ of figure 1d (0.1). Features are drawn once and keep,
labels follow the walking model: with features anew in every iteration the minimiser of eq. 29 would jump by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from scipy.special import expit

from fedres import Example, Federation, global_learner
from fedres.checks import Array
from libsvm_tasks import grid
from libsvm_tasks.plots import Series, save
from libsvm_tasks.streams import random_walk
from research.reproduce.curves import band, draw, mean_error, rows, text
from research.reproduce.figure import Claim, Figure, Run, Verdict, judged, verdict

AGENTS, ACTIVE, SAMPLES, RHO = 20, 7, 20, 0.1  # K, L, N_k, ρ
TEX = {"μ": "μ", "σ_c²": r"$\sigma_c^2$", "σ_q²": r"$\sigma_q^2$"}
PASSES = 50  # in one cell, side by side: the same agents take part, on data of their own


class Walk(NamedTuple):
    """One cell: PASSES passes from w_0 = 0 with one setting."""

    mu: float
    c_variance: float  # σ_c²
    q_variance: float  # σ_q²
    n_iterations: int
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Risk:
    """A loss for models whose prediction is the risk itself."""

    curvature: float = 0.0

    def value(self, prediction: Array, label: Array) -> Array:
        return prediction

    def slope(self, prediction: Array, label: Array) -> Array:
        return np.ones_like(prediction)

    def bend(self, prediction: Array) -> Array:
        return np.zeros_like(prediction)

    def check(self, label: Array) -> None:
        """Labels are inside the features."""


@dataclass(frozen=True, slots=True)
class LogisticRisks:
    """The sum of PASSES separate risks ln(1 + exp(−γh·w)) + ρ‖w‖² [DynFed, eq. 29]; x holds each one's γh."""

    features: int = 2 * PASSES
    outputs: int = 0
    dim: int = 2 * PASSES

    def predict(self, weights: Array, features: Array) -> Array:
        own, margin = self._parts(weights, features)
        result: Array = (np.logaddexp(0, -margin) + RHO * (own**2).sum(axis=-1)).sum(axis=-1)
        return result

    def gradient(self, weights: Array, features: Array, slope: Array) -> Array:
        own, margin = self._parts(weights, features)
        each = 2 * RHO * own - expit(-margin)[..., None] * features.reshape(-1, PASSES, 2)
        return np.asarray(slope[:, None] * each.reshape(-1, self.dim))

    def _parts(self, weights: Array, features: Array) -> tuple[Array, Array]:
        own = weights.reshape(*weights.shape[:-1], PASSES, 2)
        return own, (own * features.reshape(-1, PASSES, 2)).sum(axis=-1)


def play(cell: Walk) -> list[list[float]]:
    """Return each pass's ‖w_i − w_i°‖² at some iterations, (passes, points)."""
    rng, walk = np.random.default_rng(cell.seed).spawn(2)
    truth = random_walk(rng.normal(size=2 * PASSES), cell.n_iterations, cell.q_variance, walk)  # w_i*
    shift = np.sqrt(cell.c_variance) * rng.normal(size=(AGENTS, PASSES, 2))  # c_k
    deviation = np.sqrt(rng.uniform(0.5, 1.5, size=(AGENTS, 1, 1)))
    features = deviation * rng.normal(size=(SAMPLES, AGENTS, PASSES, 2))
    learner = global_learner(
        "dynamic-fedavg",
        model=LogisticRisks(),
        loss=Risk(),
        n_clients=AGENTS,
        step_size=cell.mu,
        participants=ACTIVE,
        batch=rng.integers(10, 21, AGENTS),
        epochs=rng.integers(1, 11, AGENTS),
        buffer=SAMPLES,
        period=SAMPLES,
        seed=cell.seed,
    )
    federation, distances = Federation(learner), []
    points = set(iterations(cell.n_iterations).tolist())
    for i, model in enumerate(truth.reshape(-1, PASSES, 2), start=1):
        score = (features * (model + shift)).sum(axis=-1, keepdims=True)
        signed = np.where(score < 0, -features, features)  # γh
        if i == 1:
            goal = _minimisers(signed)
            distances.append((goal**2).sum(axis=1))  # w_0 = 0
        for sample in signed:
            federation.play(Example(sample.reshape(AGENTS, -1), np.zeros(AGENTS)))
        if i in points:
            goal = _minimisers(signed) if cell.q_variance else goal
            distances.append(((federation.server.weights.reshape(PASSES, 2) - goal) ** 2).sum(axis=1))
    result: list[list[float]] = np.transpose(distances).tolist()
    return result


def iterations(last: int) -> Array:
    """Return the iterations to look at: the first 20, and 60 evenly spaced."""
    result: Array = np.union1d(np.arange(21), np.linspace(0, last, 61).round().astype(np.int64))
    return result


def _minimisers(signed: Array) -> Array:
    """Return w° of the mean risk of each pass, (PASSES, 2), from γh, by Newton's method on all at once."""
    x = signed.reshape(-1, PASSES, 2).swapaxes(0, 1)
    weights = np.zeros((PASSES, 2))
    for _ in range(12):
        chance = expit(-np.einsum("pnd,pd->pn", x, weights))
        gradient = 2 * RHO * weights - np.einsum("pn,pnd->pd", chance, x) / x.shape[1]
        bent = (chance * (1 - chance))[..., None] * x
        hessian = 2 * RHO * np.eye(2) + bent.swapaxes(1, 2) @ x / x.shape[1]
        weights -= np.linalg.solve(hessian, gradient[..., None])[..., 0]
    return weights


Setting = tuple[float, float, float]  # μ, σ_c², σ_q²


class Curves(NamedTuple):
    """The MSD of every pass, (passes, points), by what was varied."""

    points: Array
    msd: dict[float, Array]

    def last(self) -> dict[float, Array]:
        """Return each pass's mean over the last quarter of the iterations."""
        late = self.points >= 0.75 * self.points[-1]
        return {value: runs[:, late].mean(axis=1) for value, runs in self.msd.items()}

    def halved(self) -> dict[float, Array]:
        """Return the iterations each pass takes to halve its MSD, interpolated."""
        return {value: np.array([_first_half(self.points, run) for run in runs]) for value, runs in self.msd.items()}


def _first_half(points: Array, msd: Array) -> float:
    half = msd < msd[0] / 2
    if not half.any():
        return float(points[-1])
    k = int(half.argmax())
    fall = np.log(msd[k - 1] * 2 / msd[0]) / np.log(msd[k - 1] / msd[k])  # of the way from point k − 1 to k
    return float(points[k - 1] + fall * (points[k] - points[k - 1]))


def _measure(run: Run, name: str, settings: dict[float, Setting], n_iterations: int) -> Curves:
    """Return the curves, and write them down."""
    cells = [Walk(*setting, n_iterations) for setting in settings.values()]
    results = grid.run(play, cells, jobs=run.jobs, journal=run.journal, progress=run.progress)
    msd = np.array(results)
    curves = Curves(iterations(n_iterations), dict(zip(settings, msd, strict=True)))
    table = []
    for (mu, c_variance, q_variance), runs in zip(settings.values(), msd, strict=True):
        head = {"mu": mu, "c_variance": c_variance, "q_variance": q_variance}
        table += rows(head, "iteration", curves.points, runs)
    run.write_csv(name, table)
    return curves


def _draw(run: Run, name: str, symbol: str, curves: Curves, title: str) -> None:
    figure, axes = plt.subplots(figsize=(5.4, 3.8))
    series = {f"{TEX[symbol]} = {value:g}": decibels(curves.points, runs) for value, runs in curves.msd.items()}
    n_passes = len(next(iter(curves.msd.values())))
    draw(axes, series, "iteration i", f"MSD in dB, mean ± s.e. of {n_passes} passes")
    axes.set_title(title)
    save(figure, run.picture(name))


def decibels(x: Array, runs: Array) -> Series:
    """Return 10 log10 of the mean over passes, with its standard error (the delta method)."""
    _, mean, error = (np.array(values) for values in band(x, runs))
    return Series(list(x), (10 * np.log10(mean)).tolist(), (10 / np.log(10) * error / mean).tolist())


def _listed(symbol: str, values: dict[float, Array]) -> str:
    lines = {value: decibels(np.zeros(1), runs[:, None]) for value, runs in values.items()}
    return "; ".join(f"{symbol} = {value:g}: {line.y[0]:.1f} ± {line.error[0]:.1f}" for value, line in lines.items())


def _counts(symbol: str, values: dict[float, Array]) -> str:
    return "; ".join(f"{symbol} = {value:g}: {text(counts)}" for value, counts in values.items())


def _rises(values: dict[float, Array]) -> Verdict:
    """Judge that the MSD rises from each setting to the next, pass by pass."""
    gains = [mean_error(np.log(higher) - np.log(lower)) for lower, higher in pairwise(values.values())]
    return verdict([gain > 2 * error for gain, error in gains])


def stationary(run: Run) -> list[Claim]:
    """Figure 1a: MSD over time for several μ, nothing drifts."""
    name, steps = "dynfed-1a", (0.3, 1.0, 3.0) if run.quick else (0.01, 0.1, 1.0)
    curves = _measure(run, name, {mu: (mu, 0.1, 0.0) for mu in steps}, 40 if run.quick else 1900)
    _draw(run, name, "μ", curves, f"Stationary: {TEX['σ_q²']} = 0, {TEX['σ_c²']} = 0.1")
    last, halved = curves.last(), curves.halved()
    falls = [mean_error(slow - fast) for slow, fast in pairwise(halved.values())]
    return [
        judged("dynfed-1a/msd", "final MSD in dB " + _listed("μ", last), _rises(last)),
        judged(
            "dynfed-1a/speed",
            "iterations to halve the MSD " + _counts("μ", halved),
            verdict([gain > 2 * error for gain, error in falls]),
        ),
    ]


def best_step(run: Run) -> list[Claim]:
    """Figure 1b: final MSD against μ under drift."""
    name, steps = "dynfed-1b", (0.1, 1.0, 5.0) if run.quick else (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 5.0)
    last = _measure(run, name, {mu: (mu, 0.1, 0.01) for mu in steps}, 30 if run.quick else 200).last()
    figure, axes = plt.subplots(figsize=(5.4, 3.8))
    series = decibels(np.array(steps), np.array(list(last.values())).T)
    draw(axes, {"dynamic FedAvg": series}, "step size μ", f"final MSD in dB, mean ± s.e. of {len(last[1.0])} passes")
    axes.set(xscale="log", title=f"Drift: {TEX['σ_q²']} = 0.01, {TEX['σ_c²']} = 0.1")
    axes.axvline(0.1, color="grey", linestyle=":", label="the paper's best")
    axes.legend(fontsize="small")
    save(figure, run.picture(name))
    best = min(last, key=lambda mu: last[mu].mean())
    ends = [mean_error(np.log(last[mu]) - np.log(last[best])) for mu in (steps[0], steps[-1])]
    return [
        judged(
            "dynfed-1b/inside",
            "final MSD in dB " + _listed("μ", last),
            verdict([gain > 2 * error for gain, error in ends]),
        ),
        judged("dynfed-1b/best", f"{best:g} of {', '.join(map('{:g}'.format, steps))}", verdict([best == 0.1])),
    ]


def over_spread(run: Run) -> list[Claim]:
    """Figure 1c: MSD over time for several σ_c²."""
    mu = 0.5 if run.quick else 0.01
    settings = {variance: (mu, variance, 0.0) for variance in (0.01, 0.1, 1.0)}
    return _over_variances(run, "dynfed-1c", "σ_c²", settings, 40 if run.quick else 1900)


def over_drift(run: Run) -> list[Claim]:
    """Figure 1d: MSD over time for several σ_q²."""
    mu = 0.3 if run.quick else 0.1
    settings = {variance: (mu, 0.1, variance) for variance in (0.0001, 0.001, 0.01)}
    return _over_variances(run, "dynfed-1d", "σ_q²", settings, 30 if run.quick else 300)


def _over_variances(run: Run, name: str, symbol: str, settings: dict[float, Setting], n_iterations: int) -> list[Claim]:
    curves = _measure(run, name, settings, n_iterations)
    mu, c_variance, q_variance = next(iter(settings.values()))
    other, fixed = ("σ_q²", q_variance) if symbol == "σ_c²" else ("σ_c²", c_variance)
    _draw(run, name, symbol, curves, f"μ = {mu:g}, {TEX[other]} = {fixed:g}")
    last, halved = curves.last(), curves.halved()
    least, *_, most = halved.values()
    change, error = mean_error(most - least)
    return [
        judged(f"{name}/msd", f"final MSD in dB at μ = {mu:g}: " + _listed(symbol, last), _rises(last)),
        judged(
            f"{name}/speed",
            f"{_counts(symbol, halved)}; largest − least {change:+.2g} ± {error:.1g}",
            verdict([abs(change) <= 2 * error]),
        ),
    ]


FIGURES = [
    Figure("dynfed-1a", "DynFed", "deviation over time for several steps μ, stationary", stationary),
    Figure("dynfed-1b", "DynFed", "final deviation over the step μ, under drift", best_step),
    Figure("dynfed-1c", "DynFed", "deviation over time for several σ_c²", over_spread),
    Figure("dynfed-1d", "DynFed", "deviation over time for several σ_q²", over_drift),
]

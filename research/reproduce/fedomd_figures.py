"""Online Federated Learning: figure 1, and the rate for convex losses.

[FedOMD] A. Mitra, H. Hassani, G. J. Pappas. Online Federated Learning. 2021.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt

from fedres import Ball, Example, Federation, Logistic, Squared, bounds, global_learner, regret, step_sizes
from fedres.checks import Array
from fedres.comparators import best_fixed
from libsvm_tasks import grid
from libsvm_tasks.plots import save
from libsvm_tasks.task_replay import standard_error
from research.reproduce.curves import band, draw, log_log_slope, log_spaced, mean_error, rows, text
from research.reproduce.figure import Claim, Figure, Run, judged, verdict

M = 20  # m, clients
LOG_SLOPE = 2.125  # dR/d ln T at τ = 1: ½(4 + 5/m), half the second moment of a round's mean target


class Section7(NamedTuple):
    """One run of section VII."""

    period: int
    participants: int
    n_rounds: int
    seed: int


def play_section_7(cell: Section7) -> list[float]:
    """Return the regret at ``log_spaced`` horizons: X = [−3, 3], losses ½(x ∓ a)² in turn, a ~ N(2, variance 5)."""
    rng = np.random.default_rng(cell.seed)
    sign = np.where(np.arange(1, cell.n_rounds + 1) % 2 == 0, 1.0, -1.0)
    target = sign[:, None] * rng.normal(2, np.sqrt(5), size=(cell.n_rounds, M))
    learner = global_learner(
        "fedomd",
        dim=1,
        n_clients=M,
        loss=Squared(0.5),
        step_size=step_sizes.fedomd_strongly_convex(1.0),
        mirror_map=Ball(3.0),
        sync=cell.period,
        participants=None if cell.participants == M else cell.participants,
        seed=cell.seed,
    )
    federation, one = Federation(learner), np.ones((M, 1))
    models = np.array([federation.play(Example(one, y)).weights[:, 0] for y in target])
    mean = target.mean(axis=1)  # ℓ_t(x) = ½(x − mean)² + what no x can change
    paid = np.cumsum(((models - mean[:, None]) ** 2).mean(axis=1) / 2)
    count, total, squares = np.arange(1, cell.n_rounds + 1), np.cumsum(mean), np.cumsum(mean**2)
    best = np.clip(total / count, -3, 3)
    curve = paid - (count * best**2 - 2 * best * total + squares) / 2
    return [float(value) for value in curve[log_spaced(cell.n_rounds) - 1]]


def over_periods(run: Run) -> list[Claim]:
    """Figure 1, left: regret against T for several τ."""
    name = "fedomd-1-left"
    curves = _curves(run, name, "τ", {tau: (tau, M) for tau in ((1, 10, 50) if run.quick else (1, 5, 10, 20, 50))})
    points = log_spaced(_horizon(run))
    slope, error = mean_error(_log_slope(points, curves[1], 16, 1))
    return [
        judged("fedomd-1-left/period", *_rises("τ", curves)),
        judged("fedomd-1-left/log", *_logarithmic("τ", points, curves)),
        judged(
            "fedomd-1-left/slope",
            f"{slope:.3f} ± {error:.3f}",
            verdict([abs(slope - LOG_SLOPE) < 0.05 * LOG_SLOPE + 2 * error]),
        ),
    ]


def over_participants(run: Run) -> list[Claim]:
    """Figure 1, right: regret against T at τ = 20 with K clients in each average."""
    name = "fedomd-1-right"
    curves = _curves(run, name, "K", {k: (20, k) for k in ((20, 5, 1) if run.quick else (20, 10, 5, 1))})
    return [
        judged("fedomd-1-right/clients", *_rises("K", curves)),
        judged("fedomd-1-right/log", *_logarithmic("K", log_spaced(_horizon(run)), curves)),
    ]


def _horizon(run: Run) -> int:
    return 1024 if run.quick else 8192


def _curves(run: Run, name: str, symbol: str, settings: Mapping[int, tuple[int, int]]) -> dict[int, Array]:
    """Draw the regret of each (τ, K), and return it, (seeds, points)."""
    seeds, n_rounds = range(6 if run.quick else 16), _horizon(run)
    cells = [Section7(*setting, n_rounds, seed) for setting in settings.values() for seed in seeds]
    results = grid.run(play_section_7, cells, jobs=run.jobs, journal=run.journal, progress=run.progress)
    curves = dict(zip(settings, np.array(results).reshape(len(settings), len(seeds), -1), strict=True))
    points = log_spaced(n_rounds)
    figure, axes = plt.subplots(figsize=(5.4, 3.8))
    series = {f"{symbol} = {value}": band(points, curve) for value, curve in curves.items()}
    draw(axes, series, "rounds T", f"regret $R_T$, mean ± s.e. of {len(seeds)} runs")
    axes.set_xscale("log")
    axes.set_title(f"FedOMD, m = {M} clients" + (", τ = 20" if symbol == "K" else ""))
    save(figure, run.picture(name))
    columns = {
        value: dict(zip(("period", "participants"), setting, strict=True)) for value, setting in settings.items()
    }
    run.write_csv(name, [row for value in settings for row in rows(columns[value], "rounds", points, curves[value])])
    return curves


def _rises(symbol: str, curves: Mapping[int, Array]) -> tuple[str, Any]:
    """Return the verdict on the claim that the final regret rises from each setting to the next, seed by seed."""
    last = {value: curve[:, -1] for value, curve in curves.items()}
    steps = [mean_error(higher - lower) for lower, higher in pairwise(last.values())]
    listed = "; ".join(f"{symbol} = {value}: {text(final)}" for value, final in last.items())
    return f"final R {listed}", verdict([gain > 2 * error for gain, error in steps])


def _logarithmic(symbol: str, points: Array, curves: Mapping[int, Array]) -> tuple[str, Any]:
    """Compare dR/d ln T over the last factor of 8 in T and over the 8 before: 1 for ln T, √8 for √T."""
    growth = {}
    for value, curve in curves.items():
        late, early = (_log_slope(points, curve, first, last) for first, last in ((8, 1), (64, 8)))
        ratio = late.mean() / early.mean()
        growth[value] = (ratio, standard_error(late - ratio * early) / early.mean())  # the delta method
    listed = "; ".join(f"{symbol} = {value}: {ratio:.2f} ± {error:.2f}" for value, (ratio, error) in growth.items())
    nearer = [ratio < 8**0.25 for ratio, _ in growth.values()]  # than to √T
    return f"dR/d ln T of T/8..T over that of T/64..T/8 (1 for ln T, 2.8 for √T): {listed}", verdict(nearer)


def _log_slope(points: Array, curves: Array, first: int, last: int) -> Array:
    """Return each seed's dR/d ln T from T/first to T/last."""
    used = (points >= points[-1] // first) & (points <= points[-1] // last)
    slopes: Array = np.polyfit(np.log(points[used]), curves[:, used].T, 1)[0]
    return slopes


class Convex(NamedTuple):
    """One run on convex losses."""

    n_rounds: int
    seed: int
    period: int = 2
    n_clients: int = 10
    dim: int = 3

    def constants(self) -> dict[str, Any]:
        return {"n_rounds": self.n_rounds, "diameter": np.sqrt(0.5), "lipschitz": 1.0, "period": self.period}


def play_convex(cell: Convex) -> float:
    """Return the regret on separable logistic labels: convex, and the best model of the unit ball is on its edge."""
    rng = np.random.default_rng(cell.seed)
    features = rng.normal(size=(cell.n_rounds, cell.n_clients, cell.dim))
    features /= np.linalg.norm(features, axis=2, keepdims=True)
    label = np.where(features[:, :, 0] > 0, 1.0, -1.0)
    learner = global_learner(
        "fedomd",
        dim=cell.dim,
        n_clients=cell.n_clients,
        loss="logistic",
        step_size=step_sizes.fedomd_convex(**cell.constants()),
        sync=cell.period,
        mirror_map=Ball(1.0),
    )
    federation = Federation(learner)
    models = np.array([federation.play(Example(x, y)).weights for x, y in zip(features, label, strict=True)])
    best = best_fixed(features.reshape(-1, cell.dim), label.ravel(), Logistic(), radius=1.0)
    return float(regret.mean_regret(models, features, label, best, Logistic())[-1])


def rate(run: Run) -> list[Claim]:
    """Theorem 1: regret under a bound in √T for convex losses.

    On these losses nearly all of it is the way to the edge of the ball, 1/η ∝ √T rounds.
    """
    name = "fedomd-rate"
    horizons = 2 ** np.arange(9, 12 if run.quick else 14)  # before that the model is still on its way to the edge
    seeds = range(3 if run.quick else 8)
    cells = [Convex(int(n_rounds), seed) for seed in seeds for n_rounds in horizons]
    results = grid.run(play_convex, cells, jobs=run.jobs, journal=run.journal, progress=run.progress)
    runs = np.array(results).reshape(len(seeds), -1)
    constants = [cell.constants() for cell in cells[: len(horizons)]]
    limit = np.array([bounds.fedomd_convex(**c, step_size=step_sizes.fedomd_convex(**c)) for c in constants])
    figure, axes = plt.subplots(figsize=(5.4, 3.8))
    draw(
        axes,
        {"FedOMD, τ = 2, m = 10": band(horizons, runs)},
        "rounds T",
        f"regret $R_T$, mean ± s.e. of {len(seeds)} runs",
    )
    axes.plot(horizons, limit, "k--", label="bound of theorem 1")
    axes.plot(horizons, runs.mean(axis=0)[-1] * np.sqrt(horizons / horizons[-1]), ":", color="grey", label="slope ½")
    axes.set(xscale="log", yscale="log", title="FedOMD on convex losses (logistic, separable labels)")
    axes.set_xticks(horizons, [str(n_rounds) for n_rounds in horizons])
    axes.set_xticks([], minor=True)
    axes.legend(fontsize="small")
    save(figure, run.picture(name))
    table = rows({"period": 2}, "rounds", horizons, runs)
    run.write_csv(name, [row | {"bound": f"{top:.5g}"} for row, top in zip(table, limit, strict=True)])
    slope, error = log_log_slope(horizons, runs)
    return [
        judged(
            "fedomd-rate/slope",
            f"log-log slope {slope:.3f} ± {error:.3f} for T = {horizons[0]}..{horizons[-1]}",
            verdict([0.4 < slope < 0.55]),
        ),
        judged(
            "fedomd-rate/bound",
            f"largest R/bound {(runs / limit).max():.3f} in {runs.size} runs",
            verdict([bool((runs < limit).all())]),
        ),
    ]


FIGURES = [
    Figure("fedomd-1-left", "FedOMD", "regret over T for several periods τ", over_periods),
    Figure("fedomd-1-right", "FedOMD", "regret over T for several numbers of participants, τ = 20", over_participants),
    Figure("fedomd-rate", "FedOMD", "the √T rate for convex losses", rate),
]

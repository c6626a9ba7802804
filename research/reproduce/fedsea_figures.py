"""FedSEA: the speed-up from more clients, and what takes it away. The paper has no figure of it: theorem 1 in numbers.

[FedSEA] H. Sahu, P. Jawanpuria, P. Sharma. FedSEA: Achieving Benefit of Parallelization in Federated Online Learning.
2026.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt

from fedres import Example, Federation, Squared, bounds, global_learner, step_sizes
from fedres.checks import Array
from libsvm_tasks import grid
from libsvm_tasks.plots import save
from research.reproduce.curves import band, draw, log_log_slope, rows, text
from research.reproduce.figure import Claim, Figure, Run, judged, verdict

NAME = "fedsea-speedup"
DISTANCE, SIGMA = 2.0, 6.0
SETTINGS = {"τ = 1, K̄² = 0": (1, 0.0), "τ = 1, K̄² = 18": (1, 6.0), "τ = 5, K̄² = 0": (5, 0.0)}  # period, swing


class Sea(NamedTuple):
    """One run on expected losses ½(x − c_t)², c_t = 2 ± swing in turn; samples are c_t plus noise of variance 36."""

    n_clients: int
    period: int
    swing: float
    n_rounds: int
    seed: int

    def constants(self) -> dict[str, Any]:
        """Return the theorem's constants: here K̄² = swing²/2, ζ̄² = 0 and L = 1."""
        return {
            "n_rounds": self.n_rounds,
            "n_clients": self.n_clients,
            "distance": DISTANCE,
            "smoothness": 1.0,
            "variance": SIGMA**2,
            "temporal": self.swing**2 / 2,
            "period": self.period,
        }

    def step_size(self) -> float:
        return step_sizes.fedsea_convex(**self.constants())

    def bound(self) -> float:
        return float(bounds.fedsea_convex(**self.constants(), spatial=0.0, step_size=self.step_size()))


def play(cell: Sea) -> float:
    """Return the regret on the expected losses."""
    rng = np.random.default_rng(cell.seed)
    centre = DISTANCE + cell.swing * np.where(np.arange(cell.n_rounds) % 2 == 0, 1.0, -1.0)
    sample = centre[:, None] + SIGMA * rng.normal(size=(cell.n_rounds, cell.n_clients))
    learner = global_learner(
        "fedsea",
        dim=1,
        n_clients=cell.n_clients,
        loss=Squared(0.5),
        step_size=cell.step_size(),
        period=cell.period,
    )
    federation, one = Federation(learner), np.ones((cell.n_clients, 1))
    models = np.array([federation.play(Example(one, y)).weights[:, 0] for y in sample])
    paid = ((models - centre[:, None]) ** 2).mean(axis=1) / 2
    return float((paid - (DISTANCE - centre) ** 2 / 2).sum())


def speed_up(run: Run) -> list[Claim]:
    """Regret against the number of clients M."""
    clients = np.array([1, 8, 64] if run.quick else [1, 2, 4, 8, 16, 32, 64])
    seeds, n_rounds = range(3 if run.quick else 6), 800 if run.quick else 4000
    cells = {
        name: [Sea(int(m), *setting, n_rounds, seed) for seed in seeds for m in clients]
        for name, setting in SETTINGS.items()
    }
    every = [cell for line in cells.values() for cell in line]
    results = grid.run(play, every, jobs=run.jobs, journal=run.journal, progress=run.progress)
    regret = dict(zip(cells, np.array(results).reshape(len(cells), len(seeds), -1), strict=True))
    limit = {name: np.array([cell.bound() for cell in line[: len(clients)]]) for name, line in cells.items()}
    _draw(run, clients, regret, n_rounds)
    table = []
    for name, (period, swing) in SETTINGS.items():
        lines = rows({"period": period, "temporal": swing**2 / 2}, "clients", clients, regret[name])
        table += [line | {"bound": f"{top:.6g}"} for line, top in zip(lines, limit[name], strict=True)]
    run.write_csv(NAME, table)
    return _claims(clients, regret, limit)


def _draw(run: Run, clients: Array, regret: dict[str, Array], n_rounds: int) -> None:
    figure, axes = plt.subplots(figsize=(5.6, 4))
    series = {name: band(clients, runs) for name, runs in regret.items()}
    n_runs = len(next(iter(regret.values())))
    draw(axes, series, "clients M", f"expected regret, mean ± s.e. of {n_runs} runs")
    first = next(iter(series.values())).y[0]
    axes.plot(clients, first / np.sqrt(clients), ":", color="grey", label="slope −½")
    axes.set(xscale="log", yscale="log", title=f"FedSEA: speed-up from more clients, T = {n_rounds}")
    axes.set_xticks(clients, [str(m) for m in clients])
    axes.set_xticks([], minor=True)
    axes.legend(fontsize="small")
    save(figure, run.picture(NAME))


def _claims(clients: Array, regret: dict[str, Array], limit: dict[str, Array]) -> list[Claim]:
    still, drifting, rare = regret.values()
    slope, error = log_log_slope(clients, still)
    flat, flat_error = log_log_slope(clients, drifting)
    late, late_error = log_log_slope(clients[clients >= 8], rare[:, clients >= 8])
    most = clients[-1]
    far, near = (runs[:, -1].mean() for runs in (rare, still))
    ratio = max(float((regret[name].mean(axis=0) / limit[name]).max()) for name in regret)
    return [
        judged(
            "fedsea-speedup/speedup",
            f"slope {slope:.3f} ± {error:.3f}",
            verdict([abs(slope + 0.5) < 0.05]),
        ),
        judged(
            "fedsea-speedup/temporal",
            f"slope {flat:.3f} ± {flat_error:.3f}",
            verdict([flat > -0.1]),
        ),
        judged(
            "fedsea-speedup/rare",
            f"slope {late:.3f} ± {late_error:.3f}; R at M = {most}: "
            f"{text(rare[:, -1])} at τ = 5, {text(still[:, -1])} at τ = 1",
            verdict([late > -0.25, bool(far > 2 * near)]),
        ),
        judged(
            "fedsea-speedup/bound",
            f"largest R/bound {ratio:.2f}",
            verdict([ratio < 1]),
        ),
    ]


FIGURES = [Figure(NAME, "FedSEA", "regret over the number of clients M (theorem 1)", speed_up)]

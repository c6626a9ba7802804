"""Tighter Regret Analysis and Optimization of Online Federated Learning: figures 2, 3 and 4.

[OFedIQ] D. Kwon, J. Park, S. Hong. Tighter Regret Analysis and Optimization of Online Federated Learning. 2023.

K = 1000 clients and the paper's random partition. Its CNN of 34,826 weights on mnist is a fully connected network of
34,990 here: what the figures compare, bits against accuracy, depends on the number of weights. Occupancy, air quality
and appliances have the paper's two hidden layers of 64, on as many features as our copies have, and a plain squared
loss. All features are used as they are, in [0, 1]. Over 300 rounds η is the paper's 0.01 for regression and 0.1 for
classification, where 0.01 would learn little in that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt

from fedres import Federation, Linear, Network, Softmax, Squared, global_learner, ofediq_parameters
from fedres.checks import Array
from libsvm_tasks import grid
from libsvm_tasks.data import Data
from libsvm_tasks.load import available, load
from libsvm_tasks.plots import Series, lines, save
from libsvm_tasks.streams import examples, online_partition
from libsvm_tasks.task_replay import standard_error
from research.reproduce.figure import Claim, Figure, Run, judged, verdict

CLIENTS, SEEDS, POINTS = 1000, 3, 25
PERIODS = (1, 2, 5, 10)  # L
DATASETS = ("mnist", "occupancy", "airquality", "appliances")
COLOURS = {"fedogd": "black", "ofediq": "tab:green", "ofedavg": "tab:blue", "fedomd": "tab:red"}
NAMES = {"fedogd": "FedOGD", "ofediq": "OFedIQ", "ofedavg": "OFedAvg", "fedomd": "FedOMD"}


class Method(NamedTuple):
    """A learner at ``gamma`` times the bits of dense gradients; OFedIQ's quantizer is algorithm 3's by default."""

    learner: str
    gamma: float = 1.0
    period: int = 1  # L of OFedIQ, at the same p/L
    quantizer: tuple[int, int] | None = None  # (s, b)

    @property
    def reduction(self) -> str:
        """The CCR."""
        return f"{1 - self.gamma:.0%}"


class Cell(NamedTuple):
    """One run: its partition, first weights and coins follow from the seed."""

    dataset: str
    method: Method
    n_rounds: int
    seed: int


class Curves(NamedTuple):
    """A method's runs: the metric up to each point of time, one row a seed."""

    metric: Array
    bits: float  # uplink, as a share of dense gradients


CurvesByMethod = Mapping[Method, Curves]

FEDOGD = Method("fedogd")
BEST = Method("ofediq", 0.01)
AVERAGED = Method("ofedavg", 0.01)
UNBLOCKED = Method("ofediq", 0.01, quantizer=(7, 1))
AT_COST = {gamma: tuple(Method(name, gamma) for name in ("ofediq", "ofedavg", "fedomd")) for gamma in (0.1, 0.01)}


def play(cell: Cell) -> dict[str, Any]:
    """Return the paper's Accuracy(t), or MSE(t) for regression, at ``points``; and the share of bits sent."""
    data = _data(cell.dataset)
    model, loss, step_size = model_of(data), Softmax(data.n_classes) if data.n_classes else Squared(), _step(data)
    start = model.start(np.random.default_rng(cell.seed)) if isinstance(model, Network) else None
    learner = global_learner(
        cell.method.learner,
        model=model,
        loss=loss,
        n_clients=CLIENTS,
        step_size=step_size,
        start=start,
        **hyperparameters(cell.method, model.dim, cell.seed),
    )
    federation = Federation(learner)
    index = online_partition(data, CLIENTS, cell.n_rounds, cell.seed)
    each = np.array([_metric(data, federation.play(example)) for example in examples(data, index)])
    running = np.cumsum(each) / np.arange(1, cell.n_rounds + 1)
    bits = federation.bits_up.mean() / (cell.n_rounds * 32 * model.dim)
    return {"metric": running[points(cell.n_rounds) - 1].tolist(), "bits": float(bits)}


def hyperparameters(method: Method, dim: int, seed: int) -> dict[str, Any]:
    """Return what makes a learner send ``gamma`` times the bits of dense gradients."""
    if method.learner == "ofediq":
        levels, blocks, chance = ofediq_parameters(method.gamma, dim)
        levels, blocks = method.quantizer or (levels, blocks)
        chance = min(1.0, chance * method.period)
        return {
            "participation": chance,
            "period": method.period,
            "levels": levels,
            "blocks": blocks,
            "seed": seed,
        }
    if method.learner == "ofedavg":
        return {"participation": method.gamma, "seed": seed}
    return {"sync": round(1 / method.gamma)} if method.learner == "fedomd" else {}


def model_of(data: Data) -> Network | Linear:
    """Return a model of the paper's size; softmax regression for digits."""
    n_features = data.features.shape[1]
    if data.name == "digits":
        return Linear(n_features, data.n_classes)
    return Network((n_features, 44, 10)) if data.name == "mnist" else Network((n_features, 64, 64, data.n_classes or 1))


def points(n_rounds: int) -> Array:
    """Return the rounds at which curves are read, the last among them."""
    return np.unique(np.linspace(n_rounds / POINTS, n_rounds, POINTS).round().clip(1).astype(int))


@cache
def _data(dataset: str) -> Data:
    data = load(dataset)
    if dataset != "digits":
        return data
    return Data("digits", np.hstack([data.features, np.ones((len(data.label), 1))]), data.label, data.classes)


def _step(data: Data) -> float:
    if data.name == "digits":
        return 0.3
    return 0.1 if data.n_classes else 0.01  # η


def _metric(data: Data, played: Any) -> float:
    if data.n_classes:
        return float((played.prediction.argmax(axis=1) == played.label).mean())
    return float(((played.prediction - played.label) ** 2).mean())


# --- figures 2 and 3: mnist ---


def over_periods(run: Run) -> list[Claim]:
    """Figure 2: the transmission period L at the same p/L, hence the same bits."""
    name, dataset = "ofediq-2", _at_hand(run, ["mnist"])[0]
    methods = {f"L = {period}": BEST._replace(period=period) for period in PERIODS}
    curves = _measure(run, dataset, methods.values())
    _one_panel(run, name, dataset, {title: curves[method] for title, method in methods.items()})
    ends = [_losses(curves, period, -1) for period in PERIODS[1:]]
    longest = PERIODS[-1]
    early, late = _losses(curves, longest, POINTS // 3 - 1), ends[-1]
    times = points(_n_rounds(run))
    note = _note(run, dataset, "mnist")
    return [
        judged(
            "ofediq-2/best",
            f"accuracy lost at T = {times[-1]}: " + _by_period(ends) + note,
            verdict([_ahead(loss) for loss in ends]),
        ),
        judged(
            "ofediq-2/severe",
            _by_period(ends) + note,
            verdict([_ahead(longer - shorter) for shorter, longer in pairwise(ends)]),
        ),
        judged(
            "ofediq-2/shrinks",
            f"L = {longest}: {_pm(early, 100)} points at t = {times[POINTS // 3 - 1]}, {_pm(late, 100)} at {times[-1]}"
            + note,
            verdict([_ahead(early - late)]),
        ),
    ]


def quantizers(run: Run) -> list[Claim]:
    """Figure 3: algorithm 3's quantizer, the same number of clients with (s, b) = (7, 1), and no quantizer."""
    name, dataset = "ofediq-3", _at_hand(run, ["mnist"])[0]
    curves = _measure(run, dataset, (BEST, UNBLOCKED, AVERAGED))
    levels, blocks, chance = ofediq_parameters(0.01, model_of(_data(dataset)).dim)
    titles = {
        BEST: f"OFedIQ(1, {chance:.3f}, {levels}, {blocks})",
        UNBLOCKED: f"OFedIQ(1, {chance:.3f}, 7, 1)",
        AVERAGED: "OFedAvg(0.01)",
    }
    _one_panel(run, name, dataset, {title: curves[method] for method, title in titles.items()})
    claims = []
    for key, other in (("blocks", UNBLOCKED), ("ofedavg", AVERAGED)):
        lead = curves[BEST].metric[:, -1] - curves[other].metric[:, -1]
        measured = f"{_pm(lead, 100)} points at T = {_n_rounds(run)}; {curves[BEST].bits:.2%} of the bits against "
        measured += f"{curves[other].bits:.2%}" + _note(run, dataset, "mnist")
        measured = f"{titles[BEST]} − {titles[other]}: {measured}"
        claims.append(judged(f"ofediq-3/{key}", measured, verdict([_ahead(lead)])))
    return claims


def _losses(curves: CurvesByMethod, period: int, point: int) -> Array:
    """Return what a period costs against L = 1, seed by seed."""
    return curves[BEST].metric[:, point] - curves[BEST._replace(period=period)].metric[:, point]


def _by_period(losses: Sequence[Array]) -> str:
    each = zip(PERIODS[1:], losses, strict=True)
    return "; ".join(f"L = {period}: {_pm(loss, 100)} points" for period, loss in each)


def _one_panel(run: Run, name: str, dataset: str, curves: Mapping[str, Curves]) -> None:
    figure, axes = plt.subplots(figsize=(6, 4))
    times = points(_n_rounds(run))
    lines(axes, {title: _series(times, curve) for title, curve in curves.items()}, "t", "Accuracy(t)", {})
    axes.set_title(f"{dataset}, {CLIENTS:,} clients, CCR = 99%")
    save(figure, run.picture(name))
    run.write_csv(name, [row for title, curve in curves.items() for row in _rows(dataset, title, "99%", times, curve)])


# --- figure 4: all methods, all datasets ---


def comparison(run: Run) -> list[Claim]:
    """Figure 4: FedOGD, and what the others make of 10% and of 1% of its bits."""
    name, names = "ofediq-4", _at_hand(run, DATASETS)
    methods = (FEDOGD, *AT_COST[0.1], *AT_COST[0.01])
    results = {dataset: _measure(run, dataset, methods) for dataset in names}
    _grid_of_panels(run, name, results)
    times = points(_n_rounds(run))
    run.write_csv(
        name,
        [
            row
            for dataset, curves in results.items()
            for method, each in curves.items()
            for row in _rows(dataset, NAMES[method.learner], method.reduction, times, each)
        ],
    )
    return _comparison_claims(results, _note(run, ", ".join(names), ", ".join(DATASETS)))


def _comparison_claims(results: Mapping[str, CurvesByMethod], note: str) -> list[Claim]:
    best, averaged, periodic = AT_COST[0.01]
    near = {dataset: _lead(dataset, curves, best, FEDOGD) for dataset, curves in results.items()}
    rival = {
        dataset: min((_lead(dataset, curves, best, other) for other in (averaged, periodic)), key=np.mean)
        for dataset, curves in results.items()
    }
    poor = {dataset: _lead(dataset, curves, averaged, periodic) for dataset, curves in results.items()}
    same = {dataset: _lead(dataset, curves, *AT_COST[0.1][:2]) for dataset, curves in results.items()}
    return [
        judged(
            "ofediq-4/almost",
            "OFedIQ's lead: " + _listed(near) + note,
            verdict([bool(lead.mean() > -(1.5 if _classes(dataset) else 5)) for dataset, lead in near.items()]),
        ),
        judged(
            "ofediq-4/benchmarks",
            "lead over the better of the two: " + _listed(rival) + note,
            verdict([_ahead(lead, tie=dataset == "airquality") for dataset, lead in rival.items()]),
        ),
        judged(
            "ofediq-4/fedomd",
            "OFedAvg's lead over it: " + _listed(poor) + note,
            verdict([_ahead(lead) for lead in poor.values()]),
        ),
        judged(
            "ofediq-4/unnecessary",
            "OFedIQ's lead: " + _listed(same) + note,
            verdict([bool(abs(lead.mean()) < (0.5 if _classes(dataset) else 2)) for dataset, lead in same.items()]),
        ),
    ]


def _lead(dataset: str, curves: CurvesByMethod, one: Method, other: Method) -> Array:
    """Return how much better a method ends, seed by seed: in points of accuracy, or in percent of the other's MSE."""
    first, second = curves[one].metric[:, -1], curves[other].metric[:, -1]
    result: Array = 100 * (first - second) if _classes(dataset) else 100 * (1 - first / second)
    return result


def _ahead(lead: Array, tie: bool = False) -> bool:
    """Return whether a lead is sure by two standard errors; or, for a tie, whether none the other way is."""
    return bool(lead.mean() > (-2 if tie else 2) * standard_error(lead))


def _classes(dataset: str) -> bool:
    return _data(dataset).classes is not None


def _listed(leads: Mapping[str, Array]) -> str:
    units = {dataset: "points" if _classes(dataset) else "% MSE" for dataset in leads}
    return "; ".join(f"{dataset} {_pm(lead)} {units[dataset]}" for dataset, lead in leads.items())


def _grid_of_panels(run: Run, name: str, results: Mapping[str, CurvesByMethod]) -> None:
    """Draw a column a dataset, a row a CCR."""
    figure, axes = plt.subplots(2, len(results), figsize=(3.6 * len(results) + 1, 6.2), squeeze=False)
    times = points(_n_rounds(run))
    styles = {NAMES[learner]: {"color": colour} for learner, colour in COLOURS.items()}
    for column, (dataset, curves) in enumerate(results.items()):
        for panel, (gamma, methods) in zip(axes[:, column], AT_COST.items(), strict=True):
            series = {NAMES[m.learner]: _series(times, curves[m]) for m in (FEDOGD, *methods)}
            lines(panel, series, "t", "Accuracy(t)" if _classes(dataset) else "MSE(t)", styles)
            panel.set_title(f"{dataset}, CCR = {1 - gamma:.0%}")
            if not _classes(dataset):
                panel.set_yscale("log")
    save(figure, run.picture(name))


# --- what they share ---


def _measure(run: Run, dataset: str, methods: Iterable[Method]) -> dict[Method, Curves]:
    """Return the curves of each method, from the journal where they are there already."""
    listed, seeds = list(methods), 2 if run.quick else SEEDS
    cells = [Cell(dataset, method, _n_rounds(run), seed) for method in listed for seed in range(seeds)]
    results = grid.run(play, cells, jobs=run.jobs, journal=run.journal, progress=run.progress)
    curves = {}
    for place, method in enumerate(listed):
        own = results[place * seeds : (place + 1) * seeds]
        curves[method] = Curves(np.array([r["metric"] for r in own]), float(np.mean([r["bits"] for r in own])))
    return curves


def _n_rounds(run: Run) -> int:
    return 100 if run.quick else 300


def _at_hand(run: Run, names: Sequence[str]) -> list[str]:
    """Return the datasets to use: those at hand, or digits in a quick run or where there are none."""
    at_hand = [] if run.quick else [name for name in names if available(name)]
    return at_hand or ["digits"]


def _note(run: Run, used: str, named: str) -> str:
    if used == named:
        return ""
    return f" ({used} with softmax, quick)" if run.quick else f" ({used} only, of {named}: the others are not at hand)"


def _pm(values: Array, scale: float = 1.0) -> str:
    """Return a mean over seeds with its standard error."""
    return f"{scale * values.mean():+.2f} ± {scale * standard_error(values):.2f}"


def _series(times: Array, curves: Curves) -> Series:
    mean, error = _mean_error(curves)
    return Series(times.tolist(), mean, error)


def _mean_error(curves: Curves) -> tuple[list[float], list[float]]:
    columns = curves.metric.T
    return [float(column.mean()) for column in columns], [standard_error(column) for column in columns]


def _rows(dataset: str, method: str, reduction: str, times: Array, curves: Curves) -> list[dict[str, Any]]:
    mean, error = _mean_error(curves)
    return [
        {
            "dataset": dataset,
            "method": method,
            "ccr": reduction,
            "t": int(t),
            "metric": "accuracy" if _classes(dataset) else "mse",
            "value": f"{value:.6f}",
            "standard_error": f"{spread:.6f}",
            "seeds": len(curves.metric),
            "share_of_bits": f"{curves.bits:.5f}",
        }
        for t, value, spread in zip(times, mean, error, strict=True)
    ]


FIGURES = [
    Figure("ofediq-2", "OFedIQ", "accuracy by transmission period L at the same bits, mnist", over_periods),
    Figure("ofediq-3", "OFedIQ", "the optimised quantizer against two others, mnist", quantizers),
    Figure("ofediq-4", "OFedIQ", "FedOGD, OFedIQ, OFedAvg and FedOMD at 90% and 99% fewer bits", comparison),
]

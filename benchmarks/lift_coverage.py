"""How often lift intervals hold the truth, and how soon they find a lift: simulated experiments, looked at all along.

    python benchmarks/lift_coverage.py [--experiments 2000] [--part rewards | outcomes | detection]
    python benchmarks/lift_coverage.py --sizes  # only how many events a test for a single look is planned with

In each experiment users arrive one after the other and come back at random; a share of them is the control group.
Users differ: a user's click rate is drawn once. After every 100 events somebody looks. Rewards are clicks, with
intervals from 20 clicks in each arm on. Outcomes are rarer, may be amounts (lognormal), and have intervals from 20 of
them in both arms together on, as in ``GET /v1/lift``. Detection is about rewards again, with as many events as most
experiments need to find a lift of 10%. Printed for each kind of experiment, with no lift and with one
of 10% (rewards, detection) or 100% (outcomes):

- false alarms: share of experiments in which any interval, at any look, leaves out the truth; 5% are allowed
- worst look: largest share of experiments whose interval leaves out the truth at one look
- found: share of experiments whose interval is above 0 at some look, and the median number of events until then
- fixed: events after which a test planned for one look finds the same lift in 80% of experiments
"""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.special import ndtri

from bandits.evaluation.lift import Arm, lift
from fedres.checks import Array

EVERY = 100


class Experiment(NamedTuple):
    """A kind of experiments."""

    name: str
    share: float = 0.5  # of control
    rate: float = 0.3  # mean click rate of control
    alike: float = 50.0  # how alike users are: a + b of their beta distribution
    n_users: int = 2_000
    n_events: int = 10_000
    before: bool = False  # 20 earlier events are known of 7 in 10 users
    spread: float = 0.0  # of amounts: the σ of a lognormal number with the mean 1
    is_outcome: bool = False
    regulars: float = 0.0  # share of the events that 20 users have


REWARDS = (
    Experiment("halves"),
    Experiment("control 10%", share=0.1),
    Experiment("users differ", alike=5.0),
    Experiment("users differ, earlier rewards known", alike=5.0, before=True),
    Experiment("rare clicks", rate=0.03),
    Experiment("200 users", n_users=200, alike=5.0),
    Experiment("20 users have half of the events", regulars=0.5),
    Experiment("20 users have half of the events, control 10%", regulars=0.5, share=0.1),
)
RARE = Experiment("", share=0.1, rate=0.01, is_outcome=True)
OUTCOMES = (
    RARE._replace(name="1% of events, halves", share=0.5),
    RARE._replace(name="1%, control 10%"),
    RARE._replace(name="1%, control 90%", share=0.9),
    RARE._replace(name="0.2%, control 10%", rate=0.002, n_events=20_000),
    RARE._replace(name="amounts, σ = 1, 2%, control 10%", rate=0.02, spread=1.0),
    RARE._replace(name="amounts, σ = 1.5, 2%, halves", rate=0.02, spread=1.5, share=0.5),
    RARE._replace(name="amounts, σ = 2, 2%, control 10%", rate=0.02, spread=2.0),
    RARE._replace(name="1%, control 10%, 20 users have half of the events", regulars=0.5),
)
DETECTION = tuple(
    kind._replace(n_users=n_events // 5, n_events=n_events)
    for kind, n_events in zip(REWARDS[:2], (30_000, 80_000), strict=True)
)
PARTS = {"rewards": (REWARDS, 0.1), "outcomes": (OUTCOMES, 1.0), "detection": (DETECTION, 0.1)}


class Look(NamedTuple):
    missed: Array  # True: the interval leaves out the truth; for each look
    above: Array  # True: the interval is above 0


def play(kind: Experiment, effect: float, rng: np.random.Generator) -> Look:
    """Return what one experiment's looks see; ``effect`` is the relative lift."""
    n, m = kind.n_events, kind.n_users
    rates = rng.beta(kind.rate * kind.alike, (1 - kind.rate) * kind.alike, m) / (1 + effect)  # stays below 1
    is_control = rng.random(m) < kind.share
    user = rng.integers(0, 1 + np.arange(n) * m // n)
    if kind.regulars:
        user = np.where(rng.random(n) < kind.regulars, rng.integers(0, 20, n), user)
    clicked = rng.random(n) < np.where(is_control, rates, rates * (1 + effect))[user]
    amount = clicked * (rng.lognormal(-(kind.spread**2) / 2, kind.spread, n) if kind.spread else 1.0)
    has_before = rng.random(m) < 0.7
    before = np.where(has_before, rng.binomial(20, rates) / 20, np.nan) if kind.before else None
    truth = kind.rate / (1 + effect) * effect
    rewards, events, clicks = np.zeros(m), np.zeros(m), np.zeros(m)
    missed, above = [], []
    for start in range(0, n, EVERY):
        some = slice(start, start + EVERY)
        np.add.at(rewards, user[some], amount[some])
        np.add.at(clicks, user[some], clicked[some])
        np.add.at(events, user[some], 1)
        groups = [(is_control == control) & (events > 0) for control in (True, False)]
        n_clicks = [int(clicks[group].sum()) for group in groups]
        counted = [sum(n_clicks)] * 2 if kind.is_outcome else n_clicks
        each = zip(groups, counted, strict=True)
        control, treatment = (
            Arm(rewards[group], events[group], n, None if before is None else before[group]) for group, n in each
        )
        absolute = lift(control, treatment).absolute
        missed.append(absolute is not None and not absolute.low <= truth <= absolute.high)
        above.append(absolute is not None and absolute.low > 0)
    return Look(np.array(missed), np.array(above))


def fixed_horizon(kind: Experiment, effect: float) -> float:
    """Return the events that a test for one look, 5% two-sided, is planned with for a power of 80%, users all alike."""
    low, high = kind.rate / (1 + effect), kind.rate
    square = np.exp(kind.spread**2)  # mean of the squared amount
    variance = low * (square - low) / kind.share + high * (square - high) / (1 - kind.share)
    return float((ndtri(0.975) + ndtri(0.8)) ** 2 * variance / (high - low) ** 2)


def sizes() -> list[list[str]]:
    """Return the events for a single look: a row by click rate and share of users in control, a column by lift."""
    return [
        [f"{rate:.0%}", f"{share:.0%}"]
        + [f"{fixed_horizon(Experiment('', share=share, rate=rate), effect):,.0f}" for effect in (0.05, 0.1, 0.2, 0.5)]
        for rate in (0.3, 0.1, 0.03)
        for share in (0.5, 0.1)
    ]


def row(kind: Experiment, place: int, lift_of: float, n_experiments: int, seed: int) -> list[str]:
    cells = [kind.name]
    for effect in (0.0, lift_of):
        rng = np.random.default_rng([seed, place, round(effect * 100)])
        looks = [play(kind, effect, rng) for _ in range(n_experiments)]
        missed = np.array([look.missed for look in looks])
        cells += [f"{missed.any(1).mean():.3f}", f"{missed.mean(0).max():.3f}"]
        if effect:
            above = np.array([look.above for look in looks])
            when = np.where(above.any(1), EVERY * (1 + above.argmax(1)), np.inf)
            median = f"{np.median(when):,.0f}" if np.isfinite(np.median(when)) else f"> {kind.n_events:,}"
            cells += [f"{above.any(1).mean():.2f}", median, f"{fixed_horizon(kind, effect):,.0f}"]
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description="Coverage of lift intervals; see the head of this file.")
    parser.add_argument("--experiments", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--part", action="append", choices=PARTS, help="Which tables; all unless given.")
    parser.add_argument("--kind", default="", help="Only kinds of experiments with this in their names.")
    parser.add_argument("--sizes", action="store_true", help="Only the events that a single look needs, as Markdown.")
    options: Any = parser.parse_args()
    if options.sizes:
        print("\n".join(f"| {' | '.join(cells)} |" for cells in sizes()))
        return
    for part in options.part or PARTS:
        kinds, effect = PARTS[part]
        headings = ("no lift:\nfalse alarms", "worst\nlook", f"lift of {effect:.0%}:\nmissed", "worst\nlook")
        title = f"{part}: {options.experiments} experiments of each kind"
        table = Table("experiment", *headings, "found", "median\nevents", "fixed", title=title)
        chosen = [(place, kind) for place, kind in enumerate(kinds) if options.kind in kind.name]
        for place, kind in track(chosen, part):
            table.add_row(*row(kind, place, effect, options.experiments, options.seed))
        Console(width=150).print(table)


if __name__ == "__main__":
    main()

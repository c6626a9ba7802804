"""What ``make hardening`` runs."""

import bodies
import failing_memory
import failing_sockets
from campaign import Part
from fuzzing import fuzz
from judging import simulate
from neighbour import noisy_neighbours
from planting import BUGS
from raw_http import send_broken
from test_power_cuts import cut_often

CONTROL_SEEDS = 40
WEAKER = ("NORMAL", "OFF")


def simulation(first, n):
    """Play seeds; a failing one is named, and plays the same way again."""
    failures = [f"seed {seed}: {world.wrong[0]}" for seed in range(first, first + n) if (world := simulate(seed)).wrong]
    return failures, {}


def planted_bugs(first, n):
    """Plant one bug after the other; a bug that is not found is a failure."""
    failures, n_seeds = [], 0
    for bug in BUGS[first : first + n]:
        with bug() as options:
            for seed in range(1_000_000, 1_000_000 + CONTROL_SEEDS):
                n_seeds += 1
                if simulate(seed, **options).wrong:
                    break
            else:
                failures.append(f"{bug.__name__} was not found in {CONTROL_SEEDS} seeds")
    return failures, {"seeds": n_seeds}


def power_cuts(first, n):
    n_lost = cut_often(n, seed=f"hardening {first}")
    return [f"seed {first}: {n_lost} of {n} cuts lost something"] if n_lost else [], {}


def weaker_journals(first, n):
    """Cut the power where less is synced: a run that loses nothing could not have shown anything before."""
    failures, figures = [], {}
    for synchronous in WEAKER:
        n_lost = cut_often(n, seed=f"control {first}", synchronous=synchronous)
        figures[f"lost with {synchronous}"] = n_lost
        if not n_lost:
            failures.append(f"seed {first}: {n} cuts lost nothing with synchronous={synchronous}")
    return failures, figures


def requests(first, n):
    failures, grown = fuzz(first, n)
    return failures, {"most MB grown in the second half of a run": max(0, round(grown / 1e6))}


def broken_http(first, n):
    return send_broken(first, n), {}


PARTS = [
    Part("simulation", "seeds", 10_000, 50, simulation),
    Part("planted bugs", "bugs", len(BUGS), 1, planted_bugs),
    Part("power cuts", "cuts", 1_000_000, 10_000, power_cuts),
    Part("weaker journals", "cuts each", 10_000, 1_000, weaker_journals),
    Part("failing sockets", "cases", 3 * failing_sockets.CALLS, 30, failing_sockets.failing_sockets),
    Part("failing memory", "cases", 2_400, 60, failing_memory.failing_memory, failing_memory.missing),
    Part("requests", "requests", 1_000_000, 5_000, requests),
    Part("broken HTTP", "connections", 100_000, 2_000, broken_http),
    Part("body parsing", "bodies", 1_000_000, 50_000, bodies.fuzz_bodies, bodies.missing),
    Part("noisy neighbour", "rounds", 3, 3, noisy_neighbours),
]

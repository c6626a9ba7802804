"""Runs the long campaign: ``python tools/hardening``. Stop it at any time; the same command goes on.

One line for each part has the result. A failing seed is named, and plays the same way again.
"""

import argparse
import logging
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

SERVICE = Path(__file__).parents[2] / "tests" / "service"
sys.path[1:1] = [str(SERVICE), str(SERVICE / "log"), str(SERVICE / "simulation")]

from campaign import State, go_on, verdict  # noqa: E402
from parts import PARTS  # noqa: E402


def main():
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(prog="hardening", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the full size of each part (default 1)")
    parser.add_argument("--part", action="append", choices=names, help="run only this part; repeatable")
    parser.add_argument("--state", type=Path, default=Path(".hardening.json"), help="what is done so far")
    options = parser.parse_args()
    logging.getLogger("service").setLevel(logging.ERROR)  # crashes are what it is about
    state, failed = State(options.state), False
    for part in PARTS:
        if options.part and part.name not in options.part:
            continue
        if (why := part.missing()) is not None:
            print(f"{part.name}: left out: {why}", flush=True)
            continue
        began = time.monotonic()
        goal = max(1, round(part.goal * min(1.0, options.share)))
        with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task(part.name, total=goal)
            result = go_on(part, state, goal, print, lambda done, task=task, bar=bar: bar.update(task, completed=done))
        failed |= result["n_failures"] > 0
        print(f"{verdict(part, result)} ({time.monotonic() - began:.0f} s in this run)", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

"""What open dashboards cost those who ask for decisions: the p99 of ranks with viewers and without, in turns.

    python benchmarks/dashboard_load.py [--viewers 10] [--rounds 12] [--events 50000]

A loop is filled with events. Then ranks and rewards come at a fixed rate, and every ten seconds the viewers come or go.
Each has the page of the loop open, and requests its state, its report and its actions every 30 seconds; the viewers are
spread over these. Latencies count from when a request was due. Rounds are pairs of ten seconds, so that
whatever else the machine does meets both alike. First a browser opens that page once (Chromium, and the extra `dev`).
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from load_generator import Load, percentiles
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.progress import track
from service_load import catch_up, windows
from service_processes import Service, service

PAGE = ("/v1/loops/default/state", "/v1/loops/default/actions/report", "/v1/loops/default/report")
REFRESH = 30.0  # seconds between two renewals of a loop's page
WINDOW = 10.0


def answered(target: Service, path: str) -> int:
    """Return the status of an answer, 0 if none came in time."""
    try:
        return target.request("GET", path)[0]
    except TimeoutError:
        target.close()
        return 0


class Viewers:
    """So many open pages, while they look."""

    def __init__(self, target: Service, n: int) -> None:
        self._http, self._pause = Service(target.port, target.pid, target.keys), REFRESH / n
        self._looking, self._ended = threading.Event(), threading.Event()
        self.n_asked, self.refused = 0, 0

    def look(self, yes: bool) -> None:
        (self._looking.set if yes else self._looking.clear)()

    def _run(self) -> None:
        while not self._ended.wait(self._pause):
            for path in PAGE if self._looking.is_set() else ():
                self.refused += answered(self._http, path) != 200
                self.n_asked += 1

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            self._http.close()


def fill(target: Service, n_events: int) -> None:
    while target.status()["loops"]["default"]["ranks"] < n_events:
        for _ in windows(Load(port=target.port, seconds=2.0, n_connections=16, keys=target.keys)):
            pass
    catch_up(target)
    while answered(target, PAGE[-1]) != 200:  # the first report reads the whole log
        pass


def page_seconds(target: Service) -> dict[str, float]:
    """Return what the browser's main thread did to open the page of the loop, in seconds."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800})
        metrics = page.context.new_cdp_session(page)
        metrics.send("Performance.enable")
        page.goto(f"http://127.0.0.1:{target.port}/#/loops/default")
        page.get_by_label("Key").fill(target.keys[0])
        page.keyboard.press("Enter")
        page.get_by_role("heading", level=1, name="Loop default").wait_for()
        values = metrics.send("Performance.getMetrics")["metrics"]
        browser.close()
    names = ("TaskDuration", "ScriptDuration", "LayoutDuration", "RecalcStyleDuration")
    return {one["name"]: one["value"] for one in values if one["name"] in names}


def p99s(target: Service, viewers: Viewers, rounds: int, pairs_per_second: float) -> dict[bool, list[list[float]]]:
    """Return the latencies of ranks in each window: those without viewers, those with."""
    latencies: dict[bool, list[list[float]]] = {False: [], True: []}
    seconds = WINDOW * (2 * rounds + 1)
    options = {"n_connections": 16, "pairs_per_second": pairs_per_second, "seconds": seconds, "window": WINDOW}
    load = Load(port=target.port, keys=target.keys, **options)
    for k, window in enumerate(track(windows(load), "windows", 2 * rounds + 2)):
        looked = k % 2 == 0
        viewers.look(not looked)
        if 0 < k <= 2 * rounds:  # the first warms up
            latencies[looked].append(window.ranks)
    return latencies


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of open dashboards; see the head of this file.")
    parser.add_argument("--viewers", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--pairs-per-second", type=float, default=100.0, help="Ranks, each with its reward.")
    options: Any = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory() as folder, service(Path(folder), n_keys=20) as target:
        fill(target, options.events)
        n_events = target.status()["loops"]["default"]["ranks"]
        console.print(f"{n_events:,} events; seconds of the main thread to open the page:", page_seconds(target))
        viewers = Viewers(target, options.viewers)
        with viewers.running():
            latencies = p99s(target, viewers, options.rounds, options.pairs_per_second)
    rounds = [[percentiles(ranks)[1] or math.nan for ranks in latencies[looked]] for looked in (False, True)]
    pooled = [
        percentiles([one for ranks in latencies[looked] for one in ranks])[1] or math.nan for looked in (False, True)
    ]
    ratios = [beside / alone for alone, beside in zip(*rounds, strict=True)]
    console.print(f"{viewers.n_asked} requests of {options.viewers} viewers, {viewers.refused} refused")
    for name, values, all_together in zip(("without", "with"), rounds, pooled, strict=True):
        console.print(f"p99 of ranks {name} viewers, ms:", [round(ms, 1) for ms in values], f"all: {all_together:.1f}")
    console.print(f"with / without: {median(ratios):.2f} (median), {pooled[1] / pooled[0]:.2f} (all ranks together)")


if __name__ == "__main__":
    main()

"""``fedres bench``: speed side by side in one run, and how well models decide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from libsvm_tasks.cli.options import Jobs
from libsvm_tasks.cli.source import of_the_source
from service.console import JsonFile, console, one_line_errors, progress_bar, whole_numbers, write_json

MODULES = {  # these need the extra bench, `service` the extra serve
    "engine": "research.bench_engine",
    "learners": "research.bench_learners",
    "bandit": "research.bench_bandit",
}
KINDS = (*MODULES, "service", "decisions", "recommend")

Soak = Annotated[
    float, typer.Option(help="Service: run this many seconds below the limit instead, and check for growth.")
]
KeyCount = Annotated[
    int, typer.Option(help="Service: API keys that clients share; each has a rate limit (0: an open service).")
]
Streams = Annotated[str, typer.Option(help="Decisions: which streams, separated by commas; `list` lists them.")]
Players = Annotated[
    str, typer.Option(help="Decisions, recommend: who plays, separated by commas; vw-all is every form of VW.")
]
Seeds = Annotated[str, typer.Option(help="Decisions, recommend: seeds. Tune with others than those you report.")]
MostEvents = Annotated[int | None, typer.Option(help="Decisions, recommend: rounds of each stream, or pages, at most.")]
Http = Annotated[
    str | None, typer.Option(help="Decisions: play the streams through the service at this address instead.")
]
CsvFile = Annotated[
    Path | None,
    typer.Option("--csv", help="Decisions, recommend: add figures to this file; those it has are not played again."),
]


@one_line_errors
def bench(
    what: Annotated[str, typer.Argument(help=f"{', '.join(KINDS)} or all.")] = "all",
    rankers: Annotated[str, typer.Option(help="Service: numbers of ranker processes, such as 1,2,3.")] = "1",
    seconds: Annotated[float, typer.Option(help="Service: length of each run, in seconds.")] = 12.0,
    rounds: Annotated[int, typer.Option(help="Service: rounds; results are medians over them.")] = 3,
    soak: Soak = 0.0,
    share: Annotated[float, typer.Option(help="Service: load of the soak, as a share of the sustained limit.")] = 0.7,
    keys: KeyCount = 1,
    streams: Streams = "all",
    players: Players = "all",
    seeds: Seeds = "401,402,403",
    events: MostEvents = None,
    http: Http = None,
    csv_file: CsvFile = None,
    jobs: Jobs = 1,
    json_file: JsonFile = None,
) -> None:
    """Measure the speed of fedres and of alternatives, side by side in one run.

    `decisions` measures how well models decide: rewards earned on simulated streams and on datasets, by fedres
    beside Vowpal Wabbit, LinUCB and river. `recommend` plays pages of ten films of MovieLens. Both take long, and
    `all` leaves them out; interrupted, they resume.
    """
    from fedres import checks

    checks.one_of("what", what, (*KINDS, "all"))
    counts = whole_numbers("rankers", rankers, 1)
    checks.positive("seconds", seconds)
    checks.whole("rounds", rounds)
    checks.positive("share", share)
    checks.whole("keys", keys, 0)
    if soak < 0 or (soak and what != "service"):
        raise ValueError(f"soak must be 0, or a number of seconds with `fedres bench service`, got {soak}")
    results: dict[str, Any] = {}
    if http is not None and what != "decisions":
        raise ValueError(f"http must come with `fedres bench decisions`, got it with {what!r}")
    if csv_file is not None and (what not in ("decisions", "recommend") or http is not None or events is not None):
        message = "csv must come with `fedres bench decisions` or `recommend`, without --http and --events"
        raise ValueError(f"{message}, got {csv_file}")
    if what == "decisions" and http is not None:
        results = _over_http(http, streams, whole_numbers("seeds", seeds, 1), events)
    elif what == "decisions":
        results = _decisions(streams, players, whole_numbers("seeds", seeds, 1), events, csv_file, jobs)
    elif what == "recommend":
        results = _recommend(players, whole_numbers("seeds", seeds, 1), events, csv_file, jobs)
    for name in MODULES:
        if what in (name, "all"):
            module = of_the_source(MODULES[name])
            with progress_bar(f"measuring {name}") as progress:
                rows = module.measure_all(progress)
            console().print(module.table(rows))
            results[name] = rows
    if what in ("service", "all"):
        results |= _soak(soak, share, counts, keys) if soak else _service(counts, rounds, seconds, keys)
    write_json(json_file, results)


def _decisions(
    streams: str, players: str, seeds: list[int], events: int | None, csv_file: Path | None, jobs: int
) -> dict[str, Any]:
    from fedres import checks
    from libsvm_tasks.decisions import report, speed, suite
    from libsvm_tasks.load import cache_folder

    checks.whole("jobs", jobs)
    if streams == "list":
        console().print(report.streams_table())
        return {}
    chosen = _streams(streams)
    playing, played = suite.players_of(players), report.read_csv(csv_file) if csv_file else {}
    unfinished = cache_folder() / "unfinished" / "decisions.jsonl"
    journal = csv_file.with_suffix(".unfinished.jsonl") if csv_file else unfinished
    with progress_bar("playing") as progress:
        figures = suite.run(
            chosen, playing, seeds, events=events, jobs=jobs, journal=journal, played=played, progress=progress
        )
    console().print(report.table(figures, seeds))
    if csv_file:
        report.write_csv(csv_file, figures, seeds)
    journal.unlink(missing_ok=True)
    return {"seeds": seeds, "figures": figures, "speed": speed.measure()}


def _recommend(players: str, seeds: list[int], most: int | None, csv_file: Path | None, jobs: int) -> dict[str, Any]:
    from fedres import checks
    from libsvm_tasks.decisions import pages
    from libsvm_tasks.load import cache_folder

    checks.whole("jobs", jobs)
    playing = []
    for name in pages.players_of(players):
        if reason := pages.absent(name):
            console().print(f"{name} is skipped: {reason}", soft_wrap=True, highlight=False, markup=False)
        else:
            playing.append(name)
    played = pages.read_csv(csv_file) if csv_file else {}
    journal = csv_file.with_suffix(".unfinished.jsonl") if csv_file else cache_folder() / "unfinished/recommend.jsonl"
    with progress_bar("playing") as progress:
        figures = pages.run(playing, seeds, pages=most, jobs=jobs, journal=journal, played=played, progress=progress)
    console().print(pages.table(figures, seeds))
    if csv_file:
        pages.write_csv(csv_file, figures)
    journal.unlink(missing_ok=True)
    rows = [{"player": player, "seed": seed, **values._asdict()} for (player, seed), values in figures.items()]
    return {"recommend": rows}


def _streams(names: str) -> list[str]:
    """Return the streams whose files are here; the others are named with the reason."""
    from fedres import checks
    from libsvm_tasks.decisions import suite

    chosen = [*suite.STREAMS] if names == "all" else names.split(",")
    for name in chosen:
        checks.one_of("streams", name, tuple(suite.STREAMS))
        if reason := suite.absent(name):
            console().print(f"{name} is skipped: {reason}", soft_wrap=True, highlight=False, markup=False)
    return [name for name in chosen if suite.absent(name) is None]


def _over_http(url: str, streams: str, seeds: list[int], events: int | None) -> dict[str, Any]:
    from libsvm_tasks.decisions import report, suite
    from libsvm_tasks.decisions.http_player import HttpPlayer

    figures: dict[str, dict[str, list[float]]] = {}
    for name in _streams(streams):
        figures[name] = {url: []}
        for seed in seeds:
            player = HttpPlayer(url)
            figures[name][url].append(suite.play(suite.STREAMS[name], player, seed, events))
            player.close()
    console().print(report.table(figures, seeds))
    return {"seeds": seeds, "figures": figures}


def _service(rankers: list[int], rounds: int, seconds: float, n_keys: int) -> dict[str, Any]:
    bench_service = of_the_source("service_load", "benchmarks")
    with progress_bar("measuring service") as progress:
        rows = bench_service.measure(rankers=rankers, rounds=rounds, seconds=seconds, n_keys=n_keys, progress=progress)
    console().print(bench_service.table(rows))
    return {"service": rows}


def _soak(seconds: float, share: float, rankers: list[int], n_keys: int) -> dict[str, Any]:
    bench_soak = of_the_source("service_soak", "benchmarks")
    results = []
    for n in rankers:
        with progress_bar(f"soaking with {n} ranker(s)") as progress:
            results.append(bench_soak.soak(seconds, share=share, rankers=n, n_keys=n_keys, progress=progress))
        console().print(bench_soak.table(results[-1]))
    return {"soak": results}

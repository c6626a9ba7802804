"""The streams by name, how they are played, and pieces of work that can be resumed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from heapq import heappop, heappush
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedres import checks
from libsvm_tasks import grid, load
from libsvm_tasks.catalogue import CATALOGUE
from libsvm_tasks.decisions.players import PLAYERS, VW_TUNED, Player
from libsvm_tasks.decisions.real import MOVIELENS, PROMPTS, movies, prompts
from libsvm_tasks.decisions.rounds import DecisionRound, DecisionStream, classes
from libsvm_tasks.decisions.worlds import News, anonymous, artists, coupons, raw, routing, wide, words


def _one(name: str, rounds: int) -> DecisionStream:
    dim = 64 if name == "digits" else CATALOGUE[name].features
    play = partial(classes, name, n_users=1, rounds=rounds, task="same")
    return DecisionStream(play, f"{name}, one user, {rounds:,} rounds", users=1, dim=dim, peers=True, needs=(name,))


def _many(
    task: str, text: str, name: str = "digits", users: int = 20, rounds: int = 600, **more: Any
) -> DecisionStream:
    drift = bool(more.pop("drift", False))
    play = partial(classes, name, n_users=users, rounds=rounds, task=task, drift=drift)
    dim = 64 if name == "digits" else CATALOGUE[name].features
    return DecisionStream(
        play, f"{name}, {users} users × {rounds}: {text}", users=users, dim=dim, needs=(name,), **more
    )


def _news(
    text: str, *, delay: int = 0, zero_delay: int | None = None, missing: float = 0.0, **how: Any
) -> DecisionStream:
    return DecisionStream(
        News(**how), f"news: {text}", delay, zero_delay, missing, by_chance=True, users=how.get("readers", 200)
    )


def _movies(text: str, people: int = 400, rounds: int = 16_000, **how: Any) -> DecisionStream:
    play = partial(movies, people=people, rounds=rounds, **how)
    ids, fresh = how.get("ids", True), how.get("fresh", False)
    text = f"MovieLens, {people} people, {rounds:,} lists of eight films they rated: {text}"
    return DecisionStream(play, text, by_chance=True, users=people, ids=ids, replies=fresh, needs=MOVIELENS)


def _prompts(text: str, **how: Any) -> DecisionStream:
    play, ids = partial(prompts, **how), how.get("ids", True)
    text = f"which of four language models answers a prompt, whose words are the context: {text}"
    return DecisionStream(play, text, by_chance=True, graded=True, users=0, dim=10_000, ids=ids, needs=PROMPTS)


HALF: dict[str, Any] = {"readers": 100, "rounds": 10_000}
ZIPF: dict[str, Any] = {"readers": 2000, "rounds": 12_000, "zipf": True}
STREAMS: dict[str, DecisionStream] = {
    "digits": _one("digits", 1797),
    "pendigits": _one("pendigits", 4000),
    "satimage": _one("satimage", 4000),
    "letter": _one("letter", 8000),
    "usps": _one("usps", 3000),
    "same": _many("same", "one task for all"),
    "permuted": _many("permuted", "three classes trade names"),
    "permuted-20": _many("permuted", "rewards 20 rounds late", delay=20),
    "permuted-200": _many("permuted", "rewards 200 rounds late", delay=200),
    "subset": _many("subset", "a user meets half of the classes"),
    "shuffled": _many("shuffled", "all classes trade names"),
    "labels-change": _many("same", "all names change half-way", drift=True),
    "letter-permuted": _many("permuted", "8 of 26 classes trade names", "letter", 20, 400),
    "satimage-permuted": _many("permuted", "2 of 6 classes trade names", "satimage", 50, 200),
    "news": _news("200 readers × 100, half of the tastes shared"),
    "news-shared": _news("all tastes shared", shared=1.0, **HALF),
    "news-own": _news("all tastes personal", shared=0.0, **HALF),
    "news-rare": _news("clicks of .5 to 5%", least=0.005, most=0.05, rounds=12_000),
    "news-frequent": _news("clicks of 10 to 90%", least=0.1, most=0.9, **HALF),
    "news-20": _news("rewards 20 rounds late", delay=20, **HALF),
    "news-200": _news("rewards 200 rounds late", delay=200, **HALF),
    "news-1000": _news("rewards 1,000 rounds late", delay=1000, **HALF),
    "news-missing": _news("30% of the rewards never arrive", missing=0.3, **HALF),
    "news-clicks": _news("clicks at once, 0 after 200 rounds without one", zero_delay=200, **HALF),
    "news-clicks-1000": _news("clicks at once, 0 after 1,000 rounds without one", zero_delay=1000, **HALF),
    "news-zipf": _news("2,000 readers by Zipf", **ZIPF),
    "news-cold": _news("the same; first 5 rounds of late readers", late=True, **ZIPF),
    "news-churn": _news("an article is replaced every 200 rounds", churn=200, rounds=12_000),
    "news-drift": _news("all tastes change half-way", drift=True, rounds=12_000),
    "news-cities": DecisionStream(
        News(cities=500, readers=100, rounds=10_000), "news: a city of 500 in the context", by_chance=True, dim=500
    ),
    "wide": DecisionStream(wide, "200 readers × 60, 22 coordinates that all matter", by_chance=True),
    "raw": DecisionStream(raw, "300 shoppers × 40: price, age, hour and basket as they come", by_chance=True),
    "anonymous": DecisionStream(
        anonymous, "visitors without a name, 21 coordinates that all matter", by_chance=True, users=0
    ),
    "words": DecisionStream(words, "texts of ten words, no user", by_chance=True, users=0, dim=2_000),
    "movies": _movies("ids, genres and year; five stars are a reward"),
    "movies-fresh": _movies("no film is chosen twice for a person", 943, 30_000, fresh=True),
    "movies-ids": _movies("ids only", features=False),
    "movies-features": _movies("genres and year only", ids=False),
    "prompts": _prompts("models have ids"),
    "prompts-features": _prompts("models have makers and parts of names", ids=False),
    "artists": DecisionStream(artists, "600 people, 17,000 artists without features", by_chance=True, users=600, dim=1),
    "coupons": DecisionStream(
        coupons, "eight new drivers with 25 categories, no user", by_chance=True, users=0, dim=1, ids=False
    ),
    "routing": DecisionStream(
        routing, "seven models that change places half-way, no user", by_chance=True, users=0, dim=8
    ),
}


class Piece(NamedTuple):
    """A player on a stream with a seed; ``events`` at most."""

    stream: str
    player: str
    seed: int
    events: int | None


@lru_cache(maxsize=1)
def _rounds(stream: DecisionStream, seed: int, events: int | None) -> list[DecisionRound]:
    return [*_new(stream, seed, events)]


def _new(stream: DecisionStream, seed: int, events: int | None) -> Iterator[DecisionRound]:
    return islice(stream.rounds(np.random.default_rng(seed)), events)


def play(stream: DecisionStream, player: Player, seed: int, events: int | None = None) -> float:
    """Return the figure of a player."""
    draws = np.random.default_rng([seed, 1])
    arrivals: list[tuple[int, int, Any, float]] = []
    earned = uniform = best = n = 0.0
    for t, now in enumerate(_rounds(stream, seed, events) if not stream.replies else _new(stream, seed, events)):
        while arrivals and arrivals[0][0] <= t:
            _, _, token, reward = heappop(arrivals)
            player.learn(token, reward)
        draw, luck, lost = draws.random(3)
        action, token = player.decide(now, draw)
        now.chosen, chance = action, now.chances[action]
        reward = float(chance if stream.graded else luck < chance)
        if lost >= stream.missing:
            late = stream.zero_delay if stream.zero_delay is not None and not reward else stream.delay
            heappush(arrivals, (t + 1 + late, t, token, reward))
        if now.counts:
            n += 1
            earned += now.chances[action]
            uniform += now.chances.mean()
            best += now.chances.max()
    if not n:
        raise ValueError(f"events must reach rounds that count, got {events}")
    return float((earned - uniform) / (best - uniform) if stream.by_chance else earned / n)


def play_piece(piece: Piece) -> dict[str, float]:
    """Return a player's figure and seconds."""
    stream, start = STREAMS[piece.stream], time.process_time()
    figure = play(stream, PLAYERS[piece.player].make(stream), piece.seed, piece.events)
    return {"figure": figure, "seconds": time.process_time() - start}


def absent(name: str) -> str | None:
    """Return why a stream cannot be played here, or None."""
    return next((reason for need in STREAMS[name].needs if (reason := load.absent(need))), None)


FiguresBySeed = Mapping[tuple[str, str, int], float]  # figures by stream, player and seed


def players_of(names: str) -> list[str]:
    """Return the players of an option, names with commas; ``vw-all`` is every tuned form of VW, ``all`` are the others.

    >>> players_of("uniform,vw-all")[:3]
    ['uniform', 'vw-squarecb', 'vw-squarecb-l0.1']
    """
    groups = {"all": [name for name in PLAYERS if name not in VW_TUNED[1:]], "vw-all": [*VW_TUNED]}
    return [*dict.fromkeys(player for name in names.split(",") for player in groups.get(name, [name]))]


def run(
    streams: Sequence[str],
    players: Sequence[str],
    seeds: Sequence[int],
    *,
    events: int | None = None,
    jobs: int = 1,
    journal: Path | None = None,
    played: FiguresBySeed | None = None,
    progress: grid.Progress | None = None,
) -> dict[str, dict[str, list[float]]]:
    """Return figures by stream and player, one for each seed; players that a stream is not for are left out.

    A stream whose files are absent is refused (``absent``). Figures that were ``played`` before are not played again.
    """
    for name in streams:
        checks.one_of("streams", name, tuple(STREAMS))
        if reason := absent(name):
            raise ValueError(f"streams must have their files here, got {name}: {reason}")
    for name in players:
        checks.one_of("players", name, tuple(PLAYERS))
    pieces = [
        Piece(stream, player, seed, events)
        for stream in streams
        for seed in seeds
        for player in players
        if PLAYERS[player].installed and PLAYERS[player].plays(STREAMS[stream])
    ]
    figures = {**(played or {})}
    missing = [piece for piece in pieces if piece[:3] not in figures]
    results = grid.run(play_piece, missing, jobs=jobs, journal=journal, progress=progress)
    for piece, result in zip(missing, results, strict=True):
        figures[piece[:3]] = result["figure"]
    by_stream: dict[str, dict[str, list[float]]] = {stream: {} for stream in streams}
    for piece in pieces:
        by_stream[piece.stream].setdefault(piece.player, []).append(figures[piece[:3]])
    return by_stream

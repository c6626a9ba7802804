"""How well models decide: streams of decisions, played through the library by ours, today's service model and VW.

``python benchmarks/decision_streams.py [--streams digits,news] [--players kalman,vw] [--seeds 301,302,303]`` prints
mean and standard error over seeds, all players seeing the same rounds. Figures are mean rewards of all decisions from
the first on, in one pass; of streams with clicks by chance, (click rate − uniform's)/(best possible − uniform's), by
the true rates of what was chosen. Seeds 11 to 13 are for tuning; judge by others.

    digits         1,797 images of sklearn's digits, one user; the reward is 1 for the image's digit
    same, permuted, shuffled   20 users × 600 digits: one meaning for all; three digits traded by each user; all of them
    news           200 readers × 100, 9 topics: half shared, half personal tastes; clicks of 2 to 30%
    wide           the same with 10 articles of 6 topics, and 22 context indicators that all matter
    raw            300 shoppers × 40: price, age in days, hour and basket as they come
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedres.checks import Array
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of, request_of
from fedres.exploration import FLOOR, GREED, epsilon_greedy, optimistic_squarecb, pick
from fedres.scoring.features import Prepared
from fedres.scoring.model import PersonalModel, SharedModel, learn, score

Features = dict[str, float]  # by name; "topic=sport" for a category


class Round(NamedTuple):
    """A decision to be made."""

    user: str
    context: Features
    actions: list[Features]  # the first is the id
    chances: Array  # of a reward of 1


# Streams


def _digits(
    rng: np.random.Generator, n_users: int, rounds: int, meaning: Callable[[np.random.Generator], Array]
) -> Iterator[Round]:
    from sklearn.datasets import load_digits

    images, digits = load_digits(return_X_y=True)
    actions = [{f"_id={k}": 1.0} for k in range(10)]
    meanings = [meaning(rng) for _ in range(n_users)]
    n = n_users * rounds
    order = rng.permutation(len(images)) if n == len(images) else rng.integers(len(images), size=n)
    for k, user in zip(order, rng.permutation(n) % n_users, strict=True):
        context = {f"p{j}": float(v) for j, v in enumerate(images[k]) if v}
        yield Round(f"u{user}", context, actions, np.eye(10)[meanings[user][digits[k]]])


def _same(rng: np.random.Generator) -> Array:
    return np.arange(10)


def _permuted(rng: np.random.Generator) -> Array:
    """Trade three digits."""
    meaning, three = np.arange(10), rng.choice(10, 3, replace=False)
    meaning[three] = np.roll(three, 1)
    return meaning


def _shuffled(rng: np.random.Generator) -> Array:
    return rng.permutation(10)


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _news(rng: np.random.Generator, readers: int = 200, rounds: int = 100) -> Iterator[Round]:
    """One article of each of 9 topics; what matters is the reader's segment, the time of day and the reader."""
    groups, n = {"segment": 6, "daypart": 4, "device": 3, "weekday": 7}, 9
    actions = [{f"_id=topic{k}": 1.0} for k in range(n)]
    liked, times, tastes = rng.normal(size=(6, n)), rng.normal(size=(4, n)) * 0.5, rng.normal(size=(readers, n))
    homes = rng.integers(6, size=readers)
    for reader in rng.permutation(readers * rounds) % readers:
        here = {name: int(rng.integers(size)) for name, size in groups.items()} | {"segment": int(homes[reader])}
        wish = liked[here["segment"]] + times[here["daypart"]] + tastes[reader]
        rates = 0.02 + 0.28 * _logistic(3 * wish - 4)
        yield Round(f"u{reader}", {f"{name}={value}": 1.0 for name, value in here.items()}, actions, rates)


def _wide(rng: np.random.Generator, readers: int = 200, rounds: int = 100) -> Iterator[Round]:
    """Ten articles of six topics; four categories of the context matter for every topic, and the reader."""
    groups = {"device": 3, "daypart": 5, "weekday": 7, "region": 7}  # 22 coordinates and the constant
    n_topics, n_articles = 6, 10
    topics = np.append(np.arange(n_topics), rng.integers(n_topics, size=n_articles - n_topics))
    actions = [{f"_id=article{k}": 1.0, f"topic=topic{t}": 1.0} for k, t in enumerate(topics)]
    effects = {name: rng.normal(size=(size, n_topics)) for name, size in groups.items()}
    quality, tastes = rng.normal(size=n_articles) * 0.5, rng.normal(size=(readers, n_topics)) * np.sqrt(2)
    homes = {name: rng.integers(groups[name], size=readers) for name in ("device", "region")}
    for reader in rng.permutation(readers * rounds) % readers:
        here = {name: int(rng.integers(size)) for name, size in groups.items()}
        here |= {name: int(of[reader]) for name, of in homes.items()}
        shared = sum(effects[name][value] for name, value in here.items()) / np.sqrt(2)
        rates = 0.02 + 0.28 * _logistic((shared + tastes[reader])[topics] + quality - 1)
        yield Round(f"u{reader}", {f"{name}={value}": 1.0 for name, value in here.items()}, actions, rates)


def _raw(rng: np.random.Generator, shoppers: int = 300, rounds: int = 40) -> Iterator[Round]:
    n_kinds = 4
    thrift, kinds = rng.normal(1.0, 1.0, size=shoppers), rng.normal(size=(shoppers, n_kinds))
    evening = rng.normal(size=n_kinds)
    for shopper in rng.permutation(shoppers * rounds) % shoppers:
        hour, basket = int(rng.integers(24)), float(rng.lognormal(3.5, 1.0))
        kind = rng.integers(n_kinds, size=8)
        price, age = rng.lognormal(3.0, 1.0, size=8), rng.exponential(60.0, size=8)
        wish = kinds[shopper, kind] + evening[kind] * (hour - 12) / 6 - np.log1p(age / 30)
        wish -= thrift[shopper] * (np.log(price) - 3) * (1.5 if basket < 30 else 0.5)
        actions = [
            {"_id=kind%d" % k: 1.0, "price": p, "age_days": a}  # noqa: UP031
            for k, p, a in zip(kind, price.tolist(), age.tolist(), strict=True)
        ]
        context = {"hour": float(hour), "basket": basket}
        yield Round(f"u{shopper}", context, actions, 0.6 * _logistic(wish - 1))


STREAMS: dict[str, Callable[[np.random.Generator], Iterator[Round]]] = {
    "digits": lambda rng: _digits(rng, 1, 1797, _same),
    "same": lambda rng: _digits(rng, 20, 600, _same),
    "permuted": lambda rng: _digits(rng, 20, 600, _permuted),
    "shuffled": lambda rng: _digits(rng, 20, 600, _shuffled),
    "news": _news,
    "wide": _wide,
    "raw": _raw,
}

# Players


class Player(Protocol):
    def decide(self, now: Round, draw: float) -> int: ...
    def learn(self, reward: float) -> None:
        """Learn the reward of the last decision."""


@lru_cache(maxsize=100_000)
def _hash(name: str) -> int:
    return zlib.crc32(name.encode())


@lru_cache(maxsize=100_000)
def _field(name: str) -> int:
    return zlib.crc32(name.partition("=")[0].encode())


class Kalman:
    """residual-kalman with optimistic squarecb; ``**settings`` are the model's."""

    def __init__(self, floor: float = FLOOR, greed: float = GREED, width: float = 1.0, **settings: Any) -> None:
        self.model, self.own = ResidualKalman(**settings), {}
        self.floor, self.greed, self.width = floor, greed, width

    def decide(self, now: Round, draw: float) -> int:
        context = [_hash(name) for name in now.context], [*now.context.values()]
        actions = [([*map(_hash, a)], [*a.values()], [*map(_field, a)]) for a in now.actions]
        self.request, self.user, n = request_of(context, actions), now.user, len(actions)
        found, out = self.model.predict(self.request, self.own.get(now.user, NO_MODEL)), np.empty(n)
        gamma = self.greed * self.model.learned**0.5
        optimistic_squarecb(found.means, self.width * found.widths, np.ones(n, np.bool_), 0.0, gamma, self.floor, out)
        self.action = pick(out, draw)
        return self.action

    def learn(self, reward: float) -> None:
        events = events_of([(self.request, self.action, reward, 0)])
        (self.own[self.user],) = self.model.learn(events, [self.own.get(self.user, NO_MODEL)])


class AdaGrad:
    """Today's service: the shared and personal ``--adaptive`` models with all crosses, ε-greedy with ε = .1."""

    def __init__(self) -> None:
        self.shared, self.own = SharedModel(), {}

    def decide(self, now: Round, draw: float) -> int:
        rows, n = [now.context, *now.actions], len(now.actions)
        hashes = np.array([_hash(name) for row in rows for name in row], np.uint32)
        values = np.array([value for row in rows for value in row.values()], np.float32)
        self.prepared = Prepared(hashes, values, np.cumsum([len(row) for row in rows]), True)
        self.mine, out = self.own.setdefault(now.user, PersonalModel()), np.empty(n)
        shared, personal = score(self.prepared, self.shared.weights, self.mine)
        scores = np.maximum((shared + personal).astype(float), 0.0)
        epsilon_greedy(scores, np.ones(n, np.bool_), 0.1, out)
        self.action = pick(out, draw)
        return self.action

    def learn(self, reward: float) -> None:
        learn(self.prepared, self.action, reward, self.shared, self.mine)


class VW:
    """Vowpal Wabbit's squarecb, as it comes."""

    def __init__(self) -> None:
        from vowpalwabbit import Workspace

        self.vw = Workspace("--cb_explore_adf --squarecb --cb_type mtr -q ca -q ua --quiet")

    def decide(self, now: Round, draw: float) -> int:
        self.lines = [f"shared |c {_words(now.context)} |u {now.user}", *[f"|a {_words(a)}" for a in now.actions]]
        self.chances = np.array(self.vw.predict(self.lines))
        self.action = pick(self.chances / self.chances.sum(), draw)
        return self.action

    def learn(self, reward: float) -> None:
        k = self.action
        lines = [*self.lines]
        lines[1 + k] = f"{k}:{-reward}:{self.chances[k]} {lines[1 + k]}"
        self.vw.learn(lines)


def _words(features: Features) -> str:
    return " ".join(name if value == 1 else f"{name}:{value}" for name, value in features.items())


PLAYERS: dict[str, Callable[[], Player]] = {"kalman": Kalman, "adagrad": AdaGrad, "vw": VW}

# Playing


def play(stream: str, player: Player, seed: int, most: int | None = None) -> tuple[float, float]:
    """Return the figure of a player over a stream, and microseconds a round."""
    rounds = STREAMS[stream](np.random.default_rng(seed))
    draws = np.random.default_rng([seed, 1])
    earned = uniform = best = 0.0
    n, by_chance, start = 0, False, time.perf_counter()
    for n, now in enumerate(rounds, 1):
        draw, luck = draws.random(2)
        action = player.decide(now, draw)
        player.learn(float(luck < now.chances[action]))
        earned += now.chances[action]
        uniform += now.chances.mean()
        best += now.chances.max()
        by_chance |= bool((now.chances % 1).any())
        if n == most:
            break
    took = 1e6 * (time.perf_counter() - start) / n
    return (earned - uniform) / (best - uniform) if by_chance else earned / n, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--players", default=",".join(PLAYERS))
    parser.add_argument("--seeds", default="301,302,303")
    parser.add_argument("--rounds", type=int, help="of each stream at most")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    players, seeds = options.players.split(","), [int(seed) for seed in options.seeds.split(",")]
    results: dict[str, dict[str, list[float]]] = {}
    if not options.json:
        print(f"{'stream':10}" + "".join(f"{name:>15}" for name in players))
    for stream in options.streams.split(","):
        results[stream] = {}
        for name in players:
            results[stream][name] = [play(stream, PLAYERS[name](), seed, options.rounds)[0] for seed in seeds]
        if not options.json:
            print(f"{stream:10}" + "".join(f"{_shown(results[stream][name]):>15}" for name in players), flush=True)
    if options.json:
        print(json.dumps({"seeds": seeds, "results": results}))


def _shown(figures: list[float]) -> str:
    error = np.std(figures, ddof=1) / len(figures) ** 0.5 if len(figures) > 1 else np.nan
    return f"{np.mean(figures):.3f} ± {error:.3f}"


if __name__ == "__main__":
    main()

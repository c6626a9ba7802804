"""Simulated streams in which a reward is a click: readers of news, and shoppers whose numbers come as they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedres.checks import Array
from libsvm_tasks.decisions.rounds import NOBODY, DecisionRound, Features, Rng

TOPICS, SEGMENTS = 4, 4
GROUPS = {"segment": SEGMENTS, "daypart": 4, "device": 3, "weekday": 7}  # of which the first two matter


@dataclass(frozen=True)
class News:
    """Readers choose among articles, each of one topic.

    A reader wants an article by what the segment and the time of day ask of its topic (shared), by the reader's own
    taste for the topic, and by the article's quality. Clicks have a chance of ``least`` to ``most``.
    """

    readers: int = 200
    rounds: int = 20_000
    shared: float = 0.5  # share of the variance of tastes that a segment has in common
    least: float = 0.02
    most: float = 0.3
    zipf: bool = False  # readers come as often as 1/rank
    late: bool = False  # only the first 5 rounds count of readers who first come in the second half
    churn: int = 0  # rounds until an article is replaced by a new one; 0 is never
    drift: bool = False  # half-way all tastes change
    cities: int = 0  # a category of the context that says nothing

    def __call__(self, rng: Rng) -> Iterator[DecisionRound]:
        users, articles = self._users(rng), 10
        homes = rng.integers(SEGMENTS, size=self.readers)
        tastes, topics = self._tastes(rng), np.arange(articles) % TOPICS
        quality, names, seen = 0.3 * rng.normal(size=articles), np.arange(articles), np.zeros(self.readers, np.int64)
        actions = [_article(name, topic) for name, topic in zip(names, topics, strict=True)]
        first_seen = np.full(self.readers, self.rounds)
        for t, user in enumerate(users):
            if self.drift and t == self.rounds // 2:
                tastes = self._tastes(rng)
            if self.churn and t and t % self.churn == 0:
                place, name = t // self.churn % articles, articles + t // self.churn
                topics[place], quality[place] = rng.integers(TOPICS), 0.3 * rng.normal()
                actions = [*actions[:place], _article(name, topics[place]), *actions[place + 1 :]]
            here = {group: int(rng.integers(size)) for group, size in GROUPS.items()} | {"segment": int(homes[user])}
            context = {f"{group}={value}": 1.0 for group, value in here.items()}
            if self.cities:
                context[f"city={rng.integers(self.cities)}"] = 1.0
            by_segment, by_time, own = tastes
            common = by_segment[here["segment"]] + by_time[here["daypart"]]
            wish = (np.sqrt(self.shared) * common + np.sqrt(1 - self.shared) * own[user])[topics] + quality
            first_seen[user] = min(first_seen[user], t)
            counts = not self.late or bool(first_seen[user] >= self.rounds // 2 and seen[user] < 5)
            seen[user] += 1
            rates = self.least + (self.most - self.least) * _logistic(6 * wish - 2)
            yield DecisionRound(f"u{user}", context, actions, rates, counts)

    def _users(self, rng: Rng) -> Array:
        if not self.zipf:
            return rng.permutation(self.rounds) % self.readers
        weights = 1 / np.arange(1, self.readers + 1)
        return rng.choice(self.readers, self.rounds, p=weights / weights.sum())

    def _tastes(self, rng: Rng) -> tuple[Array, Array, Array]:
        sizes = (SEGMENTS, GROUPS["daypart"], self.readers)
        by_segment, by_time, own = (rng.normal(size=(n, TOPICS)) for n in sizes)
        return 0.8 * by_segment, 0.6 * by_time, own


def _article(name: Any, topic: Any) -> Features:
    return {f"_id=article{name}": 1.0, f"topic=topic{topic}": 1.0}


def _logistic(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def wide(rng: Rng, readers: int = 200, rounds: int = 12_000) -> Iterator[DecisionRound]:
    """Ten articles of six topics; four categories of the context matter for every topic, and the reader."""
    groups = {"device": 3, "daypart": 5, "weekday": 7, "region": 7}  # 22 coordinates and the constant
    n_topics, n_articles = 6, 10
    topics = np.append(np.arange(n_topics), rng.integers(n_topics, size=n_articles - n_topics))
    actions = [_article(k, t) for k, t in enumerate(topics)]
    effects = {name: rng.normal(size=(size, n_topics)) for name, size in groups.items()}
    quality, tastes = rng.normal(size=n_articles) * 0.5, rng.normal(size=(readers, n_topics)) * np.sqrt(2)
    homes = {name: rng.integers(groups[name], size=readers) for name in ("device", "region")}
    for reader in rng.permutation(rounds) % readers:
        here = {name: int(rng.integers(size)) for name, size in groups.items()}
        here |= {name: int(of[reader]) for name, of in homes.items()}
        shared = np.sum([effects[name][value] for name, value in here.items()], axis=0) / np.sqrt(2)
        rates = 0.02 + 0.28 * _logistic((shared + tastes[reader])[topics] + quality - 1)
        yield DecisionRound(f"u{reader}", {f"{name}={value}": 1.0 for name, value in here.items()}, actions, rates)


def raw(rng: Rng, shoppers: int = 300, rounds: int = 12_000) -> Iterator[DecisionRound]:
    """Eight offers of four kinds with price and age in days; the context has the hour and the price of the basket."""
    n_kinds = 4
    thrift, kinds = rng.normal(1.0, 1.0, size=shoppers), rng.normal(size=(shoppers, n_kinds))
    evening = rng.normal(size=n_kinds)
    for shopper in rng.permutation(rounds) % shoppers:
        hour, basket = int(rng.integers(24)), float(rng.lognormal(3.5, 1.0))
        kind = rng.integers(n_kinds, size=8)
        price, age = rng.lognormal(3.0, 1.0, size=8), rng.exponential(60.0, size=8)
        wish = kinds[shopper, kind] + evening[kind] * (hour - 12) / 6 - np.log1p(age / 30)
        wish -= thrift[shopper] * (np.log(price) - 3) * (1.5 if basket < 30 else 0.5)
        actions = [
            {f"_id=kind{k}": 1.0, "price": p, "age_days": a}
            for k, p, a in zip(kind, price.tolist(), age.tolist(), strict=True)
        ]
        yield DecisionRound(f"u{shopper}", {"hour": float(hour), "basket": basket}, actions, 0.6 * _logistic(wish - 1))


def anonymous(rng: Rng, rounds: int = 8_000) -> Iterator[DecisionRound]:
    """Visitors without a name: twenty actions, and four categories of the context that all matter."""
    groups, n_actions = {"device": 3, "daypart": 4, "source": 6, "country": 8}, 20
    actions = [{f"_id=a{k}": 1.0} for k in range(n_actions)]
    effects = {name: 0.8 * rng.normal(size=(size, n_actions)) for name, size in groups.items()}
    usual = 0.5 * rng.normal(size=n_actions) - 2
    for _ in range(rounds):
        here = {name: int(rng.integers(size)) for name, size in groups.items()}
        wish = usual + np.sum([effects[name][value] for name, value in here.items()], axis=0)
        yield DecisionRound(NOBODY, {f"{name}={value}": 1.0 for name, value in here.items()}, actions, _logistic(wish))


def words(rng: Rng, rounds: int = 8_000) -> Iterator[DecisionRound]:
    """Texts of ten words out of 2,000, of one of twelve subjects: which of six sections would be clicked."""
    n_words, n_subjects, n_sections = 2_000, 12, 6
    vocabulary = rng.dirichlet(np.full(n_words, 0.02), n_subjects)
    rates = rng.uniform(0.02, 0.4, (n_subjects, n_sections))
    actions = [{f"_id=section{k}": 1.0} for k in range(n_sections)]
    for subject in rng.integers(n_subjects, size=rounds):
        drawn = rng.choice(n_words, 10, p=vocabulary[subject])
        yield DecisionRound(NOBODY, {f"word={word}": 1.0 for word in np.unique(drawn)}, actions, rates[subject])


def artists(
    rng: Rng, people: int = 600, n_artists: int = 17_000, rounds: int = 16_000, own: int = 30
) -> Iterator[DecisionRound]:
    """Eight artists without features, of which the person listens to two; tastes have a long tail and three scenes."""
    n_scenes = 40
    scenes, fame = rng.integers(n_scenes, size=n_artists), 1 / np.arange(1, n_artists + 1) ** 0.8
    names, mine = [{f"_id=artist{k}": 1.0} for k in range(n_artists)], []
    for _ in range(people):
        weights = fame * np.where(np.isin(scenes, rng.choice(n_scenes, 3, replace=False)), 20.0, 1.0)
        mine.append(rng.choice(n_artists, own, replace=False, p=weights / weights.sum()))
    heard = np.concatenate(mine)
    for person in rng.permutation(rounds) % people:
        others = rng.choice(heard, 50)  # as often as people listen to them
        others = np.unique(others[~np.isin(others, mine[person])])
        offered = np.append(rng.choice(mine[person], 2, replace=False), rng.choice(others, 6, replace=False))
        order = rng.permutation(8)
        actions = [names[k] for k in offered[order]]
        yield DecisionRound(f"u{person}", {}, actions, np.asarray(order < 2, float))


def coupons(rng: Rng, rounds: int = 8_000) -> Iterator[DecisionRound]:
    """Eight drivers who never come again, known by 25 categories that also matter in pairs: who uses a coupon?"""
    sizes = np.append(rng.integers(2, 6, size=20), rng.integers(6, 26, size=5))
    effects = [rng.normal(size=size) * (k % 2) * 0.5 for k, size in enumerate(sizes)]
    pairs = [tuple(rng.choice(len(sizes), 2, replace=False)) for _ in range(8)]
    crossed = [0.8 * rng.normal(size=(sizes[a], sizes[b])) for a, b in pairs]
    for t in range(rounds):
        levels = np.array([rng.integers(size, size=8) for size in sizes])
        wish = 0.3 + np.sum([effect[own] for effect, own in zip(effects, levels, strict=True)], axis=0)
        wish += np.sum([cross[levels[a], levels[b]] for cross, (a, b) in zip(crossed, pairs, strict=True)], axis=0)
        actions = [
            {f"_id=driver{8 * t + k}": 1.0, **{f"column{j}={level}": 1.0 for j, level in enumerate(levels[:, k])}}
            for k in range(8)
        ]
        yield DecisionRound(NOBODY, {}, actions, np.asarray(rng.random(8) < _logistic(wish), float))


def routing(rng: Rng, rounds: int = 10_000) -> Iterator[DecisionRound]:
    """Seven models, good at prompts of some kinds, lengths and amounts of numbers, that change places half-way."""
    n_models, n_kinds = 7, 6
    usual, by_kind = 0.5 * rng.normal(size=n_models), rng.normal(size=(n_kinds, n_models))
    by_length, by_numbers = rng.normal(size=(2, n_models)) * 0.7
    places = rng.permutation(n_models), rng.permutation(n_models)
    for t in range(rounds):
        kind, length, numbers = int(rng.integers(n_kinds)), float(rng.lognormal(4.0, 1.0)), int(rng.poisson(2.0))
        wish = usual + by_kind[kind] + by_length * (np.log(length) - 4) + by_numbers * (numbers - 2) / 2
        context = {f"kind=kind{kind}": 1.0, "length": round(length, 1), "numbers": float(numbers)}
        yield DecisionRound(NOBODY, context, ROUTED, _logistic(3 * wish - 2)[places[2 * t // rounds]])


ROUTED = [{f"_id=model{k}": 1.0} for k in range(7)]

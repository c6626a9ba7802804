"""Streams of what real people and systems did: ratings of films, and prompts that language models answered.

Files are read from the folder ``real`` below ``FEDRES_DATA`` and stay under their owners' terms. Only the order
is drawn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from libsvm_tasks.decisions.rounds import NOBODY, DecisionRound, Features, Rng
from libsvm_tasks.load import real_lines

MOVIELENS = tuple(f"movielens-100k.u.{part}" for part in ("data", "item", "user", "genre"))
PROMPTS = ("prompts.jsonl",)
OFFERED = 8  # films in a list
DOLLAR = 10.0  # cost of a dollar, in judged quality


class Movies(NamedTuple):
    """MovieLens 100k; films and people by their numbers in the files."""

    people: dict[int, Features]
    films: dict[int, Features]  # without the id
    rated: dict[int, Array]  # by person: the numbers of the films
    liked: dict[int, Array]  # by person: 1 for five stars, 0 for fewer


@lru_cache(maxsize=1)
def movielens() -> Movies:
    """Return what the files hold; ratings of people who are not in u.user are left out."""
    ratings, items, users, genre_lines = (real_lines(name, "latin-1") for name in MOVIELENS)
    genres = [line.rpartition("|")[0] for line in genre_lines]
    films, people = {}, {}
    for number, _, date, _, _, *flags in (line.split("|") for line in items):
        own = {f"genre={genre}": 1.0 for genre, flag in zip(genres, flags, strict=True) if flag == "1"}
        films[int(number)] = own | ({"year": float(date[-4:])} if date else {})
    for number, age, gender, job, _ in (line.split("|") for line in users):
        people[int(number)] = {"age": float(age), f"gender={gender}": 1.0, f"job={job}": 1.0}
    table = np.array([line.split("\t")[:3] for line in ratings], np.int64)
    rated, liked = {}, {}
    for person in people:
        own = table[table[:, 0] == person]
        rated[person], liked[person] = own[:, 1], (own[:, 2] == 5).astype(float)
    return Movies(people, films, rated, liked)


def movies(
    rng: Rng, people: int = 400, rounds: int = 16_000, *, fresh: bool = False, ids: bool = True, features: bool = True
) -> Iterator[DecisionRound]:
    """Yield lists of eight films that a person has rated; the reward is 1 for five stars.

    ``fresh``: a film that was chosen for a person is never offered to that person again. Without ``ids``, an action is
    known by its place in the list.
    """
    world = movielens()
    persons = rng.permutation([person for person, films in world.rated.items() if len(films) >= OFFERED])[:people]
    left = {int(person): np.arange(len(world.rated[person])) for person in persons}
    turns = rng.permutation(rounds) % len(persons)
    for turn in turns:
        person = int(persons[turn])
        if len(left[person]) < OFFERED:
            able = [who for who, films in left.items() if len(films) >= OFFERED]
            if not able:
                return
            person = int(rng.choice(able))
        offered = rng.choice(left[person], OFFERED, replace=False)
        numbers = world.rated[person][offered].tolist()
        actions = [
            {f"_id={f'film{film}' if ids else place}": 1.0, **(world.films[film] if features else {})}
            for place, film in enumerate(numbers)
        ]
        now = DecisionRound(f"u{person}", world.people[person], actions, world.liked[person][offered])
        yield now
        if fresh:
            left[person] = left[person][left[person] != offered[now.chosen]]


class Prompt(NamedTuple):
    """A prompt and what each model's answer is worth, from 0 to 1."""

    words: list[str]
    rewards: Array


@lru_cache(maxsize=1)
def judged_prompts() -> tuple[list[str], list[Prompt]]:
    """Return the models and the prompts of the file."""
    rows = [json.loads(line) for line in real_lines(*PROMPTS)]
    models = sorted(rows[0]["models"])
    worth = np.array([[row["models"][m]["reward"] - DOLLAR * row["models"][m]["cost"] for m in models] for row in rows])
    worth = (worth - worth.min()) / (worth.max() - worth.min())
    texts = [list(dict.fromkeys(re.findall(r"\w+", row["prompt"].lower()))) for row in rows]
    return models, [Prompt(text, rewards) for text, rewards in zip(texts, worth, strict=True)]


def prompts(rng: Rng, *, ids: bool = True) -> Iterator[DecisionRound]:
    """Yield prompts: which of the language models answers.

    The reward is the judged quality less ten times the cost in dollars, as a share of its range. Without ``ids``, a
    model is known by its place, its maker and the parts of its name.
    """
    models, rows = judged_prompts()
    named = [{f"_id={name}": 1.0} if ids else _parts(name) for name in models]
    for row in rng.permutation(len(rows)):
        words, rewards = rows[row]
        order = rng.permutation(len(models))
        actions = [named[k] if ids else {f"_id={place}": 1.0, **named[k]} for place, k in enumerate(order)]
        yield DecisionRound(NOBODY, {f"word={word}": 1.0 for word in words}, actions, rewards[order])


def _parts(name: str) -> Features:
    maker, _, model = name.partition("/")
    return {f"maker={maker}": 1.0, **{f"part={part}": 1.0 for part in model.split("-")}}

"""Pages of ten films out of all that a person has rated and has not been shown: ``fedres bench recommend``.

People take turns in an order that the seed draws; a person has a page for every twenty films rated, so half of them are
shown, none twice. After a page, the rewards of its places are learned: 1 for five stars.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from rich.table import Table

from fedres import checks
from fedres.checks import Array
from fedres.decisions.residual_kalman import NO_MODEL, Prediction, ResidualKalman, events_of
from fedres.policies import OptimisticSquareCB
from fedres.policies.kernels import explore, pick
from fedres.policies.shortlist import draw_one, ranked
from libsvm_tasks import grid, load
from libsvm_tasks.decisions.players import CUBIC, QUADRATIC, VW_POLICIES, vw_lines
from libsvm_tasks.decisions.real import MOVIELENS, Movies, movielens
from libsvm_tasks.decisions.report import shown as mean_and_error
from libsvm_tasks.decisions.rounds import DecisionRound

PLACES = 10
FILMS_A_PAGE = 20  # rated by the person
MOST_CANDIDATES = 500  # of a rank request; those who take no more are offered as many, drawn by the seed
RULE = OptimisticSquareCB().rule((0.0, 1.0))
DISCOUNTS: Array = 1 / np.log2(np.arange(2, PLACES + 2))
PRIOR = 10  # events with the usual reward that are added to those of a film


class PagePlayer(Protocol):
    def choose(self, now: DecisionRound, draws: Array) -> list[int]:
        """Return the actions for the places, the first one first."""

    def learn(self, now: DecisionRound, shown: Sequence[int], rewards: Array) -> None: ...


class Figures(NamedTuple):
    """How well a player did."""

    five_stars: float  # share of the films shown
    ndcg: float  # mean of pages, against the best page of what was left; pages without any film of five stars left out


def play(world: Movies, player: PagePlayer, seed: int, most: int | None = None, pages: int | None = None) -> Figures:
    """Return the figures of a player who is offered ``most`` candidates."""
    rng, draws = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    persons = np.array([*world.rated])
    turns = rng.permutation(np.repeat(persons, [len(world.rated[person]) // FILMS_A_PAGE for person in persons]))
    left = {int(person): rng.permutation(len(world.rated[person])) for person in persons}
    earned, gains = [], []
    for person in turns[:pages].tolist():
        offered = left[person][:most]
        films = world.rated[person][offered].tolist()
        actions = [{f"_id=film{film}": 1.0, **world.films[film]} for film in films]
        now = DecisionRound(f"u{person}", world.people[person], actions, world.liked[person][offered])
        shown = player.choose(now, draws.random(PLACES))
        rewards = now.chances[shown]
        player.learn(now, shown, rewards)
        earned.append(rewards.mean())
        best = np.sort(world.liked[person][left[person]])[::-1][:PLACES]
        if best[0]:
            gains.append(rewards @ DISCOUNTS / (best @ DISCOUNTS))
        left[person] = left[person][~np.isin(left[person], offered[shown])]
    return Figures(float(np.mean(earned)), float(np.mean(gains)))


class Recommend:
    """What the service draws for ``POST /v1/recommend``: the model's page with the loop's default policy."""

    def __init__(self) -> None:
        self.model = ResidualKalman()
        self.own: dict[str, Array] = {}

    def choose(self, now: DecisionRound, draws: Array) -> list[int]:
        prediction = self.predict(now)
        keys, allowed = now.request.hashes[now.request.starts[:-1]], np.ones(len(now.actions), np.bool_)
        scores, front, last = ranked(RULE, prediction.means, prediction.widths, keys, allowed, draws.size)
        shown = []
        for place, draw in enumerate(draws):
            count = len(now.actions) - place
            action, _ = draw_one(RULE, self.model.learned, scores, front, last, keys, allowed, count, draw)
            allowed[action] = False
            shown.append(action)
        return shown

    def predict(self, now: DecisionRound) -> Prediction:
        return self.model.predict(now.request, self.own.get(now.user, NO_MODEL))

    def learn(self, now: DecisionRound, shown: Sequence[int], rewards: Array) -> None:
        events = events_of([(now.request, action, reward, 0) for action, reward in zip(shown, rewards, strict=True)])
        (self.own[now.user],) = self.model.learn(events, [self.own.get(now.user, NO_MODEL)])


class Rank(Recommend):
    """What rank requests choose, one for each place, without the actions chosen before."""

    def choose(self, now: DecisionRound, draws: Array) -> list[int]:
        prediction, chances = self.predict(now), np.empty(len(now.actions))
        allowed = np.ones(chances.size, np.bool_)
        shown = []
        for draw in draws:
            explore(RULE, 0, self.model.learned, prediction.means, prediction.widths, allowed, chances)
            shown.append(pick(chances, draw))
            allowed[shown[-1]] = False
        return shown


class Best(Recommend):
    """The highest expected rewards of the same model: nothing is tried."""

    def choose(self, now: DecisionRound, draws: Array) -> list[int]:
        return top(self.predict(now).means, draws)


def top(scores: Array, draws: Array) -> list[int]:
    """Return the actions with the highest scores; the first number orders those that tie."""
    order = np.random.default_rng(int(draws[0] * 2**53)).permutation(scores.size)
    best: list[int] = order[np.argsort(-scores[order], kind="stable")][: draws.size].tolist()
    return best


class UniformPages:
    """Every film as often as any other."""

    def choose(self, now: DecisionRound, draws: Array) -> list[int]:
        return top(np.zeros(len(now.actions)), draws)

    def learn(self, now: DecisionRound, shown: Sequence[int], rewards: Array) -> None:
        pass


class PopularPages:
    """The films with the highest mean reward so far, drawn to the mean of all films by ten events."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, int]] = {}  # rewards and events of each film, of all under ""

    def choose(self, now: DecisionRound, draws: Array) -> list[int]:
        return top(self.means([film_of(action) for action in now.actions]), draws)

    def means(self, films: Sequence[str]) -> Array:
        total, n = self.sums.get("", (0.0, 0))
        usual, sums = total / max(n, 1), [self.sums.get(film, (0.0, 0)) for film in films]
        return np.array([(rewards + PRIOR * usual) / (events + PRIOR) for rewards, events in sums])

    def learn(self, now: DecisionRound, shown: Sequence[int], rewards: Array) -> None:
        for action, reward in zip(shown, rewards.tolist(), strict=True):
            for name in ("", film_of(now.actions[action])):
                total, events = self.sums.get(name, (0.0, 0))
                self.sums[name] = total + reward, events + 1


def film_of(action: Mapping[str, float]) -> str:
    return next(iter(action))


class ALS:
    """Alternating least squares of ``implicit``, fitted to all rewards every 1,000 events; before, popularity.

    A reward of 1 is a preference with the confidence ``weight``; 0 says that there is none, with the same confidence.
    Between two fits, what a person was shown since counts for that person.
    """

    EVERY = 1_000

    def __init__(self, factors: int = 16, weight: float = 4.0, regularization: float = 10.0) -> None:
        self.options = {"factors": factors, "regularization": regularization, "iterations": 15, "num_threads": 1}
        self.weight, self.popularity = weight, PopularPages()
        self.people: dict[str, int] = {}
        self.films: dict[str, int] = {}
        self.events: list[list[tuple[int, float]]] = []  # by person: films and confidences, negative for a reward of 0
        self.n_events, self.n_fitted, self.n_films = 0, 0, 0
        self.model: Any = None

    def choose(self, now: DecisionRound, draws: Array) -> list[int]:
        films = [film_of(action) for action in now.actions]
        scores = self.popularity.means(films)
        if self.model is not None and now.user in self.people:
            factors = self.model.recalculate_user(0, self._matrix([self.events[self.people[now.user]]]))
            expected = np.append(self.model.item_factors @ factors, 0.0)  # the last one is of films without factors
            scores = expected[[min(self.films.get(film, self.n_films), self.n_films) for film in films]]
        return top(scores, draws)

    def learn(self, now: DecisionRound, shown: Sequence[int], rewards: Array) -> None:
        self.popularity.learn(now, shown, rewards)
        if now.user not in self.people:
            self.people[now.user] = len(self.people)
            self.events.append([])
        for action, reward in zip(shown, rewards.tolist(), strict=True):
            film = self.films.setdefault(film_of(now.actions[action]), len(self.films))
            self.events[self.people[now.user]].append((film, self.weight if reward else -self.weight))
        self.n_events += len(shown)
        if self.n_events >= self.n_fitted + self.EVERY:
            self.n_fitted, self.n_films = self.n_events, len(self.films)
            self.model = import_module("implicit.cpu.als").AlternatingLeastSquares(random_state=0, **self.options)
            self.model.fit(self._matrix(self.events), show_progress=False)

    def _matrix(self, people: Sequence[Sequence[tuple[int, float]]]) -> Any:
        """Return the events of people with films that have factors."""
        from scipy.sparse import csr_matrix

        rows = [[event for event in events if event[0] < self.n_films] for events in people]
        ends, events = np.cumsum([0, *map(len, rows)]), [event for row in rows for event in row]
        films, values = zip(*events, strict=True) if events else ((), ())
        return csr_matrix((np.array(values, np.float32), films, ends), shape=(len(rows), self.n_films))


class VWPages:
    """Vowpal Wabbit's cb_explore_adf, a prediction for each place without the films before; greedy, one for the page.

    It learns a place from the list it was drawn from with its probability (mtr) or, ``alone``, from the film that was
    shown only, as a regression.
    """

    def __init__(self, explore: str, options: str, *, alone: bool) -> None:
        self.alone, self.probabilities = alone, list[float]()
        self.greedy = explore == VW_POLICIES["greedy"]
        kind = "--cb_adf --rank_all" if self.greedy else f"--cb_explore_adf {explore}"
        self.vw: Any = import_module("vowpalwabbit").Workspace(f"{kind} --cb_type mtr {options} --quiet")

    def choose(self, now: DecisionRound, draws: Array) -> list[int]:
        self.examples = self.vw.parse("\n".join(vw_lines(now)))
        left, shown, self.probabilities = [*range(len(now.actions))], [], []
        if self.greedy:
            self.probabilities = [1.0] * draws.size
            return top(-np.array(self.vw.predict(self.examples)), draws)  # costs
        for draw in draws:
            chances = np.array(self.vw.predict([self.examples[0], *[self.examples[1 + action] for action in left]]))
            place = pick(chances / chances.sum(), draw)
            self.probabilities.append(chances[place])
            shown.append(left.pop(place))
        return shown

    def learn(self, now: DecisionRound, shown: Sequence[int], rewards: Array) -> None:
        left = [*range(len(now.actions))]
        for action, reward, chance in zip(shown, rewards.tolist(), self.probabilities, strict=True):
            example = self.examples[1 + action]
            example.set_label_string(f"0:{-reward}:{1 if self.alone else chance}")
            learned = [action] if self.alone else left
            self.vw.learn([self.examples[0], *[self.examples[1 + each] for each in learned]])
            example.set_label_string("")
            left.remove(action)
        self.vw.finish_example(self.examples)


class NamedPagePlayer(NamedTuple):
    """A player by name."""

    make: Callable[[], PagePlayer]
    most: int | None = None  # candidates that are offered
    package: str = "numpy"  # required package


def _vw(explore: str, options: str, alone: bool) -> NamedPagePlayer:
    return NamedPagePlayer(lambda: VWPages(explore, options, alone=alone), MOST_CANDIDATES, "vowpalwabbit")


VW_FORMS = {
    f"vw-{policy}{form}{rate}{how}": _vw(explore, crosses + step, bool(how))
    for policy, explore in VW_POLICIES.items()
    for form, crosses in (("", QUADRATIC), ("-cubic", CUBIC))
    for rate, step in (("", ""), ("-l0.1", " -l 0.1"), ("-l2", " -l 2"))
    for how in ("", "-alone")
}
PLAYERS: dict[str, NamedPagePlayer] = {
    "recommend": NamedPagePlayer(Recommend),
    "rank": NamedPagePlayer(Rank, MOST_CANDIDATES),
    "best": NamedPagePlayer(Best),
    "popularity": NamedPagePlayer(PopularPages),
    "als": NamedPagePlayer(ALS, package="implicit"),
    **VW_FORMS,
    "uniform": NamedPagePlayer(UniformPages),
}


class Piece(NamedTuple):
    """A player with a seed; ``pages`` at most."""

    player: str
    seed: int
    pages: int | None


def play_piece(piece: Piece) -> dict[str, float]:
    entry, start = PLAYERS[piece.player], time.process_time()
    figures = play(movielens(), entry.make(), piece.seed, entry.most, piece.pages)
    return {**figures._asdict(), "seconds": time.process_time() - start}


FiguresBySeed = dict[tuple[str, int], Figures]  # by player and seed


def absent(player: str) -> str | None:
    """Return why a player cannot play here, or None."""
    if reason := next((reason for name in MOVIELENS if (reason := load.absent(name))), None):
        return reason
    package = PLAYERS[player].package
    return None if find_spec(package) else f"{package} is not installed: pip install 'fedres[vw,peers]'"


def players_of(names: str) -> list[str]:
    """Return the players of an option, names with commas; ``vw-all`` is every form of VW, ``all`` has four of them.

    >>> players_of("recommend,vw-all")[:3]
    ['recommend', 'vw-squarecb', 'vw-squarecb-alone']
    """
    few = [f"vw-{policy}-alone" for policy in VW_POLICIES]
    groups = {"all": [name for name in PLAYERS if name not in VW_FORMS or name in few], "vw-all": [*VW_FORMS]}
    players = [*dict.fromkeys(player for name in names.split(",") for player in groups.get(name, [name]))]
    for name in players:
        checks.one_of("players", name, tuple(PLAYERS))
    return players


def run(
    players: Sequence[str],
    seeds: Sequence[int],
    *,
    pages: int | None = None,
    jobs: int = 1,
    journal: Path | None = None,
    played: FiguresBySeed | None = None,
    progress: grid.Progress | None = None,
) -> FiguresBySeed:
    """Return the figures of players, with those of ``played``, which are not played again."""
    figures = {**(played or {})}
    pieces = [Piece(player, seed, pages) for seed in seeds for player in players if (player, seed) not in figures]
    results = grid.run(play_piece, pieces, jobs=jobs, journal=journal, progress=progress)
    for piece, result in zip(pieces, results, strict=True):
        figures[piece.player, piece.seed] = Figures(result["five_stars"], result["ndcg"])
    return figures


def rows_of(figures: FiguresBySeed, seeds: Sequence[int]) -> list[list[str]]:
    """Return name, five stars and nDCG of each player, and how far ``recommend`` is ahead, paired by seed."""
    rows = []
    for player in sorted({name for name, _ in figures}, key=[*PLAYERS].index):
        if not all((player, seed) in figures for seed in seeds):
            continue
        row = [player]
        for column in range(2):
            values = [figures[player, seed][column] for seed in seeds]
            ours = [figures["recommend", seed][column] for seed in seeds if ("recommend", seed) in figures]
            ahead = [a - b for a, b in zip(ours, values, strict=False)] if player != "recommend" else []
            row += [mean_and_error(values), mean_and_error(ahead, "+")]
        rows.append(row)
    return rows


COLUMNS = ("player", "five stars", "recommend is ahead by", "nDCG@10", "recommend is ahead by")


def table(figures: FiguresBySeed, seeds: Sequence[int]) -> Table:
    result = Table(title=f"Pages of ten films; mean ± standard error over the seeds {seeds}", title_justify="left")
    for number, name in enumerate(COLUMNS):
        result.add_column(name, no_wrap=number == 0, justify="right" if number else "left")
    for row in rows_of(figures, seeds):
        result.add_row(*row)
    return result


def markdown(figures: FiguresBySeed, seeds: Sequence[int]) -> str:
    """Return the same for docs/."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows_of(figures, seeds)]
    return "\n".join([f"| {' | '.join(line)} |" for line in lines])


def read_csv(path: Path) -> FiguresBySeed:
    """Return the figures of a file; none where there is no file."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["player"], int(row["seed"])): Figures(float(row["five_stars"]), float(row["ndcg"]))
            for row in csv.DictReader(file)
        }


def write_csv(path: Path, figures: FiguresBySeed) -> None:
    keys = sorted(figures, key=lambda key: ([*PLAYERS].index(key[0]), key[1]))
    lines = [
        f"{player},{seed},{figures[player, seed][0]:.4f},{figures[player, seed][1]:.4f}\n" for player, seed in keys
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("player,seed,five_stars,ndcg\n" + "".join(lines), encoding="utf-8")

"""Who plays: residual-kalman and it with a part removed, adagrad, LinUCB, Vowpal Wabbit, river, obp and baselines.

A player sees a round and a uniform number, chooses, and keeps in a token what it needs once the reward arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import numpy as np

from bandits.models.least_squares import add_row
from fedres.checks import Array
from fedres.compiling import kernel
from fedres.decisions.residual_kalman import NO_MODEL, Prediction, ResidualKalman, events_of
from fedres.policies import EpsilonGreedy, OptimisticSquareCB
from fedres.policies.kernels import explore, pick
from fedres.scoring.features import Prepared
from fedres.scoring.model import PersonalModel, SharedModel, learn, score
from libsvm_tasks.bandit_peers import PEERS
from libsvm_tasks.decisions.ablations import Diagonal, FixedPrior, NoBiases, NoPairs, NoScaling
from libsvm_tasks.decisions.rounds import NOBODY, DecisionRound, DecisionStream, Features

KALMAN_RULE, ADAGRAD_RULE = OptimisticSquareCB().rule((0.0, 1.0)), EpsilonGreedy(0.1).rule((0.0, 1.0))

Choice = tuple[int, Any]  # the action, and a token for ``learn``


class Player(Protocol):
    def decide(self, now: DecisionRound, draw: float) -> Choice: ...
    def learn(self, token: Any, reward: float) -> None: ...


class KalmanPlayer:
    """residual-kalman with optimistic squarecb.

    ``users``: everybody's own ("each"), one model for all ("one"), or a model for each user alone ("alone").
    ``width`` multiplies widths.
    """

    def __init__(
        self, users: str = "each", width: float = 1.0, make: Callable[[], ResidualKalman] = ResidualKalman
    ) -> None:
        self.users, self.width, self.make = users, width, make
        self.models: dict[str, ResidualKalman] = {}
        self.own: dict[str, Array] = {}

    def decide(self, now: DecisionRound, draw: float) -> Choice:
        request, whose = now.request, now.user if self.users == "alone" else ""
        if whose not in self.models:
            self.models[whose] = self.make()
        model = self.models[whose]
        own = self.own.get(now.user, NO_MODEL) if self.users == "each" and now.user != NOBODY else None
        prediction, out = model.predict(request, own), np.empty(len(now.actions))
        action = _choose(prediction, self.width, model.learned, draw, out)
        return action, (model, now.user, request, action)

    def learn(self, token: Any, reward: float) -> None:
        model, user, request, action = token
        if self.users != "each" or user == NOBODY:
            model.learn(events_of([(request, action, reward, -1)]))
            return
        events = events_of([(request, action, reward, 0)])
        (self.own[user],) = model.learn(events, [self.own.get(user, NO_MODEL)])


def _choose(prediction: Prediction, width: float, learned: int, draw: float, out: Array) -> int:
    explore(KALMAN_RULE, 0, learned, prediction.means, width * prediction.widths, np.ones(out.size, np.bool_), out)
    return pick(out, draw)


class Unscaled:
    """residual-kalman without scales."""

    def __init__(self) -> None:
        self.model = NoScaling()

    def decide(self, now: DecisionRound, draw: float) -> Choice:
        request, out = now.request, np.empty(len(now.actions))
        action = _choose(self.model.predict(request, now.user), 1.0, self.model.learned, draw, out)
        return action, (request, action, now.user)

    def learn(self, token: Any, reward: float) -> None:
        request, action, user = token
        self.model.learn_one(request, action, reward, user)


class AdaGradPlayer:
    """The service's model ``adagrad``: shared and personal ``--adaptive`` steps with all crosses; ε-greedy, ε = 0.1."""

    def __init__(self) -> None:
        self.shared = SharedModel()
        self.own: dict[str, PersonalModel] = {}

    def decide(self, now: DecisionRound, draw: float) -> Choice:
        request, out = now.request, np.empty(len(now.actions))
        prepared = Prepared(request.hashes, request.values, request.starts, True)
        mine = self.own.setdefault(now.user, PersonalModel())
        shared, personal = score(prepared, self.shared.weights, mine)
        scores = (shared + personal).astype(float)
        explore(ADAGRAD_RULE, 0, 0, scores, scores, np.ones(out.size, np.bool_), out)
        action = pick(out, draw)
        return action, (prepared, action, mine)

    def learn(self, token: Any, reward: float) -> None:
        prepared, action, mine = token
        learn(prepared, action, reward, self.shared, mine)


class VWPlayer:
    """Vowpal Wabbit's cb_explore_adf; parsed once, so that a round costs what it must."""

    def __init__(self, explore: str, crosses: str) -> None:
        self.waiting: dict[int, Any] = {}  # examples without a reward, by identity
        vw = import_module("vowpalwabbit")
        self.vw: Any = vw.Workspace(f"--cb_explore_adf {explore} --cb_type mtr {crosses} --quiet")

    def decide(self, now: DecisionRound, draw: float) -> Choice:
        examples = self.vw.parse("\n".join(vw_lines(now)))
        chances = np.array(self.vw.predict(examples))
        action = pick(chances / chances.sum(), draw)
        self.waiting[id(examples)] = examples
        return action, (examples, action, chances[action])

    def learn(self, token: Any, reward: float) -> None:
        examples, action, chance = token
        del self.waiting[id(examples)]
        examples[1 + action].set_label_string(f"0:{-reward}:{chance}")
        self.vw.learn(examples)
        self.vw.finish_example(examples)

    def __del__(self) -> None:
        for examples in self.waiting.values():  # else VW never frees them
            self.vw.finish_example(examples)


def vw_lines(now: DecisionRound) -> list[str]:
    """Return a round as VW reads it: namespaces c, u and a."""
    return [f"shared |c {_words(now.context)} |u {now.user}", *[f"|a {_words(action)}" for action in now.actions]]


def _words(features: Features) -> str:
    return " ".join([name if value == 1 else f"{name}:{value:.7g}" for name, value in features.items()])


@kernel
def _upper_bound(inverse: Array, weights: Array, x: Array, alpha: float) -> float:
    mean, variance = 0.0, 0.0
    for i in range(x.size):
        mean += weights[i] * x[i]
        total = 0.0
        for j in range(x.size):
            total += inverse[i, j] * x[j]
        variance += x[i] * total
    bound: float = mean + alpha * np.sqrt(max(variance, 0.0))
    return bound


class Scaled:
    """Features over the largest size of theirs seen so far, as a dense vector that grows with their names."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {"": 0}
        self.largest: dict[str, float] = {}

    def scaled(self, features: Features) -> Features:
        for name, value in features.items():
            self.largest[name] = max(self.largest.get(name, 0.0), abs(value))
        return {name: value / self.largest[name] for name, value in features.items() if value}

    def dense(self, features: Features) -> Array:
        for name in features:
            self.places.setdefault(name, len(self.places))
        x = np.zeros(len(self.places))
        for name, value in features.items():
            x[self.places[name]] = value
        return x


class LinUCBPlayer:
    """LinUCB with a ridge regression for each action id, of α = 0.5 and ridge 0.5; one for all, or each user alone.

    Features are the constant, the context, the action's numbers, and these crossed with the context.
    """

    def __init__(self, *, alone: bool, alpha: float = 0.5, ridge: float = 0.5) -> None:
        self.alone, self.alpha, self.ridge = alone, alpha, ridge
        self.inputs = Scaled()
        self.arms: dict[tuple[str, str], tuple[Array, Array]] = {}

    def decide(self, now: DecisionRound, draw: float) -> Choice:
        whose, context = now.user if self.alone else "", self.inputs.scaled(now.context)
        bounds: list[float] = []
        options: list[tuple[str, str, Array]] = []
        for action in now.actions:
            numbers = self.inputs.scaled({name: value for name, value in action.items() if "=" not in name})
            crosses = {f"{a}*{b}": v * w for a, v in numbers.items() for b, w in context.items()}
            x = (
                self.inputs.dense({"": 1.0, **context, **numbers, **crosses})
                if numbers or not options
                else options[0][2]
            )
            arm = whose, next(iter(action))
            bounds.append(_upper_bound(*self._arm(arm, x.size), x, self.alpha))
            options.append((*arm, x))
        best = np.flatnonzero(np.array(bounds) == max(bounds))
        choice = int(best[int(draw * best.size)])
        return choice, options[choice]

    def learn(self, token: Any, reward: float) -> None:
        *arm, x = token
        inverse, weights = self._arm((arm[0], arm[1]), x.size)
        add_row(inverse, weights, np.append(x, np.zeros(weights.size - x.size)), reward)

    def _arm(self, arm: tuple[str, str], size: int) -> tuple[Array, Array]:
        """Return the inverse and the weights of an arm, made larger where new features have come up."""
        inverse, weights = self.arms.get(arm) or (np.zeros((0, 0)), np.zeros(0))
        if weights.size < size:
            room, n = (np.eye(size) / self.ridge, np.zeros(size)), weights.size
            room[0][:n, :n], room[1][:n] = inverse, weights
            inverse, weights = self.arms[arm] = room
        return inverse, weights


class PopularityPlayer:
    """The id with the highest mean reward so far; means are drawn to the mean of all ids by five events."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[float, int]] = {}  # rewards and events of each id, of all under ""

    def decide(self, now: DecisionRound, draw: float) -> Choice:
        names = [next(iter(action)) for action in now.actions]
        total, n = self.sums.get("", (0.0, 0))
        usual = total / n if n else 0.0
        sums = [self.sums.get(name, (0.0, 0)) for name in names]
        means = np.array([(rewards + 5 * usual) / (events + 5) for rewards, events in sums])
        best = np.flatnonzero(means == means.max())
        choice = int(best[int(draw * best.size)])
        return choice, names[choice]

    def learn(self, token: Any, reward: float) -> None:
        for name in ("", token):
            rewards, events = self.sums.get(name, (0.0, 0))
            self.sums[name] = rewards + reward, events + 1


class UniformPlayer:
    """Every action as often as any other."""

    def decide(self, now: DecisionRound, draw: float) -> Choice:
        return int(draw * len(now.actions)), None

    def learn(self, token: Any, reward: float) -> None:
        pass


class Peer:
    """Another library's policy, on actions that stay the same; it knows no users, and rewards arrive at once."""

    def __init__(self, title: str, stream: DecisionStream) -> None:
        self.inputs, self.title, self.dim = Scaled(), title, stream.dim
        self.runner: Any = None

    def decide(self, now: DecisionRound, draw: float) -> Choice:
        if self.runner is None:
            self.runner = PEERS[self.title][1](len(now.actions), 1 + self.dim)
        x = self.inputs.dense({"": 1.0, **self.inputs.scaled(now.context)})
        return self.runner.step(self.runner.context(np.append(x, np.zeros(1 + self.dim - x.size)))), None

    def learn(self, token: Any, reward: float) -> None:
        self.runner.learn(reward)


class NamedPlayer(NamedTuple):
    """A player by name."""

    make: Callable[[DecisionStream], Player]
    plays: Callable[[DecisionStream], bool] = lambda stream: True
    # The package that must be installed.
    package: str = "numpy"

    @property
    def installed(self) -> bool:
        return find_spec(self.package) is not None


def _vw(explore: str, crosses: str, plays: Callable[[DecisionStream], bool] = lambda stream: True) -> NamedPlayer:
    return NamedPlayer(lambda stream: VWPlayer(explore, crosses), plays, "vowpalwabbit")


def _peer(title: str) -> NamedPlayer:
    return NamedPlayer(partial(Peer, title), lambda stream: stream.peers, PEERS[title][0])


QUADRATIC, CUBIC, PAIRS = "-q ca -q ua", "-q ca -q ua --cubic uca", "-q ca -q aa"
VW_POLICIES = {
    "squarecb": "--squarecb",
    "greedy": "--epsilon 0",
    "epsilon02": "--epsilon 0.02",
    "regcbopt": "--regcb --regcbopt --mellowness 0.001 --cb_min_cost -1 --cb_max_cost 0",
}
VW_FORMS: dict[str, tuple[str, Callable[[DecisionStream], bool]]] = {
    "": (QUADRATIC, lambda stream: True),
    "-cubic": (CUBIC, lambda stream: stream.users > 0),
    "-pairs": (PAIRS, lambda stream: stream.users == 0),  # where cubic is the same as without: nobody names a user
}
VW_RATES = {"": "", "-l0.1": " -l 0.1", "-l2": " -l 2"}  # VW's default is 0.5
_TUNED = {
    f"vw-{policy}{form}{rate}": _vw(explore + step, crosses, plays)
    for policy, explore in VW_POLICIES.items()
    for form, (crosses, plays) in VW_FORMS.items()
    for rate, step in VW_RATES.items()
}
VW_TUNED = (*_TUNED,)  # the first of them is VW at its defaults
PLAYERS: dict[str, NamedPlayer] = {
    "residual-kalman": NamedPlayer(lambda stream: KalmanPlayer()),
    **_TUNED,
    "vw-epsilon": _vw("--epsilon 0.1", QUADRATIC),
    "vw-coin": _vw("--squarecb --coin", QUADRATIC),
    "uniform": NamedPlayer(lambda stream: UniformPlayer()),
    "popularity": NamedPlayer(lambda stream: PopularityPlayer(), lambda stream: stream.ids),
    "linucb": NamedPlayer(lambda stream: LinUCBPlayer(alone=False), lambda stream: stream.dim <= 300 and stream.ids),
    "linucb-alone": NamedPlayer(
        lambda stream: LinUCBPlayer(alone=True), lambda stream: stream.dim <= 300 and stream.ids and stream.users > 1
    ),
    "adagrad": NamedPlayer(lambda stream: AdaGradPlayer()),
    "river-linucb": _peer("river LinUCBDisjoint"),
    "obp-linucb": _peer("obp LinUCB"),
    "one-for-all": NamedPlayer(lambda stream: KalmanPlayer("one"), lambda stream: stream.users > 1),
    "each-alone": NamedPlayer(lambda stream: KalmanPlayer("alone"), lambda stream: stream.users > 1),
    "fixed-prior": NamedPlayer(lambda stream: KalmanPlayer(make=FixedPrior), lambda stream: stream.users > 1),
    "no-scaling": NamedPlayer(lambda stream: Unscaled(), lambda stream: stream.dim <= 64),
    "diagonal": NamedPlayer(lambda stream: KalmanPlayer(make=Diagonal)),
    "no-biases": NamedPlayer(lambda stream: KalmanPlayer(make=NoBiases), lambda stream: stream.users > 1),
    "no-pairs": NamedPlayer(lambda stream: KalmanPlayer(make=NoPairs)),
    "no-width": NamedPlayer(lambda stream: KalmanPlayer(width=0.0)),
}

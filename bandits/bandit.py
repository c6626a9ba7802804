"""The federated contextual bandit [FedRes, section 5]: shared and personal models predict, a policy explores."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import asdict, astuple
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np

from bandits.actions import Actions, NamedActions, as_actions, named_actions
from bandits.decisions import BanditClient, Decision, UnknownDecisionError, Waiting
from bandits.models.kinds import MODELS, Kalman, Kind, check_widths
from bandits.models.protocol import NOBODY, BanditModel, Sample, Stored, decide_by
from bandits.saving import read, write
from fedres import checks
from fedres.checks import Array
from fedres.policies import Compiled, Policy, name_of, policy_names
from fedres.policies import policy as make_policy
from fedres.policies.kernels import check_seed

Layout = tuple[int, int, int, int]  # weights and stride of the shared actions, and of the private ones


class Bandit:
    """Clients who decide, each with a personal model beside the shared one; rewards may come at any time, or never.

    >>> bandit = Bandit(seed=0)
    >>> drinks = [Action("tea", hot=True), Action("juice", hot=False)]
    >>> decision = bandit.decide("anna", {"weather": "cold"}, drinks)
    >>> bandit.reward(decision, 1.0)

    ``model`` is an object or a name: ``Kalman()`` ("residual-kalman", the default, as in hosted loops), ``AdaGrad()``,
    ``LinearUCB()``, or ``Federated(learner)``. ``policy`` is an object or a name with options, such as
    "epsilon-greedy:epsilon=0.1"; the default is the policy that suits the model.

    ``Kalman`` takes named features, and every decision may offer other actions. All models take numbers:
    ``arms(context, n)``, ``rows(table)`` or ``sparse(pairs, dim)``. They go to the shared model and, unless ``private``
    ones are given, to the personal model too.

    A reward is learned at once. With ``rounds`` it is learned when its round is over, as in the paper: once a client
    decides for a second time, the models learn from the rewards that came in, one a client and round, and messages
    move on. ``end_round`` does it by hand.
    """

    def __init__(
        self,
        model: Kind | str | None = None,
        policy: Policy | str | None = None,
        *,
        reward_range: tuple[float, float] = (0.0, 1.0),
        max_waiting: int = 100_000,
        seed: int = 0,
        rounds: bool = False,
    ) -> None:
        checks.whole("max_waiting", max_waiting)
        check_seed(seed)
        self.model = _model(model)
        self.policy = make_policy(self.model.suits if policy is None else policy)
        check_widths(self.model, self.policy)
        self._rule = self.policy.rule((0.0, 1.0)) if isinstance(self.policy, Compiled) else None
        low, high = reward_range
        if not (np.isfinite([low, high, high - low]).all() and low < high):
            raise ValueError(f"reward_range must be (low, high) with low < high, got {reward_range!r}")
        self._low, self._width = float(low), float(high - low)
        self._plain = self._low == 0 and self._width == 1  # rewards are counted as the models count them
        self._settings = {"reward_range": (low, high), "max_waiting": max_waiting, "seed": seed, "rounds": rounds}
        self._seed, self._max_waiting, self._rounds = seed, max_waiting, rounds
        self._model: BanditModel | None = None
        # The arguments that the model was started with.
        self._first: tuple[Any, Any] | None = None
        self._layout: Layout | None = None
        self._clients: dict[Hashable, BanditClient] = {}
        self._free: list[int] = []  # slots that were left
        self._slots = 0
        self._joined = 0
        self._round = 0
        self._waiting: dict[int, Waiting] = {}
        self._arrived: dict[int, Sample] = {}  # by slot, what this round learns from
        # Samples that later rounds learn, by round.
        self._later: dict[int, deque[Sample]] = {}
        self._last_id = -1

    def save(self, path: str | Path) -> None:
        """Write the bandit to a file, from which ``Bandit.load`` goes on as this one would."""
        model = self._model
        if model is not None and not isinstance(model, Stored):
            raise ValueError(
                f"model must be Kalman(), LinearUCB() or AdaGrad(), or have to_arrays and load_arrays, to be saved,"
                f" got {self.model!r}"
            )
        if (name := name_of(self.policy)) not in policy_names():
            raise ValueError(f"policy must have a name, by an entry point of fedres.policies, to be saved, got {name}")
        gone = [who for who, *_ in self._waiting.values() if who.left]
        people = list({id(who): who for who in [*self._clients.values(), *gone]}.values())
        place = {id(who): k for k, who in enumerate(people)}
        state = {
            "model": (self.model.name, asdict(self.model)),
            "policy": (name, asdict(self.policy)),
            "settings": self._settings,
            "first": self._first,
            "learned": None if model is None else (model.to_arrays(), model.version, model.waiting),
            "people": [astuple(who) for who in people],
            "clients": [(client, place[id(who)]) for client, who in self._clients.items()],
            "waiting": [(number, place[id(who)], *rest) for number, (who, *rest) in self._waiting.items()],
            "arrived": list(self._arrived.values()),
            "later": list(self._later.items()),
            "counts": (self._free, self._slots, self._joined, self._round, self._last_id),
        }
        write(Path(path), state)

    @classmethod
    def load(cls, path: str | Path, model: Kind | None = None) -> Self:
        """Return the bandit that ``save`` wrote. A kind of model of your own is given as ``model``, as at its start."""
        state = read(Path(path))
        name, policy_options = state["policy"]
        kind = _stored_kind(state["model"], model)
        bandit = cls(kind, make_policy(name, **policy_options), **state["settings"])
        if state["first"] is not None:
            learned = bandit._build(*state["first"])
            assert isinstance(learned, Stored)
            arrays, learned.version, waiting = state["learned"]
            learned.load_arrays(arrays)
            learned.waiting = deque(map(list, waiting))
        people = [BanditClient(*numbers) for numbers in state["people"]]
        bandit._clients = {client: people[k] for client, k in state["clients"]}
        bandit._waiting = {number: (people[k], *rest) for number, k, *rest in state["waiting"]}
        bandit._arrived = {sample[0]: sample for sample in state["arrived"]}
        bandit._later = {slot: deque(samples) for slot, samples in state["later"]}
        free, bandit._slots, bandit._joined, bandit._round, bandit._last_id = state["counts"]
        bandit._free = list(free)
        return bandit

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the personal models; VW's hold memory of their own."""
        if self._model is not None:
            self._model.close()

    @property
    def clients(self) -> list[Hashable]:
        return list(self._clients)

    @property
    def waiting(self) -> list[int]:
        """The ids of decisions without a reward, oldest first."""
        return list(self._waiting)

    @property
    def model_version(self) -> int:
        return 0 if self._model is None else self._model.version

    def decide(
        self,
        client: Hashable | None,
        context: Any,
        actions: Any = None,
        exclude: Collection[Any] = (),
        *,
        private: Any = None,
    ) -> Decision:
        """Choose for a client, who joins with the first decision; None is nobody, who has no personal model.

        ``context`` is a mapping of named features, and ``actions`` a list of ids or of ``Action("tea", hot=True)``; or
        ``context`` is ``arms(...)``, ``rows(...)`` or ``sparse(...)`` alone, of which actions are numbers. ``exclude``
        names actions that must not be chosen.
        """
        if actions is not None or context is None or isinstance(context, Mapping):
            return self._decide_named(client, named_actions(context, actions), exclude, private)
        xg = as_actions(context)
        xl = xg if private is None else as_actions(private)
        allowed = None if len(exclude) == 0 else _allowed(xg.n, exclude)
        layout = (xg.dim, xg.stride, xl.dim, xl.stride)
        if layout != self._layout or (xl is not xg and xl.n != xg.n):
            self._check(xg, xl, layout)
        return self._decide(client, xg, xl, allowed)

    def _decide_named(
        self, client: Hashable | None, offered: NamedActions, exclude: Collection[Any], private: Any
    ) -> Decision:
        if not self.model.takes_names:
            raise ValueError(
                f"model must be Kalman() for named features, got {self.model.name!r}:"
                " give it numbers, by arms(context, n) or rows(table)"
            )
        if private is not None:
            raise ValueError("private must not be given with named features: both models see the same")
        places = [offered.place(action) for action in exclude]
        allowed = None if not places else _allowed(offered.n, places)
        decision = self._decide(client, offered, offered, allowed)
        return decision._replace(action=offered.ids[decision.place])

    def _decide(self, client: Hashable | None, xg: Any, xl: Any, allowed: Array | None) -> Decision:
        who = self._clients.get(client)
        model = self._model if self._model is not None else self._build(xg, xl)
        if who is None:
            who = self._join(client, model)
        elif self._rounds and who.round == self._round:
            self.end_round()
        who.round = self._round
        who.decisions = n = who.decisions + 1
        drawn = n, self._seed, who.member
        if self._rule is not None:
            action, probability, scores, widths = model.decide(who.slot, xg, xl, allowed, self._rule, drawn)
        else:
            action, probability, scores, widths = decide_by(self.policy, model, who.slot, xg, xl, allowed, drawn)
        kept = xg.keep(action)
        if len(self._waiting) >= self._max_waiting:
            del self._waiting[next(iter(self._waiting))]
        self._last_id = number = self._last_id + 1
        self._waiting[number] = who, action, kept, kept if xl is xg else xl.keep(action), self.policy.learns(n)
        if not self._plain:
            scores = self._low + self._width * scores
            widths = None if widths is None else self._width * widths
        return Decision(number, action, probability, scores, model.version, widths, action)

    def reward(self, decision: Decision | int, value: float) -> None:
        """Take the reward of a decision, or of its id."""
        number = decision.id if isinstance(decision, Decision) else decision
        if number not in self._waiting:
            raise UnknownDecisionError(self._unknown(number))
        self._take(number, self._unit(number, value))

    def rewards(self, pairs: Iterable[tuple[Decision | int, float]]) -> None:
        """Take many rewards, as (decision or its id, value); if one of them is refused, none is taken."""
        units: dict[int, float] = {}
        for decision, value in pairs:
            number = decision.id if isinstance(decision, Decision) else decision
            if number not in self._waiting or number in units:
                raise UnknownDecisionError(self._unknown(number))
            units[number] = self._unit(number, value)
        for decision, unit in units.items():
            self._take(decision, unit)

    def _take(self, decision: int, unit: float) -> None:
        who, action, shared, private, learns = self._waiting.pop(decision)
        if learns and not who.left:
            slot = who.slot
            sample = slot, action, shared, private, unit
            if not self._rounds and self._model is not None:
                self._model.play([sample])
            elif slot in self._arrived:
                self._later.setdefault(slot, deque()).append(sample)
            else:
                self._arrived[slot] = sample

    def end_round(self) -> None:
        """Let the models learn from one reward of each client, and move messages on."""
        self._round += 1
        if self._model is None:
            return
        samples = list(self._arrived.values())
        if len(samples) > 1:
            samples.sort(key=itemgetter(0))  # by slot
        self._arrived.clear()
        if self._later:
            self._next_arrive()
        self._model.play(samples)

    def _next_arrive(self) -> None:
        """Move the next reward of each client up to the next round."""
        for slot, queue in list(self._later.items()):
            self._arrived[slot] = queue.popleft()
            if not queue:
                del self._later[slot]

    def leave(self, client: Hashable) -> None:
        """Forget a client: personal model, and rewards still to come."""
        if client is None or client not in self._clients:
            raise ValueError(f"client must have decided before, got {client!r}")
        who = self._clients.pop(client)
        who.left, slot = True, who.slot
        self._arrived.pop(slot, None)
        self._later.pop(slot, None)
        if self._model is not None:
            self._model.leave(slot)
            if self._model.reusable:
                self._free.append(slot)

    def _unknown(self, decision: object) -> str:
        made = isinstance(decision, int) and 0 <= decision <= self._last_id
        fate = "was rewarded already, or waited too long" if made else "was never made"
        return f"decision must be one that waits for its reward, got {decision!r}: it {fate}"

    def _unit(self, decision: int, value: float) -> float:
        """Return a reward moved and scaled to [0, 1]."""
        try:
            unit = (value - self._low) / self._width
        except TypeError:
            unit = -1.0
        if not 0.0 <= unit <= 1.0:
            high = self._low + self._width
            raise ValueError(f"reward must be in [{self._low:g}, {high:g}], got {value!r} for decision {decision}")
        return float(unit)

    def _check(self, shared: Actions, private: Actions, layout: Layout) -> None:
        if private.n != shared.n:
            raise ValueError(f"private must have as many actions as shared, {shared.n}, got {private.n}")
        if self.model.takes_names:
            return
        if self._layout is not None and layout != self._layout:
            before, now = ("{} by {}, {} by {}".format(*it) for it in (self._layout, layout))
            raise ValueError(f"actions must have weights and strides as before, {before}, got {now}")

    def _build(self, shared: Any, private: Any) -> BanditModel:
        self._first = (shared, private)
        self._model = self.model.start(shared, private)
        if isinstance(shared, Actions):
            self._layout = (shared.dim, shared.stride, private.dim, private.stride)
        return self._model

    def _join(self, client: Hashable | None, model: BanditModel) -> BanditClient:
        if client is None:
            if not self.model.takes_names or self.model.scheme == "independent":
                raise ValueError(f"client must be named with {self.model!r}, got None")
            nobody = self._clients[None] = BanditClient(NOBODY, self._joined)
            self._joined += 1
            return nobody
        slot = self._free[-1] if self._free else self._slots
        model.join(slot)
        if self._free:
            self._free.pop()
        else:
            self._slots += 1
        who = self._clients[client] = BanditClient(slot, self._joined)
        self._joined += 1
        return who


def _model(model: Kind | str | None) -> Kind:
    if model is None:
        return Kalman()
    if isinstance(model, str):
        checks.one_of("model", model, MODELS)
        return MODELS[model]()
    if not isinstance(model, Kind):
        rule = "Kalman(), LinearUCB(), AdaGrad(), Federated(...), a Kind of your own"
        raise ValueError(f"model must be {rule}, or a name, one of {', '.join(MODELS)}, got {model!r}")
    return model


def _stored_kind(stored: tuple[str, dict[str, Any]], model: Kind | None) -> Kind:
    """Return the kind of a saved bandit's model: ``model`` if it is given, which must be the one that was saved."""
    name, options = stored
    if model is None:
        if name not in MODELS:
            raise ValueError(f"model must be given to load a bandit with {name!r}: Bandit.load(path, model=...)")
        return MODELS[name](**options)
    if (model.name, asdict(model)) != (name, options):
        raise ValueError(f"model must be the one that was saved, {name} with {options}, got {model!r}")
    return model


def _allowed(n: int, exclude: Collection[int]) -> Array:
    allowed = np.ones(n, dtype=np.bool_)
    for action in exclude:
        if not (isinstance(action, int | np.integer) and 0 <= action < n):
            raise ValueError(f"exclude must name actions below {n}, got {action!r}")
        allowed[action] = False
    if not allowed.any():
        raise ValueError(f"exclude must leave an action, got all {n}")
    return allowed

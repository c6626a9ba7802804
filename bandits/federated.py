"""The federated contextual bandit [FedRes, section 5]: shared and personal models predict, a policy explores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Self

import numpy as np

from bandits.actions import Actions, as_actions
from bandits.decisions import Client, Decision, UnknownDecisionError, Waiting
from bandits.models.choose import Choice, default_policy, only_adagrad_has
from bandits.models.protocol import SCHEMES, Model, Sample, decide_by
from fedres import checks
from fedres.checks import Array
from fedres.policies import Compiled, Policy
from fedres.policies import policy as make_policy
from fedres.policies.kernels import check_seed

Layout = tuple[int, int, int, int]  # weights and stride of the shared actions, and of the private ones

# a named tuple in half the time that its own constructor takes
_new: Callable[[type[Decision], tuple[Any, ...]], Decision] = tuple.__new__


class FederatedBandit:
    """Clients who decide, each with a personal model beside the shared one; rewards may come at any time, or never.

    >>> bandit = FederatedBandit()
    >>> decision = bandit.decide("anna", arms([0.3, 1.2], n_actions=3))
    >>> bandit.reward(decision.id, 1.0)

    A round is over once a client decides for a second time: then the models learn from the rewards that came in, one
    a client and round, and messages move on. ``end_round`` does it by hand.

    ``model`` is "adagrad" (VW's steps), "linucb" (least squares) or "residual-kalman". Model and policy are what suits
    the other unless given; with neither, they are the service's: residual-kalman and optimistic-squarecb, or adagrad
    and epsilon-greedy where options of adagrad are given. ``shared`` features of a decision go to the shared model and,
    where no ``private`` ones are given, to the personal model too; residual-kalman takes no others. ``scheme`` is
    "fedres", or one of its baselines: "independent" (each client alone) and "central" (one model for all). Delays of
    messages are in rounds, one number or one for each of ``capacity`` clients in the order they join.

    Of adagrad, ``global_learner`` is any name of ``fedres.global_learner``, with ``hyperparameters``; ``local_learner``
    is "linear" (VW's steps, compiled) or "vw" (Vowpal Wabbit itself). Rates of learning are set from the size of the
    features of the first decision unless given as ``rates`` (shared, personal). Any number of clients may join with
    the defaults; at most ``capacity`` can with VW, another global learner, hyperparameters, or delays of their own.
    """

    def __init__(
        self,
        policy: str | Policy | None = None,
        *,
        model: str | None = None,
        scheme: str = "fedres",
        global_learner: str = "fedres-adagrad",
        local_learner: str = "linear",
        hyperparameters: Mapping[str, Any] | None = None,
        rates: tuple[float, float] | None = None,
        uplink_delay: int | Sequence[int] = 0,
        downlink_delay: int | Sequence[int] = 0,
        capacity: int = 100,
        reward_range: tuple[float, float] = (0.0, 1.0),
        max_waiting: int = 100_000,
        seed: int = 0,
        **policy_options: Any,
    ) -> None:
        checks.one_of("scheme", scheme, SCHEMES)
        checks.whole("max_waiting", max_waiting)
        check_seed(seed)
        if policy is None:
            options = only_adagrad_has(global_learner, hyperparameters, rates, uplink_delay, downlink_delay)
            policy = default_policy(model, adagrad=options or local_learner != "linear")
        self.policy = make_policy(policy, **policy_options)
        self._rule = self.policy.rule((0.0, 1.0)) if isinstance(self.policy, Compiled) else None
        low, high = reward_range
        if not (np.isfinite([low, high, high - low]).all() and low < high):
            raise ValueError(f"reward_range must be (low, high) with low < high, got {reward_range!r}")
        self._low, self._width = float(low), float(high - low)
        self._plain = self._low == 0 and self._width == 1  # rewards are counted as the models count them
        self._choice = Choice(
            self.policy,
            scheme,
            global_learner,
            local_learner,
            dict(hyperparameters or {}),
            rates,
            uplink_delay,
            downlink_delay,
            capacity,
            model,
        )
        self._seed, self._max_waiting = seed, max_waiting
        self._model: Model | None = None
        self._layout: Layout | None = None
        self._clients: dict[Hashable, Client] = {}
        self._free: list[int] = []  # slots that were left
        self._slots = 0
        self._joined = 0
        self._round = 0
        self._waiting: dict[int, Waiting] = {}
        self._arrived: dict[int, Sample] = {}  # by slot, what this round learns from
        self._later: dict[int, deque[Sample]] = {}  # what rounds to come do
        self._last_id = -1

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

    def decide(self, client: Hashable, shared: Any, private: Any = None, exclude: Collection[int] = ()) -> Decision:
        """Choose for a client, who joins with the first decision. ``exclude`` names actions not to be chosen."""
        n_actions, dim, _, _, stride = xg = as_actions(shared)
        xl = xg if private is None else as_actions(private)
        allowed = None if len(exclude) == 0 else _allowed(n_actions, exclude)
        layout = (dim, stride, dim, stride) if xl is xg else (dim, stride, xl.dim, xl.stride)
        if layout != self._layout or (xl is not xg and xl.n != n_actions):
            self._check(xg, xl, layout)
        who = self._clients.get(client)
        model = self._model if self._model is not None else self._build(xg, xl, layout)
        if who is None:
            who = self._join(client, model)
        elif who.round == self._round:
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
        return _new(Decision, (number, action, probability, scores, model.version, widths))

    def reward(self, decision: int, value: float) -> None:
        """Take the reward of a decision, by its id."""
        if decision not in self._waiting:
            raise UnknownDecisionError(self._unknown(decision))
        self._take(decision, self._unit(decision, value))

    def rewards(self, pairs: Iterable[tuple[int, float]]) -> None:
        """Take many rewards, as (decision id, value); if one of them is refused, none is taken."""
        units: dict[int, float] = {}
        for decision, value in pairs:
            if decision not in self._waiting or decision in units:
                raise UnknownDecisionError(self._unknown(decision))
            units[decision] = self._unit(decision, value)
        for decision, unit in units.items():
            self._take(decision, unit)

    def _take(self, decision: int, unit: float) -> None:
        who, action, shared, private, learns = self._waiting.pop(decision)
        if learns and not who.left:
            slot = who.slot
            sample = slot, action, shared, private, unit
            if slot in self._arrived:
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
        if client not in self._clients:
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
        known = "was rewarded already, or waited too long" if made else "was never made"
        return f"decision must be one that waits for its reward, got {decision!r}: it {known}"

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
        if self._layout is not None and layout != self._layout:
            known, given = ("{} by {}, {} by {}".format(*it) for it in (self._layout, layout))
            raise ValueError(f"actions must have weights and strides as before, {known}, got {given}")

    def _build(self, shared: Actions, private: Actions, layout: Layout) -> Model:
        self._model, self._layout = self._choice.model(shared, private), layout
        return self._model

    def _join(self, client: Hashable, model: Model) -> Client:
        slot = self._free[-1] if self._free else self._slots
        model.join(slot)
        if self._free:
            self._free.pop()
        else:
            self._slots += 1
        who = self._clients[client] = Client(slot, self._joined)
        self._joined += 1
        return who


def _allowed(n: int, exclude: Collection[int]) -> Array:
    allowed = np.ones(n, dtype=np.bool_)
    for action in exclude:
        if not (isinstance(action, int | np.integer) and 0 <= action < n):
            raise ValueError(f"exclude must name actions below {n}, got {action!r}")
        allowed[action] = False
    if not allowed.any():
        raise ValueError(f"exclude must leave an action, got all {n}")
    return allowed

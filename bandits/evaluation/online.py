"""What a hosted loop would have earned on a log: its model learns event after event, and a policy explores.

[LCLW11] L. Li, W. Chu, J. Langford, X. Wang. *Unbiased Offline Evaluation of Contextual-Bandit-Based News Article
         Recommendation Algorithms*. WSDM 2011.
[BLL+11] A. Beygelzimer, J. Langford, L. Li, L. Reyzin, R. Schapire. *Contextual Bandit Algorithms with Supervised
         Learning Guarantees*. AISTATS 2011: sums of importance-weighted terms are martingales.

Before event t the model has learned events 1..t−1 of the log, as the log had them. The policy's probabilities π_t of
the actions of event t, and the rewards q_t that the model expects, follow from the past alone. So given the past,
the weighted reward π_t(a)/p(a) r has the mean that π_t would have earned in event t, and so has its doubly robust
form with q_t: what is estimated is the mean of what π_1, ..., π_n earn.

That differs from a service that had been asked itself: the model learns from what the log chose, and not from what the
policy would have chosen (replaying only events where both agree [LCLW11] would, on a fraction of the log).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from bandits.evaluation.table import Log, SparseRows
from fedres.checks import Array
from fedres.decisions.kalman_state import KalmanRequest
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of
from fedres.policies import HOSTED, Compiled, Policy, checked_probabilities, option_names, policy_class
from fedres.policies import policy as make_policy
from fedres.policies.kernels import explore
from fedres.progress import Progress
from fedres.scoring.flattening import LARGEST, feature_hash

NAME, DEFAULT = "fedres", "optimistic-squarecb"
MOST_OFFERS = 10_000  # sets of actions that are remembered
EVENTS = 1_000  # between two reports of how far it is


Rows = tuple[Array, Array, Array, Array]  # hashes, values, fields, and where rows begin


class Played(NamedTuple):
    """Of every (event, action) pair."""

    probabilities: Array  # π_t
    expected: Array  # q_t


def is_online(policy: object) -> bool:
    """Return whether a policy is estimated so: ``fedres``, ``fedres:POLICY``, or the default of loops by its name."""
    return isinstance(policy, str) and policy.partition(":")[0] in (NAME, DEFAULT)


def hosted_policy(text: str) -> Policy:
    """Return the policy of ``fedres``, ``fedres:POLICY`` or ``POLICY``, with the defaults of loops."""
    rest = text.removeprefix(NAME).lstrip(":") or DEFAULT
    name, _, options = rest.partition(":")
    defaults = {"floor": 0.0, **HOSTED[name]} if name in HOSTED else {}
    for word in options.split(",") if options else ():
        key, equals, _ = word.partition("=")
        defaults.pop(key.strip() if equals else option_names(policy_class(name))[0], None)
    chosen = make_policy(rest, **defaults)
    if not chosen.stationary:
        raise ValueError(f"policy must be one that a log can value, got {text!r}, which depends on more than scores")
    return chosen


def play(
    log: Log,
    chosen: Policy,
    reward_range: tuple[float, float],
    progress: Progress,
    decide: Callable[[int, Array], tuple[int, float]] | None = None,
) -> Played:
    """Go through the log in its order: find the probabilities of each event's actions, then learn what was taken.

    That is what the log says, or the action and the reward that ``decide`` returns for an event and its probabilities,
    for simulations.
    """
    model, owns, requests = ResidualKalman(reward_range), dict[str, Array](), _Requests(log)
    rule = chosen.rule(reward_range) if isinstance(chosen, Compiled) else None
    played = Played(np.empty(log.action.size), np.empty(log.action.size))
    for i in range(len(log)):
        request, user, pairs = requests.of(i), log.about[i][1], slice(log.offsets[i], log.offsets[i + 1])
        own = None if user is None else owns.get(user, NO_MODEL)
        means, widths, _, _ = model.predict(request, own)
        played.expected[pairs] = means
        if rule is None:
            played.probabilities[pairs] = checked_probabilities(chosen, means, widths, None, model.learned)
        else:
            allowed, out = np.ones(means.size, np.bool_), played.probabilities[pairs]
            explore(rule, 0, model.learned, means, widths, allowed, out)
        taken = (int(log.chosen[i] - pairs.start), float(log.reward[i]))
        if decide is not None:
            taken = decide(i, played.probabilities[pairs])
        if user is None or own is None:
            model.learn(events_of([(request, *taken, -1)]))
        else:
            (owns[user],) = model.learn(events_of([(request, *taken, 0)]), [own])
        if i % EVENTS == 0:
            progress(i, len(log))
    progress(len(log), len(log))
    return played


class _Requests:
    """The events of a log as the model takes them: names hashed as by the service."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._context, self._features = _Hashed(log.context), _Hashed(log.features)
        self._ids, self._id_field = _hashes([f"_id={name}" for name in log.action_ids]), _hashes(["_id"])
        self._offers: dict[bytes, Rows] = {}  # catalogues repeat

    def of(self, i: int) -> KalmanRequest:
        offered = slice(self._log.offsets[i], self._log.offsets[i + 1])
        key = self._log.action[offered].tobytes() + self._log.feature_row[offered].tobytes()
        if key not in self._offers:
            if len(self._offers) >= MOST_OFFERS:
                self._offers.clear()
            self._offers[key] = self._offer(offered)
        context, (*actions, sizes) = self._context.row(i), self._offers[key]
        hashes, values, fields = (np.concatenate(pair) for pair in zip(context, actions, strict=True))
        return KalmanRequest(hashes, values, fields, context[0].size + sizes)

    def _offer(self, offered: slice) -> Rows:
        codes, rows = self._log.action[offered], self._log.feature_row[offered]
        parts = [
            (self._ids[code : code + 1], np.ones(1, np.float32), self._id_field, *self._features.row(row))
            for code, row in zip(codes, rows, strict=True)
        ]
        hashes, values, fields = (np.concatenate([part[k] for part in parts for k in (j, j + 3)]) for j in range(3))
        return hashes, values, fields, np.cumsum([0, *[1 + part[3].size for part in parts]], dtype=np.int64)


class _Hashed:
    """Rows of named numbers, their names hashed."""

    def __init__(self, rows: SparseRows) -> None:
        if np.abs(rows.values).max(initial=0.0) > LARGEST:
            raise ValueError(
                f"features must be at most {LARGEST:g} in size for {NAME}, got {np.abs(rows.values).max()}"
            )
        self._starts, self._values = rows.starts, rows.values.astype(np.float32)
        self._hashes = _hashes(rows.names)[rows.columns]
        self._fields = _hashes([name.partition("=")[0] for name in rows.names])[rows.columns]

    def row(self, i: int) -> tuple[Array, Array, Array]:
        part = slice(self._starts[i], self._starts[i + 1])
        return self._hashes[part], self._values[part], self._fields[part]


def _hashes(names: Sequence[str]) -> Array:
    return np.array([_hash(name) for name in names], np.uint32)


@lru_cache(maxsize=100_000)
def _hash(name: str) -> int:
    return feature_hash(name)

"""A whole log in arrays: a few numbers per event and action instead of a Python object each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bandits.evaluation.columns import Columns
from bandits.evaluation.logs import NO_COLUMNS, LoggedEvent, from_record, is_decision, read_events
from bandits.evaluation.values import number
from fedres.checks import Array
from fedres.progress import Progress, ignore_progress

About = tuple[str | float | None, str | None, str | int | None, str | None]  # time, user, model version, status
LEAST_PROBABILITY = 1e-30  # smaller ones than this, except 0, count as this: squares of weights must be finite
REMEMBERED_ROWS = 100_000  # catalogues repeat, so equal features of actions are stored once


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Rows of named numbers: row i is ``columns`` and ``values`` in ``starts[i]:starts[i + 1]``."""

    names: tuple[str, ...]
    starts: Array
    columns: Array
    values: Array

    def __getitem__(self, row: int) -> dict[str, float]:
        part = slice(self.starts[row], self.starts[row + 1])
        return {self.names[c]: float(v) for c, v in zip(self.columns[part], self.values[part], strict=True)}


@dataclass(frozen=True, slots=True)
class Log:
    """Logged decisions with a reward. Event i offers the (event, action) pairs ``offsets[i]:offsets[i + 1]``."""

    event_ids: tuple[str, ...]
    offsets: Array
    action: Array  # of each pair: position in action_ids
    action_ids: tuple[str, ...]
    chosen: Array  # of each event: the pair that was taken
    propensity: Array  # of each event: its probability
    reward: Array
    logging: Array  # of each pair: probability under the logging policy, NaN where the log does not say
    context: SparseRows  # a row per event
    features: SparseRows  # a row per different set of action features
    feature_row: Array  # of each pair: its row in features
    about: tuple[About, ...]  # of each event
    n_without_reward: int  # left out, or given the default reward
    default_reward: float | None

    def __len__(self) -> int:
        return len(self.event_ids)

    def event(self, i: int) -> LoggedEvent:
        """Return event ``i`` as it was read, features flat."""
        pairs = slice(self.offsets[i], self.offsets[i + 1])
        logging = self.logging[pairs]
        return LoggedEvent(
            self.event_ids[i],
            self.context[i],
            tuple(self.action_ids[code] for code in self.action[pairs]),
            tuple(self.features[row] for row in self.feature_row[pairs]),
            int(self.chosen[i] - self.offsets[i]),
            float(self.propensity[i]),
            float(self.reward[i]),
            None if np.isnan(logging).any() else tuple(logging.tolist()),
            *self.about[i],
        )

    def users(self) -> Array:
        """Return a number for the user of each event, from 0 on; an event without one has a number of its own."""
        return number_users(about[1] for about in self.about)

    @property
    def n_actions(self) -> Array:
        """The number of actions each event offers."""
        return np.diff(self.offsets)

    def per_event(self, pairs: Array) -> Array:
        """Return the sum of ``pairs`` over the actions of each event."""
        total: Array = np.add.reduceat(pairs, self.offsets[:-1])
        return total


def number_users(users: Iterable[str | None]) -> Array:
    """Return a number for each user, from 0 on; an event without a user has a number of its own."""
    number: dict[object, int] = {}
    keys = (i if user is None else user for i, user in enumerate(users))
    return np.array([number.setdefault(key, len(number)) for key in keys], dtype=np.int64)


def load_log(
    source: Any,
    default_reward: float | None = None,
    columns: Columns = NO_COLUMNS,
    progress: Progress = ignore_progress,
) -> Log:
    """Read a log; events without a reward take ``default_reward``, or are counted and left out.

    ``source`` is a file, a DataFrame or a mapping of columns; ``columns`` says which column of a table is what.
    """
    log = table(read_events(source, columns, progress), default_reward)
    if len(log) == 0:
        name = source if isinstance(source, str | Path) else "the table"
        raise ValueError(f"{name} must hold events with a reward, got {log.n_without_reward} events, none with one")
    return log


def log_of(records: Iterable[dict[str, Any]]) -> Log:
    """Return a log of objects as our JSON lines have them, those without a reward left out."""
    log = table(from_record(record) for record in records if is_decision(record))
    if len(log) == 0:
        raise ValueError(f"the log must hold events with a reward, got {log.n_without_reward} events, none with one")
    return log


def table(events: Iterable[LoggedEvent], default_reward: float | None = None) -> Log:
    """Return the events as arrays, those without a reward left out unless they are given ``default_reward``."""
    if default_reward is not None:
        number("default_reward", default_reward)
    columns, n_without_reward = _Columns(), 0
    for event in events:
        reward = event.reward
        if reward is None:
            n_without_reward += 1
            reward = default_reward
        if reward is not None:
            columns.add(event, reward)
    return columns.log(n_without_reward, default_reward)


def _not_too_small(probabilities: Array) -> Array:
    return np.where(probabilities > 0, np.maximum(probabilities, LEAST_PROBABILITY), probabilities)


class _Rows:
    """Sparse rows while they are being collected."""

    def __init__(self) -> None:
        self.index: dict[str, int] = {}
        self.starts, self.columns, self.values = array("q", [0]), array("q"), array("d")
        self.seen: dict[tuple[tuple[str, float], ...], int] = {}

    def add(self, features: dict[str, float]) -> int:
        index = self.index
        self.columns.extend([index.setdefault(name, len(index)) for name in features])
        self.values.extend(features.values())
        self.starts.append(len(self.columns))
        return len(self.starts) - 2

    def add_once(self, features: dict[str, float]) -> int:
        key = tuple(features.items())
        row = self.seen.get(key)
        if row is None:
            if len(self.seen) >= REMEMBERED_ROWS:
                self.seen.clear()
            row = self.seen[key] = self.add(features)
        return row

    def rows(self) -> SparseRows:
        return SparseRows(tuple(self.index), *map(np.asarray, (self.starts, self.columns, self.values)))


class _Columns:
    """A log while it is being collected."""

    def __init__(self) -> None:
        self.event_ids: list[str] = []
        self.about: list[About] = []
        self.codes: dict[str, int] = {}
        self.offsets, self.action, self.chosen, self.feature_row = array("q", [0]), array("q"), array("q"), array("q")
        self.propensity, self.reward, self.logging = array("d"), array("d"), array("d")
        self.context, self.features = _Rows(), _Rows()

    def add(self, event: LoggedEvent, reward: float) -> None:
        codes, start, n = self.codes, self.offsets[-1], len(event.actions)
        self.event_ids.append(event.event_id)
        self.about.append((event.time, event.user, event.model_version, event.status))
        self.offsets.append(start + n)
        self.action.extend([codes.setdefault(action, len(codes)) for action in event.actions])
        self.chosen.append(start + event.chosen)
        self.propensity.append(event.probability)
        self.reward.append(reward)
        self.logging.extend(event.probabilities or [np.nan] * n)
        self.context.add(event.context)
        self.feature_row.extend([self.features.add_once(features) for features in event.features])

    def log(self, n_without_reward: int, default_reward: float | None) -> Log:
        return Log(
            tuple(self.event_ids),
            np.asarray(self.offsets),
            np.asarray(self.action),
            tuple(self.codes),
            np.asarray(self.chosen),
            _not_too_small(np.asarray(self.propensity)),
            np.asarray(self.reward),
            _not_too_small(np.asarray(self.logging)),
            self.context.rows(),
            self.features.rows(),
            np.asarray(self.feature_row),
            tuple(self.about),
            n_without_reward,
            default_reward,
        )

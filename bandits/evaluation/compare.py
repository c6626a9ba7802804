"""Several target policies compared on one log, with the policy that wrote it as the yardstick."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from bandits.evaluation.columns import Columns
from bandits.evaluation.estimators import ESTIMATORS, MODEL_FREE, SELF_NORMALISED, Sample, sample
from bandits.evaluation.intervals import Interval, IntervalKind, interval, widest
from bandits.evaluation.online import hosted_policy, is_online, play
from bandits.evaluation.policies import Policy, Rewards, policy_name, target_probabilities
from bandits.evaluation.reward_model import crossfit_rewards
from bandits.evaluation.table import Log, load_log
from bandits.evaluation.terms import Cut, difference_terms, plain_rewards, seen_and_possible, value_terms, without_model
from bandits.evaluation.weights import effective_sample_size, possible_weights, user_warning, weight_cap, weight_warning
from fedres.checks import Array, one_of
from fedres.notebook import html_table
from fedres.progress import Progress, ignore_progress

if TYPE_CHECKING:
    import pandas

LEAST_EVENTS = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One estimate. Its value is NaN where no logged action says anything about the policy."""

    policy: str
    estimator: str  # "mean" for the logging policy
    value: float  # mean reward the policy would have had
    low: float
    high: float
    difference: float  # to the logging policy, paired event by event
    difference_low: float
    difference_high: float
    ess: float  # effective sample size
    largest_weight: float
    n: int
    warning: str  # empty where nothing is wrong

    def cells(self) -> list[str]:
        """Return what tables show: policy, estimator, value, interval, difference to logging, effective sample size."""
        against = "" if self.estimator == "mean" else f"{self.difference_low:+.4f} .. {self.difference_high:+.4f}"
        span = f"{self.low:.4f} .. {self.high:.4f}"
        return [self.policy, self.estimator, f"{self.value:.4f}", span, against, f"{self.ess:,.0f}"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All rows, the logging policy's first, and what was read."""

    rows: tuple[Row, ...]
    n: int
    n_without_reward: int  # left out of the estimates, or given the default reward
    default_reward: float | None
    level: float
    time_uniform: bool
    n_users: int  # independent users for intervals; n if events are independent
    reward_range: tuple[float, float]  # given, or taken from the log

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame; needs pandas."""
        import pandas

        return pandas.DataFrame.from_records([asdict(row) for row in self.rows])

    def plot(self, axes: Any = None) -> Any:
        """Draw the intervals on ``axes`` of matplotlib, or on new ones, beside the log's own; return them."""
        from matplotlib import pyplot

        if axes is None:
            _, axes = pyplot.subplots(figsize=(7, 1.2 + 0.3 * len(self.rows)))
        logging = self.rows[0]
        axes.axvspan(logging.low, logging.high, color="tab:gray", alpha=0.15, linewidth=0)
        axes.axvline(logging.value, color="tab:gray", linewidth=1)
        colours: dict[str, str] = {}
        for place, row in enumerate(self.rows):
            colour = colours.setdefault(row.policy, f"C{len(colours)}" if place else "tab:gray")
            axes.hlines(place, row.low, row.high, color=colour)
            axes.plot(row.value, place, "o", color=colour, markersize=4)
        axes.set_yticks(range(len(self.rows)), [f"{row.policy}, {row.estimator}" for row in self.rows])
        axes.invert_yaxis()
        axes.set_xlabel(f"mean reward, {self.level:.0%} intervals")
        axes.grid(axis="x", alpha=0.3)
        return axes

    def _repr_html_(self) -> str:
        low, high = self.reward_range
        users = "" if self.n_users == self.n else f" of {self.n_users:,} users"
        caption = f"{self.n:,} decisions{users} with a reward in {low:g} to {high:g}"
        header = ("policy", "estimator", "value", f"{self.level:.0%} interval", "vs logging", "effective n")
        return html_table(caption, header, [row.cells() for row in self.rows], self.notes())

    def notes(self) -> list[str]:
        """Return what to know beside the numbers, a line each: decisions that were left out, and warnings."""
        notes = []
        if self.n_without_reward:
            fate = "are left out: default_reward counts them" if self.default_reward is None else "count as"
            end = "" if self.default_reward is None else f" {self.default_reward:g}"
            notes.append(f"{self.n_without_reward:,} decisions without a reward {fate}{end}")
        warnings = {row.policy: row.warning for row in self.rows if row.warning}
        return [*notes, *[f"{policy}: {warning}" for policy, warning in warnings.items()]]

    def to_json(self) -> dict[str, object]:
        """Return plain values for a JSON file; null where there is no number."""
        document = asdict(self)
        document["rows"] = [{key: _plain(value) for key, value in row.items()} for row in document["rows"]]
        return document


def evaluate(
    log: Any,
    policies: Sequence[str | Policy] = ("uniform", "greedy"),
    *,
    action: str | None = None,
    reward: str | None = None,
    probability: str | None = None,
    user: str | None = None,
    context: Sequence[str] = (),
    actions: str | Sequence[str] | None = None,
    probabilities: str | None = None,
    time: str | None = None,
    event_id: str | None = None,
    estimators: Sequence[str] = ("snips", "dr"),
    default_reward: float | None = None,
    level: float = 0.95,
    n_folds: int = 5,
    time_uniform: bool = False,
    by_user: bool = True,
    reward_range: tuple[float, float] | None = None,
    progress: Progress = ignore_progress,
) -> Evaluation:
    """Return a row for the logging policy, then one for every policy and estimator.

    ``log`` is a file (JSON lines, dsjson, .csv, .tsv, .parquet), a DataFrame or another mapping of columns, or a
    ``Log``; ``default_reward`` is for its events that have no reward. Of a table, ``action`` to ``event_id`` name the
    columns, as ``Columns`` describes them; names such as action, reward, probability and user are recognized.

    A policy is a name (``POLICY_FORMS``), a policy such as ``EpsilonGreedy(0.1)`` or its class, or a function from a
    ``LoggedEvent`` to the probabilities of its actions.
    Names that learn (greedy, epsilon-greedy, squarecb) and estimators with a model share one cross-fitted reward model:
    they estimate the policy learned from ``n_folds − 1`` parts of the log, on the part it did not see. ``fedres``
    is a hosted loop, which goes through the log in order and decides on each event by what it learned before;
    ``fedres:POLICY`` explores by another policy than the default of loops.

    Intervals are for one look at the log, or with ``time_uniform`` hold at all looks at a growing log together; those
    hold the ones for a single look. They take users to be independent, or with ``by_user=False`` events.
    ``reward_range`` is what a reward can be: taken from the log unless given, as [0, 1] or [−1, 0] where all rewards
    lie in one of them. Switch-DR and DRos have DR's intervals: theirs would leave out the bias that they trade for
    variance. See docs/how-it-works/intervals.md.
    """
    for estimator in estimators:
        one_of("estimator", estimator, ESTIMATORS)
    columns = Columns(
        action=action,
        reward=reward,
        probability=probability,
        user=user,
        context=context,
        actions=actions,
        probabilities=probabilities,
        time=time,
        event_id=event_id,
    )
    data = _loaded(log, default_reward, columns, progress)
    users = data.users() if by_user else np.arange(len(data))
    kind = IntervalKind(level, time_uniform, _reward_range(data.reward, reward_range), users)
    rows = _rows(data, policies, estimators, kind, n_folds, progress)
    read = (len(data), data.n_without_reward, data.default_reward)
    return Evaluation(tuple(rows), *read, level, time_uniform, kind.n_users, kind.reward_range)


def _loaded(log: Any, default_reward: float | None, columns: Columns, progress: Progress) -> Log:
    """Return a log with enough events; what says how to read it must come with one that is not loaded yet."""
    if isinstance(log, Log):
        if default_reward is not None:
            raise ValueError(f"default_reward must be None for a log that is loaded, got {default_reward}")
        if columns.given:
            raise ValueError(f"{columns.given[0]} must come with a table, got a log that is loaded")
        data = log
    else:
        data = load_log(log, default_reward, columns, progress)
    if len(data) < LEAST_EVENTS:
        raise ValueError(f"log must have at least {LEAST_EVENTS} events with a reward, got {len(data)}")
    return data


def _reward_range(reward: Array, reward_range: tuple[float, float] | None) -> tuple[float, float]:
    """Return what was given, or else the smallest of [0, 1], [−1, 0] and [min, max] with 0 that holds all rewards."""
    low, high = float(reward.min()), float(reward.max())
    if reward_range is not None:
        if not reward_range[0] <= low <= high <= reward_range[1] or reward_range[0] == reward_range[1]:
            raise ValueError(
                f"reward_range must have a width and hold all rewards, {low} to {high}, got {reward_range}"
            )
        return reward_range
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return (-1.0, 0.0) if low >= -1 and high <= 0 else (min(low, 0.0), max(high, 0.0))


def _rows(
    log: Log,
    policies: Sequence[str | Policy],
    estimators: Sequence[str],
    kind: IntervalKind,
    n_folds: int,
    progress: Progress,
) -> list[Row]:
    """Return the row of the logging policy and those of the others, which share one reward model if any needs it."""
    rewards = cache(lambda: crossfit_rewards(log, n_folds))
    rows = [_logging_row(log, kind)]
    for policy in policies:
        if policy != "logging":
            expected = _target(log, policy, estimators, kind, rewards, progress)
            rows += _policy_rows(log, policy, estimators, kind, expected)
    return rows


def _logging_row(log: Log, kind: IntervalKind) -> Row:
    n, ends = len(log), kind.reward_range
    seen, could_be = plain_rewards(log.reward), plain_rewards(np.array(ends))
    mean = float(log.reward.mean())
    value = widest(
        interval(lambda end: (value_terms(seen, end), value_terms(could_be, end)), mean, ends, look)
        for look in kind.looks()
    )
    return Row("logging", "mean", *value, 0.0, 0.0, 0.0, float(n), 1.0, n, user_warning(kind.n_users, n))


def _target(
    log: Log, policy: str | Policy, estimators: Sequence[str], kind: IntervalKind, rewards: Rewards, progress: Progress
) -> tuple[Array, Array]:
    """Return a policy's probabilities of all pairs, and the rewards that are expected of them."""
    if is_online(policy):
        return play(log, hosted_policy(str(policy)), kind.reward_range, progress)
    target = target_probabilities(log, policy, rewards)
    return target, np.zeros_like(target) if MODEL_FREE.issuperset(estimators) else rewards()


def _policy_rows(
    log: Log, policy: str | Policy, estimators: Sequence[str], kind: IntervalKind, expected: tuple[Array, Array]
) -> list[Row]:
    target, predicted = expected
    s = sample(
        log.reward,
        log.propensity,
        target[log.chosen],
        chosen=log.chosen,
        offsets=log.offsets,
        target_all=target,
        predicted_all=predicted,
    )
    weight = possible_weights(log, target)
    unsupported = float(target[np.isinf(weight)].sum() / len(log))
    warnings = (weight_warning(s.weight, unsupported), user_warning(kind.n_users, len(log)))
    warning = "; ".join(filter(None, warnings))
    looks = []
    for look in kind.looks():
        cap = weight_cap(log, weight, 0.0 if look.time_uniform else -math.log((1 - look.level) / 2))
        looks.append((look, seen_and_possible(log, s, target, predicted, weight, cap, look.reward_range)))
    rows, ess, largest = [], effective_sample_size(s.weight), float(s.weight.max())
    for estimator in estimators:
        estimate = float(ESTIMATORS[estimator](s).mean())
        values, differences = zip(*(_intervals(estimator, estimate, s, *look) for look in looks), strict=True)
        value, difference = widest(values), widest(differences)
        rows.append(Row(policy_name(policy), estimator, *value, *difference, ess, largest, s.reward.size, warning))
    return rows


def _intervals(
    estimator: str, estimate: float, s: Sample, kind: IntervalKind, sides: tuple[Cut, Cut]
) -> tuple[Interval, Interval]:
    """Return the value of a policy, and its difference to the logging policy."""
    seen, could_be = map(without_model, sides) if estimator in MODEL_FREE else sides
    ends = kind.reward_range
    centre = float(seen.baseline.mean()) if estimator in SELF_NORMALISED else None
    shift = 0.0 if centre is None or math.isnan(estimate) else centre - estimate
    value = interval(
        lambda end: (value_terms(seen, end, centre), value_terms(could_be, end, centre)), estimate, ends, kind
    )
    difference = interval(
        lambda end: (difference_terms(seen, end, shift), difference_terms(could_be, end, shift)),
        estimate - float(s.reward.mean()),
        (ends[0] - ends[1], ends[1] - ends[0]),
        kind,
    )
    return value, difference


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value

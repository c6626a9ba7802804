"""Policies by name: ours, and those of installed packages, for the service, devices, bandits and evaluation."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Protocol

import numpy as np

from fedres import checks
from fedres.checks import Array
from fedres.policies.base import Compiled, Policy
from fedres.policies.builtin import (
    EpsilonGreedy,
    ExploreEvery,
    Greedy,
    LinUCB,
    OptimisticSquareCB,
    Softmax,
    SquareCB,
)

POLICIES: dict[str, type[Compiled]] = {
    "explore-every": ExploreEvery,
    "epsilon-greedy": EpsilonGreedy,
    "squarecb": SquareCB,
    "optimistic-squarecb": OptimisticSquareCB,
    "linucb": LinUCB,
    "greedy": Greedy,
    "softmax": Softmax,
}
ENTRY_POINTS = "fedres.policies"  # where other packages offer policies
HOSTED = {name: kind.hosted for name, kind in POLICIES.items() if kind.hosted is not None}  # policies of loops


def policy(name: str | Policy | type[Policy], **options: Any) -> Policy:
    """Return the policy of this name, e.g. ``policy("epsilon-greedy", epsilon=0.1)``; a policy is returned as it is.

    A class makes one with the options. They may be part of the name: ``epsilon-greedy:0.1`` (the first of them) or
    ``squarecb:gamma=10,floor=0.02``.
    """
    if isinstance(name, Policy):
        if options:
            raise ValueError(f"{next(iter(options))} is no option beside a policy that is made already, {name}")
        return name
    if isinstance(name, type) and issubclass(name, Policy):
        return name(**options)
    bare, _, text = name.partition(":") if isinstance(name, str) else (name, "", "")
    kind = policy_class(bare)
    names = option_names(kind)
    arguments = {**_options(name, text, names), **options}
    for key in arguments:
        if key not in names:
            raise ValueError(f"{key} is not an option of {bare}, which has {', '.join(names)}")
    return kind(**arguments)


def policy_class(name: str) -> type[Policy]:
    """Return the class of a policy: one of ours, or of a package with an entry point ``fedres.policies``."""
    if name in POLICIES:
        return POLICIES[name]
    for point in entry_points(group=ENTRY_POINTS, name=name) if isinstance(name, str) else ():
        loaded = point.load()
        if not (isinstance(loaded, type) and issubclass(loaded, Policy) and is_dataclass(loaded)):
            raise ValueError(f"{point.value} must be a dataclass that extends fedres.policies.Policy, got {loaded!r}")
        return loaded
    raise ValueError(f"policy must be one of {', '.join(policy_names())}, got {name!r}")


def policy_names() -> list[str]:
    """Return the names of our policies, then those of installed packages."""
    return [*POLICIES, *sorted({point.name for point in entry_points(group=ENTRY_POINTS)} - set(POLICIES))]


def option_names(kind: type[Policy]) -> list[str]:
    return [field.name for field in fields(kind)]


def name_of(chosen: Policy) -> str:
    """Return the name of a policy; without one, the name of its class."""
    kind = type(chosen)
    place = f"{kind.__module__}:{kind.__qualname__}"
    ours = [name for name, listed in POLICIES.items() if kind is listed]
    return [*ours, *(point.name for point in entry_points(group=ENTRY_POINTS) if point.value == place), kind.__name__][
        0
    ]


def title_of(chosen: str | Policy | type[Policy]) -> str:
    """Return a policy's title in results: its name as passed, or its name with non-default options."""
    if isinstance(chosen, str):
        return chosen
    made = policy(chosen)
    options = [(field.name, getattr(made, field.name), field.default) for field in fields(made)]
    said = ",".join(
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value, usual in options
        if value != usual
    )
    return f"{name_of(made)}:{said}" if said else name_of(made)


def _options(name: str, text: str, names: list[str]) -> dict[str, Any]:
    if text and "=" not in text and names:
        return {names[0]: _value(text)}
    options = {}
    for word in text.split(",") if text else ():
        key, equals, value = word.partition("=")
        if not (key.strip() and equals):
            raise ValueError(f"policy must be NAME, NAME:VALUE or NAME:KEY=VALUE,KEY=VALUE, got {name!r}")
        options[key.strip()] = _value(value)
    return options


def _value(text: str) -> float | str:
    with suppress(ValueError):
        return float(text)
    return text.strip()


def checked_probabilities(chosen: Policy, means: Array, widths: Array | None, allowed: Array | None, n: int) -> Array:
    """Return the probabilities that a policy gives all actions, those that are not allowed included; checked."""
    chances, spreads = np.zeros(means.size), np.zeros(means.size) if widths is None else widths
    some = np.ones(means.size, np.bool_) if allowed is None else allowed
    values = np.asarray(chosen.probabilities(means[some], spreads[some], n), np.float64)
    if values.shape != (int(some.sum()),) or not (values.min() >= 0 and abs(values.sum() - 1) < 1e-9):
        expected = f"{int(some.sum())} numbers that are at least 0 and add up to 1"
        raise ValueError(f"probabilities of {name_of(chosen)} must be {expected}, got {values.tolist()}")
    chances[some] = values
    return chances


class LoopSettings(Protocol):
    """The settings of a loop for its policy."""

    @property
    def policy(self) -> str | None: ...
    @property
    def epsilon(self) -> float: ...
    @property
    def gamma(self) -> float | None: ...
    @property
    def floor(self) -> float: ...
    @property
    def reward_range(self) -> tuple[float, float]: ...


def loop_rule(settings: LoopSettings) -> Array:
    """Return the rule of a loop's policy, for rankers and devices."""
    low, high = settings.reward_range
    return _loop_rule(str(settings.policy), settings.epsilon, settings.gamma, settings.floor, (float(low), float(high)))


@lru_cache(maxsize=1_000)
def _loop_rule(
    name: str, epsilon: float, gamma: float | None, floor: float, reward_range: tuple[float, float]
) -> Array:
    checks.one_of("policy", name, HOSTED)
    settings = {"epsilon": epsilon, "gamma": gamma, "floor": floor}
    options = {key: settings[key] for key in HOSTED[name] if settings[key] is not None}
    return POLICIES[name](**{"floor": 0.0, **HOSTED[name], **options}).rule(reward_range)


__all__ = [
    "HOSTED",
    "POLICIES",
    "Compiled",
    "EpsilonGreedy",
    "ExploreEvery",
    "Greedy",
    "LinUCB",
    "OptimisticSquareCB",
    "Policy",
    "Softmax",
    "SquareCB",
    "checked_probabilities",
    "loop_rule",
    "name_of",
    "option_names",
    "policy",
    "policy_class",
    "policy_names",
    "title_of",
]

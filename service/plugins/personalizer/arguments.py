"""A policy's arguments in Vowpal Wabbit's syntax: their meaning here, or why they are refused."""

from __future__ import annotations

import re
import shlex
from functools import lru_cache
from typing import NamedTuple

from service.plugins.personalizer.errors import Refusal

MULTI_SLOT, SINGLE_SLOT = "--ccb_explore_adf", "--cb_explore_adf"
DEFAULT_EPSILON = 0.2
AZURE_RATE = 0.001  # of Azure's default policy; it stands for this service's own rate
DEFAULT_ARGUMENTS = f"{SINGLE_SLOT} --epsilon 0.2 --power_t 0 -l 0.001 --cb_type mtr -q ::"

SHORT = {"-q": "--quadratic", "--interactions": "--quadratic", "-l": "--learning_rate", "-b": "--bit_precision"}
# They say how VW reads its input or decays its rate; nothing here depends on them.
NO_EFFECT_ALONE = (
    "--dsjson",
    "--json",
    "--quiet",
    "--adaptive",
    "--normalized",
    "--invariant",
    "--noconstant",
)
NO_EFFECT = ("--power_t", "--initial_t", "--random_seed", "--bit_precision", "--id", "--hash")
NEGLIGIBLE = 1e-6
CB_TYPES = ("ips", "mtr", "dr", "dm")  # all learn by regression on the action taken, which is what mtr does
_NUMBER = re.compile(r"-\.?\d")  # how a negative one begins
_EPSILON = re.compile(r"(?<!\S)(--epsilon(?:=|\s+))(\S+)")


class PolicyArguments(NamedTuple):
    """The meaning of arguments."""

    multi_slot: bool
    epsilon: float | None
    learning_rate: float | None
    crosses: bool
    ignored: tuple[str, ...]  # first letters of namespaces


@lru_cache(maxsize=1_000)
def read_arguments(text: str) -> PolicyArguments:
    """Return the meaning of arguments; those without effect on learning here are refused by name."""
    pairs = _pairs(text)
    names = [name for name, _ in pairs]
    if (MULTI_SLOT in names) == (SINGLE_SLOT in names):
        raise _refused(f"arguments must have one of {SINGLE_SLOT} and {MULTI_SLOT}, got {text[:100]!r}")
    for name, value in pairs:
        _check(name, value)
    last = dict(pairs)
    return PolicyArguments(
        MULTI_SLOT in names,
        _number(last, "--epsilon", 0, 1),
        _number(last, "--learning_rate", 1e-9, 1e6),
        "--quadratic" in names,
        tuple(letter for name, value in pairs if name == "--ignore" for letter in value),
    )


def epsilon_in(text: str) -> str | None:
    """Return the epsilon in arguments, which need not be valid; None if they have none."""
    match = _EPSILON.search(text)
    return None if match is None else match[2]


def with_epsilon(text: str, epsilon: float) -> str:
    """Return arguments with another epsilon."""
    changed, n_found = _EPSILON.subn(rf"\g<1>{epsilon:g}", text, count=1)
    return changed if n_found else f"{text} --epsilon {epsilon:g}"


def _pairs(text: str) -> list[tuple[str, str]]:
    """Return pairs of an option's long name and its value."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise _refused(f"arguments must be readable: {error}") from None
    pairs: list[tuple[str, str]] = []
    for word in words:
        if word.startswith("-") and not _NUMBER.match(word):
            name, _, value = word.partition("=")
            pairs.append((SHORT.get(name, name), value))
        elif pairs and not pairs[-1][1]:
            pairs[-1] = (pairs[-1][0], word)
        else:
            raise _refused(f"arguments must be names and values, got {word[:100]!r}")
    return pairs


def _check(name: str, value: str) -> None:
    if name in (MULTI_SLOT, SINGLE_SLOT, *NO_EFFECT_ALONE):
        if value:
            raise _refused(f"{name} must have no value, got {value[:100]!r}")
    elif name == "--cb_type":
        if value not in CB_TYPES:
            raise _refused(f"--cb_type must be one of {', '.join(CB_TYPES)}, got {value[:100]!r}")
    elif name == "--quadratic":
        if len(value) != 2:
            raise _refused(f"interactions must be of two namespaces, got {value[:100]!r}")
    elif name in ("--l1", "--l2"):
        if abs(_float(name, value)) > NEGLIGIBLE:
            message = f"{name} must be at most {NEGLIGIBLE:g}: models here have no such penalty"
            raise _refused(f"{message}, got {value[:100]}")
    elif name in ("--ignore", "--epsilon", "--learning_rate", *NO_EFFECT):
        if not value:
            raise _refused(f"{name} must have a value, got none")
    else:
        raise _refused(f"arguments must be among those that this service honours, got {name[:100]}")


def _number(values: dict[str, str], name: str, least: float, most: float) -> float | None:
    if name not in values:
        return None
    value = _float(name, values[name])
    if not least <= value <= most:
        raise _refused(f"{name} must be in [{least:g}, {most:g}], got {value:g}")
    return value


def _float(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise _refused(f"{name} must be a number, got {text[:100]!r}") from None


def _refused(message: str) -> Refusal:
    return Refusal("InvalidPolicyConfiguration", message, "arguments")

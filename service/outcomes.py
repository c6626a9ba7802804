"""Named outcomes: a loop's reward as a formula over the outcomes of an event. It is parsed, never run as code.

    sum     = product (("+" | "-") product)*
    product = sign (("*" | "/") sign)*
    sign    = "-" sign | number | name | ("min" | "max") "(" sum ("," sum)* ")" | "(" sum ")"

A missing outcome is 0, repeated outcomes are added up. A division by 0 is 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Annotated

import msgspec

from service.hints import about

LONGEST, DEEPEST, MOST_OUTCOMES = 500, 30, 20
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
TOKEN = re.compile(r"\s*(\d+\.?\d*(?:[eE][+-]?\d+)?|[A-Za-z_]\w*|[-+*/(),])", re.ASCII)
FUNCTIONS: dict[str, Callable[..., float]] = {"min": min, "max": max}
MARK = "\0"  # prefix of the key of an outcome's record; no reward's id may begin with it

Values = Mapping[str, float]
Part = Callable[[Values], float]


class Guardrail(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the mean of an outcome per event may move against the control group."""

    outcome: Annotated[str, about("Name of the outcome.")]
    rise: Annotated[
        float | None,
        about("Raise an alarm once the outcome certainly rose by more than this; null if fall is set.", 0.1),
    ] = None
    fall: Annotated[
        float | None, about("Raise an alarm once the outcome certainly fell by more than this; null if rise is set.")
    ] = None
    revert: Annotated[bool, about("After the alarm, let the baseline decide for everybody.")] = False

    def __post_init__(self) -> None:
        if (self.rise is None) == (self.fall is None) or not (self.rise or self.fall or 0.0) >= 0:
            raise ValueError("guardrails must have either rise or fall, a number that is at least 0")


class Formula:
    """A formula over outcomes: ``Formula("click + min(price, 50)")({"click": 1.0})`` is 1.0."""

    def __init__(self, text: str) -> None:
        if not 1 <= len(text) <= LONGEST:
            raise ValueError(f"formula must have 1 to {LONGEST} characters, got {len(text)}")
        self.names: set[str] = set()
        self._tokens = _tokens(text)
        self._at = self._depth = 0
        self._value = self._sum()
        if self._next():
            raise ValueError(f"formula must end before {self._next()!r}")

    def __call__(self, values: Values) -> float:
        value = self._value(values)
        return 0.0 if math.isnan(value) else value

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *expected: str) -> str:
        token = self._next()
        if expected and token not in expected:
            raise ValueError(f"formula must have {' or '.join(map(repr, expected))}, got {token or 'its end'!r}")
        self._at += 1
        return token

    def _sum(self) -> Part:
        return self._chain(self._product, {"+": lambda a, b: a + b, "-": lambda a, b: a - b})

    def _product(self) -> Part:
        return self._chain(self._sign, {"*": lambda a, b: a * b, "/": lambda a, b: a / b if b else 0.0})

    def _chain(self, part: Callable[[], Part], operators: Mapping[str, Callable[[float, float], float]]) -> Part:
        first, rest = part(), []
        while self._next() in operators:
            rest.append((operators[self._take()], part()))

        def value(values: Values) -> float:
            total = first(values)
            for operator, operand in rest:
                total = operator(total, operand(values))
            return total

        return value

    def _sign(self) -> Part:
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError(f"formula must not be nested deeper than {DEEPEST}")
        part = self._atom(self._take())
        self._depth -= 1
        return part

    def _atom(self, token: str) -> Part:
        if token == "-":
            operand = self._sign()
            return lambda values: -operand(values)
        if token == "(":
            inner = self._sum()
            self._take(")")
            return inner
        if token in FUNCTIONS:
            self._take("(")
            function, arguments = FUNCTIONS[token], [self._sum()]
            while self._take(",", ")") == ",":
                arguments.append(self._sum())
            return lambda values: function([argument(values) for argument in arguments])
        if NAME.fullmatch(token):
            self.names.add(token)
            return lambda values: values.get(token, 0.0)
        if not token[:1].isdigit():
            raise ValueError(f"formula must have a number, a name or '(', got {token or 'its end'!r}")
        number = float(token)
        return lambda values: number


@lru_cache(maxsize=1_000)
def formula_of(text: str) -> Formula:
    """Return a formula, parsed once."""
    return Formula(text)


def check_outcomes(windows: Mapping[str, float], formula: str | None, wait_time: float) -> None:
    """Refuse outcomes that no formula can use, windows longer than the wait time, and unknown names."""
    if bool(windows) != (formula is not None):
        raise ValueError("outcomes must come with a formula, and a formula with outcomes")
    if len(windows) > MOST_OUTCOMES:
        raise ValueError(f"outcomes must be at most {MOST_OUTCOMES}, got {len(windows)}")
    for name, window in windows.items():
        if not NAME.fullmatch(name) or name in FUNCTIONS:
            raise ValueError(f"outcomes must have names of letters, digits and '_', not 'min' or 'max', got {name!r}")
        if not 0 < window <= wait_time:
            raise ValueError(f"outcomes must have windows in (0, wait_time = {wait_time:g}], got {window} for {name!r}")
    unknown = formula_of(formula).names - windows.keys() if formula is not None else set()
    if unknown:
        raise ValueError(f"formula must use the loop's outcomes, got {min(unknown)!r}")


def outcome_key(name: str, key: str) -> str:
    """Return the key of a record of an outcome."""
    return f"{MARK}{name}{MARK}{key}"


def outcome_name(key: str) -> str | None:
    """Return the name of the outcome of a record, None for a plain reward."""
    return key[1:].partition(MARK)[0] if key.startswith(MARK) else None


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    while text[at:].strip():
        match = TOKEN.match(text, at)
        if match is None:
            raise ValueError(
                f"formula must be numbers, names, + - * / ( ) , min and max, got {text[at:].strip()[:20]!r}"
            )
        tokens.append(match[1])
        at = match.end()
    return tokens

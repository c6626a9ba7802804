"""From hashed features to the inputs of ``residual-kalman``, in plain NumPy: scales, the core, features of actions.

A context is (hashes, values), an action (hashes, values, fields), where a field is the JSON key that a feature came
from; an action feature is a number if its hash is its field's or its value is not 1.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from fedres.checks import Array
from fedres.decisions import constants as the

Hashed = tuple[Sequence[int], Sequence[float]]
Action = tuple[Sequence[int], Sequence[float], Sequence[int]]
Tail = list[tuple[int, float]]  # coordinates and values of a context beside the core


class KalmanEvent(NamedTuple):
    """A rewarded decision."""

    user: Hashable  # None is nobody
    context: Hashed
    action: Action
    reward: float


class Scale:
    """A number free of units: s = sign(x) log(1 + |x|/unit), the unit in medians of the first 16 |x| but zeros."""

    def __init__(self, medians: float) -> None:
        self.medians, self.values = medians, list[float]()

    def add(self, value: float) -> None:
        if len(self.values) < the.FIRST_VALUES:
            self.values.append(value)
            others = [value for value in self.values if value]
            sizes, n, m = sorted(map(abs, others)), len(self.values), len(others)
            self.unit = self.medians * ((sizes[(m - 1) // 2] + sizes[m // 2]) / 2)
            logs = [self.log(value) for value in self.values]
            self.mean, self.rms = sum(logs) / n, math.sqrt(sum(s * s for s in logs) / m)
            deviation = math.sqrt(sum((s - self.mean) * (s - self.mean) for s in logs) / n)
            self.deviation = deviation if len({*others}) > 1 else 0.0  # 0 of flags

    def log(self, value: float) -> float:
        return math.copysign(math.log1p(abs(value) / self.unit), value)

    def scaled(self, value: float, *, centred: bool) -> float:
        """Return the number in root mean squares or, centred, in deviations from the mean; flags are never centred."""
        s = self.log(value)
        x = (s - self.mean) / self.deviation if centred and self.deviation > 1e-9 else s / self.rms
        return min(max(x, -the.NUMBER_LIMIT), the.NUMBER_LIMIT)


class Inputs:
    """The scales of numbers, and the context's coordinates in the core."""

    length: float  # of a context before it is scaled

    def __init__(self) -> None:
        self.scales: dict[tuple[str, int], Scale] = {}
        self.core = {0: 0}  # the coordinate of a context's hash

    def _settle(self, start: Sequence[KalmanEvent]) -> None:
        """Choose the core by the start's contexts; one divisor for all makes their mean squared length 1."""
        counts: Counter[int] = Counter()
        for event in start:
            self._inputs_scaled(event.context, new=True)
            self._features(event.action, new=True)
            counts.update({key or 1 for key, value in zip(*event.context, strict=True) if value})
        frequent = sorted((-n, key) for key, n in counts.items() if n >= the.CORE_COUNT)[: the.CORE_SIZE - 1]
        self.core |= {key: 1 + k for k, (_, key) in enumerate(frequent)}
        self.length = math.sqrt(1 + counts.total() / len(start))

    def _scaled(self, kind: str, key: int, value: float, *, new: bool) -> float:
        if new and ((kind, key) in self.scales or len(self.scales) < the.MAX_SCALES):
            unit = the.ACTION_UNIT if kind == "action" else the.CONTEXT_UNIT
            self.scales.setdefault((kind, key), Scale(unit)).add(value)
        scale = self.scales.get((kind, key))
        return scale.scaled(value, centred=kind == "action") if scale else math.copysign(1.0, value)

    def _inputs_scaled(self, context: Hashed, *, new: bool) -> list[tuple[int, float]]:
        named = [(int(key) or 1, float(value)) for key, value in zip(*context, strict=True) if value]
        return [(key, self._scaled("context", key, value, new=new)) for key, value in named]

    def _context(self, context: Hashed, *, new: bool = False) -> tuple[Array, Tail]:
        """Return z and t."""
        z, t = np.zeros(len(self.core)), []
        for key, x in [(0, 1.0), *self._inputs_scaled(context, new=new)]:
            if key in self.core:
                z[self.core[key]] += x / self.length if key else self._constant()
            else:
                t.append((key, x / self.length))
        return z, t

    def _constant(self) -> float:
        return max(1 / self.length, the.LEAST_CONSTANT)

    def _features(self, action: Action, *, new: bool = False) -> dict[int, tuple[float, int]]:
        """Return key -> (x, field) of an action. Equal hashes are merged; a missing number is the usual one.

        0 is a value of a number that had others before.
        """
        features: dict[int, tuple[float, int]] = {}
        for key, value, name in zip(*action, strict=True):
            key, value, name = int(key) or 1, float(value), int(name) or 1
            if value or ("action", key) in self.scales:
                number = key == name or value != 1.0
                x = self._scaled("action", key, value, new=new) if number else 1.0
                before, name = features.get(key, (0.0, name))
                features[key] = before + x, name
        return {key: (x, name) for key, (x, name) in features.items() if x}

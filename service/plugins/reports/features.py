"""Features in the newest events: their importance, and which ones are constant or gone."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any, NamedTuple

import msgspec

from bandits.evaluation.importance import ACTION, flat_names, names_in
from service.hints import about

SAMPLED = 2_000  # newest finished events to analyze
EVERY = 10  # of earlier events, one in so many is kept, to detect features that are gone
GONE = 10  # of these events, how many must have had a feature that is gone
CATALOGUED = 2_000  # actions of the catalogue to analyze
MOST_FEATURES = 100


class Feature(msgspec.Struct):
    """A feature in the newest events."""

    kind: Annotated[str, about("Whether it is a feature of the context, or of the action that was taken.")]
    name: Annotated[str, about("Name of the feature.")]
    importance: Annotated[
        float, about("Share of the rewards' variance that it explains, relative to the strongest feature.")
    ]
    coverage: Annotated[float, about("Share of the events that have it.")]
    values: Annotated[int, about("Number of different values.")]
    note: Annotated[
        str,
        about(
            "constant, gone (only earlier events had it), never taken (only in the catalogue), or empty.", "constant"
        ),
    ]


class FeatureSample(NamedTuple):
    """A finished decision; its features are read again from the log, where they take no memory."""

    position: int
    reward: float
    is_control: bool = False


Rows = list[dict[str, Any]]  # for ``bandits.evaluation.importance``
Columns = list[tuple[str, str, float, list[Any]]]  # of ``scored_columns``


class FeatureSamples:
    """Picks events to analyze."""

    def __init__(self) -> None:
        self.newest: deque[FeatureSample] = deque()
        self.earlier: deque[FeatureSample] = deque(maxlen=SAMPLED)
        self._n_passed = 0

    def add(self, sample: FeatureSample) -> None:
        self.newest.append(sample)
        if len(self.newest) > SAMPLED:
            passed = self.newest.popleft()
            self._n_passed += 1
            if self._n_passed % EVERY == 0:
                self.earlier.append(passed)


def features_of(rows: Rows, columns: Columns, earlier: Rows, catalogue: Mapping[str, msgspec.Raw]) -> list[Feature]:
    """Return the features of events, the most important ones first, those that are gone since earlier ones last.

    ``columns`` are the ``scored_columns`` of the rows.
    """
    present = []
    for kind, name, score, values in columns:
        n_missing = values.count(None)
        n_values = len(set(values)) - bool(n_missing)
        note = "constant" if n_values == 1 and not n_missing else ""
        coverage = round(1 - n_missing / len(rows), 4)
        present.append(Feature(kind, name, round(float(score), 4), coverage, n_values, note))
    present.sort(key=lambda feature: (-feature.importance, feature.kind, feature.name))
    absent = _absent(earlier, catalogue, {(feature.kind, feature.name) for feature in present}) if rows else []
    room = max(MOST_FEATURES - len(absent), MOST_FEATURES // 2)
    return [*present[:room], *absent][:MOST_FEATURES]


def _absent(earlier: Rows, catalogue: Mapping[str, msgspec.Raw], present: set[tuple[str, str]]) -> list[Feature]:
    counts = Counter(name for row in earlier for name in names_in(row))
    gone = {name for name, n in counts.items() if n >= GONE} - present
    offered = {
        (ACTION, name)
        for features in islice(catalogue.values(), CATALOGUED)
        for name in flat_names(msgspec.json.decode(features))
    }
    notes = {**dict.fromkeys(offered - present, "never taken"), **dict.fromkeys(gone, "gone")}
    return [Feature(kind, name, 0.0, 0.0, 0, note) for (kind, name), note in sorted(notes.items())]

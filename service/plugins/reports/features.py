"""Features in the newest events: their importance, and which ones are constant or gone."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from bandits.evaluation.importance import ACTION, flat_names, names_in, scored_columns
from service.admin.exporting import NO_FEATURES
from service.log.records import LoggedRank

SAMPLED = 2_000  # newest finished events to analyze
EVERY = 10  # of earlier events, one in so many is kept, to detect features that are gone
GONE = 10  # of these events, how many must have had a feature that is gone
CATALOGUED = 2_000  # actions of the catalogue to analyze
MOST_FEATURES = 100


class Feature(msgspec.Struct):
    """A feature in the newest events."""

    kind: str  # of the context, or of the action that was taken
    name: str
    importance: float  # share of the rewards' variance it explains, relative to the strongest feature
    coverage: float  # share of events that have it
    values: int  # different ones
    note: str  # constant, gone (it was in earlier events), never taken (only in the catalogue), or empty


class FeatureSample(NamedTuple):
    """A finished decision with its features."""

    user: str | None
    reward: float
    body: LoggedRank

    def row(self, catalogue: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
        """Return a row for ``bandits.evaluation.importance``."""
        taken = self.body.actions[self.body.action]
        features = taken.features or catalogue.get(taken.id, NO_FEATURES)
        action = {"id": taken.id, "features": msgspec.json.decode(features)}
        context = msgspec.json.decode(self.body.context)
        return {"context": context, "actions": [action], "action": taken.id, "reward": self.reward}


class FeatureSamples:
    """Keeps events; ``features`` analyzes them."""

    def __init__(self) -> None:
        self.newest: deque[FeatureSample] = deque()
        self._earlier: deque[FeatureSample] = deque(maxlen=SAMPLED)
        self._n_passed = 0

    def add(self, sample: FeatureSample) -> None:
        self.newest.append(sample)
        if len(self.newest) > SAMPLED:
            passed = self.newest.popleft()
            self._n_passed += 1
            if self._n_passed % EVERY == 0:
                self._earlier.append(passed)

    def features(self, catalogue: Mapping[str, msgspec.Raw]) -> list[Feature]:
        """Return the features, the most important ones first, those that are gone last."""
        rows = [sample.row(catalogue) for sample in self.newest]
        present = []
        for kind, name, score, values in scored_columns(rows):
            n_missing = values.count(None)
            n_values = len(set(values)) - bool(n_missing)
            note = "constant" if n_values == 1 and not n_missing else ""
            coverage = round(1 - n_missing / len(rows), 4)
            present.append(Feature(kind, name, round(float(score), 4), coverage, n_values, note))
        present.sort(key=lambda feature: (-feature.importance, feature.kind, feature.name))
        absent = self._absent(catalogue, {(feature.kind, feature.name) for feature in present}) if rows else []
        room = max(MOST_FEATURES - len(absent), MOST_FEATURES // 2)
        return [*present[:room], *absent][:MOST_FEATURES]

    def _absent(self, catalogue: Mapping[str, msgspec.Raw], present: set[tuple[str, str]]) -> list[Feature]:
        earlier = Counter(name for sample in self._earlier for name in names_in(sample.row(catalogue)))
        gone = {name for name, n in earlier.items() if n >= GONE} - present
        offered = {
            (ACTION, name)
            for features in islice(catalogue.values(), CATALOGUED)
            for name in flat_names(msgspec.json.decode(features))
        }
        notes = {**dict.fromkeys(offered - present, "never taken"), **dict.fromkeys(gone, "gone")}
        return [Feature(kind, name, 0.0, 0.0, 0, note) for (kind, name), note in sorted(notes.items())]

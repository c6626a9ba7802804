"""Features in the newest events: how much each says, and which say nothing or are no longer there."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from service.admin.exporting import NO_FEATURES
from service.log.records import LoggedRank
from service.plugins.reports.importance import ACTION, flat_names, scored_columns
from service.plugins.reports.series import Feature, Finished, rounded

SAMPLED = 2_000  # finished events whose features are looked at, the newest
EVERY = 10  # of the events before those, one in so many is kept, to see what is gone
GONE = 10  # events of these that must have had a feature
CATALOGUED = 2_000  # actions of the catalogue that are looked at
MOST_FEATURES = 100

Sample = tuple[Finished, LoggedRank]


class FeatureSamples:
    """Keeps events; ``features`` says what they show."""

    def __init__(self) -> None:
        self.newest: deque[Sample] = deque()
        self._earlier: deque[Sample] = deque(maxlen=SAMPLED)
        self._n_passed = 0

    def add(self, finished: Finished, body: LoggedRank) -> None:
        self.newest.append((finished, body))
        if len(self.newest) > SAMPLED:
            passed = self.newest.popleft()
            self._n_passed += 1
            if self._n_passed % EVERY == 0:
                self._earlier.append(passed)

    def features(self, catalogue: Mapping[str, msgspec.Raw]) -> list[Feature]:
        """Return the most important features first, those that are not there any more last."""
        rows = [_row(sample, catalogue) for sample in self.newest]
        found, seen = [], set()
        for kind, name, score, values in scored_columns(rows):
            n_missing = values.count(None)
            n_values = len(set(values)) - bool(n_missing)
            note = "constant" if n_values == 1 and not n_missing else ""
            found.append(Feature(kind, name, rounded(score), rounded(1 - n_missing / len(rows)), n_values, note))
            seen.add((kind, name))
        found.sort(key=lambda one: (-one.importance, one.kind, one.name))
        absent = self._absent(catalogue, seen) if rows else []
        room = max(MOST_FEATURES - len(absent), MOST_FEATURES // 2)
        return [*found[:room], *absent][:MOST_FEATURES]

    def _absent(self, catalogue: Mapping[str, msgspec.Raw], seen: set[tuple[str, str]]) -> list[Feature]:
        before = Counter(
            named for sample in self._earlier for named in _names(_row(sample, catalogue)) if named not in seen
        )
        gone = {named for named, n in before.items() if n >= GONE}
        offered = {
            (ACTION, name)
            for features, _ in zip(catalogue.values(), range(CATALOGUED), strict=False)
            for name in flat_names(msgspec.json.decode(features))
        }
        notes = {**dict.fromkeys(offered - seen, "never taken"), **dict.fromkeys(gone, "gone")}
        return [Feature(kind, name, 0.0, 0.0, 0, note) for (kind, name), note in sorted(notes.items())]


def _row(sample: Sample, catalogue: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    one, body = sample
    taken = body.actions[body.action]
    features = taken.features or catalogue.get(taken.id, NO_FEATURES)
    action = {"id": taken.id, "features": msgspec.json.decode(features)}
    context = msgspec.json.decode(body.context)
    return {"context": context, "actions": [action], "action": taken.id, "reward": one.reward}


def _names(row: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    [action] = row["actions"]
    for kind, features in (("context", row["context"]), (ACTION, action["features"])):
        yield from {(kind, name) for name in flat_names(features)}

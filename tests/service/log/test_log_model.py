"""A random sequence of calls: every log answers as a model of a few lines does."""

import random

import pytest

from service.log.protocol import Duplicate, Refused
from service.log.records import Record


def body_of_erased(n_erased):
    return b'{"records":%d}' % n_erased


class ModelLog:
    """What a log should answer, without a database."""

    def __init__(self):
        self.entries, self.last = [], {}

    def append(self, groups):
        return [self._append(group) for group in groups]

    def _append(self, group):
        once, keys = ("rank", "residual", "update", "join", "loop", "settings"), set()
        for record in group:
            if not record.kind:
                return Refused
            key = (record.loop, record.kind, record.event)
            stored = {entry[:1] + entry[2:4] for entry in self.entries}
            if record.kind in once and record.event is not None and (key in stored or key in keys):
                return Duplicate
            keys.add(key)
        first = self.last.get(group[0].loop, 0) + 1
        for k, record in enumerate(group):
            self.entries.append((record.loop, first + k, *record[1:]))
        self.last[group[0].loop] = first + len(group) - 1
        return first

    def erase(self, loop, user):
        events = {entry[3] for entry in self.entries if (entry[0], entry[4], entry[2]) == (loop, user, "rank")}
        gone = [
            entry
            for entry in self.entries
            if entry[0] == loop
            and (
                entry[4] == user or (entry[2] in ("reward", "activate") and entry[3] is not None and entry[3] in events)
            )
        ]
        self.entries = [entry for entry in self.entries if entry not in gone]
        newest = {entry[4]: entry[1] for entry in self.entries if entry[0] == loop and entry[2] == "base"}
        self.entries = [
            entry
            for entry in self.entries
            if not (entry[0] == loop and entry[2] == "base" and entry[1] < newest[entry[4]])
        ]
        self._append([Record(loop, "erased", body=body_of_erased(len(gone)))])
        return len(gone)


def some_group(rng):
    """Return records of few users and events, some of them repeats, some that cannot be stored."""
    kinds, bodies = ("rank", "residual", "reward", "activate", "base", ""), (b"{}", b"\xff\0", "ö".encode())
    loop = rng.choice(("shop", "news"))
    return [
        Record(
            loop,
            rng.choices(kinds, (9, 3, 6, 2, 2, 1))[0],
            rng.choice((None, f"e{rng.randrange(60)}")),
            rng.choice((None, f"u{rng.randrange(5)}")),
            rng.choice((None, b"example")),
            rng.choice(bodies),
        )
        for _ in range(rng.choice((1, 1, 1, 3)))
    ]


@pytest.mark.parametrize("seed", range(3))
def test_a_log_answers_as_its_model_does(log, seed):
    rng, model = random.Random(seed), ModelLog()
    for _ in range(80):
        groups = [some_group(rng) for _ in range(rng.randrange(6))]
        outcomes = [outcome if isinstance(outcome, int) else type(outcome) for outcome in log.append(groups)]
        assert outcomes == model.append(groups)
        loop, user = rng.choice(("shop", "news")), f"u{rng.randrange(5)}"
        if rng.random() < 0.15 and loop in model.last:
            assert log.erase(loop, user, body_of_erased) == model.erase(loop, user)
        for name in model.last:
            entries = [(entry.loop, entry.position, *entry[3:]) for entry in log.read(name)]
            assert entries == [entry for entry in model.entries if entry[0] == name]
            assert log.heads()[name][::2] == (model.last[name], model.last[name] - len(entries))
    assert len(model.entries) > 50

"""Compiles what deciding and learning need, so that neither a request nor a restart waits for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedres.scoring.features import Preparer
from fedres.scoring.model import PersonalModel, SharedModel, expand, learn, score
from service.learn.learner import Learner
from service.learn.snapshots import Snapshots
from service.log.records import LOOP, REWARD, ErasedBody, Record, encode, encode_reward
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.models.personal import read_personal
from service.models.published import Models, Publisher, make_current
from service.ranking.decide import decide, explanations
from service.ranking.requests import Action, RankRequest
from service.settings import Settings


class _Writer:
    def __init__(self, log: SqliteLog) -> None:
        self.append = log.append
        self._log = log

    def scrub(self, ticket: int) -> bool:
        return not [*self._log.scrub()]

    def erase(self, loop: str, user: str, base: int, token: str, epoch: int | None) -> int:
        return self._log.erase(loop, user, lambda n: encode(ErasedBody(n, base, token)))


def warm_up() -> None:
    """Decide, learn and publish once, in a store that is thrown away."""
    prepared = Preparer().prepare(b'{"a": 1}', [("a", b"{}"), ("b", b"{}")])
    shared, personal = SharedModel(bits=1), PersonalModel()
    learn(prepared, 0, 1.0, shared, personal)
    shared.correct(expand(prepared, 0), 0.5, 0.0)
    score(prepared, shared.weights.copy())
    with tempfile.TemporaryDirectory(prefix="fedres-") as name:
        _play(Path(name))


def _play(folder: Path) -> None:
    make_current(folder)
    with SqliteLog(sqlite_file(folder / "log")) as log:
        log.append([[Record("default", LOOP, "loop after 0", body=encode(Settings(bits=10)))]])
        learner = Learner(log, _Writer(log), Snapshots(folder / "models"), Publisher(folder, 1))
        learner.open()
        models = Models(folder)
        loop = models.loop("default")
        for _ in range(2):
            assert loop is not None
            request = RankRequest(actions=[Action("a"), Action("b")], user="u", explain=True)
            for action in request.actions:
                action.features = type(action.features)(b"{}")
            [decision] = decide([request], loop, models, Preparer())
            assert not isinstance(decision, Exception)
            explanations(decision.prepared, loop, models)
            reward = Record("default", REWARD, decision.prepared.event_id, None, encode_reward(1.0, None))
            log.append([[decision.record(loop)], [reward]])
            learner.step()
            loop = models.loop("default")
        assert models.memory is not None
        assert loop is not None
        read_personal(models.memory, loop.view.id, "u")
        learner.close()

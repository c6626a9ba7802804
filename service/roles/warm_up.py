"""Compiles what deciding and learning need, so that neither a request nor a restart waits for it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from msgspec import Raw

from fedres.decisions.constants import START_EVENTS
from fedres.scoring.features import Preparer
from fedres.scoring.model import PersonalModel, SharedModel, expand, learn, score
from service.learn.learner import Learner
from service.learn.snapshots import Snapshots
from service.log.direct import DirectWriter
from service.log.records import LOOP, REWARD, Record, encode, encode_reward
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.models.published import Models, Publisher, make_current
from service.plugins.devices.uploads import Residual, residual_records
from service.plugins.recommend.drawing import warm_up_draws
from service.rank.decide import decide
from service.rank.explaining import explanations
from service.rank.requests import Action, RankRequest
from service.settings import Settings


def warm_up(folder: Path | None = None) -> None:
    """Decide, learn and publish once, in a store in ``folder`` that is thrown away; shared memory needs no disk."""
    prepared = Preparer().prepare(b'{"a": 1}', [("a", b"{}"), ("b", b"{}")])
    shared, personal = SharedModel(bits=1), PersonalModel()
    learn(prepared, 0, 1.0, shared, personal)
    shared.correct(expand(prepared, 0), 0.5, 0.0)
    score(prepared, shared.weights.copy())
    with tempfile.TemporaryDirectory(prefix="fedres-", dir=folder) as name:
        _play(Path(name))


def _play(folder: Path) -> None:
    make_current(folder)
    with SqliteLog(sqlite_file(folder / "log")) as log:
        settings = {"kalman": Settings(model="residual-kalman"), "adagrad": Settings(model="adagrad", bits=10)}
        log.append([[Record(name, LOOP, "loop after 0", body=encode(one))] for name, one in settings.items()])
        learner = Learner(log, DirectWriter(log), Snapshots(folder / "models"), Publisher(folder, 1))
        learner.open()
        models = Models(folder)
        for name, n in (("kalman", START_EVENTS + 2), ("adagrad", 2)):
            for k in range(n):
                _decide_and_learn(name, log, models)
                if k >= n - 2 or k == 0:
                    learner.step()
            _upload(name, log, models)
            learner.step()
        learner.close()


def _decide_and_learn(name: str, log: SqliteLog, models: Models) -> None:
    loop = models.loop(name)
    assert loop is not None
    request = RankRequest(actions=[Action("a"), Action("b")], user="u", explain=True)
    for action in request.actions:
        action.features = type(action.features)(b"{}")
    [decision] = decide([request], loop, models, Preparer())
    assert not isinstance(decision, Exception)
    list(explanations(decision.prepared, loop, models))
    warm_up_draws(loop, models)
    reward = Record(name, REWARD, decision.prepared.event_id, None, encode_reward(1.0, None))
    log.append([[decision.record(loop)], [reward]])


def _upload(name: str, log: SqliteLog, models: Models) -> None:
    """Upload what a device would."""
    loop = models.loop(name)
    assert loop is not None
    more: dict[str, Any] = {"variance": 0.1, "slopes": [0.1, 0.1]} if loop.view.settings.has_widths else {}
    residual = Residual(1, loop.view.version, Raw(b'{"a": 1}'), Action("a"), 0.0, 1.0, **more)
    log.append([[record] for record in residual_records(loop, "d", [residual], Preparer())])

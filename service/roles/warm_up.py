"""Compiles the code for deciding and learning, so that neither a request nor a restart waits for it.

Code for the default model is compiled before the service is ready, on two cores: a separate process compiles the code
of rankers while this one compiles that of the learner, both into numba's cache. The rest follows in the
background, and requests that need it wait: other models unless a loop uses them, explanations, recommendations, and
uploads of devices.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Raw
from numba.core import event

from fedres.scoring.features import Preparer
from fedres.scoring.model import PersonalModel, SharedModel, expand, learn, score
from service.learn.learner import Learner
from service.learn.loop_state import read_settings_body
from service.learn.snapshots import Snapshots
from service.log.protocol import Log
from service.log.records import LOOP, RANK, REWARD, DecisionExample, HashedExample, Record, encode, encode_reward
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file
from service.log.writer import DirectWriter
from service.models.published import COMPILING, Loop, PublishedModels, Publisher, make_current
from service.models.table import MODELS
from service.plugins.devices.uploads import Residual, residual_records
from service.plugins.recommend.drawing import warm_up_draws
from service.rank.decide import Decision, decide
from service.rank.explaining import explanations
from service.rank.requests import Action, RankRequest
from service.settings import Settings

NICE = 19  # of the background process


def warm_up_for(models: Collection[str], folder: Path) -> None:
    """Compile the code for loops with these models, on two cores."""
    with in_process(compile_ranking, models, folder) as pid:
        compile_learning(models, folder)
        os.waitpid(pid, 0)
    compile_ranking(models, folder)  # from the cache


def models_in(log: Log) -> set[str]:
    """Return the models of all loops."""
    created = [log.of_kind(loop, LOOP) for loop in log.heads()]
    return {str(read_settings_body(records[-1].body).model) for records in created if records}


def load_rest(folder: Path, work: Callable[[Path], None] | None = None) -> bool:
    """Load the rest from numba's cache, which takes a second; return False at the first missing function.

    A first start that was stopped early has cached only what it needed to be ready.
    """
    try:
        with event.install_listener("numba:compile", _NotCachedListener()):
            (work or warm_up)(folder)
    except _NotCached:
        return False
    return True


class _NotCached(BaseException):
    """Numba begins to compile; no ``except Exception`` on the way, as that of the learner, takes it for a failure."""


class _NotCachedListener(event.Listener):
    def on_start(self, _: object) -> None:
        raise _NotCached

    def on_end(self, _: object) -> None:
        pass


@contextlib.contextmanager
def compiling_rest(folder: Path) -> Iterator[None]:
    """Compile the rest in the background; the file ``COMPILING`` exists in the folder until that is done."""
    (folder / COMPILING).touch()
    with in_process(_compile_rest_nicely, folder):
        yield


def _compile_rest_nicely(folder: Path) -> None:
    os.nice(NICE)
    try:
        warm_up(folder)
    finally:
        (folder / COMPILING).unlink(missing_ok=True)


@contextlib.contextmanager
def in_process(work: Callable[..., None], *arguments: Any) -> Iterator[int]:
    """Run ``work`` in a process, which is killed if it still runs at the end of the block; yield its number.

    It inherits no open files: if this process is killed, neither a port nor the lease of a store stays in use.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with contextlib.suppress(BaseException), event.install_listener("numba:compile", _Orphan(parent)):
            work(*arguments)
        os._exit(0)
    try:
        yield pid
    finally:
        with contextlib.suppress(ChildProcessError):  # it has ended: its number may belong to another process by now
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


class _Orphan(event.Listener):
    """Ends the process between two functions once its parent is gone."""

    def __init__(self, parent: int) -> None:
        self._parent = parent

    def on_start(self, _: object) -> None:
        if os.getppid() != self._parent:
            os._exit(0)

    def on_end(self, _: object) -> None:
        pass


def compile_learning(models: Collection[str], folder: Path | None = None) -> None:
    """Compile learning, by learning from made-up events."""
    with _machine(models, folder) as (log, learner, _):
        for model in models:
            _learn(model, log, learner)


def compile_ranking(models: Collection[str], folder: Path | None = None) -> None:
    """Compile deciding, by models that have learned nothing: compilation depends on types only, not on values."""
    with _machine(models, folder) as (_, _, published):
        for model in models:
            _decide(model, published)


def warm_up(folder: Path | None = None) -> None:
    """Compile everything in this process, with a temporary store in ``folder``; shared memory needs no disk.

    Learn, decide and explain for a user with a model, recommend, and upload and use models as devices do.
    """
    prepared = Preparer().prepare(b'{"a": 1}', [("a", b"{}"), ("b", b"{}")])
    shared = SharedModel(bits=1)
    learn(prepared, 0, 1.0, shared, PersonalModel())
    shared.correct(expand(prepared, 0), 0.5, 0.0)
    score(prepared, shared.weights.copy())
    with _machine(MODELS, folder) as (log, learner, published):
        for model in MODELS:
            _learn(model, log, learner)
            loop, decision = _decide(model, published)
            list(explanations(decision.prepared, loop, published))
            warm_up_draws(loop, published)
            if not loop.model.device_learners:
                continue
            more: dict[str, Any] = {"variance": 0.1, "slopes": [0.1, 0.1]} if loop.view.settings.has_widths else {}
            residual = Residual(1, loop.view.version, Raw(b'{"a": 1}'), Action("a"), 0.0, 1.0, **more)
            log.append([[record] for record in residual_records(loop, "d", [residual], Preparer())])
            learner.step()


def _learn(model: str, log: SqliteLog, learner: Learner) -> None:
    hashes, values = np.array([1, 2], np.uint32).tobytes(), np.ones(2, np.float32).tobytes()
    example = DecisionExample(
        HashedExample(hashes, values, 1, hashes[4:]), 1, 1.0, deferred=False, agreed=None
    ).encode()
    n = MODELS[model].EVENTS_TO_COMPILE
    for k in range(n):
        reward = Record(model, REWARD, str(k), None, encode_reward(1.0, None))
        log.append([[Record(model, RANK, str(k), "u", example)], [reward]])
        if k >= n - 2 or k == 0:
            learner.step()


def _decide(model: str, published: PublishedModels) -> tuple[Loop, Decision]:
    loop = published.loop(model)
    assert loop is not None
    request = RankRequest(actions=[Action("a", Raw(b"{}")), Action("b", Raw(b"{}"))], user="u", explain=True)
    [decision] = decide([request], loop, published, Preparer())
    assert not isinstance(decision, Exception)
    return loop, decision


@contextlib.contextmanager
def _machine(models: Collection[str], folder: Path | None) -> Iterator[tuple[SqliteLog, Learner, PublishedModels]]:
    """Yield a log, its learner and the published models, with one loop for each model, named after it."""
    with tempfile.TemporaryDirectory(prefix="fedres-", dir=folder) as name:
        home = Path(name)
        make_current(home)
        with SqliteLog(sqlite_file(home / "log")) as log:
            bodies = [(model, encode(Settings(model=model))) for model in models]
            log.append([[Record(model, LOOP, "loop after 0", body=body)] for model, body in bodies])
            learner = Learner(log, DirectWriter(log), Snapshots(home / "models"), Publisher(home, 1))
            learner.open()
            try:
                yield log, learner, PublishedModels(home)
            finally:
                learner.close()

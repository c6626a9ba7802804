"""A store that commit defcdb34 wrote is opened, and all its loops go on.

It has four loops and a deleted one, a baseline ``pinned``, control groups, a formula, slots, catalogues, deferred and
pending events, and two erased users, so that models of that version are in the log. ``adagrad`` decides and has learned
as there; ``residual-kalman`` is another model since, and is learned from the records that the log still has.
"""

import asyncio
import gzip
import json
import platform
import shutil
from pathlib import Path

import pytest
from machine import Clock, running
from playing import play, request

from service.log.records import ERASED

FOLDER = Path(__file__).parent / "earlier_store"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())
LOOPS = ("default", "adagrad", "formula", "controlled")


@pytest.fixture
def clock():
    clock = Clock()
    clock.now = EXPECTED["now"]
    return clock


@pytest.fixture
def folder(tmp_path):
    for packed in FOLDER.glob("*.gz"):
        with gzip.open(packed) as source, open(tmp_path / packed.stem, "wb") as target:
            shutil.copyfileobj(source, target)
    return tmp_path


def test_all_loops_are_served_and_what_has_not_changed_decides_the_same(folder, clock):
    async def story():
        async with running(folder, clock=clock) as engine:
            assert engine.loops() == sorted(LOOPS)
            assert engine.learner.trouble is None
            for loop in LOOPS:
                assert not engine.settings(loop)[1].draws_by_loop
                assert engine.digest(loop) == engine.rebuilt(loop)
                assert engine.context.loop(loop).n_learned > 0
            if EXPECTED["digests"]["adagrad"].startswith(f"{platform.machine()}:"):
                assert engine.digest("adagrad") == EXPECTED["digests"]["adagrad"]
            for name, (action, probability, arm) in EXPECTED["decided"].items():
                loop, k = name.split()
                place = int(k)
                sent = request(f"user-{place % 5}", {"hour": place % 4}, event_id=f"next {place}")
                result = await engine.rank(loop, sent)
                assert result.arm == arm, name
                if loop in ("adagrad", "formula") or arm == "control":
                    assert result.action_id == action, name
                    assert result.probability == pytest.approx(probability, rel=1e-6)

    asyncio.run(story())


def test_all_loops_go_on_and_users_are_erased(folder, clock):
    async def story():
        async with running(folder, clock=clock) as engine:
            control = engine.settings("controlled")[1].control
            assert (control.baseline, control.experiment, control.by_loop) == ("uniform", "with a pin", False)
            await engine.patch_settings("controlled", {"gamma": 20.0})
            assert engine.settings("controlled")[1].control == control
            await engine.reward("default", "pending", 1.0)
            for loop in ("default", "adagrad", "controlled"):
                await play(engine, 20, 9, loop)
            await engine.erase_user_everywhere("user-3")
            for loop in (*LOOPS, "gone"):
                assert not [entry for entry in engine.logged(loop) if entry.user == "user-3"]
            for loop in ("default", "controlled"):
                kinds = [entry.kind for entry in engine.logged(loop)]
                assert kinds.count(ERASED) == 2
                assert engine.learner.loops[loop].metadata.base > 0
            for loop in LOOPS:
                assert engine.digest(loop) == engine.rebuilt(loop)
            version = await engine.create_loop("new")
            assert engine.settings("new")[1].draws_by_loop
            assert version == 1

    asyncio.run(story())

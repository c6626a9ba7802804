"""A store that commit defcdb34 wrote is opened, decides and has learned as there, and goes on.

It has four loops and a deleted one, a baseline ``pinned``, control groups, a formula, slots, catalogues, deferred and
pending events, and two erased users.
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

from service.log.records import BASE, ERASED, SETTINGS

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


def test_the_same_is_decided_and_was_learned(folder, clock):
    async def story():
        async with running(folder, clock=clock) as engine:
            assert engine.loops() == sorted(LOOPS)
            assert engine.learner.trouble is None
            for loop in LOOPS:
                assert not engine.settings(loop)[1].draws_by_loop
                learned = engine.digest(loop)
                assert learned == engine.rebuilt(loop)
                if EXPECTED["digests"][loop].startswith(f"{platform.machine()}:"):
                    assert learned == EXPECTED["digests"][loop]
            for name, (action, probability, arm) in EXPECTED["decided"].items():
                loop, k = name.split()
                k = int(k)
                sent = request(f"user-{k % 5}", {"hour": k % 4}, event_id=f"next {k}")
                result = await engine.rank(loop, sent)
                assert (result.action_id, result.arm) == (action, arm), name
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
                entries = engine.logged(loop)
                assert not [
                    entry for entry in entries if entry.user in ("user-1", "user-3") and entry.kind != BASE
                ] or (loop not in ("default",))
                assert not [entry for entry in entries if entry.user == "user-3"]
                assert {ERASED, SETTINGS} & {entry.kind for entry in entries} or loop in ("adagrad", "formula", "gone")
            for loop in LOOPS:
                assert engine.digest(loop) == engine.rebuilt(loop)
            version = await engine.create_loop("new")
            assert engine.settings("new")[1].draws_by_loop
            assert version == 1

    asyncio.run(story())

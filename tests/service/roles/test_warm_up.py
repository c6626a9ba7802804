"""What is compiled before a service is ready, and what a loop with another model waits for."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import run
from machine import Clock, running
from waiting import until

from fedres.lease import Lease
from service.models.published import COMPILING
from service.plugins.recommend.recommender import Recommender, RecommendRequest
from service.rank.requests import Action, RankRequest
from service.roles.warm_up import in_process, models_in

COMPILED = """
import asyncio, sys
from pathlib import Path

from numba.core.dispatcher import Dispatcher

sys.path.insert(0, sys.argv[1])


def compiled():
    '''Return each kernel of ours with its signatures.'''
    found = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ("fedres", "service"):
            for kernel in vars(module).values():
                if isinstance(kernel, Dispatcher):
                    found |= {(kernel.__module__, kernel.__name__, str(signature)) for signature in kernel.signatures}
    return found


async def play(folder, ask):
    '''Ask for a user and for nobody, first of a model that has learned nothing, and learn.'''
    from machine import Clock, running
    from playing import request

    clock = Clock()
    async with running(folder, clock=clock) as engine:
        for k in range(40):
            user = None if k % 2 == 0 else f"u{k % 5}"
            result = await engine.rank("default", request(user, {"hour": k % 3}))
            if ask is not None:
                await ask(engine, user)
            clock.pass_seconds(1)
            await engine.reward("default", result.event_id, float(k % 2))
            await engine.settle()


def show(ask=None):
    before = compiled()
    assert before
    asyncio.run(play(Path(sys.argv[2]), ask))
    print([f"{module}.{name} {signature}" for module, name, signature in sorted(compiled() - before)])
"""
WARMED_FOR_A_MODEL = """
from service.roles.warm_up import warm_up_for

warm_up_for(["residual-kalman"], Path(sys.argv[3]))
show()
"""
WARMED = """
from playing import raw, request

from service.plugins.recommend.item_lists import Similarity
from service.plugins.recommend.recommender import Recommender, RecommendRequest
from service.rank.requests import Action


async def ask(engine, user):
    await engine.put_actions("default", [Action(f"a{k}", raw({"topic": f"t{k % 2}"})) for k in range(3)])
    recommender = Recommender(engine.context, engine.parts[0])
    await engine.rank("default", request(user, explain=True))
    await recommender.recommend("default", RecommendRequest(n=2, user=user))
    await Similarity(engine.context, recommender).similar("default", "a0", 2)


show(ask)
"""
SHARED = str(Path(__file__).parents[1])  # what tests of the service import


def test_a_loop_with_the_default_model_needs_nothing_that_was_not_compiled_before(tmp_path):
    for name in ("run", "store"):
        (tmp_path / name).mkdir()
    code = COMPILED + WARMED_FOR_A_MODEL
    words = [sys.executable, "-P", "-c", code, SHARED, str(tmp_path / "store"), str(tmp_path / "run")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_explanations_pages_and_similar_items_need_nothing_that_was_not_compiled_before(tmp_path):
    """The process that others are forked from has warmed up."""
    done = run([sys.executable, "-c", COMPILED + WARMED, SHARED, str(tmp_path)], check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_what_few_requests_need_is_waited_for_while_others_are_answered(tmp_path):
    async def story():
        async with running(tmp_path, clock=Clock()) as engine:
            compiling = engine.publisher.folder / COMPILING
            compiling.touch()
            await engine.create_loop("same")
            request = RankRequest(actions=[Action("a"), Action("b")], explain=True)
            await engine.put_actions("same", [Action("a"), Action("b")])
            recommender = Recommender(engine.context, engine.parts[0])
            waiting = [
                asyncio.ensure_future(engine.create_loop("other", {"model": "adagrad"})),
                asyncio.ensure_future(engine.rank("same", request)),
                asyncio.ensure_future(recommender.recommend("same", RecommendRequest(n=2))),
            ]
            assert await engine.rank("same", RankRequest(actions=[Action("a"), Action("b")]))
            await asyncio.wait(waiting, timeout=0.3)
            assert not any(each.done() for each in waiting)
            compiling.unlink()
            _, explained, page = await asyncio.gather(*waiting)
            assert len(explained.explanations) == len(page.items) == 2
            assert models_in(engine.log) == {"residual-kalman", "adagrad"}

    asyncio.run(story())


def test_a_process_beside_ends_with_its_service_and_holds_none_of_its_files(tmp_path):
    lease = Lease(tmp_path / "store.db")
    lease.acquire()
    with in_process(time.sleep, 1_000) as pid:
        until(lambda: len(os.listdir(f"/proc/{pid}/fd")) <= 3, "closing inherited files")
        lease.release()
        with Lease(tmp_path / "store.db"):
            os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_process_that_ended_and_was_waited_for_is_not_killed_again(monkeypatch):
    killed = []
    with in_process(time.sleep, 0) as pid:
        assert os.waitpid(pid, 0)[0] == pid  # as the supervisor does
        monkeypatch.setattr(os, "kill", lambda *call: killed.append(call))
    assert killed == []

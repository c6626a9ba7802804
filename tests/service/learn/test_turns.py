"""Loops take turns in the learner: one with much to learn delays another by a slice, and changes nothing else."""

import asyncio
import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from machine import Clock, InlineLearner, LearnerWriter, SteppingMachine, running
from playing import play, rebuilt, refused, request

from service.admin.status import MachineStatus
from service.learn.control import LearnerQuestion, answer
from service.learn.learner import Learner
from service.learn.snapshots import Snapshots
from service.log.records import RANK, DecisionExample, HashedExample, Record
from service.models.published import Publisher, new_generation
from service.rank.ranker import Ranker

N_HEAVY, FEATURES = 60, 900
CHECKS_A_TURN = 3  # of the clock, after each step, before a turn is over


def heavy(name, n=N_HEAVY, loop="default", **more):
    """Return feedback, or decisions, with as many features as an action may have."""
    rng = np.random.default_rng(3)
    hashes = rng.integers(0, 2**32, FEATURES, np.uint32).tobytes()
    features = HashedExample(hashes, np.ones(FEATURES, np.float32).tobytes(), 0, hashes)
    example = DecisionExample(features, 1, 1.0, deferred=False, agreed=None, **more).encode()
    return [[Record(loop, RANK, f"{name} {k}", None, example)] for k in range(n)]


def ticking(learner, seconds=0.05 / CHECKS_A_TURN):
    """Let turns and rounds end after a number of looks at the clock, however long they take here."""
    ticks = itertools.count()
    learner.clock = lambda: next(ticks) * seconds


@pytest.fixture
def two_loops(tmp_path):
    """Run a story on a machine with the loops ``default`` and ``other``, in which turns are counted."""

    def run(story, **options):
        async def told():
            async with running(tmp_path, **options) as engine:
                await engine.create_loop("other")
                await engine.settle()
                ticking(engine.learner)
                await story(engine)

        asyncio.run(told())

    return run


async def reward_other(engine, event):
    await engine.rank("other", request("u", event_id=event))
    await engine.reward("other", event, 1.0)


def test_a_loop_with_much_to_learn_leaves_turns_to_another_and_is_published_in_between(two_loops):
    async def story(engine):
        engine.log.append(heavy("early", feedback=1.0))
        await reward_other(engine, "e")
        for _ in range(2):
            engine.learner.step()
        assert engine.view("other").statistics.rewarded == 1
        learned = engine.view().statistics.feedback
        assert 0 < learned < N_HEAVY / 2
        engine.learner.step()
        assert learned < engine.view().statistics.feedback < N_HEAVY
        assert engine.digest() == engine.rebuilt()
        assert engine.view().statistics.feedback == N_HEAVY

    two_loops(story)


def test_a_round_of_many_loops_ends_so_that_other_work_is_done_and_the_next_goes_on(two_loops):
    async def story(engine):
        names = [f"loop{k}" for k in range(12)]
        for name in names:
            await engine.create_loop(name)
        await engine.settle()
        for name in names:
            engine.log.append(heavy("x", 8, name, feedback=1.0))
        turns = []
        turn = engine.learner.turn
        engine.learner.turn = lambda name: (turns.append(name), turn(name))[1]
        assert engine.learner.step()
        assert 0 < len(turns) < len(names)
        while engine.learner.step():
            pass
        assert sorted(turns[: len(names)]) == sorted(names)  # each has had a turn before any has a second

    two_loops(story)


def test_a_record_that_settles_many_events_is_learned_in_pieces_and_never_shown_or_saved_half(two_loops):
    async def story(engine):
        engine.log.append(heavy("late"))
        await engine.settle()
        before = engine.view()
        assert before.n_waiting == N_HEAVY
        engine.own_clock.pass_seconds(100)
        await reward_other(engine, "e")
        engine.learner.step()  # appends the tick
        engine.learner.step()
        engine.learner.step()
        assert engine.view("other").statistics.rewarded == 1
        state = engine.learner.loops["default"]
        assert state.is_midway
        assert 0 < state.metadata.statistics.settled < N_HEAVY
        engine.learner.saver.flush(engine.learner.loops)
        saved = {loop.metadata.name: loop for loop in engine.snapshots.loops()}
        assert saved["other"].metadata.statistics.rewarded == 1
        assert "default" not in saved or saved["default"].metadata.statistics.settled == 0
        assert engine.view().statistics.settled == 0
        digest = engine.digest()
        assert engine.view().statistics.settled == N_HEAVY
        assert digest == engine.rebuilt()

    two_loops(story, wait_time=60.0)


@pytest.mark.parametrize("model", ["residual-kalman", "adagrad"])
@pytest.mark.parametrize("seed", [1, 2])
def test_models_do_not_depend_on_where_turns_end(tmp_path, model, seed):
    rng = random.Random(seed)

    async def story():
        async with running(tmp_path, clock=Clock(), model=model, wait_time=60.0, default_reward=0.0) as engine:
            now = [0.0]

            def clock():
                now[0] += rng.choice([0.0, 0.0, 0.03, 0.3])
                return now[0]

            engine.learner.clock = clock
            for k in range(4):
                engine.log.append(heavy(f"{k}", 5, feedback=float(k % 2)) + heavy(f"rank {k}", 5))
                await play(engine, 20, seed=k)
                engine.own_clock.pass_seconds(100)
            live = engine.digest()
        assert rebuilt(tmp_path) == live
        async with running(tmp_path, clock=Clock(), model=model) as engine:
            assert engine.digest() == live

    asyncio.run(story())


def test_there_is_more_to_do_after_a_record_that_took_several_turns(two_loops):
    """A batch is then read in one turn and done in another, in which fewer records would be read together."""

    async def story(engine):
        engine.log.append(heavy("late", 20))
        await engine.settle()
        engine.own_clock.pass_seconds(100)
        engine.log.append([[Record("default", "note")] for _ in range(200)])
        times = itertools.chain([0.0, 0.0, 0.0], itertools.repeat(1.0))  # the first turn ends after one step
        engine.learner.clock = lambda: next(times)
        assert engine.learner.step()
        assert engine.learner.loops["default"].is_midway
        while engine.learner.step():
            pass
        assert engine.learner.positions == {name: head.last for name, head in engine.log.heads().items()}

    two_loops(story, wait_time=60.0)


def other_learner(engine, show_seconds=0.0):
    """Start another learner of the machine, as after a crash of the first."""
    engine.learner.saver.flush = lambda *_, **__: None  # the first one has lost its snapshot to this one
    log = engine._open_log()
    run = Path(engine._run.name)
    snapshots = Snapshots(engine.folder / "store.db-models")
    learner = Learner(log, LearnerWriter(engine.log), snapshots, Publisher(run, new_generation(run)))
    ticking(learner)
    learner.start()
    learner._show_at = show_seconds
    return learner


def ranker_of(engine, learner):
    """Return a new ranker on the machine."""
    models = type(engine.context.models)(Path(engine._run.name))
    context = SteppingMachine(models, engine.context.log, InlineLearner(learner), engine._open_log)
    context.core = learner
    return Ranker(context), MachineStatus(context, "store.db")


def test_after_a_start_each_loop_decides_once_it_is_complete_and_before_with_the_models_of_the_last_learner(two_loops):
    async def story(engine):
        engine.log.append(heavy("early", feedback=1.0))
        await reward_other(engine, "e")
        await engine.settle()
        for name in ("default", "other"):
            await engine.rank(name, request("u"))
        complete = engine.view().position
        engine.learner.snapshots.close()
        for file in engine.folder.glob("store.db-models*"):
            file.unlink()
        learner = other_learner(engine)
        learner.publish()
        ranker, status = ranker_of(engine, learner)
        assert await refused(ranker.rank("default", request("u"))) == (503, "starting")
        assert await refused(ranker.rank("missing", request("u"))) == (404, "unknown_loop")
        assert "no loop decides yet" in status._trouble()
        for _ in range(3):
            learner.step()
        assert (await ranker.rank("other", request("u", event_id="new"))).action_id
        assert await refused(ranker.rank("default", request("u"))) == (503, "starting")
        assert "still learned from the log: default" in status.check_ready()  # but it is ready
        assert [*(await status.status())["loops"]] == ["other"]
        assert engine.view().position == complete  # a ranker that runs keeps the last models of the other learner
        assert (await engine.rank("default", request("u", event_id="kept"))).action_id
        steps = 0
        while learner.step():
            steps += 1
        assert steps > 3
        assert (await ranker.rank("default", request("u", event_id="last"))).action_id
        assert status.check_ready() is None
        learner.log.close()
        learner.publisher.close()
        learner.snapshots.close()

    two_loops(story)


def test_a_learner_that_is_killed_while_it_catches_up_goes_on_from_there(two_loops):
    async def story(engine):
        engine.log.append(heavy("early", feedback=1.0))
        await engine.settle()
        live = engine.digest()
        engine.learner.snapshots.close()
        for file in engine.folder.glob("store.db-models*"):
            file.unlink()
        first = other_learner(engine)
        first.saver._seconds = first.saver._due = 0.0  # a snapshot after each step
        for _ in range(4):
            first.step()
        learned = first.positions["default"]
        assert 1 < learned < N_HEAVY
        first.snapshots.close()
        second = other_learner(engine)
        while "default" not in second.positions:
            second.turn("default")
        assert second.positions["default"] == learned
        while second.step():
            pass
        assert second.digest("default") == live
        for learner in (first, second):
            learner.log.close()
            learner.publisher.close()
        second.snapshots.close()

    two_loops(story)


def test_a_question_about_a_loop_waits_for_that_loop_only_and_only_for_what_was_logged_before(two_loops):
    async def story(engine):
        engine.log.append(heavy("early", feedback=1.0))
        await reward_other(engine, "e")
        step = engine.learner.step

        def step_under_load():
            engine.log.append([[Record("other", "note")] for _ in range(3_000)])
            return step()

        engine.learner.step = step_under_load
        reply = answer(engine.learner, LearnerQuestion("digest", "other"))
        assert reply.error is None
        assert engine.learner.loops["other"].metadata.statistics.rewarded == 1
        assert engine.learner.positions["default"] < N_HEAVY

    two_loops(story)


def test_the_time_that_a_loop_takes_is_in_its_figures(two_loops):
    async def story(engine):
        engine.log.append(heavy("early", feedback=1.0))
        await reward_other(engine, "e")
        await engine.settle()
        assert engine.view().learner_seconds > engine.view("other").learner_seconds > 0

    two_loops(story)

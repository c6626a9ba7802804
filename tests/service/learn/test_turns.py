"""Loops take turns in the learner: one with much to learn delays another by a slice, and changes nothing else."""

import asyncio
import itertools
import random

import numpy as np
import pytest
from machine import Clock, running
from playing import play, rebuilt, request

from service.learn.control import LearnerQuestion, answer
from service.log.records import RANK, DecisionExample, HashedExample, Record

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

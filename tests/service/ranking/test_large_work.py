"""Work that takes longer than a step of a ranker's event loop is done on threads, on which loops take turns."""

import asyncio
import contextlib
import threading
from contextlib import asynccontextmanager

import pytest
from machine import running
from playing import play, raw, refused, request

from fedres.scoring.features import Preparer
from service.models import residual_kalman
from service.plugins.devices import devices
from service.plugins.devices.uploads import Residual
from service.plugins.recommend.feedback import Feedback, FeedbackEvent
from service.plugins.recommend.recommender import Recommender, RecommendRequest
from service.rank import decide as decide_module
from service.rank import ranker as ranker_module
from service.rank.decide import decide, work_of
from service.rank.ranker import MOST_WORK, within_a_turn
from service.rank.requests import Action, RankRequest
from service.rank.slots import Slot, SlotsRequest
from service.rank.threads import FairThreads

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


def item(k, n_features):
    return Action(f"i{k}", raw({f"feature-{j}": (j + k) % 9 + 0.5 for j in range(n_features)}))


def by_id(n, **more):
    return RankRequest(actions=[Action(f"i{k}") for k in range(n)], **more)


class HeldDecisions:
    """Lets decisions of the loop ``default`` wait on their thread until they are released."""

    def __init__(self, monkeypatch):
        self.begun, self.released = threading.Event(), threading.Event()
        monkeypatch.setattr(ranker_module, "decide", self._decide)

    def _decide(self, requests, loop, *arguments):
        if loop.view.name == "default":
            assert threading.current_thread() is not threading.main_thread()
            self.begun.set()
            self.released.wait()
        return decide(requests, loop, *arguments)


@pytest.mark.parametrize("kind", ["rank", "batch", "slots"])
async def test_small_calls_that_name_large_items_are_decided_on_a_thread(tmp_path, monkeypatch, kind):
    async with running(tmp_path) as engine:
        await engine.create_loop("other")
        await engine.put_actions("default", [item(k, 300) for k in range(40)])
        assert work_of(by_id(40), engine.context.loop("default")) > MOST_WORK
        slots = SlotsRequest(actions=by_id(40).actions, slots=[Slot(id="top")])
        held = HeldDecisions(monkeypatch)
        calls = {
            "rank": lambda: engine.rank("default", by_id(40)),
            "batch": lambda: engine.rank_many("default", [by_id(40)] * 3),
            "slots": lambda: engine.rank_slots("default", slots),
        }
        large = asyncio.ensure_future(calls[kind]())
        try:
            while not held.begun.is_set():
                await asyncio.sleep(0)
            for _ in range(5):
                await engine.rank("other", request())
                await engine.rank_many("other", [request()] * 3)
                await engine.rank_slots("other", SlotsRequest(actions=request().actions, slots=[Slot(id="top")]))
            assert not large.done()
        finally:
            held.released.set()
        await large


def large_json(n_bytes):
    """Return an object of about this size, with as many features as it may have."""
    each = n_bytes // 900 - 12
    return raw({f"{'f' * each}{k:03}": k + 0.5 for k in range(900)})


async def stored_uploads(engine):
    await engine.create_loop("devices", {"model": "adagrad", "largest_number": 1000})
    version = engine.view("devices").version
    sent = [Residual(k, version, large_json(100_000), Action("a", raw({"x": 1})), 0.0, 0.0) for k in range(1, 9)]
    await engine.residuals("devices", "phone", sent)


LARGEST_CALLS = {
    "rank": lambda engine: engine.rank("default", RankRequest(actions=[item(k, 900) for k in range(10)])),
    "batch": lambda engine: engine.rank_many(
        "default", [RankRequest(actions=[Action("a")], context=large_json(200_000)) for _ in range(5)]
    ),
    "slots": lambda engine: engine.rank_slots(
        "default", SlotsRequest(actions=[item(k, 900) for k in range(10)], slots=[Slot(id="top")])
    ),
    "feedback": lambda engine: Feedback(engine.context).store(
        "default",
        [FeedbackEvent(action=Action("a"), context=large_json(9_000), reward=0.5) for _ in range(100)],
    ),
    "one feedback": lambda engine: Feedback(engine.context).store(
        "default", [FeedbackEvent(action=Action("a"), context=large_json(400_000), reward=0.5)]
    ),
    "catalogue": lambda engine: engine.put_actions("default", [item(k, 900) for k in range(40)]),
    "uploads": stored_uploads,
    "page": lambda engine: paged(engine),
}


async def paged(engine):
    await engine.put_actions("default", [item(k, 900) for k in range(40)])
    await Recommender(engine.context, engine.parts[0]).recommend("default", RecommendRequest(n=3))


@pytest.mark.parametrize("kind", [*LARGEST_CALLS])
async def test_no_call_hashes_many_features_in_one_step_of_the_event_loop(tmp_path, monkeypatch, kind):
    """The largest bodies that are allowed, nearly: others get their turns meanwhile, or a thread does it."""
    steps, most = [0], 130_000  # bytes: one upload, or less
    hash_all = Preparer.hash_all

    def noted(self, named):
        if threading.current_thread() is threading.main_thread():
            steps[-1] += sum(len(one.features) for one in named)
        return hash_all(self, named)

    async def count_steps():
        while True:
            steps.append(0)
            await asyncio.sleep(0)

    async with running(tmp_path) as engine:
        monkeypatch.setattr(Preparer, "hash_all", noted)
        counting = asyncio.ensure_future(count_steps())
        try:
            await LARGEST_CALLS[kind](engine)
        finally:
            counting.cancel()
    assert max(steps) <= most


async def test_an_imported_model_is_checked_on_a_thread(tmp_path, monkeypatch):
    async with running(tmp_path) as engine:
        await play(engine, 5)
        model = await engine.model("default")
        threads = []
        check = residual_kalman.check
        monkeypatch.setattr(
            residual_kalman, "check", lambda *what: (threads.append(threading.current_thread()), check(*what))
        )
        await engine.put_model("default", model)
        assert threads
        assert threading.main_thread() not in threads
        assert (await refused(engine.put_model("default", b"no model")))[0] == 422


async def test_scores_for_devices_of_large_items_are_made_on_a_thread(tmp_path, monkeypatch):
    async with running(tmp_path) as engine:
        await engine.create_loop("devices", {"model": "adagrad"})
        small = await engine.global_scores("devices", b"{}", [Action("i0"), Action("i1")])
        assert small[1] == [0.0, 0.0]
        await engine.put_actions("devices", [item(k, 300) for k in range(40)])
        threads = []
        score = devices.score_actions
        monkeypatch.setattr(
            devices, "score_actions", lambda *what: threads.append(threading.current_thread()) or score(*what)
        )
        version, scores = await engine.global_scores("devices", b"{}", by_id(40).actions)
        assert (version, len(scores)) == (engine.view("devices").version, 40)
        assert threads
        assert threading.main_thread() not in threads


async def test_decisions_on_a_thread_are_those_of_the_event_loop(tmp_path, monkeypatch):
    async with running(tmp_path) as engine:
        await engine.put_actions("default", [item(k, 60) for k in range(10)])
        await play(engine, 60)
        here = await engine.rank("default", by_id(10, user="user-1", event_id="a"))
        monkeypatch.setattr(ranker_module, "MOST_WORK", 0)
        calls = []
        monkeypatch.setattr(
            ranker_module, "decide", lambda *arguments: calls.append(threading.current_thread()) or decide(*arguments)
        )
        there = await engine.rank("default", by_id(10, user="user-1", event_id="b"))
        assert calls != [threading.main_thread()]
        assert sorted((one.id, one.score) for one in there.ranking) == sorted(
            (one.id, one.score) for one in here.ranking
        )
        assert await engine.rank("default", by_id(10, user="user-1", event_id="b")) == there  # a repeat
        await engine.reward("default", "b", 1.0)
        await engine.settle()
        assert engine.digest() == engine.rebuilt()


async def test_a_request_with_too_many_features_of_its_items_is_refused(tmp_path):
    async with running(tmp_path) as engine:
        for first in range(0, 300, 100):
            await engine.put_actions("default", [item(k, 900) for k in range(first, first + 100)])
        assert await refused(engine.rank("default", by_id(300))) == (422, "invalid_features")
        assert [each.status for each in await engine.rank_many("default", [by_id(300)])] == [422]
        prepared = engine.context.loop("default").prepared
        assert len(prepared) == 300  # and kept, so that a repeat costs less
        assert (await engine.rank("default", by_id(200))).action_id in prepared


async def test_an_item_that_changes_while_a_thread_decides_is_prepared_again(tmp_path, monkeypatch):
    async with running(tmp_path) as engine:
        await engine.put_actions("default", [item(k, 300) for k in range(40)])
        held = HeldDecisions(monkeypatch)
        large = asyncio.ensure_future(engine.rank("default", by_id(40)))
        while not held.begun.is_set():
            await asyncio.sleep(0)
        await engine.put_actions("default", [Action("i0", raw({"new": 1}))])
        assert "i0" not in engine.context.loop("default").prepared
        held.released.set()
        await large
        prepared = engine.context.loop("default").prepared
        assert "i0" not in prepared
        assert "i1" in prepared


async def test_the_work_of_a_turn_is_bounded(tmp_path):
    async with running(tmp_path) as engine:
        loop = engine.context.loop("default")
        requests = [request(context={"x" * 3_000: 1}, n_actions=20) for _ in range(16)]
        waiting = [ranker_module.WaitingRequest("default", each, 0, None, work_of(each, loop)) for each in requests]
        turn, others = within_a_turn(waiting)
        assert sum(each.work for each in turn) <= MOST_WORK
        assert len(turn) + len(others) == 16
        assert [len(part) for part in within_a_turn([*turn[:1]])] == [1, 0]


async def test_batches_of_loops_take_turns(tmp_path, monkeypatch):
    async with running(tmp_path) as engine:
        await engine.create_loop("other")
        decided = []

        def noted(requests, loop, *more):
            decided.append(loop.view.name)
            return decide(requests, loop, *more)

        monkeypatch.setattr(ranker_module, "decide", noted)
        await asyncio.gather(
            engine.rank_many("default", [request(n_actions=150)] * 6),
            engine.rank_many("other", [request(n_actions=150)] * 2),
        )
        assert decided == ["default", "other", "default", "other", *["default"] * 4]


# threads


@asynccontextmanager
async def nothing():
    yield None


@contextlib.contextmanager
def fair_threads(n, of_a_loop, most_waiting=10):
    threads = FairThreads("test", n, of_a_loop, most_waiting)
    try:
        yield threads
    finally:
        threads.close()


async def test_loops_take_turns_on_a_thread():
    order = []
    with fair_threads(1, 1) as threads:
        names = ["a", "a", "a", "a", "b", "b", "c"]
        await asyncio.gather(*[threads.call(name, nothing, lambda _, name=name: order.append(name)) for name in names])
    assert order == ["a", "b", "c", "a", "b", "a", "a"]


async def test_what_a_piece_of_work_needs_is_lent_until_its_end_though_its_caller_has_gone():
    held, lent = threading.Event(), []

    @asynccontextmanager
    async def lend():
        lent.append("begun")
        yield None
        lent.append("ended")

    with fair_threads(1, 1) as threads:
        first = asyncio.ensure_future(threads.call("a", lend, lambda _: held.wait()))
        never = asyncio.ensure_future(threads.call("a", lend, lambda _: lent.append("never")))
        while not threads.running:
            await asyncio.sleep(0)
        for task in (first, never):
            task.cancel()
        await asyncio.gather(first, never, return_exceptions=True)
        assert lent in ([], ["begun"])
        held.set()
        while threads.running:
            await asyncio.sleep(0.001)
        assert "never" not in lent
        assert lent in ([], ["begun", "ended"])


def many_features(n_bytes):
    """Return features of about so many bytes, 12 each."""
    return raw({f"{k:03}": 1.5 for k in range(n_bytes // 12)})


async def test_the_estimate_grows_with_inline_features_items_and_context(tmp_path):
    async with running(tmp_path) as engine:
        await engine.put_actions("default", [Action("i0", many_features(6_000))])
        loop = engine.context.loop("default")
        assert work_of(request(n_actions=2), loop) < 10  # the item is not among them
        item_work = work_of(by_id(1), loop)
        assert item_work == pytest.approx(501 * decide_module.FEATURE_WORK, rel=0.1)
        assert work_of(by_id(1, context=many_features(1_200)), loop) > 3 * item_work
        inline = RankRequest(actions=[Action("i0", many_features(12_000))])
        assert work_of(inline, loop) == pytest.approx(2 * item_work, rel=0.1)

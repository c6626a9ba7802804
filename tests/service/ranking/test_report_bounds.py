"""What reports keep is bounded in bytes, reading a long log lets other loops pass, and nothing is left in memory."""

import asyncio
import json
import tracemalloc
from array import array

import msgspec
import pytest
from machine import Clock, running
from playing import raw, request

from service.log.opening import Store
from service.log.workers import WorkerProcess
from service.plugins.recommend.earnings import earned
from service.plugins.reports.reader import Decisions, LoopReader, LoopReaders, ask_reader
from service.plugins.reports.report import FinishedDecision, LoopReport


def decision(k, n_actions=500):
    shares = array("d", [1 / n_actions] * n_actions)
    return FinishedDecision(f"event-{k}", k, f"user-{k}", False, "a0", 0, shares, shares, 1, 0)


async def read(engine, loop="default"):
    return LoopReaders().loop(engine.context.archive(), loop, engine.view(loop).created_at)


def test_a_pending_decision_of_300_actions_takes_a_few_bytes_for_each_of_them(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for k in range(100):
                await engine.rank("default", request(f"u{k}", {"_words": "x" * 1_000}, 300))
            readers = LoopReaders()
            tracemalloc.start()
            reader = readers.loop(engine.context.archive(), "default", engine.view().created_at)
            n_bytes, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert len(reader.decisions.pending) == 100
            assert n_bytes / 100 < 30 * 300  # 175 for each action with its ids and features
            assert 0.5 * reader.decisions.n_bytes < n_bytes < 2 * reader.n_bytes

    asyncio.run(story())


def test_large_decisions_are_kept_less_far_back(monkeypatch):
    monkeypatch.setattr("service.plugins.reports.reader.MOST_BYTES", 20 * decision(0).n_bytes)
    decisions = Decisions()
    for k in range(100):
        decisions.put(decision(k))
        assert decisions.finish(f"event-{k}", 1.0).reward == 1.0
        assert decisions.n_bytes == sum(each.n_bytes for each in decisions.finished)
    assert decisions.older_left_out
    assert 18 <= len(decisions.finished) <= 20
    assert decisions.finished[-1].event_id == "event-99"
    assert decisions.one_in == 1


def test_of_very_many_pending_decisions_a_sample_is_kept_whatever_comes_of_them(monkeypatch):
    monkeypatch.setattr("service.plugins.reports.reader.MOST_BYTES", 400 * decision(0).n_bytes)
    decisions = Decisions()
    for k in range(3_000):
        decisions.put(decision(k))
        if k % 4 == 0:
            decisions.finish(f"event-{k}", 1.0)  # at once, and the others when their wait time is over
    for k in range(3_000):
        decisions.finish(f"event-{k}", 0.0)
    assert decisions.one_in == 16
    assert not decisions.pending
    rewards = [each.reward for each in decisions.finished]
    assert 120 < len(rewards) < 260  # of 188
    assert sum(rewards) / len(rewards) == pytest.approx(0.25, abs=0.1)


def test_a_report_of_large_decisions_says_that_it_is_about_some(tmp_path, monkeypatch):
    monkeypatch.setattr("service.plugins.reports.reader.MOST_BYTES", 40_000)
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock) as engine:
            for _ in range(60):
                await engine.rank("default", request("u", {}, 50))
                clock.pass_seconds(1_000)
                await engine.settle()
            report = msgspec.json.decode(await engine.report("default"), type=LoopReport)
            assert report.funnel.ranked == 60
            assert report.events < 40
            assert (report.one_in, report.older_left_out) == (1, True)

    asyncio.run(story())


def test_records_are_read_in_pieces_of_about_equal_size(tmp_path, monkeypatch):
    monkeypatch.setattr("service.plugins.reports.reader.CHUNK_BYTES", 100_000)
    monkeypatch.setattr("service.plugins.reports.reader.FIRST_CHUNK", 2)
    sizes = []

    async def story():
        async with running(tmp_path) as engine:
            for _ in range(50):
                await engine.rank("default", request("u", {"_words": "x" * 10_000}))
            log = engine.context.archive()
            plain = log.read

            def measured(*arguments, **options):
                entries = plain(*arguments, **options)
                sizes.append(sum(len(entry.body) for entry in entries))
                return entries

            log.read = measured
            await read(engine)
            log.read = plain

    asyncio.run(story())
    assert max(sizes) < 200_000
    assert sorted(sizes)[-3] > 50_000


def test_another_loop_is_reported_while_a_long_log_is_read_and_asked_about(tmp_path, monkeypatch):
    """The pages and what-if of one tenant wait for each other, and those of another for one of them."""
    monkeypatch.setattr("service.plugins.reports.reader.SLICE_SECONDS", 0.0)  # so that every chunk is a turn
    monkeypatch.setattr("service.plugins.reports.reader.FIRST_CHUNK", 5)
    monkeypatch.setattr("service.plugins.reports.reader.CHUNK_BYTES", 1)
    answered = []

    async def ask(engine, loop, question, *arguments):
        answered.append((loop, await ask_reader(engine.context, loop, question, *arguments)))

    async def story():
        async with running(tmp_path) as engine:
            await engine.create_loop("b")
            for loop, n in (("default", 40), ("b", 2)):
                for _ in range(n):
                    await engine.rank(loop, request())
            expected = json.loads(await engine.report("b"))
            reports = WorkerProcess(Store(tmp_path / "store.db"))
            engine.context.reports = reports
            of_default = [asyncio.ensure_future(ask(engine, "default", earned, 1.0 + k)) for k in range(30)]
            of_default += [asyncio.ensure_future(ask(engine, "default", LoopReader.what_if, [])) for _ in range(5)]
            await asyncio.sleep(0)
            await ask(engine, "b", LoopReader.report)
            assert len(answered) <= 10
            loop, answer = answered[-1]
            assert (loop, json.loads(answer)) == ("b", expected)
            await asyncio.gather(*of_default)
            process = reports._process
            reports.close()
            await process.wait()

    asyncio.run(story())


def test_features_of_items_that_left_the_catalogue_are_kept_up_to_a_bound(tmp_path, monkeypatch):
    from service.log.records import ActionsBody, InlineAction
    from service.plugins.reports.reader import CatalogueFeatures

    monkeypatch.setattr("service.plugins.reports.reader.RETIRED_BYTES", 2_000)
    catalogue = CatalogueFeatures()
    for k in range(100):
        catalogue.take(ActionsBody([InlineAction(f"item-{k}", raw({"number": k}))]))
        catalogue.take(ActionsBody(retire=[f"item-{k}"]))
    catalogue.take(ActionsBody([InlineAction("item-0", raw({"number": 0})), InlineAction("item-99", raw({}))]))
    for k in range(100, 120):
        catalogue.take(ActionsBody([InlineAction(f"item-{k}", raw({"number": k}))]))
        catalogue.take(ActionsBody(retire=[f"item-{k}"]))
    assert {"item-0", "item-99", "item-119"} < catalogue.by_id.keys()
    assert len(catalogue.by_id) < 12
    assert catalogue.n_bytes < 5_000

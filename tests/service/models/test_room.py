"""Shared memory without room: the learner waits in front of the next record, and goes on when there is room."""

import asyncio
import errno

import pytest
from machine import running
from playing import play, request

from service.admin.status import MachineStatus
from service.models import published
from service.models.memory import PUBLISHED_AT, MemoryReader, MemoryWriter
from service.models.published import PublishedModels, Publisher, make_current, new_generation


@pytest.fixture
def full(monkeypatch):
    """A switch: while it is on, no file can grow."""
    switch, reserve = [], MemoryWriter._reserve

    def refuse(memory, n_words):
        if switch and 8 * n_words > memory._reserved:
            raise OSError(errno.ENOSPC, "No space left on device")
        reserve(memory, n_words)

    monkeypatch.setattr(MemoryWriter, "_reserve", refuse)
    return switch


def test_the_learner_waits_until_there_is_room_and_ranking_goes_on(tmp_path, full):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 20)
            await engine.settle()
            full.append(True)
            memory = engine.publisher.memory
            memory._end = memory._reserved // 8 - 1_000  # as if so much was used
            before = engine.view().position
            answer = await engine.rank("default", request())
            await engine.reward("default", answer.event_id, 1.0)
            engine.learner.step()
            assert engine.view().position == before
            assert "no room for models" in MachineStatus(engine.context, "store.db")._trouble()
            full.clear()
            await engine.settle()
            assert engine.view().position > before
            assert MachineStatus(engine.context, "store.db")._trouble() is None
            assert engine.digest() == engine.rebuilt()

    asyncio.run(story())


def test_a_learner_that_starts_without_room_shows_what_it_has(tmp_path, full):
    async def story():
        async with running(tmp_path) as engine:
            await play(engine, 20)
            live = engine.digest()
            await engine.rank("default", request())
            await engine.settle()
            learner = engine.learner
            learner.publisher.memory._end = learner.publisher.memory._reserved // 8 - 1_000
            full.append(True)
            learner.open()
            assert learner.trouble is not None
            full.clear()
            assert engine.digest() == live

    asyncio.run(story())


def test_a_second_file_is_made_elsewhere_where_the_folder_has_no_room_for_both(tmp_path, monkeypatch):
    run, spare = tmp_path / "run", tmp_path / "store.db-published"
    run.mkdir()
    make_current(run)
    first = Publisher(run, 1, spare)
    first.publish_names(["a"])
    first.show()
    monkeypatch.setattr(published, "LEAST_ROOM", 1 << 62)
    second = Publisher(run, 2, spare)
    second.publish_names(["a", "b"])
    assert PublishedModels(run).names() == ["a"]
    second.show()
    assert PublishedModels(run).names() == ["a", "b"]
    assert [file.name for file in run.glob("models-*")] == ["models-2"]
    assert second.memory.path == tmp_path / "store.db-published-models-2"
    third = Publisher(run, 3)
    third.publish_names(["c"])
    third.show()
    assert not second.memory.path.exists()
    assert PublishedModels(run).names() == ["c"]
    assert MemoryReader(run / "models-3").words[PUBLISHED_AT] == 0


def test_starts_that_fail_leave_one_file_at_most_beside_the_current_one(tmp_path):
    make_current(tmp_path)
    shown = Publisher(tmp_path, new_generation(tmp_path), tmp_path / "spare")
    shown.show()
    failed = []
    for _ in range(5):
        failed.append(Publisher(tmp_path, new_generation(tmp_path), tmp_path / "spare"))  # that shows nothing
        assert len([*tmp_path.glob("models-*")]) == 2
        assert shown.memory.path.exists()
    last = Publisher(tmp_path, new_generation(tmp_path), tmp_path / "spare")
    last.show()
    assert [path.resolve() for path in tmp_path.glob("models-*")] == [last.memory.path.resolve()]
    for publisher in (shown, *failed, last):
        publisher.close()

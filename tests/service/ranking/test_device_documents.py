"""Documents of models for devices are made once for each version, on a thread."""

import asyncio
import threading

import pytest
from machine import running
from playing import play, request

from service.models import residual_kalman
from service.plugins.devices import devices as devices_module

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def test_a_document_and_its_tag_are_made_once_for_each_version(tmp_path, monkeypatch):
    made = []
    write = residual_kalman.write_document

    def noted(*arguments):
        made.append(threading.current_thread())
        return write(*arguments)

    monkeypatch.setattr(residual_kalman, "write_document", noted)
    async with running(tmp_path) as engine:
        documents = await asyncio.gather(*[engine.federated_model("default") for _ in range(5)])
        assert len({document.tag for document in documents}) == 1
        assert await engine.model_tag("default") == documents[0].tag
        assert len(made) == 1
        await play(engine, 20)
        newer = await engine.federated_model("default")
        assert newer.tag == await engine.model_tag("default") != documents[0].tag
        assert newer.version == engine.view().version
        assert len(made) == 2
        assert threading.main_thread() not in made


async def test_documents_are_bounded_in_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(devices_module, "MOST_BYTES", 1)
    async with running(tmp_path) as engine:
        await engine.create_loop("other")
        for name in ("default", "other"):
            await engine.federated_model(name)
        devices = engine.parts[2]
        assert [*devices._documents] == [engine.view("other").id]


async def test_others_are_served_while_a_document_is_made(tmp_path, monkeypatch):
    begun, released = threading.Event(), threading.Event()
    write = residual_kalman.write_document

    def held(*arguments):
        begun.set()
        released.wait()
        return write(*arguments)

    monkeypatch.setattr(residual_kalman, "write_document", held)
    async with running(tmp_path) as engine:
        fetching = asyncio.ensure_future(engine.federated_model("default"))
        try:
            while not begun.is_set():
                await asyncio.sleep(0)
            for _ in range(5):
                await engine.rank("default", request())
            await engine.settle()  # publications do not change what the thread reads
            engine.context.loop("default")
            assert not fetching.done()
        finally:
            released.set()
        assert (await fetching).version == 1

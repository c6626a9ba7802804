"""The two clients as programs use them: threads, event loops, background syncs."""

import asyncio
import functools
import socket
import subprocess
import sys
import threading

import httpx
import pytest
from javascript import teach
from network import MENU, Network
from waiting import LIMIT

from fedres import client
from fedres.lease import LeaseHeld

DeviceClient = functools.partial(client.DeviceClient, learner="vw", open_seconds=0)  # for the loops of ``live``
AsyncDeviceClient = functools.partial(client.AsyncDeviceClient, learner="vw", open_seconds=0)


class Watched(Network):
    """A network that can be waited for, and that sees how many requests are under way."""

    def __init__(self, faults=()):
        super().__init__(faults)
        self.uploaded, self._lock = threading.Event(), threading.Lock()
        self.under_way = self.most = 0

    def handle_request(self, request):
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
        try:
            return super().handle_request(request)
        finally:
            with self._lock:
                self.under_way -= 1
            if request.url.path.endswith("/residuals"):
                self.uploaded.set()


def test_the_client_in_fewer_than_ten_lines(live, tmp_path):
    with DeviceClient(live.url, client="phone-7", folder=tmp_path) as device:
        decision = device.decide({"weather": "cold"}, {"tea": {"hot": True}, "juice": {}}, private={"age": 33})
        device.reward(decision.event_id, 1.0)
    assert decision.action in ("tea", "juice")
    with httpx.Client(base_url=live.url, trust_env=False, verify=False) as http:
        assert http.get("/v1/federated/round").json()["version"] > 0
    with DeviceClient(live.url, client="phone-7", folder=tmp_path, sync_seconds=None) as device:
        assert device.status().queued == 0  # a device that is closed has a last try


def test_the_client_syncs_in_the_background(live, tmp_path):
    network = Watched([None, "lost"])
    with DeviceClient(live.url, "phone", tmp_path, sync_seconds=0.01, transport=network) as device:
        decision = device.decide({}, MENU)
        device.reward(decision.event_id, 1.0)
        assert network.uploaded.wait(LIMIT)


def test_the_client_works_where_there_is_no_service(tmp_path):
    with DeviceClient("http://127.0.0.1:1", "phone", tmp_path, sync_seconds=0.01) as device:
        for _ in range(20):
            device.reward(device.decide({}, MENU).event_id, 1.0)
        assert device.status().queued == 20


def test_many_threads_share_a_device_and_never_sync_twice_at_a_time(live, tmp_path):
    live.make_loop("threads", model="adagrad")
    network = Watched()
    with DeviceClient(live.url, "phone", tmp_path, loop="threads", sync_seconds=None, transport=network) as device:

        def work():
            for _ in range(10):
                device.reward(device.decide({"a": 1}, MENU, private={"b": 2}).event_id, 1.0)
            device.sync()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert device.status().queued == 0
        assert network.most == 1
    sent = [entry for entry in live.engine.logged("threads") if entry.kind == "residual"]
    assert len(sent) == 40


def test_the_async_client_does_the_same(live, tmp_path):
    async def run():
        async with AsyncDeviceClient(live.url, "async", tmp_path, sync_seconds=0.01) as device:
            decisions = await asyncio.gather(*(device.decide({"k": k}, MENU, {"p": k}) for k in range(10)))
            await asyncio.gather(*(device.reward(decision.event_id, 1.0) for decision in decisions))
            synced = await asyncio.gather(device.sync(), device.sync())
            assert all(one.trouble is None for one in synced)
            assert device.status().queued == 0
            with pytest.raises(ValueError, match="event_id must be of a decision"):
                await device.reward("nothing", 1.0)

    asyncio.run(run())


def test_both_clients_decide_the_same_after_the_same(live, tmp_path):
    live.make_loop("both", model="adagrad")

    async def run():
        async with AsyncDeviceClient(live.url, "a", tmp_path / "a", loop="both", sync_seconds=None) as device:
            return [await step(device, k) for k in range(30)]

    async def step(device, k):
        decision = await device.decide({"k": k % 3}, MENU, event_id=f"e{k}")
        await device.reward(decision.event_id, float(decision.action == "tea"))
        return decision

    with DeviceClient(live.url, "b", tmp_path / "b", loop="both", sync_seconds=None) as device:
        decisions = []
        for k in range(30):
            decisions.append(device.decide({"k": k % 3}, MENU, event_id=f"e{k}"))
            device.reward(f"e{k}", float(decisions[-1].action == "tea"))
    assert asyncio.run(run()) == decisions


def test_the_async_client_asks_for_scores_and_goes_on_without_them(live, tmp_path):
    async def run(url, folder):
        async with AsyncDeviceClient(url, "async", folder, download=False, sync_seconds=None) as device:
            return await device.decide({}, MENU)

    assert asyncio.run(run(live.url, tmp_path / "a")).model_version > 0
    assert asyncio.run(run("http://127.0.0.1:1", tmp_path / "b")).model_version == 0


def test_a_sync_that_breaks_in_the_background_is_reported_and_tried_again(live, tmp_path, monkeypatch, caplog):
    broken = threading.Event()

    def breaks(*_):
        broken.set()
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr("fedres.client.adagrad_device.AdaGradDevice.adopt", breaks)
        with DeviceClient(live.url, "phone", tmp_path, sync_seconds=0.01) as device:
            assert broken.wait(LIMIT)
            device.reward(device.decide({}, MENU).event_id, 1.0)
    assert "the sync failed" in caplog.text
    with DeviceClient(live.url, "phone", tmp_path, sync_seconds=None) as device:
        assert device.sync().sent == 1


def test_a_folder_in_use_is_refused_and_nothing_is_left_open(live, tmp_path):
    with DeviceClient(live.url, "phone", tmp_path, sync_seconds=None):
        for kind in (DeviceClient, AsyncDeviceClient):
            with pytest.raises(LeaseHeld, match="must have one holder"):
                kind(live.url, "phone", tmp_path, sync_seconds=None)


@pytest.fixture
def silence():
    """The address of a service that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_closing_does_not_wait_for_a_service_that_never_answers(silence, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("fedres.client.synchronous.CLOSE_SECONDS", 0.01)
    requested, answered = threading.Event(), threading.Event()

    class Stuck(httpx.BaseTransport):
        def handle_request(self, request):
            requested.set()
            answered.wait(LIMIT)
            raise httpx.ReadTimeout("silence", request=request)

    device = DeviceClient(silence, "phone", tmp_path, transport=Stuck())
    assert requested.wait(LIMIT)
    device.close()
    with DeviceClient(silence, "phone", tmp_path, sync_seconds=None):  # the folder is free
        answered.set()
        device._thread.join(LIMIT)
        assert not device._thread.is_alive()
    assert "the sync failed" not in caplog.text


def test_the_async_client_is_closed_without_waiting_either(silence, tmp_path, monkeypatch):
    monkeypatch.setattr("fedres.client.asynchronous.CLOSE_SECONDS", 0.01)

    async def run():
        async with AsyncDeviceClient(silence, "phone", tmp_path) as device:
            while not device._link.device.trouble and not device._http._transport._pool.connections:
                await asyncio.sleep(0.001)
        assert device._task.cancelled()

    asyncio.run(run())


@pytest.mark.parametrize("kind", [DeviceClient, AsyncDeviceClient])
def test_a_url_or_a_key_that_cannot_be_one_is_refused(tmp_path, kind):
    for url in ("127.0.0.1:8000", "ftp://here", "", None):
        with pytest.raises(ValueError, match="url must begin with http:// or https://, got"):
            kind(url, "phone", tmp_path)
    with pytest.raises(ValueError, match="key must be printable ASCII without spaces around it, got none or other"):
        kind("http://127.0.0.1:1", "phone", tmp_path, key="schlüssel")
    with DeviceClient("http://127.0.0.1:1", "phone", tmp_path, sync_seconds=None):  # nothing holds the folder
        pass


@pytest.mark.parametrize(("model", "sync_seconds"), [("adagrad", None), ("residual-kalman", None), ("adagrad", 5.0)])
def test_the_first_decision_after_opening_knows_what_others_taught(live, tmp_path, silence, model, sync_seconds):
    loop, learner = f"taught-{model}-{sync_seconds}", "linear" if model == "adagrad" else model
    live.make_loop(loop, model=model, update_interval=0.005)
    teach(live, loop, tmp_path, learner, MENU)
    options = {"loop": loop, "learner": learner, "sync_seconds": sync_seconds, "open_seconds": 60}
    with client.DeviceClient(live.url, "new", tmp_path / "new", **options) as device:
        first = device.decide({}, MENU)
        assert device.sync().trouble is None
        later = device.decide({}, MENU)
    assert (first.scores, first.model_version) == (later.scores, later.model_version)
    assert (first.model_version > 0, max(first.scores, key=first.scores.get)) == (True, "tea")

    async def run():
        async with client.AsyncDeviceClient(live.url, "async", tmp_path / "async", **options) as device:
            return await device.decide({}, MENU)

    assert asyncio.run(run()).scores == first.scores
    options |= {"sync_seconds": None, "open_seconds": 0.05}
    with client.DeviceClient(silence, "new", tmp_path / "new", **options) as device:  # the stored model is the fallback
        assert device.decide({}, MENU).scores == first.scores


def test_opening_uploads_nothing(live, tmp_path):
    network = Watched()
    with DeviceClient(live.url, "phone", tmp_path, sync_seconds=None) as device:
        device.reward(device.decide({}, MENU).event_id, 1.0)
    options = {"sync_seconds": None, "open_seconds": 60, "transport": network}
    with DeviceClient(live.url, "phone", tmp_path, **options) as device:
        assert (device.status().queued, device.status().model_version > 0) == (1, True)
    assert set(network.routes()) == {"round", "model"}


@pytest.mark.parametrize("open_seconds", [-1, float("nan"), 1e9])
def test_open_seconds_must_be_a_time_that_one_can_wait_for(tmp_path, open_seconds):
    with pytest.raises(ValueError, match="open_seconds must be 0 to 3600"):
        DeviceClient("http://127.0.0.1:1", "phone", tmp_path, open_seconds=open_seconds)


def test_sync_seconds_must_be_positive(tmp_path):
    with pytest.raises(ValueError, match="sync_seconds must be positive and finite, got 0"):
        DeviceClient("http://127.0.0.1:1", "phone", tmp_path, sync_seconds=0)


def test_the_package_is_cheap_to_import():
    code = "import sys, fedres.client; assert not {'httpx', 'vowpalwabbit', 'numba', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)

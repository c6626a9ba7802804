"""``fedres serve`` as it is used: processes that are killed, come back, answer for one another, and end together."""

import contextlib
import json
import os
import signal
import socket
import sys
import threading

import httpx
import pytest
from forked import FEDRES, run
from serving import has_ended, listening_port, owner, serving
from waiting import LIMIT, until

RANK = {"actions": [{"id": "a", "features": {"x": 1}}, {"id": "b", "features": {"x": 2}}]}
TIMES = ("uptime_seconds", "staleness_seconds", "disk_free_bytes")
COUNTED = 'fedres_requests_total{method="POST",path="/v1/rank",status="200"}'


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("service"), "--rankers", "2") as running:
        yield running


@pytest.fixture
def pinned(service):
    """A connection to each ranker, by its process."""
    with contextlib.ExitStack() as undo:
        yield connect_to_each(service, undo)


def connect_to_each(service, undo):
    rankers = {one["pid"] for (role, _), one in service.processes().items() if role == "ranker"}
    clients = {}
    while clients.keys() != rankers:
        client = undo.enter_context(service.client())
        stream = client.get("/healthz").extensions["network_stream"]
        port = stream.get_extra_info("client_addr")[1]
        clients.setdefault(owner(rankers, port), client)
    return clients


def without_times(value):
    if isinstance(value, dict):
        return {name: without_times(one) for name, one in value.items() if name not in TIMES}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def figures(client):
    lines = client.get("/metrics").text.splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def killed(service, role, number=0):
    """Kill a process; return when another is in its place and all is ready again."""
    before = service.processes()[role, number]
    os.kill(before["pid"], signal.SIGKILL)

    def replaced():
        now = service.processes()[role, number]
        return now if now["pid"] not in (0, before["pid"]) else None

    now = until(replaced)
    assert now["restarts"] == before["restarts"] + 1
    until(lambda: service.ask("/readyz").status_code == 200)
    return now


def test_the_processes_are_listed_with_role_pid_uptime_and_restarts(service):
    processes = service.processes()
    assert processes.keys() == {("supervisor", 0), ("log", 0), ("learner", 0), ("ranker", 0), ("ranker", 1)}
    assert len({one["pid"] for one in processes.values()}) == 5
    assert processes["supervisor", 0]["pid"] == service.process.pid
    for one in processes.values():
        assert one.keys() == {"role", "number", "pid", "uptime_seconds", "restarts"}
        assert one["uptime_seconds"] >= 0
        assert not has_ended(one["pid"])


def test_requests_are_spread_over_the_rankers_and_all_of_them_answer(pinned):
    assert len(pinned) == 2
    events = [client.post("/v1/rank", json=RANK).json()["event_id"] for client in pinned.values()]
    for event, client in zip(reversed(events), pinned.values(), strict=True):  # each rewards what the other decided
        assert client.post(f"/v1/events/{event}/reward", json={"value": 1}).status_code == 204
        lines = [json.loads(line) for line in client.get("/v1/events").text.splitlines()]
        assert set(events) <= {line["event_id"] for line in lines}


def test_whichever_ranker_is_asked_says_the_same(pinned):
    first, second = pinned.values()
    first.get("/v1/model")  # returns once all is learned
    for path in ("/readyz", "/v1/status", "/v1/settings", "/v1/loops", "/openapi.json"):
        assert without_times(first.get(path).json()) == without_times(second.get(path).json())
    before = figures(first)
    for client, n in ((first, 3), (second, 2)):
        for _ in range(n):
            assert client.post("/v1/rank", json=RANK).status_code == 200
    second.get("/v1/model")
    counted = float(before.get(COUNTED, 0)) + 5
    until(lambda: float(figures(first).get(COUNTED, 0)) == counted)  # others see a ranker's counts at its next tick
    for client in (first, second):
        after = figures(client)
        assert float(after[COUNTED]) == counted
        assert (
            float(after['fedres_decisions_total{loop="default"}'])
            == float(before['fedres_decisions_total{loop="default"}']) + 5
        )
    until(lambda: figures(first).keys() == figures(second).keys())


def test_a_loop_and_its_settings_are_there_on_both_rankers_when_the_call_returns(pinned):
    first, second = pinned.values()
    assert first.post("/v1/loops", json={"name": "shop"}).status_code == 201
    assert second.post("/v1/loops/shop/rank", json=RANK).status_code == 200
    changed = second.put("/v1/loops/shop/settings", json={"epsilon": 0.5}).json()
    assert first.get("/v1/loops/shop/settings").json() == changed
    assert first.delete("/v1/loops/shop").status_code == 204
    assert second.post("/v1/loops/shop/rank", json=RANK).status_code == 404


def test_a_repeated_event_has_one_answer_on_both_rankers(pinned):
    first, second = pinned.values()
    answer = first.post("/v1/rank", json={**RANK, "event_id": "on both"})
    assert second.post("/v1/rank", json={**RANK, "event_id": "on both"}).json() == answer.json()


@pytest.mark.parametrize("number", [0, 1])
def test_a_ranker_that_is_killed_comes_back_and_the_figures_stay(service, number):
    assert service.ask("/v1/rank", "POST", json=RANK).status_code == 200
    with service.client() as client:
        before = figures(client)
    killed(service, "ranker", number)
    with contextlib.ExitStack() as undo:
        for client in connect_to_each(service, undo).values():
            assert client.post("/v1/rank", json=RANK).status_code == 200
            assert float(figures(client)[COUNTED]) > float(before[COUNTED])


def test_while_the_learner_is_away_decisions_and_rewards_go_on_and_are_learned_when_it_is_back(service):
    learned = service.ask("/v1/status").json()["loops"]["default"]["learned_events"]
    os.kill(service.pid("learner"), signal.SIGSTOP)
    with service.client() as client:
        for _ in range(20):
            decision = client.post("/v1/rank", json=RANK)
            assert decision.status_code == 200
            reward = client.post(f"/v1/events/{decision.json()['event_id']}/reward", json={"value": 1})
            assert reward.status_code == 204
        before, stop, seen = service.processes()["learner", 0], threading.Event(), []
        asking = threading.Thread(target=keep_asking, args=(service, stop, seen))
        asking.start()
        until(lambda: seen)
        killed(service, "learner")
        stop.set()
        asking.join()
        assert before["pid"] not in {one["pid"] for one in service.processes().values()}
        assert set(seen) == {200}
        client.get("/v1/model")
        assert client.get("/v1/status").json()["loops"]["default"]["learned_events"] >= learned + 20


def keep_asking(service, stop, seen):
    with service.client() as client:
        while not stop.is_set():
            seen.append(client.post("/v1/rank", json=RANK).status_code)


def test_who_waits_for_a_log_writer_that_is_killed_is_told_and_the_same_request_succeeds_later(service, pinned):
    request = {**RANK, "event_id": "asked again"}
    body = json.dumps(request).encode()
    head = b"POST /v1/rank HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer = service.pid("log")
    with socket.create_connection(httpx.URL(service.url).netloc.decode().split(":")) as connection:
        connection.settimeout(LIMIT)
        ranker = until(lambda: owner(pinned, connection.getsockname()[1]))
        os.kill(writer, signal.SIGSTOP)
        connection.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        for _ in range(10):  # turns of that ranker's event loop: the record is on its way to the writer
            assert pinned[ranker].get("/healthz").status_code == 200
        os.kill(writer, signal.SIGKILL)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
    assert received.startswith(b"HTTP/1.1 503")
    assert json.loads(received.partition(b"\r\n\r\n")[2])["error"]["code"] == "store_gone"
    until(lambda: service.pid("log") not in (0, writer))
    answer = until(lambda: succeeded(service.ask("/v1/rank", "POST", json=request)))
    assert service.ask("/v1/rank", "POST", json=request).json() == answer.json()
    events = [json.loads(line)["event_id"] for line in service.ask("/v1/events").text.splitlines()]
    assert events.count("asked again") == 1


def succeeded(reply):
    assert reply.status_code in (200, 503)
    return reply if reply.status_code == 200 else None


def test_nothing_acknowledged_is_lost_when_the_log_writer_is_killed_under_load(service):
    acknowledged, stop = [], threading.Event()

    def ask():
        with service.client() as client:
            while not stop.is_set():
                reply = client.post("/v1/rank", json=RANK)
                assert reply.status_code in (200, 503)
                if reply.status_code == 200:
                    acknowledged.append(reply.json()["event_id"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        n = len(acknowledged)
        until(lambda n=n: len(acknowledged) > n + 50)
        killed(service, "log")
    stop.set()
    for thread in threads:
        thread.join()
    stored = {json.loads(line)["event_id"] for line in service.ask("/v1/events").text.splitlines()}
    assert set(acknowledged) <= stored


def test_a_supervisor_that_is_killed_takes_all_along_and_the_store_can_be_served_again(tmp_path):
    with serving(tmp_path, "--rankers", "2") as service:
        event = service.ask("/v1/rank", "POST", json=RANK).json()["event_id"]
        pids, left = {one["pid"] for one in service.processes().values()}, service.run_folder()
        service.process.kill()
        service.process.wait()
        until(lambda: all(map(has_ended, pids)))
        assert left.exists()
    with serving(tmp_path) as service:
        assert service.ask(f"/v1/events/{event}/reward", "POST", json={"value": 1}).status_code == 204
        [line] = service.ask("/v1/events").text.splitlines()
        assert (json.loads(line)["event_id"], json.loads(line)["reward"]) == (event, 1.0)
        assert not left.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_and_leaves_neither_sockets_nor_shared_memory(tmp_path, number):
    with serving(tmp_path, "--rankers", "2") as service:
        assert service.ask("/v1/rank", "POST", json=RANK).status_code == 200
        pids, run = {one["pid"] for one in service.processes().values()}, service.run_folder()
        assert run.exists()
        service.process.send_signal(number)
        assert service.process.wait(LIMIT) == 0
        assert all(map(has_ended, pids))
        assert not run.exists()
    names = {path.name.removeprefix("store.db") for path in tmp_path.iterdir()}
    assert names == {"", "-lease", "-models", "stderr"}
    assert " INFO supervisor stopped after " in (tmp_path / "stderr").read_text().splitlines()[-1]


HELD = """
import sys
from service.cli import app
from service.roles import supervisor

gate = sys.argv.pop()

def prepare(config, real=supervisor.prepare):
    open(gate).read()  # until the test opens it too
    real(config)

supervisor.prepare = prepare
app()
"""


@pytest.fixture
def starting(tmp_path):
    """A service with two rankers that starts until the gate, which is a pipe, is opened."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "held.py").write_text(HELD)
    command = (sys.executable, str(tmp_path / "held.py"))
    with serving(tmp_path, "--rankers", "2", str(gate), wait=False, command=command) as service:
        yield service, gate


def test_while_it_starts_it_is_alive_but_not_ready(starting):
    service, gate = starting
    service.url = f"http://127.0.0.1:{until(lambda: listening_port(service.process.pid))}"
    for _ in range(8):  # connections of their own
        assert service.ask("/healthz").json() == {"status": "ok"}
        for reply in (service.ask("/readyz"), service.ask("/v1/rank", "POST", json=RANK), service.ask("/metrics")):
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "starting")
            assert reply.headers["retry-after"] == "1"
    page = service.ask("/", headers={"Accept": "text/html,application/xhtml+xml"})
    assert (page.status_code, page.headers["content-type"]) == (503, "text/html; charset=utf-8")
    assert '<meta http-equiv="refresh"' in page.text
    gate.write_text("")
    until(lambda: service.ask("/readyz").status_code == 200)
    assert service.ask("/v1/rank", "POST", json=RANK).status_code == 200


def test_a_signal_while_it_starts_leaves_nothing_behind(starting, tmp_path):
    service, _ = starting
    until(lambda: listening_port(service.process.pid))
    until((tmp_path / "store.db-run").exists)
    run = until(lambda: (tmp_path / "store.db-run").read_text() and service.run_folder())
    service.process.send_signal(signal.SIGTERM)
    assert service.process.wait(LIMIT) == 0
    assert not run.exists()
    assert not (tmp_path / "store.db-run").exists()


ORPHAN = """
import os, pathlib, socket, sys
from service.log.opening import Store
from service.roles.config import Config
from service.roles.starting import answer_while, new_progress

config = Config(store=Store(pathlib.Path(sys.argv[1]), None), port=0)
sock = socket.create_server(("127.0.0.1", 0))
answer_while(config, sock, os.getpid(), new_progress())  # not its parent, as if that had ended before
"""


def test_what_answers_while_it_starts_ends_though_the_supervisor_ended_before_it_began(tmp_path):
    command = [sys.executable, "-c", ORPHAN, str(tmp_path / "store.db")]
    assert run(command).returncode == 0


def test_a_second_service_on_the_same_store_or_port_refuses_to_start(service, tmp_path):
    same_store = ["--store", f"sqlite:///{service.store}", "--port", "0"]
    same_port = ["--store", f"sqlite:///{tmp_path}/other.db", "--port", service.url.rpartition(":")[2]]
    taken = f"cannot listen on {service.url.removeprefix('http://')}: Address already in use"
    messages = (f"process {service.process.pid} has it", taken)
    for words, message in zip((same_store, same_port, [*same_port, "--rankers", "2"]), (*messages, taken), strict=True):
        second = run([FEDRES, "serve", *words])
        assert second.returncode == 2
        assert message in second.stderr

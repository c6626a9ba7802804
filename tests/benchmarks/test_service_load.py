"""The service benchmark measures what it says; no test here looks at how fast anything is."""

import json
import multiprocessing
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import service_load
import service_processes
import service_soak
from forked import FEDRES, Forked
from load_generator import Load, Window, catalogue, generate, rank_bodies, template
from typer.testing import CliRunner

from service.cli import app
from service.console import whole_numbers

RANK = "/v1/loops/default/rank"
RANKED = b'{"event_id":"e1","action":"article-1"}'


@contextmanager
def stub(respond):
    """Run a server on which ``respond(path, body)`` returns a status and a body."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, body, self.headers.get("Authorization")))
            status, reply = respond(self.path, body)
            self.send_response(status)
            if reply:
                self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_port, seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(port, **options):
    windows = []
    options = {"seconds": 0.3, "n_connections": 2, "n_lists": 5} | options
    generate(Load(port, **options), windows.append)
    *windows, drain = windows
    assert drain.last
    windows[-1].add_drained(drain)
    return windows


def ranked(path, body):
    return (200, RANKED) if path == RANK else (204, b"")


def test_every_rank_is_followed_by_the_reward_for_its_event():
    with stub(ranked) as (port, seen):
        (window,) = run(port, n_connections=1, keys=["k0", "k1"])
    ranks, rewards = seen[::2], seen[1::2]
    events = [json.loads(body)["event_id"] for _, body, _ in ranks]
    assert {path for path, _, _ in ranks} == {RANK}
    assert [path for path, _, _ in rewards] == [f"/v1/loops/default/events/{name}/reward" for name in events]
    assert len({*events, *(json.loads(body)["id"] for _, body, _ in rewards)}) == len(seen)
    assert {json.loads(body)["value"] for _, body, _ in seen[1::2]} <= {0, 1}
    assert {key for _, _, key in seen} == {"Bearer k0"}
    assert len(window.ranks) + len(window.rewards) + window.drained == len(seen)
    contexts = [json.loads(body)["context"] for _, body, _ in seen[::2]]
    assert all(len(context) == 10 for context in contexts)


def test_failures_are_counted_by_status_and_the_first_body_is_kept():
    with stub(lambda path, _: (200, RANKED) if path == RANK else (503, b'{"code":"busy"}')) as (port, _):
        (window,) = run(port)
    row = window.summary()
    assert row["failures"] == row["failures_by_status"]["503"] > 0
    assert row["first_failure"].endswith('{"code":"busy"}')
    assert row["rewards"] == 0
    assert row["requests"] == row["ranks"]


def test_an_open_loop_sends_no_more_than_its_schedule_in_windows():
    with stub(ranked) as (port, seen):
        windows = run(port, seconds=0.6, pairs_per_second=50, window=0.2)
    assert [window.last for window in windows] == [False, False, False]
    assert 0 < sum(path == RANK for path, _, _ in seen) <= 30
    assert len(seen) == sum(len(window.ranks) + len(window.rewards) + window.drained for window in windows)


def test_inline_bodies_have_4_kb_and_bodies_by_id_name_catalogue_actions():
    actions = {action["id"]: action for action in catalogue()}
    for inline, by_id in zip(rank_bodies(5, inline=True), rank_bodies(5, inline=False), strict=True):
        assert 3_900 < len(inline) < 4_400
        chosen = json.loads(inline)["actions"]
        assert all(action == actions[action["id"]] and len(action["features"]) == 20 for action in chosen)
        assert json.loads(by_id)["actions"] == [{"id": action["id"]} for action in chosen]
        assert len({action["id"] for action in chosen}) == len(json.loads(by_id)["context"]) == 10
        assert sum(map(len, template(by_id))) < len(by_id) + len("Content-Length: 1000\r\n\r\n")


def measured(per_second, p99=1.0, failures=0, **more):
    window = Window()
    window.close()
    row = window.summary() | {"per_second": per_second, "p99": p99, "failures": failures}
    cpu = {"cpu": {"ranker": 5.0}, "cpu_catch_up": {"ranker": 1.0}, "memory_before": {}, "memory_after": {}}
    lag = {
        "commit_ms": 1.0,
        "lag_records": 0,
        "catch_up_seconds": 0.0,
        "per_second_with_catch_up": per_second,
        "other_cpu": 0.0,
    }
    return row | cpu | lag | more


def test_failures_of_all_rounds_are_added_and_shown():
    busy = measured(1, failures=2, failures_by_status={"503": 1, "429": 1}, first_failure="busy")
    lost = measured(1, failures=1, failures_by_status={"connection": 1}, first_failure="lost", catch_up_seconds=None)
    row = service_load.summarise([busy, lost], [measured(2), measured(4)])
    assert row["throughput_ratio"] == pytest.approx(0.375)  # the median of the ratios of each round
    assert (row["failures"], row["failures_by_status"]) == (3, {"503": 1, "429": 1, "connection": 1})
    assert row["first_failure"] == "busy"
    assert row["catch_up_seconds"] is None
    speed, processes = service_load.table([{"what": "sustained by id", "rankers": 1, **row}]).renderables
    assert "FAILURES" in speed.caption
    assert "busy (the limit of a key's rate: use --keys)" in speed.caption
    assert speed.row_count == processes.row_count == 1


@pytest.mark.parametrize(("grows", "flat"), [(0, True), (1_000, False)])
def test_a_soak_is_flat_if_the_last_third_is_like_the_first(grows, flat):
    samples = [
        {"memory_mb": 200.0 + grows * k, "lag_records": grows * k, "p99": 5.0 + grows * k, "failures": 0}
        | dict.fromkeys(("open_files", "wal_mb", "models_mb", "log_bytes_per_request"), 50 + grows * k)
        | {"first_failure": None, "at": 10.0 * (k + 1)}
        for k in range(9)
    ]
    verdicts = service_soak.judge(samples)["flat"]
    assert [verdict["flat"] for verdict in verdicts.values()] == [flat] * 7
    assert verdicts["memory_mb"]["first"] == 200.0 + grows
    assert verdicts["memory_mb"]["per_hour"] == pytest.approx(grows * 360)


@pytest.fixture
def forked_processes(monkeypatch):
    """Let the service, the bare application and what makes the load be forked: all they import takes seconds."""
    forks = multiprocessing.get_context("forkserver")
    monkeypatch.setenv("PYTHONPATH", str(Path(service_load.__file__).parent))  # Python 3.11 preloads from there only
    forks.set_forkserver_preload(["service_load"])
    monkeypatch.setattr(service_load, "_spawn", forks)
    monkeypatch.setattr(service_processes, "_spawn", forks)
    monkeypatch.setattr(service_processes, "COMMAND", (FEDRES,))
    monkeypatch.setattr(service_processes.subprocess, "Popen", Forked)


@pytest.mark.usefixtures("forked_processes")
def test_one_run_measures_the_real_service_beside_the_bare_application():
    rows = service_load.measure(workloads=[service_load.SUSTAINED], rounds=1, seconds=0.2, warm_up=0.1, n_connections=4)
    assert [row["what"] for row in rows] == ["bare ASGI", "sustained by id"]
    bare, sustained = json.loads(json.dumps(rows))
    assert bare["throughput_ratio"] == bare["p99_ratio"] == 1
    assert [row["failures"] for row in rows] == [0, 0]
    assert 0 <= sustained["ranks"] - sustained["rewards"] <= 4
    assert sustained["catch_up_seconds"] >= 0
    assert set(bare["cpu"]) == {"bare"}
    assert set(sustained["cpu"]) == {"supervisor", "log", "learner", "ranker"}
    assert set(sustained["cpu"]) <= set(sustained["memory_after"])
    assert sustained["commit_ms"] > 0
    assert 0 < sustained["p50"] <= sustained["p99"]
    assert sustained["throughput_ratio"] == sustained["per_second"] / bare["per_second"]


@pytest.mark.usefixtures("forked_processes")
def test_a_soak_samples_the_real_service_below_its_limit():
    result = service_soak.soak(0.9, share=0.5, limit_seconds=0.3, n_connections=4)
    assert len(result["samples"]) == service_soak.FEWEST_SAMPLES
    assert result["failures"] == 0
    files = {"wal_mb", "models_mb", "log_bytes_per_request"}
    assert set(result["flat"]) == {"memory_mb", "open_files", "lag_records", "p99"} | files
    assert all(row["files"]["log"] > 0 for row in result["samples"])
    scheduled = result["scheduled_per_second"] * 0.9
    assert 0 < sum(row["requests"] for row in result["samples"]) <= scheduled + 8
    assert len(service_soak.table(json.loads(json.dumps(result))).renderables) == 2


def test_a_service_that_does_not_start_is_reported_with_its_output(tmp_path, monkeypatch):
    monkeypatch.setattr(service_processes, "COMMAND", ("sh", "-c", "echo no such option; exit 2"))
    with pytest.raises(OSError, match="no such option"), service_processes.service(tmp_path / "s", rankers=2):
        pass


def test_the_command_passes_its_options_on_and_writes_json(tmp_path, monkeypatch):
    calls = []

    def measure(**options):
        calls.append(options)
        return [{"what": "bare ASGI", "rankers": 0, **service_load.summarise([measured(1)], [measured(1)])}]

    monkeypatch.setattr(service_load, "measure", measure)
    file = tmp_path / "bench.json"
    command = ["bench", "service", "--rankers", "1,2", "--seconds", "3", "--rounds", "2", "--keys", "3"]
    assert CliRunner().invoke(app, [*command, "--json", str(file)]).exit_code == 0
    del calls[0]["progress"]
    assert calls == [{"rankers": [1, 2], "seconds": 3.0, "rounds": 2, "n_keys": 3}]
    assert json.loads(file.read_text())["service"][0]["what"] == "bare ASGI"


def test_numbers_of_rankers_are_checked():
    assert whole_numbers("rankers", "1,2, 3,2", 1) == [1, 2, 3]
    for wrong in ("", "0", "1,x", "-1"):
        with pytest.raises(ValueError, match="rankers must be whole numbers from 1 on"):
            whole_numbers("rankers", wrong, 1)
    assert CliRunner().invoke(app, ["bench", "engine", "--soak", "5"]).exit_code == 2

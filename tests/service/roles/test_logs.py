"""What a service logs: lines with time, level and role, the id of a failed request, reasons, and how it stops."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from locking import write_lock
from serving import IMPATIENT, serving
from waiting import LIMIT, until

TEXT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) [a-z]+(-\d+)? \S.*")
RANK = {"actions": [{"id": "tea", "features": {"hot": True}}]}


def lines(folder):
    return (Path(folder) / "stderr").read_text().splitlines()


@pytest.mark.parametrize("request_id", ["my-request", None])
def test_a_failed_request_is_logged_with_the_id_that_its_reply_has(tmp_path, request_id):
    with serving(tmp_path, command=IMPATIENT) as service:
        headers = {} if request_id is None else {"X-Request-Id": request_id}
        with write_lock(service.store):
            reply = service.ask("/v1/rank", "POST", json=RANK, headers=headers)
        assert reply.status_code == 503
        named = reply.headers["x-request-id"]
        assert request_id in (None, named)
    logged = lines(tmp_path)
    assert all(map(TEXT.fullmatch, logged)), logged
    [failed] = [line for line in logged if f"(request {named})" in line]
    assert " WARNING ranker-0 POST /v1/rank failed: 503 store_" in failed
    assert any(" ERROR log-0 the store takes nothing" in line for line in logged)


def test_lines_can_be_json_and_then_everything_is(tmp_path):
    with serving(tmp_path, "--log-format", "json", "--access-log", wait=False) as service:
        until(lambda: any("is ready" in line for line in lines(tmp_path)))
        ready = next(one for one in map(json.loads, lines(tmp_path)) if "is ready" in one["message"])
        service.url = re.search(r"dashboard +(\S+)/", ready["message"])[1]
        reply = service.ask("/v1/rank", "POST", json=RANK, headers={"X-Request-Id": b"r-1\xa0"})
        assert reply.status_code == 200
        assert service.ask("/v1/users/berta/events").status_code == 200
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(LIMIT) == 0
        assert service.process.stdout.read() == ""
    logged = [json.loads(line) for line in lines(tmp_path)]
    assert all({"time", "level", "role", "pid", "logger", "message"} <= one.keys() for one in logged)
    [rank] = [one for one in logged if one.get("path") == "/v1/rank"]
    assert (rank["role"], rank["level"], rank["status"], rank["method"]) == ("ranker-0", "info", 200, "POST")
    assert rank["request_id"] == "r-1\\xa0"
    [other] = [one for one in logged if one.get("path") == "/v1/users/{user}/events"]
    assert re.fullmatch("[0-9a-f]{16}", other["request_id"])
    assert "berta" not in (tmp_path / "stderr").read_text()
    last = [one["message"].split()[0] for one in logged if one["role"] == "supervisor"][-2:]
    assert last == ["stopping", "stopped"]


def test_less_is_logged_at_a_higher_level_and_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRES_LOG_LEVEL", "error")
    with serving(tmp_path) as service:
        os.kill(service.pid("ranker"), signal.SIGKILL)
        assert until(lambda: service.processes()["ranker", 0]["restarts"] == 1)
    assert lines(tmp_path) == []


def test_a_snapshot_that_fails_says_why(tmp_path):
    with serving(tmp_path, command=IMPATIENT) as service:
        (tmp_path / "store.db-models").unlink()
        (tmp_path / "store.db-models").mkdir()
        assert service.ask("/v1/rank", "POST", json=RANK).status_code == 200
        said = "a snapshot could not be written, and the next one tries again: unable to open database file"
        until(lambda: any(f"WARNING learner-0 {said}" in line for line in lines(tmp_path)))
        (tmp_path / "store.db-models").rmdir()

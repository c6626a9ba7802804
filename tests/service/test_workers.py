"""Several processes that answer for one engine."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

ACTIONS = [{"id": "tea", "features": {"hot": True}}, {"id": "juice", "features": {}}]


@contextlib.contextmanager
def served(folder, *words):
    """Lend a service with two workers: its process and its address."""
    command = [Path(sys.executable).with_name("fedres"), "serve", "--port", "0", "--workers", "2", *words]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            lines = iter(process.stdout.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://[\d.]+:\d+", line)))
            yield process, url
        finally:
            process.kill()


def children(pid):
    """Return the workers of a service: processes whose parent it is, but for multiprocessing's own tracker."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                command = (stat.parent / "cmdline").read_bytes()
                found += [int(stat.parent.name)] if b"resource_tracker" not in command else []
    return found


def until(true):
    """Wait for what has no event to wait for: other processes' ends and beginnings."""

    async def wait():
        while not true():
            await asyncio.sleep(0.02)

    asyncio.run(asyncio.wait_for(wait(), 30))


def ask(url, event):
    body = {"event_id": event, "user": "anna", "actions": ACTIONS}
    with httpx.Client(base_url=url, timeout=30, transport=httpx.HTTPTransport(retries=3)) as client:
        ranked = client.post("/v1/rank", json=body)
        rewarded = client.post(f"/v1/events/{event}/reward", json={"value": 1})
        exported = client.get("/v1/events")
    assert (ranked.status_code, rewarded.status_code, exported.status_code) == (200, 204, 200)
    return ranked.json(), exported.text


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc, which Linux has")
def test_workers_answer_for_one_engine_and_are_started_again_when_killed(tmp_path):
    with served(tmp_path) as (process, url):
        first, _ = ask(url, "first")
        before = children(process.pid)
        assert len(before) == 2
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(set(children(process.pid)) - set(before)) == 2)
        _, exported = ask(url, "second")
        assert exported.count('"event_id"') == 2
        assert f'"action":"{first["action"]}"' in exported.replace(" ", "")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes by /proc, which Linux has")
def test_workers_end_with_their_engine_and_nothing_acknowledged_is_lost(tmp_path):
    with served(tmp_path) as (process, url):
        ask(url, "kept")
        workers = children(process.pid)
        process.kill()
        process.wait()
        until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    with served(tmp_path) as (_, url):
        _, exported = ask(url, "next")
        assert exported.count('"event_id"') == 2


@pytest.mark.slow
def test_workers_ask_for_keys_and_keep_limits(tmp_path):
    fedres = Path(sys.executable).with_name("fedres")
    made = subprocess.run([fedres, "keys", "add", "rank"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    key = re.search(r"fedres_[\w-]+", made.stdout)[0]
    with served(tmp_path) as (_, url), httpx.Client(base_url=url, timeout=30) as client:
        assert client.post("/v1/rank", json={"actions": ACTIONS}).status_code == 401
        allowed = {"Authorization": f"Bearer {key}"}
        assert client.post("/v1/rank", json={"actions": ACTIONS}, headers=allowed).status_code == 200
        assert client.get("/v1/status", headers=allowed).status_code == 403
        large = client.post(
            "/v1/rank", content=b" " * 1_100_000, headers={**allowed, "Content-Type": "application/json"}
        )
        assert large.status_code == 413

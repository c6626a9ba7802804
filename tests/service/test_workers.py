"""Several processes that answer for one engine; what happens when they are killed is in ``faults``."""

import contextlib
import re
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

"""Several processes that answer for one engine; what happens when they are killed is in ``faults``."""

import contextlib
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from service.http.keys import Keys

ACTIONS = [{"id": "tea", "features": {"hot": True}}, {"id": "juice", "features": {}}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def headers(folder):
    """A key of each kind, as a header."""
    keys = Keys(folder / "fedres.db")
    made = {"rank": keys.add("rank"), "device": keys.add("device", client="phone-7"), "admin": keys.add("admin")}
    return {role: {"Authorization": f"Bearer {key}"} for role, key in made.items()}


@contextlib.contextmanager
def speaking_to(folder, workers):
    """Lend a client of a service."""
    command = [Path(sys.executable).with_name("fedres"), "serve", "--port", "0", "--workers", str(workers)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            lines = iter(process.stdout.readline, "")
            url = next(found[0] for line in lines if (found := re.search(r"http://[\d.]+:\d+", line)))
            with httpx.Client(base_url=url, timeout=30) as made:
                yield made
        finally:
            process.kill()


@pytest.fixture(scope="module")
def client(folder, headers):
    """Speak to a service with two workers, on a store that has keys."""
    with speaking_to(folder, 2) as made:
        yield made


@pytest.mark.slow
def test_workers_ask_for_keys_and_keep_limits(client, headers):
    allowed = headers["rank"]
    assert client.post("/v1/rank", json={"actions": ACTIONS}).status_code == 401
    assert client.post("/v1/rank", json={"actions": ACTIONS}, headers=allowed).status_code == 200
    page = {"actions": ACTIONS, "slots": [{"id": "top"}, {"id": "side"}]}
    slots = client.post("/v1/rank/slots", json=page, headers=allowed).json()["slots"]
    assert {slot["action"] for slot in slots} == {"tea", "juice"}
    assert client.get("/v1/status", headers=allowed).status_code == 403
    large = client.post("/v1/rank", content=b" " * 1_100_000, headers={**allowed, "Content-Type": "application/json"})
    assert large.status_code == 413


@pytest.mark.slow
def test_workers_know_whose_key_it_is_and_which_model_a_device_has(client, headers):
    bound, admin = headers["device"], headers["admin"]
    version = client.get("/v1/federated/round", headers=bound).json()["version"]
    stored = upload(client, "phone-7", version, bound)
    assert (stored.status_code, len(stored.json()["positions"])) == (200, 1)
    assert upload(client, "phone-7", version, bound).json()["positions"] == stored.json()["positions"]
    assert upload(client, "phone-8", version, admin).status_code == 200
    for pretended in ({}, {"fedres.client": "phone-8"}, {"X-Client": "phone-8"}):
        forged = upload(client, "phone-8", version, {**bound, **pretended})
        assert (forged.status_code, forged.json()["error"]["code"]) == (403, "forged_client")
    assert client.get("/v1/federated/round?client=phone-8", headers=bound).status_code == 403
    client.get("/v1/model", headers=bound)  # returns once all is learned
    model = client.get("/v1/federated/model", headers=bound)
    tags = {"If-None-Match": f'"0", W/{model.headers["etag"]}'}
    same = client.get("/v1/federated/model", headers={**bound, **tags})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", model.headers["etag"])


def upload(client, name, version, headers):
    residual = {"seq": 1, "version": version, "context": {}, "action": ACTIONS[0], "local": 0.5, "label": 1}
    body = {"client": name, "residuals": [residual]}
    return client.post("/v1/federated/residuals", json=body, headers=headers)


@pytest.mark.slow
def test_workers_show_the_same_documents_as_a_service_without(tmp_path, client):
    def documents(client):
        return client.get("/openapi.json").json(), client.get("/docs").text

    with speaking_to(tmp_path, 1) as alone:
        assert documents(client) == documents(alone)

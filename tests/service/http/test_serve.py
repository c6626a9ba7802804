"""The service as a process: where it listens, what it says, and how it ends."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from functools import partial

import httpx
import numba
import pytest
from service.engine import Engine
from service.serve import check_exposure, is_loopback, serve
from service.starting import opened, telling

from service.app import create_app
from service.http.keys import Keys
from service.http.limits import Limits
from service.http.server import Server, Tls, bound, shown

CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUSmlsqS1NpANawWr6DCb4GMLPNGowCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNTA1MzI0MFoYDzIxMjYxMDIy
MDUzMjQwWjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASjeio1g1ewn4iqOE7Ak2iPE32t3Koz7QwTTAlFSNSMe1uzuqO05YcG
SpYlgvqnvbOdp66VOr1IIH2NG8H8kpS3o28wbTAdBgNVHQ4EFgQUOMKTB/mMCnrg
AgJPv1oDTMw2R60wHwYDVR0jBBgwFoAUOMKTB/mMCnrgAgJPv1oDTMw2R60wDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIgPADWHRO/Q+mCU3i2mFkejVz+xcUSPDt1nODnoX/xhRYCIQDK
2axXqJqN/OPIcj8uuS4P0JUUSt82LKxS4WDXU6F0gA==
-----END CERTIFICATE-----
"""

# Of no use to anyone: it was made for this test.
PRIVATE_KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgLp8J96kmkIkn1bHP
yWehSKYhP0G7V79Tgi9Fvc8PMz+hRANCAASjeio1g1ewn4iqOE7Ak2iPE32t3Koz
7QwTTAlFSNSMe1uzuqO05YcGSpYlgvqnvbOdp66VOr1IIH2NG8H8kpS3
-----END PRIVATE KEY-----
"""

SERVE = "import sys; from pathlib import Path; from service.serve import serve; serve(Path(sys.argv[1]), port=0)"
RANK = {"actions": [{"id": "a", "features": {"x": 1}}, {"id": "b", "features": {"x": 2}}]}


@contextlib.contextmanager
def process(store):
    """Start a service as a process of its own, and end that process."""
    command = [sys.executable, "-u", "-c", SERVE, str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            lines = iter(running.stdout.readline, "")
            first = next(line for line in lines if line.startswith("fedres serves"))  # after what is said of compiling
            page = next(lines)
            yield running, first, re.search(r"http://\S+", page)[0].rstrip("/")
        finally:
            running.kill()


def test_it_says_where_to_look_and_a_sigterm_ends_it_with_nothing_lost(tmp_path):
    store = tmp_path / "store.db"
    acknowledged, busy = [], threading.Event()
    with process(store) as (running, first, url):
        assert "no key yet" in first
        with httpx.Client(base_url=url, trust_env=False) as client:
            load = threading.Thread(target=keep_asking, args=(client, acknowledged, busy))
            load.start()
            assert busy.wait(60)
            running.send_signal(signal.SIGTERM)
            _, errors = running.communicate(timeout=60)
            load.join()
        assert (running.returncode, errors) == (0, "")
    with process(store) as (_, _, url):
        stored = {
            json.loads(line)["event_id"] for line in httpx.get(f"{url}/v1/events", trust_env=False).text.splitlines()
        }
    assert set(acknowledged) <= stored


def keep_asking(client, acknowledged, busy):
    with contextlib.suppress(httpx.TransportError):
        while True:
            reply = client.post("/v1/rank", json=RANK)
            if reply.status_code != 200:
                return
            acknowledged.append(reply.json()["event_id"])
            if len(acknowledged) == 20:
                busy.set()


def test_what_runs_beside_gets_the_address_and_its_failure_does_not_end_the_service(tmp_path, caplog):
    said = []

    async def beside(engine, url):
        reply = await asyncio.to_thread(httpx.get, f"{url}/healthz", trust_env=False)
        said.append((engine.loops(), reply.status_code))
        asyncio.get_running_loop().call_later(0, signal.raise_signal, signal.SIGTERM)
        raise ZeroDivisionError

    serve(tmp_path / "store.db", port=0, beside=beside, say=said.append)
    assert said[-1] == (["default"], 200)
    assert "the service goes on" in caplog.text


def test_while_the_store_is_being_opened_the_service_is_alive_but_not_ready(tmp_path):
    may_open = threading.Event()

    def open_when_allowed(store):
        may_open.wait(60)
        return Engine.open(store)

    async def story():
        with bound("127.0.0.1", 0) as sock:
            opening = asyncio.ensure_future(opened(partial(open_when_allowed, tmp_path / "s.db"), sock, Limits(), None))
            async with httpx.AsyncClient(base_url=f"http://{shown(sock)}", trust_env=False, timeout=30) as client:
                assert (await client.get("/healthz")).json() == {"status": "ok"}
                for reply in (await client.get("/readyz"), await client.post("/v1/rank", json=RANK)):
                    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "starting")
                    assert reply.headers["retry-after"] == "1"
            may_open.set()
            engine = await opening
            server = Server(create_app(engine, keys=Keys(engine.store)), sock, Limits())
            serving = asyncio.ensure_future(server.serve())
            async with httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as client:
                assert (await client.get("/readyz")).status_code == 200
            server.stop()
            await serving
            await engine.close()

    asyncio.run(story())


def test_compiling_is_said_once_and_not_where_it_was_done_before():
    said = []
    double = numba.njit(lambda x: x + x)
    for _ in range(2):
        with telling(said.append):
            assert (double(1), double(1.5)) == (2, 3.0)
    assert said == ["Compiling what decides and learns: once, about 15 s."]


def test_a_second_service_on_the_same_store_refuses_to_start(tmp_path):
    with process(tmp_path / "store.db") as (running, _, _):
        second = subprocess.run(
            [sys.executable, "-c", SERVE, str(tmp_path / "store.db")], capture_output=True, text=True, timeout=60
        )
        assert second.returncode != 0
        assert f"process {running.pid} has it" in second.stderr


def test_without_a_key_only_this_machine_is_served(tmp_path):
    keys = Keys(tmp_path / "store.db")
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert is_loopback(host)
        check_exposure(host, keys, insecure=False)
    for host in ("0.0.0.0", "::", "192.0.2.1", ""):
        with pytest.raises(ValueError, match=f"host must be a loopback address .*, got '{host}'"):
            check_exposure(host, keys, insecure=False)
        check_exposure(host, keys, insecure=True)
    keys.add("admin")
    check_exposure("0.0.0.0", keys, insecure=False)


def test_a_port_that_is_taken_is_an_error_at_once():
    with bound("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"), bound(*taken.getsockname()):
        pass


@pytest.fixture
def tls(tmp_path):
    certificate, private_key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.write_text(CERTIFICATE)
    private_key.write_text(PRIVATE_KEY)
    return Tls(certificate=certificate, private_key=private_key)


def test_it_speaks_tls_with_the_certificate_it_is_given(start, tls):
    with start(tls=tls) as live:
        assert live.url.startswith("https://")
        context = ssl.create_default_context(cafile=tls.certificate)
        with httpx.Client(base_url=live.url, verify=context, trust_env=False) as client:
            assert client.post("/v1/rank", json=RANK).status_code == 200


def test_a_tls_handshake_that_is_never_finished_is_closed(start, tls):
    with (
        start(tls=tls, limits=Limits(request_seconds=0.5)) as live,
        socket.create_connection(live.address) as connection,
    ):
        connection.settimeout(20)
        connection.sendall(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionError):
            assert connection.recv(100) == b""

"""The service as a process: where it listens, what it says, and how it ends."""

import contextlib
import json
import signal
import socket
import ssl
import threading

import httpx
import numba
import pytest
from serving import serving
from waiting import LIMIT

from service import health
from service.http.hosts import check_exposure, is_loopback
from service.http.keys import Keys
from service.http.request import Limits
from service.http.server import Tls, bind, shown
from service.log.opening import Store
from service.roles.config import Config
from service.roles.starting import compiling, new_progress, serve_starting

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

RANK = {"actions": [{"id": "a", "features": {"x": 1}}, {"id": "b", "features": {"x": 2}}]}


def test_it_says_where_to_look_and_a_sigterm_under_load_ends_it_with_nothing_lost(tmp_path):
    acknowledged, busy = [], threading.Event()
    with serving(tmp_path) as service, service.client() as client:
        load = threading.Thread(target=keep_asking, args=(client, acknowledged, busy))
        load.start()
        assert "without API keys: open to all" in service.said[-2]
        assert busy.wait(LIMIT)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(LIMIT) == 0
        load.join()
    lines = (tmp_path / "stderr").read_text().splitlines()
    assert [line.split(maxsplit=3)[1:3] for line in lines] == [["INFO", "supervisor"]] * 3
    assert "SQLite" in lines[0]
    assert "stopping by SIGTERM" in lines[1]
    assert "stopped after" in lines[2]
    with serving(tmp_path) as service:
        stored = {json.loads(line)["event_id"] for line in service.ask("/v1/events").text.splitlines()}
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


def test_while_it_starts_the_service_is_alive_but_not_ready(tmp_path):
    with (
        bind("127.0.0.1", 0) as sock,
        serve_starting(Config(store=Store(tmp_path / "s.db")), sock, new_progress()),
        httpx.Client(base_url=f"http://{shown(sock)}", trust_env=False, timeout=LIMIT) as client,
    ):
        assert client.get("/healthz").json() == {"status": "ok"}
        for reply in (client.get("/readyz"), client.post("/v1/rank", json=RANK)):
            assert (reply.status_code, reply.json()["error"]["code"]) == (503, "starting")
            assert reply.headers["retry-after"] == "1"


def test_compiling_is_said_once_and_not_where_it_was_done_before():
    said = []
    double = numba.njit(lambda x: x + x)
    for _ in range(2):
        with compiling(said.append, new_progress()):
            assert (double(1), double(1.5)) == (2, 3.0)
    assert said == ["Compiling kernels (first start only, one to several minutes)"]


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
    with bind("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"), bind(*taken.getsockname()):
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


def test_the_health_check_finds_a_service_with_tls_by_its_run_folder(start, tls, tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (tmp_path / "store.db-run").write_text(f"{folder}\n")
    assert health.main([str(tmp_path)]) == 1  # it has no address yet
    with start(tls=tls) as live:
        (folder / "address").write_text(f"{live.url}\n")
        assert health.main([str(tmp_path)]) == 0
    assert health.main([str(tmp_path)]) == 1
    assert f"{live.url}/healthz: " in capsys.readouterr().out


def test_a_tls_handshake_that_is_never_finished_is_closed(start, tls):
    with (
        start(tls=tls, limits=Limits(request_seconds=0.5)) as live,
        socket.create_connection(live.address) as connection,
    ):
        connection.settimeout(LIMIT)
        connection.sendall(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionError):
            assert connection.recv(100) == b""

"""The proxies of docs/operate/deploy.md, as they are there but for addresses, in front of a service.

They listen on sockets of the file system, so that no port can be taken, and say when they are ready. Skipped where
nginx or Caddy is not installed (Debian: apt-get install nginx caddy).
"""

import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from live import run_service
from needs import needs_program

from service.http.hosts import Hosts

PAGE = (Path(__file__).parents[2] / "docs" / "operate" / "deploy.md").read_text(encoding="utf-8")
NAME = "fedres.example.org"
REQUEST = {"event_id": "first", "user": "anna", "actions": [{"id": "tea"}, {"id": "juice"}]}


def block(language, has):
    """Return the block of the page in a language."""
    [block_text] = [code for code in re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL) if has in code]
    return block_text


def changed(text, **replaced):
    for old, new in replaced.values():
        assert old in text, old
        text = text.replace(old, new)
    return text


def run(folder, *command):
    done = subprocess.run(command, cwd=folder, env={"HOME": str(folder)}, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0


@contextmanager
def nginx(folder, address):
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    run(folder, *f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {certificate} -subj /CN={NAME}".split())
    server = changed(
        block("nginx", "keepalive"),
        upstream=("127.0.0.1:8000", address),
        listen=("listen 443 ssl", f"listen unix:{folder}/proxy ssl"),
        certificate=("/etc/ssl/fedres.pem", str(certificate)),
        key=("/etc/ssl/fedres.key", str(key)),
    )
    paths = " ".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    whole = f"pid {folder}/pid; error_log {folder}/error.log;\nmaster_process off; events {{}}\n"
    (folder / "nginx.conf").write_text(
        f"{whole}http {{ access_log off; {paths.replace('/proxy;', '/proxied;')}\n{server}}}\n"
    )
    command = (shutil.which("nginx"), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf")
    run(folder, *command)  # returns once it listens
    try:
        yield httpx.Client(
            base_url=f"https://{NAME}", transport=httpx.HTTPTransport(uds=f"{folder}/proxy", verify=False)
        )
    finally:
        run(folder, *command, "-s", "stop")


@contextmanager
def caddy(folder, address):
    site = changed(
        block("text", "reverse_proxy"),
        name=(f"{NAME} {{", f"http://{NAME} {{\n    bind unix/{folder}/proxy"),
        upstream=("127.0.0.1:8000", address),
    )
    (folder / "Caddyfile").write_text(f"{{\n    admin unix/{folder}/admin\n}}\n{site}")
    command = shutil.which("caddy")
    run(folder, command, "start", "--config", "Caddyfile", "--adapter", "caddyfile")  # returns once it listens
    try:
        yield httpx.Client(base_url=f"http://{NAME}", transport=httpx.HTTPTransport(uds=f"{folder}/proxy"))
    finally:
        run(folder, command, "stop", "--address", f"unix/{folder}/admin")


@pytest.fixture(
    params=[pytest.param(each, marks=needs_program(each.__name__), id=each.__name__) for each in (nginx, caddy)]
)
def proxy(request):
    return request.param


def test_decisions_rewards_and_the_dashboard_come_through(proxy, tmp_path):
    (tmp_path / "p").mkdir()
    with (
        run_service(tmp_path, hosts=Hosts([NAME])) as live,
        proxy(tmp_path / "p", live.url.removeprefix("http://")) as client,
        client,
    ):
        assert client.get("/readyz").status_code == 200
        origin = {"Origin": str(client.base_url)}
        assert client.post("/v1/rank", json=REQUEST, headers=origin).json()["event_id"] == "first"
        assert client.post("/v1/events/first/reward", json={"value": 1}).status_code == 204
        assert "<title>fedres" in client.get("/").text
        large = {"put": [{"id": f"item-{k}", "features": {"text": "a" * 900}} for k in range(1000)]}
        assert client.put("/v1/actions", json=large).status_code == 204


def test_a_service_without_keys_refuses_the_name_of_the_proxy_unless_it_is_allowed(proxy, tmp_path):
    (tmp_path / "p").mkdir()
    with (
        run_service(tmp_path, hosts=Hosts()) as live,
        proxy(tmp_path / "p", live.url.removeprefix("http://")) as client,
        client,
    ):
        refused = client.post("/v1/rank", json=REQUEST)
        assert (refused.status_code, refused.json()["error"]["code"]) == (421, "unknown_host")

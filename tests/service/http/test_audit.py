"""What admins did can be read later: who, what, which loop; but not whom it was about."""

import json
from concurrent.futures import ThreadPoolExecutor

from service import metrics
from service.app import declared_routes
from service.http import audit
from service.http.audit import Audit
from service.http.request import Limits


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_change_by_an_admin_is_noted_and_nothing_else(start, tmp_path):
    with start(audit=True) as live:
        key, weak = live.keys.add("admin"), live.keys.add("rank")
        with live.client(key) as client, live.client(weak) as other, live.client() as nobody:
            client.post("/v1/loops", json={"name": "shop"})
            client.put("/v1/loops/shop/settings", json={"epsilon": 7})
            client.get("/v1/loops/shop/settings")
            other.post("/v1/loops/shop/rank", json={"actions": [{"id": "a", "features": {}}]})
            other.delete("/v1/loops/shop/users/anna")
            nobody.delete("/v1/loops/shop/users/anna")
            client.delete("/v1/loops/shop/users/anna")
            client.delete("/v1/loops/shop")
    key, weak = key.split("_")[1], weak.split("_")[1]
    entries = lines(tmp_path / "store.db-audit")
    assert [(line["key"], line["what"], line["loop"], line["status"]) for line in entries] == [
        (key, "POST /v1/loops", None, 201),
        (key, "DELETE /v1/loops/{loop}/users/{user}", "shop", 204),
        (key, "DELETE /v1/loops/{loop}", "shop", 204),
    ]
    refused = lines(tmp_path / "store.db-audit-refused")
    assert [(line["key"], line["what"], line["status"], line["refused"]) for line in refused] == [
        (key, "PUT /v1/loops/{loop}/settings", 422, 1),
        (weak, "DELETE /v1/loops/{loop}/users/{user}", 403, 1),
    ]
    assert all("anna" not in file.read_text() for file in tmp_path.glob("store.db-audit*"))


def test_refused_calls_push_no_change_out_of_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "MOST_BYTES", 500)
    now = [0.0]
    kept = Audit(tmp_path / "store.db", lambda: now[0])
    kept.note("admin", "PATCH /settings", "a", 200)
    before = metrics.refused_changes.labels("rank")._value.get()
    for k in range(1_000):
        kept.note("rank", "DELETE /users", "a", 403)
        kept.note("admin", "PATCH /settings", "a", 422)
        now[0] = k / 10
    assert [line["status"] for line in lines(tmp_path / "store.db-audit")] == [200]
    assert metrics.refused_changes.labels("rank")._value.get() - before == 1_000
    counts = [(line["key"], line["refused"]) for line in lines(tmp_path / "store.db-audit-refused")]
    assert counts == [("rank", 1), ("admin", 1), ("rank", 601), ("admin", 601)]
    for _ in range(100):
        now[0] += 60
        kept.note("rank", "DELETE /users", "a", 403)
    assert sum(file.stat().st_size for file in tmp_path.glob("*-refused*")) < 1_500
    kept.note("admin", "PATCH /settings", "a", 503)
    assert [line["status"] for line in lines(tmp_path / "store.db-audit")] == [200, 503]


def test_every_route_that_changes_what_only_admins_may_change_is_audited():
    routes = declared_routes(None, None, Limits())
    assert {f"{route.method} {route.path}" for route in routes if route.audited} == {
        f"{route.method} {route.path}" for route in routes if route.roles == {"admin"} and route.method != "GET"
    }
    assert any(route.audited for route in routes)


def test_the_files_are_their_owners_alone_and_end_somewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "MOST_BYTES", 1_000)
    kept = Audit(tmp_path / "store.db")
    for k in range(300):
        kept.note("key", f"call {k}")
    names = ["store.db-audit", *(f"store.db-audit.{number}" for number in range(1, 10))]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert all(file.stat().st_size < 1_200 and file.stat().st_mode & 0o777 == 0o600 for file in tmp_path.iterdir())
    whole = [line["what"] for name in reversed(names) for line in lines(tmp_path / name)]
    assert whole == [f"call {k}" for k in range(300 - len(whole), 300)]


def test_processes_that_share_the_file_lose_no_line_when_it_is_renamed(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "MOST_BYTES", 2_000)

    def write(writer):
        kept = Audit(tmp_path / "store.db")
        for k in range(40):
            kept.note(str(writer), f"call {k}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert sum(len(lines(file)) for file in tmp_path.iterdir()) == 160


def test_a_disk_that_is_full_stops_nobody(tmp_path, caplog):
    Audit(tmp_path / "nowhere" / "store.db").note("key", "call")
    assert "audit log cannot be written" in caplog.text
    Audit(None).note("key", "call")

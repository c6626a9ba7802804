"""What admins did can be read later: who, what, which loop; but not whom it was about."""

import json

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
    entries = lines(tmp_path / "store.db-audit")
    key, weak = key.split("_")[1], weak.split("_")[1]
    assert [(line["key"], line["what"], line["loop"], line["status"]) for line in entries] == [
        (key, "POST /v1/loops", None, 201),
        (key, "PUT /v1/loops/{loop}/settings", "shop", 422),
        (weak, "DELETE /v1/loops/{loop}/users/{user}", "shop", 403),
        (key, "DELETE /v1/loops/{loop}/users/{user}", "shop", 204),
        (key, "DELETE /v1/loops/{loop}", "shop", 204),
    ]
    assert "anna" not in (tmp_path / "store.db-audit").read_text()


def test_every_route_that_changes_what_only_admins_may_change_is_audited():
    routes = declared_routes(None, None, Limits())
    assert {f"{route.method} {route.path}" for route in routes if route.audited} == {
        f"{route.method} {route.path}" for route in routes if route.roles == {"admin"} and route.method != "GET"
    }
    assert any(route.audited for route in routes)


def test_the_file_is_its_owners_alone_and_ends_somewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "MOST_BYTES", 1_000)
    kept = Audit(tmp_path / "store.db")
    for k in range(100):
        kept.note("key", f"call {k}")
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["store.db-audit", "store.db-audit.1"]
    assert all(file.stat().st_size < 1_200 and file.stat().st_mode & 0o777 == 0o600 for file in files)
    assert lines(files[0])[-1]["what"] == "call 99"


def test_a_disk_that_is_full_stops_nobody(tmp_path, caplog):
    Audit(tmp_path / "nowhere" / "store.db").note("key", "call")
    assert "audit log cannot be written" in caplog.text
    Audit(None).note("key", "call")

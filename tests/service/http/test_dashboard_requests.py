"""What the dashboard requests: small, compressed, asked for again only if it changed, and by any key about itself."""

import gzip

import httpx
import pytest

from service.http.keys import ROLES
from service.plugins.reports.page import ASSETS, asset

MOST_BYTES = 60_000  # of all files, compressed


def decide(http, loop="default", n=40):
    requests = [
        {"event_id": f"{loop}-{k}", "user": f"u{k % 25}", "context": {"segment": "new" if k % 2 else "old"}}
        | {"actions": [{"id": "tea"}, {"id": "juice"}]}
        for k in range(n)
    ]
    results = http.post(f"/v1/loops/{loop}/rank/batch", json={"requests": requests}).json()["results"]
    for result in results:
        value = float(result["action"] == "tea")
        path = f"/v1/loops/{loop}/events/{result['event_id']}/reward"
        http.post(path, json={"value": value}).raise_for_status()


def test_files_are_compressed_and_sent_again_only_if_they_changed(client):
    total = 0
    for name in ASSETS:
        packed = client.get(f"/{name}", headers={"Accept-Encoding": "gzip"})
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.content == asset(name)
        total += int(packed.headers["content-length"])
        plain = client.get(f"/{name}", headers={"Accept-Encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == asset(name)
        again = client.get(f"/{name}", headers={"If-None-Match": packed.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(f"/{name}", headers={"If-None-Match": '"other"'}).status_code == 200
    assert total < MOST_BYTES


def test_the_pages_of_settings_and_of_a_loop_load_little(client):
    client.post("/v1/loops", json={"name": "small"}).raise_for_status()
    decide(client, "small")
    paths = ("settings", "report", "state", "personal", "actions/report", "lift", "experiments")
    client.patch("/v1/loops/small/settings", json={"control": {"share": 0.2}}).raise_for_status()
    replies = {path: client.get(f"/v1/loops/small/{path}") for path in paths}
    assert {reply.status_code for reply in replies.values()} == {200}
    schema = client.get("/v1/settings/schema")
    assert len(schema.content) + len(replies["settings"].content) < 10_000
    assert sum(len(gzip.compress(reply.content)) for reply in replies.values()) < 20_000


def test_an_overview_that_has_not_changed_is_not_sent_again(client):
    first = client.get("/v1/state")
    assert first.status_code == 200
    report = client.get("/v1/report")
    same = client.get("/v1/report", headers={"If-None-Match": report.headers["etag"]})
    assert same.status_code == 304
    wrong = client.get("/v1/overview?state=best")
    assert (wrong.status_code, wrong.json()["error"]["target"]) == (422, "state")
    assert client.get("/v1/overview?limit=0").status_code == 422
    assert client.get("/v1/loops/nowhere/state").json()["error"]["code"] == "unknown_loop"


def test_the_schema_of_settings_describes_each_of_them(client):
    schema = client.get("/v1/settings/schema").json()
    settings = client.get("/v1/settings").json()["settings"]
    assert schema["properties"].keys() == settings.keys() - {"control"}
    assert schema["control"].keys() == settings["control"].keys() - {"hold", "by_loop"}
    described = [*schema["properties"].values(), *schema["control"].values()]
    assert all(one["description"] for one in described)
    assert schema["unused"]["optimistic-squarecb"] == ["epsilon"]
    assert "bits" in schema["ignored"]["residual-kalman"]


def test_a_caller_learns_its_role_and_loop(live_service, tmp_path):
    with live_service(tmp_path) as live:
        with live.client() as http:
            assert http.get("/v1/key").json() == {"id": "", "role": "admin", "loop": None, "expires": None}
        keys = {role: live.keys.add(role, "shop") for role in ROLES}
        for role, key in keys.items():
            with live.client(key) as http:
                shown = http.get("/v1/key")
            assert (shown.status_code, shown.json()["role"], shown.json()["loop"]) == (200, role, "shop")
            assert key not in shown.text
        for headers in ({}, {"Authorization": "Bearer fedres_wrong"}):
            refused = httpx.get(f"{live.url}/v1/key", headers=headers, trust_env=False)
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthenticated")


def test_rewards_are_shown_by_action_and_by_context(client):
    client.post("/v1/loops", json={"name": "tastes"}).raise_for_status()
    decide(client, "tastes", 80)
    shown = client.get("/v1/loops/tastes/actions/report").json()
    events = [line for line in client.get("/v1/loops/tastes/events").iter_lines() if line]
    assert sum(one["events"] for one in shown["actions"]) == len(events) == 80
    by_name = {one["action"]: one for one in shown["actions"]}
    assert by_name["tea"]["mean"] == 1.0
    assert sum(one["share_now"] for one in shown["actions"]) == pytest.approx(1, abs=1e-3)
    for segment in shown["segments"]:
        assert segment["feature"] == "segment"
        for row in segment["rows"]:
            assert sum(cell["share"] for cell in row["cells"]) == pytest.approx(1, abs=1e-3)

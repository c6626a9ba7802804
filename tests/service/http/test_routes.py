"""Every route does what it says, over real HTTP on a real engine."""

import asyncio
import gzip
import json
import re
from urllib.parse import quote

import httpx
import pytest
from waiting import LIMIT

from service.http.request import Limits

ACTIONS = [{"id": "a", "features": {"topic": "sport"}}, {"id": "b", "features": {"topic": "news"}}]


def ranked(client, path="/v1/rank", **fields):
    return client.post(path, json={"actions": ACTIONS, **fields})


def learn_a_little(live, client, loop):
    """Make a loop that has learned more than the events that it begins with.

    A loop of another test may wait for what the events without a reward turn out to be.
    """
    client.post("/v1/loops", json={"name": loop}).raise_for_status()
    for _ in range(20):
        event = ranked(client, f"/v1/loops/{loop}/rank").json()["event_id"]
        assert client.post(f"/v1/loops/{loop}/events/{event}/reward", json={"value": 1}).status_code == 204
    live.settle()


def test_a_decision_has_an_action_its_probability_and_all_scores(client):
    decision = ranked(client, user="u", context={"hour": 9}).json()
    assert decision.keys() == {"event_id", "action", "probability", "ranking", "model_version"}
    assert {place["id"] for place in decision["ranking"]} == {"a", "b"}
    chances = {place["id"]: place["probability"] for place in decision["ranking"]}
    assert chances[decision["action"]] == decision["probability"]
    assert sum(chances.values()) == pytest.approx(1)


def test_a_reply_repeats_the_id_of_its_request(client):
    for path, body in (("/v1/rank", {"actions": ACTIONS}), ("/v1/rank", {}), ("/v1/loops", {"name": "x", "no": 1})):
        reply = client.post(path, json=body, headers={"X-Request-Id": "mine"})
        assert reply.headers["x-request-id"] == "mine", path
    assert client.get("/v1/status", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    assert "x-request-id" not in client.get("/v1/status", headers={"X-Request-Id": "m" * 201}).headers
    assert "x-request-id" not in client.get("/v1/status").headers


def test_a_decision_is_explained_if_asked(live, client):
    learn_a_little(live, client, "explained")
    decision = ranked(client, "/v1/loops/explained/rank", explain=True).json()
    assert [why["id"] for why in decision["explanations"]] == ["a", "b"]
    assert decision["explanations"][0]["strongest"]
    assert decision["explanations"][0]["width"] > 0


def test_a_repeated_event_has_the_same_answer_and_another_request_with_its_id_is_refused(client):
    first, again = ranked(client, event_id="once"), ranked(client, event_id="once")
    assert first.json() == again.json()
    other = ranked(client, event_id="once", context={"hour": 1})
    assert (other.status_code, other.json()["error"]["code"]) == (409, "event_exists")


def test_a_batch_answers_or_refuses_each_request(client):
    requests = [{"actions": ACTIONS}, {"actions": ACTIONS, "exclude": ["a", "b"]}, {"actions": ACTIONS[:1]}]
    results = client.post("/v1/rank/batch", json={"requests": requests}).json()["results"]
    assert results[0]["action"] in ("a", "b")
    assert results[1]["error"]["target"] == "exclude"
    assert results[2]["action"] == "a"


def test_many_rewards_are_stored_by_one_call_and_each_may_be_refused(client):
    events = [ranked(client, defer=k == 1).json()["event_id"] for k in range(3)]
    first = {"event_id": events[0], "value": 1, "id": "click"}
    deferred = {"event_id": events[1], "activate": True, "value": 0.5}
    wrong = [{"event_id": events[2], "value": 9}, {"event_id": events[2]}, {"event_id": "a\0", "value": 1}]
    shown = {"event_id": events[2], "activate": True}
    sent = [first, first, *wrong, deferred, shown, {"event_id": "../x", "value": 0}]
    reply = client.post("/v1/events/rewards", json={"rewards": sent})
    codes = [result.get("event_id") or result["error"]["target"] for result in reply.json()["results"]]
    assert reply.status_code == 200
    assert codes == [events[0], events[0], "value", "value", "event_id", events[1], events[2], "../x"]
    rewards = {line["event_id"]: (line["reward"], line["status"]) for line in export(client)}
    assert [rewards[event] for event in events] == [(1.0, "rewarded"), (0.5, "rewarded"), (None, "waiting")]


def test_many_rewards_may_come_as_json_lines_and_an_error_names_its_line(client):
    event = ranked(client).json()["event_id"]
    lines = {"Content-Type": "application/x-ndjson"}
    body = f'{{"event_id": "{event}", "value": 1}}\n\n{{"event_id": "{event}", "value": 0, "id": "b"}}\n'
    reply = client.post("/v1/loops/default/events/rewards", content=body, headers=lines)
    assert (reply.status_code, reply.json()) == (200, {"results": [{"event_id": event}] * 2})
    broken = client.post("/v1/events/rewards", content=body + "{}", headers=lines)
    assert (broken.status_code, broken.json()["error"]["message"][:8]) == (422, "line 4: ")


def test_more_rewards_than_a_call_may_have_and_rewards_of_no_loop_are_refused(client):
    one = {"event_id": "a", "value": 1}
    many = client.post("/v1/events/rewards", json={"rewards": [one] * (Limits().rewards + 1)})
    assert (many.status_code, many.json()["error"]["code"]) == (422, "too_many_rewards")
    nowhere = client.post("/v1/loops/nowhere/events/rewards", json={"rewards": [one]})
    assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (404, "unknown_loop")


def test_an_event_may_have_the_name_of_a_route(client):
    ranked(client, event_id="rewards")
    assert client.post("/v1/events/rewards/reward", json={"value": 1}).status_code == 204
    assert client.post("/v1/events/rewards/activate").status_code == 204
    details = client.get("/v1/events/rewards")
    assert (details.status_code, details.json()["event"]["event_id"]) == (200, "rewards")
    assert client.put("/v1/events/rewards").headers["allow"] == "POST, OPTIONS"


def test_a_reward_is_taken_twice_and_exported_once(client):
    event = ranked(client).json()["event_id"]
    for _ in range(2):
        assert client.post(f"/v1/events/{event}/reward", json={"value": 1}).status_code == 204
    [line] = [line for line in export(client) if line["event_id"] == event]
    assert (line["reward"], line["status"]) == (1.0, "rewarded")


def export(client, path="/v1/events", **query):
    reply = client.get(path, params=query)
    assert reply.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in reply.text.splitlines()]


def test_an_export_can_be_read_in_parts(client):
    for _ in range(3):
        ranked(client)
    whole = export(client)
    first = export(client, limit=2)
    assert first == whole[:2]
    assert export(client, after=first[-1]["position"], limit=1) == whole[2:3]


def test_a_deferred_event_waits_for_its_activation(client):
    event = ranked(client, defer=True).json()["event_id"]
    assert [line["status"] for line in export(client) if line["event_id"] == event] == ["deferred"]
    assert client.post(f"/v1/events/{event}/activate").status_code == 204
    assert [line["status"] for line in export(client) if line["event_id"] == event] == ["waiting"]


@pytest.mark.parametrize("event_id", ["a/b", "..", "a b?c#d", "é\N{SNOWMAN}", "%2F", "x" * 200, "a%", "a+b&c=d;e"])
def test_any_text_can_be_the_id_of_an_event(client, event_id):
    assert ranked(client, event_id=event_id).json()["event_id"] == event_id
    path = f"/v1/events/{quote(event_id, safe='').replace('.', '%2E')}/reward"
    assert client.post(path, json={"value": 0.5}).status_code == 204
    assert [line["reward"] for line in export(client) if line["event_id"] == event_id] == [0.5]


def test_registered_actions_can_be_named_by_id_alone(client):
    assert client.put("/v1/actions", json={"put": ACTIONS}).status_code == 204
    assert client.get("/v1/actions").json() == {"actions": ACTIONS}
    named = client.post("/v1/rank", json={"actions": [{"id": "a"}, {"id": "b"}]})
    assert named.json()["action"] in ("a", "b")
    assert client.put("/v1/actions", json={"retire": ["a"]}).status_code == 204
    retired = client.post("/v1/rank", json={"actions": [{"id": "a"}], "event_id": "retired"})
    assert retired.json()["action"] == "a"
    [event] = [event for event in export(client) if event["event_id"] == "retired"]
    assert event["actions"] == [{"id": "a", "features": {}}]


def test_a_loop_is_made_used_changed_and_deleted(client):
    made = client.post("/v1/loops", json={"name": "shop", "settings": {"epsilon": 0.5}})
    assert (made.status_code, made.json()["settings"]["epsilon"]) == (201, 0.5)
    assert client.post("/v1/loops", json={"name": "shop"}).status_code == 409
    assert {"default", "shop"} <= {*client.get("/v1/loops").json()["loops"]}
    ranked(client, "/v1/loops/shop/rank", event_id="in the shop")
    changed = client.put("/v1/loops/shop/settings", json={"policy": "greedy"}).json()
    assert changed["version"] > made.json()["version"]
    assert client.get("/v1/loops/shop/settings").json() == changed
    assert [line["event_id"] for line in export(client, "/v1/loops/shop/events")] == ["in the shop"]
    assert client.delete("/v1/loops/shop").status_code == 204
    gone = ranked(client, "/v1/loops/shop/rank")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "unknown_loop")


def test_settings_have_a_version_and_a_change_that_names_an_older_one_is_refused(client):
    client.post("/v1/loops", json={"name": "versions"}).raise_for_status()
    path = "/v1/loops/versions/settings"
    shown = client.get(path)
    tag = shown.headers["etag"]
    assert tag == f'"{shown.json()["version"]}"'
    changed = client.patch(path, json={"gamma": 1}, headers={"If-Match": tag})
    assert changed.headers["etag"] == f'"{changed.json()["version"]}"' != tag
    for call in (client.put, client.patch):
        stale = call(path, json={"gamma": 2}, headers={"If-Match": tag})
        assert (stale.status_code, stale.json()["error"]["code"]) == (412, "settings_changed")
        odd = call(path, json={"gamma": 2}, headers={"If-Match": "17"})
        assert (odd.status_code, odd.json()["error"]["target"]) == (422, "If-Match")
    assert client.get(path).json() == changed.json()


def test_changes_of_settings_that_arrive_together_are_all_kept(live):
    changes = [{"floor": 0.03}, {"gamma": 7}, {"wait_time": 9}, {"control": {"share": 0.2}}, {"control": {"hold": "h"}}]

    async def change_all(path):
        async with httpx.AsyncClient(base_url=live.url, timeout=LIMIT, trust_env=False) as client:
            replies = await asyncio.gather(*[client.patch(path, json=change) for change in changes])
            assert {reply.status_code for reply in replies} == {200}
            return (await client.get(path)).json()["settings"]

    for k in range(5):
        live.make_loop(f"together-{k}")
        settings = asyncio.run(change_all(f"/v1/loops/together-{k}/settings"))
        assert (settings["floor"], settings["gamma"], settings["wait_time"]) == (0.03, 7, 9)
        assert (settings["control"]["share"], settings["control"]["hold"]) == (0.2, "h")


def test_a_loop_is_held_and_resumed_by_calls_of_their_own_and_keeps_its_control_group(client):
    control = {"share": 0.5, "experiment": "autumn"}
    client.post("/v1/loops", json={"name": "held", "settings": {"control": control}}).raise_for_status()
    path = "/v1/loops/held"
    before = client.get(f"{path}/settings").json()["settings"]["control"]
    began = client.get(f"{path}/lift").json()["began"]
    for _ in range(2):  # a repeat, as after a lost reply, changes nothing
        held = client.post(f"{path}/hold", json={"reason": "wrong prices"})
        assert (held.status_code, held.headers["etag"]) == (200, f'"{held.json()["version"]}"')
    assert held.json() == client.get(f"{path}/settings").json()
    assert held.json()["settings"]["control"] == {**before, "hold": "wrong prices"}
    assert ranked(client, f"{path}/rank", user="u").json()["arm"] == "held"
    assert client.get(f"{path}/lift").json()["held"]["reason"] == "wrong prices"
    stale = client.post(f"{path}/resume", headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["error"]["code"]) == (412, "settings_changed")
    for _ in range(2):
        resumed = client.post(f"{path}/resume")
        assert (resumed.status_code, resumed.json()["settings"]["control"]) == (200, before)
    lift = client.get(f"{path}/lift").json()
    assert (lift["began"], lift["held"]) == (began, None)
    [listed] = client.get(f"{path}/experiments").json()["experiments"]
    assert (listed["experiment"], listed["ended"]) == ("autumn", None)
    for body in ({}, {"reason": ""}, {"reason": "x" * 1_001}, {"reason": "a", "until": "noon"}):
        assert client.post(f"{path}/hold", json=body).status_code == 422


def test_settings_that_break_a_rule_are_refused_and_change_nothing(client):
    before = client.get("/v1/settings").json()
    for wrong in ({"epsilon": 2}, {"colour": "red"}, {"policy": "best"}, {"reward_range": [1, 0]}):
        refused = client.put("/v1/settings", json=wrong)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid_settings")
    assert client.get("/v1/settings").json() == before


def test_a_model_can_be_taken_out_and_put_back(client):
    model = client.get("/v1/model")
    assert model.headers["content-type"] == "application/octet-stream"
    binary = {"Content-Type": "application/octet-stream"}
    assert client.put("/v1/model", content=model.content, headers=binary).status_code == 204
    assert client.get("/v1/model").content == model.content
    other = bytes([model.content[-1] ^ 1])
    damaged = client.put("/v1/model", content=model.content[:-1] + other, headers=binary)
    assert (damaged.status_code, damaged.json()["error"]["code"]) == (422, "invalid_model")
    assert client.put("/v1/model", json={}).status_code == 415


def test_a_user_has_a_model_and_can_be_erased(live, client):
    learn_a_little(live, client, "personal")
    path = "/v1/loops/personal"
    event = ranked(client, f"{path}/rank", user="ann/é").json()["event_id"]
    client.post(f"{path}/events/{event}/reward", json={"value": 1})
    live.settle()
    model = client.get(f"{path}/users/ann%2F%C3%A9/model").json()
    assert model["user"] == "ann/é"
    assert (model["events"], len(model["blocks"])) == (1, 3)
    assert client.delete(f"{path}/users/ann%2F%C3%A9").status_code == 204
    assert client.get(f"{path}/users/ann%2F%C3%A9/model").status_code == 404
    assert event not in [line["event_id"] for line in export(client, f"{path}/events")]


def test_a_user_is_exported_and_erased_in_all_loops_or_in_one(client):
    for loop in ("one", "two"):
        client.post("/v1/loops", json={"name": loop})
        for user in ("bea", "carl"):
            ranked(client, f"/v1/loops/{loop}/rank", user=user, event_id=f"{loop} {user}")
    events = export(client, "/v1/users/bea/events")
    assert [(event["loop"], event["event_id"], event["user"]) for event in events] == [
        ("one", "one bea", "bea"),
        ("two", "two bea", "bea"),
    ]
    assert [event["event_id"] for event in export(client, "/v1/loops/two/users/bea/events")] == ["two bea"]
    assert client.delete("/v1/loops/one/users/bea").status_code == 204
    assert [event["event_id"] for event in export(client, "/v1/users/bea/events")] == ["two bea"]
    assert client.delete("/v1/users/bea").status_code == 204
    assert export(client, "/v1/users/bea/events") == []
    assert len(export(client, "/v1/users/carl/events")) == 2


@pytest.mark.parametrize(
    ("path", "name"),
    [("/v1/events?user=anna", "user"), ("/v1/status?loop", "loop"), ("/v1/events?after=0&Limit=2", "Limit")],
)
def test_a_query_parameter_that_is_not_known_is_refused(client, path, name):
    reply = client.get(path)
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "unknown_parameter")
    assert reply.json()["error"]["target"] == name
    reply = client.post("/v1/rank?explain=true", json={"actions": ACTIONS})
    assert (reply.status_code, reply.json()["error"]["target"]) == (422, "explain")
    assert client.get("/?anything=1").status_code == 200


def test_a_change_of_some_settings_leaves_the_others(client):
    client.post("/v1/loops", json={"name": "patched", "settings": {"model": "adagrad", "epsilon": 0.3, "bits": 10}})
    path = "/v1/loops/patched/settings"
    changed = client.patch(path, json={"wait_time": 5}).json()["settings"]
    assert (changed["epsilon"], changed["wait_time"], changed["bits"]) == (0.3, 5, 10)
    assert client.get(path).json()["settings"] == changed
    for body, status in (({"wait": 5}, 422), ({"epsilon": 2}, 422), ({"bits": 12}, 409)):
        assert client.patch(path, json=body).status_code == status
    assert client.get(path).json()["settings"] == changed


def test_an_action_may_come_without_features(client):
    client.post("/v1/loops", json={"name": "bare"})
    path = "/v1/loops/bare/rank"
    body = {"event_id": "e", "actions": [{"id": "a"}, {"id": "b"}], "explain": True}
    first = client.post(path, json=body)
    assert first.status_code == 200
    assert client.post(path, json={**body, "explain": False}).json()["action"] == first.json()["action"]
    client.put("/v1/loops/bare/actions", json={"put": [{"id": "a", "features": {"hot": True}}]})
    again = client.post(path, json=body)  # the same request, whatever the catalogue has by now
    assert (again.status_code, again.json()["action"]) == (200, first.json()["action"])
    other = client.post(path, json={**body, "actions": [{"id": "a", "features": {}}, {"id": "b"}]})
    assert other.status_code == 409
    [event] = export(client, "/v1/loops/bare/events")
    assert event["actions"] == [{"id": "a", "features": {}}, {"id": "b", "features": {}}]


def test_policies_are_valued_on_the_stored_events(client):
    client.post("/v1/loops", json={"name": "valued"})
    for _ in range(20):
        event = ranked(client, "/v1/loops/valued/rank").json()["event_id"]
        client.post(f"/v1/loops/valued/events/{event}/reward", json={"value": 1})
    report = client.post("/v1/loops/valued/evaluations", json={"policies": ["uniform"], "estimators": ["ips"]}).json()
    assert report["n"] == 20
    assert report["rows"][0]["value"] == 1.0
    assert (report["time_uniform"], report["reward_range"]) == (False, [0, 1])
    body = {"policies": ["uniform"], "estimators": ["ips"], "time_uniform": True}
    daily = client.post("/v1/loops/valued/evaluations", json=body).json()
    assert daily["time_uniform"]
    row, wider = report["rows"][0], daily["rows"][0]  # what was logged; the others depend on what was drawn
    assert wider["low"] < row["low"] <= row["value"] == wider["value"]
    client.patch("/v1/loops/valued/settings", json={"reward_range": [0, 5]}).raise_for_status()
    wide = client.post("/v1/loops/valued/evaluations", json=body).json()
    assert wide["reward_range"] == [0, 5]  # what a reward can be, not what was seen
    assert wide["rows"][0]["high"] > daily["rows"][0]["high"]
    unknown = client.post("/v1/loops/valued/evaluations", json={"policies": ["best"]})
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (422, "invalid_evaluation")


def test_late_and_unmatched_rewards_are_listed(client):
    assert client.post("/v1/loops", json={"name": "late", "settings": {"wait_time": 0.001}}).status_code == 201
    event = ranked(client, "/v1/loops/late/rank").json()["event_id"]
    client.get("/v1/loops/late/model")
    while export(client, "/v1/loops/late/events")[0]["status"] == "waiting":
        ranked(client, "/v1/loops/late/rank")
    assert client.post(f"/v1/loops/late/events/{event}/reward", json={"value": 1}).status_code == 204
    [late] = client.get("/v1/loops/late/rewards/unmatched").json()["rewards"]
    assert (late["event_id"], late["value"], late["status"]) == (event, 1.0, "late")
    assert late["time"] > export(client, "/v1/loops/late/events")[0]["time"]  # both are ISO 8601
    figures = client.get("/v1/status").json()["loops"]["late"]
    assert (figures["late_rewards"], figures["unmatched_rewards"]) == (1, 0)
    assert 'fedres_late_rewards_total{loop="late"} 1.0' in client.get("/metrics").text


def test_a_reward_whose_event_nobody_knows_is_listed_as_early_and_then_as_unmatched(client):
    client.post("/v1/loops", json={"name": "typo"})
    assert client.post("/v1/loops/typo/events/mistyped/reward", json={"value": 1}).status_code == 204
    client.get("/v1/loops/typo/model")  # returns once all is learned
    [early] = client.get("/v1/loops/typo/rewards/unmatched").json()["rewards"]
    assert (early["event_id"], early["value"], early["status"]) == ("mistyped", 1.0, "early")


def test_figures_for_prometheus_count_what_happened(client):
    ranked(client)
    client.get("/nowhere")
    text = client.get("/metrics").text
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(figures['fedres_requests_total{method="POST",path="/v1/rank",status="200"}']) >= 1
    assert float(figures['fedres_requests_total{method="any",path="unknown",status="404"}']) >= 1
    assert float(figures['fedres_request_seconds_count{path="/v1/rank"}']) >= 1
    for name in ("waiting_events", "reward_lag_seconds", "learner_lag_seconds", "model_version"):
        assert f'fedres_{name}{{loop="default"}}' in figures
    for name in ("policy_reward", "baseline_reward"):
        assert f'fedres_{name}{{loop="default"}}' in figures


def test_the_size_of_the_log_and_of_its_disk_are_in_the_status_and_for_prometheus(client):
    for k in range(30):
        assert client.post("/v1/rank", json={"event_id": f"size-{k}", "actions": [{"id": "a"}]}).status_code == 200
    log = client.get("/v1/status").json()["log"]
    assert 0 < log["disk_free_bytes"] < log["disk_bytes"]
    assert log["records"] >= 30
    assert log["bytes"] > 300 * log["records"] / 2
    assert 100 < log["bytes_per_event"] < log["bytes"]
    figures = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[0] != "#")
    assert float(figures["fedres_log_bytes"]) >= log["bytes"]
    assert float(figures["fedres_disk_bytes"]) == log["disk_bytes"]
    assert {"fedres_log_records", "fedres_log_bytes_per_event", "fedres_disk_free_bytes"} <= figures.keys()


def test_a_retention_shorter_than_the_wait_time_is_refused(client):
    reply = client.patch("/v1/settings", json={"retention": 599})
    assert reply.status_code == 422
    assert "retention must be in [600, 3.16224e+09], got 599.0" in reply.json()["error"]["message"]
    assert client.patch("/v1/settings", json={"retention": 86_400 * 30}).json()["settings"]["retention"] == 2_592_000
    assert client.patch("/v1/settings", json={"retention": None}).json()["settings"]["retention"] is None


def test_health_readiness_status_page_and_docs_answer(client):
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    assert client.get("/v1/status").json()["loops"]["default"]["model_version"] >= 0
    assert client.get("/").headers["content-type"].startswith("text/html")
    assert "openapi.json" in client.get("/docs").text


def test_no_reply_can_be_framed_or_guessed_at(client):
    replies = [
        *(client.get(path) for path in ("/", "/demo", "/docs", "/docs/swagger-ui.css", "/openapi.json", "/healthz")),
        *(client.get(path) for path in ("/v1/status", "/v1/events", "/nowhere", "/v1/events/x", "/personalizer/x/y")),
        ranked(client, "/v1/rank"),
        client.post("/v1/rank", json={}),
        client.post("/v1/events/x/activate"),
        client.options("/v1/rank"),
    ]
    for reply in replies:
        policies = reply.headers.get_list("content-security-policy")
        assert [("frame-ancestors 'none'" in policy) for policy in policies] == [True], reply.url
        assert reply.headers.get_list("x-content-type-options") == ["nosniff"], reply.url


def test_the_page_of_the_api_needs_no_other_host(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "://" not in page.text
    for path in re.findall(r'(?:src|href)="(docs/[^"]+)"', page.text):
        reply = client.get(f"/{path}")
        assert (reply.status_code, len(reply.content) > 100_000) == (200, True), path
        assert reply.headers["content-type"].split(";")[0] in ("text/javascript", "text/css")


def test_a_service_below_a_path_answers_with_and_without_it(start):
    with start(root_path="/shop/fedres") as live, live.client() as client:
        for root in ("", "/shop/fedres"):
            assert client.get(f"{root}/healthz").json() == {"status": "ok"}
            assert client.get(f"{root}/v1/settings").status_code == 200
            assert ranked(client, f"{root}/v1/rank").status_code == 200
            assert client.get(f"{root}/docs/swagger-ui.css").status_code == 200
        assert client.get("/shop/fedres").headers["content-type"].startswith("text/html")
        assert client.get("/shop/fedres2/healthz").status_code == 404
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/shop/fedres"}]


def test_head_is_get_without_a_body_and_options_lists_methods(client):
    head = client.head("/v1/model")
    assert (head.status_code, head.content) == (200, b"")
    assert int(head.headers["content-length"]) == len(client.get("/v1/model").content)
    options = client.options("/v1/model")
    assert (options.status_code, options.headers["allow"]) == (204, "GET, PUT, HEAD, OPTIONS")


def test_a_compressed_request_is_read(client):
    body = gzip.compress(json.dumps({"actions": ACTIONS}).encode())
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert client.post("/v1/rank", content=body, headers=headers).status_code == 200


def test_the_story_of_an_event_has_its_decision_its_records_and_why(client):
    request = {"event_id": "told", "user": "ann", "context": {"hour": 3}, "actions": [{"id": "x"}, {"id": "y"}]}
    result = client.post("/v1/rank", json={**request, "explain": True}).json()
    client.post("/v1/events/told/reward", json={"value": 0.5, "id": "click"}).raise_for_status()
    story = client.get("/v1/events/told").json()
    assert (story["event"]["action"], story["event"]["user"]) == (result["action"], "ann")
    assert (story["event"]["reward"], story["event"]["status"]) == (0.5, "rewarded")
    assert story["ranking"] == result["ranking"]
    assert [one["id"] for one in story["explanations"]] == ["x", "y"]
    assert [(one["kind"], one.get("value"), one.get("id")) for one in story["records"]] == [
        ("rank", None, None),
        ("reward", 0.5, "click"),
    ]
    decisions = client.get("/v1/users/ann/decisions").json()
    assert [one["event"]["event_id"] for one in decisions["decisions"]] == ["told"]
    assert client.get("/v1/users/nobody/decisions").json() == {"user": "nobody", "decisions": []}
    unknown = client.get("/v1/events/never")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "unknown_event")


def test_a_dashboard_below_a_path_finds_its_files_there(start):
    with start(root_path="/shop/fedres") as live, live.client() as client:
        page = client.get("/shop/fedres")
        assert "script-src 'self'" in page.headers["content-security-policy"]
        for path in re.findall(r'(?:src|href)="([^"]+dashboard[^"]+)"', page.text):
            assert path.startswith("/shop/fedres/")
            assert client.get(path).status_code == 200

"""Several slots of a page over real HTTP."""

import json

import forked
import pytest

from service.http.request import Limits

ACTIONS = [{"id": name, "features": {"kind": name}} for name in ("tea", "coffee", "juice")]
SLOTS = [{"id": "top", "features": {"size": 3}}, {"id": "side"}]


def filled(client, path="/v1/rank/slots", **fields):
    return client.post(path, json={"actions": ACTIONS, "slots": SLOTS, **fields})


def export(client, call, path="/v1/events"):
    lines = map(json.loads, client.get(path).text.splitlines())
    return [line for line in lines if line["event_id"].startswith(f"{call}~")]


def test_a_call_answers_with_a_decision_for_each_slot_and_no_action_twice(client):
    for _ in range(100):
        answer = filled(client, user="u", context={"hour": 9}).json()
        assert answer.keys() == {"event_id", "model_version", "slots"}
        assert [slot["id"] for slot in answer["slots"]] == ["top", "side"]
        first, second = answer["slots"]
        assert first.keys() == second.keys() == {"id", "event_id", "action", "probability", "ranking"}
        assert first["action"] != second["action"]
        assert second["event_id"] == f"{answer['event_id']}~2"
        chances = {place["id"]: place["probability"] for place in second["ranking"]}
        assert (chances[first["action"]], chances[second["action"]]) == (0, second["probability"])
        assert sum(chances.values()) == pytest.approx(1)


def test_every_slot_is_rewarded_activated_and_exported_as_its_own_event(client):
    events = [slot["event_id"] for slot in filled(client, event_id="page 1/2", defer=True).json()["slots"]]
    assert events == ["page 1/2~1", "page 1/2~2"]
    assert client.post("/v1/events/page%201%2F2~1/activate").status_code == 204
    assert client.post("/v1/events/page%201%2F2~1/reward", json={"value": 1}).status_code == 204
    first, second = export(client, "page 1/2")
    assert (first["status"], first["reward"], second["status"]) == ("rewarded", 1.0, "deferred")
    assert first["context"]["slot"] == {"id": "top", "_of": 2, "size": 3}
    assert [len(line["actions"]) for line in (first, second)] == [3, 2]


def test_an_export_is_valued_by_the_service_and_the_command_line_alike(client, tmp_path):
    client.post("/v1/loops", json={"name": "valued", "settings": {"policy": "epsilon-greedy", "epsilon": 1}})
    for k in range(30):
        for slot in filled(client, "/v1/loops/valued/rank/slots", event_id=f"e{k}").json()["slots"]:
            value = float(slot["action"] == "tea")
            client.post(f"/v1/loops/valued/events/{slot['event_id']}/reward", json={"value": value})
    body = {"policies": ["uniform"], "estimators": ["ips"]}
    inside = client.post("/v1/loops/valued/evaluations", json=body).json()
    (tmp_path / "events.jsonl").write_bytes(client.get("/v1/loops/valued/events").content)
    words = ["evaluate", "events.jsonl", "--policy", "uniform", "--estimator", "ips", "--json", "value.json"]
    done = forked.run([forked.FEDRES, *words], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "value.json").read_text()) | {"events_since": None} == inside
    logged, uniform = inside["rows"]
    assert uniform["value"] == pytest.approx(logged["value"])  # it is the policy that decided


def test_registered_actions_can_be_named_by_id_alone_in_any_loop(client):
    client.post("/v1/loops", json={"name": "shop"})
    assert client.put("/v1/loops/shop/actions", json={"put": ACTIONS}).status_code == 204
    by_id = [{"id": action["id"]} for action in ACTIONS]
    answer = filled(client, "/v1/loops/shop/rank/slots", actions=by_id, event_id="by id")
    assert answer.status_code == 200
    assert filled(client, "/v1/loops/shop/rank/slots", actions=by_id, event_id="by id").content == answer.content
    assert filled(client, actions=[*by_id, {"id": "milk"}]).status_code == 200  # an id is a feature


@pytest.mark.parametrize(
    ("fields", "status", "code", "target"),
    [
        ({"slots": []}, 422, "invalid_request", "slots"),
        ({"slots": None}, 422, "invalid_request", "slots"),
        ({"slots": [{"id": "x"}, {"id": "x"}]}, 422, "invalid", "slots"),
        ({"slots": [{"id": "x" * 201}]}, 422, "too_long", "slots[0].id"),
        ({"slots": [{"id": str(k)} for k in range(4)]}, 422, "invalid", "slots[3]"),
        ({"slots": [{"id": str(k)} for k in range(21)]}, 422, "too_many_slots", "slots"),
        (
            {"slots": [{"id": str(k)} for k in range(5)], "actions": [{"id": str(k)} for k in range(401)]},
            422,
            "too_many_slots",
            "slots",
        ),
        ({"slots": [{"id": "x", "exclude": ["a"] * 501}]}, 422, "too_many_excluded", "slots[0].exclude"),
        ({"actions": [{"id": str(k)} for k in range(501)]}, 422, "too_many_actions", "actions"),
        ({"event_id": "x" * 191}, 422, "too_long", "event_id"),
        ({"context": {"slot": "x"}}, 422, "invalid_features", "context"),
        ({"explain": True}, 422, "invalid_request", "body"),
    ],
)
def test_a_wrong_call_is_refused(client, fields, status, code, target):
    error = filled(client, **fields)
    assert (error.status_code, error.json()["error"]["code"]) == (status, code)
    assert error.json()["error"]["target"] == target


def test_calls_are_counted_by_their_path_and_by_their_decisions(start):
    with start() as live, live.client() as client:
        before = client.get("/metrics").text
        filled(client)
        live.settle()
        after = client.get("/metrics").text
    counted = 'fedres_requests_total{method="POST",path="/v1/rank/slots",status="200"}'
    assert figure(after, counted) == figure(before, counted) + 1  # of the process, whose tests have asked before
    assert figure(after, 'fedres_decisions_total{loop="default"}') == 2


def figure(text, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def test_a_key_that_asks_too_often_is_told_when_to_come_back(start):
    with start(limits=Limits(requests_per_second=0.01)) as live, live.client() as client:
        replies = [filled(client) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 429]
    assert int(replies[1].headers["retry-after"]) > 1

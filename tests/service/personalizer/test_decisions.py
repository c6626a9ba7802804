"""Rank, reward and activate: Azure's rules, one by one, over plain HTTP on all families of URLs."""

import json

import msgspec
import pytest

from service.admin.exporting import outcome
from service.learn.loop_state import rules_of
from service.plugins.personalizer import features

VERSIONS = ["/v1.0", "/v1.1-preview.1", "/v1.1-preview.2", "/v1.1-preview.3", ""]
MULTI_SLOT = {"name": "slots", "arguments": "--ccb_explore_adf --epsilon 0.2 --power_t 0 -l 0.001 --cb_type mtr -q ::"}
ACTIONS = [
    {"id": name, "features": [{"topic": name, "length": 35, "tags": [1, 0.5]}, {"age": {"mostWatched": "30-35"}}]}
    for name in ("news", "sport", "arts")
]
CONTEXT = [
    {"Features": {"day": "tuesday"}},
    {"Features": {"hours": 0.12, "paying": True}},
    {"device": {"mobile": True}},
]


def rank_body(**changes):
    return {"actions": ACTIONS, "contextFeatures": CONTEXT, **changes}


def rank(http, loop, version="/v1.0", **changes):
    return http.post(f"{loop}/personalizer{version}/rank", json=rank_body(**changes))


def refused(reply, code, status=400):
    assert (reply.status_code, reply.headers["x-ms-error-code"]) == (status, code), reply.text
    error = reply.json()["error"]
    assert error["code"] == code
    assert set(error) == {"code", "message", "target", "details", "innerError"}
    return error["message"]


@pytest.mark.parametrize("version", VERSIONS)
def test_rank_reward_and_activate_answer_as_azure_does(http, version):
    query = {} if version else {"api-version": "2022-09-01-preview"}
    base = f"/personalizer{version}"
    reply = http.post(f"{base}/rank", json=rank_body(eventId=f"e{version}"), params=query)
    assert reply.status_code == 201
    body = reply.json()
    assert set(body) == {"ranking", "eventId", "rewardActionId"}
    assert body["eventId"] == f"e{version}"
    assert {one["id"] for one in body["ranking"]} == {"news", "sport", "arts"}
    assert body["ranking"][0]["id"] == body["rewardActionId"]
    assert sum(one["probability"] for one in body["ranking"]) == pytest.approx(1)
    for call, sent in (("reward", {"value": 0.5}), ("activate", None)):
        path = f"{base}/events/e{version.replace('/', '%2F')}/{call}"
        done = http.post(path, params=query, **({"json": sent} if sent else {}))
        assert (done.status_code, done.content) == (204, b"")


def test_the_key_is_azures_header_and_must_be_there(live, http):
    path, key = "/personalizer/v1.0/rank", live.keys.add("rank")
    with live.client() as plain:
        assert "subscription" in refused(plain.post(path, json=rank_body()), "401", 401).lower()
        wrong = plain.post(path, json=rank_body(), headers={"Ocp-Apim-Subscription-Key": key + "x"})
        assert refused(wrong, "401", 401)
        header = {"Ocp-Apim-Subscription-Key": key}
        assert plain.post(path, json=rank_body(), headers=header).status_code == 201
        assert refused(
            plain.get("/personalizer/v1.0/configurations/policy", headers=header), "OperationNotAllowed", 403
        )
        assert plain.post("/v1/rank", json={"actions": [{"id": "a"}]}, headers=header).status_code == 401
    assert refused(http.get("/personalizer/v1.0/nothing"), "ResourceNotFound", 404)
    assert refused(http.get("/personalizer/v9/configurations/policy"), "ResourceNotFound", 404)
    assert refused(http.get("/personalizer/v1.0/rank"), "OperationNotAllowed", 405)
    assert refused(http.post("/personalizer/rank?api-version=1999-01-01", json=rank_body()), "BadRequest")


def test_a_key_for_one_loop_says_which_loop_is_meant(live, http, loop):
    name = loop.removeprefix("/loops/")
    with live.client() as client:
        client.headers["Ocp-Apim-Subscription-Key"] = live.keys.add("rank", name)
        assert client.post("/personalizer/v1.0/rank", json=rank_body(eventId="mine")).status_code == 201
        assert refused(client.post("/loops/other/personalizer/v1.0/rank", json=rank_body()), "OperationNotAllowed", 403)
    assert set(events(http, live, loop)) == {"mine"}


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": []},
        {"actions": None},
        {"actions": [{"id": f"a{k}", "features": []} for k in range(51)]},
        {"actions": [{"id": "a"}]},
        {"actions": [{"features": []}]},
        {"actions": [{"id": "", "features": []}]},
        {"actions": [{"id": "x" * 257, "features": []}]},
        {"actions": [{"id": "a", "features": []}, {"id": "a", "features": []}]},
        {"actions": [{"id": "a", "features": [{"tags": ["x", "y"]}]}]},
        {"contextFeatures": [{"user": {"tags": [1, "x"]}}]},
        {"contextFeatures": [{"user": {"tags": [{"x": 1}]}}]},
        {"contextFeatures": ["x"]},
        {"contextFeatures": {"x": 1}},
        {"excludedActions": ["news", "sport", "arts"]},
        {"eventId": ""},
        {"eventId": "x" * 257},
        {"eventId": 5},
        {"deferActivation": "yes"},
    ],
)
def test_a_wrong_rank_request_is_refused(http, changes):
    refused(http.post("/personalizer/v1.0/rank", json=rank_body(**changes)), "InvalidRankRequest")


def test_strings_of_one_name_are_gathered_without_copying_them_each_time():
    strings = [{"tag": f"t{k}", "in": {"tag": f"t{k}"}} for k in range(features.MOST_DICTIONARIES)]
    merged = msgspec.json.decode(features.merged("contextFeatures", strings, ()))
    names = [f"t{k}" for k in range(features.MOST_DICTIONARIES)]
    assert merged == {"tag": names, "in": {"tag": names}}
    into = {"tag": ["a", "b"]}
    gathered = into["tag"]
    features._put(into, "tag", "c")
    assert into["tag"] is gathered == ["a", "b", "c"]


def test_more_objects_than_features_are_refused_before_they_are_merged(http):
    many = [{"tag": "x"}] * (features.MOST_DICTIONARIES + 1)
    for changes in ({"contextFeatures": many}, {"actions": [{"id": "a", "features": many}]}):
        error = refused(http.post("/personalizer/v1.0/rank", json=rank_body(**changes)), "InvalidRankRequest")
        assert "at most 1000 objects, got 1001" in str(error)


def test_what_is_no_json_is_refused(http):
    headers = {"Content-Type": "application/json"}
    refused(http.post("/personalizer/v1.0/rank", content=b"{", headers=headers), "InvalidRankRequest")
    refused(
        http.post("/personalizer/v1.0/rank", content=b"{}", headers={"Content-Type": "text/plain"}), "BadRequest", 415
    )
    refused(http.post("/personalizer/v1.0/rank", content=b" " * 2_000_000, headers=headers), "PayloadSizeExceeded", 413)


@pytest.mark.parametrize(
    "changes",
    [
        {"actions": [{"id": f"a{k}", "features": []} for k in range(50)]},
        {"actions": [{"id": "x" * 256, "features": []}, {"id": "x" * 255 + "y", "features": []}]},
        {"eventId": None},
        {"eventId": "x" * 256},
        {"eventId": "a/b?c#d é 漢字 🙂"},
        {"contextFeatures": None, "excludedActions": None, "deferActivation": None},
        {"contextFeatures": [{"_hidden": ["anything", {}], "user": {"_secret": ["x"], "_": 1}}]},
        {"unknown": {"x": [1, "y"]}, "userId": "anna"},
        {"contextFeatures": [{"slot": {"id": 5}}, {"user": None}, {"user": "x"}, {"user": "y"}, {"user": "z"}]},
    ],
)
def test_what_azure_takes_is_taken(http, changes):
    reply = http.post("/personalizer/v1.0/rank", json=rank_body(**changes))
    assert reply.status_code == 201, reply.text
    event_id = reply.json()["eventId"]
    assert event_id == (changes.get("eventId") or event_id)
    ids = [action["id"] for action in changes.get("actions") or ACTIONS]
    assert sorted(one["id"] for one in reply.json()["ranking"]) == sorted(ids)


def test_excluded_actions_keep_their_place_and_the_others_fill_the_rest_the_chosen_first(http, loop):
    for k in range(20):
        body = rank(http, loop, eventId=f"e{k}", excludedActions=["sport", "unknown"]).json()
        first, second, third = body["ranking"]
        assert second == {"id": "sport", "probability": 0.0}
        assert first["id"] == body["rewardActionId"]
        assert {first["id"], third["id"]} == {"news", "arts"}
        assert first["probability"] + third["probability"] == pytest.approx(1)
    alone = rank(http, loop, excludedActions=["news", "arts"]).json()
    assert alone["rewardActionId"] == "sport"
    assert [one["probability"] for one in alone["ranking"]] == [0, 1, 0]


def test_the_event_id_seeds_the_draw_and_ids_may_come_again(http, loop):
    first = rank(http, loop, eventId="seed").json()
    assert rank(http, loop, eventId="seed").json() == first
    other = rank(http, loop, eventId="seed", excludedActions=[first["rewardActionId"]])
    assert other.status_code == 201
    assert other.json()["eventId"] == "seed"
    assert other.json()["rewardActionId"] != first["rewardActionId"]


@pytest.mark.parametrize("value", [-1.01, 1.01, "1", None, True, {}])
def test_a_wrong_reward_is_refused(http, value):
    refused(http.post("/personalizer/v1.0/events/e/reward", json={"value": value}), "InvalidRewardRequest")


def test_rewards_and_activations_of_unknown_events_come_to_nothing(http):
    assert http.delete("/personalizer/v1.0/configurations/policy").status_code == 200  # rewards in [-1, 1]
    for event in ("nobody", "x" * 256, "a%2Fb", "%E6%BC%A2"):
        for value in (-1, 0, 1, 0.25):
            reply = http.post(f"/personalizer/v1.0/events/{event}/reward", json={"value": value, "unknown": 1})
            assert reply.status_code == 204, reply.text
        assert http.post(f"/personalizer/v1.0/events/{event}/activate").status_code == 204
        for call, sent in (("reward", {"json": {"reward": [{"slotId": "s", "value": 1}]}}), ("activate", {})):
            assert http.post(f"/personalizer/v1.1-preview.3/multislot/events/{event}/{call}", **sent).status_code == 204
    refused(http.post(f"/personalizer/v1.0/events/{'x' * 257}/reward", json={"value": 1}), "InvalidRewardRequest")


def events(http, live, loop):
    """Return what is logged, by event."""
    name = loop.removeprefix("/loops/")
    live.settle(name)
    text = http.get(f"/v1/loops/{name}/events", headers={"Authorization": f"Bearer {live.key}"}).text
    return {one["event_id"]: one for one in map(json.loads, text.splitlines())}


def test_rewards_reach_their_events(http, live, azure_loop):
    loop = azure_loop
    for name in ("plain", "a/b 漢", "x" * 256, "deferred", "activated"):
        assert rank(http, loop, eventId=name, deferActivation=name in ("deferred", "activated")).status_code == 201
    for name in ("plain", "a/b%20%E6%BC%A2", "x" * 256, "deferred", "activated"):
        path = f"{loop}/personalizer/events/{name}/reward"
        assert http.post(path, json={"value": -0.5}).status_code == 204
    assert http.post(f"{loop}/personalizer/events/activated/activate").status_code == 204
    outcomes = {name[:9]: (one["status"], one["reward"]) for name, one in events(http, live, loop).items()}
    expected = dict.fromkeys(("plain", "a/b 漢", "x" * 9, "activated"), ("rewarded", -0.5))
    assert outcomes == {**expected, "deferred": ("deferred", None)}


def put_configuration(http, loop, **changes):
    path = f"{loop}/personalizer/v1.0/configurations/service"
    reply = http.put(path, json={**http.get(path).json(), **changes})
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(("aggregation", "reward"), [("earliest", 1.0), ("sum", 2.5), ("average", 2.5 / 3)])
def test_rewards_are_aggregated_until_the_wait_is_over(http, live, loop, aggregation, reward):
    put_configuration(http, loop, rewardAggregation=aggregation, rewardWaitTime="PT5S")
    assert rank(http, loop, eventId="e").status_code == 201
    for value in (1.0, 1.0, 0.5):
        assert http.post(f"{loop}/personalizer/v1.0/events/e/reward", json={"value": value}).status_code == 204
    entries = live.run(lambda: live.engine.log.find(loop.removeprefix("/loops/"), ["e"]))
    rules = rules_of(live.run(live.engine.view, loop.removeprefix("/loops/")).settings)
    assert rules.from_rank
    assert outcome(entries, rules, entries[0].time + 5_000_000) == ("rewarded", pytest.approx(reward), {})


def test_an_apprentice_answers_with_the_first_action(http, loop):
    put_configuration(http, loop, learningMode="Apprentice", explorationPercentage=1.0)
    for k in range(10):
        assert rank(http, loop, eventId=f"e{k}").json()["rewardActionId"] == "news"
        assert rank(http, loop, eventId=f"x{k}", excludedActions=["news"]).json()["rewardActionId"] == "sport"


def test_the_exploration_percentage_is_the_share_of_uniform_draws(http, live, loop):
    for k in range(20):  # more than a loop begins with
        assert rank(http, loop, eventId=f"good {k}", excludedActions=["news", "arts"]).status_code == 201
        reply = http.post(f"{loop}/personalizer/v1.0/events/good%20{k}/reward", json={"value": 1})
        assert reply.status_code == 204
    live.settle(loop.removeprefix("/loops/"))
    for share in (0.0, 0.3, 1.0):
        put_configuration(http, loop, explorationPercentage=share)
        for k in range(5):
            probabilities = sorted(
                one["probability"] for one in rank(http, loop, eventId=f"{share} {k}").json()["ranking"]
            )
            assert probabilities == pytest.approx([share / 3, share / 3, 1 - share + share / 3])


# several slots


def slots(*names, exclude=()):
    baselines = ("news", "sport", "arts")
    return [
        {"id": name, "baselineAction": baseline, "features": [{"size": "large"}], "excludedActions": list(exclude)}
        for name, baseline in zip(names, baselines, strict=False)
    ]


def rank_slots(http, loop, version="/v1.1-preview.3", **changes):
    body = rank_body(slots=slots("top", "side"), **changes) if "slots" not in changes else rank_body(**changes)
    return http.post(f"{loop}/personalizer{version}/multislot/rank", json=body)


def use_slots(http, loop):
    assert http.put(f"{loop}/personalizer/v1.1-preview.3/configurations/policy", json=MULTI_SLOT).status_code == 200


@pytest.mark.parametrize("version", VERSIONS)
def test_slots_are_filled_with_different_actions(http, live, loop, version):
    use_slots(http, loop)
    reply = rank_slots(http, loop, version, eventId="é/e")
    assert reply.status_code == 201, reply.text
    body = reply.json()
    assert set(body) == {"slots", "eventId"}
    assert body["eventId"] == "é/e"
    assert [slot["id"] for slot in body["slots"]] == ["top", "side"]
    assert len({slot["rewardActionId"] for slot in body["slots"]}) == 2
    assert rank_slots(http, loop, version, eventId="é/e").json() == body
    assert rank_slots(http, loop, version, eventId="é/e", contextFeatures=[]).status_code == 201
    sent = {"reward": [{"slotId": "side", "value": -1.0}, {"slotId": "nowhere", "value": 1}]}
    path = f"{loop}/personalizer{version}/multislot/events/%C3%A9%2Fe"
    assert http.post(f"{path}/reward", json=sent).status_code == 204
    assert http.post(f"{path}/activate").status_code == 204
    outcomes = {name: (one["status"], one["reward"]) for name, one in events(http, live, loop).items()}
    assert outcomes == {"é/e~1": ("waiting", None), "é/e~2": ("rewarded", -1.0)}


def test_deferred_slots_are_activated_together(http, live, loop):
    use_slots(http, loop)
    assert rank_slots(http, loop, eventId="e", deferActivation=True).status_code == 201
    assert {one["status"] for one in events(http, live, loop).values()} == {"deferred"}
    assert http.post(f"{loop}/personalizer/v1.1-preview.3/multislot/events/e/activate").status_code == 204
    assert {one["status"] for one in events(http, live, loop).values()} == {"waiting"}


def test_the_policy_switches_slots_on_and_off(http, loop):
    refused(rank_slots(http, loop), "InvalidMultiSlotApiAccess")
    use_slots(http, loop)
    assert rank_slots(http, loop).status_code == 201
    refused(rank(http, loop), "InvalidApiAccess")
    assert http.delete(f"{loop}/personalizer/v1.1-preview.3/configurations/policy").status_code == 200
    assert rank(http, loop).status_code == 201
    refused(rank_slots(http, loop), "InvalidMultiSlotApiAccess")


@pytest.mark.parametrize(
    "changes",
    [
        {"slots": []},
        {"slots": None},
        {"slots": [{"id": "top"}]},
        {"slots": [*slots("top"), *slots("top")]},
        {"slots": [{"id": "top", "baselineAction": "unknown"}]},
        {"slots": [{"id": "top", "baselineAction": "news", "excludedActions": ["news"]}]},
        {"slots": [{"id": "a", "baselineAction": "news"}, {"id": "b", "baselineAction": "news"}]},
        {"slots": [{"id": f"s{k}", "baselineAction": "news"} for k in range(4)]},
        {"eventId": ""},
    ],
)
def test_wrong_slots_are_refused(http, loop, changes):
    use_slots(http, loop)
    refused(rank_slots(http, loop, **changes), "InvalidRankRequest")


def test_an_apprentice_fills_slots_with_their_baselines(http, loop):
    use_slots(http, loop)
    put_configuration(http, loop, learningMode="Apprentice")
    named = [{"id": "a", "baselineAction": "arts"}, {"id": "b", "baselineAction": "sport"}]
    body = rank_slots(http, loop, slots=named).json()
    assert [slot["rewardActionId"] for slot in body["slots"]] == ["arts", "sport"]

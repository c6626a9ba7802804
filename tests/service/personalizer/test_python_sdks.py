"""Microsoft's own Python SDKs against a running service: only the endpoint and the key are ours."""

import io

import pytest
from azure.ai.personalizer import PersonalizerAdministrationClient, PersonalizerClient
from azure.cognitiveservices.personalizer import PersonalizerClient as OldClient
from azure.cognitiveservices.personalizer.models import (
    ErrorResponseException,
    RankableAction,
    RankRequest,
)
from azure.core.credentials import AzureKeyCredential
from azure.core.exceptions import HttpResponseError
from msrest.authentication import CognitiveServicesCredentials

ACTIONS = [
    {"id": "Video1", "features": [{"videoType": "documentary", "videoLength": 35}, {"mostWatchedByAge": "30-35"}]},
    {"id": "Video2", "features": [{"videoType": "documentary", "videoLength": 35}, {"mostWatchedByAge": "40-45"}]},
]
CONTEXT = [
    {"currentContext": {"day": "tuesday", "weather": "rainy"}},
    {"userContext": {"payingUser": True, "hours": 0.12}},
]
SLOTS = [
    {"id": "Main Article", "baselineAction": "Video1", "positionFeatures": [{"Size": "Large"}]},
    {"id": "Side Bar", "baselineAction": "Video2", "features": [{"Size": "Small"}], "excludedActions": ["Video1"]},
]


@pytest.fixture
def endpoint(live, loop):
    return f"{live.url}{loop}"


@pytest.fixture
def client(endpoint, live):
    with PersonalizerClient(endpoint, AzureKeyCredential(live.key)) as made:
        yield made


@pytest.fixture
def admin(endpoint, live):
    with PersonalizerAdministrationClient(endpoint, AzureKeyCredential(live.key)) as made:
        yield made


def test_the_old_sdk_ranks_rewards_and_activates(live):
    client = OldClient(live.url, CognitiveServicesCredentials(live.key))
    actions = [RankableAction(id=action["id"], features=action["features"]) for action in ACTIONS]
    request = RankRequest(actions=actions, context_features=CONTEXT, excluded_actions=["Video1"], event_id="a/b é")
    answer = client.rank(request)
    assert [(one.id, one.probability) for one in answer.ranking] == [("Video1", 0.0), ("Video2", 1.0)]
    assert (answer.event_id, answer.reward_action_id) == ("a/b é", "Video2")
    assert client.events.reward("a/b é", 0.5) is None
    assert client.events.activate("a/b é") is None
    with pytest.raises(ErrorResponseException) as caught:
        client.rank(RankRequest(actions=[]))
    assert caught.value.error.error.code == "InvalidRankRequest"


def test_the_new_sdk_ranks_rewards_and_activates(client):
    answer = client.rank(
        {"actions": ACTIONS, "contextFeatures": CONTEXT, "excludedActions": ["Video1"], "eventId": "123"}
    )
    assert answer["ranking"] == [{"id": "Video1", "probability": 0.0}, {"id": "Video2", "probability": 1.0}]
    assert (answer["eventId"], answer["rewardActionId"]) == ("123", "Video2")
    assert client.rank({"actions": ACTIONS, "eventId": "123"})["eventId"] == "123"
    assert client.reward("123", {"value": 1.0}) is None
    assert client.activate("123") is None
    with pytest.raises(HttpResponseError) as caught:
        client.rank_multi_slot({"actions": ACTIONS, "slots": SLOTS})
    assert (caught.value.status_code, caught.value.error.code) == (400, "InvalidMultiSlotApiAccess")


def test_the_new_sdk_switches_slots_on_and_uses_them(client, admin):
    policy = admin.get_policy()
    arguments = policy["arguments"].replace("--cb_explore_adf", "--ccb_explore_adf")
    assert admin.update_policy({"name": "enable multi slot", "arguments": arguments})["arguments"] == arguments
    answer = client.rank_multi_slot({"actions": ACTIONS, "slots": SLOTS, "contextFeatures": CONTEXT, "eventId": "456"})
    assert answer["eventId"] == "456"
    assert [slot["id"] for slot in answer["slots"]] == ["Main Article", "Side Bar"]
    assert answer["slots"][1]["rewardActionId"] == "Video2"
    assert client.reward_multi_slot("456", {"reward": [{"slotId": "Main Article", "value": 1.0}]}) is None
    assert client.activate_multi_slot("456") is None
    assert admin.reset_policy()["arguments"] == policy["arguments"]


def test_the_new_sdk_configures_a_loop(admin):
    configuration = {**admin.get_service_configuration(), "rewardWaitTime": "PT4H", "rewardAggregation": "sum"}
    assert admin.update_service_configuration(configuration)["rewardWaitTime"] == "PT4H"
    assert admin.get_service_configuration()["rewardAggregation"] == "sum"
    with pytest.raises(HttpResponseError) as caught:
        admin.update_service_configuration({**configuration, "rewardWaitTime": "PT1S"})
    assert caught.value.error.code == "InvalidRewardWaitTime"


def test_a_wrong_key_is_unauthorised(live):
    with (
        PersonalizerClient(live.url, AzureKeyCredential("wrong")) as client,
        pytest.raises(HttpResponseError) as caught,
    ):
        client.rank({"actions": ACTIONS})
    assert caught.value.status_code == 401


def test_the_new_sdk_exports_imports_and_resets_a_model(admin):
    model = b"".join(admin.export_model(signed=True))
    assert admin.reset_model() is None
    assert admin.import_model(io.BytesIO(model)) is None
    assert b"".join(admin.export_model()) == model
    assert set(admin.get_model_properties()) == {"creationTime", "lastModifiedTime"}
    with pytest.raises(HttpResponseError) as caught:
        admin.import_model(io.BytesIO(b"rubbish"))
    assert caught.value.error.code == "InvalidModelImportFormat"


def test_the_new_sdk_evaluates_and_rates_features(live, client, admin, loop):
    for k in range(12):
        client.rank({"actions": ACTIONS, "contextFeatures": CONTEXT, "eventId": str(k)})
        client.reward(str(k), {"value": 1.0})
    live.settle(loop.removeprefix("/loops/"))
    assert set(admin.get_log_properties()["dateRange"]) == {"from", "to"}
    start, end = "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"
    job = {"name": "sdk", "startTime": start, "endTime": end}
    assert admin.create_evaluation("e", {**job, "enablePolicyOptimization": True, "policies": []}) is None
    assert admin.create_feature_importance("f", job) is None
    times = {"start_time": start, "end_time": end}
    evaluated = once_done(live, loop, lambda: admin.get_evaluation("e", **times))
    assert (evaluated["name"], evaluated["evaluationType"]) == ("sdk", "Manual")
    assert evaluated["content"]["value"][0]["summary"]["expectedReward"] == 1.0
    rated = once_done(live, loop, lambda: admin.get_feature_importance("f"))
    assert rated["featureScores"]
    assert [one["id"] for one in admin.list_evaluations(top=5)] == ["e"]
    assert [one["id"] for one in admin.list_feature_importances()] == ["f"]
    best = {"evaluationId": "e", "policyName": "Hyper0.1"}
    assert admin.apply_from_evaluation(best) is None
    assert "--epsilon 0.1 " in admin.get_policy()["arguments"]
    assert admin.delete_evaluation("e") is None
    assert admin.delete_feature_importance("f") is None
    assert admin.delete_logs() is None
    assert admin.get_log_properties() == {}


def once_done(live, loop, get):
    for _ in range(600):
        job = get()
        if job["status"] != "Running":
            assert job["status"] == "Succeeded", job
            return job
        live.settle(loop.removeprefix("/loops/"))
    raise AssertionError(job)

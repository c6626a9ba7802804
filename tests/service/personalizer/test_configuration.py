"""The service configuration and the policy: Azure's fields, limits and codes."""

import pytest

from service.settings import Settings

DEFAULT = "--cb_explore_adf --epsilon 0.2 --power_t 0 -l 0.001 --cb_type mtr -q ::"
OF_THE_RECORDINGS = (
    "--cb_explore_adf --quadratic GT --quadratic MR --quadratic GR --quadratic ME --quadratic OT --quadratic OE"
    " --quadratic OR --quadratic MS --quadratic GX --ignore A --cb_type ips --epsilon 0.2"
)
OF_THE_SPECIFICATION = "--cb_explore_adf --epsilon 0.2 --dsjson --cb_type ips -l 0.5 --l1 1E-07 --power_t 0.5"
WANTED = {
    "rewardAggregation": "average",
    "modelExportFrequency": "PT3M",
    "defaultReward": 1.0,
    "modelRetrainDays": 2,
    "rewardWaitTime": "PT4H",
    "explorationPercentage": 0.3,
    "logRetentionDays": -1,
    "learningMode": "Online",
}


@pytest.fixture(params=["/v1.0", "/v1.1-preview.1", "/v1.1-preview.2", "/v1.1-preview.3", ""])
def base(loop, request):
    return f"{loop}/personalizer{request.param}/configurations"


def native(live, loop):
    return live.run(live.engine.view, loop.removeprefix("/loops/")).settings


def refused(reply, code):
    assert (reply.status_code, reply.headers["x-ms-error-code"]) == (400, code), reply.text
    assert reply.json()["error"]["code"] == code


def test_a_configuration_is_kept_and_in_force(http, live, loop, base):
    before = http.get(f"{base}/service").json()
    assert (before["rewardWaitTime"], before["rewardAggregation"]) == ("PT10M", "earliest")
    assert (before["explorationPercentage"], before["defaultReward"]) == (0.2, 0.0)
    changed = http.put(f"{base}/service", json=WANTED)
    assert changed.status_code == 200
    assert changed.json().items() >= WANTED.items()
    assert changed.json()["lastConfigurationEditDate"].endswith("Z")
    assert http.get(f"{base}/service").json() == changed.json()
    settings = native(live, loop)
    assert (settings.wait_time, settings.default_reward, settings.aggregation) == (14_400, 1.0, "average")
    assert (settings.policy, settings.epsilon) == ("epsilon-greedy", 0.3)
    assert http.get(f"{base}/policy").json()["arguments"] == DEFAULT.replace("0.2", "0.3")


def test_the_days_that_logs_are_kept_are_the_retention_of_the_loop(http, live, loop):
    path, name = f"{loop}/personalizer/configurations/service", loop.rpartition("/")[2]
    assert http.get(path).json()["logRetentionDays"] == 90
    assert live.run(live.engine.settings, name)[1].retention is None, "what nobody has sent removes nothing"
    for days, seconds in ((30, 30 * 86_400.0), (-1, None)):
        assert http.put(path, json={**WANTED, "logRetentionDays": days}).status_code == 200
        assert live.run(live.engine.settings, name)[1].retention == seconds


def test_fields_without_a_counterpart_are_kept_and_those_that_are_missing_stay(http, loop):
    path = f"{loop}/personalizer/configurations/service"
    extra = {
        "isAutoOptimizationEnabled": True,
        "autoOptimizationFrequency": "P27D",
        "autoOptimizationStartDate": "2022-09-01T21:02:42Z",
        "logMirrorEnabled": True,
        "logMirrorSasUri": "https://example.org/container?sig=x",
        "isInferenceExplainabilityEnabled": True,
    }
    assert http.put(path, json={**WANTED, **extra, "unknown": 1}).status_code == 200
    assert http.put(path, json={**WANTED, "logRetentionDays": 2**31 - 1}).json().items() >= extra.items()


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"rewardWaitTime": "PT4.9S"}, "InvalidRewardWaitTime"),
        ({"rewardWaitTime": "ten minutes"}, "InvalidRewardWaitTime"),
        ({"rewardWaitTime": "P2Y"}, "InvalidRewardWaitTime"),
        ({"rewardWaitTime": None}, "InvalidServiceConfiguration"),
        ({"defaultReward": 1.1}, "InvalidServiceConfiguration"),
        ({"defaultReward": -1.1}, "InvalidServiceConfiguration"),
        ({"rewardAggregation": "median"}, "InvalidServiceConfiguration"),
        ({"explorationPercentage": -0.01}, "InvalidServiceConfiguration"),
        ({"explorationPercentage": 1.01}, "InvalidServiceConfiguration"),
        ({"modelExportFrequency": "5"}, "InvalidServiceConfiguration"),
        ({"logRetentionDays": -2}, "InvalidServiceConfiguration"),
        ({"logRetentionDays": 1}, "InvalidLogRetentionDays"),
        ({"logRetentionDays": 7, "modelRetrainDays": 8}, "InvalidModelRetrainDays"),
        ({"modelRetrainDays": -1}, "InvalidServiceConfiguration"),
        ({"learningMode": "Offline"}, "InvalidServiceConfiguration"),
        ({"learningMode": "Apprentice"}, "InvalidLearningModeServiceConfiguration"),
        ({"autoOptimizationFrequency": "x"}, "InvalidServiceConfiguration"),
        ({"autoOptimizationStartDate": "x"}, "InvalidServiceConfiguration"),
    ],
)
def test_a_wrong_configuration_is_refused(http, loop, changes, code):
    path = f"{loop}/personalizer/configurations/service"
    before = http.get(path).json()
    refused(http.put(path, json={**WANTED, **changes}), code)
    assert http.get(path).json() == before


def test_durations_may_be_written_as_the_examples_of_v1_write_them(http, live, loop):
    path = f"{loop}/personalizer/v1.0/configurations/service"
    sent = {**WANTED, "rewardWaitTime": "00:10:00", "modelExportFrequency": "00:05:00"}
    stored = http.put(path, json=sent).json()
    assert (stored["rewardWaitTime"], stored["modelExportFrequency"]) == ("PT10M", "PT5M")
    assert native(live, loop).wait_time == 600


def test_numbers_of_single_precision_are_what_was_meant(http, live, loop):
    path = f"{loop}/personalizer/v1.1-preview.3/configurations/service"
    sent = {**http.get(path).json(), "explorationPercentage": 0.200000003, "defaultReward": 0.300000012}
    stored = http.put(path, json=sent).json()
    assert (stored["explorationPercentage"], stored["defaultReward"]) == (0.2, 0.3)
    assert (native(live, loop).epsilon, native(live, loop).default_reward) == (0.2, 0.3)


@pytest.mark.parametrize(("wait", "seconds"), [("PT5S", 5), ("PT10M", 600), ("P2D", 172_800), ("P180D", 180 * 86_400)])
def test_events_may_wait_five_seconds_or_months(http, live, loop, wait, seconds):
    path = f"{loop}/personalizer/v1.0/configurations/service"
    assert http.put(path, json={**WANTED, "rewardWaitTime": wait}).json()["rewardWaitTime"] == wait
    assert native(live, loop).wait_time == seconds


def test_the_learning_mode_changes_alone(http, live, loop):
    path = f"{loop}/personalizer/v1.0/configurations/service"
    for mode, apprentice in (("Apprentice", True), ("LoggingOnly", True), ("Online", False)):
        assert http.put(path, json={**http.get(path).json(), "learningMode": mode}).json()["learningMode"] == mode
        assert native(live, loop).apprentice is apprentice


def test_a_policy_is_kept_in_force_and_reset(http, live, loop, base):
    assert http.get(f"{base}/policy").json()["arguments"] == DEFAULT
    for arguments in (
        OF_THE_RECORDINGS,
        OF_THE_SPECIFICATION,
        DEFAULT.replace("--cb_explore", "--ccb_explore"),
        DEFAULT.replace("-q ::", "--epsilon=0.5"),
    ):
        policy = {"name": "app1", "arguments": arguments}
        reply = http.put(f"{base}/policy", json=policy)
        assert (reply.status_code, reply.json()) == (200, policy)
        assert http.get(f"{base}/policy").json() == policy
    assert native(live, loop).epsilon == 0.5
    reply = http.delete(f"{base}/policy")
    assert (reply.status_code, reply.json()["arguments"]) == (200, DEFAULT)
    assert native(live, loop).epsilon == http.get(f"{base}/service").json()["explorationPercentage"] == 0.2


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ({"name": "x"}, "InvalidPolicyContract"),
        ({"name": "", "arguments": DEFAULT}, "InvalidPolicyContract"),
        ({"name": "x", "arguments": ""}, "InvalidPolicyContract"),
        ({"name": "x", "arguments": "x" * 1025}, "InvalidPolicyContract"),
        *(
            ({"name": "x", "arguments": arguments}, "InvalidPolicyConfiguration")
            for arguments in (
                "--epsilon 0.2",
                "--cb_explore_adf --ccb_explore_adf",
                "--cb_explore_adf --epsilon 1.1",
                "--cb_explore_adf --epsilon x",
                "--cb_explore_adf --epsilon",
                "--cb_explore_adf --cb_type unknown",
                "--cb_explore_adf --cubic abc",
                "--cb_explore_adf -q abc",
                "--cb_explore_adf --l2 0.1",
                "--cb_explore_adf --bag 5",
                "--cb_explore_adf -l x",
                "--cb_explore_adf rm -rf",
                "--cb_explore_adf 'x",
            )
        ),
    ],
)
def test_what_a_policy_cannot_mean_here_is_refused(http, loop, policy, code):
    path = f"{loop}/personalizer/configurations/policy"
    refused(http.put(path, json=policy), code)
    assert http.get(path).json()["arguments"] == DEFAULT


def test_a_loop_of_adagrad_learns_at_the_policys_rate_with_its_interactions(http, live):
    key = {"Authorization": f"Bearer {live.key}"}
    made = {"name": "adagrad", "settings": {"model": "adagrad"}}
    assert http.post("/v1/loops", json=made, headers=key).status_code == 201
    path = "/loops/adagrad/personalizer/v1.0/configurations/policy"
    for arguments, rate, crosses in (
        (DEFAULT, Settings().learning_rate, True),
        (DEFAULT.replace("-l 0.001", "-l 0.5"), 0.5, True),
        ("--cb_explore_adf --learning_rate 0.25", 0.25, False),
    ):
        assert http.put(path, json={"name": "x", "arguments": arguments}).status_code == 200
        settings = native(live, "/loops/adagrad")
        assert (settings.learning_rate, settings.crosses) == (rate, crosses)


def test_ignored_namespaces_are_no_features(http, live, loop):
    path = f"{loop}/personalizer/v1.0"
    http.put(f"{path}/configurations/policy", json={"name": "x", "arguments": OF_THE_RECORDINGS})
    body = {"actions": [{"id": "a", "features": [{"Age": 1, "x": 1}]}], "contextFeatures": [{"A": {"b": 1}, "B": 1}]}
    http.post(f"{path}/rank", json={**body, "eventId": "e"})
    [entry] = live.run(lambda: live.engine.log.find(loop.removeprefix("/loops/"), ["e"]))
    assert b'"context":{"B":1}' in entry.body
    assert b'"features":{"x":1}' in entry.body


def test_a_loop_whose_owner_chose_settings_keeps_them(http, live):
    key = {"Authorization": f"Bearer {live.key}"}
    settings = {"wait_time": 30, "policy": "squarecb", "reward_range": [0, 5]}
    assert http.post("/v1/loops", json={"name": "chosen", "settings": settings}, headers=key).status_code == 201
    path = "/loops/chosen/personalizer/v1.0/configurations/service"
    stored = http.get(path).json()
    assert stored["rewardWaitTime"] == "PT30S"
    assert native(live, "/loops/chosen").reward_range == (0.0, 5.0)
    assert http.put(path, json=stored).status_code == 200
    chosen = native(live, "/loops/chosen")
    assert (chosen.policy, chosen.wait_time, chosen.reward_range) == ("squarecb", 30, (-1.0, 5.0))


@pytest.mark.parametrize("role", ["rank", "admin"])
@pytest.mark.parametrize("learned", [False, True])
def test_no_call_but_a_change_of_the_configuration_changes_a_native_loop(live, loop, role, learned):
    name, actions = loop.removeprefix("/loops/"), [{"id": "a", "features": [{"x": 1}]}, {"id": "b", "features": []}]
    before = live.run(live.engine.view, name)
    with live.client() as http:
        http.headers["Ocp-Apim-Subscription-Key"] = live.keys.add(role, name)
        path = f"{loop}/personalizer/v1.0"
        for event in ("e", "f") * learned:
            assert http.post(f"{path}/rank", json={"actions": actions, "eventId": event}).status_code == 201
            assert http.post(f"{path}/events/{event}/reward", json={"value": 1}).status_code == 204
        live.settle(name)
        assert http.post(f"{path}/rank", json={"actions": actions, "deferActivation": True}).status_code == 201
        assert http.post(f"{path}/events/e/activate").status_code == 204
        assert http.post(f"{path}/events/e/reward", json={"value": 0.5}).status_code == 204
        reply = http.post(f"{path}/events/e/reward", json={"value": -1})
        refused(reply, "InvalidRewardRequest")
        assert "PUT configurations/service" in reply.json()["error"]["message"]
        refused(http.post(f"{path}/multislot/rank", json={"actions": actions, "slots": []}), "InvalidRankRequest")
        assert http.post(f"{path}/multislot/events/e/activate").status_code == 204
        for what in ("configurations/service", "configurations/policy", "model/properties", "logs/properties"):
            assert http.get(f"{path}/{what}").status_code == (200 if role == "admin" else 403)
        assert http.delete(f"{path}/model").status_code == (204 if role == "admin" else 403)
    live.settle(name)
    after = live.run(live.engine.view, name)
    assert (after.settings, after.settings_version) == (before.settings, before.settings_version)


def test_clearing_the_log_leaves_native_settings_alone(http, live, loop):
    before = native(live, loop)
    assert http.delete(f"{loop}/personalizer/v1.0/logs").status_code == 204
    after = native(live, loop)
    assert (after.policy, after.reward_range, after.wait_from) == (before.policy, before.reward_range, before.wait_from)
    assert http.delete(f"{loop}/personalizer/v1.0/configurations/policy").status_code == 200
    assert native(live, loop).reward_range == (-1.0, 1.0)


def test_an_unknown_loop_is_not_found(http):
    reply = http.get("/loops/nowhere/personalizer/v1.0/configurations/service")
    assert (reply.status_code, reply.headers["x-ms-error-code"]) == (404, "ResourceNotFound")

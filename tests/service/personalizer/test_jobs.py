"""Evaluations, feature importances, models and logs, on both families of URLs."""

import contextlib
import random

import httpx
import pytest
from waiting import until

from service.learn.pruning import last_before
from service.log.opening import Store, open_log
from service.log.records import LOOP, RANK, Record

ACTIONS = [{"id": name, "features": [{"topic": {"kind": name}}]} for name in ("news", "sport", "arts")]
CUSTOM = {
    "name": "Custom",
    "arguments": "--cb_explore_adf --epsilon 0.05 --dsjson --cb_type ips -l 0.5 --l1 1E-07 --power_t 0.5",
}
LAST_CENTURY, FUTURE = "1999-01-01T00:00:00Z", "2100-01-01"


def contract(**changes):
    return {"name": "first", "startTime": "2020-01-01", "endTime": FUTURE, "policies": [CUSTOM], **changes}


@pytest.fixture(scope="module")
def played(http, live):
    """Return the base of a loop where tastes decide and the weather does not, and the first action is often wrong."""
    key = {"Authorization": f"Bearer {live.key}"}
    assert http.post("/v1/loops", json={"name": "played"}, headers=key).status_code == 201
    base, draw = "/loops/played/personalizer", random.Random(3)
    for t in range(150):
        taste = draw.choice(["sport", "arts"])
        context = [{"user": {"taste": taste}}, {"outside": {"weather": draw.choice(["sun", "rain"])}}]
        body = {"actions": ACTIONS, "contextFeatures": context, "eventId": f"e{t}"}
        chosen = http.post(f"{base}/v1.0/rank", json=body).json()["rewardActionId"]
        sent = {"value": float(chosen == taste)}
        assert http.post(f"{base}/v1.0/events/e{t}/reward", json=sent).status_code == 204
    live.settle("played")
    return base


def finished(http, live, path):
    """Return a job once its task is over."""

    def job_if_over():
        live.settle("played")
        job = http.get(path).json()
        return job if job["status"] not in ("pending", "Running") else None

    return until(job_if_over, "the end of the job")


def refused(reply, code, status=400):
    assert (reply.status_code, reply.headers["x-ms-error-code"]) == (status, code), reply.text


def test_an_evaluation_of_v1(http, live, played):
    base = f"{played}/v1.1-preview.3/evaluations"
    made = http.post(base, json=contract(enableOfflineExperimentation=True))
    assert made.status_code == 201
    body = made.json()
    assert body["status"] in ("pending", "notSubmitted")
    assert made.headers["location"] == f"{live.url}{base}/{body['id']}"
    assert [one["name"] for one in body["policyResults"]] == ["Custom"]
    done = finished(http, live, made.headers["location"])
    assert (done["status"], done["name"], done["evaluationType"]) == ("completed", "first", "Manual")
    results = {one["policySource"]: one for one in done["policyResults"]}
    assert set(results) == {"Online", "Baseline", "Random", "Custom", "OfflineExperimentation"}
    total = results["Online"]["totalSummary"]
    assert total["ipsEstimatorDenominator"] == 150
    assert sum(one["ipsEstimatorDenominator"] for one in results["Online"]["summary"]) == 150
    assert results["Baseline"]["totalSummary"]["averageReward"] == 0.0
    assert results["Custom"]["totalSummary"]["averageReward"] > results["Random"]["totalSummary"]["averageReward"]
    assert total["confidenceInterval"] > 0
    assert done["optimalPolicy"] in [one["name"] for one in done["policyResults"]]
    assert done["featureImportance"][0] in (["user.taste"], ["topic.kind"])
    listed = http.get(base).json()
    assert [one["id"] for one in listed] == [body["id"]]
    applied = {"evaluationId": body["id"], "policyName": "Custom"}
    changed = http.post(f"{played}/v1.1-preview.3/configurations/applyFromEvaluation", json=applied)
    assert changed.status_code == 204, changed.text
    assert http.get(f"{played}/configurations/policy").json() == CUSTOM
    assert http.get(f"{played}/configurations/service").json()["explorationPercentage"] == 0.05
    unknown = {**applied, "policyName": "other"}
    refused(
        http.post(f"{played}/v1.1-preview.3/configurations/applyFromEvaluation", json=unknown),
        "LearningSettingsNotFound",
        404,
    )
    assert http.delete(made.headers["location"]).status_code == 204
    refused(http.get(made.headers["location"]), "EvaluationNotFound", 404)
    refused(http.delete(made.headers["location"]), "EvaluationNotFound", 404)
    assert http.get(base).json() == []


def test_an_evaluation_of_2022(http, live, played):
    base, times = f"{played}/evaluations", f"startTime=2020-01-01T00:00:00Z&endTime={FUTURE}T00:00:00Z"
    path = f"{base}/a%2Fb"
    made = http.put(f"{path}?api-version=2022-09-01-preview", json=contract())
    assert (made.status_code, made.content) == (200, b"")
    refused(http.put(path, json=contract()), "EvaluationAlreadyExists")
    done = finished(http, live, f"{path}?{times}")
    assert (done["id"], done["status"], done["optimalPolicy"] != "") == ("a/b", "Succeeded", True)
    values = {one["policySource"]: one for one in done["content"]["value"]}
    assert [values[source]["name"] for source in ("Online", "Baseline", "Random", "Custom")] == [
        "online",
        "baseline1",
        "baselineRand",
        "Custom",
    ]
    low, high = values["Random"]["summary"]["confidenceInterval"]
    # An interval that would not hold its estimate is widened to it.
    assert low <= values["Random"]["summary"]["expectedReward"] <= high
    assert values["Online"]["timeseries"]["data"][-1]["expectedReward"] == pytest.approx(
        values["Online"]["summary"]["expectedReward"]
    )
    hourly = http.get(f"{path}?{times}&intervalInMinutes=60&window=Rolling").json()["content"]
    assert hourly["intervalInMinutes"] == 60
    refused(http.get(f"{path}?{times}&intervalInMinutes=7"), "InvalidRequest")
    refused(http.get(f"{path}?{times}&window=x"), "InvalidRequest")
    listed = http.get(f"{base}?filter=metadata%3DevaluationType eq 'Manual'").json()
    assert [set(one) for one in listed["value"]] == [
        {"id", "name", "startTime", "endTime", "creationTime", "status", "evaluationType"}
    ]
    assert http.get(f"{base}?top=0").json()["value"] == http.get(f"{base}?skip=1").json()["value"] == []
    refused(http.get(f"{base}?top=x"), "InvalidRequest")
    refused(http.get(f"{base}?top={'9' * 5_000}"), "InvalidRequest")
    assert http.delete(path).status_code == 204
    refused(http.get(path), "EvaluationNotFound", 404)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"startTime": "x"}, "InvalidEvaluationContract"),
        ({"startTime": "0001-01-01T00:00:00+14:00"}, "InvalidEvaluationContract"),
        ({"endTime": "9999-12-31T23:59:59-14:00"}, "InvalidEvaluationContract"),
        ({"endTime": LAST_CENTURY}, "InvalidEvaluationContract"),
        ({"name": None}, "InvalidEvaluationContract"),
        ({"policies": None}, "InvalidEvaluationContract"),
        ({"policies": [CUSTOM, CUSTOM]}, "DuplicateCustomPolicyNames"),
        ({"startTime": LAST_CENTURY, "endTime": "1999-01-02"}, "NoLogsExistInDateRange"),
    ],
)
def test_a_wrong_evaluation_is_refused(http, played, changes, code):
    refused(http.post(f"{played}/v1.0/evaluations", json=contract(**changes)), code)
    refused(http.put(f"{played}/evaluations/x", json=contract(**changes)), code)


def test_feature_importances_name_what_decides_first(http, live, played):
    base = f"{played}/featureImportances"
    body = {"name": "important", "startTime": "2020-01-01T00:00:00Z", "endTime": f"{FUTURE}T00:00:00Z"}
    assert http.put(f"{base}/i", json=body).status_code == 200
    refused(http.put(f"{base}/i", json=body), "FeatureImportanceAlreadyExists")
    done = finished(http, live, f"{base}/i")
    assert (done["id"], done["name"], done["status"]) == ("i", "important", "Succeeded")
    scores = [one["score"] for one in done["featureScores"]]
    assert scores == sorted(scores, reverse=True)
    by_name = {(one["namespace"], one["featureName"]): one["score"] for one in done["featureScores"]}
    assert max(scores) == 1
    assert by_name["outside", "weather"] < 0.1 < by_name["user", "taste"]
    assert [one["id"] for one in http.get(base).json()["value"]] == ["i"]
    assert http.delete(f"{base}/i").status_code == 204
    refused(http.get(f"{base}/i"), "FeatureImportanceNotFound", 404)
    refused(http.put(f"{base}/j", json={**body, "endTime": "x"}), "InvalidContract")
    refused(http.put(f"{base}/j", json={**body, "endTime": "2020-01-02"}), "NoLogsExistInDateRange")


@pytest.mark.parametrize("version", ["/v1.0", "/v1.1-preview.3", ""])
def test_a_model_makes_a_round_trip_and_rubbish_is_refused(http, live, played, version):
    base = f"{played}{version}/model"
    reply = http.get(f"{base}?signed=true")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/octet-stream")
    sent = {"Content-Type": "application/octet-stream"}
    for rubbish in (b"rubbish", b"", reply.content[:-1]):
        refused(http.put(base, content=rubbish, headers=sent), "InvalidModelImportFormat")
    assert http.get(base).content == reply.content
    before = http.get(f"{base}/properties").json()
    assert set(before) == {"creationTime", "lastModifiedTime"}
    assert http.delete(base).status_code == 204
    assert http.get(base).content != reply.content
    assert http.put(base, content=reply.content, headers=sent).status_code == 204
    assert http.get(base).content == reply.content
    assert http.get(f"{base}/properties").json()["lastModifiedTime"] > before["lastModifiedTime"]


def test_lists_come_in_pages(http, live, played):
    base = f"{played}/featureImportances"
    job = {"name": "first", "startTime": "2020-01-01", "endTime": FUTURE}
    for k in range(5):
        assert http.put(f"{base}/page{k}", json=job).status_code == 200
    version = {"api-version": "2022-09-01-preview"}
    pages, link, query = [], base, {**version, "maxpagesize": 2, "top": 5}
    while link:
        body = http.get(link, params=query).json()
        pages.append([one["id"] for one in body["value"]])
        link, query = body.get("nextLink"), None
        assert link is None or link.startswith(f"{live.url}{base}?")
    assert pages == [["page0", "page1"], ["page2", "page3"], ["page4"]]
    assert len(http.get(base, params={**version, "top": 2, "maxpagesize": 2}).json()["value"]) == 2
    behind = http.get(base, params=version, headers={"X-Forwarded-Proto": "https", "Host": "shop.example"})
    assert "nextLink" not in behind.json()
    refused(http.get(base, params={**version, "maxpagesize": 0}), "InvalidRequest")
    proxied = http.get(base, params={**version, "maxpagesize": 1}, headers={"X-Forwarded-Proto": "https"}).json()
    assert proxied["nextLink"].startswith("https://")
    for k in range(5):
        assert http.delete(f"{base}/page{k}").status_code == 204


def test_one_event_is_enough_for_an_evaluation(http, live, loop):
    base = f"{loop}/personalizer"
    assert http.post(f"{base}/rank", json={"actions": ACTIONS, "eventId": "one"}).status_code == 201
    assert http.post(f"{base}/events/one/reward", json={"value": 1}).status_code == 204
    live.settle(loop.removeprefix("/loops/"))
    assert http.put(f"{base}/evaluations/e", json=contract()).status_code == 200
    done = finished(http, live, f"{base}/evaluations/e")
    assert done["status"] == "Succeeded", done
    assert {one["name"] for one in done["content"]["value"]} == {"online", "baseline1", "baselineRand", "Custom"}
    applied = {"evaluationId": "e", "policyName": "Custom"}
    assert http.post(f"{base}/configurations/applyFromEvaluation", json=applied).status_code == 204
    assert http.get(f"{base}/configurations/policy").json()["arguments"] == CUSTOM["arguments"]


@pytest.mark.parametrize("version", ["/v1.1-preview.2", ""])
def test_logs_of_local_inference_are_refused(http, played, version):
    for name in ("interactions", "observations"):
        sent = {"content": b"id", "headers": {"Content-Type": "application/octet-stream"}}
        refused(http.post(f"{played}{version}/logs/{name}", **sent), "InvalidApiAccess")


def test_events_older_than_the_log_is_kept_are_left_out(tmp_path):
    log = open_log(Store(tmp_path / "log.db"))
    with contextlib.closing(log):
        log.append([[Record("shop", LOOP, "loop", body=b"{}")]])
        log.append([[Record("shop", RANK, f"e{k}", body=b"{}")] for k in range(9)])
        times = [entry.time for entry in log.read("shop", 0, 100)]
        for moment in times:
            assert last_before(log, "shop", moment, 1) == max(1, times.index(moment))
        assert last_before(log, "shop", times[-1] + 1, 1) == last_before(log, "shop", times[0], 10) == 10


def test_the_days_of_the_configuration_say_how_long_logs_are_kept(http, loop, monkeypatch):
    base = f"{loop}/personalizer"
    assert http.post(f"{base}/rank", json={"actions": ACTIONS}).status_code == 201
    monkeypatch.setattr("service.times.DAY", 0)  # so that any number of days is over
    assert http.get(f"{base}/logs/properties").json() == {}
    configuration = {**http.get(f"{base}/configurations/service").json(), "logRetentionDays": -1}
    assert http.put(f"{base}/configurations/service", json=configuration).status_code == 200
    assert set(http.get(f"{base}/logs/properties").json()) == {"dateRange"}


@pytest.mark.parametrize("version", ["/v1.0", "/v1.1-preview.3", ""])
def test_logs_have_a_range_until_they_are_deleted(http, loop, version):
    base = f"{loop}/personalizer{version}"
    assert http.get(f"{base}/logs/properties").json() == {}
    assert http.post(f"{base}/rank", json={"actions": ACTIONS}).status_code == 201
    first = http.get(f"{base}/logs/properties").json()["dateRange"]
    assert first["from"] == first["to"]
    assert http.post(f"{base}/rank", json={"actions": ACTIONS}).status_code == 201
    second = http.get(f"{base}/logs/properties").json()["dateRange"]
    assert (second["from"], second["to"] >= second["from"]) == (first["from"], True)
    assert http.delete(f"{base}/logs").status_code == 204
    reply = http.get(f"{base}/logs/properties")
    assert (reply.status_code, reply.json()) == (200, {})
    refused(http.put(f"{loop}/personalizer/evaluations/x", json=contract()), "NoLogsExistInDateRange")


def test_evaluations_need_the_role_admin(live):
    with httpx.Client(base_url=live.url, trust_env=False) as client:
        client.headers["Ocp-Apim-Subscription-Key"] = live.keys.add("rank")
        refused(client.get("/personalizer/v1.0/evaluations"), "OperationNotAllowed", 403)

"""Microsoft's own JavaScript SDKs against a running service. Node and npm are needed for this test alone."""

import json
import subprocess
from pathlib import Path

import pytest
from needs import needs_node, npm_folder
from waiting import LIMIT

PACKAGES = (
    "@azure/cognitiveservices-personalizer@2.0.1",
    "@azure-rest/ai-personalizer@1.0.0-beta.1",
    "@azure/core-auth",
)
SCRIPT = Path(__file__).with_name("sdks.mjs")


@pytest.fixture(scope="module")
def packages():
    """Return a folder with the SDKs."""
    return npm_folder("javascript-sdks", *PACKAGES)


@needs_node
def test_both_sdks_run_unchanged(live, packages, azure_loop):
    loop = azure_loop
    key = live.keys.add("admin", loop.removeprefix("/loops/"))
    command = ["node", str(SCRIPT), live.url, f"{live.url}{loop}", key]
    ended = subprocess.run(command, cwd=packages, capture_output=True, text=True, check=False, timeout=LIMIT)
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout.splitlines()[-1])
    assert live.run(live.engine.view, loop.removeprefix("/loops/")).statistics.ranks >= 4
    assert seen["old"] == {"event": "old/é", "first": {"id": "news", "probability": 0}, "status": 201}
    assert (seen["oldReward"], seen["oldActivate"]) == (204, 204)
    assert seen["oldRefused"] == [400, "InvalidRankRequest"]
    statuses = {name: int(one["status"]) for name, one in seen.items() if isinstance(one, dict)}
    assert {name for name, status in statuses.items() if status == 201} == {"old", "rank", "rankSlots", "evaluate"}
    done = ("reward", "activate", "rewardSlots", "activateSlots", "deleteEvaluation", "importModel", "resetModel")
    assert {name for name, status in statuses.items() if status == 204} == {*done, "deleteLogs"}
    refusals = {name: seen[name]["body"]["error"]["code"] for name, status in statuses.items() if status >= 400}
    assert refusals == {
        "wrong": "InvalidRewardRequest",
        "apply": "LearningSettingsNotFound",
        "importRubbish": "InvalidModelImportFormat",
    }
    assert seen["rank"]["body"]["ranking"][0]["id"] == seen["rank"]["body"]["rewardActionId"]
    assert seen["putService"]["body"]["rewardWaitTime"] == "PT4H"
    assert [slot["id"] for slot in seen["rankSlots"]["body"]["slots"]] == ["top", "side"]
    assert seen["resetPolicy"]["body"]["arguments"] == seen["policy"]["body"]["arguments"]
    assert set(seen["logs"]["body"]["dateRange"]) == {"from", "to"}
    assert [one["name"] for one in seen["evaluations"]["body"]] == ["js"]
    assert seen["evaluation"]["body"]["id"] == seen["evaluate"]["body"]["id"]
    assert seen["model"]["bytes"] > 0
    assert set(seen["modelProperties"]["body"]) == {"creationTime", "lastModifiedTime"}

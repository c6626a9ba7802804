"""What devices ask for and upload, over real HTTP on a real engine."""

import gzip
import json

import msgspec
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load

from service.plugins.devices.routes import names

MSGPACK = {"Content-Type": "application/msgpack"}
ADAGRAD = {"model": "adagrad"}
FEDOGD = {**ADAGRAD, "global_learner": "fedogd", "bits": 4, "hyperparameters": {"n_clients": 3, "step_size": 0.1}}


@pytest.fixture(scope="module")
def live(tmp_path_factory, live_service):
    """A service whose loop takes devices."""
    with live_service(tmp_path_factory.mktemp("service"), **ADAGRAD) as running:
        yield running


def version_of(client, prefix="/v1"):
    return client.get(f"{prefix}/federated/round").json()["version"]


def residual(client, seq=1, prefix="/v1", **fields):
    usual = {
        "seq": seq,
        "version": version_of(client, prefix),
        "context": {"weather": "cold"},
        "local": 0.25,
        "label": 1,
    }
    return {**usual, "action": {"id": "tea", "features": {"hot": True}}, **fields}


def upload(client, name, *residuals, prefix="/v1"):
    return client.post(f"{prefix}/federated/residuals", json={"client": name, "residuals": residuals})


def send_updates(client, prefix, name, *updates):
    body = msgspec.msgpack.encode({"client": name, "updates": updates})
    return client.post(f"{prefix}/federated/updates", content=body, headers=MSGPACK)


def learned(client, position, prefix="/v1"):
    """Wait until what is at ``position`` is in the published model; return its version."""
    client.get(f"{prefix}/model")  # returns once all is learned
    while (version := version_of(client, prefix)) < position:
        pass
    return version


def at_rest(client, name):
    """Upload something and wait: then all that came before is published too."""
    return learned(client, upload(client, name, residual(client)).json()["positions"][0])


def test_residuals_are_learned_and_move_the_shared_scores(client):
    body = {"context": {"weather": "cold"}, "actions": [{"id": "tea", "features": {"hot": True}}]}
    before = client.post("/v1/federated/scores", json=body).json()
    stored = upload(client, "phone-1", *[residual(client, seq) for seq in range(1, 21)]).json()
    assert stored.keys() == {"positions", "version"}
    assert stored["positions"] == sorted(set(stored["positions"]))
    assert len(stored["positions"]) == 20
    version = learned(client, stored["positions"][-1])
    after = client.post("/v1/federated/scores", json=body).json()
    assert after["version"] >= version
    [(id_before, low), (id_after, high)] = [(one["id"], one["score"]) for [one] in (before["scores"], after["scores"])]
    assert id_before == id_after == "tea"
    assert low < high <= 1


def test_a_repeat_is_answered_as_the_first_and_changes_nothing_whatever_it_holds(client):
    first = upload(client, "phone-2", residual(client, 1), residual(client, 2)).json()["positions"]
    model = client.get("/v1/model").content
    same = upload(client, "phone-2", residual(client, 1), residual(client, 2)).json()["positions"]
    other = upload(client, "phone-2", residual(client, 2, label=0.5, context={"weather": "hot"})).json()["positions"]
    assert (same, other) == (first, first[1:])
    assert client.get("/v1/model").content == model
    assert upload(client, "phone-3", residual(client, 1)).json()["positions"] > first


def test_a_model_has_a_tag_by_which_it_is_not_sent_again(client):
    version = at_rest(client, "phone-4")
    model = client.get("/v1/federated/model")
    tag = model.headers["etag"]
    assert tag.startswith(f'"{version}-')
    for tags in (tag, f"W/{tag}", f'"1x", {tag}', f'"0",W/{tag} , "x"', "*"):
        same = client.get("/v1/federated/model", headers={"If-None-Match": tags})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
        assert "content-type" not in same.headers
    for other in ('"0"', tag.strip('"'), f'"x{tag[1:]}', "", ",", f"w/{tag}"):
        assert client.get("/v1/federated/model", headers={"If-None-Match": other}).content == model.content
    position = upload(client, "phone-4", residual(client, 2, label=0)).json()["positions"][0]
    learned(client, position)
    changed = client.get("/v1/federated/model", headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ([], False),
        (['"5"'], True),
        (['"4"', 'W/"5"'], True),
        (["*"], True),
        (['"5', '5"', "5", '"55"'], False),
    ],
)
def test_tags_are_found_in_all_headers(headers, named):
    assert names(headers, '"5"') == named


def test_a_delta_and_the_whole_model_are_the_same_weights(client, tmp_path):
    since = at_rest(client, "phone-5")
    whole = weights(client.get("/v1/federated/model"))
    all_that_is_set = load(client.get("/v1/federated/model", params={"since": 0}).content)
    position = upload(client, "phone-5", residual(client, 2, context={"weather": "mild"})).json()["positions"][0]
    version = learned(client, position)
    reply = client.get("/v1/federated/model", params={"since": since})
    delta = load(reply.content)
    assert len(reply.content) < 10_000
    assert len(delta["indices"]) > 0
    expected = weights(client.get("/v1/federated/model"))
    np.testing.assert_array_equal(patched(whole, delta), expected)
    np.testing.assert_array_equal(patched(np.zeros_like(whole), all_that_is_set), whole)
    metadata = metadata_of(reply, tmp_path)
    assert (metadata["version"], metadata["since"], metadata["bits"]) == (str(version), str(since), "18")


def weights(reply):
    assert reply.headers["content-type"] == "application/octet-stream"
    return load(reply.content)["weights"]


def patched(whole, delta):
    made = whole.copy()
    made[delta["indices"]] = delta["values"]
    return made


def metadata_of(reply, folder):
    file = folder / "model.safetensors"
    file.write_bytes(reply.content)
    with safe_open(file, "numpy") as opened:
        return opened.metadata()


def test_a_version_that_is_not_remembered_gets_the_whole_model(client):
    for since in (version_of(client) + 1_000_000, 2**62):
        reply = client.get("/v1/federated/model", params={"since": since})
        assert weights(reply).shape == (2**18 + 1,)


def test_changes_are_not_sent_with_weights_that_are_newer(client, live, monkeypatch):
    since = at_rest(client, "phone-10")
    client.get("/v1/federated/model", params={"since": since})  # changes are noted from the first such call on
    version = learned(client, upload(client, "phone-10", residual(client, 2, label=0)).json()["positions"][0])

    async def told_before_it_was_published(what, loop, since):
        return [since, []]

    with monkeypatch.context() as patch:
        patch.setattr(live.engine.context.learner, "ask", told_before_it_was_published)
        stale = client.get("/v1/federated/model", params={"since": since})
    assert weights(stale).shape == (2**18 + 1,)
    assert len(load(client.get("/v1/federated/model", params={"since": since}).content)["indices"]) > 0
    assert version > since


def test_head_of_a_model_has_its_tag(client):
    version = at_rest(client, "phone-8")
    head, whole = client.head("/v1/federated/model"), client.get("/v1/federated/model")
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", whole.headers["etag"])
    assert head.headers["etag"].startswith(f'"{version}-')


def test_a_compressed_upload_is_read(client):
    body = json.dumps({"client": "phone-6", "residuals": [residual(client)]}).encode()
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert client.post("/v1/federated/residuals", content=gzip.compress(body), headers=headers).status_code == 200


def test_defaults_that_are_spelled_out_and_names_with_colons_are_taken(client):
    spelled = residual(client, 1, action={"id": "tea:green", "features": None}, **{"global": None})
    assert upload(client, "phone:7", spelled).status_code == 200


def test_a_round_says_how_the_loop_learns(client):
    shown = client.get("/v1/federated/round").json()
    settings = client.get("/v1/settings").json()
    assert shown["settings_version"] == settings["version"]
    same = ("global_learner", "hyperparameters", "bits", "timing", "crosses", "policy", "epsilon")
    assert all(shown[name] == settings["settings"][name] for name in (*same, "learning_rate", "reward_range"))
    assert (shown["number"], shown["t"]) == (None, None)


@pytest.fixture(scope="module")
def dense(client):
    """The prefix of a loop whose learner takes gradients of three clients."""
    made = client.post("/v1/loops", json={"name": "dense", "settings": FEDOGD})
    assert made.status_code == 201, made.text
    return "/v1/loops/dense"


def gradient(client, prefix, seq=1, **fields):
    body = np.full(17, 0.5, dtype="<f4").tobytes()
    return {"seq": seq, "t": seq, "version": version_of(client, prefix), "kind": "gradient", "body": body, **fields}


def test_devices_of_a_dense_loop_join_send_updates_and_move_the_model(client, dense):
    joined = send_updates(client, dense, "a").json()
    assert joined["number"] == 0
    assert send_updates(client, dense, "b").json()["number"] == 1
    assert send_updates(client, dense, "a").json()["number"] == 0
    before = weights(client.get(f"{dense}/federated/model"))
    stored = send_updates(client, dense, "a", gradient(client, dense)).json()
    learned(client, stored["positions"][0], dense)
    after = weights(client.get(f"{dense}/federated/model"))
    assert (after < before).all()
    again = send_updates(client, dense, "a", gradient(client, dense, body=np.ones(17, "<f4").tobytes())).json()
    assert again["positions"] == stored["positions"]
    np.testing.assert_array_equal(weights(client.get(f"{dense}/federated/model")), after)
    shown = client.get(f"{dense}/federated/round", params={"client": "b", "t": 5}).json()
    assert (shown["number"], shown["t"], shown["takes_part"]) == (1, 5, True)
    assert 1 in client.get(f"{dense}/federated/round", params={"t": 5}).json()["senders"]


def test_a_loop_that_is_full_takes_no_more_devices(client, dense):
    for name in ("a", "b", "c"):
        assert send_updates(client, dense, name).status_code == 200
    refused = send_updates(client, dense, "d")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "loop_full")


def test_an_erased_device_leaves_the_model_and_takes_its_uploads_along(client):
    position = upload(client, "phone/é", residual(client)).json()["positions"][0]
    at_rest(client, "phone-9")
    model = client.get("/v1/model").content
    assert client.delete("/v1/users/phone%2F%C3%A9").status_code == 204
    assert client.get("/v1/model").content == model
    assert upload(client, "phone/é", residual(client)).json()["positions"][0] > position

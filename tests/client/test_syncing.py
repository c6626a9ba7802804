"""Devices and a real service over a network that loses requests and answers."""

import gzip
import logging
import random
import shutil

import httpx
import msgspec
import numpy as np
import pytest
from network import MENU, Driven, payload


def client(live):
    return httpx.Client(base_url=live.url, trust_env=False, verify=False)


def uploads(live, loop):
    """Return the residuals in the service's log, as (client, body)."""
    entries = [entry for entry in live.engine.logged(loop) if entry.kind == "residual"]
    return [(entry.user, msgspec.json.decode(entry.body)) for entry in entries]


def test_a_device_fetches_settings_and_model_then_uploads_and_fetches_what_changed(live, loop, tmp_path):
    with Driven(live.url, tmp_path, loop=loop) as device:
        first = device.sync()
        assert (first.sent, first.dropped, first.trouble) == (0, 0, None)
        assert first.version == live.settle(loop)
        device.play(0, 20)
        assert device.sync().sent == 20
        version = live.settle(loop)
        assert device.sync().version == version == device.decide({}).model_version
        assert device.network.routes() == {"round": 1, "model": 3, "residuals": 1}
        weights = device.device._models.side.weights
        assert weights.tolist() == live.weights(loop).tolist()
        assert np.count_nonzero(weights) > 3


def test_what_is_uploaded_is_the_context_the_action_the_local_part_and_the_reward(live, loop, tmp_path):
    with Driven(live.url, tmp_path, loop=loop) as device:
        device.play(0, 3)
        decision = device.decide({"day": 2, "Zürich": "ja"}, private={"secret": 4.5})
        local = decision.scores[decision.action]  # there is no shared model yet
        device.device.reward(decision.event_id, 0.5)
        device.sync()
    client, body = uploads(live, loop)[-1]
    assert client == "phone"
    assert body["context"] == {"day": 2, "Zürich": "ja"}
    assert body["action"] == {"id": decision.action, "features": MENU[decision.action]}
    assert np.float32(body["local"]) == np.float32(local)
    assert body["label"] == 0.5


def test_nothing_is_sent_when_there_is_nothing_new(live, loop, tmp_path):
    with Driven(live.url, tmp_path, loop=loop) as device:
        device.sync()
        n_sent = len(device.network.sent)
        device.sync()
        [request] = device.network.sent[n_sent:]
        assert request.headers["if-none-match"] == f'"{live.run(live.engine.model_tag, loop)}"'


@pytest.mark.parametrize("fault", ["lost", "unanswered", 503, 500, 429])
def test_every_upload_arrives_once_and_in_order_whatever_the_network_loses(live, loop, tmp_path, fault):
    rng = random.Random(1)
    faults = (fault if rng.random() < 0.4 else None for _ in range(1000))
    with Driven(live.url, tmp_path, faults, loop=loop) as device:
        for first in range(0, 40, 4):
            device.play(first, first + 4)
            device.sync()
        while device.device.status().queued:
            device.sync(tries=5)
    assert [body["context"]["day"] for _, body in uploads(live, loop)] == [f"day-{i % 7}" for i in range(40)]


def test_a_sync_tries_again_after_waits_that_grow_and_then_says_what_is_wrong(live, loop, tmp_path):
    with Driven(live.url, tmp_path, ["lost", 503, "lost", None, *["lost"] * 100], loop=loop) as device:
        device.play(0, 2)
        synced = device.sync(tries=5)
        assert synced.trouble == "the service does not answer: ConnectError: lost"
        assert device.device.status().trouble == synced.trouble
        assert len(device.waits) == 3 + 4
        assert all(wait <= bound for wait, bound in zip(device.waits, [0.5, 1, 2, 0.5, 1, 2, 4], strict=True))
        assert device.link.pause <= 8
        assert device.device.status().queued == 2


def test_the_service_says_how_long_to_wait(live, loop, tmp_path):
    busy = httpx.Response(503, headers={"Retry-After": "17"})
    long = httpx.Response(429, headers={"Retry-After": "600"})
    with Driven(live.url, tmp_path, [busy, long], loop=loop) as device:
        assert "429" in device.sync(tries=5).trouble
        assert device.waits == [17.0]
        assert device.link.pause == 600.0


def test_a_wrong_key_stops_the_sync_and_keeps_the_queue(start_service, tmp_path):
    with start_service(tmp_path) as live:
        key = live.keys.add("device")
        key = getattr(key, "secret", key)
        with Driven(live.url, tmp_path / "phone", key="wrong") as device:
            device.play(0, 3)
            synced = device.sync(tries=5)
            assert synced.trouble.startswith("the service answers 401")
            assert device.waits == []
            assert device.device.status().queued == 3
        with Driven(live.url, tmp_path / "phone", key=key) as device:
            assert device.sync().sent == 3


def test_a_loop_that_does_not_exist_stops_the_sync_and_keeps_the_queue(live, tmp_path):
    with Driven(live.url, tmp_path, loop="not-yet") as device:
        device.play(0, 3)
        assert "404" in device.sync().trouble
        live.make_loop("not-yet", model="adagrad")
        assert device.sync().sent == 3


def test_an_upload_that_breaks_a_rule_is_dropped_and_the_others_arrive(live, loop, tmp_path, caplog):
    with Driven(live.url, tmp_path, loop=loop) as device:  # offline, any reward may be in the range
        for k, value in enumerate([0.1, 7.0, 0.2, -3.0, 0.3]):
            device.decide({"day": k}, event_id=f"e{k}")
            device.device.reward(f"e{k}", value)
        with caplog.at_level(logging.WARNING):
            synced = device.sync()
        assert (synced.sent, synced.dropped, synced.trouble) == (3, 2, None)
        assert device.device.status().dropped == 2
    assert [body["label"] for _, body in uploads(live, loop)] == [0.1, 0.2, 0.3]
    assert "residuals[1].label must be in [0, 1], got 7.0" in caplog.text


def test_a_batch_that_is_too_large_is_sent_in_halves(live, loop, tmp_path):
    too_large = httpx.Response(413, json={"error": {"code": "too_large", "message": "", "target": "body"}})
    with Driven(live.url, tmp_path, [None, None, too_large], loop=loop) as device:
        device.play(0, 10)
        assert device.sync().sent == 10
        assert device.network.routes()["residuals"] == 3
    assert len(uploads(live, loop)) == 10


def test_many_refused_uploads_cost_little_and_later_batches_are_large_again(live, loop, tmp_path):
    with Driven(live.url, tmp_path, loop=loop, gzip=False) as device:
        for k in range(90):
            device.decide({"day": k % 30}, event_id=f"e{k}")
            device.device.reward(f"e{k}", 7.0 if k < 30 else 0.5)
        synced = device.sync()
        assert (synced.sent, synced.dropped, synced.trouble) == (60, 30, None)
        posts = [request for request in device.network.sent if request.url.path.endswith("residuals")]
        assert len(posts) < 40
        assert sum(len(request.content) for request in posts) < 4 * len(posts[0].content)


def test_an_upload_that_spoils_its_batch_is_found_and_dropped(live, loop, tmp_path):
    def refuse(request):
        if b"poison" in request.content:
            return httpx.Response(400, json={"error": {"code": "invalid_json", "message": "no", "target": "body"}})
        return None

    with Driven(live.url, tmp_path, loop=loop, gzip=False) as device:
        device.network.answers = refuse
        for k in range(9):
            device.decide({"day": "poison" if k == 5 else k}, event_id=f"e{k}")
            device.device.reward(f"e{k}", 0.5)
        synced = device.sync()
        assert (synced.sent, synced.dropped, synced.trouble) == (8, 1, None)
    assert [body["context"]["day"] for _, body in uploads(live, loop)] == [0, 1, 2, 3, 4, 6, 7, 8]


def test_a_sync_that_cannot_be_done_is_said_once(live, loop, tmp_path, caplog):
    with Driven(live.url, tmp_path, ["lost"] * 3, loop=loop) as device, caplog.at_level(logging.WARNING):
        for _ in range(4):
            device.sync()
    assert [record.getMessage() for record in caplog.records] == [
        "phone works on its own: the service does not answer: ConnectError: lost"
    ]


def test_a_service_that_wants_to_rest_for_ever_or_nonsense_is_asked_again_in_a_day(live, loop, tmp_path):
    waits = [httpx.Response(503, headers={"Retry-After": text}) for text in (b"9" * 30, b"\xb2", b"soon")]
    with Driven(live.url, tmp_path, waits, loop=loop) as device:
        device.sync()
        assert device.link.pause == 86_400
        for _ in range(2):
            device.sync()
            assert device.link.pause < 10


def test_a_weak_etag_of_a_proxy_is_read_too(live, loop, tmp_path):
    weak = httpx.Response(200, content=payload(10**6, 18), headers={"ETag": 'W/"1000000"'})
    with Driven(live.url, tmp_path, [None, weak], loop=loop) as device:
        assert device.sync().version == 10**6


def test_without_a_download_a_device_follows_a_service_that_begins_anew(live, loop, tmp_path):
    with Driven(live.url, tmp_path, loop=loop, download=False) as device:
        device.device.note_version(10**6)  # by a service that is gone
        device.play(0, 2)
        device.device.give_version(10**6, to_all=True)
        device.link._scores_from = float("inf")
        assert device.sync().sent == 2


def test_a_network_that_answers_for_the_service_is_no_service(live, loop, tmp_path):
    bodies = b"<h1>Log in to the Wi-Fi</h1>", b'{"x":' + b"[" * 10**5, b'{"\xff":1}'
    portal = [httpx.Response(200, content=body) for body in bodies]
    with Driven(live.url, tmp_path, [portal[0], None, portal[1], None, portal[2]], loop=loop) as device:
        device.play(0, 2)
        for _ in range(3):
            assert device.sync().trouble.startswith("the service ")
        assert device.sync().trouble is None
    assert len(uploads(live, loop)) == 2


def test_bodies_of_a_kilobyte_are_packed_unless_told_not_to(live, loop, tmp_path):
    sizes = {}
    for pack in (True, False):
        with Driven(live.url, tmp_path / str(pack), loop=loop, client=f"phone {pack}", gzip=pack) as device:
            device.play(0, 1)
            device.sync()
            device.play(1, 101)
            assert device.sync().sent == 100
            small, large = [request for request in device.network.sent if request.method == "POST"]
            assert "content-encoding" not in small.headers
            assert (large.headers.get("content-encoding") == "gzip") == pack
            body = gzip.decompress(large.content) if pack else large.content
            assert len(msgspec.json.decode(body)["residuals"]) == 100
            sizes[pack] = len(large.content)
    assert sizes[True] < sizes[False] / 4


def test_a_loop_made_anew_is_learned_from_the_start_and_the_local_model_kept(live, loop, tmp_path):
    with (
        Driven(live.url, tmp_path, loop=loop) as device,
        client(live) as http,
    ):
        device.play(0, 20)
        device.sync()
        live.settle(loop)
        device.sync()
        device.play(20, 25)
        local = device.device._models.local.get_state()
        http.delete(f"/v1/loops/{loop}").raise_for_status()
        live.make_loop(loop, model="adagrad", update_interval=0.005)
        synced = device.sync()
        assert (synced.sent, synced.dropped, synced.trouble) == (5, 0, None)
        assert device.device._models.local.get_state() == local
    assert [body["context"]["day"] for _, body in uploads(live, loop)][-5:] == [f"day-{i % 7}" for i in range(20, 25)]


def test_a_service_restored_from_a_backup_takes_a_device_back_with_it(start_service, tmp_path):
    store, backup = tmp_path / "store.db", tmp_path / "backup.db"
    with Driven("http://127.0.0.1:1", tmp_path / "phone") as device:
        for last, copy in ((10, True), (20, False)):
            with start_service(tmp_path) as live:
                device.http.base_url = live.url
                device.play(last - 10, last)
                device.sync()
                live.settle()
                newest = device.sync().version
            if copy:
                shutil.copy(store, backup)
        for file in tmp_path.glob("store.db*"):
            file.unlink()
        shutil.copy(backup, store)
        with start_service(tmp_path) as live:
            device.http.base_url = live.url
            device.play(20, 25)
            synced = device.sync()
            assert (synced.sent, synced.trouble) == (5, None)
            live.settle()
            assert device.sync().version == live.settle() < newest
            assert device.device._models.side.weights.tolist() == live.weights().tolist()


def test_a_device_of_another_services_model_notices_and_fetches_this_ones(start_service, tmp_path):
    with Driven("http://127.0.0.1:1", tmp_path / "phone") as device:
        for store in ("one", "two"):
            (tmp_path / store).mkdir()
            with (
                start_service(tmp_path / store) as live,
                Driven(live.url, tmp_path / f"{store}-other", client="other") as other,
            ):
                other.play(0, 30, likes="tea" if store == "one" else "milk")
                other.sync()  # so that the service knows what changed since versions before
                live.settle()
                device.http.base_url = live.url
                if store == "one":
                    device.sync()
                other.play(30, 45)
                other.sync()
                live.settle()
                synced = device.sync()
                assert synced.trouble is None
                assert device.device._models.side.weights.tolist() == live.weights().tolist()


def test_a_sync_fetches_a_model_however_fast_rewards_come(live, loop, tmp_path):
    with Driven(live.url, tmp_path / "phone", loop=loop) as device:
        device.sync()
        device.play(0, 3)
        rounds = iter(range(3, 40))
        device.network.before = lambda: device.play(k := next(rounds), k + 1)
        assert device.sync().sent == 3
        assert device.network.routes()["model"] == 2
        assert device.device.status().queued > 0


def test_a_folder_restored_from_a_copy_uploads_what_is_new(live, loop, tmp_path):
    with Driven(live.url, tmp_path / "phone", loop=loop, clock=lambda: 1000.0) as device:
        device.sync()
    shutil.copytree(tmp_path / "phone", tmp_path / "copy")
    for folder, label, clock in (("phone", 0.25, lambda: 1000.0), ("copy", 0.75, lambda: 2000.0)):
        with Driven(live.url, tmp_path / folder, loop=loop, clock=clock) as device:
            device.decide({}, event_id="e")
            device.device.reward("e", label)
            device.sync()
    assert [body["label"] for _, body in uploads(live, loop)] == [0.25, 0.75]


def test_without_a_download_the_service_is_asked_for_its_part_of_the_scores(live, loop, tmp_path):
    with Driven(live.url, tmp_path / "teacher", loop=loop, client="teacher") as teacher:
        teacher.play(0, 40)
        teacher.sync()
        live.settle(loop)
        teacher.sync()
        shared = teacher.device._models.shared_scores(b'{"day":"day-1"}', [(name, b"{}") for name in MENU]).tolist()
    with Driven(live.url, tmp_path / "asker", loop=loop, client="asker", download=False) as asker:
        decision = asker.decide({"day": "day-1"}, list(MENU))
        assert list(decision.scores.values()) == shared
        assert decision.model_version == live.settle(loop)
        asker.device.reward(decision.event_id, 1.0)
        assert asker.sync().sent == 1
        assert asker.network.routes() == {"scores": 1, "round": 1, "residuals": 1}


def test_without_scores_the_local_part_decides_alone_and_asking_rests_for_a_while(live, loop, tmp_path):
    with Driven(live.url, tmp_path, ["lost", 503], loop=loop, download=False) as device:
        decision = device.decide({"day": 1})
        assert (set(decision.scores.values()), decision.model_version) == ({0.0}, 0)
        n_sent = len(device.network.sent)
        assert device.decide({"day": 1}).model_version == 0
        assert len(device.network.sent) == n_sent  # it was asked a moment ago
        device.now += 1
        assert device.decide({"day": 1}).model_version == 0
        device.now += 2
        assert device.decide({"day": 1}).model_version == live.settle(loop)
        device.device.reward(decision.event_id, 1.0)
        assert device.sync().sent == 1


def test_settings_that_change_reach_the_device_within_a_minute(live, loop, tmp_path):
    with (
        Driven(live.url, tmp_path, loop=loop) as device,
        client(live) as http,
    ):
        device.sync()
        http.put(f"/v1/loops/{loop}/settings", json={"epsilon": 0.6}).raise_for_status()
        device.sync()
        assert device.decide({}, ["a"]).probability == 1.0
        device.now += 61
        device.sync()
        assert device.device.settings.epsilon == 0.6

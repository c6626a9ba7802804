"""A device of a loop with residual-kalman: offline, beside a real service, and started again."""

import json

import msgspec
import numpy as np
import pytest
from network import MENU, Driven

from fedres.client import Privacy, kalman_device
from fedres.client.choosing import Round
from fedres.client.kalman_device import NAME, KalmanDevice
from fedres.decisions.kalman_document import write_document
from fedres.decisions.kalman_state import Events
from fedres.decisions.residual_kalman import NO_OWNS, ResidualKalman
from fedres.scoring.features import Named, Preparer

OFFLINE = "http://127.0.0.1:1"
ROUND = Round(model=NAME, policy="optimistic-squarecb", gamma=300.0, floor=0.002)


def document(version, n=60, likes="tea"):
    """Return the shared model after n rewards, as the service sends it."""
    model, preparer = ResidualKalman(), Preparer()
    for k in range(n):
        name = [*MENU][k % len(MENU)]
        rows = preparer.hash_all(
            [
                Named("context", None, json.dumps({"day": f"day-{k % 7}"}).encode()),
                Named("action", name, json.dumps(MENU[name]).encode()),
            ]
        )
        hashes = np.frombuffer(bytearray(rows[0].hashes + rows[1].hashes), np.uint32)
        events = Events(
            hashes,
            np.frombuffer(bytearray(rows[0].values + rows[1].values), np.float32),
            np.frombuffer(bytearray(rows[0].fields + rows[1].fields), np.uint32),
            np.array([0, hashes.size], np.int64),
            np.array([rows[0].size], np.int64),
            np.array([name == likes], np.float32),
            np.array([-1], np.int64),
        )
        model.learn_packed(events, NO_OWNS)
    return write_document(model.shared, version, f"{version}-{n}", n)


@pytest.fixture(scope="module")
def shared():
    return document(100)


def driven(folder, url=OFFLINE, **options):
    return Driven(url, folder, learner=NAME, **options)


def test_a_device_that_never_meets_a_service_learns_by_itself(tmp_path):
    with driven(tmp_path) as device:
        device.play(0, 12)
        assert {decision for scores in device.scores() for decision in scores.values()} == {0.0}
        device.play(12, 80)
        assert all(scores["tea"] > max(scores.values()) - 1e-9 for scores in device.scores())
        assert device.device.status().queued == 80


def test_private_features_count_on_the_device(tmp_path):
    with driven(tmp_path) as device:
        for k in range(120):
            mood = ("happy", "sad")[k % 2]
            decision = device.decide({}, MENU, {"mood": mood})
            device.device.reward(decision.event_id, float(decision.action == ("tea" if mood == "sad" else "juice")))
        happy, sad = (device.decide({}, MENU, {"mood": mood}).scores for mood in ("happy", "sad"))
    assert happy["juice"] > happy["tea"]
    assert sad["tea"] > sad["juice"]


def test_a_device_that_is_opened_again_and_again_thinks_the_same_to_the_bit(tmp_path, shared):
    def play(folder, lives):
        for first, last in zip([0, *lives], [*lives, 60], strict=True):
            with driven(folder, clock=lambda: 0.0) as device:
                if not device.device.has_settings:
                    device.device.adopt(ROUND)
                for k in range(first, last):
                    if k in (20, 40):
                        device.device.received(document(k, 20 + k), k)
                    device.play(k, k + 1)
        with driven(folder) as device:
            return device.scores(), [upload.body for upload in device.device.batch(100)]

    assert play(tmp_path / "once", []) == play(tmp_path / "often", [5, 16, 17, 30, 41, 59])


def test_what_waits_is_said_anew_when_another_model_comes(tmp_path, shared):
    with driven(tmp_path) as device:
        device.device.adopt(ROUND)
        device.play(0, 30)
        before = device.device.batch(100)
        device.device.received(shared, 100)
        after = device.device.batch(100)
        assert [upload.version for upload in before + after] == [0] * 30 + [100] * 30
        said = [msgspec.json.decode(upload.body) for upload in (before[20], after[20])]
    assert said[0]["local"] != said[1]["local"]
    assert {**said[0], "local": 0, "variance": 0, "slopes": 0} == {**said[1], "local": 0, "variance": 0, "slopes": 0}


def test_with_privacy_nothing_but_the_released_number_depends_on_the_device(tmp_path, shared):
    privacy, said = Privacy(clip=1.0, noise="gaussian", scale=2.0), []
    for name, mood in (("a", 0), ("b", 5)):
        rng = np.random.default_rng(0)
        with driven(tmp_path / name, privacy=privacy, rng=rng, clock=lambda: 0.0) as device:
            device.device.adopt(ROUND)
            device.play(0, 20)
            released = device.device.batch(100)
            device.device.received(shared, 100)
            assert device.device.batch(100) == released  # what was released once is not released again
            decision = device.decide({"day": "day-1"}, MENU, {"mood": mood})
            device.device.reward(decision.event_id, 1.0)
            said.append(msgspec.json.decode(device.device.batch(100)[-1].body))
    assert [(one["variance"], one["slopes"]) for one in said] == [(5.0, [])] * 2
    assert b"mood" not in msgspec.json.encode(said)


def test_examples_are_bounded(tmp_path, monkeypatch, shared):
    monkeypatch.setattr(kalman_device, "MOST_EXAMPLES", 10)
    with driven(tmp_path) as device:
        device.play(0, 45)
        assert len(device.device._store.examples()) < 20
        device.device.received(shared, 100)
        assert len(device.device._store.examples()) == 10


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"timing": "aligned"}, "timing must be 'immediate' for residual-kalman, got 'aligned'"),
        ({"download": False}, "download must be True for residual-kalman, got False"),
        ({"learner": "vw"}, "learner must be one of residual-kalman, got 'vw'"),
    ],
)
def test_options_that_do_not_suit_the_model_are_refused(tmp_path, option, message):
    with pytest.raises(ValueError, match=message):
        KalmanDevice(tmp_path, **{"client": "phone", **option})


def test_a_device_learns_from_another_through_a_service(live, tmp_path):
    live.make_loop("kalman", model="residual-kalman")
    with driven(tmp_path / "a", live.url, loop="kalman", client="a") as teacher:
        for first in range(0, 100, 10):
            teacher.sync()
            teacher.play(first, first + 10)
        assert teacher.sync().trouble is None
        live.settle()
        assert teacher.device.status().queued == 0
    with driven(tmp_path / "b", live.url, loop="kalman", client="b") as pupil:
        assert pupil.sync().trouble is None
        assert pupil.device.version > 0
        assert all(scores["tea"] == max(scores.values()) for scores in pupil.scores())
        assert pupil.sync().trouble is None
    assert live.engine.digest("kalman") == live.engine.rebuilt("kalman")


def test_a_device_with_the_wrong_learner_works_by_itself_and_says_why(live, tmp_path):
    with driven(tmp_path, live.url) as device:  # the loop default has adagrad here
        device.play(0, 3)
        trouble = device.sync().trouble
    assert "409 no_device_model" in trouble
    assert "has the model 'adagrad', and this device runs 'residual-kalman'" in trouble

"""When a local model learns: at once, or in time with the shared model."""

import msgspec
import numpy as np
import pytest
from network import Driven

from fedres.client.choosing import Round
from fedres.client.local import LocalModel, Step, local_example
from fedres.scoring.model import expand

OFFLINE = "http://127.0.0.1:1"


def example_of(device, context, action):
    """Return the local features of an action, as the device hashes them."""
    hashed = device.device._models.prepare(context, [(action, b"{}")])
    return local_example(expand(hashed, 0))


def test_an_immediate_step_is_that_of_vowpal_wabbit_on_what_the_shared_part_leaves_over(live, tmp_path):
    live.make_loop("immediate", model="adagrad", update_interval=0.005)
    with Driven(live.url, tmp_path / "a", loop="immediate", client="a") as teacher:
        teacher.play(0, 30)
        teacher.sync()
    live.settle("immediate")
    with Driven(live.url, tmp_path / "b", loop="immediate", learner="vw") as device:
        device.sync()
        twin, bounds = LocalModel("linear", 0.1), device.device._models.side.reward_range
        for bound in bounds:
            twin.apply(Step("see", bound))
        for k, label in enumerate([0.0, 1.0, 0.5, 0.0]):
            decision = device.decide({}, ["tea"], event_id=f"e{k}")
            indices, values = example_of(device, b"{}", "tea")
            shared = float(device.device._models.shared_scores(b"{}", [("tea", b"{}")])[0])
            assert shared != 0
            assert decision.scores["tea"] == np.float32(shared) + np.float32(twin.score((indices, values)))
            device.device.reward(decision.event_id, label)
            twin.apply(Step("learn", label, shared, indices.tobytes(), values.tobytes()))
            assert device.device._models.local.score((indices, values)) == twin.score((indices, values))


def test_an_aligned_step_waits_for_the_model_with_its_upload_and_takes_the_slope_of_its_time(live, tmp_path):
    live.make_loop("aligned", model="adagrad", update_interval=0.005)
    with Driven(live.url, tmp_path, loop="aligned", timing="aligned") as device:
        device.sync()
        for k, label in enumerate([1.0, 0.5]):
            device.decide({}, ["tea"], event_id=f"e{k}")
            device.device.reward(f"e{k}", label)
        indices, values = example_of(device, b"{}", "tea")
        local = device.device._models.local
        assert local.score((indices, values)) == 0.0
        assert local.label_range == (0.0, 1.0)
        device.network.faults = iter([None, "lost"])  # the model does not come
        assert device.sync().sent == 2
        live.settle("aligned")
        assert local.score((indices, values)) == 0.0
        device.sync()
        twin = LocalModel("linear", 0.1)
        for slope in (-2.0, -1.0):  # 2(prediction − label) with the zero models of that time
            twin.apply(Step("correct", slope, 0.0, indices.tobytes(), values.tobytes()))
        assert local.score((indices, values)) == twin.score((indices, values)) > 0


def test_aligned_steps_wait_over_a_restart(live, tmp_path):
    live.make_loop("aligned-restart", model="adagrad", update_interval=0.005)
    with Driven(live.url, tmp_path, loop="aligned-restart", timing="aligned") as device:
        device.play(0, 5)
        example = example_of(device, b"{}", "tea")
    with Driven(live.url, tmp_path, loop="aligned-restart", timing="aligned") as device:
        assert device.device._models.local.score(example) == 0.0
        device.sync()
    with Driven(live.url, tmp_path, loop="aligned-restart", timing="aligned") as device:
        live.settle("aligned-restart")
        device.sync()
        assert device.device._models.local.score(example) != 0.0


@pytest.mark.parametrize("why", ["full", "refused", "forgotten"])
def test_an_aligned_step_whose_upload_will_never_arrive_is_taken_at_once(tmp_path, why):
    with Driven(OFFLINE, tmp_path, timing="aligned", queue_limit=3) as device:
        device.play(0, 3)
        example = example_of(device, b'{"day":"day-0","private":{"age":0}}', "tea")
        assert device.device._models.local.score(example) == 0.0
        if why == "full":
            device.play(3, 4)
        elif why == "refused":
            device.device.refused(device.device.batch(1), "for a test")
        else:
            device.device.sent(device.device.batch(3), [7, 8, 9])
            assert device.device._models.local.score(example) == 0.0
            device.device.forget_model()
        assert device.device._models.local.score(example) != 0.0


def test_an_aligned_step_is_taken_at_once_after_a_round_without_upload(tmp_path):
    with Driven(OFFLINE, tmp_path, timing="aligned") as device:
        rule = {"global_learner": "fedomd", "hyperparameters": {"n_clients": 1, "sync": 2}, "number": 0}
        device.device.adopt(Round(bits=8, **rule))
        example = example_of(device, b'{"day":"day-0","private":{"age":0}}', "tea")
        scores = []
        for i in range(4):
            device.play(i, i + 1, likes="everything")
            device.device.reward(device.decide({}, ["tea"], event_id=f"more {i}").event_id, 1.0)
            scores.append(device.device._models.local.score(example))
            assert device.device.status().queued == i + 1
        assert len(set(scores)) > 1


def test_without_a_download_a_version_that_the_service_tells_of_is_as_good_as_its_model(live, tmp_path):
    live.make_loop("told", model="adagrad", update_interval=0.005)
    with Driven(live.url, tmp_path, loop="told", timing="aligned", download=False) as device:
        decision = device.decide({}, ["tea"])
        device.device.reward(decision.event_id, 1.0)
        device.sync()
        live.settle("told")
        example = example_of(device, b"{}", "tea")
        device.decide({}, ["tea"])
        assert device.device._models.local.score(example) > 0


def test_a_loop_that_learns_aligned_is_told_the_shared_part_of_the_prediction(live, tmp_path):
    live.make_loop("told-shared", model="adagrad", timing="aligned", update_interval=0.005)
    with Driven(live.url, tmp_path, loop="told-shared") as device:
        device.sync()
        for first in (0, 20):
            device.play(first, first + 20)
            assert device.sync().trouble is None
            live.settle("told-shared")
        device.sync()
        decision = device.decide({}, ["tea"])
        device.device.reward(decision.event_id, 1.0)
        body = device.device.batch(1)[0].body
        shared = device.device._models.shared_scores(b"{}", [("tea", b"{}")])[0]
        assert msgspec.json.decode(body)["global"] == float(str(shared)) != 0
        assert device.sync().sent == 1

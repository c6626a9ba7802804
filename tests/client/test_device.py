"""A device by itself: what it decides, learns and keeps, without a network."""

import logging
import math
import multiprocessing
import re
import sqlite3
from decimal import Decimal

import numpy as np
import pytest

from fedres.client.adagrad_device import AdaGradDevice
from fedres.client.choosing import Round, choose, probabilities
from fedres.draws import event_draw
from fedres.lease import LeaseHeld
from fedres.policies import loop_rule
from fedres.scoring.features import Named, Preparer
from fedres.scoring.model import SharedModel, learn, score
from service.models.adagrad import PublishedAdagrad
from service.rank.decide import NO_KEY, NO_MEMORY
from service.rank.decide import choose as service_choose
from service.rank.requests import PreparedRequest
from service.settings import Settings

from network import MENU, Driven, payload  # isort: skip

OFFLINE = "http://127.0.0.1:1"


@pytest.fixture
def device(tmp_path):
    with Driven(OFFLINE, tmp_path / "phone") as made:
        yield made


def test_before_the_first_model_all_actions_are_equally_likely(device):
    decision = device.decide({"day": 1})
    assert set(decision.scores.values()) == {0.0}
    assert decision.probability == pytest.approx(1 / 3)
    assert decision.model_version == 0
    assert device.network.sent == []


def test_a_device_learns_what_its_user_likes_without_any_network(device):
    device.play(0, 200, likes="milk")
    assert all(max(scores, key=scores.get) == "milk" for scores in device.scores())


def test_private_features_tell_users_apart_that_look_the_same_to_the_service(device):
    for i in range(300):
        mood = ("low", "high")[i % 2]
        decision = device.decide({}, ["tea", "juice"], private={"mood": mood})
        device.device.reward(decision.event_id, float(decision.action == ("tea" if mood == "low" else "juice")))
    low, high = (device.decide({}, ["tea", "juice"], private={"mood": mood}).scores for mood in ("low", "high"))
    assert low["tea"] > low["juice"]
    assert high["juice"] > high["tea"]


def test_the_same_event_id_is_drawn_the_same_action_on_any_device(tmp_path):
    with Driven(OFFLINE, tmp_path / "a") as one, Driven(OFFLINE, tmp_path / "b", client="other") as two:
        ids = [f"event {k}" for k in range(50)]
        actions = [one.decide({}, event_id=name).action for name in ids]
        assert actions == [two.decide({}, event_id=name).action for name in ids]
        assert actions == [list(MENU)[int(event_draw(name) * 3)] for name in ids]
        assert set(actions) == set(MENU)


@pytest.mark.parametrize("policy", ["epsilon-greedy", "squarecb", "greedy"])
def test_probabilities_and_draws_are_the_services_to_the_bit(policy):
    rng, shared = np.random.default_rng(3), SharedModel(bits=10)
    settings = Settings(model="adagrad", policy=policy, epsilon=0.3, gamma=7.0, reward_range=(-0.5, 0.5))
    mine = Round(policy=policy, epsilon=0.3, gamma=7.0, reward_range=(-0.5, 0.5), n_learned=40)
    for k in range(40):
        context, actions = b'{"day":%d}' % (k % 5), [(f"a{j}", b'{"size":%d}' % j) for j in range(4)]
        prepared = Preparer().prepare(context, actions)
        allowed = rng.random(4) < 0.7
        allowed[k % 4] = True
        rows = Preparer().hash_all([Named("", None, context), *(Named("", *action) for action in actions)])
        hashed = PreparedRequest(None, f"e{k}", rows, allowed.tolist(), event_draw(f"e{k}"), NO_KEY)
        rule = loop_rule(settings), 40
        [(action, chances, _)] = service_choose(
            [hashed], PublishedAdagrad(shared.weights.copy()), NO_MEMORY, rule, crosses=True
        )
        means = score(prepared, shared.weights)[0].astype(np.float64)
        own = probabilities(means, np.zeros(4), allowed, mine, 40)
        assert own.tolist() == chances
        assert choose(f"e{k}", own, mine.draw_prefix) == action
        learn(prepared, int(rng.integers(4)), rng.uniform(-0.5, 0.5), shared)


def test_excluded_actions_are_scored_but_never_taken(device):
    taken = {device.decide({}, exclude=["tea", "milk"]).action for _ in range(30)}
    assert taken == {"juice"}
    assert device.decide({}, exclude=["tea", "milk"]).scores.keys() == MENU.keys()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (({}, {}), {}, "actions must hold at least one action, got none"),
        (({}, ["a", "a"]), {}, "actions must have different ids"),
        (({}, "tea"), {}, "actions must be a list of mappings"),
        (({}, None), {}, "actions must be a list of mappings"),
        (({}, [{"name": "a"}]), {}, "got {'name': 'a'} (dict), with 'name'"),
        (({}, ["a"]), {"exclude": "tea"}, "exclude must be a list of ids, got 'tea'"),
        (({}, [""]), {}, "actions must be text of 1 to 200 characters, got ''"),
        (({}, ["a"]), {"exclude": ["a"]}, "exclude must leave at least one action, got all 1"),
        (({}, ["a"]), {"event_id": "x" * 201}, "event_id must be text of 1 to 200 characters"),
        (({"x": math.nan}, ["a"]), {}, "context.x must be a finite number, got nan"),
        (({"x": [1, "a"]}, ["a"]), {}, "context: x must hold numbers alone"),
        ((["x"], ["a"]), {}, "context must be a mapping from names to values, got ['x'] (list)"),
        (({}, {"a": {"x": 1e300}}), {}, "x must be within ±1e"),
        (({}, ["a"], {"x": math.inf}), {}, "private.x must be a finite number, got inf"),
        (({}, ["a"], {"x": "\ud800"}), {}, "private must be JSON"),
        (({}, ["a"], [1]), {}, "private must be a mapping from names to values, got [1] (list)"),
        (({"private": {"age": 3}}, ["a"]), {}, "context must not hold 'private'"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_and_changes_nothing(device, arguments, options, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        device.decide(*arguments, **options)
    assert device.device.status().waiting == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5, -0.1, None, "1", [1]])
def test_a_reward_that_is_no_number_of_the_range_is_refused_and_can_still_be_given(device, value):
    device.device.adopt(Round(reward_range=(0.0, 1.0)))
    decision = device.decide({})
    with pytest.raises((TypeError, ValueError), match="value must be"):
        device.device.reward(decision.event_id, value)
    assert (device.device.status().waiting, device.device.status().queued) == (1, 0)
    device.device.reward(decision.event_id, 1.0)
    assert (device.device.status().waiting, device.device.status().queued) == (0, 1)


@pytest.mark.parametrize("value", [True, Decimal(1), np.float32(1), np.int64(1), np.bool_(True)])
def test_any_number_is_a_reward(device, value):
    device.device.reward(device.decide({}).event_id, value)
    assert device.device.status().queued == 1


def test_actions_come_in_three_forms_and_ids_come_back_as_they_were_given(device):
    by_id = device.decide({}, {1: {"hot": True}, 2: {}}, event_id=7)
    listed = device.decide({}, [{"id": 1, "features": {"hot": True}}, {"id": 2}])
    assert (by_id.event_id, by_id.action in (1, 2), by_id.scores) == ("7", True, listed.scores)
    assert device.decide({}, (name for name in ["tea"])).action == "tea"
    device.device.reward(7, 1.0)


def test_a_reward_for_an_event_that_is_unknown_or_rewarded_already_is_refused(device):
    decision = device.decide({}, event_id="once")
    with pytest.raises(ValueError, match="event_id must be new, got 'once'"):
        device.decide({}, event_id="once")
    device.device.reward(decision.event_id, 1.0)
    with pytest.raises(TypeError, match=r"event_id must be text, a whole number or a UUID, got .*DeviceDecision"):
        device.device.reward(decision, 1.0)
    for name in ("once", "never"):
        with pytest.raises(ValueError, match=f"event_id must be of a decision that waits for its reward, got '{name}'"):
            device.device.reward(name, 1.0)
    assert device.device.status().queued == 1


def test_a_device_goes_on_after_a_restart_as_if_there_had_been_none(tmp_path, monkeypatch):
    monkeypatch.setattr("fedres.client.models.MOST_STEPS", 7)
    with Driven(OFFLINE, tmp_path / "straight", learner="vw") as straight:
        straight.play(0, 60)
        expected = straight.scores()
    for first in range(0, 60, 12):
        with Driven(OFFLINE, tmp_path / "again", learner="vw") as again:
            again.play(first, first + 12)
    with Driven(OFFLINE, tmp_path / "again", learner="vw") as again:
        assert again.scores() == expected
        assert again.device.status().queued == 60


def test_decisions_wait_for_their_rewards_over_a_restart(tmp_path):
    with Driven(OFFLINE, tmp_path) as device:
        decision = device.decide({"day": 1}, private={"age": 3})
    with Driven(OFFLINE, tmp_path) as device:
        device.device.reward(decision.event_id, 1.0)
        assert device.decide({"day": 1}, private={"age": 3}).scores[decision.action] > 0


def test_a_full_queue_drops_the_oldest_and_says_so(tmp_path, caplog):
    with Driven(OFFLINE, tmp_path, queue_limit=5, clock=lambda: 1e9) as device, caplog.at_level(logging.WARNING):
        device.play(0, 12)
        status = device.device.status()
        assert (status.queued, status.dropped) == (5, 7)
        assert [upload.seq for upload in device.device.batch(10)] == [10**12 + k for k in range(8, 13)]
        assert [record.message for record in caplog.records if "queue is full" in record.message] == [
            "the queue is full: 1 uploads dropped so far, the oldest first"
        ]
    with Driven(OFFLINE, tmp_path, queue_limit=5) as device:
        assert device.device.status().dropped == 7


def test_decisions_that_never_get_a_reward_are_forgotten_in_the_end(tmp_path):
    with Driven(OFFLINE, tmp_path, queue_limit=5) as device:
        ids = [device.decide({}).event_id for _ in range(8)]
        assert device.device.status().waiting == 5
        with pytest.raises(ValueError, match="event_id must be of a decision that waits"):
            device.device.reward(ids[2], 1.0)
        device.device.reward(ids[3], 1.0)


def test_sequence_numbers_of_a_restored_folder_are_new(tmp_path):
    with Driven(OFFLINE, tmp_path, clock=lambda: 1000.0) as device:
        device.play(0, 5)
        first = [upload.seq for upload in device.device.batch(10)]
    with Driven(OFFLINE, tmp_path, clock=lambda: 2000.0) as device:
        device.play(5, 10)
        later = [upload.seq for upload in device.device.batch(10)][5:]
    with Driven(OFFLINE, tmp_path, clock=lambda: 3.0) as device:  # a clock that was set back
        device.play(10, 11)
        last = device.device.batch(20)[-1].seq
    assert first == [1_000_001 + k for k in range(5)]
    assert later == [2_000_001 + k for k in range(5)]
    assert last == later[-1] + 1


def test_two_devices_cannot_share_a_folder(tmp_path):
    with Driven(OFFLINE, tmp_path), pytest.raises(LeaseHeld, match="must have one holder"):
        AdaGradDevice(tmp_path, client="phone", learner="linear")


@pytest.mark.parametrize("other", [{"client": "tablet"}, {"loop": "other"}, {"learner": "vw"}])
def test_a_folder_belongs_to_one_client_loop_and_learner(tmp_path, other):
    with Driven(OFFLINE, tmp_path):
        pass
    [(name, value)] = other.items()
    with pytest.raises(ValueError, match=f"{name} must be '.*', whose folder this is, got '{value}'"):
        AdaGradDevice(tmp_path, **{"client": "phone", "learner": "linear", **other})
    with Driven(OFFLINE, tmp_path):
        pass


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"client": ""}, "client must be text of 1 to 200 characters, got ''"),
        ({"learner": "forest"}, "learner must be one of linear, vw, got 'forest'"),
        ({"timing": "late"}, "timing must be one of aligned, immediate, got 'late'"),
        ({"queue_limit": 0}, "queue_limit must be an integer of at least 1, got 0"),
    ],
)
def test_options_that_break_a_rule_are_refused(tmp_path, option, message):
    with pytest.raises(ValueError, match=message):
        AdaGradDevice(tmp_path, **{"client": "phone", **option})


def test_a_closed_device_says_so(tmp_path):
    device = AdaGradDevice(tmp_path, client="phone", learner="linear")
    device.close()
    device.close()
    with pytest.raises(RuntimeError, match="this device is closed"):
        device.status()


def _status_in_child(device, queue):
    try:
        device.status()
    except RuntimeError as error:
        queue.put(str(error))


def test_a_forked_child_cannot_use_its_parents_device(device):
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    child = fork.Process(target=_status_in_child, args=(device.device, queue))
    child.start()
    child.join()
    assert "this device belongs to process" in queue.get()
    device.play(0, 3)


def test_a_disk_that_fails_leaves_the_device_as_it_was(tmp_path, monkeypatch):
    with Driven(OFFLINE, tmp_path) as device:
        device.device.adopt(Round(global_learner="fedomd", bits=8, hyperparameters={"n_clients": 2}, number=0))
        device.play(0, 10)
        decision, before = device.decide({"day": 1}), device.scores()
        with monkeypatch.context() as patch:
            patch.setattr("fedres.client.store.DeviceStore.write", _full_disk)
            with pytest.raises(OSError, match="no space"):
                device.device.reward(decision.event_id, 1.0)
        assert device.scores() == before
        device.device.reward(decision.event_id, 1.0)
        assert device.scores() != before


def test_a_device_that_cannot_save_its_models_is_closed_all_the_same_and_has_lost_nothing(tmp_path):
    device = Driven(OFFLINE, tmp_path)
    device.play(0, 10)
    scores, disk = device.scores(), device.device._store._db
    disk.execute(f"PRAGMA max_page_count = {disk.execute('PRAGMA page_count').fetchone()[0]}")
    with pytest.raises(sqlite3.OperationalError, match="full"):
        device.device.close()
    with Driven(OFFLINE, tmp_path) as again:
        assert again.scores() == scores
        assert again.device.status().queued == 10
    device.http.close()


@pytest.mark.parametrize("place", [("_models", "apply"), ("_store", "release")])
def test_an_interrupt_at_any_moment_of_a_sync_costs_no_local_step(tmp_path, monkeypatch, place):
    scores = []
    for interrupted in (False, True):
        with Driven(OFFLINE, tmp_path / str(interrupted), timing="aligned") as device:
            device.play(0, 5)
            if interrupted:
                with monkeypatch.context() as patch:
                    patch.setattr(getattr(device.device, place[0]), place[1], _interrupt)
                    with pytest.raises(KeyboardInterrupt):
                        device.device.refused(device.device.batch(5), "for a test")
            device.device.refused(device.device.batch(5), "for a test")
            assert (device.device.status().queued, device.device.status().dropped) == (0, 5)
            scores.append(device.scores())
        with Driven(OFFLINE, tmp_path / str(interrupted), timing="aligned") as device:
            assert device.scores() == scores[-1]
    assert scores[0] == scores[1]


def _interrupt(*_):
    raise KeyboardInterrupt


def _full_disk(*_):
    raise OSError("no space")


def test_without_personal_models_a_device_has_no_part_of_its_own_until_they_are_on_again(device):
    device.play(0, 20)
    learned = device.scores()
    device.device.adopt(Round(personal=False))
    assert {score for scores in device.scores() for score in scores.values()} == {0.0}
    device.play(20, 40)
    device.device.adopt(Round())
    assert device.scores() == learned


def test_another_learning_rate_is_in_force_from_its_coming_on_and_after_a_restart(tmp_path):
    def run(folder, restarts):
        with Driven(OFFLINE, folder) as device:
            device.device.adopt(Round(learning_rate=0.1))
            device.play(0, 20)
            device.device.adopt(Round(learning_rate=0.5))
            device.play(20, 40)
            if not restarts:
                return device.scores()
        with Driven(OFFLINE, folder) as device:
            return device.scores()

    assert run(tmp_path / "a", False) == run(tmp_path / "b", True)


def test_a_new_model_counts_at_once_and_after_a_restart(tmp_path):
    with Driven(OFFLINE, tmp_path) as device:
        device.device.received(payload(version=7, bits=18), 7)
        decision, scores = device.decide({"day": 1}), device.scores()
        assert decision.model_version == 7
        assert len(set(decision.scores.values())) == 3
    with Driven(OFFLINE, tmp_path) as device:
        assert device.scores() == scores


def test_a_model_that_makes_no_sense_is_refused_and_changes_nothing(tmp_path):
    with Driven(OFFLINE, tmp_path) as device:
        device.device.received(payload(version=7, bits=18), 7)
        before = device.scores()
        for wrong in (b"", b"x" * 100, payload(version=9, bits=5)):
            with pytest.raises(ValueError, match="payload must"):
                device.device.received(wrong, 9)
        assert device.scores() == before
    with Driven(OFFLINE, tmp_path) as device:
        assert device.scores() == before


def test_the_journal_is_cut_short_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr("fedres.client.models.MOST_STEPS", 10)
    lengths = []
    with Driven(OFFLINE, tmp_path) as device:
        for i in range(50):
            device.play(i, i + 1)
            lengths.append(len(list(device.device._store.journal())))
    assert 5 < max(lengths) < 10

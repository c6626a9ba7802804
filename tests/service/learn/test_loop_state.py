"""The learner fed by hand: entries as the log has them, times in microseconds."""

import json

import msgspec
import numpy as np
import pytest
from service.engine.guard import Guard
from service.engine.handed import known_body
from service.engine.heads import Base, Clients, Statistics
from service.engine.learner import Erasure, Learner, digest_of, replay
from service.engine.records import RankBody, encode
from service.engine.settings import Settings
from service.store import Entry

from fedres.scoring.model import PersonalModel, SharedModel, expand, score

SECOND = 1_000_000


class Script:
    """Writes the entries of a log."""

    def __init__(self, **settings):
        self.entries = []
        self.log("settings", 0, body=encode(Settings(**{"wait_time": 10.0, **settings})))

    def log(self, kind, seconds, event=None, user=None, body=b"{}", loop="default"):
        seq = len(self.entries) + 1
        self.entries.append(Entry(seq, round(seconds * SECOND), loop, kind, event, user, body))
        return self

    def rank(self, seconds, event, user="u", action=0, loop="default", **more):
        actions = [{"id": f"a{k}", "features": {"k": k}} for k in range(3)]
        body = RankBody(msgspec.Raw(b'{"c": 1}'), actions, action, [0.5, 0.3, 0.2], [0.0] * 3, 1, 1, **more)
        return self.log("rank", seconds, event, user, encode(body), loop)

    def reward(self, seconds, event, value):
        return self.log("reward", seconds, event, body=json.dumps({"value": value}).encode())

    def residual(self, seconds, seq, client="phone", **more):
        action = {"id": "a0", "features": {"k": 0}}
        body = {"context": {"c": 1}, "action": action, "local": 0.25, "label": 1.0, "version": 1, **more}
        return self.log("residual", seconds, f"1/{client}/{seq}", client, json.dumps(body).encode())

    def play(self):
        return replay(self.entries).loops["default"]


def random_script(seed, n=300, **settings):
    rng, script, time = np.random.default_rng(seed), Script(**settings), 0.0
    for k in range(n):
        time += rng.exponential(1.0)
        script.rank(time, f"e{k}", user=f"u{rng.integers(5)}", action=int(rng.integers(3)))
        if rng.random() < 0.7:
            script.reward(time + rng.uniform(0, 0.5), f"e{rng.integers(max(k - 9, 0), k + 2)}", float(rng.random()))
            time = script.entries[-1].time / SECOND
    return script


def test_a_reward_teaches_the_shared_and_the_users_model_about_the_action_taken():
    state = Script().rank(0, "e", action=2).reward(1, "e", 1.0).play()
    prepared = Learner()._preparer.prepare(b'{"c": 1}', [(f"a{k}", b'{"k": %d}' % k) for k in range(3)])
    shared, own = score(prepared, state.shared.weights, state.working["u"])
    assert shared.argmax() == own.argmax() == 2
    assert shared[2] > 0
    assert state.head.version == 3
    assert (state.head.statistics.settled, state.head.statistics.reward) == (1, 1.0)


def test_an_event_without_a_user_or_in_a_loop_without_personal_models_teaches_the_shared_model_alone():
    assert Script().rank(0, "e", user=None).reward(1, "e", 1.0).play().working == {}
    assert Script(personal=False).rank(0, "e").reward(1, "e", 1.0).play().working == {}


def test_a_wait_time_that_runs_out_teaches_the_default_reward_before_the_record_that_says_so():
    waited = Script(default_reward=1.0).rank(0, "e").log("tick", 10).play()
    told = Script(default_reward=1.0).rank(0, "e").reward(1, "e", 1.0).play()
    assert digest_of(waited) == digest_of(told)
    assert waited.head.version == 3
    first = Script().rank(0, "a").rank(5, "b", action=1).reward(11, "b", 1.0).play()
    second = Script().rank(0, "a").rank(5, "b", action=1).log("tick", 10).reward(11, "b", 1.0).play()
    assert digest_of(first) == digest_of(second)


def test_no_default_reward_is_nothing_learned():
    state = Script(default_reward=None).rank(0, "e").log("tick", 10).play()
    assert not state.shared.weights.any()
    assert state.join.n_waiting == state.head.statistics.settled == 0


@pytest.mark.parametrize("settings", [{}, {"aggregation": "sum"}, {"crosses": False}, {"learning_rate": 0.7}])
def test_the_same_log_gives_the_same_bits(settings):
    entries = random_script(0, **settings).entries
    assert digest_of(replay(entries).loops["default"]) == digest_of(replay(entries).loops["default"])
    assert digest_of(replay(entries).loops["default"]) != digest_of(replay(entries[:-2]).loops["default"])


def test_decisions_taken_many_at_once_are_learned_as_one_by_one():
    script = random_script(seed=3, wait_time=5.0)
    script.reward(1e4, "g", 1.0).rank(1e4, "g").rank(1e4, "d", deferred=True)
    script.rank(1e4, "e", loop="other").rank(1e4, "f")
    one_by_one = replay(script.entries)
    entries = [_as_handed(entry) for entry in script.entries]
    learner, n_together = Learner(), 0
    while entries:
        n_taken = learner.apply_ranks(entries)
        n_together += n_taken
        if not n_taken:
            learner.apply(entries[0])
        entries = entries[n_taken or 1 :]
    states = [each.loops["default"] for each in (learner, one_by_one)]
    assert 100 < n_together < 303
    assert digest_of(states[0]) == digest_of(states[1])
    assert states[0].head == states[1].head
    assert states[0].join.slots == states[1].join.slots
    assert states[0].join.n_waiting == states[1].join.n_waiting == 2
    assert (learner.position, learner.time) == (one_by_one.position, one_by_one.time)


def _as_handed(entry):
    state = replay([Entry(1, 0, "default", "settings", None, None, encode(Settings()))]).loops["default"]
    return entry._replace(body=known_body(entry.body, state._read_rank(entry))) if entry.kind == "rank" else entry


def test_settings_hold_from_their_position_on():
    script = Script(default_reward=1.0).rank(0, "before")
    script.log("settings", 1, body=encode(Settings(wait_time=10.0, default_reward=0.0, personal=False)))
    state = script.rank(2, "after", user="v").log("tick", 60).play()
    assert state.head.settings_version == 3
    assert state.head.statistics.reward == 1.0
    assert state.working == {}, "a personal model is learned under the settings at that moment"


def test_a_catalogue_is_looked_up_where_the_decision_was_logged():
    put = {"put": [{"id": "a0", "features": {"k": 0}}, {"id": "b", "features": {}}], "retire": []}
    script = Script().log("actions", 0, body=json.dumps(put).encode())
    body = RankBody(msgspec.Raw(b'{"c": 1}'), [{"id": "a0", "put": 2}], 0, [1.0], [0.0], 1, 1)
    script.log("rank", 1, "e", "u", encode(body)).log("actions", 2, body=b'{"put": [], "retire": ["a0"]}')
    state = script.reward(3, "e", 1.0).play()
    assert list(state.head.catalogue) == ["b"]
    plain = Script().rank(1, "e").reward(3, "e", 1.0).play()
    assert digest_of(state) == digest_of(plain)


def test_an_uploaded_model_takes_the_place_of_the_shared_one():
    model = Script().rank(0, "e").reward(1, "e", 1.0).play().shared.to_bytes()
    state = Script().rank(0, "e").log("model", 1, body=model).play()
    assert state.shared.to_bytes() == model
    assert state.head.version == 3


def test_a_deleted_loop_begins_anew():
    script = Script().rank(0, "e").reward(1, "e", 1.0).log("settings", 2, body=b'{"deleted": true}')
    learner = replay(script.entries)
    assert learner.loops == {}
    assert learner.dropped == [1]
    state = script.log("settings", 3, body=encode(Settings())).play()
    assert state.head.since == 5
    assert digest_of(state) == digest_of(Script().play())


def test_apprentices_agreement_and_the_baseline_are_counted():
    script = Script().rank(0, "a", wished=0).rank(0, "b", wished=2).rank(0, "c", action=1).reward(1, "a", 1.0)
    sums = script.reward(1, "c", 1.0).reward(1, "b", 0.5).play().head.statistics
    assert (sums.ranks, sums.apprentice, sums.agreed) == (3, 2, 1)
    assert (sums.baseline_weight, sums.baseline_reward) == (4.0, 3.0)  # a and b took the first action with p = 1/2
    sums = Script().rank(0, "a", action=1, exclude=["a0"]).reward(1, "a", 1.0).play().head.statistics
    assert sums.baseline_reward == pytest.approx(1 / 0.3)


def test_personal_models_that_are_taken_away_are_asked_for_and_copied():
    entries = random_script(1).entries
    taken = {}
    learner = Learner(lambda since, user: taken.get(user))
    for entry in entries:
        learner.apply(entry)
        if entry.seq % 7 == 0:
            state = learner.loops["default"]
            taken |= state.working
            state.working = {}
    before = {user: model.to_bytes() for user, model in taken.items()}
    state = learner.loops["default"]
    state.working = {**taken, **state.working}
    assert digest_of(state) == digest_of(replay(entries).loops["default"])
    assert {user: model.to_bytes() for user, model in taken.items()} == before


def test_loops_do_not_disturb_each_other():
    one, other = random_script(2).entries, [entry._replace(loop="other") for entry in random_script(3).entries]
    mixed = sorted([*one, *other], key=lambda entry: entry.time)
    learner = replay(mixed)
    assert digest_of(learner.loops["default"]) == digest_of(replay(one).loops["default"])
    assert digest_of(learner.loops["other"]) == digest_of(replay(other).loops["other"])


def test_an_erasure_forgets_the_model_and_the_events_of_that_user_alone():
    script = Script().rank(0, "e").rank(0, "f", user="v").reward(1, "e", 1.0).reward(1, "f", 1.0).rank(2, "g")
    learner = replay(script.entries)
    learner.erasing = Erasure("default", "u", ("e", "g"))
    learner.apply(Entry(9, 3 * SECOND, "default", "erased", None, None, b"{}"))
    state = learner.loops["default"]
    assert list(state.working) == ["v"]
    assert list(state.join.slots) == ["f"]
    assert learner.erased == [(1, "u")]
    assert isinstance(state.working["v"], PersonalModel)
    assert isinstance(state.shared, SharedModel)


def test_a_residual_teaches_the_shared_model_what_the_device_leaves_over():
    state = Script().residual(0, 1).play()
    assert state.working == {}
    assert (state.head.version, state.head.statistics.uploads, state.head.statistics.settled) == (2, 1, 0)
    nothing_left = Script().residual(0, 1, local=1.0).play()
    assert state.shared.weights.any()
    assert not nothing_left.shared.weights.any()


def test_a_residual_settles_what_is_due_before_it():
    waited = Script(default_reward=1.0).rank(0, "e").residual(10, 1).play()
    ticked = Script(default_reward=1.0).rank(0, "e").log("tick", 10).residual(10, 1).play()
    assert digest_of(waited) == digest_of(ticked)


def test_an_upload_that_is_not_learned_from_moves_the_version_all_the_same():
    class Deaf(Guard):
        def weigh(self, client, values, defences, error):
            return values, 0.0

    learner = replay(Script().residual(0, 1).entries)
    state = learner.loops["default"]
    before, state.head.guard = digest_of(state), Deaf()
    learner.apply(Script().residual(0, 1).residual(1, 2).entries[-1])
    assert (digest_of(state), state.head.version) == (before, 3)
    assert (state.head.statistics.uploads, state.head.statistics.passed_over) == (1, 1)


def test_a_residual_weighs_what_the_guard_says_of_its_client_and_its_clipped_features():
    class Halving(Guard):
        def weigh(self, client, values, defences, error):
            assert client == "phone"
            return values / 2, 0.5

    learner = replay(Script().entries)
    learner.loops["default"].head.guard = Halving()
    learner.apply(Script().residual(0, 1).entries[-1])
    keys, values = expand(learner._preparer.prepare(b'{"c": 1}', [("a0", b'{"k": 0}')]), 0)
    model = SharedModel()
    model.learn((keys, values / 2), 1.0, 0.25, 0.5)
    assert np.array_equal(learner.loops["default"].shared.weights, model.weights)


def test_clients_join_in_order_and_only_as_many_as_there_are():
    script = Script(global_learner="fedogd", bits=4, hyperparameters={"n_clients": 2})
    for client in ("a", "b", "a", "c"):
        script.log("join", 1, f"1/{client}", client)
    assert script.play().head.clients == Clients({"a": 0, "b": 1}, 2)


def test_a_base_of_a_log_from_before_there_were_devices_is_read():
    known = msgspec.to_builtins(Base(SharedModel().to_bytes(), 1, Statistics(ranks=3)), builtin_types=(bytes,))
    old = {name: known[name] for name in ("shared", "version")} | {"statistics": {"ranks": 3}}
    state = Script().residual(0, 1).log("base", 0, body=msgspec.msgpack.encode(old)).play()
    assert not state.shared.weights.any()
    assert (state.head.statistics, state.head.clients) == (Statistics(ranks=3), Clients())


def test_settings_of_a_log_from_before_there_were_devices_are_read():
    script = Script()
    script.entries[0] = script.entries[0]._replace(body=b'{"policy": "greedy", "wait_time": 10.0}')
    assert script.play().head.settings == Settings(policy="greedy", wait_time=10.0)


def test_others_have_their_turn_between_events_that_end_together():
    script = Script().rank(0, "a").rank(1, "b").rank(2, "c").log("tick", 60)
    learner, pauses = Learner(), []
    for entry in script.entries:
        learner.apply(entry, lambda: pauses.append(learner.loops["default"].head.statistics.settled))
    assert pauses == [1, 2, 3]

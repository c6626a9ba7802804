"""One loop fed by hand: entries as the log has them, times in microseconds."""

import itertools
import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedres.scoring.features import Named, Prepared, Preparer
from fedres.scoring.model import PersonalModel, SharedModel, expand, learn, score
from service.learn import loop_state
from service.learn.join import Decided, Join, Rules
from service.learn.loop_state import digest, new_loop
from service.log.records import (
    DecisionExample,
    Entry,
    EraseBody,
    HashedExample,
    ResidualExample,
    encode,
    encode_reward,
    read_decision,
    read_reward,
)
from service.models.guard import Guard
from service.models.loop_metadata import Clients
from service.models.memory import MemoryWriter
from service.models.personal import PersonalModels
from service.settings import Settings

SECOND = 1_000_000
RULES = Rules(10 * SECOND, 0.0)
CONTEXT = b'{"c": 1}'
ACTIONS = [(f"a{k}", b'{"k": %d}' % k) for k in range(3)]


@pytest.fixture(scope="module", autouse=True)
def folder():
    with tempfile.TemporaryDirectory(prefix="fedres-test-", dir="/dev/shm") as name:
        Script.folder = Path(name)
        yield


def features(action, context=CONTEXT):
    shared, own = Preparer().hash_all([Named("", None, context), Named("", *ACTIONS[action])])
    return HashedExample(shared.hashes + own.hashes, shared.values + own.values, shared.size, own.fields)


class Script:
    """Writes the entries of a loop's log, whose model is ``adagrad`` unless it is told another."""

    folder, numbers = None, itertools.count()

    def __init__(self, **settings):
        self.entries, self.users, self.settings = [], set(), 1
        self.log("loop", 0, body=encode(Settings(**{"model": "adagrad", "wait_time": 10.0, **settings})))

    def log(self, kind, seconds, event=None, user=None, example=None, body=b"{}"):
        position = len(self.entries) + 1
        self.entries.append(Entry("default", position, round(seconds * SECOND), kind, event, user, example, body))
        self.users |= {user} - {None}
        return self

    def change(self, seconds, **settings):
        """Change the settings; decisions from here on are made under them."""
        self.settings = len(self.entries) + 1
        return self.log(
            "settings", seconds, body=encode(Settings(**{"model": "adagrad", "wait_time": 10.0, **settings}))
        )

    def rank(self, seconds, event, user="u", action=0, *, context=CONTEXT, deferred=False, agreed=None, weight=0.0):
        example = DecisionExample(features(action, context), self.settings, weight, deferred, agreed).encode()
        return self.log("rank", seconds, event, user, example, b"")

    def reward(self, seconds, event, value, name=None):
        return self.log("reward", seconds, event, example=encode_reward(value, name), body=b"")

    def residual(self, seconds, seq, client="phone", local=0.25, label=1.0):
        example = ResidualExample(features(0), 1, label, local, None).encode()
        return self.log("residual", seconds, f"1/{client}/{seq}", client, example, b"")

    def play(self, splits=()):
        """Return the loop after all entries, taken in batches that end at ``splits``."""
        personal = PersonalModels(MemoryWriter(self.folder / f"models-{next(self.numbers)}"))
        state = new_loop(self.entries[0], personal)
        ends = [1, *sorted({min(max(split, 1), len(self.entries)) for split in splits}), len(self.entries)]
        for start, end in itertools.pairwise(ends):
            state.take(self.entries[start:end])
        return state

    def models(self, state):
        """Return the users' models."""
        blocks = {user: state.personal.data(state.metadata.id, user) for user in sorted(self.users)}
        return {user: state.kind.read_personal(data)[1] for user, data in blocks.items() if data is not None}

    def digest(self, splits=()):
        state = self.play(splits)
        return digest(state.shared, ((user, model.to_bytes()) for user, model in self.models(state).items()))


def random_script(seed, n=300, n_names=40, width=3, **settings):
    rng, script, time = np.random.default_rng(seed), Script(**settings), 0.0
    for k in range(n):
        time += rng.exponential(1.0)
        context = json.dumps({f"f{j}": 1 + int(j) % 5 for j in rng.integers(n_names, size=width)}).encode()
        script.rank(time, f"e{k}", f"u{rng.integers(5)}", int(rng.integers(3)), context=context)
        if rng.random() < 0.7:
            script.reward(time + rng.uniform(0, 0.5), f"e{rng.integers(max(k - 9, 0), k + 2)}", float(rng.random()))
            time = script.entries[-1].time / SECOND
    return script


def test_a_reward_teaches_the_shared_and_the_users_model_about_the_action_taken():
    script = Script().rank(0, "e", action=2).reward(1, "e", 1.0)
    state = script.play()
    prepared = Preparer().prepare(CONTEXT, ACTIONS)
    shared, own = score(prepared, state.shared.weights, script.models(state)["u"])
    assert shared.argmax() == own.argmax() == 2
    assert shared[2] > 0
    assert state.metadata.version == 3
    assert (state.metadata.statistics.settled, state.metadata.statistics.reward) == (1, 1.0)


def test_an_event_without_a_user_or_in_a_loop_without_personal_models_teaches_the_shared_model_alone():
    for script in (Script().rank(0, "e", user=None), Script(personal=False).rank(0, "e")):
        state = script.reward(1, "e", 1.0).play()
        assert script.models(state) == {}
        assert state.shared.weights.any()


def test_a_wait_time_that_runs_out_teaches_the_default_reward_before_the_record_that_says_so():
    waited = Script(default_reward=1.0).rank(0, "e").log("tick", 10)
    assert waited.digest() == Script(default_reward=1.0).rank(0, "e").reward(1, "e", 1.0).digest()
    assert waited.play().metadata.version == 3
    first = Script().rank(0, "a").rank(5, "b", action=1).reward(11, "b", 1.0)
    second = Script().rank(0, "a").rank(5, "b", action=1).log("tick", 10).reward(11, "b", 1.0)
    assert first.digest() == second.digest()


def test_no_default_reward_is_nothing_learned():
    state = Script(default_reward=None).rank(0, "e").log("tick", 10).play()
    assert not state.shared.weights.any()
    assert state.join.n_waiting == state.metadata.statistics.settled == 0


@pytest.mark.parametrize("settings", [{}, {"aggregation": "sum"}, {"crosses": False}, {"learning_rate": 0.7}])
def test_the_same_log_gives_the_same_bits(settings):
    script = random_script(0, **settings)
    digests = [script.digest(), script.digest()]
    script.entries = script.entries[:-2]
    assert digests[0] == digests[1] != script.digest()


def one_by_one(script):
    """Return the digest of models that learn from one event after the other, as a program without batches would."""
    join, shared, own = Join(), SharedModel(), {}
    for _, position, time, kind, event, user, example, _ in script.entries:
        settled = [*join.expire(time)]
        if kind == "rank":
            decision = read_decision(example)
            settled.append(join.rank(event, position, time, RULES, Decided(user, decision.features, 1, 0.0), False))
        elif kind == "reward":
            settled.append(join.reward(event, position, time, *read_reward(example), RULES))
        for decided, reward in [(each.decided, each.reward) for each in filter(None, settled)]:
            hashes, values, n_context = decided.features.hashes, decided.features.values, decided.features.n_context
            starts = np.array([n_context, len(hashes) // 4], np.int64)
            prepared = Prepared(np.frombuffer(hashes, np.uint32), np.frombuffer(values, np.float32), starts, True)
            learn(prepared, 0, reward, shared, own.setdefault(decided.user, PersonalModel()))
    return digest(shared, ((user, own[user].to_bytes()) for user in sorted(own)))


RANDOM = random_script(5)
WIDE = random_script(6, n=120, n_names=3_000, width=60)  # fills the tables of users
KALMAN = random_script(5, model="residual-kalman")


@cache
def whole(script):
    """Return the digest of a script that is learned in one batch."""
    return script.digest()


@pytest.mark.parametrize("script", [RANDOM, WIDE], ids=["narrow", "wide"])
def test_a_batch_is_learned_from_as_one_event_after_the_other(script):
    assert script.digest() == one_by_one(script)


@settings(max_examples=25)
@given(st.lists(st.integers(1, len(RANDOM.entries)), max_size=12))
def test_however_a_log_is_split_into_batches_the_models_are_the_same_to_the_bit(splits):
    assert RANDOM.digest(splits) == whole(RANDOM)


@settings(max_examples=15)
@given(st.lists(st.integers(1, len(KALMAN.entries)), max_size=12))
def test_so_are_those_of_residual_kalman(splits):
    assert KALMAN.digest(splits) == whole(KALMAN)


@settings(max_examples=8)
@given(st.lists(st.integers(1, len(WIDE.entries)), max_size=8))
def test_that_holds_also_where_users_have_more_features_than_their_tables_hold(splits):
    assert WIDE.digest(splits) == whole(WIDE)


def test_records_one_at_a_time_leave_the_loop_as_one_batch_does():
    script = random_script(3, wait_time=5.0)
    script.reward(1e4, "g", 1.0).rank(1e4, "g").rank(1e4, "d", deferred=True).rank(1e4, "f")
    together, single = script.play(), script.play(range(len(script.entries)))
    assert together.metadata == single.metadata
    assert together.join.events == single.join.events
    assert together.join.n_waiting == single.join.n_waiting == 2
    assert (together.position, together.time, together.record_checksum) == (
        single.position,
        single.time,
        single.record_checksum,
    )


# a decision is joined with the settings it was made under


def test_the_wait_time_is_that_of_the_decision():
    script = Script(default_reward=1.0).rank(0, "before").change(1, wait_time=100.0).rank(2, "after")
    assert script.log("tick", 10).play().metadata.statistics.settled == 1
    assert script.log("tick", 101).play().join.n_waiting == 1
    assert script.log("tick", 102).play().join.n_waiting == 0


def test_the_default_reward_is_that_of_the_decision():
    script = Script(default_reward=1.0).rank(0, "before").change(1, default_reward=0.0).rank(2, "after")
    sums = script.log("tick", 60).play().metadata.statistics
    assert (sums.settled, sums.reward) == (2, 1.0)
    script = Script(default_reward=None).rank(0, "before").change(1, default_reward=0.5).log("tick", 60)
    assert script.play().metadata.statistics.settled == 0


def test_how_rewards_are_joined_is_that_of_the_decision():
    script = Script(aggregation="sum").rank(0, "e").change(1, aggregation="earliest")
    script.reward(2, "e", 1.0, "a").reward(3, "e", 0.5, "b").log("tick", 60)
    assert script.play().metadata.statistics.reward == 1.5


@pytest.mark.parametrize("changed", [{"learning_rate": 0.01}, {"crosses": False}, {"personal": False}])
def test_learning_rate_crosses_and_personal_models_are_those_of_the_decision(changed):
    before = Script(learning_rate=0.9).rank(0, "e").reward(2, "e", 1.0)
    script = Script(learning_rate=0.9).rank(0, "e").change(1, **{"learning_rate": 0.9, **changed}).reward(2, "e", 1.0)
    assert script.digest() == before.digest()
    after = script.rank(3, "f", action=1).reward(4, "f", 0.0)
    assert after.digest() != before.rank(3, "f", action=1).reward(4, "f", 0.0).digest()
    assert after.digest(range(len(after.entries))) == after.digest()


def test_an_early_reward_waits_as_long_as_the_settings_at_its_coming_say():
    script = Script().change(0, wait_time=100.0).reward(1, "e", 1.0).change(2).rank(50, "e").log("tick", 51)
    assert script.play().metadata.statistics.reward == 1.0


# rare records


def test_the_catalogue_is_what_was_put_and_not_retired_since():
    put = {"put": [{"id": "a0", "features": {"k": 0}}, {"id": "b", "features": {}}], "retire": []}
    script = Script().log("actions", 0, body=json.dumps(put).encode())
    script.log("actions", 2, body=b'{"put": [], "retire": ["a0"]}')
    state = script.play()
    assert (list(state.metadata.catalogue), state.metadata.catalogue["b"].put) == (["b"], 2)
    assert state.metadata.catalogue_version == 3


def test_an_uploaded_model_takes_the_place_of_the_shared_one():
    model = Script().rank(0, "e").reward(1, "e", 1.0).play().shared.to_bytes()
    state = Script().rank(0, "e").log("model", 1, body=model).play()
    assert state.shared.to_bytes() == model
    assert state.metadata.version == 3


def test_what_settled_before_a_model_was_uploaded_is_learned_by_the_one_before():
    model = SharedModel().to_bytes()
    state = Script().rank(0, "e").reward(1, "e", 1.0).log("model", 2, body=model).play()
    assert not state.shared.weights.any()


def test_apprentices_agreement_and_the_baseline_are_counted():
    script = Script().rank(0, "a", agreed=True, weight=2.0).rank(0, "b", agreed=False, weight=2.0)
    script.rank(0, "c", action=1).reward(1, "a", 1.0).reward(1, "c", 1.0).reward(1, "b", 0.5)
    sums = script.play().metadata.statistics
    assert (sums.ranks, sums.apprentice, sums.agreed) == (3, 2, 1)
    assert (sums.baseline_weight, sums.baseline_reward) == (4.0, 3.0)  # a and b took the first action with p = 1/2


def test_an_erasure_forgets_the_model_and_the_events_of_that_user_alone():
    script = Script().rank(0, "e").rank(0, "f", user="v").reward(1, "e", 1.0).reward(1, "f", 1.0).rank(2, "g")
    shared = script.play().shared.to_bytes()
    state = script.log("erase", 3, user="u", body=encode(EraseBody("token"))).play()
    assert list(script.models(state)) == ["v"]
    assert list(state.join.events) == ["f"]
    assert state.metadata.erasing == {"u": "token"}
    assert state.shared.to_bytes() == shared


def test_what_comes_of_a_user_who_is_being_erased_is_ignored_until_that_is_complete():
    script = Script().rank(0, "e").log("erase", 1, user="u", body=encode(EraseBody("token")))
    before = script.digest()
    script.reward(2, "h", 1.0).rank(2, "h").reward(2, "e", 1.0).reward(3, "h", 0.5).log("activate", 3, "e")
    script.residual(3, 1, client="u").log("tick", 60)
    assert script.digest() == before
    script.log("erased", 61, body=b'{"records": 7, "base": 3, "token": "token"}')
    state = script.play()
    assert (state.join.events, [*state.join.unmatched], state.metadata.erasing) == ({}, [], {})
    assert state.metadata.erased == ["token"]
    assert script.rank(62, "new").reward(63, "new", 1.0).digest() != before


def test_a_residual_teaches_the_shared_model_what_the_device_leaves_over():
    script = Script().residual(0, 1)
    state = script.play()
    assert script.models(state) == {}
    assert (state.metadata.version, state.metadata.statistics.uploads, state.metadata.statistics.settled) == (2, 1, 0)
    assert state.shared.weights.any()
    assert not Script().residual(0, 1, local=1.0).play().shared.weights.any()


def test_a_residual_settles_what_is_due_before_it():
    waited = Script(default_reward=1.0).rank(0, "e").residual(10, 1)
    assert waited.digest() == Script(default_reward=1.0).rank(0, "e").log("tick", 10).residual(10, 1).digest()


def test_an_upload_that_is_not_learned_from_moves_the_version_all_the_same():
    class Deaf(Guard):
        def weigh(self, client, values, defences, error):
            return values, 0.0

    script = Script().residual(0, 1)
    state, before = script.play(), script.digest()
    state.metadata.guard = Deaf()
    state.take(script.residual(1, 2).entries[-1:])
    assert (digest(state.shared, []), state.metadata.version) == (before, 3)
    assert (state.metadata.statistics.uploads, state.metadata.statistics.passed_over) == (1, 1)


def test_a_residual_weighs_what_the_guard_says_of_its_client_and_its_clipped_features():
    class Halving(Guard):
        def weigh(self, client, values, defences, error):
            assert client == "phone"
            return values / 2, 0.5

    state = Script().play()
    state.metadata.guard = Halving()
    state.take(Script().residual(0, 1).entries[-1:])
    keys, values = expand(Preparer().prepare(CONTEXT, ACTIONS[:1]), 0)
    model = SharedModel()
    model.learn((keys, values / 2), 1.0, 0.25, 0.5)
    assert np.array_equal(state.shared.weights, model.weights)


def test_clients_join_in_order_and_only_as_many_as_there_are():
    script = Script(global_learner="fedogd", bits=4, hyperparameters={"n_clients": 2})
    for client in ("a", "b", "a", "c"):
        script.log("join", 1, f"1/{client}", client)
    assert script.play().metadata.clients == Clients({"a": 0, "b": 1}, 2)


def test_settings_are_kept_while_events_wait_under_them_and_without_annotations():
    """Every change was kept for ever, with 20,000 characters of annotations: 42 KB of memory and of each snapshot."""
    script = Script()
    for k in range(300):
        script.change(k, learning_rate=0.1 + k / 1000, annotations={"note": "x" * 1_000})
    script.rank(300, "waits", deferred=True)
    for k in range(300):
        script.change(301 + k, learning_rate=0.5 + k / 1000, annotations={"note": "y" * 1_000})
    head = script.play().metadata
    assert len(head.history) == 1 + 600  # all of it may be read again after a restart
    assert not any(kept.annotations for kept in head.history.values())
    assert head.settings.annotations == {"note": "y" * 1_000}


def test_settings_that_no_event_needs_are_forgotten(monkeypatch):
    monkeypatch.setattr(loop_state, "REJOINED", 10)
    script = Script()
    for k in range(500):
        script.change(k, learning_rate=0.1 + k / 1000)
    script.rank(500, "settled").reward(501, "settled", 1.0)
    script.rank(502, "waits", deferred=True)
    for k in range(500):
        script.change(503 + k, learning_rate=0.7 + k / 10_000)
    script.log("activate", 1_100, "waits").reward(1_101, "waits", 0.5)
    waiting, state = script.play([300, 600, 900]), script.play()
    assert waiting.shared.to_bytes() == state.shared.to_bytes()
    assert len(state.metadata.history) == 101 + 500  # and 100 more than are needed
    script.change(1_102).rank(1_103, "new").reward(1_104, "new", 1.0)
    assert len(script.play().metadata.history) < 120
    assert script.play().shared.to_bytes() == script.play(range(0, 1_000, 7)).shared.to_bytes()

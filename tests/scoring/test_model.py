import hashlib
import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from vowpalwabbit import Workspace

from fedres import LinearLearner
from fedres.scoring.explaining import explain
from fedres.scoring.features import Preparer
from fedres.scoring.model import PersonalModel, SharedModel, expand, learn, score


def random_example(rng, n_keys=40, size=12):
    """Return keys of which some come twice, and values of which some are 0."""
    keys = (rng.integers(n_keys, size=size) * 0x9E3779B1 % 2**32).astype(np.uint32)
    values = (rng.normal(size=size) * (rng.random(size) < 0.8)).astype(np.float32)
    return keys, values


def random_request(rng, preparer, n_actions=4):
    context = {"hour": int(rng.integers(24)), "day": f"d{rng.integers(7)}", "near": [float(rng.normal()), 1.5]}
    actions = [(f"a{k}", json.dumps({"topic": f"t{k % 3}", "price": k / 7}).encode()) for k in range(n_actions)]
    return preparer.prepare(json.dumps(context).encode(), actions)


@pytest.mark.parametrize("rate", [0.1, 10.0])
def test_the_shared_model_is_a_linear_learner_to_the_bit(rate):
    rng, bits = np.random.default_rng(0), 4  # 40 keys on 16 weights: many collide
    model, twin = SharedModel(bits, rate), LinearLearner(2**bits, rate)
    for _ in range(500):
        keys, values = random_example(rng)
        features = (keys >> np.uint32(32 - bits), values)
        label, offset = rng.normal(size=2)
        assert model.score((keys, values)) == twin.score(features)
        model.learn((keys, values), label, offset)
        twin.learn(features, label, offset)
        assert np.array_equal(model.weights, twin.weights)
        assert model.reward_range == twin.label_range


@pytest.mark.parametrize("rate", [0.1, 10.0])
def test_a_personal_model_is_a_linear_learner_to_the_bit_while_it_grows(rate):
    rng, n_keys = np.random.default_rng(1), 300
    model, twin = PersonalModel(rate), LinearLearner(n_keys, rate)
    place = {int(k * 0x9E3779B1 % 2**32) or 1: k for k in range(n_keys)}
    for t in range(500):
        keys, values = random_example(rng, n_keys=min(n_keys, t + 1))
        features = (np.array([place[int(key) or 1] for key in keys]), values)
        label, offset = rng.uniform(-2, 3, size=2)
        for end in (-2.0, 3.0):
            twin.see(end)
        assert model.score((keys, values)) == twin.score(features)
        model.learn((keys, values), label, offset, (-2.0, 3.0))
        twin.learn(features, label, offset)
    assert len(model) > 200
    assert model.constant == twin.weights[-1]
    assert {place[key]: weight for key, weight in model.weights.items()} == {
        place[key]: twin.weights[place[key]] for key in model.weights
    }


def test_a_weighted_step_is_that_of_vowpal_wabbit():
    rng, model = np.random.default_rng(2), SharedModel(18, 0.5)
    with Workspace("--adaptive -l 0.5 --quiet") as vw:
        for _ in range(200):
            indices = rng.choice(20, size=5, replace=False)
            values = rng.integers(1, 4, size=5)  # whole numbers: VW's reading of text is exact for those alone
            label, weight = rng.integers(-3, 6), rng.integers(1, 5)
            text = "| " + " ".join(f"{i}:{x}" for i, x in zip(indices, values, strict=True))
            example = (indices.astype(np.uint32) << np.uint32(14)), values.astype(np.float32)
            assert vw.predict(text) == min(max(model.score(example), model.reward_range[0]), model.reward_range[1])
            vw.learn(f"{label} {weight} {text}")
            model.learn(example, label, weight=weight)


def test_scores_of_a_request_are_those_of_its_actions_one_by_one():
    rng, preparer = np.random.default_rng(3), Preparer()
    shared, personal = SharedModel(12), PersonalModel()
    for _ in range(50):
        prepared = random_request(rng, preparer)
        parts = score(prepared, shared.weights, personal)
        examples = [expand(prepared, action) for action in range(4)]
        assert parts[0].tolist() == [shared.score(example) for example in examples]
        assert parts[1].tolist() == [personal.score(example) for example in examples]
        assert not score(prepared, shared.weights)[1].any()
        learn(prepared, int(rng.integers(4)), float(rng.random()), shared, personal)
    assert len(set(parts[0])) == len(set(parts[1])) == 4


def test_without_crosses_only_context_and_action_features_are_there():
    request = (b'{"a": 2, "b": 3}', [("x", b'{"c": 5}')])
    assert expand(Preparer(crosses=False).prepare(*request), 0)[1].tolist() == [2, 3, 1, 5]
    assert expand(Preparer().prepare(*request), 0)[1].tolist() == [2, 3, 1, 5, 2, 10, 3, 15]


def test_the_same_name_has_different_weights_in_context_action_and_cross():
    keys, _ = expand(Preparer().prepare(b'{"a": 1}', [("x", b'{"a": 1}')]), 0)
    assert len(set(keys.tolist())) == keys.size == 5


def test_both_models_learn_what_the_other_as_it_was_leaves_over():
    rng, preparer = np.random.default_rng(4), Preparer()
    shared, personal = SharedModel(12), PersonalModel()
    alone, own = SharedModel(12), PersonalModel()
    for _ in range(50):
        prepared, reward, weight = random_request(rng, preparer), float(rng.normal()), float(rng.uniform(0.5, 2))
        learn(prepared, 2, reward, shared, personal, weight)
        example = expand(prepared, 2)
        shared_part, personal_part = alone.score(example), own.score(example)
        alone.learn(example, reward, personal_part, weight)
        own.learn(example, reward, shared_part, alone.reward_range, weight)
    assert shared.to_bytes() == alone.to_bytes()
    assert personal.to_bytes() == own.to_bytes()


def test_a_first_reward_of_0_teaches_a_new_user_s_model_where_others_are_rewarded():
    prepared = Preparer().prepare(b"{}", [("a", b"{}")])
    shared, personal = SharedModel(), PersonalModel()
    for _ in range(20):
        learn(prepared, 0, 1.0, shared, PersonalModel())
    learn(prepared, 0, 0.0, shared, personal)
    assert personal.score(expand(prepared, 0)) < 0


def digest_after(n_steps, shared, personal, seed=5):
    rng, preparer = np.random.default_rng(seed), Preparer()
    for _ in range(n_steps):
        learn(random_request(rng, preparer), int(rng.integers(4)), float(rng.random()), shared, personal)
    return hashlib.sha256(shared.to_bytes() + personal.to_bytes()).hexdigest()


def test_models_are_a_function_of_what_they_learned_in_order():
    first = digest_after(100, SharedModel(), PersonalModel())
    assert first == digest_after(100, SharedModel(), PersonalModel())
    assert first != digest_after(100, SharedModel(), PersonalModel(), seed=6)


def test_models_go_on_from_their_bytes_as_if_never_written():
    shared, personal = SharedModel(12, 0.3), PersonalModel(0.2)
    digest_after(60, shared, personal)
    again = SharedModel.from_bytes(shared.to_bytes(), 0.3), PersonalModel.from_bytes(personal.to_bytes(), 0.2)
    assert again[0].reward_range == shared.reward_range
    assert again[1].weights == personal.weights
    assert digest_after(60, *again, seed=7) == digest_after(60, shared, personal, seed=7)


@pytest.mark.parametrize("model", [SharedModel(5), PersonalModel()])
def test_damaged_bytes_are_refused(model):
    state = model.to_bytes()
    for damaged in (state[:-1], state[:10], b"", b"XXXX" + state[4:], state + b"\0"):
        with pytest.raises(ValueError, match="state must"):
            type(model).from_bytes(damaged)
    for at in range(4, len(state)):
        with pytest.raises(ValueError, match="undamaged"):
            type(model).from_bytes(state[:at] + bytes([state[at] ^ 1]) + state[at + 1 :])


def test_a_personal_model_of_100_features_takes_less_than_2_kilobytes():
    model = PersonalModel()
    model.learn((np.arange(100, dtype=np.uint32), np.ones(100, np.float32)), 1.0, 0.0, (0.0, 1.0))
    assert len(model) == 99  # the keys 0 and 1 are one
    assert len(model.to_bytes()) <= 1_300
    assert model.nbytes <= 2_200


def test_a_full_personal_model_takes_no_more_features_and_goes_on_with_those_it_has():
    model, one = PersonalModel(max_slots=64), np.ones(1, np.float32)
    for key in range(1, 100):
        model.learn((np.array([key], np.uint32), one), 1.0, 0.0, (0.0, 200.0))
    assert list(model.weights) == list(range(1, 52))
    old, new = (np.array([5], np.uint32), one), (np.array([99], np.uint32), one)
    before = model.score(old) - model.constant
    model.learn(old, 200.0, 0.0, (0.0, 200.0))
    assert model.score(old) - model.constant > before
    assert model.score(new) == model.constant
    smaller = PersonalModel.from_bytes(model.to_bytes(), max_slots=32)
    assert smaller.to_bytes() == model.to_bytes()


def test_a_step_without_error_and_a_value_of_0_take_no_place():
    model, keys = PersonalModel(), np.array([1, 2], np.uint32)
    model.learn((keys, np.ones(2, np.float32)), 0.5, 0.5, (0.0, 1.0))
    assert len(model) == 0
    model.learn((keys, np.array([0, 1], np.float32)), 1.0, 0.5, (0.0, 1.0))
    assert list(model.weights) == [2]


def test_published_weights_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        SharedModel(4).weights[0] = 1.0


def test_an_explanation_adds_up_to_the_score_and_names_the_strongest_pairs():
    shared, personal = SharedModel(), PersonalModel()
    digest_after(100, shared, personal)
    context, action = b'{"hour": 9, "day": "d1", "unseen": "x"}', ("a1", b'{"topic": "t1", "price": 0.14}')
    parts = score(Preparer().prepare(context, [action]), shared.weights, personal)
    explanation = explain(context, action, shared.weights, personal, top=1_000)
    assert (explanation.shared, explanation.personal) == (parts[0][0], parts[1][0])
    assert sum(c.shared for c in explanation.strongest) == pytest.approx(explanation.shared, abs=1e-5)
    assert sum(c.personal for c in explanation.strongest) == pytest.approx(explanation.personal, abs=1e-5)
    assert {("hour", "topic=t1"), ("day=d1", ""), ("", "_id=a1"), ("", "")} <= {c[:2] for c in explanation.strongest}
    sizes = [abs(c.shared + c.personal) for c in explanation.strongest]
    assert sizes == sorted(sizes, reverse=True)
    assert explain(context, action, shared.weights, personal, top=3).strongest == explanation.strongest[:3]
    assert not any(c.personal for c in explain(context, action, shared.weights, crosses=False).strongest)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: SharedModel(bits=0), "bits must be an integer of at least 1, got 0"),
        (lambda: SharedModel(bits=29), "bits must be at most 28, got 29"),
        (lambda: SharedModel(learning_rate=0), "learning_rate must be positive"),
        (lambda: PersonalModel(max_slots=100), "max_slots must be a power of two, got 100"),
        (lambda: PersonalModel(learning_rate=float("nan")), "learning_rate must be positive"),
        (lambda: expand(Preparer().prepare(b"{}", [("a", b"")]), 1), r"action must be in \[0, 1\), got 1"),
        (lambda: SharedModel(4).learn(random_example(np.random.default_rng(0)), float("inf")), "reward must be finite"),
        (lambda: SharedModel(4).learn(random_example(np.random.default_rng(0)), 1.0, 0.0, 0.0), "weight must be posit"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong, message):
    with pytest.raises(ValueError, match=message):
        wrong()


@dataclass
class Shop:
    """Users who each want one action in the morning and one in the evening, and get 1 for it and 0 for all else."""

    favourites: np.ndarray  # (users, 2)
    n_actions: int = 5
    preparer: Preparer = field(default_factory=Preparer)

    def play(self, rng, n_rounds, epsilon=0.2):
        """Return the shared model and, for each round, whether the greedy action was the one wanted."""
        shared, personal = SharedModel(), [PersonalModel() for _ in self.favourites]
        right = np.empty(n_rounds, bool)
        for t in range(n_rounds):
            user, part = rng.integers(len(self.favourites)), rng.integers(2)
            prepared = self.request(part, rng)
            best = greedy(prepared, shared, personal[user], rng)
            right[t] = best == self.favourites[user, part]
            chosen = int(rng.integers(self.n_actions)) if rng.random() < epsilon else best
            learn(prepared, chosen, float(chosen == self.favourites[user, part]), shared, personal[user])
        return shared, right

    def request(self, part, rng):
        context = {"daypart": ["morning", "evening"][part], "device": ["phone", "web"][rng.integers(2)]}
        actions = [(f"a{k}", json.dumps({"topic": f"t{k % 3}"}).encode()) for k in range(self.n_actions)]
        return self.preparer.prepare(json.dumps(context).encode(), actions)


def greedy(prepared, shared, personal, rng):
    total = np.add(*score(prepared, shared.weights, personal))
    return int(rng.choice(np.flatnonzero(total == total.max())))


def test_users_with_tastes_of_their_own_get_what_they_want_within_100_rounds_each():
    rates = []
    for rng in np.random.default_rng(9).spawn(5):
        shop = Shop(rng.integers(5, size=(20, 2)))
        rates.append(shop.play(rng, 2_000)[1][-400:].mean())
    assert np.mean(rates) > 0.9


def test_a_new_user_is_served_by_the_taste_of_all_others():
    rng = np.random.default_rng(10)
    shop = Shop(np.tile([1, 3], (30, 1)))
    shared, right = shop.play(rng, 2_000)
    first = [
        greedy(shop.request(part, rng), shared, PersonalModel(), rng) == [1, 3][part]
        for part in rng.integers(2, size=100)
    ]
    assert np.mean(first) > 0.8
    assert right[-400:].mean() > 0.9

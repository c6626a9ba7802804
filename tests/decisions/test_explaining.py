"""Explanations add up to what is predicted."""

import json

import numpy as np
import pytest

from fedres.decisions.explaining import explain
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of, request_of
from fedres.scoring.features import Named, Preparer
from fedres.scoring.flattening import FeatureLimits, action_features, flatten


def hashed(context, action):
    name, features = action
    texts = json.dumps(context).encode(), json.dumps(features).encode()
    rows = Preparer().hash_all([Named("", None, texts[0]), Named("", name, texts[1])])
    return rows, (flatten(texts[0], FeatureLimits()), action_features(name, texts[1], FeatureLimits()))


def request(rows):
    numbers = [(np.frombuffer(r.hashes, np.uint32), np.frombuffer(r.values, np.float32)) for r in rows]
    return request_of(numbers[0], [(*numbers[1], np.frombuffer(rows[1].fields, np.uint32))])


def drawn(rng):
    context = {"hour": int(rng.integers(24)), "day": f"d{rng.integers(7)}", "city": f"c{rng.integers(60)}"}
    return context, (f"a{rng.integers(3)}", {"price": float(rng.lognormal()), "topic": f"t{rng.integers(2)}"})


def pair_of(action):
    return float((action[1]["topic"] == "t1") == (action[1]["price"] > 1))


def taught(n, rng, together=0.0):
    model, own = ResidualKalman(), NO_MODEL
    for _ in range(n):
        context, action = drawn(rng)
        reward = float(context["hour"] > 12) * float(action[0] == "a1") + together * pair_of(action)
        (own,) = model.learn(events_of([(request(hashed(context, action)[0]), 0, reward, 0)]), [own])
    return model, own


def test_contributions_add_up_to_the_shared_and_the_personal_part():
    rng = np.random.default_rng(0)
    model, own = taught(120, rng)
    for k in range(20):
        rows, names = hashed(*drawn(rng))
        mine = [own, NO_MODEL, None][k % 3]
        explanation = explain(model.shared, mine, rows, names, top=1_000)
        predicted = model.predict(request(rows), mine)
        assert (explanation.shared, explanation.personal) == (predicted.shared[0], predicted.personal[0])
        assert explanation.width == predicted.widths[0]
        assert sum(one.shared for one in explanation.strongest) == pytest.approx(explanation.shared, abs=1e-6)
        assert sum(one.personal for one in explanation.strongest) == pytest.approx(explanation.personal, abs=1e-6)
        assert (explanation.personal != 0) == (k % 3 == 0)


def test_what_matters_is_named_first():
    rng = np.random.default_rng(1)
    model, own = taught(300, rng)
    explanation = explain(model.shared, own, *hashed({"hour": 20, "day": "d1"}, ("a1", {"topic": "t0"})), top=3)
    assert {"_id=a1", ""} >= {one.action for one in explanation.strongest[:1]}
    assert len(explanation.strongest) == 3


def test_what_two_features_mean_together_is_named_by_both():
    rng = np.random.default_rng(2)
    model, own = taught(1500, rng, together=1.0)
    for topic in ("t0", "t1"):
        explanation = explain(model.shared, own, *hashed({"day": "d1"}, ("a0", {"price": 3.0, "topic": topic})))
        (pair,) = [one for one in explanation.strongest if "&" in one.action]
        assert (pair.context, pair.action) == ("", f"price & topic={topic}")
        assert (pair.shared > 0.05) == (topic == "t1")

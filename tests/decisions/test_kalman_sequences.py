"""Random sequences of what happens to a model: it learns, is saved and loaded, and forgets its events."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedres.decisions.constants import ID_FIELD
from fedres.decisions.kalman_state import ARRAYS, FIELDS, Shared
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of, request_of

SETTINGS = {
    "as in the service": {"choice_events": 80},
    "everything is replaced": {"max_blocks": 4, "tail_bits": 4, "own_bytes": 300},
    "blocks are replaced": {"max_blocks": 4, "choice_events": 0},
}
# What happens, one after the other. All steps come with the seed of what is learned, of which most need none.
STEPS = st.lists(
    st.tuples(st.sampled_from(["learn", "learn", "restart", "export", "forget"]), st.integers(0, 99)), max_size=12
)


def batch(seed, first, size):
    """Return events and their users; their contexts, fields and ids are new ones again and again."""
    rng, examples, users = np.random.default_rng(seed), [], []
    for number in range(first, first + size):
        n_fields = 2 + number // 12
        fields = rng.choice(n_fields, min(3, n_fields), replace=False)
        context = rng.choice(4 + number // 4, 3, replace=False), np.exp(rng.normal(size=3))
        action = [100 * field + int(rng.integers(3)) for field in fields] + [7_000 + number // 3]
        names = [20 + int(field) for field in fields] + [ID_FIELD]
        values = [float(rng.choice([1.0, 1.0, 0.0, 2.5])) for _ in fields] + [1.0]
        user = int(rng.integers(-1, 2 + number // 20))
        if user >= 0 and user not in users:
            users.append(user)
        place = users.index(user) if user >= 0 else -1
        examples.append((request_of(context, [(action, values, names)]), 0, float(rng.random() < 0.4), place))
    return events_of(examples), users


def learn(model, owns, events, users):
    learned = model.learn(events, [owns.get(user, NO_MODEL) for user in users])
    owns.update(zip(users, learned, strict=True))


def loaded(arrays, how):
    model = ResidualKalman(**how)
    model.load_arrays(arrays)
    return model


def bits(model, owns):
    arrays = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in model.to_arrays().items()}
    return arrays, {user: words.tobytes() for user, words in owns.items()}


@pytest.mark.parametrize("how", SETTINGS.values(), ids=SETTINGS)
@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_a_model_that_is_loaded_again_and_again_learns_as_one_that_never_was(how, steps):
    straight, restarted, straight_owns, owns, n = ResidualKalman(**how), ResidualKalman(**how), {}, {}, 0
    for step, seed in [("learn", 0), *steps, ("learn", 1)]:
        if step == "learn":
            size = 5 + seed % 20
            events, users = batch(seed, n, size)
            n += size
            learn(straight, straight_owns, events, users)
            learn(restarted, owns, events, users)
        elif step == "restart":
            restarted = loaded(restarted.to_arrays(), how)
        elif step == "export":
            restarted = loaded(restarted.to_arrays(events=False), how)
            straight.forget_events()
        else:
            assert restarted.forget_events() == straight.forget_events()
        assert bits(restarted, owns) == bits(straight, straight_owns)
    again = loaded(restarted.to_arrays(), how)
    assert bits(again, owns) == bits(straight, straight_owns)


def test_a_new_field_after_a_restart_is_learned_within_the_arrays():
    model, owns = ResidualKalman(), {}
    learn(model, owns, *batch(1, 0, 30))
    model = loaded(model.to_arrays(), {})
    n_fields = int(model.shared.counts[FIELDS])
    learn(model, owns, *batch(2, 60, 30))
    assert model.shared.counts[FIELDS] > n_fields
    assert len(model.to_arrays()["log_tau"]) == model.shared.counts[FIELDS]


def test_each_array_of_a_model_has_a_specification():
    assert tuple(ARRAYS) == Shared._fields


@pytest.mark.parametrize("name", [name for name, spec in ARRAYS.items() if spec.saved])
def test_arrays_of_other_lengths_are_refused_before_anything_is_learned_from_them(name):
    model = ResidualKalman(max_blocks=4)
    learn(model, {}, *batch(3, 0, 60))
    arrays = model.to_arrays()
    before = bits(model, {})
    with pytest.raises(ValueError, match="state: "):
        model.load_arrays({**arrays, name: arrays[name][:-1]})
    with pytest.raises(ValueError, match="state: arrays must be"):
        model.load_arrays({key: array for key, array in arrays.items() if key != name})
    assert bits(model, {}) == before

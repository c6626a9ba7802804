"""The contract of models: what holds for each in the table."""

import numpy as np
import pytest

from fedres.policies import loop_rule
from fedres.scoring.features import Named, Preparer
from service.log.records import HashedExample
from service.models.loop_metadata import LoopMetadata
from service.models.memory import MemoryWriter, personal_key
from service.models.personal import PersonalModels
from service.models.protocol import LearnedEvent, ModelKind, RequestColumns, ScoredRequest, joined_rows
from service.models.table import MODELS, model_kind
from service.settings import Settings

ACTIONS = [("tea", b'{"hot": true}'), ("beer", b'{"hot": false}')]
N_EVENTS = 60


def hashed(day):
    named = [Named("context", None, b'{"day": "%d"}' % day), *(Named("action", *action) for action in ACTIONS)]
    return Preparer().hash_all(named)


def events(seed):
    """Yield events in which the action to take depends on the day."""
    rng = np.random.default_rng(seed)
    for position in range(1, N_EVENTS + 1):
        day, action = (int(rng.integers(2)) for _ in range(2))
        context, *actions = hashed(day)
        taken = actions[action]
        features = HashedExample(
            context.hashes + taken.hashes, context.values + taken.values, context.size, taken.fields
        )
        yield LearnedEvent(f"u{position % 3}", features, float(day == action), position)


class Learned:
    """A model that has learned the events."""

    def __init__(self, name, folder):
        self.settings = Settings(model=name)
        self.kind, self.metadata = model_kind(self.settings), LoopMetadata("shop", 1, self.settings, 1, 1)
        self.personal = PersonalModels(MemoryWriter(folder / f"models-{name}"))
        self.shared = self.kind.new(self.settings)
        learned = [*events(7)]
        for start in range(0, N_EVENTS, 20):
            self.shared.learn(learned[start : start + 20], self.settings, self.metadata, self.personal)

    def published(self, shared):
        return self.kind.read_published(np.array(shared.publish(0)[0], np.float32))

    def choose(self, shared, rows):
        columns = RequestColumns(
            np.array([len(ACTIONS)], np.int64),
            np.array([row.size for row in rows], np.int64),
            *joined_rows(rows),
            np.array([personal_key(self.metadata.id, "u0")], np.int64),
            np.ones(len(ACTIONS), np.bool_),
            np.array([0.5]),
        )
        policy = loop_rule(self.settings), N_EVENTS
        return self.published(shared).choose(columns, self.words(), policy, self.settings.crosses)

    def words(self):
        """Return the memory as rankers have it, which must not write: kernels are compiled for that."""
        words = self.personal.memory.words.view()
        words.flags.writeable = False
        return words


@pytest.fixture(params=MODELS)
def model(request, tmp_path):
    return Learned(request.param, tmp_path)


def test_a_model_is_a_module_with_all_that_a_kind_has(model):
    assert [name for name in vars(ModelKind) if not name.startswith("_") and not hasattr(model.kind, name)] == []
    assert model.kind.EVENTS_TO_COMPILE >= 1


def test_a_model_chooses_by_what_it_learned_and_explains_the_same_scores(model):
    published, data = model.published(model.shared), model.personal.data(model.metadata.id, "u0")
    for day in range(2):
        rows = hashed(day)
        [action], (probabilities, scores) = model.choose(model.shared, rows)
        assert probabilities.sum() == pytest.approx(1)
        assert (action in range(2), scores.argmax()) == (True, day)
        scored = ScoredRequest(rows, model.settings, True, published.read_personal(data))
        assert [sum(parts) for parts in published.score_parts(scored)] == pytest.approx(scores.tolist(), abs=1e-5)
        for k, (name, features) in enumerate(ACTIONS):
            one = scored._replace(rows=[rows[0], rows[1 + k]])
            why = published.explain(one, b'{"day": "%d"}' % day, (name, features))
            assert (why.id, why.shared + why.personal) == (name, pytest.approx(scores[k], abs=1e-5))


def test_a_model_is_the_same_after_its_bytes(model):
    again = model.kind.from_bytes(model.settings, model.shared.to_bytes())
    assert again.to_bytes() == model.shared.to_bytes()
    assert model.choose(again, hashed(0))[1].tobytes() == model.choose(model.shared, hashed(0))[1].tobytes()
    assert again.is_finite()
    model.kind.check(model.settings, model.shared.exported(), [model.shared.reward_range])


@pytest.mark.parametrize(
    "name",
    [
        "numbers",
        "log_tau",
        "pair_log_tau",
        "pair_slope_squares",
        "means",
        "covariances",
        "mean_slopes",
        "tail",
        "moment",
    ],
)
def test_a_number_that_is_not_finite_is_found(name, tmp_path):
    shared = Learned("residual-kalman", tmp_path).shared
    getattr(shared.model.shared, name)[-1 if name == "tail" else 0] = np.nan
    assert not shared.is_finite()


def test_users_models_are_the_same_after_their_bytes(model):
    assert model.personal.n_users[model.metadata.id] == 3
    for user in ("u0", "u1", "u2"):
        data = model.personal.data(model.metadata.id, user)
        changed, personal = model.kind.read_personal(data)
        assert N_EVENTS - 3 < changed <= N_EVENTS
        written = np.frombuffer(model.kind.personal_data(changed, personal.to_bytes()), np.uint64).copy()
        again = model.kind.read_personal(written)
        assert (again[0], again[1].to_bytes()) == (changed, personal.to_bytes())
        assert model.published(model.shared).described(personal)


def test_what_changed_is_published_and_then_no_more(model):
    _, changed = model.shared.publish(0)
    assert changed.any()
    changed[:] = 0
    assert not model.shared.publish(0)[1].any()
    model.shared.learn([*events(8)][:5], model.settings, model.metadata, model.personal)
    assert model.shared.publish(0)[1].any()


@pytest.mark.parametrize("spoil", [lambda state: state[:-1], lambda state: b"x" + state[1:], lambda state: b""])
def test_other_bytes_are_refused(model, spoil):
    with pytest.raises(ValueError, match="state"):
        model.kind.from_bytes(model.settings, spoil(model.shared.to_bytes()))

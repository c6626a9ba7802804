import msgspec
import pytest

from service.errors import ApiError
from service.settings import Settings, read_settings


def test_what_is_missing_is_at_its_default():
    assert read_settings({}) == Settings()
    assert read_settings({"epsilon": 0.3, "aggregation": "sum"}) == Settings(epsilon=0.3, aggregation="sum")


def test_settings_survive_json():
    settings = Settings(policy="squarecb", reward_range=(-2.0, 3.0), default_reward=None, wait_time=0.5)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings
    numbers = {"n_clients": 3, "step_size": 1.0, "levels": None}
    dense = Settings(model="adagrad", global_learner="ofediq", bits=4, hyperparameters=numbers)
    again = msgspec.json.decode(msgspec.json.encode(dense), type=Settings)
    assert (again, type(again.hyperparameters["n_clients"])) == (dense, int)


def test_learners_take_residuals_or_updates_of_numbered_clients():
    assert Settings().takes_residuals
    assert not Settings().is_dense
    assert Settings(model="adagrad", global_learner="fedres-sgd", bits=4).takes_residuals
    dense = Settings(model="adagrad", global_learner="fedsea", bits=4, hyperparameters={"n_clients": 7})
    assert (dense.takes_residuals, dense.is_dense, dense.n_clients) == (False, True, 7)


@pytest.mark.parametrize(
    ("fields", "target", "rule"),
    [
        ({"epsilon": 1.2}, "epsilon", "epsilon must be in [0, 1], got 1.2"),
        ({"epsilon": float("nan")}, "epsilon", "epsilon must be in [0, 1], got nan"),
        ({"epsilon": "much"}, "epsilon", "epsilon: Expected `float`, got `str`"),
        ({"gamma": -1}, "gamma", "gamma must be at least 0 and finite, got -1"),
        ({"learning_rate": 0}, "learning_rate", "learning_rate must be positive and finite, got 0"),
        ({"learning_rate": 1e30}, "learning_rate", "learning_rate must be in [0, 1e+06], got 1e+30"),
        (
            {"reward_range": [1, 1]},
            "reward_range",
            "reward_range must be two rising numbers within ±1e+09, got 1.0",
        ),
        ({"reward_range": [0, 1e400]}, "reward_range", "reward_range must be two rising numbers"),
        ({"wait_time": 0}, "wait_time", "wait_time must be in [0.001, 3.16224e+07], got 0"),
        ({"default_reward": 2}, "default_reward", "default_reward must be in [0, 1], got 2"),
        ({"aggregation": "mean"}, "aggregation", "aggregation: Invalid enum value 'mean'"),
        ({"policy": "best"}, "policy", "policy: Invalid enum value 'best'"),
        ({"update_interval": 0}, "update_interval", "update_interval must be in [0.001, 60], got 0"),
        ({"update_interval": 0.001}, "update_interval", "update_interval must be at least 0.005, got 0.001"),
        (
            {"model": "adagrad", "global_learner": "fedres-erm"},
            "global_learner",
            "global_learner: Invalid enum value 'fedres-erm'",
        ),
        ({"bits": 0}, "bits", "bits must be in [1, 24], got 0"),
        ({"bits": 25}, "bits", "bits must be in [1, 24], got 25"),
        ({"model": "adagrad", "global_learner": "fedogd"}, "bits", "bits must be at most 14 for 'fedogd', got 18"),
        ({"timing": "late"}, "timing", "timing: Invalid enum value 'late'"),
        (
            {"model": "adagrad", "global_learner": "fedogd", "bits": 4, "timing": "aligned"},
            "timing",
            "timing must be 'on-arrival' for fedogd, got 'aligned'",
        ),
        (
            {"hyperparameters": {"learning_rate": 2}},
            "hyperparameters",
            "hyperparameters must be none for fedres-adagrad, got learning_rate",
        ),
        (
            {"model": "adagrad", "global_learner": "fedogd", "bits": 4, "hyperparameters": {"step_size": -1}},
            "hyperparameters",
            "hyperparameters: step_size must be positive",
        ),
        (
            {"model": "adagrad", "global_learner": "fedogd", "bits": 4, "hyperparameters": {"learning_rate": 1}},
            "hyperparameters",
            "hyperparameters: learning_rate is not a hyperparameter of 'fedogd'",
        ),
        (
            {"model": "adagrad", "global_learner": "fedogd", "bits": 4, "hyperparameters": {"n_clients": None}},
            "hyperparameters",
            "hyperparameters: n_clients must be an integer of at least 1, got None",
        ),
        ({"defences": {"moat": True}}, "defences", "defences: Object contains unknown field `moat`"),
        ({"colour": 1}, None, "Object contains unknown field `colour`"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(fields, target, rule):
    with pytest.raises(ApiError) as raised:
        read_settings(fields)
    assert raised.value.message.startswith(rule)
    assert (raised.value.status, raised.value.code, raised.value.target) == (422, "invalid_settings", target)

import msgspec
import pytest

from service.engine.settings import Settings, read_settings
from service.errors import ApiError


def test_what_is_missing_is_at_its_default():
    assert read_settings({}) == Settings()
    assert read_settings({"epsilon": 0.3, "aggregation": "sum"}) == Settings(epsilon=0.3, aggregation="sum")


def test_settings_survive_json():
    settings = Settings(policy="squarecb", reward_range=(-2.0, 3.0), default_reward=None, wait_time=0.5)
    assert msgspec.json.decode(msgspec.json.encode(settings), type=Settings) == settings


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
        ({"colour": 1}, None, "Object contains unknown field `colour`"),
    ],
)
def test_settings_that_make_no_sense_are_refused_by_name(fields, target, rule):
    with pytest.raises(ApiError) as raised:
        read_settings(fields)
    assert raised.value.message.startswith(rule)
    assert (raised.value.status, raised.value.code, raised.value.target) == (422, "invalid_settings", target)

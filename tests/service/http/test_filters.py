"""Filters over HTTP: what they leave, and that no filter at all gets anything but a page or a refusal with a reason."""

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

ITEMS = {
    "a": {"genre": ["war", "noir"], "price": 3, "sale": True, "maker": {"country": "fr"}, "year": 1979, "code": "7"},
    "b": {"genre": "war", "price": 0.5, "sale": False, "maker": {"country": "us"}, "mixed": 1},
    "c": {"genre": [], "price": -2, "text": "ünï", "mixed": "one"},
    "d": {"nothing": None, "_huge": 10**400, "_tiny": -(10**400), "_flag": False},
}


@pytest.fixture(scope="module")
def loop(client):
    assert client.post("/v1/loops", json={"name": "filters"}).status_code == 201
    put = [{"id": name, "features": features} for name, features in ITEMS.items()]
    assert client.put("/v1/loops/filters/actions", json={"put": put}).status_code == 204
    return "/v1/loops/filters/recommend"


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        ({}, "abcd"),
        ({"genre": "war"}, "ab"),
        ({"genre": ["noir", "none such"]}, "a"),
        ({"price": 3}, "a"),
        ({"price": [3, 0.5, 99]}, "ab"),
        ({"price": {"min": 0.5}}, "ab"),
        ({"price": {"min": -2, "max": 0.5}}, "bc"),
        ({"price": {"max": 1e308}}, "abc"),
        ({"_huge": {"min": 1e300}}, "d"),
        ({"_huge": {"exists": True}}, "d"),
        ({"_tiny": {"max": 0}}, "d"),
        ({"sale": True}, "a"),
        ({"sale": [True, False]}, "ab"),
        ({"_flag": False}, "d"),
        ({"sale": {"exists": False}}, "cd"),
        ({"maker.country": "us"}, "b"),
        ({"mixed": [1, "one"]}, "bc"),
        ({"text": "ünï"}, "c"),
        ({"none such": {"exists": False}}, "abcd"),
        ({"genre": "war", "price": {"max": 1}}, "b"),
    ],
)
def test_a_filter_leaves_what_it_says(client, loop, conditions, left):
    answer = client.post(loop, content=json.dumps({"n": 10, "filter": conditions}), headers=JSON)
    assert answer.status_code == 200, answer.text
    assert {item["id"] for item in answer.json()["items"]} == {*left}


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("conditions", "code", "target", "words"),
    [
        ({"gender": "x"}, "unknown_attribute", "filter.gender", "it has _flag, _huge"),
        ({"maker": "fr"}, "unknown_attribute", "filter.maker", "maker.country"),
        ({"gender": {"exists": True}}, "unknown_attribute", "filter.gender", "attributes of the catalogue"),
        (
            {"price": "3"},
            "invalid",
            "filter.price",
            "must be a number, got '3'; the catalogue has numbers from -2 to 3",
        ),
        ({"price": True}, "invalid", "filter.price", "must be a number"),
        ({"genre": 3}, "invalid", "filter.genre", "must be one of its values, got 3; it has war, noir"),
        ({"genre": []}, "invalid", "filter.genre", "1 to 1000 values, got 0"),
        ({"genre": ["x"] * 1_001}, "invalid", "filter.genre", "1 to 1000 values, got 1001"),
        ({"genre": None}, "invalid", "filter.genre", "got null"),
        ({"genre": [None]}, "invalid", "filter.genre", "got null"),
        ({"genre": [["war"]]}, "invalid", "filter.genre", "got an array or object"),
        ({"genre": [{"min": 1}]}, "invalid", "filter.genre", "got an array or object"),
        ({"genre": {"min": 1}}, "invalid", "filter.genre", "no numbers to compare"),
        ({"price": {}}, "invalid", "filter.price", "min, max, exists, got an empty object"),
        ({"price": {"least": 1}}, "invalid", "filter.price", "got 'least'"),
        ({"price": {"min": "1"}}, "invalid", "filter.price", "filter.price.min must be a number, got '1'"),
        ({"price": {"max": None}}, "invalid", "filter.price", "filter.price.max must be a number"),
        ({"price": {"min": True}}, "invalid", "filter.price", "must be a number"),
        ({"price": {"exists": 1}}, "invalid", "filter.price", "exists must be true or false"),
        ({"price": {"exists": True, "min": 1}}, "invalid", "filter.price", "and alone"),
        ({"price": {"min": 5, "max": 1}}, "no_candidates", "filter", "price is from -2 to 3"),
        ({"price": {"min": 10**400}}, "invalid", "filter.price", "numbers within ±1.8e+308, got 1000"),
        ({"price": {"min": 1, "max": -(10**400)}}, "invalid", "filter.price", "numbers within ±1.8e+308"),
        ({"price": 10**400}, "invalid", "filter.price", "numbers within ±1.8e+308"),
        ({"price": 2**64}, "no_candidates", "filter", "got none of 4"),
        ({"genre": "none such"}, "no_candidates", "filter", "genre has war, noir"),
        ({f"x{k}": 1 for k in range(21)}, "invalid", "filter", "at most 20 conditions, got 21"),
        ([], "invalid_request", "filter", "object"),
        ("war", "invalid_request", "filter", "object"),
        (None, "invalid_request", "filter", "object"),
    ],
)
def test_a_bad_filter_is_refused_with_a_reason(client, loop, conditions, code, target, words):
    answer = client.post(loop, content=json.dumps({"filter": conditions}), headers=JSON)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["target"]) == (422, code, target), error
    assert words in error["message"]


NAMES = st.sampled_from(["genre", "price", "sale", "maker.country", "maker", "mixed", "_huge", "", "."]) | st.text()
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
LEAVES |= st.sampled_from([10**400, -(10**400), 1e308, "war", "fr", 3, 0.5])
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["min", "max", "exists"]) | st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(conditions=st.dictionaries(NAMES, VALUES, max_size=4) | VALUES)
@example(conditions={"price": [10**400, -(10**400)]})
@example(conditions={"_huge": {"min": -(10**400), "max": 10**400}})
@example(conditions={"\ud800": 1})
@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_filter_gets_anything_but_a_page_or_a_refusal_with_a_reason(client, loop, conditions):
    answer = client.post(loop, content=json.dumps({"n": 3, "filter": conditions}), headers=JSON)
    if answer.status_code == 200:
        assert 1 <= len(answer.json()["items"]) <= 3
    else:
        assert answer.status_code in (400, 422), answer.text  # 400: no JSON, as half a character
        assert answer.json()["error"]["message"]
        assert answer.status_code == 422 or answer.json()["error"]["code"] == "invalid_json"

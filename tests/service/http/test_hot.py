"""How the hot routes tell that no name comes twice, mostly without looking at every name."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import ApiError
from service.http.hot import colons
from service.http.strict import decode, refuse_repeats
from service.ranking.requests import RankRequest

READ = msgspec.json.Decoder(RankRequest)
TEXT = st.sampled_from(["a", "b", "é", "a:b", '"', "\\\n", '"user":"x",'])
FEATURES = st.sampled_from([{}, {"x": 1}, {"x": {"y": "a:b"}}, None])
ACTION = st.lists(st.tuples(st.just("features"), FEATURES), max_size=2).map(lambda more: [("id", "a"), *more])
FIELDS = [
    st.tuples(st.just("context"), FEATURES),
    st.tuples(st.sampled_from(["user", "event_id"]), TEXT | st.none()),
    st.tuples(st.just("exclude"), st.lists(TEXT, max_size=3)),
    st.tuples(st.sampled_from(["defer", "explain"]), st.booleans()),
]
PADDING = st.sampled_from(["", " ", "\t ", "\n" * 20])


def written(pairs, space):
    """Return an object as JSON with all its pairs, repeated or not, and ``space`` after its punctuation."""
    inner = f",{space}".join(f"{json.dumps(name, ensure_ascii=False)}:{space}{value}" for name, value in pairs)
    return f"{{{inner}}}"


def text(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@st.composite
def bodies(draw):
    space = draw(PADDING)
    actions = [
        [(name, text(value)) for name, value in action] for action in draw(st.lists(ACTION, min_size=1, max_size=3))
    ]
    listed = f"[{','.join(written(action, space) for action in actions)}]"
    pairs = [(name, text(value)) for name, value in draw(st.lists(st.one_of(FIELDS), max_size=5))]
    again = draw(st.lists(st.just(("actions", listed)), max_size=1))
    return (written([("actions", listed), *pairs, *again], space) + draw(PADDING)).encode()


def needs_no_closer_look(body):
    """Return whether ``rank`` takes the body as one in which every name comes once."""
    return body.count(b":") == colons(decode(READ, body))


@given(bodies())
def test_what_needs_no_closer_look_has_every_name_once(body):
    if needs_no_closer_look(body):
        refuse_repeats(body)


@given(bodies())
def test_no_body_has_fewer_colons_than_names(body):
    assert body.count(b":") >= colons(decode(READ, body))


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_what_clients_write_needs_no_closer_look(separators):
    request = {
        "user": "u",
        "event_id": "e",
        "context": {"hour": 9, "where": {"x": 1}},
        "actions": [{"id": "a", "features": {"x": 1, "y": [1, 2]}}, {"id": "b"}],
        "exclude": ["b", "c"],
        "defer": True,
        "explain": True,
    }
    body = json.dumps(request, separators=separators).encode()
    assert needs_no_closer_look(body)


def test_defaults_that_are_spelled_out_are_looked_at_closely_and_taken():
    body = b'{"actions":[{"id":"a"}],"explain":false}'
    assert not needs_no_closer_look(body)
    refuse_repeats(body)


def test_a_repeated_name_has_no_place_to_hide():
    body = b'{"user":"abcdefghijklmnopqrstuvwxyz","actions":[{"id":"a"}],"user":"x"}'
    assert not needs_no_closer_look(body)
    with pytest.raises(ApiError, match="a name must come once in an object, got 'user' twice"):
        refuse_repeats(body)

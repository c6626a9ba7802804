"""Reading logged decisions: our JSON lines and VW's dsjson."""

import gzip
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandits.evaluation.logs import LoggedEvent, read_events
from bandits.evaluation.table import load_log, table
from bandits.evaluation.values import flatten

EVENT = {
    "event_id": "e1",
    "time": "2026-01-02T03:04:05Z",
    "user": None,
    "context": {"age": 30, "device": {"os": "ios", "wifi": True, "roaming": False}, "taste": [0.5, 1], "_note": "x"},
    "actions": [{"id": "news", "features": {"topic": "world"}}, {"id": "sport", "features": {}}],
    "action": "sport",
    "probability": 0.25,
    "model_version": 3,
    "reward": 1.5,
    "status": "learned",
    "some_new_key": {"kept": False},
}
DSJSON = {
    "_label_cost": -1,
    "_label_probability": 0.8,
    "_label_Action": 2,
    "_labelIndex": 1,
    "Timestamp": "2026-01-02T03:04:05Z",
    "EventId": "d1",
    "a": [2, 3, 1],
    "c": {"User": [{"tier": "pro"}, {"geo": "UK"}], "_multi": [{"_tag": "x"}, {"T": {"kind": "new"}}, {"n": 2}]},
    "p": [0.8, 0.15, 0.05],
    "VWState": {"m": "v7"},
}


def write(path, *records):
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
    return path


def test_an_event_is_read_with_flat_features_and_unknown_keys_ignored(tmp_path):
    [event] = read_events(write(tmp_path / "log.jsonl", EVENT))
    assert event.context == {"age": 30.0, "device.os=ios": 1.0, "device.wifi": 1.0, "taste[0]": 0.5, "taste[1]": 1.0}
    assert event.actions == ("news", "sport")
    assert event.features == ({"topic=world": 1.0}, {})
    assert (event.chosen, event.probability, event.reward) == (1, 0.25, 1.5)
    assert (event.time, event.user, event.model_version, event.status) == (EVENT["time"], None, 3, "learned")
    assert event.probabilities is None


def test_dense_arrays_and_all_probabilities_are_read(tmp_path):
    actions = [{"id": "a", "features": [1, 2]}, {"id": "b"}]
    record = EVENT | {"context": [0.5, -1], "actions": actions, "action": "a", "probabilities": [0.25, 0.75]}
    [event] = read_events(write(tmp_path / "log.jsonl", record, "", "  "))
    assert event.context == {"[0]": 0.5, "[1]": -1.0}
    assert event.features == ({"[0]": 1.0, "[1]": 2.0}, {})
    assert event.probabilities == (0.25, 0.75)


def test_dsjson_is_recognised_and_its_cost_becomes_a_reward(tmp_path):
    first, second = read_events(write(tmp_path / "log.dsjson", DSJSON, DSJSON | {"_skipLearn": True}))
    assert first.actions == ("x", "2", "3")
    assert (first.chosen, first.probability, first.reward) == (1, 0.8, 1.0)
    assert first.probabilities == (0.05, 0.8, 0.15)
    assert first.context == {"User[0].tier=pro": 1.0, "User[1].geo=UK": 1.0}
    assert first.features == ({}, {"T.kind=new": 1.0}, {"n": 2.0})
    assert (first.event_id, first.model_version) == ("d1", "v7")
    assert second.reward is None


def test_a_gzipped_log_reads_like_a_plain_one_and_a_cut_one_is_refused(tmp_path):
    plain = write(tmp_path / "log.jsonl", *[EVENT | {"event_id": str(i)} for i in range(300)])
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert list(read_events(packed)) == list(read_events(plain))
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"log.jsonl.gz, line \d+: the gzip data is broken"):
        list(read_events(packed))


@pytest.mark.parametrize("value", [0, -0.1, 1.2, "0.5", True, None])
@pytest.mark.parametrize(("record", "key"), [(EVENT, "probability"), (DSJSON, "_label_probability")])
def test_a_probability_that_cannot_be_is_refused_with_file_line_and_value(tmp_path, record, key, value):
    path = write(tmp_path / "log.jsonl", record, record | {key: value})
    got = "but is missing" if value is None else f"got {value!r}"
    with pytest.raises(ValueError, match=rf"log.jsonl, line 2: {key} must be in \(0, 1\], {got}"):
        list(read_events(path))


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("{", "Expecting property name"),
        ("[1]", "the line must be a JSON object, got \\[1\\]"),
        (json.dumps(EVENT).replace("0.25", "NaN"), "numbers must be finite, got NaN"),
        (json.dumps(EVENT).replace("1.5", "1e999"), "reward must be a finite number, got inf"),
        (json.dumps(EVENT).replace("1.5", "1" * 400), "too large"),
        (EVENT | {"context": {"a": [1, "x"]}}, "a must hold numbers alone or strings alone, got a string in it"),
        (EVENT | {"context": 3}, "context must be a JSON object, got 3"),
        (EVENT | {"actions": []}, "actions must be a list with at least one entry, got \\[\\]"),
        (EVENT | {"actions": ["news"]}, "actions must be objects with a string id, got 'news'"),
        (EVENT | {"actions": EVENT["actions"] * 2}, "different ids, got news, sport, news, sport"),
        (EVENT | {"action": "art"}, "action must be one of news, sport, got 'art'"),
        (EVENT | {"event_id": 7}, "event_id must be a string, got 7"),
        (EVENT | {"probabilities": [1.0]}, "one entry for each of 2 actions, got 1"),
        (EVENT | {"probabilities": [0.9, 0.9]}, "sum to 1, got \\[0.9, 0.9\\]"),
    ],
)
def test_a_malformed_line_is_refused_with_its_place(tmp_path, line, rule):
    with pytest.raises(ValueError, match=rf"log.jsonl, line 2: .*{rule}"):
        list(read_events(write(tmp_path / "log.jsonl", EVENT, line)))


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"_label_Action": 4}, "_label_Action must be in 1..3, got 4"),
        ({"a": [1, 1, 2]}, "a must name each of 3 actions once"),
        ({"c": {"_multi": [{"_tag": "x"}] * 3}}, "different ids"),
        ({"c": {}}, "_multi must be a list"),
    ],
)
def test_a_malformed_dsjson_line_is_refused_with_its_place(tmp_path, change, rule):
    with pytest.raises(ValueError, match=rf"log.dsjson, line 1: .*{rule}"):
        list(read_events(write(tmp_path / "log.dsjson", DSJSON | change)))


def test_events_without_a_reward_are_counted_and_left_out_or_take_the_default(tmp_path):
    path = write(tmp_path / "log.jsonl", EVENT, EVENT | {"event_id": "e2", "reward": None}, EVENT | {"event_id": "e3"})
    left_out, filled = load_log(path), load_log(path, default_reward=-1.0)
    assert (left_out.event_ids, left_out.n_without_reward) == (("e1", "e3"), 1)
    assert (filled.reward.tolist(), filled.n_without_reward) == ([1.5, -1.0, 1.5], 1)
    with pytest.raises(ValueError, match="default_reward must be a finite number, got nan"):
        load_log(path, default_reward=math.nan)
    with pytest.raises(ValueError, match="must hold events with a reward, got 1 events, none with one"):
        load_log(write(path, EVENT | {"reward": None}))


names = st.text("abc", min_size=1, max_size=3)
numbers = st.floats(-1e6, 1e6)
features = st.dictionaries(names, numbers, max_size=4)


@st.composite
def events(draw):
    actions = draw(st.lists(names, min_size=1, max_size=4, unique=True))
    n = len(actions)
    described = tuple(draw(st.lists(features, min_size=n, max_size=n)))
    chosen = draw(st.integers(0, n - 1))
    probabilities = draw(st.sampled_from([None, (1 / n,) * n]))
    return LoggedEvent("e", draw(features), tuple(actions), described, chosen, 1 / n, draw(numbers), probabilities)


@given(st.lists(events(), min_size=1, max_size=5))
def test_a_log_in_arrays_gives_back_every_event(many):
    log = table(many)
    assert [log.event(i) for i in range(len(log))] == many


json_values = st.recursive(
    st.none() | st.booleans() | numbers | names,
    lambda inner: st.dictionaries(names, inner, max_size=3) | st.lists(numbers, max_size=3),
)


def test_arrays_of_strings_are_indicators_as_in_the_service():
    assert flatten("context", {"tags": ["new", "big"], "size": [2, 3]}) == {
        "tags=new": 1.0, "tags=big": 1.0, "size[0]": 2.0, "size[1]": 3.0
    }  # fmt: skip


@given(st.dictionaries(names, json_values, max_size=4))
def test_flat_features_are_finite_numbers_and_flattening_them_again_changes_nothing(nested):
    flat = flatten("context", nested)
    assert all(math.isfinite(value) for value in flat.values())
    assert flatten("context", flat) == flat
    assert flatten("context", nested | {"_hidden": {"a": 1.0}, "zzzz": None, "zzzzz": False}) == flat

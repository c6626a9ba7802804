import json
import re
import subprocess
from itertools import takewhile
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from needs import needs_node
from waiting import LIMIT

from fedres.scoring.features import Named, Preparer
from fedres.scoring.flattening import FeatureError, FeatureLimits, _each_once, action_features, feature_hash, flatten
from fedres.scoring.kernels import pair_key
from fedres.scoring.model import expand

DOC = (Path(__file__).parents[2] / "docs" / "reference" / "hashing.md").read_text(encoding="utf-8")


def named(tree, **limits):
    text = tree if isinstance(tree, bytes) else json.dumps(tree).encode()
    return [feature[:2] for feature in flatten(text, FeatureLimits(**limits))]


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ({"age": 33}, [("age", 33.0)]),
        ({"day": "mon"}, [("day=mon", 1.0)]),
        ({"day": ""}, [("day=", 1.0)]),
        ({"member": True, "new": False, "zero": 0, "unknown": None}, [("member", 1.0), ("zero", 0.0)]),
        ({"geo": {"lat": 0.5, "at": {"city": "Zürich"}}}, [("geo.lat", 0.5), ("geo.at.city=Zürich", 1.0)]),
        ({"taste": [0.5, 0, 2]}, [("taste[0]", 0.5), ("taste[2]", 2.0)]),
        ({"tags": ["a", "b"], "none": []}, [("tags=a", 1.0), ("tags=b", 1.0)]),
        ({"_x": 1, "a": {"_y": [[1]], "b": 2}}, [("a.b", 2.0)]),
        ({"at": "12:30", "url": "http://x"}, [("at=12:30", 1.0), ("url=http://x", 1.0)]),
        (b'{"_x": 1e400, "y": 1}', [("y", 1.0)]),
        (b"null", []),
        (b"", []),
    ],
)
def test_json_becomes_names_and_values(features, expected):
    assert named(features) == expected


def test_an_action_s_first_feature_is_its_id_under_a_name_that_json_cannot_have():
    assert action_features("x", b'{"_id": "y", "a": 1}', FeatureLimits()) == [("_id=x", 1.0, "_id"), ("a", 1.0, "a")]


def test_the_field_of_a_feature_is_its_path_of_json_keys():
    tree = {"a=b": "c=d", "geo": {"city": "Zürich", "lat": 2}, "tags": ["x", "y"], "taste": [1, 2], "new": True}
    flat = flatten(json.dumps(tree).encode(), FeatureLimits())
    assert [feature.field for feature in flat] == [
        "a=b", "geo.city", "geo.lat", "tags", "tags", "taste[0]", "taste[1]", "new",
    ]  # fmt: skip
    numbers = [feature for feature in flat if feature.name == feature.field]
    assert [feature.name for feature in numbers] == ["geo.lat", "taste[0]", "taste[1]", "new"]


json_trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.floats(-1e15, 1e15) | st.text(max_size=5),
    lambda children: st.dictionaries(st.text(min_size=1, max_size=5), children, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), json_trees, max_size=5))
def test_any_tree_of_scalars_gives_finite_values_and_no_reserved_name(tree):
    flat = flatten(json.dumps(tree).encode(), FeatureLimits(depth=30))
    assert all(abs(value) <= 1e15 and not name.startswith("_") for name, value, _ in flat)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (b'{"x": NaN}', "must be JSON"),
        (b'{"x": Infinity}', "must be JSON"),
        (b'{"a": {"x": 1e400}}', r"^a\.x must be within ±1e\+15, got inf"),
        (b'{"a": {"x": [1, 2e15]}}', r"^a\.x\[1\] must be within ±1e\+15, got 2e\+15|2000000000000000"),
        (b'{"x": -' + b"9" * 5000 + b"}", "^x must be within"),
        (b'{"x": "\\ud800"}', "must be JSON"),
        (b'{"x": "\xff"}', "must be JSON"),
        (b'{"x": 1, "x": 2}', "^a name must come once in an object, got 'x' twice"),
        (b'{"a": {"y": 1, "\\u0079": 2}}', "got 'y' twice"),
        (b'{"x": 1}}', "must be JSON"),
        (b"[1]", "^features must be an object, got an array"),
        (b'{"": 1}', "at least one character"),
        (b'{"a": {"b": [1, "x"]}}', r"^a\.b must hold numbers alone or strings alone, got a string in it"),
        (b'{"a": [[1]]}', "^a must hold numbers alone or strings alone, got an array in it"),
        (b'{"a": [true]}', "got a bool in it"),
        (b'{"a": ["x", null]}', "got null in it"),
        (b'{"a": [{}]}', "got an object in it"),
        (b'{"a":' * 40_000, "must be JSON"),
    ],
)
def test_what_is_no_feature_is_refused_with_its_place(features, message):
    with pytest.raises(FeatureError, match=message):
        named(features)


@pytest.mark.parametrize(
    ("limits", "features", "message"),
    [
        ({"features": 2}, {"a": [1, 2, 3]}, "features must be at most 2, got more"),
        ({"depth": 2}, {"a": {"b": {"c": 1}}}, "a.b must be nested at most 2 deep, got 3"),
        ({"name": 5}, {"a": {"bcde": 1}}, "names must have at most 5 characters, got 6"),
        ({"name": 5}, {"a": "bcde"}, "names must have at most 5 characters, got 6"),
    ],
)
def test_limits_hold_and_name_themselves(limits, features, message):
    with pytest.raises(FeatureError, match=re.escape(message)):
        named(features, **limits)
    named(features, **{name: value + 1 for name, value in limits.items()})


BAD = "y" * 1_001  # a name that would be refused if anybody looked at it


@pytest.mark.parametrize(
    "features",
    [
        {**dict.fromkeys(map(str, range(1_001)), 1), BAD: 1},
        {"a": [1] * 1_001, BAD: 1},
        {"a": ["x"] * 1_001 + [[]]},
        {"a": [0, 1] * 1_001 + [[]]},
        {"a": {"b": [1] * 1_001}, BAD: 1},
    ],
)
def test_too_many_features_are_refused_before_the_rest_is_looked_at(features):
    with pytest.raises(FeatureError, match=r"^features must be at most 1000, got more$"):
        named(features)


def test_the_id_of_an_action_counts_as_one_of_its_features():
    limits = FeatureLimits(features=2)
    assert len(action_features("x", b'{"a": 1}', limits)) == 2
    with pytest.raises(FeatureError, match="features must be at most 2, got more"):
        action_features("x", b'{"a": 1, "b": 1}', limits)


class Compared(str):
    """A name that counts how often it is compared."""

    times = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Compared.times += 1
        return str.__eq__(self, other)


def test_a_repeated_name_is_found_without_comparing_all_names_with_each_other():
    pairs = [(Compared(f"n{k}"), 1) for k in range(2_000)]
    with pytest.raises(FeatureError, match="got 'n1999' twice"):
        _each_once([*pairs, (Compared("n1999"), 2)])
    assert Compared.times < 2_000


def test_errors_say_which_part_of_the_request_they_are_about():
    with pytest.raises(FeatureError, match=r"^context: x must be within"):
        Preparer().prepare(b'{"x": 1e16}', [])
    with pytest.raises(FeatureError, match=r"^actions\[1\]: a must hold"):
        Preparer().prepare(b"{}", [("a", b"{}"), ("b", b'{"a": [[]]}')])
    with pytest.raises(FeatureError, match=r"^actions\[0\]: names must be valid Unicode"):
        Preparer().prepare(b"{}", [("\ud800", b"{}")])
    with pytest.raises(
        FeatureError, match=r"\(context features \+ 1\) × action features must be at most 3, got \(2 \+ 1\) × 2"
    ):
        Preparer(limits=FeatureLimits(crosses=3)).prepare(b'{"a": 1, "b": 2}', [("a", b"{}"), ("b", b"{}")])


def test_action_features_count_without_a_context_too():
    limits = FeatureLimits(crosses=5)
    features = b'{"x": 1, "y": 2}'
    assert Preparer(limits=limits).prepare(b"{}", [("a", features), ("b", b'{"x": 1}')]).n_actions == 2
    with pytest.raises(FeatureError, match=r"got \(0 \+ 1\) × 6"):
        Preparer(limits=limits).prepare(b"{}", [("a", features), ("b", features)])


def test_a_request_decoded_into_raw_slices_is_prepared_action_by_action():
    Action = msgspec.defstruct("Action", [("id", str), ("features", msgspec.Raw)])
    Rank = msgspec.defstruct("Rank", [("context", msgspec.Raw), ("actions", list[Action])])
    actions = b'[{"id": "a", "features": {"x": 2, "y": "z"}}, {"id": "b", "features": {}}]'
    body = b'{"context": {"hour": 9}, "actions": ' + actions + b"}"
    request = msgspec.json.decode(body, type=Rank)
    prepared = Preparer().prepare(request.context, [(action.id, action.features) for action in request.actions])
    assert prepared.hashes.tolist() == [feature_hash(name) for name in ("hour", "_id=a", "x", "y=z", "_id=b")]
    assert prepared.values.tolist() == [9.0, 1.0, 2.0, 1.0, 1.0]
    assert prepared.starts.tolist() == [1, 4, 5]
    assert prepared.n_actions == 2


def test_many_objects_are_hashed_by_one_call_and_what_is_wrong_with_one_is_its_own():
    named = [
        Named("context", None, b'{"hour": 9}'),
        Named("actions[0]", "a", b'{"x": [[]]}'),
        Named("actions[1]", "b", b'{"\xc3\xbc": 2, "list": [1, 2]}'),
        Named("context", None, b'{"x": 1e16}'),
        Named("actions[2]", "a", b"{}"),
    ]
    context, wrong, own, large, bare = Preparer().hash_all(named)
    assert str(wrong).startswith("actions[0]: x must hold numbers alone or strings alone")
    assert str(large) == "context: x must be within ±1e+15, got 1e+16"
    assert [context.size, own.size, bare.size] == [1, 4, 1]
    for row, place in ((context, 0), (own, 2), (bare, 4)):
        assert row == Preparer().hash_all([named[place]])[0]
    together = Preparer().prepare(named[0].features, [("b", named[2].features), ("a", b"{}")])
    assert together.hashes.tobytes() == context.hashes + own.hashes + bare.hashes
    assert together.values.tobytes() == context.values + own.values + bare.values
    fields = np.frombuffer(context.fields + own.fields + bare.fields, np.uint32)
    assert fields.tolist() == [feature_hash(name) for name in ("hour", "_id", "ü", "list[0]", "list[1]", "_id")]


def table(heading):
    """Return the rows of the first table below a line of the document, code marks taken off, (none) as no name."""
    below = DOC.split(heading, 1)[1].splitlines()[1:]
    rows = [line.strip("|") for line in takewhile(lambda line: line.startswith("|"), below)][2:]
    cells = [[cell.strip().strip("`") for cell in row.split("|")] for row in rows]
    return [["" if cell == "(none)" else cell for cell in row] for row in cells]


def test_the_documented_vectors_are_what_the_service_computes():
    hashes, pairs = table("Hashes:"), table("Pairs, with")
    assert len(hashes) >= 8
    assert len(pairs) >= 6
    for name, expected in hashes:
        assert feature_hash(name) == int(expected)
    for context, action, key, index in pairs:
        assert pair_key(feature_hash(context), feature_hash(action)) == int(key)
        assert int(key) >> 14 == int(index)


@needs_node
def test_the_javascript_that_the_page_names_computes_the_same():
    rng = np.random.default_rng(0)
    names = [name for name, _ in table("Hashes:")] + [f"n{n}=ü{n}" for n in rng.integers(10**9, size=50)]
    [file] = re.findall(r"`(clients/[\w/]+\.js)`", DOC)
    script = (
        f'import {{ featureHash, pairKey }} from "{(Path(__file__).parents[2] / file).as_uri()}";'
        f"const names = {json.dumps(names)};"
        "console.log(JSON.stringify(names.map((name, k) => ["
        "  featureHash(name), pairKey(featureHash(name), featureHash(names[(k + 1) % names.length]))])))"
    )
    command = ["node", "--input-type=module", "-e", script]
    out = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=LIMIT).stdout)
    keys = [pair_key(feature_hash(a), feature_hash(b)) for a, b in zip(names, names[1:] + names[:1], strict=True)]
    assert out == [[feature_hash(name), key] for name, key in zip(names, keys, strict=True)]


def distinct_and_expected(keys, bits):
    """Return how many places the keys take, and mean and deviation of that for random keys."""
    n, m = keys.size, 2.0**bits
    mean = -m * np.expm1(n * np.log1p(-1 / m))
    deviation = np.sqrt(m * (np.exp(-n / m) - np.exp(-2 * n / m) * (1 + n / m)))
    return np.unique(keys >> np.uint32(32 - bits)).size, mean, deviation


NAMES = {
    "numbers": [f"item={k}" for k in range(40_000)],
    "codes": [f"sku=A-{k:06d}" for k in range(40_000)],
    "arrays": [f"embedding[{k}]" for k in range(40_000)],
    "nested": [f"cat{k % 10}.sub{k // 10 % 100}=v{k // 1000}" for k in range(40_000)],
}


@pytest.mark.parametrize("family", NAMES)
def test_names_collide_no_more_than_random_ones(family):
    everything = dict.fromkeys(NAMES[family], 1)
    limits = FeatureLimits(features=40_001, crosses=10**6)
    prepared = Preparer(crosses=False, limits=limits).prepare(json.dumps(everything).encode(), [("a", b"{}")])
    keys = expand(prepared, 0)[0]
    assert keys.size == 40_001
    for bits in (18, 22):
        distinct, mean, deviation = distinct_and_expected(keys, bits)
        assert distinct > mean - 4 * deviation, bits


@pytest.mark.parametrize("bits", [18, 22])
@pytest.mark.parametrize(("first", "second"), [("numbers", "codes"), ("arrays", "arrays"), ("nested", "numbers")])
def test_crosses_collide_no_more_than_random_ones(first, second, bits):
    context, action = (dict.fromkeys(NAMES[family][:316], 1) for family in (first, second))
    prepared = Preparer().prepare(json.dumps(context).encode(), [("a", json.dumps(action).encode())])
    keys = expand(prepared, 0)[0]
    distinct, mean, deviation = distinct_and_expected(keys, bits)
    assert keys.size == 316 + 317 + 316 * 317
    assert distinct > mean - 4 * deviation

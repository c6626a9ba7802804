"""What the compiled loop takes for plain, it hashes as the plain Python does; it takes nothing that is wrong."""

import json
import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedres.scoring.features import MOST_KEYS, Plain, Preparer
from fedres.scoring.flattening import FeatureError, FeatureLimits, feature_hash, flatten

SMALL = FeatureLimits(features=5, depth=3, name=8)
NAMES = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"\\_'), min_size=1, max_size=6)
NUMBERS = st.one_of(
    st.integers(-(10**14), 10**14), st.floats(-1e14, 1e14), st.floats(-2, 2), st.decimals(-9, 9, places=17).map(float)
)
VALUES = st.one_of(st.none(), st.booleans(), NUMBERS, NAMES, st.just(""))
OBJECTS = st.recursive(
    st.dictionaries(NAMES, VALUES, max_size=8),
    lambda inside: st.dictionaries(NAMES, st.one_of(VALUES, inside), max_size=4),
    max_leaves=6,
)
DAMAGE = st.sampled_from([b"", b'"', b"{", b"}", b",", b"0", b".", b"\xe9", b"_"])
SEPARATORS = st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", "\n:\r\n")])


def flattened(text, limits):
    named = flatten(text, limits)
    hashes = struct.pack(f"={len(named)}I", *[feature_hash(feature.name) for feature in named])
    values = struct.pack(f"={len(named)}f", *[feature.value for feature in named])
    return hashes, values, struct.pack(f"={len(named)}I", *[feature_hash(feature.field) for feature in named])


def agrees(text, limits):
    """Return whether the text is plain; what is must be right, and the same."""
    [row] = Plain(limits).hashed([text])
    if row is not None:
        assert row == flattened(text, limits)
    return row is not None


@given(OBJECTS, SEPARATORS)
@example({"a": 1e15}, (",", ":"))
@example({"a": {"a": {"a": {"a": 1}}}}, (",", ":"))
def test_what_is_plain_is_hashed_as_ever(tree, separators):
    text = json.dumps(tree, separators=separators).encode()
    agrees(text, FeatureLimits())
    agrees(text, SMALL)


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b" { } ",
        b'{"hour":9,"day":"mo","member":true,"guest":false,"age":null,"zero":0,"less":-0.0}',
        b'{ "device" : { "kind" : "phone" , "screen" : { } , "size" : { "inch" : 6.1 } } , "x" : 1e-05 }\n',
        b'{"a":0.8414709848078965,"b":-1.5E+3,"c":123456789012345678e-10}',
        b"{%b}" % b",".join(b'"f%d":%d' % (k, k) for k in range(MOST_KEYS)),
    ],
)
def test_usual_contexts_are_plain(text):
    assert agrees(text, FeatureLimits())


@given(st.integers(10**15, 10**30), st.integers(10, 40))
def test_numbers_of_many_digits_are_right_or_not_plain(number, at):
    text = str(number).rjust(at, "0")
    agrees(f'{{"x":{text[:-at] or 0}.{text[-at:]}}}'.encode(), FeatureLimits())


@given(NUMBERS.filter(lambda x: x == 0 or 1e-4 < abs(x) < 9e14))
def test_usual_numbers_are_plain(number):
    assert agrees(json.dumps({"x": number}).encode(), FeatureLimits())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"[]",
        b'{"a":1',
        b'{"a":1,}',
        b'{,"a":1}',
        b'{"a":1}}',
        b'{"a":1} {}',
        b'{"a" 1}',
        b'{"a":}',
        b'{"a":01}',
        b'{"a":.5}',
        b'{"a":5.}',
        b'{"a":1e}',
        b'{"a":+1}',
        b'{"a":-}',
        b'{"a":tru}',
        b'{"a":1 2}',
        b'{"":1}',
        b'{"a":1,"a":2}',
        b'{"a":0,"a":2}',
        b'{"a":{"b":1,"b":null}}',
        b'{"a":"\n"}',
        b'{"a":"\xff"}',
        b'{"a":1e400}',
        b'{"a":1e16}',
        b'{"a":99999999999999999999999999999999999999999999}',
        b'{"a":NaN}',
        b'{"a":"b}',
        b'{"a',
        b'{"a":{"b":1}',
    ],
)
def test_what_is_wrong_is_never_plain(text):
    assert Plain(FeatureLimits()).hashed([text]) == [None]


@given(OBJECTS, st.data())
def test_a_plain_text_that_was_damaged_is_the_same_or_not_plain(tree, data):
    text = bytearray(json.dumps(tree).encode())
    at = data.draw(st.integers(0, len(text) - 1))
    text[at : at + data.draw(st.integers(0, 2))] = data.draw(DAMAGE)
    try:
        flattened(bytes(text), FeatureLimits())
    except FeatureError:
        assert Plain(FeatureLimits()).hashed([bytes(text)]) == [None]
    else:
        agrees(bytes(text), FeatureLimits())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b'{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}', "features must be at most 5, got more"),
        (b'{"a":{"a":{"a":{"a":1}}}}', "must be nested at most 3 deep, got 4"),
        (b'{"abc":"defgh"}', "names must have at most 8 characters, got 9"),
        (b'{"ab":{"cdefgh":1}}', "names must have at most 8 characters, got 9"),
    ],
)
def test_limits_are_those_of_all_features(text, message):
    with pytest.raises(FeatureError, match=message):
        Preparer(limits=SMALL).prepare(text, [("a", b"{}")])
    within = text.replace(b',"f":1', b"").replace(b'{"a":1}}', b"1}").replace(b"gh", b"g")
    assert agrees(within, SMALL)


def test_several_at_once_are_hashed_as_one_by_one():
    many = b"{%b}" % b",".join(b'"f%d":%d' % (k, k + 1) for k in range(MOST_KEYS))
    texts = [b'{"a":1,"b":2}', b"", many, b"{}", b'{"a":"_"', many, b'{"a":[1]}', b'{"c":3}']
    plain = Plain(FeatureLimits())
    rows = plain.hashed(texts)
    assert rows == [plain.hashed([text])[0] for text in texts]
    assert [len(row[0]) // 4 if row else None for row in rows] == [2, None, MOST_KEYS, 0, None, MOST_KEYS, None, 1]
    assert plain.hashed([]) == []

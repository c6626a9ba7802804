"""Attacks on other loops are made of legal calls: what is too large would be refused before it costs anything."""

import itertools

import pytest
from attacks import ATTACKS, loop_of

from service.http.request import Limits

FIRST = 3
PATH = "/v1/loops/noisy"
# Bodies that are meant to be refused, as late as possible.
REFUSED = {"refused", "strings"}


def most_bytes(path):
    limits = Limits()
    return limits.rank_bytes if path.endswith("/rank") else limits.body_bytes


@pytest.mark.parametrize("name", ATTACKS)
def test_calls_of_an_attack_are_within_the_limits_of_a_body(name):
    attack = ATTACKS[name]
    calls = [*itertools.islice(attack.before(PATH), FIRST), *itertools.islice(attack.calls(PATH), FIRST)]
    assert calls
    for call in calls:
        size = len(call.content() or b"")
        if name not in REFUSED:
            assert size <= most_bytes(call.path), f"{call.method} {call.path} has {size} bytes"


def test_each_attack_has_a_loop_whose_name_is_allowed():
    names = {loop_of(name) for name in ATTACKS}
    assert len(names) == len(ATTACKS)
    for name in names:
        assert name.replace("-", "").isalnum()

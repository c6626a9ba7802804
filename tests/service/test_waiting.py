"""Tests wait for conditions, with the limit of ``waiting.py`` and no other."""

import re
from pathlib import Path

import pytest
import waiting
from waiting import until, until_async

TESTS = Path(__file__).parents[1]
OWN_LIMIT = re.compile(
    r"\btimeout=\d\d|settimeout\(\d|\.(wait|join|result)\(\d\d+\)|wait_for\(.*, \d|monotonic\(\) \+ \d"
)


def test_a_condition_is_waited_for_whatever_connections_it_loses_before():
    results = iter([0, ConnectionResetError(), EOFError(), "here"])

    def condition():
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    assert until(condition) == "here"


@pytest.mark.anyio
async def test_what_does_not_happen_is_named_with_the_last_failure(monkeypatch):
    monkeypatch.setattr(waiting, "LIMIT", 0.01)

    def lost():
        raise ConnectionResetError("by the peer")

    with pytest.raises(AssertionError, match=r"a reply did not happen within 0\.01 s: .*by the peer"):
        until(lost, "a reply")
    with pytest.raises(AssertionError, match=r"the end did not happen within 0\.01 s"):
        await until_async(lambda: False, "the end")


def test_no_test_has_a_limit_of_its_own():
    found = [
        f"{file.relative_to(TESTS)}: {line.strip()}"
        for file in sorted(TESTS.rglob("*.py"))
        if file != Path(__file__)
        for line in file.read_text(encoding="utf-8").splitlines()
        if OWN_LIMIT.search(line)
    ]
    assert found == []


@pytest.fixture
def anyio_backend():
    return "asyncio"

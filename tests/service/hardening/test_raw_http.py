"""A corpus of HTTP on the wire with its answers, and some of it broken at random."""

import pytest
from live import run_service
from raw_http import CORPUS, LAST, exchange, send_broken, statuses

from service.http.request import Limits


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with run_service(tmp_path_factory.mktemp("raw"), limits=Limits(request_seconds=1.0)) as live:
        yield live.address


@pytest.mark.parametrize("name", CORPUS)
def test_each_case_has_its_answer(address, name):
    sent, expected = CORPUS[name]
    assert statuses(exchange(address, sent, LAST, ends=False)) == expected


def test_whatever_is_sent_is_answered_or_closed():
    assert send_broken(first=0, n=150) == []

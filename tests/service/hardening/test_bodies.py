"""Bodies with something broken are read as they are or refused; ``make hardening`` lets atheris make them up."""

import random

import bodies
import pytest

from service.http.request import decode


@pytest.fixture(scope="module")
def reader():
    with bodies.reader() as reader:
        yield reader


def broken(body, rng):
    body = bytearray(body)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(body))
        if rng.random() < 0.5:
            body[at] = rng.choice(b'{}[]",:\\0x\xff')
        else:
            body[at : at + rng.randrange(3)] = body[at : at + 20]
    return bytes(body)


def test_bodies_are_read_as_strict_json_or_refused(reader):
    rng = random.Random(0)
    drawn = bodies.drawn(0, 50)
    for _ in range(1_500):
        reader.check(broken(rng.choice(drawn), rng))


def test_a_decoder_that_takes_the_first_of_two_names_is_found(reader, monkeypatch):
    body = b'\0{"actions": [{"id": "a", "id": "b"}]}'
    reader.check(body)
    monkeypatch.setattr(bodies, "decode", lambda decoder, body: decode(decoder, body.replace(b', "id": "b"', b"")))
    with pytest.raises(bodies.WrongBodyError, match="read with other actions"):
        reader.check(body)

"""Messages between the writer and its clients are cut where they end, and say what happened."""

import io
import random

import pytest

from service.log.client import (
    LARGEST_FRAME,
    LENGTH,
    Append,
    Done,
    Failed,
    Frames,
    as_outcome,
    as_reply,
    framed,
    framed_bytes,
    read_request,
    receive_frame,
)
from service.log.client import read_reply as read_a_reply
from service.log.protocol import Duplicate, Refused
from service.log.records import Record


def group(k):
    return [Record("shop", "rank", f"e{k}", None, b"\xff" * k, b"x" * k)]


def test_messages_are_cut_where_they_end_however_they_come():
    rng = random.Random(0)
    for most, largest in ((1, 3_000), (7, 3_000), (300, 70_000), (200_000, 70_000)):
        messages = [framed(Append(k, [group(k), group(k)])) for k in (0, 10, 300, largest)]
        data, frames, cut, at = b"".join(messages), Frames(), [], 0
        while at < len(data):
            step = rng.randint(1, most)
            cut += frames.feed(data[at : at + step])
            at += step
        assert cut == [message[LENGTH.size :] for message in messages]
    assert [read_request(frame) for frame in cut] == [Append(k, [group(k), group(k)]) for k in (0, 10, 300, 70_000)]


def test_a_message_that_claims_to_be_too_large_ends_the_connection():
    with pytest.raises(ConnectionError, match="at most"):
        Frames().feed(LENGTH.pack(LARGEST_FRAME + 1))


def test_a_message_is_received_whole_or_not_at_all():
    stream = io.BytesIO(framed_bytes(b"first") + framed_bytes(b"") + framed_bytes(b"cut off")[:-1])
    assert [receive_frame(stream.read), receive_frame(stream.read)] == [b"first", b""]
    for data in (b"", framed_bytes(b"cut off")[:-1]):
        with pytest.raises(EOFError):
            receive_frame(io.BytesIO(data).read)
    with pytest.raises(ConnectionError, match="at most 4 bytes"):
        receive_frame(io.BytesIO(framed_bytes(b"first")).read, 4)


@pytest.mark.parametrize("outcome", [7, Refused("no"), Duplicate("twice", 3), Duplicate("twice in a group", 0)])
def test_outcomes_arrive_as_they_were_sent(outcome):
    reply = read_a_reply(framed(Done(1, [as_reply(outcome)]))[LENGTH.size :])
    [arrived] = [as_outcome(one) for one in reply.outcomes]
    assert (type(arrived), str(arrived)) == (type(outcome), str(outcome))
    assert getattr(arrived, "position", None) == getattr(outcome, "position", None)


def test_a_failure_arrives_with_its_code():
    failed = Failed(1, "full", "no room")
    assert read_a_reply(framed(failed)[LENGTH.size :]) == failed

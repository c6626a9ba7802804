"""The contract of every log: what goes in comes out, in order, once, in whatever database it is."""

import random
from contextlib import ExitStack
from functools import partial
from itertools import count

import pytest

from service.store import Duplicate, Log, Record, Refused, StoreUnavailable, sqlite_file
from service.store.postgres import PostgresLog


def rank(event, user="u", loop="shop", body=b"{}"):
    return Record(loop, "rank", event, user, body)


def reward(event, loop="shop", body=b"1.0"):
    return Record(loop, "reward", event, None, body)


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request, tmp_path):
    """Return what opens a log; all that it opens are the same one."""
    if request.param == "sqlite":
        return partial(Log, sqlite_file(tmp_path / "log.db"))
    return partial(PostgresLog, request.getfixturevalue("database"))


@pytest.fixture
def log(opened):
    with opened() as log:
        yield log


def test_a_record_comes_back_as_it_went_in(log):
    bodies = [b'{"a": 1}', '{"a": "ö"}'.encode(), b"", b"\xff\x00", b"text\x00", bytes(100_000), b"null"]
    records = [rank(f"e{i}", body=body) for i, body in enumerate(bodies)]
    assert log.append(records) == [1, 2, 3, 4, 5, 6, 7]
    assert [Record(*entry[2:]) for entry in log.read()] == records
    assert [entry.seq for entry in log.read()] == [1, 2, 3, 4, 5, 6, 7]


def test_time_in_the_log_never_goes_back_even_if_the_clock_does(opened):
    for times in ([50, 70, 60], [10, 80]):  # and the log was opened anew in between
        with opened(clock=iter(times).__next__) as log:
            for _ in times:
                log.append([reward("e"), reward("e")])
    with opened() as log:
        assert [entry.time for entry in log.read()] == [50, 50, 70, 70, 70, 70, 70, 70, 80, 80]


def test_older_records_of_a_kind_go_and_the_newest_of_each_user_stays(log):
    log.append([Record("shop", "base", None, user, b"{}") for user in ("a", "b", "a", "c", "c", None)])
    log.append([rank("e", "a"), Record("news", "base", None, "a", b"{}"), Record("news", "base", None, "a", b"{}")])
    log.drop_older("shop", "base", ["a", "b"])
    log.checkpoint()
    assert [entry.seq for entry in log.read()] == [2, 3, 4, 5, 6, 7, 8, 9]
    assert log.last_time() == log.read()[-1].time


def test_the_second_rank_of_an_event_is_refused_and_all_others_are_stored(log):
    log.append([rank("a")])
    outcomes = log.append([rank("b"), rank("a"), reward("a"), rank("b"), rank("a", loop="news"), reward("a")])
    assert [type(outcome) for outcome in outcomes] == [int, Duplicate, int, Duplicate, int, int]
    assert [outcomes[1].seq, outcomes[3].seq] == [1, 2]
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [2, 3, 4, 5]
    assert [entry.seq for entry in log.read()] == [1, 2, 3, 4, 5]
    assert "event must be new in loop 'shop', got 'a'" in str(outcomes[1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loop": ""}, "loop must be a string that is not empty, got ''"),
        ({"kind": None}, "kind must be a string that is not empty, got None"),
        ({"event": 7}, "event must be a string or None, got 7"),
        ({"user": b"u"}, "user must be a string or None, got b'u'"),
        ({"body": "{}"}, "body must be bytes, got str"),
        ({"user": "\ud800"}, "valid Unicode"),
    ],
)
def test_a_record_that_cannot_be_stored_does_not_harm_its_neighbours(log, wrong, message):
    first, refused, last = log.append([rank("a"), rank("b")._replace(**wrong), rank("c")])
    assert isinstance(refused, Refused)
    assert message in str(refused)
    assert [(entry.seq, entry.event) for entry in log.read()] == [(first, "a"), (last, "c")]


def test_the_log_is_read_by_position_loop_event_and_user(log):
    log.append([rank("a"), rank("b", "v"), rank("a", loop="news"), reward("a"), reward("b", "news")])
    assert [entry.seq for entry in log.read(after=1, limit=3)] == [2, 3, 4]
    assert [entry.seq for entry in log.read(after=1, loop="shop")] == [2, 4]
    assert [entry.seq for entry in log.of_event("shop", "a")] == [1, 4]
    assert [entry.seq for entry in log.of_user("shop", "v")] == [2]
    assert (log.events_of("shop", "v", "rank"), log.events_of("shop", "v", "residual")) == (["b"], [])
    assert log.last() == 5
    with pytest.raises(ValueError, match="limit must be an integer of at least 1, got 0"):
        log.read(limit=0)


def test_uploads_are_stored_once_beside_what_else_has_their_event(log):
    kinds = ("residual", "update", "join", "rank")
    first = log.append([Record("shop", kind, "a/1", "a", b"{}") for kind in kinds])
    assert first == [1, 2, 3, 4]
    again = log.append([Record("shop", kind, "a/1", "a", b"other") for kind in kinds])
    assert [(type(outcome), outcome.seq) for outcome in again] == [(Duplicate, seq) for seq in first]
    assert log.append([reward("a/1"), reward("a/1")]) == [5, 6]


def test_erasing_a_device_spares_the_rewards_of_decisions_with_the_same_event(log):
    upload = Record("shop", "residual", "a/1", "a", b"{}")
    log.append([upload, rank("a/1", "bob"), reward("a/1"), rank("c", "a"), reward("c")])
    assert log.erase("shop", "a") == 3
    assert [(entry.kind, entry.event) for entry in log.read()][:-1] == [("rank", "a/1"), ("reward", "a/1")]


def test_erasing_is_logged_without_a_name_and_spares_everybody_else(log):
    log.append([rank("a", "ann"), rank("b", "bob"), rank("c", "ann", loop="news"), reward("a"), reward("b")])
    log.append([Record("shop", "note", "a", "bob", b"bob's own, about ann's event")])
    assert log.erase("shop", "ann") == 2
    assert [entry.seq for entry in log.read()] == [2, 3, 5, 6, 7]
    assert log.read(after=6)[0][2:] == ("shop", "erased", None, None, b'{"records": 2}')
    assert log.erase("shop", "ann") == 0
    assert log.append([rank("a", "ann")]) == [9]


def test_a_closed_log_says_so(log):
    log.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        log.append([rank("a")])


def test_who_is_told_what_is_durable_hears_all_that_was_stored_and_nothing_else(log):
    told = []
    log.appended = told.extend
    log.append([rank("a"), rank("a"), rank("b")._replace(kind=""), reward("a")])
    assert told == log.read()
    assert [entry.kind for entry in told] == ["rank", "reward"]


def test_what_is_logged_instead_of_an_erased_user_replaces_older_records_of_its_kind(log):
    def base(user, body):
        return Record("shop", "base", None, user, body)

    log.append([base("ann", b"1"), base("bob", b"2"), base("cleo", b"3"), base(None, b"\xff"), rank("a", "ann")])
    assert log.erase("shop", "ann", instead=[base("bob", b"4"), base(None, b"\xfe")], needless=4) == 2
    assert [(entry.seq, entry.kind, entry.user, entry.body) for entry in log.read()] == [
        (3, "base", "cleo", b"3"),
        (6, "base", "bob", b"4"),
        (7, "base", None, b"\xfe"),
        (8, "erased", None, b'{"records": 2}'),
    ]


def test_another_log_reads_what_this_one_has_stored(opened, log):
    with opened() as reader:
        assert reader.last() == 0
        log.append([rank("a"), reward("a")])
        assert reader.last() == 2
        assert reader.read() == log.read()


def a_batch(rng):
    """Return records of few users and events, some of them repeats, some that cannot be stored."""
    kinds, bodies = ("rank", "residual", "reward", "note", ""), (b"{}", b"\xff\0", "ö".encode())
    return [
        Record(
            rng.choice(("shop", "news")),
            rng.choice(kinds),
            rng.choice((None, f"e{rng.randrange(40)}")),
            rng.choice((None, f"u{rng.randrange(5)}")),
            rng.choice(bodies),
        )
        for _ in range(rng.randrange(8))
    ]


def shown(outcomes):
    return [outcome if isinstance(outcome, int) else (type(outcome), str(outcome)) for outcome in outcomes]


def what_happens(log, rng):
    """Yield the answers of a log to a random sequence of calls."""
    for _ in range(60):
        yield shown(log.append(a_batch(rng)))
        loop, event, user = rng.choice(("shop", "news")), f"e{rng.randrange(40)}", f"u{rng.randrange(5)}"
        yield log.of_event(loop, event), log.of_user(loop, user), log.events_of(loop, user, "rank")
        yield log.of_events(loop, [event, "e1", "e2"]), log.read(rng.randrange(50), 5, loop), log.last()
        if rng.random() < 0.1:
            yield log.erase(loop, user, [Record(loop, "base", None, "u1", b"x")] if rng.random() < 0.5 else [])
    yield log.read()


def test_sqlite_and_postgresql_answer_the_same_to_the_bit(tmp_path, database):
    opens = (partial(Log, sqlite_file(tmp_path / "log.db")), partial(PostgresLog, database))
    with ExitStack() as stack:
        logs = [stack.enter_context(open_log(clock=count(1_000).__next__)) for open_log in opens]
        sqlite, postgres = (list(what_happens(log, random.Random(0))) for log in logs)
    assert len(sqlite[-1]) > 50
    assert postgres == sqlite

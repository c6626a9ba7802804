"""The contract of every log: what goes in comes out, in order, once, in whatever database it is."""

import random
import threading

import pytest

from service.log import postgres, sqlite
from service.log.protocol import Duplicate, Head, Pruning, Refused, StoreUnavailable
from service.log.records import DamagedRecord, Record, checksum
from service.log.sqlite import entry_of


def rank(event, user="u", loop="shop", body=b"{}", example=b"example"):
    return Record(loop, "rank", event, user, example, body)


def reward(event, loop="shop", body=b'{"value":1.0}'):
    return Record(loop, "reward", event, None, b"12345678", body)


def base(user, body, loop="shop"):
    return Record(loop, "base", None, user, None, body)


def append(log, *records):
    """Append each record as a group of its own."""
    return log.append([[record] for record in records])


def body_of_erased(n_erased):
    return b'{"records":%d}' % n_erased


def positions(log, loop="shop", after=0, limit=1_000):
    return [entry.position for entry in log.read(loop, after, limit)]


# what goes in comes out


def test_a_record_comes_back_as_it_went_in(log):
    bodies = [b'{"a": 1}', '{"a": "ö"}'.encode(), b"", b"\xff\x00", b"text\x00", bytes(100_000), b"null"]
    records = [rank(f"e{i}", body=body, example=body or None) for i, body in enumerate(bodies)]
    assert append(log, *records) == [1, 2, 3, 4, 5, 6, 7]
    entries = log.read("shop")
    assert [Record(entry.loop, *entry[3:]) for entry in entries] == records
    assert [entry.position for entry in entries] == [1, 2, 3, 4, 5, 6, 7]


def test_the_newest_records_of_a_user_come_first(log):
    append(
        log, rank("a", "u"), rank("b", "v"), reward("a"), rank("c", "u"), rank("d", "u", loop="news"), rank("e", "u")
    )

    def event(entry):
        return entry.event

    assert log.newest_of("shop", "u", 10, event) == ["e", "c", "a"]
    assert log.newest_of("shop", "u", 2, event) == ["e", "c"]
    assert log.newest_of("shop", "nobody", 10, event) == []


def test_the_newest_decisions_of_a_user_are_read_until_enough_are(log):
    append(log, *[rank(f"e{k}", body=b"%d" % k) for k in range(50)], base("u", b"of the user"))
    seen = []

    def body(entry):
        seen.append(entry.body)
        return entry.body if entry.position > 10 else None

    expected = [b"%d" % k for k in reversed(range(50))]
    assert log.newest_of("shop", "u", 1_000, body) == expected[:40]
    assert seen == expected[:41]
    assert log.newest_of("shop", "u", 25, body) == expected[:25]


def test_decisions_are_found_without_the_other_records_of_their_events(log, monkeypatch):
    append(log, rank("a"), rank("b"), *[reward("a")] * 250, Record("shop", "note", "a", None, None, b"noted"))
    read = []
    for module in (sqlite, postgres):
        monkeypatch.setattr(
            module, "entry_of", lambda row, *, with_body: read.append(row) or entry_of(row, with_body=with_body)
        )
    assert [entry.event for entry in log.find("shop", ["b", "a", "c"], "rank")] == ["a", "b"]
    assert len(read) == 2
    assert [entry.body for entry in log.find("shop", ["a"], "note")] == [b"noted"]
    assert len(log.find("shop", ["a"])) == 252


def test_some_rewards_of_an_event(log):
    append(log, rank("a"), *[reward("a")] * 5, reward("b"))
    assert {(entry.kind, entry.event, entry.body) for entry in log.rewards_of("shop", "a", 100)} == {
        ("reward", "a", b"")
    }
    assert [len(log.rewards_of("shop", "a", limit)) for limit in (3, 100)] == [3, 5]
    assert log.rewards_of("shop", "c", 3) == []


def test_a_statement_that_runs_on_another_thread_can_be_interrupted(backend, log):
    append(log, rank("a"))
    errors = []

    def wait():
        try:
            backend.read_for_ever(log)
        except StoreUnavailable as error:
            errors.append(error)

    log.interrupt()  # without a statement it has no effect
    reading = threading.Thread(target=wait)
    reading.start()
    while reading.is_alive():
        log.interrupt()
        reading.join(0.01)
    assert len(errors) == 1
    assert positions(log) == [1]  # by another connection


def test_the_records_of_a_user_are_read_on_from_any_position(log):
    append(
        log, rank("a", "u"), rank("b", "v"), reward("a"), rank("c", "u"), rank("d", "u", loop="news"), rank("e", "u")
    )
    append(log, *(rank(f"more-{k}", "v") for k in range(5)), rank("f", "u"))
    assert [entry.event for entry in log.of_user("shop", "u")] == ["a", "c", "e", "f"]
    for after in range(12):
        following = [entry.event for entry in log.read("shop", after) if entry.user == "u"]
        assert [entry.event for entry in log.of_user("shop", "u", after)] == following
        assert [entry.event for entry in log.of_user("shop", "u", after, 2)] == following[:2]
    assert log.of_user("shop", "nobody") == log.of_user("nowhere", "u") == []
    assert log.of_user("shop", "u")[0].body == rank("a", "u").body


NUL = "\0"


@pytest.mark.parametrize("record", [rank(f"victim{NUL}x"), rank("e", user=f"u{NUL}"), reward(f"{NUL}victim")])
def test_a_record_whose_ids_have_a_nul_is_refused_and_its_neighbours_are_taken(log, record):
    outcomes = append(log, rank("victim"), record, reward("victim"))
    assert [type(outcome) for outcome in outcomes] == [int, Refused, int]
    assert "must have no NUL" in str(outcomes[1])
    assert log.find("shop", [f"victim{NUL}x", NUL]) == []
    assert [entry.kind for entry in log.find("shop", [f"victim{NUL}x", "victim"])] == ["rank", "reward"]


def test_many_events_are_found_at_once_each_once_and_in_order(log):
    names = [f"e{k}" for k in range(250)]
    append(log, *map(rank, names), *map(reward, reversed(names)))
    entries = log.find("shop", [*reversed(names), *names, "unknown"])
    assert [entry.position for entry in entries] == list(range(1, 501))


def test_positions_count_from_1_in_each_loop_without_gaps(log):
    outcomes = append(log, rank("a"), rank("b", loop="news"), rank("a"), rank("c"), rank("d", loop="news"))
    assert [outcome if isinstance(outcome, int) else type(outcome) for outcome in outcomes] == [1, 1, Duplicate, 2, 2]
    assert (positions(log), positions(log, "news"), positions(log, "none")) == ([1, 2], [1, 2], [])


def test_time_in_the_log_never_goes_back_even_if_the_clock_does(backend):
    for times in ([50, 70, 60], [10, 80]):  # and the log was opened anew in between
        with backend.open(clock=iter(times).__next__) as log:
            for _ in times:
                append(log, reward("e"), reward("e"))
    with backend.open(clock=lambda: 90) as log:
        assert [entry.time for entry in log.read("shop")] == [50, 50, 70, 70, 70, 70, 70, 70, 80, 80]
        assert log.heads()["shop"] == Head(10, 80, 0)
        assert log.now() == 90


def test_heads_say_where_each_loop_ends_and_how_many_records_went(log):
    assert log.heads() == {}
    append(log, rank("a"), rank("b", "v"), rank("c", loop="news"))
    log.erase("shop", "v", body_of_erased)
    heads = log.heads()
    assert {loop: (head.last, head.removed) for loop, head in heads.items()} == {"shop": (3, 1), "news": (1, 0)}
    assert {loop: head.time for loop, head in heads.items()} == {
        loop: log.read(loop)[-1].time for loop in ("shop", "news")
    }


def test_another_log_reads_what_this_one_has_stored(backend, log):
    with backend.open() as reader:
        assert reader.heads() == {}
        append(log, rank("a"), reward("a"))
        assert reader.heads() == log.heads()
        assert reader.read("shop") == log.read("shop")


def test_a_closed_log_says_so(log):
    log.close()
    for call in (lambda: append(log, rank("a")), log.heads, lambda: log.read("shop")):
        with pytest.raises(StoreUnavailable, match="closed") as raised:
            call()
        assert raised.value.code == "closed"


def test_threads_that_append_at_once_get_true_positions(backend):
    position_of = {}

    def fill(name):
        with backend.open() as log:
            for i in range(25):
                [position_of[f"{name}-{i}"]] = append(log, rank(f"{name}-{i}"))

    backend.open().close()
    threads = [threading.Thread(target=fill, args=[name]) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with backend.open() as log:
        assert {entry.event: entry.position for entry in log.read("shop")} == position_of
    assert sorted(position_of.values()) == list(range(1, 101))


# groups


def test_a_group_is_stored_whole_or_not_at_all(log):
    append(log, rank("taken"))
    groups = [[rank("a"), rank("b")], [rank("c"), rank("taken")], [rank("d"), rank("d")], [rank("e")]]
    first, taken, twice, last = log.append(groups)
    assert (first, last) == (2, 4)
    assert (type(taken), taken.position, type(twice)) == (Duplicate, 1, Duplicate)
    assert [entry.event for entry in log.read("shop")] == ["taken", "a", "b", "e"]


@pytest.mark.parametrize("n_records", [63, 64, 65, 5_000])  # more than a statement takes
def test_a_large_group_is_stored_whole_or_not_at_all(log, n_records):
    large = [rank(f"e{k}") for k in range(n_records)]
    assert log.append([[rank("a")], large, [rank("z")]]) == [1, 2, n_records + 2]
    assert positions(log, limit=10_000) == list(range(1, n_records + 3))
    [refused] = log.append([[*(rank(f"f{k}") for k in range(n_records)), rank("z")]])
    assert refused.position == n_records + 2
    assert log.heads()["shop"].last == n_records + 2


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ([], "a group must have at least one record, got none"),
        ([rank("b"), rank("b", loop="news")], "the records of a group must be of one loop, got 2 loops"),
    ],
)
def test_a_group_that_is_none_does_not_harm_its_neighbours(log, group, message):
    first, refused, last = log.append([[rank("a")], group, [rank("c")]])
    assert (first, last, str(refused)) == (1, 2, message)
    assert [entry.event for entry in log.read("shop")] == ["a", "c"]


# idempotency and refusals


def test_the_second_rank_of_an_event_is_refused_and_all_others_are_stored(log):
    append(log, rank("a"))
    outcomes = append(log, rank("b"), rank("a"), reward("a"), rank("b"), rank("a", loop="news"), reward("a"))
    assert [type(outcome) for outcome in outcomes] == [int, Duplicate, int, Duplicate, int, int]
    assert [outcomes[1].position, outcomes[3].position] == [1, 2]
    assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [2, 3, 1, 4]
    assert (positions(log), positions(log, "news")) == ([1, 2, 3, 4], [1])
    assert "event must be new in loop 'shop', got 'a'" in str(outcomes[1])


def test_uploads_are_stored_once_beside_what_else_has_their_event(log):
    kinds = ("residual", "update", "join", "rank", "loop", "settings")
    first = append(log, *(Record("shop", kind, "a/1", "a") for kind in kinds))
    assert first == [1, 2, 3, 4, 5, 6]
    again = append(log, *(Record("shop", kind, "a/1", "a", body=b"other") for kind in kinds))
    assert [(type(outcome), outcome.position) for outcome in again] == [(Duplicate, at) for at in first]
    assert append(log, reward("a/1"), reward("a/1")) == [7, 8]


def test_a_duplicate_names_the_record_that_it_repeats_and_no_other_of_its_event(log):
    append(log, rank("a"), reward("b"), rank("c"))
    [refused] = log.append([[reward("b"), rank("c")]])
    assert refused.position == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loop": ""}, "loop must be a string that is not empty, got ''"),
        ({"kind": None}, "kind must be a string that is not empty, got None"),
        ({"event": 7}, "event must be a string or None, got 7"),
        ({"user": b"u"}, "user must be a string or None, got b'u'"),
        ({"example": "text"}, "example must be bytes or None, got str"),
        ({"body": "{}"}, "body must be bytes, got str"),
        ({"user": "\ud800"}, "valid Unicode"),
    ],
)
def test_a_record_that_cannot_be_stored_does_not_harm_its_neighbours(log, wrong, message):
    first, refused, last = append(log, rank("a"), rank("b")._replace(**wrong), rank("c"))
    assert isinstance(refused, Refused)
    assert message in str(refused)
    assert (
        [(entry.position, entry.event) for entry in log.read("shop")]
        == [(first, "a"), (last, "c")]
        == [
            (1, "a"),
            (2, "c"),
        ]
    )


# questions


def test_the_log_is_read_by_position_event_and_kind(log):
    append(log, rank("a"), rank("b", "v"), rank("a", loop="news"), reward("a"), reward("b", "news"), rank("c"))
    append(log, base("u", b"1"), base(None, b"2"), base("u", b"3", "news"))
    append(log, Record("shop", "erase", None, "u", None, b'{"token":"t"}'))
    assert positions(log, after=1, limit=2) == [2, 3]
    assert positions(log, after=99) == []
    assert [entry.position for entry in log.find("shop", ["c", "a", "none"])] == [1, 3, 4]
    assert (log.find("shop", []), log.find("none", ["a"])) == ([], [])
    assert [entry.position for entry in log.of_kind("shop", "erase")] == [7]
    assert log.of_kind("news", "erase") == []
    assert [(entry.position, entry.user, entry.body) for entry in log.of_kind("shop", "base")] == [
        (5, "u", b"1"),
        (6, None, b"2"),
    ]
    assert [entry.position for entry in log.of_kind("shop", "base", limit=1)] == [5]
    assert [entry.position for entry in log.of_kind("shop", "base", after=5)] == [6]
    for wrong, message in (({"limit": 0}, "limit must be an integer of at least 1"), ({"after": -1}, "after must be")):
        with pytest.raises(ValueError, match=message):
            log.read("shop", **wrong)


def test_there_may_be_many_bases(log):
    log.append([[base(f"u{k}", b"%d" % k) for k in range(1_234)]])
    assert [entry.user for entry in log.of_kind("shop", "base")] == [f"u{k}" for k in range(1_234)]


def test_without_bodies_those_stay_that_no_example_stands_for(log):
    append(log, rank("a", body=b"long"), Record("shop", "settings", body=b"kept"), rank("b", body=b"", example=None))
    with_bodies, without = log.read("shop"), log.read("shop", bodies=False)
    assert [entry.body for entry in with_bodies] == [b"long", b"kept", b""]
    assert [entry.body for entry in without] == [b"", b"kept", b""]
    assert [entry._replace(body=b"") for entry in with_bodies] == [entry._replace(body=b"") for entry in without]


# erasure


def test_erasing_is_logged_without_a_name_and_spares_everybody_else(log):
    append(log, rank("a", "ann"), rank("b", "bob"), rank("c", "ann", loop="news"), reward("a"), reward("b"))
    append(log, Record("shop", "activate", "a"), Record("shop", "note", "a", "bob", None, b"bob's, about ann's event"))
    assert log.erase("shop", "ann", body_of_erased) == 3
    assert (positions(log), positions(log, "news")) == ([2, 4, 6, 7], [1])
    assert log.read("shop", 6)[0][3:] == ("erased", None, None, None, b'{"records":3}')
    assert log.erase("shop", "ann", body_of_erased) == 0
    assert append(log, rank("a", "ann")) == [9]
    assert log.find("shop", ["a"])[-1].user == "ann"


def test_erasing_a_device_spares_the_rewards_of_decisions_with_the_same_event(log):
    upload = Record("shop", "residual", "a/1", "a")
    append(log, upload, rank("a/1", "bob"), reward("a/1"), rank("c", "a"), reward("c"))
    assert log.erase("shop", "a", body_of_erased) == 3
    assert [(entry.kind, entry.event) for entry in log.read("shop")][:-1] == [("rank", "a/1"), ("reward", "a/1")]


@pytest.fixture
def few_at_once(monkeypatch):
    for module in (sqlite, postgres):
        monkeypatch.setattr(module, "ERASED_AT_ONCE", 5)


def test_a_user_with_many_records_is_erased_in_pieces_with_the_order_to_erase_last(log, few_at_once):
    append(log, *[rank(f"a{k}", "ann") for k in range(12)], *[rank(f"b{k}", "bob") for k in range(3)])
    append(
        log, *[reward("a3") for _ in range(17)], reward("b1"), base("ann", b"1"), Record("shop", "erase", None, "ann")
    )
    before = log.heads()["shop"]
    removed = []
    while log.erase_some("shop", "ann"):
        removed.append(log.heads()["shop"].removed)
        assert [entry.user for entry in log.of_kind("shop", "erase")] == ["ann"]
        assert {entry.event for entry in log.read("shop") if entry.user == "bob"} == {"b0", "b1", "b2"}
        append(log, Record("shop", "note"))  # others write in between
    assert all(0 < later - earlier <= 10 for earlier, later in zip([0, *removed], removed, strict=False))
    assert len(removed) >= 3
    assert log.erase("shop", "ann", body_of_erased) <= 5
    left = [(entry.kind, entry.event) for entry in log.read("shop") if entry.kind != "note"]
    assert left == [("rank", "b0"), ("rank", "b1"), ("rank", "b2"), ("reward", "b1"), ("erased", None)]
    head = log.heads()["shop"]
    assert head.last - head.removed == len(log.read("shop"))
    assert head.last == before.last + len(removed) + 1


def test_few_records_are_left_to_the_erasure_itself(log):
    append(log, rank("a", "ann"), reward("a"))
    assert not log.erase_some("shop", "ann")
    assert not log.erase_some("shop", "nobody")
    assert positions(log) == [1, 2]


def test_events_of_which_there_is_anything_exist(log):
    append(log, rank("a"), reward("b"), rank("c", loop="news"))
    assert log.existing("shop", ["a", "b", "c", "d", "d", NUL]) == {"a", "b"}
    assert log.existing("shop", []) == set()


def test_base_records_that_newer_ones_replace_go_with_an_erasure(log):
    append(log, base("ann", b"1"), base("bob", b"2"), base("cleo", b"3"), base(None, b"\xff"), rank("a", "ann"))
    append(log, base("bob", b"4"), base(None, b"\xfe"), base("bob", b"other", "news"), base("bob", b"loop", "news"))
    assert log.erase("shop", "ann", body_of_erased) == 2
    assert [(entry.position, entry.kind, entry.user, entry.body) for entry in log.read("shop")] == [
        (3, "base", "cleo", b"3"),
        (6, "base", "bob", b"4"),
        (7, "base", None, b"\xfe"),
        (8, "erased", None, b'{"records":2}'),
    ]
    assert positions(log, "news") == [1, 2]
    head = log.heads()["shop"]
    assert head.last - head.removed == 4


# pruning


def prune(log, old, loop="shop"):
    """Prune until all is done; return how many calls that took."""
    after, n_calls = 0, 0
    while after is not None:
        after = log.prune(loop, old, after)
        n_calls += 1
    return n_calls


def test_pruning_removes_old_decisions_with_their_rewards_and_nothing_else(log):
    append(
        log,
        Record("shop", "loop", "loop after 0"),
        rank("a"),
        reward("b"),  # early: its event is decided behind the cut
        Record("shop", "settings"),
        reward("never"),  # its event never came
        Record("shop", "residual", "r", "device", b"example"),
        Record("shop", "tick"),
        Record("shop", "actions"),
        rank("c"),  # 9, the cut
        rank("b"),
        reward("a"),  # late, and about an old event
        rank("d"),
        rank("a", loop="news"),
        Record("shop", "erase"),  # 13
        reward("c"),  # behind it: not about the old event any more
        Record("shop", "erased"),  # 15
    )
    prune(log, Pruning(9, 13, 15))
    kept = [(entry.position, entry.kind, entry.event) for entry in log.read("shop")]
    assert kept == [
        (1, "loop", "loop after 0"),
        (3, "reward", "b"),
        (4, "settings", None),
        (8, "actions", None),
        (10, "rank", "b"),
        (12, "rank", "d"),
        (13, "erase", None),
        (14, "reward", "c"),
        (15, "erased", None),
    ]
    assert log.heads()["shop"][::2] == (15, 6)
    assert positions(log, "news") == [1]
    assert append(log, rank("a"), rank("r")) == [16, 17], "ids of events that are gone are new"


def test_pruning_removes_bases_that_newer_ones_replace_and_records_of_earlier_prunings(log):
    append(
        log,
        rank("a"),
        base("u", b"old"),
        base("v", b"only"),
        base(None, b"old"),
        Record("shop", "erase"),
        Record("shop", "erase", user="w"),  # somebody is still to be erased
        Record("shop", "erased"),  # 7, the cut
        Record("shop", "erase"),
        base("u", b"new"),
        base(None, b"new"),
        Record("shop", "erased"),  # 11
        base("v", b"of a pruning that is not done"),
    )
    prune(log, Pruning(7, 8, 11))
    kept = [(entry.position, entry.kind, entry.user) for entry in log.read("shop")]
    assert kept == [
        (3, "base", "v"),
        (6, "erase", "w"),
        (8, "erase", None),
        (9, "base", "u"),
        (10, "base", None),
        (11, "erased", None),
        (12, "base", "v"),
    ]


def test_pruning_goes_in_short_steps_that_may_be_repeated(backend, log):
    for k in range(6):
        log.append([[rank(f"e{k}-{i}"), reward(f"e{k}-{i}")] for i in range(500)])
    append(log, Record("shop", "erase"), Record("shop", "erased"))
    old = Pruning(5_000, 6_001, 6_002)
    step = log.prune("shop", old, 0)
    assert 0 < step <= 500
    assert log.heads()["shop"].removed <= 1_000
    with backend.open() as other:  # after a crash it begins again
        assert prune(other, old) > 10
    assert log.heads()["shop"][::2] == (6_002, 5_000)
    assert positions(log, limit=10_000) == list(range(5_001, 6_003))
    assert prune(log, old) > 0
    assert log.heads()["shop"].removed == 5_000


def test_a_log_knows_how_many_bytes_it_takes(log):
    empty = log.size()
    log.append([[rank(f"e{k}", body=random.Random(k).randbytes(10_000))] for k in range(100)])
    assert empty + 500_000 < log.size() < empty + 5_000_000


def test_nobody_can_be_erased_from_a_loop_that_is_not_there(log):
    with pytest.raises(Refused, match="loop must be one that the log has, got 'none'"):
        log.erase("none", "ann", body_of_erased)
    assert log.heads() == {}


# checksums


DAMAGE = {
    "time": 7,
    "kind": "reward",
    "event": "other",
    "user": None,
    "example": b"other",
    "checksum": bytes(16),
}


@pytest.mark.parametrize("column", DAMAGE)
def test_a_record_that_was_changed_is_not_read(backend, log, column):
    append(log, rank("a"), rank("b"), rank("c"))
    backend.execute(f"UPDATE log SET {column} = ? WHERE loop = 'shop' AND position = 2", DAMAGE[column])
    for bodies in (True, False):
        with pytest.raises(DamagedRecord, match="record 2 of loop 'shop' does not match its checksum") as raised:
            log.read("shop", bodies=bodies)
        assert (raised.value.loop, raised.value.position) == ("shop", 2)
    assert [entry.event for entry in log.read("shop", 0, 1)] == ["a"]
    assert [entry.event for entry in log.read("shop", 2)] == ["c"]


def test_a_body_that_was_changed_is_not_read_and_does_not_stop_those_who_need_none(backend, log):
    append(log, rank("a"), rank("b"))
    backend.execute("UPDATE log SET body = ? WHERE loop = 'shop' AND position = 1", '{"a":2}')
    with pytest.raises(DamagedRecord):
        log.read("shop")
    with pytest.raises(DamagedRecord):
        log.find("shop", ["a"])
    assert [entry.event for entry in log.read("shop", bodies=False)] == ["a", "b"]


def test_a_damaged_record_can_be_given_up_for_good(backend, log):
    append(log, rank("a"), rank("b"), rank("c"))
    backend.execute("UPDATE log SET example = ? WHERE loop = 'shop' AND position = 2", b"other")
    log.drop("shop", 2)
    log.drop("shop", 2)  # there is none any more
    assert positions(log) == [1, 3]
    assert log.heads()["shop"][::2] == (3, 1)
    assert append(log, rank("d")) == [4]


def test_checksums_tell_records_apart_by_every_column(log):
    append(log, rank("a"))
    [entry] = log.read("shop")
    changed = [
        entry._replace(**{name: value})
        for name, value in {**DAMAGE, "loop": "other", "position": 2, "body": b"other"}.items()
        if name != "checksum"
    ]
    changed += [entry._replace(event=None), entry._replace(event="", user="au")]
    assert len({checksum(one) for one in [entry, *changed]}) == len(changed) + 1

"""Copies of deleted records in unused parts of pages: found, overwritten, and nothing else is touched."""

import os
import random
import sqlite3
import string
from contextlib import closing

import pytest
from writers import rank, running_writer, stored

from service.log import sqlite_gaps
from service.log.client import BlockingWriter
from service.log.protocol import StoreUnavailable
from service.log.records import Record
from service.log.sqlite import SqliteLog
from service.log.sqlite_gaps import dirty_pages, overwrite
from service.log.sqlite_schema import sqlite_file


def secret(rng, longest=400):
    return "".join(rng.choices(string.ascii_letters, k=rng.randint(14, longest)))


def fill(log, rng, n, user):
    """Append records with random ids and sizes; return what is secret in them."""
    records = [
        Record("shop", "rank", secret(rng, 30), user, None, secret(rng, rng.choice([30, 1_200])).encode())
        for _ in range(n)
    ]
    rng.shuffle(records)
    log.append([[record] for record in records])
    return [word for record in records for word in (record.event, record.body.decode())]


def left(path, words):
    contents = [file.read_bytes() for file in path.parent.iterdir() if file.is_file()]
    return [word for word in words if any(word.encode() in content for content in contents)]


def erased_store(path, rng):
    """Return the log of a store in which users were erased one after the other, and the words that must be gone."""
    log, gone = SqliteLog(sqlite_file(path)), []
    words = {f"user-{k}": [] for k in range(20)}
    for _ in range(8):
        for user, of_user in words.items():
            of_user += fill(log, rng, 8, user)
    for user in list(words)[::2]:
        log.erase("shop", user, lambda n: b"{}")
        gone += words[user]
        fill(log, rng, 5, "another")
    return log, gone


def dirty(path):
    with open(path, "rb") as file:
        pages = dirty_pages(file.fileno())
        while True:
            try:
                next(pages)
            except StopIteration as done:
                return sorted(done.value)


def check(path):
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA integrity_check").fetchall()


@pytest.mark.parametrize("seed", range(3))
def test_deleting_leaves_copies_and_scrubbing_none_while_others_append(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(sqlite_gaps, "SLICE_PAGES", 7)
    rng = random.Random(seed)
    log, gone = erased_store(tmp_path / "log.db", rng)
    with closing(log):
        assert dirty(tmp_path / "log.db"), "without this the test shows nothing"
        kept, n_steps = [], 0
        for _ in log.scrub():
            n_steps += 1
            kept += fill(log, rng, 3, "meanwhile")
        assert n_steps > 3
        assert left(tmp_path / "log.db", gone) == []
        assert left(tmp_path / "log.db", kept) == kept
        fill(log, rng, 200, "later")
        assert left(tmp_path / "log.db", gone) == []
        assert check(tmp_path / "log.db") == [("ok",)]
        for entry in log.read("shop", 0, 10_000):
            assert entry.user != "user-0"


def test_a_store_that_is_opened_anew_meanwhile_is_cleaned_again(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_gaps, "SLICE_PAGES", 7)
    log, gone = erased_store(tmp_path / "log.db", random.Random(0))
    with closing(log):
        cleaning = log.scrub()
        next(cleaning)
        log._drop()  # as after a failure of the disk
        with pytest.raises(StoreUnavailable, match="clean it again"):
            list(cleaning)
        list(log.scrub())
        assert left(tmp_path / "log.db", gone) == []


def test_overwriting_changes_only_what_no_reader_sees(tmp_path):
    path = tmp_path / "log.db"
    log, _ = erased_store(path, random.Random(1))
    log.close()
    with closing(sqlite3.connect(path)) as db:
        before = list(db.iterdump())
        db.execute("PRAGMA journal_mode=DELETE").fetchall()
    file = os.open(path, os.O_RDWR)
    try:
        assert overwrite(file, dirty(path)) > 0
        assert overwrite(file, range(1_000_000)) == 0
        assert dirty(path) == []
    finally:
        os.close(file)
    with closing(sqlite3.connect(path)) as db:
        assert list(db.iterdump()) == before
    assert check(path) == [("ok",)]


def test_pointer_maps_of_a_file_that_can_be_shortened_are_left_alone(tmp_path):
    path = tmp_path / "log.db"
    with closing(SqliteLog(sqlite_file(path))) as log:
        fill(log, random.Random(2), 16_000, "somebody")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA auto_vacuum").fetchone() == (2,)
        [n_pages] = db.execute("PRAGMA page_count").fetchone()
        db.execute("PRAGMA journal_mode=DELETE").fetchall()
    assert n_pages > 2 * 820, "the file must have three maps"
    content = path.read_bytes()
    kinds = {content[4096 * (number - 1)] for number in (2, 822, 1_642)}
    assert kinds & {2, 5}, "a map that begins as a b-tree's page does"
    file = os.open(path, os.O_RDWR)
    try:
        overwrite(file, range(1, n_pages + 1))
    finally:
        os.close(file)
    after = path.read_bytes()
    assert all(after[at : at + 4096] == content[at : at + 4096] for at in (4096, 821 * 4096, 1_641 * 4096))
    assert check(path) == [("ok",)]


@pytest.mark.parametrize("damage", [b"\x0d\xff\xff\xff\xff\xff\xff", b"\x0d\0\x10\0\x01\0\x08", b"\0" * 8])
def test_a_page_that_makes_no_sense_is_left_alone(damage):
    page = damage + b"secret" * 600
    assert sqlite_gaps.unused(page[:4096], 7) == []


def test_the_writer_cleans_between_two_batches_and_says_when_it_is_done(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_gaps, "SLICE_PAGES", 1)
    with running_writer(tmp_path) as writer, closing(BlockingWriter(writer.path)) as learner:
        learner.append([[rank(f"{k}", b"x" * 3_000, "somebody")] for k in range(60)])
        assert learner.erase("shop", "somebody", 0, "token") == 60
        answers = [learner.scrub(7)]
        while not answers[-1] and len(answers) < 10**5:
            learner.append([[rank(f"meanwhile {len(answers)}")]])
            answers.append(learner.scrub(7))
        assert answers[0] is False
        assert answers[-1] is True
        assert learner.scrub(7) is True
        assert learner.scrub(8) is False  # another one begins
    assert len([event for event in stored(writer.file) if event and event.startswith("meanwhile")]) == len(answers) - 1

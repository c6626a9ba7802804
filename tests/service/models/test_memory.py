"""Shared memory by itself: blocks that are found, moved, freed and read whole while another process writes them."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from service.models import memory
from service.models.memory import (
    ENTRY,
    HEAD,
    INDEX_AT,
    NOT_FOUND,
    SMALLEST_INDEX,
    TORN,
    MemoryReader,
    MemoryWriter,
    TornRead,
    begin_change,
    capacity_for,
    copy_block,
    find_block,
    key_of,
    read_block,
)

N_READS = 200_000  # of each of two readers
HOSTILE = Path(__file__).with_name("hostile.py")


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="fedres-test-", dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture
def both(folder):
    writer = MemoryWriter(folder / "models")
    yield writer, MemoryReader(folder / "models")
    writer.close()


def test_what_was_written_is_read_and_what_was_not_is_not_there(both):
    writer, reader = both
    assert reader.read(key_of("a")) is None
    for data in (b"x", b"12345678", b"y" * 1_000, b"z", bytes(100_000)):
        writer.write(key_of("a"), data)
        assert reader.read(key_of("a")) == data
    assert reader.read(key_of("b")) is None


def test_keys_that_are_made_to_collide_are_spread_over_the_index(both):
    """Whoever chooses users finds some whose hashes end alike: without a secret they would share one entry."""
    writer, reader = both
    keys = [(k << 24 | 1, 7) for k in range(1, 501)]
    for first, second in keys:
        writer.write((first, second), first.to_bytes(8, "little"))
    assert all(reader.read(key) == key[0].to_bytes(8, "little") for key in keys)
    index = int(writer.words[INDEX_AT]) + HEAD
    entries = writer.words[index : index + ENTRY * SMALLEST_INDEX].reshape(-1, ENTRY)
    used = entries[:, 0] != 0
    run = longest = 0
    for is_used in np.concatenate([used, used]).tolist():
        run = run + 1 if is_used else 0
        longest = max(longest, run)
    assert (int(used.sum()), longest < 64) == (500, True)


def test_the_index_grows_with_its_keys(both):
    writer, reader = both
    n = 3 * SMALLEST_INDEX
    for k in range(n):
        writer.write(key_of(f"{k}"), b"%d" % k)
    assert all(reader.read(key_of(f"{k}")) == b"%d" % k for k in range(n))
    assert writer.find(key_of(f"{n}")) == NOT_FOUND


def test_keys_that_come_and_go_take_no_more_room_in_the_end(both):
    writer, reader = both
    kept = {key_of(f"kept {k}"): b"%d" % k for k in range(300)}
    for key, data in kept.items():
        writer.write(key, data)
    used = writer.used_bytes
    for k in range(20 * SMALLEST_INDEX):
        writer.write(key_of(f"new {k}"), b"new")
        if k >= 50:
            assert writer.free(key_of(f"new {k - 50}"))
    assert writer.used_bytes < used + 200_000
    assert {key: reader.read(key) for key in kept} == kept
    last = range(20 * SMALLEST_INDEX - 60, 20 * SMALLEST_INDEX)
    assert [reader.read(key_of(f"new {k}")) for k in last] == [None] * 10 + [b"new"] * 50


def test_a_block_that_was_freed_is_used_again_and_holds_nothing_of_before(both):
    writer, reader = both
    writer.write(key_of("gone"), b"secret" * 4)
    offset, used = writer.find(key_of("gone")), writer.used_bytes
    writer.free(key_of("gone"))
    assert reader.read(key_of("gone")) is None
    assert not writer.words[offset + HEAD : offset + HEAD + 8].any()
    writer.write(key_of("new"), b"open")
    assert (writer.find(key_of("new")), writer.used_bytes) == (offset, used)
    assert reader.read(key_of("new")) == b"open"


def test_a_reader_that_found_a_block_before_it_became_anothers_does_not_take_it(both):
    writer, reader = both
    writer.write(key_of("mine"), b"mine")
    offset, out = find_block(reader.words, *key_of("mine")), np.zeros(8, np.uint64)
    writer.free(key_of("mine"))
    writer.write(key_of("other"), b"other")
    assert find_block(reader.words, *key_of("other")) == offset
    assert copy_block(reader.words, offset, *key_of("mine"), out) == NOT_FOUND


def test_a_block_that_grows_is_there_at_every_moment(both, monkeypatch):
    writer, reader = both
    writer.write(key_of("a"), b"before")
    seen, put, release = [], writer._put, writer._release
    monkeypatch.setattr(writer, "_put", lambda *one: (seen.append(reader.read(key_of("a"))), put(*one)))
    monkeypatch.setattr(writer, "_release", lambda *one: (seen.append(reader.read(key_of("a"))), release(*one)))
    writer.write(key_of("a"), b"after" * 100)
    assert seen == [b"before", b"after" * 100]
    assert reader.read(key_of("a")) == b"after" * 100


def test_a_block_whose_writer_ended_in_the_middle_is_given_up(both):
    writer, reader = both
    writer.write(key_of("a"), b"whole")
    offset, out = writer.find(key_of("a")), np.zeros(8, np.uint64)
    begin_change(writer.words, offset)
    assert copy_block(reader.words, offset, *key_of("a"), out) == TORN
    assert read_block(reader.words, *key_of("a"), out) == TORN
    with pytest.raises(TornRead, match="half written"):
        reader.read(key_of("a"))


def test_a_full_file_system_is_an_error_and_changes_nothing(both, monkeypatch):
    writer, reader = both
    writer.write(key_of("a"), b"before")
    used = writer.used_bytes

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="no space left"):
        writer.write(key_of("a"), bytes(2 * memory.STEP_BYTES))
    assert (reader.read(key_of("a")), writer.used_bytes) == (b"before", used)
    monkeypatch.undo()
    writer.write(key_of("a"), bytes(2 * memory.STEP_BYTES))
    assert len(reader.read(key_of("a"))) == 2 * memory.STEP_BYTES


def test_the_end_of_the_address_space_is_an_error_and_changes_nothing(folder, monkeypatch):
    monkeypatch.setattr(memory, "VIRTUAL_BYTES", 2 * memory.STEP_BYTES)
    writer = MemoryWriter(folder / "models")
    writer.write(key_of("a"), b"before")
    with pytest.raises(OSError, match="of address space"):
        writer.write(key_of("a"), bytes(2 * memory.STEP_BYTES))
    writer.write(key_of("b"), bytes(memory.STEP_BYTES))
    reader = MemoryReader(folder / "models")
    assert (reader.read(key_of("a")), len(reader.read(key_of("b")))) == (b"before", memory.STEP_BYTES)


def test_models_are_published_with_little_address_space(folder):
    few_gb = """
import resource, sys
from pathlib import Path
from service.models.memory import MemoryReader, MemoryWriter, key_of
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (5 << 30),) * 2)
writer = MemoryWriter(Path(sys.argv[1]))
writer.write(key_of("a"), b"there")
print(MemoryReader(Path(sys.argv[1])).read(key_of("a")), writer.words.nbytes >> 30)
"""
    done = subprocess.run([sys.executable, "-c", few_gb, folder / "models"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("b'there' 1\n", "")


def test_a_block_has_at_most_a_quarter_more_room_than_is_needed():
    for n_words in [*range(1, 300), 10_000, 12_345]:
        assert n_words <= capacity_for(n_words) <= max(8, 1.25 * n_words + 1)


def test_a_file_that_is_none_of_ours_is_refused(folder):
    (folder / "models").write_bytes(bytes(8_192))
    with pytest.raises(ValueError, match="must hold published models"):
        MemoryReader(folder / "models")


def test_no_read_is_torn_while_a_hostile_writer_rewrites_moves_and_frees_blocks(folder):
    def start(role):
        command = [sys.executable, str(HOSTILE), role, str(folder / "models"), str(N_READS)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    writing = start("write")
    assert writing.stdout.readline() == "ready\n"
    readers = [start("read") for _ in range(2)]
    counts = [one for reader in readers for one in json.loads(reader.communicate()[0])]
    writing.communicate("stop\n")
    assert [process.returncode for process in (writing, *readers)] == [0, 0, 0]
    assert [torn for _, torn, _ in counts] == [0] * 8
    assert sum(whole for whole, _, _ in counts) > N_READS // 10  # the writer may lose its core in the middle of a block
    assert all(newest > 1 for *_, newest in counts)

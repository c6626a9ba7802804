"""The catalogue in shared memory: a change costs what it changes, memory is bounded, and every reader has the same."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from service.log.records import CatalogueReference
from service.models import catalogue as pieces_of_catalogue
from service.models.catalogue import CatalogueCopy, CatalogueWriter
from service.models.loop_metadata import CatalogueAction
from service.models.memory import MemoryReader, MemoryWriter, TornRead


class CountingMemory(MemoryWriter):
    """Counts the bytes that are written."""

    n_written = 0

    def write(self, key, data):
        self.n_written += len(data)
        super().write(key, data)


class Published:
    """A catalogue that changes, what is published of it, and a mapped file to read it from."""

    def __init__(self, folder):
        self.memory = CountingMemory(folder / "models")
        self.writer, self.actions, self.position = CatalogueWriter(self.memory, "shop@1"), {}, 0
        self.shown = (0, 0)
        self.reader = MemoryReader(self.memory.path)

    def change(self, put=(), retire=()):
        """Put actions with features of some size, and retire others; return how many bytes that wrote."""
        self.position += 1
        for name, size in dict(put).items():
            self.actions[name] = CatalogueAction(self.position, (str(self.position) + "x" * size)[:size].encode())
        for name in retire:
            self.actions.pop(name, None)
        before = self.memory.n_written
        self.shown = self.writer.publish(self.actions, {*dict(put), *retire})
        return self.memory.n_written - before

    def refresh(self, copy):
        copy.refresh(self.reader, "shop@1", self.shown)
        assert copy.actions == self.actions
        assert copy.references == {name: CatalogueReference(name, one.put) for name, one in self.actions.items()}
        assert copy.n_bytes == sum(len(name) + len(action.features) for name, action in self.actions.items())

    @property
    def n_bytes(self):
        return sum(len(name) + len(action.features) for name, action in self.actions.items())


@pytest.fixture
def published():
    with tempfile.TemporaryDirectory(prefix="fedres-test-", dir="/dev/shm") as name:
        yield Published(Path(name))


def test_a_change_writes_what_it_changes_however_large_the_catalogue_is(published):
    published.change({f"a{k}": 500 for k in range(20_000)})
    copy = CatalogueCopy()
    published.refresh(copy)
    assert published.change({"a7": 500}) < 600
    assert published.change(retire=["a8"]) < 100
    assert published.change() == 0
    published.refresh(copy)


def test_over_many_changes_each_writes_a_bounded_multiple_and_memory_stays_within_a_few_times_the_catalogue(published):
    rng, copy = np.random.default_rng(1), CatalogueCopy()
    published.change({f"a{k}": 500 for k in range(2_000)})
    most_used = 0
    for turn in range(1_500):
        names = {f"a{k}": 500 for k in rng.integers(2_000, size=rng.integers(1, 20)).tolist()}
        changed = 510 * len(names)
        assert published.change(names) < (1 + pieces_of_catalogue.MOVED) * changed + 70_000
        if turn % 50 == 0:
            published.refresh(copy)
        most_used = max(most_used, published.memory.used_bytes)
    assert most_used < 4 * (published.n_bytes + pieces_of_catalogue.SPARE_BYTES)


def test_one_large_action_among_small_ones_does_not_fill_the_memory(published):
    published.change({f"a{k}": 20 for k in range(2_000)})
    for _ in range(200):
        published.change({"large": 300_000})
    assert published.memory.used_bytes < 8_000_000
    published.refresh(CatalogueCopy())


def test_actions_put_one_by_one_end_up_in_few_pieces(published):
    for k in range(4_000):
        published.change({f"a{k}": 50})
    first, end = published.shown
    assert end - first < 2 * pieces_of_catalogue.MOST_PIECES
    published.refresh(CatalogueCopy())


def test_readers_that_look_now_and_then_have_what_is_published_then(published, monkeypatch):
    monkeypatch.setattr(pieces_of_catalogue, "SPARE_BYTES", 1_000)
    monkeypatch.setattr(pieces_of_catalogue, "PIECE_BYTES", 400)
    rng = np.random.default_rng(2)
    copies = [CatalogueCopy() for _ in range(3)]
    for _ in range(1_000):
        put = {f"a{k}": int(rng.integers(2, 300)) for k in rng.integers(40, size=rng.integers(3)).tolist()}
        published.change(put, [f"a{k}" for k in rng.integers(40, size=rng.integers(3)).tolist() if f"a{k}" not in put])
        for copy, share in zip(copies, (1.0, 0.2, 0.01), strict=True):
            if rng.random() < share:
                published.refresh(copy)
        if rng.random() < 0.02:
            published.refresh(CatalogueCopy())


def test_what_was_made_of_an_action_is_kept_until_that_action_changes(published, monkeypatch):
    monkeypatch.setattr(pieces_of_catalogue, "SPARE_BYTES", 1_000)
    copy = CatalogueCopy()
    published.change({"a": 100, "b": 100})
    published.refresh(copy)
    copy.prepared.update(a="row of a", b="row of b")
    for _ in range(100):  # so often that a is moved to another piece
        published.change({"b": 100})
    published.refresh(copy)
    assert published.shown[0] > 0
    assert copy.prepared == {"a": "row of a"}


def test_a_piece_that_is_gone_leaves_a_reader_as_it_was(published):
    copy = CatalogueCopy()
    published.change({"a": 100})
    published.refresh(copy)
    published.change({"b": 100})
    before = dict(copy.actions)
    published.writer.free()
    with pytest.raises(TornRead):
        published.refresh(copy)
    assert copy.actions == before


def test_a_catalogue_that_was_learned_again_is_published_whole_and_without_what_it_has_not(published):
    copy = CatalogueCopy()
    published.change({"a": 100, "b": 100})
    published.refresh(copy)
    published.actions = {"b": published.actions["b"], "c": CatalogueAction(9, b"{}")}
    published.shown = published.writer.publish(published.actions, None)
    published.refresh(copy)
    published.refresh(CatalogueCopy())


def test_a_deleted_loop_leaves_its_room_to_others(published):
    used = []
    for since in range(5):
        published.writer, published.actions = CatalogueWriter(published.memory, f"shop@{since}"), {}
        published.change({f"{since} {k}": 500 for k in range(5_000)})
        used.append(published.memory.used_bytes)
        published.writer.free()
    assert used[-1] < used[0] + 100_000

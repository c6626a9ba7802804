"""What the learner publishes, as a ranker sees it: newest weights, changed chunks alone, across restarts."""

import tempfile
from pathlib import Path

import numpy as np
import pytest

from fedres.scoring.batch import CHUNK_BITS
from fedres.scoring.model import PersonalModel
from service.models import adagrad
from service.models.loop_metadata import CatalogueAction, Clients, LoopStatistics
from service.models.memory import HEAD, TornRead, begin_change, end_change, key_of
from service.models.personal import PersonalModels, personal_key, read_data
from service.models.published import (
    LoopView,
    NotPublished,
    PublishedModels,
    Publisher,
    make_current,
    new_generation,
    weights_key,
)
from service.settings import Settings

BITS = 13
CHUNK = 2**CHUNK_BITS
N_CHUNKS = (2**BITS >> CHUNK_BITS) + 1


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="fedres-test-", dir="/dev/shm") as name:
        make_current(Path(name))
        yield Path(name)


def view(version, since=1, name="shop", pieces=(0, 0)):
    numbers = {"n_waiting": 0, "seen_range": (0.0, 1.0), "newest": 0, "catalogue_version": 0}
    return LoopView(
        name,
        since,
        version,
        0,
        version,
        Settings(model="adagrad", bits=BITS),
        1,
        LoopStatistics(),
        **numbers,
        catalogue_pieces=pieces,
        clients_version=0,
        erased=[],
    )


class Learning:
    """A learner's side with one loop."""

    def __init__(self, folder, since=1):
        self.publisher, self.since = Publisher(folder, new_generation(folder)), since
        self.weights, self.changed = np.zeros(2**BITS + 1, np.float32), np.ones(N_CHUNKS, np.uint8)
        self.pieces = self.publisher.publish_catalogue(f"shop@{since}", {"a": CatalogueAction(1, b"{}")})
        self.publisher.publish_clients(view(1, since), Clients())

    def publish(self, version, *places):
        """Publish weights that are the version's at some places."""
        for place in places:
            self.weights[place] = version
            self.changed[place >> CHUNK_BITS] = 1
        self.publisher.publish(view(version, self.since, pieces=self.pieces), self.weights, self.changed)
        self.publisher.publish_names(["shop"])
        self.publisher.done()

    def block(self):
        return self.publisher.memory.find(weights_key(f"shop@{self.since}"))


def test_before_the_first_publication_there_is_nothing_and_then_there_is(folder):
    models, learning = PublishedModels(folder), Learning(folder)
    assert not models.ready
    with pytest.raises(NotPublished):
        models.loop("shop")
    learning.publish(1)
    with pytest.raises(NotPublished):
        models.loop("shop")
    learning.publisher.show()
    assert models.ready
    assert models.names() == ["shop"]
    assert models.loop("shop").view.version == 1
    assert models.loop("other") is None


def test_a_ranker_that_looks_at_some_versions_alone_has_the_newest_weights_then(folder):
    rng, learning = np.random.default_rng(0), Learning(folder)
    learning.publish(1)
    learning.publisher.show()
    rankers = [PublishedModels(folder) for _ in range(3)]
    for version in range(2, 60):
        learning.publish(version, *rng.integers(2**BITS + 1, size=rng.integers(4)).tolist())
        for k, models in enumerate(rankers):
            if rng.random() < (1.0, 0.5, 0.1)[k]:
                loop = models.loop("shop")
                assert loop.view.version == version
                assert np.array_equal(loop.weights, learning.weights)


def test_only_chunks_that_changed_are_written_and_copied(folder):
    learning, models = Learning(folder), PublishedModels(folder)
    learning.publish(1)
    learning.publisher.show()
    for version in (2, 3):  # a ranker has two copies, each of which is new once
        learning.publish(version, 0)
        models.loop("shop")
    words, first = learning.publisher.memory.words, learning.block() + HEAD + 1 + N_CHUNKS
    words[first : first + 2**BITS // 2] = 0xDEADBEEF  # what nobody changes, nobody looks at
    learning.publish(4, 5 * CHUNK + 7)
    weights = models.loop("shop").weights
    assert weights[5 * CHUNK + 7] == 4
    changed = np.flatnonzero(weights != learning.weights) >> CHUNK_BITS
    assert set(changed.tolist()) == {0}  # which changed since this copy was made, and was overwritten; no other is read
    published = words[first : first + (2**BITS + 1) // 2].view(np.float32)
    assert np.array_equal(published[5 * CHUNK : 6 * CHUNK], learning.weights[5 * CHUNK : 6 * CHUNK])
    assert not learning.changed.any()


def test_a_ranker_goes_on_with_what_it_has_while_weights_or_a_view_are_being_written(folder):
    learning, models = Learning(folder), PublishedModels(folder)
    learning.publish(1, 3)
    learning.publisher.show()
    assert models.loop("shop").weights[3] == 1
    learning.publish(2, 3)
    words = learning.publisher.memory.words
    for offset in (learning.block(), learning.publisher.memory.find(key_of("view\0shop"))):
        begin_change(words, offset)
        loop = models.loop("shop")
        assert (loop.view.version, loop.weights[3]) == (1, 1)
        end_change(words, offset)
    learning.publisher.done()
    loop = models.loop("shop")
    assert (loop.view.version, loop.weights[3]) == (2, 2)


def test_the_block_of_a_deleted_loop_is_never_taken_for_another_loops_weights(folder):
    learning, models = Learning(folder), PublishedModels(folder)
    learning.publish(1, 3)
    learning.publisher.show()
    loop = models.loop("shop")
    learning.publisher.drop("shop", "shop@1")
    learning.publisher.memory.write(weights_key("other@1"), bytes(8 * 2**BITS))
    with pytest.raises(TornRead):
        models._refresh_weights(models.memory, loop, loop.view)
    learning.publisher.done()
    assert models.loop("shop") is None


def test_a_loop_made_anew_under_its_name_begins_with_its_own_weights(folder):
    learning, models = Learning(folder), PublishedModels(folder)
    learning.publish(1, 3)
    learning.publisher.show()
    assert models.loop("shop").weights[3] == 1
    learning.publisher.drop("shop", "shop@1")
    learning.since, learning.weights[:], learning.changed[:] = 9, 0, 1
    learning.pieces = learning.publisher.publish_catalogue("shop@9", {})
    learning.publisher.publish_clients(view(9, 9), Clients())
    learning.publish(9)
    loop = models.loop("shop")
    assert (loop.view.created_at, loop.weights.any(), loop.catalogue) == (9, False, {})


def test_rankers_read_on_while_the_learner_restarts_and_see_its_new_file_when_it_is_shown(folder):
    old, models = Learning(folder), PublishedModels(folder)
    old.publish(1, 3)
    old.publisher.show()
    assert models.loop("shop").weights[3] == 1
    new = Learning(folder)
    assert models.loop("shop").weights[3] == 1
    new.publish(2, 4)
    assert models.loop("shop").weights[4] == 0  # not shown yet
    new.publisher.show()
    assert (models.loop("shop").weights[3], models.loop("shop").weights[4]) == (0, 2)
    assert [path.name for path in folder.glob("models-*")] == [new.publisher.memory.path.name]
    old.publish(3, 3)  # nobody sees it
    assert models.loop("shop").view.version == 2


def taught(reward, n_features=40):
    keys = np.arange(1, n_features + 1, dtype=np.uint32) * np.uint32(2654435761)
    model = PersonalModel()
    model.learn((keys, np.ones(n_features, np.float32)), reward, 0.0, (0.0, 1.0))
    return model


def test_users_models_are_read_as_they_were_put_grown_and_removed(folder):
    learning = Learning(folder)
    learning.publish(1)
    learning.publisher.show()
    models, personal = PublishedModels(folder), PersonalModels(learning.publisher.memory)
    assert models.ready
    for n_features in (3, 40, 700):
        state = taught(0.5, n_features).to_bytes()
        personal.put("shop@1", "ann", adagrad.personal_data(7, state))
        for data in (read_data(models.memory, "shop@1", "ann"), personal.data("shop@1", "ann")):
            changed, model = adagrad.read_personal(data)
            assert (changed, model.to_bytes()) == (7, state)
    assert read_data(models.memory, "shop@2", "ann") is None
    assert personal.unsaved == {("shop@1", "ann")}
    personal.remove("shop@1", ["ann", "nobody"])
    assert read_data(models.memory, "shop@1", "ann") is None
    assert (personal.unsaved, personal.data("shop@1", "ann")) == (set(), None)


def test_a_block_that_is_made_and_not_yet_filled_is_no_model(folder):
    learning = Learning(folder)
    learning.publish(1)
    learning.publisher.show()
    models = PublishedModels(folder)
    assert models.ready
    learning.publisher.memory.room_for(personal_key("shop@1", "ann"), 100)
    assert read_data(models.memory, "shop@1", "ann") is None


def test_a_copy_on_another_thread_stays_as_it_was_while_publications_go_on(folder):
    learning = Learning(folder)
    learning.publish(1, 0)
    learning.publisher.show()
    models = PublishedModels(folder)
    loop = models.loop("shop")
    for first in (2, 10):  # the second time, arrays are reused again
        with loop.lend(["a", "unknown"]) as lent:
            weights, view_before = lent.weights.copy(), lent.view
            assert {*lent.catalogue} == {"a"}
            lent.prepared["a"] = "row"
            for version in range(first, first + 5):
                learning.publish(version, 0, 100)
                assert models.loop("shop").view.version == version
                assert loop.weights[0] == version
                assert np.array_equal(lent.weights, weights)
                assert lent.view is view_before
        assert loop.prepared == {"a": "row"}
        assert not loop.lent.total()


def test_loops_that_are_gone_are_dropped(folder):
    learning = Learning(folder)
    learning.publish(1)
    learning.publisher.show()
    models = PublishedModels(folder)
    assert models.loop("shop") is not None
    learning.publisher.drop("shop", "shop@1")
    learning.publisher.publish_names([])
    learning.publisher.done()
    assert models.names() == []
    assert not models._loops
    assert models.loop("shop") is None

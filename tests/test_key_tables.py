"""Tables of keys: nothing is lost, no order shows, and names that are made to collide cost what others cost."""

import zlib

import numpy as np
import pytest
from crafted_names import equal_last_bits, equal_products, names_with

from fedres import key_tables
from fedres.decisions.kalman_rows import number_features
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of, request_of
from fedres.key_tables import LONGEST, MOST_PROBES, TAIL, drop_key, empty_table, find_key, new_table, put_all, put_key
from fedres.scoring.features import Named, Preparer
from fedres.scoring.model import PersonalModel
from service.models.catalogue import CatalogueCopy
from service.models.loop_metadata import CatalogueAction
from service.plugins.recommend.items import Items

N = 4_000


def set_secret(monkeypatch, secret):
    """Give all new tables this secret."""
    words = np.array([secret & 0xFFFFFFFF, secret >> 32], np.uint32)
    monkeypatch.setattr(key_tables, "new_secret", lambda: words.copy())


def first_slots(table, keys):
    """Return the first slot of each key, as compiled code computes it."""
    low, high = (int(word) for word in table[-TAIL:LONGEST])
    word = keys.astype(np.uint64) ^ np.uint64(low | high << 32)
    word = (word ^ word >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ word >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return ((word ^ word >> np.uint64(31)) & np.uint64(table.size - TAIL - 1)).astype(np.int64)


def probes(table, keys=None):
    """Return how many slots are looked at to find each key of a table, whose slots have places in ``keys`` or keys."""
    slots = np.flatnonzero(table[:-TAIL])
    held = table[slots] if keys is None else keys[table[slots].astype(np.int64) - 1]
    return 1 + (slots - first_slots(table, held)) % (table.size - TAIL)


def random_hashes(n, seed=0):
    return np.unique(np.random.default_rng(seed).integers(1, 2**32, 2 * n, dtype=np.uint32))[:n]


def test_names_are_made_that_have_any_hash():
    wanted = random_hashes(50)
    names = names_with(wanted)
    assert [zlib.crc32(name.encode()) for name in names] == wanted.tolist()
    assert len({len(name) for name in names}) == 1


def test_all_keys_are_found_in_a_table_that_others_were_taken_out_of():
    rng = np.random.default_rng(24)
    keys, table, there = rng.integers(1, 2**32, 12, dtype=np.uint32), empty_table(32), set()
    for _ in range(2000):
        place = int(rng.integers(12))
        if place in there:
            drop_key(table, keys, keys[place])
            there.remove(place)
            keys[place] = rng.integers(1, 2**32, dtype=np.uint32)
        else:
            put_key(table, keys[place], place)
            there.add(place)
        assert [find_key(table, keys, key) for key in keys] == [p if p in there else -1 for p in range(12)]
    assert probes(table, keys).max() <= table[LONGEST]


def test_looking_for_a_key_in_a_full_table_ends():
    table, keys = empty_table(8), np.arange(1, 9, dtype=np.uint32)
    put_all(table, keys, 8)
    assert (table[:-TAIL] > 0).all()
    before = table.copy()
    assert find_key(table, keys, np.uint32(99)) == -1
    put_key(table, np.uint32(99), 1)
    assert table.tolist() == before.tolist()


CRAFTED = {
    "equal last bits": equal_last_bits(N),
    "equal products from bit 8 on": equal_products(N, 8),
    "equal products from bit 12 on": equal_products(N, 12),
}


@pytest.fixture(params=CRAFTED.values(), ids=CRAFTED)
def crafted(request):
    """Hashes that shared a few slots of tables without a secret, of names that exist."""
    names = names_with(request.param)
    return np.array([zlib.crc32(name.encode()) for name in names], np.uint32)


def of_request(hashes):
    """Return the table of a request's or a catalogue's features, and their keys."""
    table, n = new_table(hashes.size), hashes.size
    keys, fields, numbers = np.zeros(n, np.uint32), np.zeros(n, np.uint32), np.zeros(n, np.int32)
    assert number_features(table, keys, fields, 0, hashes, np.full(n, 7, np.uint32), numbers) == n
    assert numbers.tolist() == [*range(n)]
    return table, keys


def of_learner(hashes):
    """Return the table of the blocks of a model that has learned features, and their keys."""
    model = ResidualKalman(max_blocks=hashes.size, choice_events=0)
    for start in range(0, hashes.size, 50):
        some = hashes[start : start + 50]
        action = some, np.ones(some.size), np.full(some.size, 7)
        model.learn(events_of([(request_of(([], []), [action]), 0, 1.0, -1)]), [])
    shared = model.shared
    return shared.block_table, shared.block_keys


def of_catalogue(hashes):
    """Return the table of a ranker's items."""
    names = [name.removeprefix("f=") for name in names_with(hashes)]
    catalogue = CatalogueCopy()
    for start in range(0, len(names), 500):
        tags = ", ".join(f'"{name}"' for name in names[start : start + 500])
        catalogue.actions[f"item-{start}"] = CatalogueAction(1, b'{"f": [%s]}' % tags.encode())
    items = Items(catalogue, Preparer())
    while items.is_behind:
        items.take_some()
    items.distinct_features()
    assert set(hashes.tolist()) < set(items._keys.used.tolist())
    return items._table, items._keys.used


def of_user(hashes):
    """Return the table of a user's ``adagrad`` model."""
    model = PersonalModel()
    model.learn((hashes[:3_000], np.ones(3_000, np.float32)), 1.0, 0.0, (0.0, 1.0))
    assert len(model) == 3_000
    return model.arrays[0], None


@pytest.mark.parametrize("table_of", [of_request, of_learner, of_catalogue, of_user])
def test_crafted_names_cost_at_most_twice_what_random_ones_cost(monkeypatch, crafted, table_of):
    set_secret(monkeypatch, 0x0123_4567_89AB_CDEF)
    usual = probes(*table_of(random_hashes(N)))
    made = probes(*table_of(crafted))
    assert made.sum() <= 2 * usual.sum()
    assert made.max() <= MOST_PROBES


def test_a_table_whose_keys_are_far_from_their_slots_takes_another_secret(monkeypatch):
    """As if somebody knew the secret: the next events are learned with another one, to the same bits."""
    models = []
    for secret in (0, 99):
        set_secret(monkeypatch, secret)
        model, table = ResidualKalman(choice_events=0), new_table(512)
        set_secret(monkeypatch, 0)
        found = np.arange(1, 1_000_000, dtype=np.uint32)
        keys = found[first_slots(new_table(512), found) == 5][: MOST_PROBES + 44]
        set_secret(monkeypatch, secret)
        for first in range(0, keys.size, 10):
            some = keys[first : first + 10]
            action = some, np.ones(some.size), np.full(some.size, 7)
            model.learn(events_of([(request_of(([], []), [action]), 0, 1.0, -1)]), [])
        assert model.shared.block_table.size == table.size
        models.append(model)
    assert models[0].shared.block_table[LONGEST] > MOST_PROBES > models[1].shared.block_table[LONGEST]
    for model in models:
        action = [1], [1.0], [7]
        model.learn(events_of([(request_of(([], []), [action]), 0, 1.0, -1)]), [])
        assert probes(model.shared.block_table, model.shared.block_keys).max() < MOST_PROBES
    arrays = [model.to_arrays() for model in models]
    assert all(arrays[0][name].tobytes() == arrays[1][name].tobytes() for name in arrays[0])


def test_models_with_different_secrets_are_equal_to_the_bit(monkeypatch):
    results = []
    for secret in (7, 2**63 + 12345):
        set_secret(monkeypatch, secret)
        rng, model, own, seen = np.random.default_rng(3), ResidualKalman(max_blocks=8, choice_events=40), NO_MODEL, []
        alone = PersonalModel()
        for _ in range(120):
            context = rng.integers(1, 9, 3), np.exp(rng.normal(size=3))
            actions = [(rng.integers(10, 60, 4), rng.choice([1.0, 2.5], 4), rng.integers(1, 5, 4)) for _ in range(3)]
            request = request_of(context, actions)
            prediction = model.predict(request, own)
            seen += [prediction.means.tobytes(), prediction.widths.tobytes()]
            [own] = model.learn(events_of([(request, 1, float(rng.random() < 0.4), 0)]), [own])
            alone.learn((rng.integers(1, 99, 5, dtype=np.uint32), np.ones(5, np.float32)), 1.0, 0.0, (0.0, 1.0))
        arrays = {name: array.tobytes() for name, array in model.to_arrays().items()}
        results.append((seen, arrays, own.tobytes(), alone.to_bytes()))
        tables = model.shared.block_table.tobytes()
        results[-1] += (tables,)
    assert results[0][:-1] == results[1][:-1]
    assert results[0][-1] != results[1][-1]


def test_hashed_features_of_crafted_names_are_those_hashes():
    wanted = equal_last_bits(20)
    tags = ", ".join(f'"{name.removeprefix("f=")}"' for name in names_with(wanted))
    [row] = Preparer().hash_all([Named("", None, b'{"f": [%s]}' % tags.encode())])
    assert set(wanted.tolist()) <= set(np.frombuffer(row.hashes, np.uint32).tolist())

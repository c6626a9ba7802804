from __future__ import annotations

import pytest

from libsvm_tasks.catalogue import CATALOGUE, COLLECTION

PAPER = ["letter", "pendigits", "satimage", "shuttle", "usps", "mnist", "sensorless", "covtype"]
NAMES = [*PAPER, "occupancy", "airquality", "appliances", "digits"]


def test_every_dataset_is_there_under_its_own_name():
    assert sorted(CATALOGUE) == sorted(NAMES)
    assert all(entry.name == name for name, entry in CATALOGUE.items())


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_has_classes_exactly_when_its_task_is_classification(name):
    entry = CATALOGUE[name]
    assert entry.task in ("classification", "regression")
    assert (entry.classes >= 2) == (entry.task == "classification")
    assert entry.rows > entry.features > entry.empty_features >= 0
    assert entry.origin


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"digits"}))
def test_an_entry_has_an_address_in_the_collection_or_says_how_to_make_the_file(name):
    entry = CATALOGUE[name]
    assert all(url.startswith(COLLECTION) for url in entry.urls)
    assert bool(entry.urls) != bool(entry.recipe)
    assert "\n" not in entry.recipe


def test_parts_that_are_joined_have_the_same_compression():
    pairs = [entry.urls for entry in CATALOGUE.values() if len(entry.urls) == 2]
    assert len(pairs) == 6
    assert all(train.endswith(".bz2") == test.endswith(".bz2") for train, test in pairs)

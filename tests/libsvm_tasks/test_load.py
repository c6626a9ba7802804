from __future__ import annotations

import bz2
import gzip
import lzma
import os

import numpy as np
import pytest
from needs import lacks, needs
from sklearn.datasets import dump_svmlight_file, load_digits

from libsvm_tasks.catalogue import CATALOGUE
from libsvm_tasks.load import cache_folder, find, load, read

REAL_DATA = os.environ.get("FEDRES_DATA")
COMPRESS = {"": bytes, ".bz2": bz2.compress, ".xz": lzma.compress, ".gz": gzip.compress}
ROWS = b"3 1:0.5 3:-2\n7 2:1e-3\n3 1:4\n7 3:1\n"
DENSE = [[0.5, 0, -2], [0, 1e-3, 0], [4, 0, 0], [0, 0, 1]]


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Return an empty data folder and an empty cache folder, which hide those of the machine."""
    data, cache = tmp_path / "data", tmp_path / "cache" / "fedres"
    data.mkdir()
    cache.mkdir(parents=True)
    monkeypatch.setenv("FEDRES_DATA", str(data))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return data, cache


@pytest.fixture
def written(tmp_path):
    def write(text: bytes | str, name: str = "mine.svm") -> str:
        (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(tmp_path / name)

    return write


def error_of(dataset: str) -> str:
    with pytest.raises(ValueError, match=r"\S") as caught:
        load(dataset)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_digits_needs_no_file_and_is_in_the_unit_interval():
    data, entry = load("digits"), CATALOGUE["digits"]
    pixels, label = load_digits(return_X_y=True)
    assert (data.features.shape, data.n_classes) == ((entry.rows, entry.features), entry.classes)
    assert (data.features.min(), data.features.max()) == (0, 1)
    np.testing.assert_array_equal(data.features * 16, pixels)
    np.testing.assert_array_equal(data.label, label)
    np.testing.assert_array_equal(data.class_sizes(), np.bincount(label))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_is_read_by_path_plain_or_compressed(written, suffix):
    data = load(written(COMPRESS[suffix](ROWS), f"mine.svm{suffix}"))
    assert (data.name, data.features.dtype) == (f"mine.svm{suffix}", np.float64)
    np.testing.assert_array_equal(data.features, DENSE)
    np.testing.assert_array_equal(data.classes, [3, 7])
    np.testing.assert_array_equal(data.label, [0, 1, 0, 1])
    np.testing.assert_array_equal(data.class_sizes(), [2, 2])


@pytest.mark.parametrize("zero_based", [True, False])
def test_what_scikit_learn_writes_comes_back(tmp_path, zero_based):
    features = np.random.default_rng(1).normal(size=(40, 5))
    label = np.arange(40) % 3 - 1
    dump_svmlight_file(features, label, str(tmp_path / "x.svm"), zero_based=zero_based)
    data = load(str(tmp_path / "x.svm"))
    np.testing.assert_allclose(data.features, features, rtol=1e-12)
    np.testing.assert_array_equal(data.classes[data.label], label)


def test_comments_blank_lines_and_query_ids_are_passed_over(written):
    data = load(written(b"# head\n\n1 qid:4 1:2 # note\r\n2 qid:4 2:3\n"))
    np.testing.assert_array_equal(data.features, [[2, 0], [0, 3]])


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("stem", ["letter.svm", "letter"])
def test_a_name_of_the_catalogue_is_found_in_either_folder(folders, stem, suffix):
    for folder in folders:
        path = folder / f"{stem}{suffix}"
        path.write_bytes(COMPRESS[suffix](ROWS))
        assert find("letter") == path
        data = load("letter")
        assert (data.name, data.features.shape, data.n_classes) == ("letter", (4, 16), 2)
        path.unlink()
    assert find("letter") is None


def test_the_data_folder_goes_before_the_cache(folders):
    data, cache = folders
    (data / "letter.svm.gz").write_bytes(gzip.compress(ROWS))
    (cache / "letter.svm").write_bytes(b"1 1:1\n")
    assert find("letter") == data / "letter.svm.gz"


def test_without_xdg_the_cache_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "fedres"


def test_a_regression_set_of_the_catalogue_keeps_whole_labels_as_values(folders):
    (folders[0] / "appliances.svm").write_bytes(b"60 1:1\n50 2:1\n" * 5)
    data = load("appliances")
    assert data.classes is None
    np.testing.assert_array_equal(data.label, [60, 50] * 5)


@pytest.mark.parametrize(
    ("labels", "n_classes"),
    [
        ([1, -1], 2),
        ([5], 1),
        ([5] * 9, 1),
        ([0, 1, 2, 3] * 2, 4),
        ([0, 1, 2, 3, 4, 0, 1, 2], 0),  # fewer than two rows a class
        ([0.5, 1, 0.5, 1], 0),
        (list(range(1000)) * 2, 1000),
        (list(range(1001)) * 2, 0),
        ([1e300, 1e300], 0),
    ],
)
def test_few_whole_labels_are_classes_and_others_values(written, labels, n_classes):
    data = load(written("".join(f"{label} 1:1\n" for label in labels)))
    assert data.n_classes == n_classes
    values = data.label if data.classes is None else data.classes[data.label]
    np.testing.assert_array_equal(values, labels)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("x 1:1", "label must be a number, got 'x'"),
        ("1,2 1:1", "label must be a number, got '1,2'"),
        ("1:1 2:1", "label must be a number, got '1:1'"),
        ("nan 1:1", "label must be finite, got 'nan'"),
        ("1 7", "a feature must be index:value, got '7'"),
        ("1 a:7", "a feature must be index:value, got 'a:7'"),
        ("1 1.5:7", "a feature must be index:value, got '1.5:7'"),
        ("1 2:", "value of feature 2 must be a number, got ''"),
        ("1 2:3:4", "value of feature 2 must be a number, got '3:4'"),
        ("1 2:inf", "value of feature 2 must be finite, got 'inf'"),
        ("1 2:NaN", "value of feature 2 must be finite, got 'NaN'"),
        ("1 -2:1", "index must be from 0 to 2147483647, got -2"),
        ("1 99999999999:1", "index must be from 0 to 2147483647, got 99999999999"),
        ("1 3:1 2:1", "indices must ascend, got 2 after 3"),
        ("1 3:1 3:1", "indices must ascend, got 3 after 3"),
        ("\N{SNOWMAN}" * 50 + " 1:1", f"label must be a number, got '{chr(0x2603) * 37}...'"),
    ],
)
@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_malformed_line_is_named_with_its_file_and_number(written, line, what, suffix):
    path = written(COMPRESS[suffix](f"# head\n1 1:1\n{line}\n2 x\n".encode()), f"bad.svm{suffix}")
    assert error_of(path) == f"{path}: line 3: {what}"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("1 0:1", "index must be from 1 to 16, got 0"),
        ("1 17:1", "index must be from 1 to 16, got 17"),
        ("1.5 1:1", "label must be a whole number, got '1.5'"),
    ],
)
def test_a_line_that_does_not_fit_the_catalogue_is_named(folders, line, what):
    (folders[0] / "letter.svm").write_text(f"1 1:1\n{line}\n")
    assert error_of("letter") == f"{folders[0] / 'letter.svm'}: line 2: {what}"


@pytest.mark.parametrize(
    ("text", "what"), [("", "has no rows"), ("# only a note\n\n", "has no rows"), ("1\n2\n", "has no features")]
)
def test_an_empty_file_says_so(written, text, what):
    path = written(text)
    assert error_of(path) == f"{path}: {what}"


@pytest.mark.parametrize("suffix", [".bz2", ".xz", ".gz"])
@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-12], lambda whole: b"no such format", lambda whole: whole[:9]]
)
def test_a_damaged_archive_is_named(written, suffix, damage):
    path = written(damage(COMPRESS[suffix](ROWS * 1000)), f"x.svm{suffix}")
    assert error_of(path).startswith(f"{path}: cannot be read: ")


def test_a_file_that_would_fill_the_memory_is_refused(written):
    path = written(b"1 1:1\n2 268435456:1\n")
    assert error_of(path) == (
        f"{path}: 2 rows of 268,435,456 features would take 4.0 GiB as a dense array, more than 2 GiB"
    )


def test_an_unknown_name_lists_the_catalogue_and_where_it_looked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = error_of("lettr")
    assert all(name in message for name in CATALOGUE)
    assert "a path to an svmlight or CSV file; got 'lettr'" in message
    assert f"{tmp_path / 'lettr'} is no file" in message
    assert f"{tmp_path} is a folder" in error_of(str(tmp_path))


def test_an_absent_dataset_says_where_it_looked_and_how_to_get_it(folders, monkeypatch):
    message = error_of("letter")
    assert all(str(folder) in message for folder in folders)
    assert "`fedres datasets fetch letter`" in message
    assert CATALOGUE["airquality"].recipe in error_of("airquality")
    monkeypatch.delenv("FEDRES_DATA")
    assert "FEDRES_DATA is not set" in error_of("letter")


@needs("FEDRES_DATA", "the folder of the real datasets", REAL_DATA)
@pytest.mark.parametrize("name", sorted(set(CATALOGUE) - {"digits"}))
def test_a_real_copy_has_the_shape_of_the_catalogue(name, monkeypatch):
    monkeypatch.setenv("FEDRES_DATA", REAL_DATA)
    path, entry = find(name), CATALOGUE[name]
    if path is None:
        lacks(f"{name} in FEDRES_DATA", f"fedres datasets fetch {name}")
    data = read(path, entry)
    assert 0 < len(data.features) == len(data.label) <= entry.rows
    assert (data.features.shape[1], data.n_classes) == (entry.features, entry.classes)
    assert data.features[:, entry.features - entry.empty_features - 1].any()
    assert not data.features[:, entry.features - entry.empty_features :].any()

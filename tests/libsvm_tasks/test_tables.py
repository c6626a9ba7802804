"""CSV files and columns in memory as datasets."""

import gzip

import numpy as np
import pytest

from libsvm_tasks.load import load
from libsvm_tasks.tables import from_columns

SHOP = """price,colour,bought
10,red,yes
20,blue,no
30,red,no
20,green,yes
"""


@pytest.fixture
def written(tmp_path):
    def write(content, name="shop.csv"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def test_numbers_are_scaled_and_texts_become_a_feature_each(written):
    data = load(written(SHOP), "bought")
    expected = [[0, 0, 0, 1], [0.5, 1, 0, 0], [1, 0, 0, 1], [0.5, 0, 1, 0]]  # price, blue, green, red
    np.testing.assert_array_equal(data.features, expected)
    assert data.classes[data.label].tolist() == ["yes", "no", "no", "yes"]
    assert data.name == "shop.csv"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("shop.csv.gz", gzip.compress(SHOP.encode())),
        ("shop.tsv", SHOP.replace(",", "\t")),
        ("shop.csv", "\ufeff" + SHOP.replace("\n", "\r\n")),
        ("shop.csv", '"price","colour","bought"\n10,"red","yes"\n20,blue,no\n\n30,red,no\n20,green,yes'),
    ],
    ids=["compressed", "tab-separated", "Windows", "quoted"],
)
def test_compressed_tab_separated_and_quoted_files_hold_the_same(written, name, content):
    plain, other = load(written(SHOP, "plain.csv"), "bought"), load(written(content, name), "bought")
    np.testing.assert_array_equal(plain.features, other.features)
    np.testing.assert_array_equal(plain.label, other.label)


def test_whole_labels_that_come_again_are_classes_and_others_are_values():
    column = {"x": [1, 2, 3, 4, 5, 6]}
    assert from_columns("t", {**column, "y": [7, 7, 9, 9, 7, 9]}, "y").classes.tolist() == [7, 9]
    assert from_columns("t", {**column, "y": [True, False] * 3}, "y").n_classes == 2
    for values in ([1, 2, 3, 4, 5, 6], [0.5, 0.5, 1.5, 1.5, 0.5, 1.5]):
        assert from_columns("t", {**column, "y": values}, "y").classes is None


def test_a_column_that_never_changes_is_zero():
    np.testing.assert_array_equal(from_columns("t", {"x": [5, 5], "y": ["a", "b"]}, "y").features, [[0], [0]])


@pytest.mark.parametrize(
    ("content", "label", "message"),
    [
        (SHOP, None, "label must name one of the columns price, colour, bought; none was given"),
        (SHOP, "sold", "label must name one of the columns price, colour, bought; got 'sold'"),
        ("", "y", "must have a header and rows, has none"),
        ("x,y\n", "y", "must have a header and rows, has no rows"),
        ("x,y\n1,2\n3\n", "y", "line 3: must have 2 cells, has 1"),
        ("x,x\n1,2\n", "x", "columns must have different names, got x, x"),
        ("y\n1\n", "y", "there must be a column beside the label 'y'"),
        ("x,y\n1,a\n ,b\n", "y", "column 'x' must have no empty cell, row 2 is one"),
        ("x,y\n1,a\nnan,b\n", "y", "column 'x' must have finite numbers, row 2 has 'nan'"),
        (b"x,y\n\xff,1\n", "y", "line 1: 'utf-8' codec can't decode"),
        ("x,y\n" + "".join(f"name{k},{k % 2}\n" for k in range(1001)), "y", "at most 1000 different texts, has 1001"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(written, content, label, message):
    path = written(content)
    with pytest.raises(ValueError, match=r"shop\.csv: ") as error:
        load(path, label)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_a_label_belongs_to_a_table_only(written):
    for dataset in ("digits", written("1 1:1\n", "x.svm")):
        with pytest.raises(ValueError, match=r"label must come with a \.csv or \.tsv file, got 'y'"):
            load(dataset, "y")

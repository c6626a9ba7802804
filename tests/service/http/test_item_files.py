"""Items of files, and the command that puts them into a catalogue."""

import json
import os
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import forked
import pytest

from service.plugins.recommend.item_files import BATCH_ITEMS, batches, read_items


def write(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


CSV = "id,genre,price,sale,note\na,crime|war,3,true,\nb,,0.5,false,x\n7,noir,nan,,12 days\n"


def test_cells_are_numbers_truth_values_lists_or_text_and_empty_ones_are_left_out(tmp_path):
    items = dict(read_items(write(tmp_path, "i.csv", CSV), lists={"genre": "|"}))
    assert items == {
        "a": {"genre": ["crime", "war"], "price": 3.0, "sale": True},
        "b": {"price": 0.5, "sale": False, "note": "x"},
        "7": {"genre": ["noir"], "note": "12 days"},
    }


def test_lines_have_features_or_are_features(tmp_path):
    lines = [{"id": "a", "features": {"x": 1}}, {"id": 2, "genre": "war", "year": 1979}]
    path = write(tmp_path, "i.jsonl", "\n".join(map(json.dumps, lines)))
    assert dict(read_items(path)) == {"a": {"x": 1}, "2": {"genre": "war", "year": 1979}}


def test_a_parquet_file_keeps_its_types(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"name": ["a", "b"], "tags": [["x", "y"], []], "price": [1, None]})
    parquet.write_table(table, tmp_path / "i.parquet")
    items = dict(read_items(tmp_path / "i.parquet", "name"))
    assert items == {"a": {"tags": ["x", "y"], "price": 1}, "b": {"tags": []}}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("i.csv", "name,price\na,1\n", "must have a column 'id', has name, price"),
        ("i.csv", "id,price\n,1\n", "line 2: id must not be empty"),
        ("i.jsonl", '{"name": "a"}', "line 1: an item must have 'id'"),
        ("i.jsonl", '{"id": "a", "features": 3}', "line 1: an item must have 'id' and features"),
        ("i.csv", "id,_expires\na,2030-01-01\nb,soon\n", "line 3: _expires must be seconds since 1970 or a time such"),
        ("i.csv", "id,_available\na,maybe\n", "line 2: _available must be true or false, got 'maybe'"),
        ("i.jsonl", '{"id": "a", "boost": "high"}', "line 1: boost must be a number within ±1e\\+09, got 'high'"),
    ],
)
def test_what_is_no_item_is_named_with_its_line(tmp_path, name, text, message):
    with pytest.raises(ValueError, match=message):
        list(read_items(write(tmp_path, name, text)))


def test_only_plain_numbers_are_numbers(tmp_path):
    cells = ["12", "-1.5", "1e3", ".5", "+2", " 7 ", "00123", "1_000", "٣", "0x10", "inf", "1e999", "-", "1.2.3"]
    path = write(tmp_path, "i.csv", "id,x\n" + "".join(f"{k},{cell}\n" for k, cell in enumerate(cells)))
    values = [features["x"] for _, features in read_items(path)]
    assert values[:6] == [12.0, -1.5, 1000.0, 0.5, 2.0, 7.0]
    assert values[6:] == cells[6:]


def test_times_durations_and_decimals_of_a_parquet_file_are_plain_values(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    day = date(2026, 12, 24)
    columns = {
        "id": ["a"],
        "day": [day],
        "moment": [datetime(2026, 12, 24, 18, tzinfo=UTC)],
        "length": [timedelta(minutes=2)],
        "price": [Decimal("1.50")],
        "nested": [{"days": [day]}],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "i.parquet")
    [(_, features)] = read_items(tmp_path / "i.parquet")
    assert features == {
        "day": "2026-12-24",
        "moment": "2026-12-24T18:00:00+00:00",
        "length": 120.0,
        "price": 1.5,
        "nested": {"days": ["2026-12-24"]},
    }
    parquet.write_table(arrow.table({"id": ["a"], "picture": [b"x"]}), tmp_path / "i.parquet")
    with pytest.raises(ValueError, match=r"row 0: features must be text, numbers, .*, got bytes"):
        list(read_items(tmp_path / "i.parquet"))


@pytest.mark.parametrize("name", [{"a": 1}, ["a"], True])
def test_an_id_is_text_or_a_number(tmp_path, name):
    path = write(tmp_path, "i.jsonl", json.dumps({"id": name, "x": 1}))
    with pytest.raises(ValueError, match="line 1: id must be text or a number"):
        list(read_items(path))


def test_a_batch_has_no_more_than_one_call_may_have():
    many = ((f"i{k}", {"text": "x" * (k % 700)}) for k in range(3 * BATCH_ITEMS))
    listed = list(batches(many))
    assert sum(map(len, listed)) == 3 * BATCH_ITEMS
    assert all(len(batch) <= BATCH_ITEMS and len(json.dumps(batch)) < 700_000 for batch in listed)


def command(live, folder, *words):
    env = {**os.environ, "FEDRES_URL": live.url}
    return forked.run(["fedres", "catalogue", "import", *words], cwd=folder, env=env)


def test_the_command_fills_a_catalogue_and_retires_the_rest(live, tmp_path):
    live.make_loop("imported")
    with live.client() as client:
        client.put("/v1/loops/imported/actions", json={"put": [{"id": "old", "features": {}}]})
        write(tmp_path, "i.csv", CSV)
        done = command(live, tmp_path, "i.csv", "--loop", "imported", "--list", "genre=|", "--retire")
        assert (done.returncode, done.stdout) == (0, "3 items imported, 1 retired\n"), done.stderr
        actions = client.get("/v1/loops/imported/actions").json()["actions"]
    assert {action["id"]: action["features"].get("genre") for action in actions} == {
        "7": ["noir"],
        "a": ["crime", "war"],
        "b": None,
    }
    wrong = command(live, tmp_path, "i.csv", "--loop", "none such")
    assert wrong.returncode == 2
    assert "none such" in wrong.stderr
    assert command(live, tmp_path, "missing.csv").stderr.count("\n") == 1

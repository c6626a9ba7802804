"""Tables of logged decisions: CSV, Parquet, DataFrames and plain columns say the same, and errors lead to the cell."""

import csv
import datetime
import gzip
import sys

import numpy as np
import pandas as pd
import pytest

from bandits import evaluate
from bandits.evaluation import Columns, read_events

HEADER = ["user", "country", "age", "shown", "propensity", "click"]
ROWS = [
    ["anna", "de", 31, "a", 0.5, 1],
    ["ben", "fr", 25.5, "b", 0.25, 0],
    ["anna", "de", 31, "c", 0.25, None],
]
WORDS = {"action": "shown", "reward": "click", "probability": "propensity", "user": "user"}
EVERYTHING = Columns(**WORDS, context=["country", "age"], actions=["a", "b", "c"])


def columns_of(rows, header=HEADER):
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def write_csv(path, rows=ROWS, header=HEADER, delimiter=","):
    opened = gzip.open(path, "wt", newline="") if path.suffix == ".gz" else open(path, "w", newline="")  # noqa: SIM115
    with opened as file:
        csv.writer(file, delimiter=delimiter).writerows([header, *rows])
    return path


def same(event):
    """What an event says, but for its name."""
    return (event.context, event.actions, event.chosen, event.probability, event.reward, event.user)


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "parquet", "pandas", "pyarrow", "lists", "arrays"])
def test_a_table_says_the_same_whatever_it_is_stored_in(tmp_path, kind):
    frame = pd.DataFrame(columns_of(ROWS))
    if kind in ("csv", "tsv", "csv.gz"):
        log = write_csv(tmp_path / f"log.{kind}", delimiter="\t" if kind == "tsv" else ",")
    elif kind == "parquet":
        log = tmp_path / "log.parquet"
        frame.to_parquet(log)
    elif kind == "pyarrow":
        log = pytest.importorskip("pyarrow").table(columns_of(ROWS))
    else:
        arrays = {name: np.array(column, object) for name, column in columns_of(ROWS).items()}
        log = {"pandas": frame, "lists": columns_of(ROWS), "arrays": arrays}[kind]
    assert [same(event) for event in read_events(log, EVERYTHING)] == [
        ({"country=de": 1.0, "age": 31.0}, ("a", "b", "c"), 0, 0.5, 1.0, "anna"),
        ({"country=fr": 1.0, "age": 25.5}, ("a", "b", "c"), 1, 0.25, 0.0, "ben"),
        ({"country=de": 1.0, "age": 31.0}, ("a", "b", "c"), 2, 0.25, None, "anna"),
    ]


def test_obvious_names_need_not_be_given_and_actions_are_those_taken():
    log = columns_of([["b", 1, 0.5], ["a", 0, 0.5]], ["shown", "click", "propensity"])
    first, second = read_events(log)
    assert (first.actions, first.chosen, second.chosen, first.user) == (("a", "b"), 1, 0, None)


def test_a_column_can_list_the_actions_and_their_probabilities(tmp_path):
    header = ["action", "reward", "probability", "offered", "p"]
    rows = [["a", 1, 0.75, "a|b", "0.75|0.25"], ["c", 0, 0.5, '["b", "c"]', "[0.5, 0.5]"]]
    path = write_csv(tmp_path / "log.csv", rows, header)
    lists = columns_of(
        [["a", 1, 0.75, ["a", "b"], [0.75, 0.25]], ["c", 0, 0.5, np.array(["b", "c"]), (0.5, 0.5)]], header
    )
    for log in (path, lists):
        first, second = read_events(log, Columns(actions="offered", probabilities="p"))
        assert (first.actions, first.probabilities, first.chosen) == (("a", "b"), (0.75, 0.25), 0)
        assert (second.actions, second.probabilities, second.chosen) == (("b", "c"), (0.5, 0.5), 1)


def test_a_column_of_a_csv_file_is_numbers_or_categories_as_a_whole(tmp_path):
    rows = [["a", 1, 0.5, "10115", "3"], ["a", 1, 0.5, "D-10", ""], ["a", 1, 0.5, "", "4.5"]]
    log = write_csv(tmp_path / "log.csv", rows, ["action", "reward", "probability", "zip", "size"])
    contexts = [event.context for event in read_events(log, Columns(context=["zip", "size"]))]
    assert contexts == [{"zip=10115": 1.0, "size": 3.0}, {"zip=D-10": 1.0}, {"size": 4.5}]


@pytest.mark.parametrize(
    "times",
    [
        [3, 1.5, 2],
        ["2026-03-01T10:00:00+02:00", "2026-03-01T07:00:00", "2026-03-01T07:30:00Z"],
        [datetime.datetime(2026, 3, 3), datetime.datetime(2026, 3, 1), datetime.datetime(2026, 3, 2)],
        [pd.Timestamp("2026-03-03"), pd.Timestamp("2026-03-01"), pd.Timestamp("2026-03-02")],
        [datetime.date(2026, 3, 3), datetime.date(2026, 3, 1), datetime.date(2026, 3, 2)],
    ],
)
def test_rows_are_sorted_by_time(tmp_path, times):
    rows = [[name, 1, 1.0, time] for name, time in zip("cab", times, strict=True)]
    header = ["action", "reward", "probability", "when"]
    for log in (columns_of(rows, header), write_csv(tmp_path / "log.csv", rows, header)):
        taken = [event.actions[event.chosen] for event in read_events(log, Columns(time="when"))]
        assert taken == ["a", "b", "c"]


def test_ids_of_databases_are_texts_without_a_point():
    frame = pd.DataFrame({"action": [1.0, 2.0], "reward": [0, 1], "probability": [0.5, 0.5], "user": [7.0, None]})
    first, second = read_events(frame)
    assert (first.actions, first.user, second.user) == (("1", "2"), "7", None)


def test_rewards_may_be_true_or_false_and_missing_ones_are_counted():
    frame = pd.DataFrame({"action": list("ab") * 10, "reward": [True, False] * 9 + [None] * 2, "probability": 0.5})
    evaluation = evaluate(frame, ["uniform"])
    assert (evaluation.n, evaluation.n_without_reward, evaluation.rows[0].value) == (18, 2, 0.5)
    assert evaluation.notes()[0] == "2 decisions without a reward are left out: default_reward counts them"
    assert evaluate(frame, ["uniform"], default_reward=0).notes()[0] == "2 decisions without a reward count as 0"


PROBABILITY = "probability (column 'propensity') must be"
OTHERS = "the table, one of user, country, age, shown, propensity, click"


def refusal(log, columns):
    with pytest.raises(ValueError, match="must") as error:
        list(read_events(log, columns))
    return str(error.value)


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("propensity", 1.7, f"{PROBABILITY} in (0, 1], got 1.7: percentages must be divided by 100"),
        ("propensity", 0, f"{PROBABILITY} in (0, 1], got 0: drop the row if it is not known"),
        ("propensity", None, f"{PROBABILITY} in (0, 1], is empty: drop the row if it is not known"),
        ("propensity", "half", f"{PROBABILITY} a finite number, got 'half'"),
        ("click", "yes", "reward (column 'click') must be a finite number, got 'yes'"),
        ("shown", None, "action (column 'shown') must name the action taken, is empty: drop the row"),
        (
            "shown",
            "d",
            "action (column 'shown') must be one of the actions a, b, c, got 'd': add it to actions, or drop the row",
        ),
    ],
)
def test_a_wrong_cell_is_named_by_its_row_and_column(tmp_path, column, cell, said):
    rows = [*ROWS[:2], [cell if name == column else good for name, good in zip(HEADER, ROWS[0], strict=True)]]
    path = write_csv(tmp_path / "log.csv", rows)
    assert refusal(path, EVERYTHING) == f"{path}, line 4: {said}"
    assert refusal(columns_of(rows), EVERYTHING) == f"the table, row 2: {said}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"action": "actoin"}, f"action must be a column of {OTHERS}, got 'actoin'"),
        ({"context": ["country", "city"]}, f"context must be a column of {OTHERS}, got 'city'"),
        ({"context": ["click"]}, "context must be known before the decision, got 'click', the column of reward"),
        ({"actions": "offered"}, f"actions must be a column of {OTHERS}, or ids separated by commas, got 'offered'"),
        (
            {"time": "country"},
            "the table, row 0: column 'country': time must be a number or a date in ISO 8601 (2026-03-14 15:09:26),"
            " got 'de'",
        ),
    ],
)
def test_a_column_that_is_not_there_is_named_with_those_that_are(words, said):
    assert refusal(columns_of(ROWS), Columns(**{**WORDS, **words})) == said


def test_a_column_that_is_needed_and_has_no_obvious_name_must_be_given():
    log = columns_of([["a", 1, 0.5]], ["banner", "bought", "p"])
    with pytest.raises(
        ValueError, match=r"^action must name the column of the table with the action taken, one of banner, bought, p$"
    ):
        evaluate(log)


def test_dates_in_the_context_are_refused_with_advice():
    log = columns_of([["a", 1, 0.5, datetime.date(2026, 1, 1)]], ["action", "reward", "probability", "day"])
    with pytest.raises(ValueError, match="make columns of what matters, such as hour and weekday"):
        evaluate(log, context=["day"])


def test_words_for_columns_are_refused_for_a_log_that_has_none(tmp_path):
    with pytest.raises(ValueError, match=r"^action must come with a DataFrame or a file that ends in \.csv"):
        evaluate(tmp_path / "log.jsonl", action="shown")
    with pytest.raises(ValueError, match="log must be a path, a DataFrame or a mapping of columns, got int"):
        evaluate(3)


def test_a_table_that_is_no_table_is_refused(tmp_path):
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "short.csv").write_text("action,reward,probability\na,1\n")
    (tmp_path / "broken.parquet").write_text("no")
    for name, said in (
        ("empty.csv", "must have a header"),
        ("short.csv", "line 2: must have 3 cells, as the header has, got 2"),
        ("broken.parquet", "must be a Parquet file"),
    ):
        with pytest.raises(ValueError, match=said):
            evaluate(tmp_path / name)
    with pytest.raises(ValueError, match="columns must be of one length"):
        evaluate({"action": ["a"], "reward": [1, 2], "probability": [1]})


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"needs pyarrow to be read: pip install 'fedres\[parquet\]'$"):
        evaluate(tmp_path / "log.parquet")


def test_reading_reports_how_far_it_is(tmp_path):
    rows = [["a", 1, 0.5]] * 25_000
    path, seen = write_csv(tmp_path / "log.csv", rows, ["action", "reward", "probability"]), []
    evaluate(path, ["uniform"], estimators=["ips"], progress=lambda done, total: seen.append((done, total)))
    size = path.stat().st_size
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)
    assert len(seen) >= 3

"""Ratings of files, and the command that imports them as feedback."""

import json
import os

import forked
import pytest

from service.plugins.recommend.feedback_files import FeedbackColumns, Skipped, read_feedback

RATINGS = """user,item,rating,time,device
anna,alien,5,1714557600,tv
ben,heat,1,2024-05-01T12:00:00Z,phone
carl,brazil,,1714557800,tv
dora,dune,9,1714557800,tv
emil,,3,1714557800,tv
fred,heat,many,1714557800,tv
gina,heat,3,yesterday,tv
,heat,3,,
"""
RANGE = (0.0, 1.0)


def write(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def read(path, columns=FeedbackColumns(), reward_range=RANGE, scale=(1.0, 5.0)):  # noqa: B008
    skipped = Skipped()
    return list(read_feedback(path, columns, reward_range, scale, skipped)), skipped


def test_ratings_are_stretched_and_lines_that_cannot_be_read_are_skipped_with_their_reason(tmp_path):
    events, skipped = read(write(tmp_path, "r.csv", RATINGS), FeedbackColumns(context=("device",)))
    assert [at for at, _ in events] == [2, 3, 9]
    (_, first), (_, second), (_, last) = events
    assert {name: first[name] for name in first if name != "event_id"} == {
        "action": "alien", "reward": 1.0, "user": "anna", "time": 1714557600.0, "context": {"device": "tv"},
    }  # fmt: skip
    assert (second["reward"], second["time"], last["reward"]) == (0.0, 1714564800.0, 0.5)
    assert "user" not in last
    assert "context" not in last
    assert {reason: (n, skipped.first[reason]) for reason, n in skipped.counts.items()} == {
        "rating must not be empty": (1, 4),
        "rating must be in [1, 5]": (1, 5),
        "item must not be empty": (1, 6),
        "rating must be a number": (1, 7),
        "time must be seconds since 1970 or a time such as 2026-12-24T18:00:00Z": (1, 8),
    }


def test_ids_are_given_or_made_of_the_file_the_line_and_its_content(tmp_path):
    path = write(tmp_path, "r.csv", RATINGS)
    ids = [event["event_id"] for _, event in read(path)[0]]
    assert len({*ids}) == 3
    assert [event["event_id"] for _, event in read(path)[0]] == ids
    path.write_text(RATINGS.replace("anna,alien,5", "anna,alien,4"))
    changed = [event["event_id"] for _, event in read(path)[0]]
    assert (changed[0] != ids[0], changed[1:]) == (True, ids[1:])
    named = write(tmp_path, "n.csv", "event_id,action,reward\nx,a,1\n")
    assert [event["event_id"] for _, event in read(named, scale=None)[0]] == ["x"]


def test_lines_and_parquet_keep_their_types(tmp_path):
    lines = [{"action": {"id": "a", "features": {"x": 1}}, "reward": 0.5, "context": {"hour": 3}},
             {"film": 7, "stars": 4, "user": 3, "hour": 9}]  # fmt: skip
    path = write(tmp_path, "r.jsonl", "\n".join(map(json.dumps, lines)))
    [(_, first)], skipped = read(path, scale=None)
    assert (first["action"], first["context"], first["reward"]) == ({"id": "a", "features": {"x": 1}}, {"hour": 3}, 0.5)
    assert skipped.counts == {"item must not be empty": 1}
    columns = FeedbackColumns(item="film", reward="stars", context=("hour",))
    [(at, event)], _ = read(path, columns, (-1.0, 1.0), (0.0, 5.0))
    assert (at, event["action"], event["reward"], event["context"]) == (2, 7, pytest.approx(0.6), {"hour": 9})
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"user": [1, 2], "item": [7, 8], "rating": [5, None]}), tmp_path / "r.parquet")
    [(at, event)], skipped = read(tmp_path / "r.parquet")
    assert (at, event["action"], event["user"], event["reward"]) == (0, 7, 1, 1.0)
    assert skipped.counts.total() == 1


def test_lines_of_odd_types_are_skipped_with_their_reason(tmp_path):
    good = {"item": 7, "reward": 1, "user": 3, "context": {"at": "noon"}}
    wrong = {
        "item must be text or a number": {"item": ["i"], "reward": 1},
        "item must have an id": {"item": {"x": 1}, "reward": 1},
        "user must be text or a number": {"item": "i", "reward": 1, "user": {"a": 1}},
        "reward must be a number": {"item": "i", "reward": [1]},
    }
    rule = "time must be seconds since 1970 or a time such as 2026-12-24T18:00:00Z"
    wrong[rule] = {"item": "i", "reward": 1, "time": [1]}
    path = write(tmp_path, "r.jsonl", "\n".join(map(json.dumps, [good, *wrong.values()])))
    [(_, event)], skipped = read(path, scale=None)
    assert (event["action"], event["user"], event["context"]) == (7, 3, {"at": "noon"})
    assert skipped.counts == dict.fromkeys(wrong, 1)


def test_rewards_of_text_files_are_plain_numbers(tmp_path):
    path = write(tmp_path, "r.csv", "item,reward\na,1\nb,1_0\nc,٣\nd,0.5\n")
    events, skipped = read(path, reward_range=(0.0, 10.0), scale=None)
    assert [event["reward"] for _, event in events] == [1.0, 0.5]
    assert skipped.counts == {"reward must be a number": 2}


def test_a_file_without_the_columns_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must have a column 'item' or 'action', has user, rating"):
        read(write(tmp_path, "r.csv", "user,rating\na,1\n"))


def command(live, folder, *words):
    env = {**os.environ, "FEDRES_URL": live.url}
    return forked.run(["fedres", "feedback", "import", *words], cwd=folder, env=env)


def test_the_command_imports_a_file_and_goes_on_where_it_stopped(live, tmp_path):
    live.make_loop("ratings")
    lines = [f"u{k % 7},f{k % 40},{k % 6}" for k in range(1_200)]  # a sixth of them is 0, which is no rating
    write(tmp_path, "r.csv", "\n".join(["user,item,rating", *lines[:700]]))
    options = ("r.csv", "--loop", "ratings", "--reward-from", "rating", "--scale", "1:5")
    first = command(live, tmp_path, *options)
    assert first.returncode == 0, first.stderr
    assert first.stdout == (
        "583 events imported, 0 existed already, 117 lines skipped\n  117 × rating must be in [1, 5] (line 2)\n"
    )
    write(tmp_path, "r.csv", "\n".join(["user,item,rating", *lines, "a\0b,f1,3"]))
    second = command(live, tmp_path, *options)
    assert second.stdout.splitlines()[0] == "417 events imported, 583 existed already, 201 lines skipped", second.stderr
    assert "1 × user must have no NUL (the character U+0000) (line 1,202)" in second.stdout
    live.settle("ratings")
    with live.client() as client:
        assert client.get("/v1/status").json()["loops"]["ratings"]["feedback"] == 1_000
        best = client.get("/v1/loops/ratings/popular").json()
    assert best["events"] == 1_000
    for words in (("r.csv", "--scale", "5:1"), ("r.csv", "--item", "film"), ("missing.csv",)):
        wrong = command(live, tmp_path, *words)
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1), wrong.stderr

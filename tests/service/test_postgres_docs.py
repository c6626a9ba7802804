"""docs/postgresql.md keeps its word, on a server of its own; so does the benchmark it names."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import psycopg

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "postgresql.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(sql|sh)\n(.*?)```", DOCS, flags=re.DOTALL)
ADDRESS = "postgresql://fedres:secret@db.example/shop"
ACTIONS = [{"id": "tea", "features": {"temperature": "hot"}}, {"id": "juice", "features": {}}]
USERS = ["anna", "ben", "cleo"]


def test_its_commands_run_and_its_questions_are_answered(tmp_path, database, postgres):
    (_, made), (_, first), (_, second), (_, questions), (_, erasing) = BLOCKS
    assert made.count("CREATE") == 2  # a role and a database, which the tests have
    assert second == first.replace("\n", " --standby\n")
    command = [Path(sys.executable).with_name("fedres"), *first.replace(ADDRESS, database).split()[1:], "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        url = next(found[1] for line in process.stdout if (found := re.search(r"page +(http://\S+)/", line)))
        for user in USERS:
            asked = {"user": user, "context": {"hour": 7}, "actions": ACTIONS, "event_id": f"of {user}"}
            assert httpx.post(f"{url}/v1/rank", json=asked, trust_env=False, timeout=30).status_code == 200
        process.terminate()
        process.stdout.read()
    assert process.returncode == 0
    with psycopg.connect(database, autocommit=True) as db:
        ranks, kinds, features = (db.execute(question).fetchall() for question in questions.split(";")[:3])
        for command in erasing.split(";")[:2]:
            db.execute(command)
    assert sorted(row[2:3] + row[4:] for row in ranks) == [("rank", user, {"hour": 7}) for user in USERS]
    assert dict(kinds) == {"settings": 1, "rank": 3, "given": 1}
    assert features == [(f"of {user}", action["id"], action["features"]) for user in USERS for action in ACTIONS]
    stem = "postgres.postgresql"  # shop.postgresql, were the database called so
    assert {file.name for file in tmp_path.iterdir()} <= {f"{stem}-{part}" for part in ("models", "lease")}


def test_the_benchmark_measures_both_logs(tmp_path, database):
    command = [sys.executable, ROOT / "benchmarks" / "log_commits.py", database, "--commits", "2", "--folder", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    for name in ("SQLite", "PostgreSQL"):
        assert re.findall(rf"{name} +│ +(\d+) ", done.stdout) == ["1", "64", "500"]

"""The pages on the log keep their word: their commands run, their question is answered, their tables are complete."""

import asyncio
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import forked
import pytest

from service.http.keys import Keys
from service.log import records
from service.log.sqlite_schema import SCHEMA_VERSION

FOLDER = Path(__file__).parents[2] / "docs"
PAGES = ("operate/back-up.md", "reference/log.md")
DOCS = "".join((FOLDER / page).read_text(encoding="utf-8") for page in PAGES)
BLOCKS = re.findall(r"```(sh|sql|python)\n(.*?)```", DOCS, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from stores import make_store

    made = tmp_path_factory.mktemp("docs")
    asyncio.run(make_store(made))
    for file in made.glob("store.db*"):
        file.rename(made / file.name.replace("store.db", "fedres.db"))
    Keys(made / "fedres.db").add("admin")
    return made


def run(folder, *command):
    env = {**os.environ, "PATH": forked.path()}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
    assert (done.returncode, done.stderr.strip()) == (0, ""), command[-1] + done.stdout + done.stderr
    return done.stdout


def test_its_commands_run_one_after_the_other(folder, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "copy")  # old events go
    said = "".join(run(folder, "sh", "-e", "-c", block) for language, block in BLOCKS if language == "sh")
    assert said.count(" is good: ") == 2
    assert "fedres.db is restored from backup.db" in said
    assert {"report.json", "backup.db", "backup.db-keys", "log.jsonl", "copy.db"} <= {
        file.name for file in folder.iterdir()
    }


def test_its_question_is_answered(folder):
    [rewards] = [block for language, block in BLOCKS if language == "sql"]
    with closing(sqlite3.connect(folder / "fedres.db")) as db:
        decisions = db.execute(rewards).fetchall()
    assert {(action, reward) for *_, action, reward in decisions} == {
        (action, reward) for action in ("tea", "juice") for reward in (None, 0.0, 1.0)
    }


def test_its_program_checks_records(folder, tmp_path):
    [program] = [block for language, block in BLOCKS if language == "python"]
    assert run(folder, sys.executable, "-c", program) == ""
    copy = shutil.copytree(folder, tmp_path / "copy")
    with closing(sqlite3.connect(copy / "fedres.db")) as db, db:
        db.execute("UPDATE log SET time = time + 1 WHERE position = 3")
    with pytest.raises(AssertionError, match="assert checksum =="):
        run(copy, sys.executable, "-c", program)


def test_its_tables_have_every_kind_and_the_version():
    table = DOCS.partition("| kind |")[2].partition("\n\n")[0]
    kinds = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    named = {value for name, value in vars(records).items() if name.isupper() and isinstance(value, str)}
    assert kinds == named
    assert f"Version {SCHEMA_VERSION}." in DOCS

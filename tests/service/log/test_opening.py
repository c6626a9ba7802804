"""A store of another kind is a module and a line in the table of kinds: commands, keys and clocks follow."""

import sys
from contextlib import closing
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.http.keys import open_keys
from service.learn.loss_check import check_losses
from service.log.opening import KINDS, Store, StoreKind, open_log, store_at
from service.log.records import LOOP, Record
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file


class OtherLog(SqliteLog):
    """A log that is not one of ours."""


@pytest.fixture
def other(monkeypatch, tmp_path):
    """Return the address of a store whose kind is added to the table."""

    def open_store(store, *, verify, listen):
        return OtherLog(sqlite_file(store.path), verify=verify)

    monkeypatch.setitem(sys.modules, "other_store", SimpleNamespace(open_store=open_store))
    monkeypatch.setitem(KINDS, "other", StoreKind("other:///PATH", "other_store"))
    return f"other:///{tmp_path}/a.db"


def test_its_log_is_opened_with_the_clock_of_the_machine_and_its_keys_are_beside_it(other, tmp_path):
    store = store_at(other)
    assert (store, str(store)) == (Store(tmp_path / "a.db", other), f"{tmp_path}/a.db")
    assert not store.is_sqlite
    assert not store.is_shared
    assert check_losses(store) == []
    with closing(open_log(store)) as log, closing(open_log(store)) as second:
        assert type(log) is OtherLog
        assert log.append([[Record("shop", LOOP, "loop after 0")]]) == [1]
        assert log.clock is second.clock
    open_keys(store).add("rank")
    assert (tmp_path / "a.db-keys").exists()


def test_commands_reach_it_through_its_log(other):
    with closing(open_log(store_at(other))) as log:
        log.append([[Record("shop", LOOP, "loop after 0")]])
    verified = CliRunner().invoke(app, ["log", "verify", "--store", other])
    assert (verified.exit_code, "1 records match their checksums" in verified.stdout) == (0, True)
    refused = CliRunner().invoke(app, ["log", "backup", "copy.db", "--store", other])
    assert (refused.exit_code, "backup must have a store in SQLite" in refused.stderr) == (2, True)


def test_an_address_of_no_kind_is_refused_with_those_that_there_are_and_without_its_password(other):
    with pytest.raises(ValueError, match="store must be") as refused:
        store_at("mysql://anna:secret@host/shop")
    examples = "sqlite:///PATH or postgresql://HOST/DATABASE or other:///PATH"
    assert str(refused.value) == f"store must be {examples}, got 'mysql://anna:***@host/shop'"

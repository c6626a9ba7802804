import sqlite3

import numpy as np
import pytest

from fedres.scoring.model import PersonalModel, SharedModel
from service.learn.join import UncountedReward
from service.learn.snapshots import Changes, DamagedSnapshot, SavedLoop, Snapshots
from service.models.loop_metadata import CatalogueAction, Clients, LoopMetadata, LoopStatistics
from service.settings import Settings

ACTIONS = {"a": CatalogueAction(3, b'{"x": 1}'), "ü": CatalogueAction(4, b"{}")}
EXAMPLE = (np.arange(1, 40, dtype=np.uint32) * np.uint32(2654435761), np.ones(39, dtype=np.float32))


def taught(reward):
    model = PersonalModel()
    model.learn(EXAMPLE, reward, 0.0, (0.0, 1.0))
    return model.to_bytes()


def head(position):
    learner = {"model": "adagrad", "global_learner": "fedogd", "bits": 4, "hyperparameters": {"n_clients": 3}}
    settings = Settings(epsilon=0.2, **learner)
    clients = Clients({"phone": 0, "ümlaut": 2}, 3)
    return LoopMetadata(
        "shop", 7, settings, 8, position, LoopStatistics(ranks=5), {8: settings}, {}, 4, clients=clients
    )


def changes(position=9, users=("u",), reward=0.5, **more):
    saved = SavedLoop(
        head(position), position, 100, 42, 7, 0, len(ACTIONS), [UncountedReward("x", 1, 0.5, "id", "late")]
    )
    rows = [("shop", user, position, taught(reward)) for user in users]
    actions = {"actions": {"shop": ACTIONS}, **more}
    return Changes({"shop": saved}, {"shop": SharedModel(4).to_bytes()}, rows, **actions)


def contents(snapshots):
    """Return all that can be read from the file."""
    [saved] = snapshots.loops()
    rows = [*snapshots.personal("shop")]
    actions = snapshots.catalogue("shop")
    if len(rows) != saved.n_personal or len(actions) != saved.n_actions:
        raise DamagedSnapshot("rows are missing")
    return saved, snapshots.shared("shop"), rows, actions


def test_what_was_written_is_read(tmp_path):
    snapshots = Snapshots(tmp_path / "models")
    assert snapshots.loops() == []
    snapshots.write(changes(users=("ü", "u")))
    saved, shared, rows, actions = before = contents(snapshots)
    assert (saved.position, saved.n_personal, saved.metadata) == (9, 2, head(9))
    assert shared == SharedModel(4).to_bytes()
    assert rows == [("u", 9, taught(0.5)), ("ü", 9, taught(0.5))]
    assert actions == ACTIONS
    snapshots.close()
    snapshots = Snapshots(tmp_path / "models", exist=True)
    assert contents(snapshots) == before
    snapshots.close()


def test_a_later_snapshot_changes_and_removes(tmp_path):
    snapshots = Snapshots(tmp_path / "models")
    snapshots.write(changes(users=("u", "v")))
    snapshots.write(changes(10, users=("u",), reward=1.0, erased=[("shop", "v")]))
    assert contents(snapshots)[2] == [("u", 10, taught(1.0))]
    snapshots.write(Changes(dropped=["shop"]))
    assert snapshots.loops() == snapshots.users("shop") == []
    assert snapshots.catalogue("shop") == {}
    with pytest.raises(DamagedSnapshot, match="is missing"):
        snapshots.shared("shop")
    snapshots.close()


def test_actions_are_changed_and_retired_one_by_one_or_all_replaced(tmp_path):
    snapshots, new = Snapshots(tmp_path / "models"), CatalogueAction(9, b'{"x": 2}')
    snapshots.write(changes())
    snapshots.write(changes(10, actions={"shop": {"a": new, "ü": None, "never there": None}}))
    assert snapshots.catalogue("shop") == {"a": new}
    snapshots.write(changes(11, actions={}))
    assert snapshots.catalogue("shop") == {"a": new}
    snapshots.write(changes(12, actions={"shop": {"b": new}}, whole=["shop"]))
    assert snapshots.catalogue("shop") == {"b": new}
    assert snapshots.catalogue("other") == {}
    snapshots.close()


def test_models_changed_since_a_position_are_known(tmp_path):
    snapshots = Snapshots(tmp_path / "models")
    snapshots.write(changes(users=("u", "v")))
    snapshots.write(changes(12, users=("v",)))
    assert [user for user, _, _ in snapshots.personal("shop", changed_after=9)] == ["v"]
    assert [user for user, _, _ in snapshots.personal("shop", changed_after=8)] == ["u", "v"]
    snapshots.close()


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path):
    snapshots = Snapshots(tmp_path / "models")
    snapshots.write(changes())
    before = contents(snapshots)
    broken = changes(10, users=("u", "v"))
    broken.personal.append(("shop", "w", 2**63, b"x"))
    with pytest.raises(OverflowError):
        snapshots.write(broken)
    assert contents(snapshots) == before
    snapshots.write(changes(11))
    assert contents(snapshots)[0].position == 11
    snapshots.close()


def test_whatever_byte_is_changed_the_damage_is_found_or_does_no_harm(tmp_path):
    path, rng = tmp_path / "models", np.random.default_rng(0)
    snapshots = Snapshots(path)
    snapshots.write(changes(users=[f"user {k}" for k in range(200)]))
    before = contents(snapshots)
    snapshots.close()
    good, n_found = path.read_bytes(), 0
    for at in rng.choice(len(good), size=300, replace=False):
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << rng.integers(8))]) + good[at + 1 :])
        snapshots = Snapshots(path)
        try:
            assert contents(snapshots) == before
        except DamagedSnapshot:
            n_found += 1
        snapshots.close()
        path.with_name("models-wal").unlink(missing_ok=True)
    assert n_found > 80  # the others hit free space


@pytest.mark.parametrize("content", [b"not a database at all" * 50, bytes(8192)])
def test_a_file_that_is_none_of_ours_is_replaced_by_an_empty_one(tmp_path, content):
    (tmp_path / "models").write_bytes(content)
    with pytest.raises(sqlite3.DatabaseError):
        Snapshots(tmp_path / "models", exist=True)
    assert (tmp_path / "models").read_bytes() == content
    snapshots = Snapshots(tmp_path / "models")
    with pytest.raises(DamagedSnapshot, match="none of this version's"):
        snapshots.loops()
    snapshots.discard()
    assert snapshots.loops() == []
    snapshots.write(changes())
    assert contents(snapshots)[0].position == 9
    snapshots.close()


@pytest.mark.parametrize("change", ["PRAGMA user_version = 99", "DROP TABLE personal"])
def test_a_file_of_another_format_is_replaced(tmp_path, change):
    Snapshots(tmp_path / "models").close()
    with sqlite3.connect(tmp_path / "models") as db:
        db.execute(change)
    db.close()
    snapshots = Snapshots(tmp_path / "models")
    with pytest.raises(DamagedSnapshot, match="none of this version's"):
        snapshots.loops()
    snapshots.close()


def test_a_file_that_is_only_busy_is_not_thrown_away(tmp_path, monkeypatch):
    first = Snapshots(tmp_path / "models")
    first.write(changes())
    first.close()
    with sqlite3.connect(tmp_path / "models", isolation_level=None) as db:
        db.execute("PRAGMA journal_mode=DELETE").fetchall()
        db.execute("BEGIN EXCLUSIVE")
        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *one, **more: connect(*one, **{**more, "timeout": 0.0}))
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            Snapshots(tmp_path / "models")
        db.execute("COMMIT")
    db.close()
    again = Snapshots(tmp_path / "models")
    assert (again.was_damaged, contents(again)[0].position) == (False, 9)
    again.close()


def test_nothing_is_left_of_what_was_erased(tmp_path):
    snapshots = Snapshots(tmp_path / "models")
    names = [f"{k:02}-{'somebody' if k == 20 else 'other'}" for k in np.random.default_rng(1).permutation(60)]
    for name in names:
        snapshots.write(changes(users=[name]))  # one by one, so that rows move between SQLite's pages
    snapshots.write(changes(10, users=(), erased=[("shop", "20-somebody")]))
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    assert not any(b"somebody" in content for content in files)
    assert any(b"21-other" in content for content in files)
    assert len(contents(snapshots)[2]) == 59
    snapshots.close()

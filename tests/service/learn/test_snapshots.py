import sqlite3

import msgspec
import numpy as np
import pytest
from service.engine.heads import CatalogueAction, Clients, LoopHead, Statistics
from service.engine.joining import Slot, Unmatched
from service.engine.pages import Pages, Written
from service.engine.settings import Settings
from service.engine.snapshots import Changes, Damaged, LoopPart, Snapshots, State

from fedres.scoring.model import PersonalModel, SharedModel

EXAMPLE = (np.arange(1, 40, dtype=np.uint32) * np.uint32(2654435761), np.ones(39, dtype=np.float32))
LOOP = 7


def taught(reward):
    model = PersonalModel()
    model.learn(EXAMPLE, reward, 0.0, (0.0, 1.0))
    return model


def head(position):
    catalogue = {"a": CatalogueAction(3, b'{"x": 1}')}
    settings = Settings(epsilon=0.2, global_learner="fedogd", bits=4, hyperparameters={"n_clients": 3})
    clients = Clients({"phone": 0, "ümlaut": 2}, 3)
    return LoopHead("default", LOOP, settings, 2, position, Statistics(ranks=5), catalogue, 4, clients)


def changes(position=9, users=("u",), slots=("e",), reward=0.5, **more):
    unmatched = msgspec.Raw(msgspec.msgpack.encode([Unmatched("x", 1, 0.5, "id", "late")]))
    part = LoopPart(head(position), [unmatched], len(slots))
    state = State(position, 100, 42, 0, [msgspec.Raw(msgspec.msgpack.encode(part))])
    return Changes(
        state,
        {LOOP: SharedModel(4).to_bytes()},
        {(LOOP, user): taught(reward) for user in users},
        {LOOP: paged(slots)},
        **more,
    )


def paged(events):
    pages = Pages()
    pages.put({event: Slot(1, "waiting", 12) for event in events})
    return pages.take()


def contents(snapshots):
    """Return all that can be read from the file."""
    state = snapshots.load()
    parts = [msgspec.msgpack.decode(raw, type=LoopPart) for raw in state.loops]
    slots, _ = snapshots.slots(LOOP, parts[0].n_slots)
    found = {user: snapshots.personal((LOOP, user)).to_bytes() for user, _ in snapshots.all_personal(LOOP)}
    return (state.position, state.mark, parts, snapshots.shared(LOOP), slots, found)


def test_what_was_written_is_read(tmp_path):
    snapshots = Snapshots(tmp_path / "models")
    assert snapshots.load() is None
    assert snapshots.personal((LOOP, "u")) is None
    snapshots.write(changes(users=("u", "ü"), slots=("e", "f")))
    before = contents(snapshots)
    assert before[0] == 9
    assert before[2][0].head == head(9)
    assert list(before[4]) == ["e", "f"]
    assert before[5] == {"u": taught(0.5).to_bytes(), "ü": taught(0.5).to_bytes()}
    snapshots.close()
    snapshots = Snapshots(tmp_path / "models")
    assert contents(snapshots) == before
    snapshots.close()


def test_a_later_snapshot_changes_and_removes(tmp_path):
    snapshots = Snapshots(tmp_path / "models")
    snapshots.write(changes(users=("u", "v"), slots=("e", "f")))
    later = changes(10, users=("u",), slots=("f",), reward=1.0, erased=[(LOOP, "v")])
    later.pages[LOOP] = Written(dead={0: b"\0"})
    snapshots.write(later)
    assert list(contents(snapshots)[4]) == ["f"]
    assert contents(snapshots)[5] == {"u": taught(1.0).to_bytes()}
    snapshots.write(Changes(State(11, 100, 42, 0, []), dropped=[LOOP]))
    assert list(snapshots.all_personal(LOOP)) == []
    with pytest.raises(Damaged):
        snapshots.shared(LOOP)
    snapshots.close()


def test_models_changed_since_the_base_are_known(tmp_path):
    snapshots = Snapshots(tmp_path / "models")
    snapshots.write(changes(users=("u", "v")))
    assert [user for user, _ in snapshots.all_personal(LOOP, without_base=True)] == ["u", "v"]
    snapshots.write(changes(users=("v",), based=[LOOP]))
    assert [user for user, _ in snapshots.all_personal(LOOP, without_base=True)] == ["v"]
    snapshots.close()


def test_changes_that_could_not_be_written_are_part_of_the_next():
    first, second = changes(users=("u", "v"), erased=[(LOOP, "w")]), changes(10, users=("u",), reward=1.0)
    both = second.after(first)
    assert both.state.position == 10
    assert {user: model.to_bytes() for (_, user), model in both.personal.items()} == {
        "u": taught(1.0).to_bytes(),
        "v": taught(0.5).to_bytes(),
    }
    assert both.erased == [(LOOP, "w")]


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path):
    snapshots = Snapshots(tmp_path / "models")
    snapshots.write(changes())
    before = contents(snapshots)
    broken = changes(10)
    broken.pages[LOOP] = Written({1: b"x", 2**63: b"x"})
    with pytest.raises(OverflowError):
        snapshots.write(broken)
    assert contents(snapshots) == before
    snapshots.write(changes(11))
    assert contents(snapshots)[0] == 11
    snapshots.close()


def test_whatever_byte_is_changed_the_damage_is_found_or_does_no_harm(tmp_path):
    path, rng = tmp_path / "models", np.random.default_rng(0)
    snapshots = Snapshots(path)
    snapshots.write(changes(users=[f"user {k}" for k in range(30)], slots=[f"event {k}" for k in range(40)]))
    before = contents(snapshots)
    snapshots.close()
    good, n_found = path.read_bytes(), 0
    for at in rng.choice(len(good), size=300, replace=False):
        path.write_bytes(good[:at] + bytes([good[at] ^ (1 << rng.integers(8))]) + good[at + 1 :])
        snapshots = Snapshots(path)
        try:
            assert snapshots.load() is None or contents(snapshots) == before
        except Damaged:
            n_found += 1
        snapshots.close()
        path.with_name("models-wal").unlink(missing_ok=True)
    assert n_found > 80  # the others hit free space


@pytest.mark.parametrize("content", [b"", b"not a database at all" * 50, bytes(8192)])
def test_a_file_that_is_none_of_ours_is_replaced_by_an_empty_one(tmp_path, content):
    (tmp_path / "models").write_bytes(content)
    snapshots = Snapshots(tmp_path / "models")
    assert snapshots.load() is None
    snapshots.write(changes())
    assert contents(snapshots)[0] == 9
    snapshots.close()


def test_a_file_of_another_format_is_replaced(tmp_path):
    Snapshots(tmp_path / "models").close()
    with sqlite3.connect(tmp_path / "models") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    snapshots = Snapshots(tmp_path / "models")
    assert snapshots.load() is None
    snapshots.close()


def test_nothing_is_left_of_what_was_erased(tmp_path):
    path = tmp_path / "models"
    snapshots, pages = Snapshots(path), Pages()
    names = [f"{k:02}-{'somebody' if k == 20 else 'other'}" for k in np.random.default_rng(1).permutation(60)]
    slots = {f"event of {name}": Slot(1, "waiting", 12, user=name) for name in names}
    pair = ["event of 20-somebody", "event of 21-other"]
    for events in [*([event] for event in slots), pair, pair[:1]]:  # so that an entry of the last is dead
        pages.put({event: slots[event] for event in events})
        written = changes(users=[slots[event].user for event in events])
        written.pages = {LOOP: pages.take()}
        snapshots.write(written)  # one by one, so that rows move between SQLite's pages
    gone = changes(10, users=(), slots=[*slots][1:], erased=[(LOOP, "20-somebody")])
    pages.kill([slots.pop(pair[0]).place])
    assert [events for events in pages.purge("20-somebody", []) if events] == [pair[1:]]
    pages.put({pair[1]: slots[pair[1]]})
    gone.pages = {LOOP: pages.take()}
    snapshots.write(gone)
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    assert not any(b"somebody" in content for content in files)
    assert any(b"21-other" in content for content in files)
    assert contents(snapshots)[4].keys() == slots.keys()
    snapshots.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE page SET body = zeroblob(20) WHERE n = 1",
        "UPDATE page SET n = 7 WHERE n = 1",
        "UPDATE page SET loop = 8 WHERE n = 1",
        "DELETE FROM page WHERE n = 1",
        "UPDATE dead SET body = x'00'",
        "UPDATE dead SET n = 1",
        "DELETE FROM dead",
        "DELETE FROM page WHERE n = 0",
    ],
)
def test_a_page_or_its_dead_places_that_are_not_as_written_are_damage(tmp_path, damage):
    snapshots, pages = Snapshots(tmp_path / "models"), Pages()
    slots = {event: Slot(1, "waiting", 12) for event in "abcd"}
    pages.put({event: slots[event] for event in "abc"})
    pages.put({event: slots[event] for event in "cd"})
    written = changes(slots=slots)
    written.pages = {LOOP: pages.take()}
    snapshots.write(written)
    assert contents(snapshots)[4].keys() == slots.keys()
    with sqlite3.connect(tmp_path / "models") as db:
        db.execute(damage)
    db.close()
    with pytest.raises(Damaged):
        contents(snapshots)
    snapshots.close()

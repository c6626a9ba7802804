"""Other users of the machine can neither read a store nor lock it; a lock that is held all the same is told."""

from locking import write_lock
from serving import IMPATIENT, serving
from waiting import until

RANK = {"actions": [{"id": "tea", "features": {"hot": True}}]}


def modes(folder):
    return {file.name: oct(file.stat().st_mode & 0o777) for file in folder.glob("store.db*")}


def test_new_files_and_those_of_earlier_starts_are_their_owners_alone(tmp_path):
    with serving(tmp_path) as service:
        assert service.ask("/v1/rank", "POST", json=RANK).status_code == 200
        assert oct(service.run_folder().stat().st_mode & 0o777) == "0o700"
        mode_of = modes(tmp_path)
        assert {"store.db", "store.db-wal", "store.db-shm", "store.db-lease", "store.db-run"} <= mode_of.keys()
        assert set(mode_of.values()) == {"0o600"}
    for file in tmp_path.glob("store.db*"):
        file.chmod(0o644)
    with serving(tmp_path) as service:
        assert service.ask("/v1/rank", "POST", json=RANK).status_code == 200
        assert set(modes(tmp_path).values()) == {"0o600"}


def test_a_lock_of_another_process_is_told_to_load_balancers_and_logged(tmp_path):
    with serving(tmp_path, command=IMPATIENT) as service:
        with write_lock(service.store):
            reply = service.ask("/v1/rank", "POST", json=RANK)
            assert reply.status_code == 503
            assert reply.json()["error"]["code"] in ("store_busy", "store_timeout")
            until(lambda: "another process holds a lock on the store's files" in service.ask("/readyz").text)
            logged = (tmp_path / "stderr").read_text()
            assert "the store takes nothing" in logged
            assert "another process holds a lock" in logged
        until(lambda: service.ask("/readyz").status_code == 200)
        assert service.ask("/v1/rank", "POST", json=RANK).status_code == 200
        assert "the store takes records again" in (tmp_path / "stderr").read_text()

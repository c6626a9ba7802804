"""Keys: what is kept of them, whom they let in, and what becomes of those who are revoked."""

import json
import threading

import pytest
from typer.testing import CliRunner
from waiting import LIMIT

from service.cli import app
from service.errors import ApiError
from service.http.keys import ANYONE, Keys, check_keys
from service.log.protocol import StoreUnavailable
from service.log.sqlite import SqliteLog
from service.log.sqlite_schema import sqlite_file


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def bearer(key):
    return f"Bearer {key}".encode()


@pytest.fixture
def keys(tmp_path):
    return Keys(tmp_path / "store.db")


def refused(keys, authorization):
    with pytest.raises(ApiError) as caught:
        keys.identify(authorization)
    assert (caught.value.status, caught.value.code) == (401, "unauthenticated")
    return caught.value.message


def test_without_any_key_everyone_may_do_everything(keys):
    assert keys.identify(None) is ANYONE
    assert len(keys) == 0


def test_a_key_is_known_by_its_role_and_loop(keys):
    key = keys.add("rank", loop="shop")
    identified = keys.identify(bearer(key))
    assert (identified.role, identified.loop) == ("rank", "shop")
    assert identified.id == key.split("_")[1]


def test_a_device_key_can_be_bound_to_one_client(keys):
    bound, free = keys.add("device", client="phone-7"), keys.add("device")
    assert [keys.identify(bearer(key)).client for key in (bound, free)] == ["phone-7", None]
    assert [key.client for key in keys.list()] == ["phone-7", None]


@pytest.mark.parametrize(
    ("role", "client", "message"),
    [
        ("rank", "phone-7", "client must come with the role device, got 'phone-7' with rank"),
        ("admin", "phone-7", "client must come with the role device, got 'phone-7' with admin"),
        ("device", "", "client must have 1 to 200 characters, got 0"),
        ("device", "x" * 201, "client must have 1 to 200 characters, got 201"),
    ],
)
def test_other_keys_and_other_names_cannot_be_bound(keys, role, client, message):
    with pytest.raises(ValueError, match=message):
        keys.add(role, client=client)
    assert len(keys) == 0


def test_the_command_line_binds_a_key_and_lists_whose_it_is(tmp_path):
    store = ["--store", f"sqlite:///{tmp_path}/store.db"]
    assert CliRunner().invoke(app, ["keys", "add", "device", "--client", "phone-7", *store]).exit_code == 0
    refused = CliRunner().invoke(app, ["keys", "add", "rank", "--client", "phone-7", *store])
    assert refused.exit_code == 2
    assert "client must come with the role device" in refused.stderr
    listed = CliRunner().invoke(app, ["keys", "list", *store, "--json", str(tmp_path / "keys.json")])
    assert "phone-7" in listed.stdout
    assert [row["client"] for row in json.loads((tmp_path / "keys.json").read_text())] == ["phone-7"]


def test_a_rank_key_can_be_made_without_explanations_and_stays_so_when_it_is_rotated(keys, tmp_path):
    plain = keys.add("rank", explain=False)
    rotated = keys.rotate(plain.split("_")[1], grace_seconds=60.0)
    assert [keys.identify(bearer(key)).explain for key in (plain, rotated, keys.add("rank"))] == [False, False, True]
    with pytest.raises(ValueError, match="no-explain must come with the role rank, got admin"):
        keys.add("admin", explain=False)
    store = ["--store", f"sqlite:///{tmp_path}/other.db"]
    made = CliRunner().invoke(app, ["keys", "add", "rank", "--no-explain", *store]).stdout.strip()
    assert not Keys(tmp_path / "other.db").identify(bearer(made)).explain
    assert "no explain" in CliRunner().invoke(app, ["keys", "list", *store]).stdout


def test_a_key_without_explanations_gets_none_by_rank_nor_batch(start):
    action = {"actions": [{"id": "a", "features": {}}]}
    with start() as live:
        plain, full = live.keys.add("rank", explain=False), live.keys.add("rank")
        with live.client(plain) as client:
            for path, sent in (("/v1/rank", action | {"explain": True}), ("/v1/rank/batch", None)):
                reply = client.post(path, json=sent or {"requests": [action, action | {"explain": True}]})
                assert (reply.status_code, reply.json()["error"]["target"]) == (403, "explain")
            assert client.post("/v1/rank", json=action).status_code == 200
            assert client.post("/v1/rank/batch", json={"requests": [action]}).status_code == 200
        with live.client(full) as client:
            assert "explanations" in client.post("/v1/rank", json=action | {"explain": True}).json()


def test_a_file_from_before_keys_had_clients_is_read(keys):
    key = keys.add("device")
    listed = [{name: value for name, value in one.items() if name != "client"} for one in stored(keys)]
    keys.store.path.write_text(json.dumps(listed))
    assert Keys(keys.store.path.with_name("store.db")).identify(bearer(key)).client is None


def stored(keys):
    return json.loads(keys.store.path.read_text())


def test_the_file_holds_no_secret_and_is_its_owners_alone(keys):
    secret = keys.add("admin").split("_", 2)[2]
    assert secret not in keys.store.path.read_text()
    assert keys.store.path.name == "store.db-keys"
    assert keys.store.path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "spoil",
    [
        lambda key: None,
        lambda key: b"",
        lambda key: b"Bearer",
        lambda key: b"Bearer " + key[:-1],
        lambda key: b"Bearer " + key[:-1] + b"\xff",
        lambda key: b"Basic " + key,
        lambda key: b"Bearer " + key.replace(b"fedres_", b"other_"),
        lambda key: b"Bearer fedres_" + b"0" * 12 + b"_" + key.split(b"_", 2)[2],
    ],
)
def test_what_is_not_exactly_the_key_is_refused(keys, spoil):
    key = keys.add("admin").encode()
    refused(keys, spoil(key))


def test_a_revoked_key_is_refused_within_a_second_and_the_service_stays_closed(keys):
    key = keys.add("admin")
    clock = Clock()
    running = Keys(keys.store.path.with_name("store.db"), clock)
    assert running.identify(bearer(key)).role == "admin"
    keys.revoke(key.split("_")[1])
    clock.now = 1.0
    assert "revoked" in refused(running, bearer(key))
    refused(running, None)


def test_a_running_service_sees_a_first_key_and_does_not_forget_it_with_the_file(keys):
    clock = Clock()
    running = Keys(keys.store.path.with_name("store.db"), clock)
    assert running.identify(None) is ANYONE
    keys.add("rank")
    clock.now = 1.0
    refused(running, None)
    keys.store.path.unlink()
    clock.now = 2.0
    refused(running, None)


def test_a_damaged_file_lets_nobody_in(keys):
    keys.add("rank")
    keys.store.path.write_text("[{]")
    keys = Keys(keys.store.path.with_name("store.db"))
    with pytest.raises(ApiError) as caught:
        keys.identify(None)
    assert (caught.value.status, caught.value.code) == (503, "keys_unavailable")


def test_the_list_shows_every_key_and_when_it_was_revoked(keys):
    first, second = keys.add("rank"), keys.add("device", loop="a")
    keys.revoke(first.split("_")[1])
    listed = keys.list()
    assert [(key.role, key.loop, key.revoked is None) for key in listed] == [
        ("rank", None, False),
        ("device", "a", True),
    ]
    assert [key.id for key in listed] == [first.split("_")[1], second.split("_")[1]]


def test_role_and_id_must_be_known(keys):
    with pytest.raises(ValueError, match="role must be one of admin, device, rank, read, got 'root'"):
        keys.add("root")
    with pytest.raises(ValueError, match="no key has the id 'abc'"):
        keys.revoke("abc")


def test_keys_added_at_once_are_all_kept(tmp_path):
    def add():
        Keys(tmp_path / "store.db").add("rank")

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads((tmp_path / "store.db-keys").read_text())) == 8


class RemoteStore:
    """A store of keys that is away at first."""

    is_remote = True

    def __init__(self, keys):
        self.keys, self.away = keys, True
        self.reads = threading.Semaphore(0)

    def read(self):
        self.reads.release()
        if self.away:
            raise StoreUnavailable("io", "away")
        return self.keys


def test_keys_of_a_remote_store_are_fetched_until_they_are_known_and_nobody_is_let_in_before(keys):
    text = keys.add("rank")
    store = RemoteStore(keys.list())
    remote = Keys(store)
    for authorization in (None, bearer(text)):
        with pytest.raises(ApiError, match="not known yet") as raised:
            remote.identify(authorization)
        assert (raised.value.status, raised.value.code) == (503, "keys_unavailable")
    for _ in range(2):
        assert store.reads.acquire(timeout=LIMIT)
    store.away = False
    with remote._looking:  # until it has found them, without another request
        pass
    assert remote.identify(bearer(text)).role == "rank"


# expiry and rotation


def test_a_key_expires_when_it_was_said_to(keys):
    now = Clock()
    running = Keys(keys.store.path.with_name("store.db"), now=now)
    key, other = running.add("rank", seconds=60.0), running.add("rank")
    now.now = 59.9
    assert running.identify(bearer(key)).role == "rank"
    now.now = 60.0
    assert "expired" in refused(running, bearer(key))
    assert running.identify(bearer(other)).role == "rank"
    with pytest.raises(ValueError, match="seconds must be positive"):
        running.add("rank", seconds=0.0)


def test_a_rotated_key_may_do_the_same_and_the_old_one_ends_after_its_grace(keys):
    now = Clock()
    running = Keys(keys.store.path.with_name("store.db"), now=now)
    old = running.add("device", "shop", "phone-7")
    new = running.rotate(old.split("_")[1], grace_seconds=100.0)
    identified = [running.identify(bearer(key)) for key in (old, new)]
    assert [(key.role, key.loop, key.client) for key in identified] == [("device", "shop", "phone-7")] * 2
    now.now = 100.0
    assert "expired" in refused(running, bearer(old))
    assert running.identify(bearer(new)).expires is None
    running.revoke(new.split("_")[1])
    for name in (new.split("_")[1], "nobody"):
        with pytest.raises(ValueError, match="no valid key"):
            running.rotate(name, grace_seconds=1.0)


def test_a_rotation_never_lets_a_key_live_longer(keys):
    now = Clock()
    running = Keys(keys.store.path.with_name("store.db"), now=now)
    old = running.add("rank", seconds=10.0)
    running.rotate(old.split("_")[1], grace_seconds=1_000.0)
    now.now = 10.0
    assert "expired" in refused(running, bearer(old))


# keys that are gone


def test_a_file_that_is_emptied_opens_no_running_service(keys):
    clock = Clock()
    key = keys.add("rank")
    running = Keys(keys.store.path.with_name("store.db"), clock)
    assert running.identify(bearer(key)).role == "rank"
    keys.store.path.write_bytes(b"[]\n")
    clock.now = 1.0
    refused(running, None)
    assert running.identify(bearer(key)).role == "rank"


def test_an_error_of_the_disk_is_answered(keys):
    keys.add("rank")
    keys.store.path.unlink()
    keys.store.path.symlink_to(keys.store.path)  # a loop: every call on it fails
    with pytest.raises(ApiError) as caught:
        Keys(keys.store.path.with_name("store.db").absolute().parent / "store.db").identify(None)
    assert (caught.value.status, caught.value.code) == (503, "keys_unavailable")


def test_a_store_that_had_keys_is_not_served_without_them(tmp_path):
    with SqliteLog(sqlite_file(tmp_path / "store.db")) as log:
        keys = Keys(tmp_path / "store.db")
        check_keys(log, keys)  # there never were any
        keys.add("rank")
        check_keys(log, Keys(tmp_path / "store.db"))
        for spoil in (lambda: keys.store.path.write_bytes(b"[]"), keys.store.path.unlink):
            spoil()
            with pytest.raises(StoreUnavailable, match="keys of this store are missing"):
                check_keys(log, Keys(tmp_path / "store.db"))
        Keys(tmp_path / "store.db").add("admin")
        check_keys(log, Keys(tmp_path / "store.db"))


def test_a_key_that_is_added_to_a_store_closes_it_for_good(tmp_path):
    store = ["--store", f"sqlite:///{tmp_path / 'store.db'}"]
    SqliteLog(sqlite_file(tmp_path / "store.db")).close()
    assert CliRunner().invoke(app, ["keys", "add", "rank", "--days", "3", *store]).exit_code == 0
    (tmp_path / "store.db-keys").unlink()
    with SqliteLog(sqlite_file(tmp_path / "store.db")) as log, pytest.raises(StoreUnavailable, match="are missing"):
        check_keys(log, Keys(tmp_path / "store.db"))


def test_a_rotation_is_one_change_of_the_stored_keys(keys):
    old = keys.add("rank")
    name, write, written = old.split("_")[1], keys.store.write, []
    keys.store.write = written.append  # the process ends before anything is stored
    keys.rotate(name, grace_seconds=0.0)
    assert len(written) == 1
    ids = [(key.id == name, key.expires is None) for key in written[0]]
    assert ids == [(True, False), (False, True)]
    keys.store.write = write
    assert keys.identify(bearer(old)).id == name


def test_keys_are_changed_although_the_store_cannot_note_it(tmp_path):
    store = ("--store", f"sqlite:///{tmp_path}/store.db")
    name = CliRunner().invoke(app, ["keys", "add", "rank", *store]).stdout.split("_")[1]
    (tmp_path / "store.db").write_bytes(b"no database" * 1_000)
    for words in (("add", "rank"), ("rotate", name), ("revoke", name)):
        done = CliRunner().invoke(app, ["keys", *words, *store])
        assert (done.exit_code, done.stderr.count("\n")) == (0, 1)
        assert "the keys are changed, but" in done.stderr
    listed = Keys(tmp_path / "store.db").list()
    assert (len(listed), [key.id for key in listed if key.revoked]) == (3, [name])


def test_the_command_line_rotates_and_all_of_it_is_in_the_audit_log(tmp_path):
    store = ["--store", f"sqlite:///{tmp_path / 'store.db'}"]
    old = CliRunner().invoke(app, ["keys", "add", "rank", *store]).stdout.split("_")[1]
    new = CliRunner().invoke(app, ["keys", "rotate", old, "--grace", "0", *store]).stdout.split("_")[1]
    CliRunner().invoke(app, ["keys", "revoke", new, *store])
    first, second = Keys(tmp_path / "store.db").list()
    assert first.expires is not None
    assert second.revoked is not None
    lines = [json.loads(line) for line in (tmp_path / "store.db-audit").read_text().splitlines()]
    commands = [f"add rank ({old})", f"rotate {old} ({new})", f"revoke {new}"]
    assert [line["what"] for line in lines] == [f"fedres keys {command}" for command in commands]

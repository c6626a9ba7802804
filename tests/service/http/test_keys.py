"""Keys: what is kept of them, whom they let in, and what becomes of those who are revoked."""

import json
import threading

import pytest
from typer.testing import CliRunner

from fedres.event_ids import LONGEST_ID
from service.cli import app
from service.errors import ApiError
from service.http.keys import ANYONE, LONGEST_CLIENT, Keys
from service.log.protocol import StoreUnavailable


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
    found = keys.identify(bearer(key))
    assert (found.role, found.loop) == ("rank", "shop")
    assert found.id == key.split("_")[1]


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


def test_a_client_may_be_as_long_as_any_id():
    assert LONGEST_CLIENT == LONGEST_ID


def test_a_file_from_before_keys_had_clients_is_read(keys):
    key = keys.add("device")
    listed = [{name: value for name, value in one.items() if name != "client"} for one in stored(keys)]
    keys.path.write_text(json.dumps(listed))
    assert Keys(keys.path.with_name("store.db")).identify(bearer(key)).client is None


def stored(keys):
    return json.loads(keys.path.read_text())


def test_the_file_holds_no_secret_and_is_its_owners_alone(keys):
    secret = keys.add("admin").split("_", 2)[2]
    assert secret not in keys.path.read_text()
    assert keys.path.name == "store.db-keys"
    assert keys.path.stat().st_mode & 0o777 == 0o600


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
    running = Keys(keys.path.with_name("store.db"), clock)
    assert running.identify(bearer(key)).role == "admin"
    keys.revoke(key.split("_")[1])
    clock.now = 1.0
    assert "revoked" in refused(running, bearer(key))
    refused(running, None)


def test_a_running_service_sees_a_first_key_and_does_not_forget_it_with_the_file(keys):
    clock = Clock()
    running = Keys(keys.path.with_name("store.db"), clock)
    assert running.identify(None) is ANYONE
    keys.add("rank")
    clock.now = 1.0
    refused(running, None)
    keys.path.unlink()
    clock.now = 2.0
    refused(running, None)


def test_a_damaged_file_lets_nobody_in(keys):
    keys.add("rank")
    keys.path.write_text("[{]")
    keys = Keys(keys.path.with_name("store.db"))
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
    with pytest.raises(ValueError, match="role must be one of admin, device, rank, got 'root'"):
        keys.add("root")
    with pytest.raises(ValueError, match="id must be that of a key, got 'abc'"):
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
        self.asked = threading.Semaphore(0)

    def read(self):
        self.asked.release()
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
        assert store.asked.acquire(timeout=30)
    store.away = False
    with remote._looking:  # until it has found them, without another request
        pass
    assert remote.identify(bearer(text)).role == "rank"

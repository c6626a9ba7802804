"""A web page must not reach a service without keys through a browser on the same machine."""

import pytest

from service.errors import ApiError
from service.http.hosts import Hosts


def code(hosts, host, origin=None, site=None):
    try:
        hosts.check(*(None if header is None else header.encode() for header in (host, origin, site)))
    except ApiError as error:
        return error.code
    return None


OWN = [
    "localhost",
    "localhost:8000",
    "LOCALHOST.",
    "a.localhost:80",
    "127.0.0.1:8000",
    "10.1.2.3",
    "[::1]:80",
    None,
    "",
]
FOREIGN = [
    "evil.example",
    "evil.example:80",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "xlocalhost",
    "[evil]",
]


@pytest.mark.parametrize("host", OWN)
def test_addresses_and_localhost_are_this_machine(host):
    assert code(Hosts(), host) is None


@pytest.mark.parametrize("host", FOREIGN)
def test_other_names_are_refused_unless_they_are_allowed(host):
    assert code(Hosts(), host) == "unknown_host"
    assert code(Hosts(["*"]), host) is None


def test_a_name_that_is_allowed_is_known_with_any_port():
    hosts = Hosts(["Shop.Example."])
    assert code(hosts, "shop.example:8443") is None
    assert code(hosts, "other.example") == "unknown_host"
    assert code(Hosts(own="fedres.internal"), "fedres.internal:80") is None


@pytest.mark.parametrize("name", ["", "http://a", "a:80", "a/b"])
def test_what_is_no_name_cannot_be_allowed(name):
    with pytest.raises(ValueError, match="allowed-host must be"):
        Hosts([name])


def test_a_page_of_the_service_itself_may_ask_and_one_from_elsewhere_may_not():
    hosts = Hosts(["shop.example"])
    assert code(hosts, "localhost:8000", "http://localhost:8000") is None
    assert code(hosts, "localhost:8000", "https://shop.example") is None
    for origin in ("http://evil.example", "http://localhost:3000", "null", "", "localhost:8000"):
        assert code(hosts, "localhost:8000", origin) == "foreign_origin"


@pytest.mark.parametrize("own", ["127.0.0.1", "localhost", "0.0.0.0", "fedres.internal"])
def test_another_port_of_the_same_machine_is_another_origin(own):
    hosts = Hosts(["shop.example", "10.1.2.3"], own)
    for name in ("127.0.0.1", "localhost", "10.1.2.3", "shop.example"):
        assert code(hosts, f"{name}:8000", f"http://{name}:8000") is None
        assert code(hosts, f"{name}:8000", f"http://{name}:3000") == "foreign_origin"


def test_what_another_page_embeds_or_links_to_is_refused():
    hosts = Hosts(["shop.example"])
    for site in ("cross-site", "same-site", "rubbish", ""):
        assert code(hosts, "localhost:8000", site=site) == "foreign_origin"
    for site in ("same-origin", "none", None):
        assert code(hosts, "localhost:8000", site=site) is None
    assert code(hosts, "localhost:8000", "https://shop.example", "cross-site") is None  # allowed by its name


def test_what_was_refused_is_refused_again_and_what_was_good_is_remembered_within_bounds():
    hosts = Hosts(["*"])
    for k in range(3_000):
        assert code(hosts, f"{k}.example") is None
    assert len(hosts.good) <= 1_000
    strict = Hosts()
    assert [code(strict, "evil.example") for _ in range(2)] == ["unknown_host"] * 2


def test_a_rebound_name_reaches_nothing_and_a_key_is_worth_more_than_a_name(start):
    with start() as live, live.client() as client:
        rebound = {"Host": "evil.example"}
        paths = ("/v1/status", "/v1/events", "/metrics", "/v1/users/anna/model")
        assert {client.get(path, headers=rebound).status_code for path in paths} == {421}
        assert client.delete("/v1/users/anna", headers=rebound).status_code == 421
        assert client.get("/v1/status", headers={"Origin": "http://evil.example"}).status_code == 403
        assert client.get("/v1/status", headers={"Origin": live.url}).status_code == 200
        embedded = {"Sec-Fetch-Site": "cross-site"}
        assert client.get("/v1/report", headers=embedded).status_code == 403
        assert client.get("/", headers=embedded).status_code == 200  # a link to the dashboard
        other_port = {"Origin": "http://127.0.0.1:1"}
        assert client.post("/personalizer/v1.0/events/x/activate", headers=other_port).status_code == 403
        assert client.get("/healthz", headers=rebound).status_code == 200  # it says nothing
        key = live.keys.add("admin")
        with live.client(key) as with_key:
            assert with_key.get("/v1/status", headers=rebound).status_code == 200

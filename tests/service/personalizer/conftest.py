"""A live service that Azure's own clients talk to."""

import pytest
from live import run_service


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A service with a key for everything that the tests of a file share."""
    with run_service(tmp_path_factory.mktemp("personalizer")) as running:
        running.key = running.keys.add("admin")
        yield running


@pytest.fixture(scope="module")
def http(live):
    """Plain requests with Azure's header."""
    with live.client() as client:
        client.headers["Ocp-Apim-Subscription-Key"] = live.key
        yield client


@pytest.fixture
def loop(http, live, request):
    """Return the path of a loop of the test's own, as the end of an endpoint."""
    name = request.node.name.partition("[")[0][-60:] + str(abs(hash(request.node.name)) % 10**6)
    made = http.post("/v1/loops", json={"name": name}, headers={"Authorization": f"Bearer {live.key}"})
    assert made.status_code == 201, made.text
    return f"/loops/{name}"


@pytest.fixture
def azure_loop(http, loop):
    """Return the path of a loop that an admin has given Azure's settings."""
    assert http.delete(f"{loop}/personalizer/v1.0/configurations/policy").status_code == 200
    return loop

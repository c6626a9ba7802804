"""Whatever a request is, it is answered in the one shape of all failures; ``make hardening`` asks a million times."""

import re

import httpx
from fuzzing import fuzz
from grammar import Grammar
from live import run_service
from waiting import LIMIT

from service.app import declared_routes
from service.http.request import Limits


def test_drawn_requests_are_answered():
    wrong, _ = fuzz(first=0, n=400)
    assert wrong == []


def test_no_route_fails_for_a_loop_that_is_not_there(tmp_path):
    values = {"loop": "nowhere", "version": "v1.0"}
    with run_service(tmp_path) as live, httpx.Client(base_url=live.url, trust_env=False, timeout=LIMIT) as client:
        for route in declared_routes(None, None, Limits()):
            if "{loop}" in route.path:
                path = re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], "x"), route.path)
                reply = client.request(route.method, path, headers={"Content-Type": route.body_type or "x/y"})
                assert 400 <= reply.status_code < 500, (route.method, path, reply.text)


def test_the_same_seed_draws_the_same_requests_and_all_routes_are_asked():
    first, second = Grammar(7), Grammar(7)
    assert [first.request() for _ in range(50)] == [second.request() for _ in range(50)]
    routes = {(route.method, route.path) for route in first.routes}
    assert len(routes) > 60

"""Whatever a request is, it is answered in the one shape of all failures; ``make hardening`` asks a million times."""

from fuzzing import fuzz
from grammar import Grammar


def test_drawn_requests_are_answered():
    wrong, _ = fuzz(first=0, n=400)
    assert wrong == []


def test_the_same_seed_draws_the_same_requests_and_all_routes_are_asked():
    first, second = Grammar(7), Grammar(7)
    assert [first.request() for _ in range(50)] == [second.request() for _ in range(50)]
    asked = {(route.method, route.path) for route in first.routes}
    assert len(asked) > 60

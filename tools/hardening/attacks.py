"""What one loop can send to hold up others: the largest legal calls, crafted names, and work for shared processes.

Each attack has a loop of its own, named after it. ``before`` are the calls that prepare it, sent once. ``calls`` are
sent again and again, while decisions for another loop are measured.
"""

import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from crafted_names import equal_last_bits, equal_products, names_with


class Call(NamedTuple):
    """A request."""

    method: str
    path: str
    body: Any = None

    def content(self) -> bytes | None:
        return None if self.body is None else json.dumps(self.body).encode()


@dataclass(frozen=True)
class Attack:
    """What a loop does, and over how many connections."""

    calls: Callable[[str], Iterator[Call]]
    before: Callable[[str], Iterator[Call]] = lambda path: iter(())
    settings: tuple[tuple[str, Any], ...] = ()
    connections: int = 4


def numbers(name: str, n: int) -> dict[str, float]:
    return {f"{name}{k}": round(random.random(), 3) for k in range(n)}


def rank(n_actions: int, n_context: int, n_features: int, **options: Any) -> dict[str, Any]:
    features = numbers("f", n_features)
    actions = [{"id": f"a{k}", "features": features} for k in range(n_actions)]
    return {"user": "u", "context": numbers("c", n_context), "actions": actions, **options}


def again(method: str, route: str, body: Any = None) -> Callable[[str], Iterator[Call]]:
    """Send one call over and over."""
    return lambda path: itertools.repeat(Call(method, path + route, body))


def largest_slots(path: str) -> Iterator[Call]:
    body = rank(500, 20, 10) | {"slots": [{"id": f"s{k}"} for k in range(4)]}
    yield from again("POST", "/rank/slots", body)(path)


def some_events(path: str) -> Iterator[Call]:
    """Give a loop something to export, to report and to evaluate."""
    for batch in range(40):
        ids = [f"e{batch}-{k}" for k in range(50)]
        requests = [rank(10, 8, 3, event_id=name) | {"user": name} for name in ids]
        yield Call("POST", f"{path}/rank/batch", {"requests": requests})
        rewards = [{"event_id": name, "value": random.random()} for name in ids]
        yield Call("POST", f"{path}/events/rewards", {"rewards": rewards})


def crafted_words() -> list[str]:
    """Return names whose hashes fall into few places of a table that is indexed by them."""
    return names_with(equal_products(96_030, 12), prefix="f=")


def crafted_events(path: str) -> Iterator[Call]:
    """Let the learner see words whose hashes are alike, 990 in an event."""
    words = [name.removeprefix("f=") for name in crafted_words()]
    parts = [words[k : k + 990] for k in range(0, len(words), 990)]
    while True:
        for k in range(0, len(parts), 20):
            events = [{"action": "a", "reward": 1.0, "context": {"f": part}} for part in parts[k : k + 20]]
            yield Call("POST", f"{path}/feedback", {"events": events})


def crafted_rank(path: str) -> Iterator[Call]:
    names = names_with(equal_last_bits(20_000), prefix="")
    actions = [{"id": f"a{k}", "features": dict.fromkeys(names[k * 900 : k * 900 + 900], 1.0)} for k in range(15)]
    yield from again("POST", "/rank", {"actions": actions})(path)


def wide_items(n_items: int, n_features: int, *, own_names: bool = False) -> Callable[[str], Iterator[Call]]:
    """Put a catalogue of items with many features, 25 items a call."""

    def calls(path: str) -> Iterator[Call]:
        for first in range(0, n_items, 25):
            items = [
                {"id": f"i{k}", "features": numbers(f"n{k}-" if own_names else "n", n_features)}
                for k in range(first, min(first + 25, n_items))
            ]
            yield Call("PUT", f"{path}/actions", {"put": items})

    return calls


def heavy_feedback(path: str) -> Iterator[Call]:
    """Send events of large items by id: a few bytes each, milliseconds of learning."""
    while True:
        events = [{"action": f"i{random.randrange(800)}", "reward": random.random()} for _ in range(500)]
        yield Call("POST", f"{path}/feedback", {"events": events})


def large_ranks_of_one_user(path: str) -> Iterator[Call]:
    context = {"_pad": "x" * 200_000}
    for _ in range(300):
        yield Call("POST", f"{path}/rank", {"user": "u", "context": context, "actions": ["a", "b"]})


def many_rewards(path: str) -> Iterator[Call]:
    yield Call("POST", f"{path}/rank", {"event_id": "event", "actions": ["a", "b"]})
    rewards = [{"event_id": "event", "value": 1.0} for _ in range(500)]
    for _ in range(60):
        yield Call("POST", f"{path}/events/rewards", {"rewards": rewards})


def strings_of_one_name(path: str) -> Iterator[Call]:
    dictionaries = [{"a": "x"}] + [{"a": "y"}] * 21_000
    body = {"actions": [{"id": "x", "features": [{"f": 1}]}], "contextFeatures": dictionaries}
    yield from itertools.repeat(Call("POST", "/personalizer/v1.0/rank", body))


def pending_of_many_actions(path: str) -> Iterator[Call]:
    while True:
        for _ in range(20):
            yield Call("POST", f"{path}/rank", rank(500, 2, 0))
        yield Call("GET", f"{path}/report")


def popular_of_any_time(path: str) -> Iterator[Call]:
    while True:
        yield Call("GET", f"{path}/popular?seconds={random.uniform(60, 86_400):.3f}")


def many_small_events(path: str) -> Iterator[Call]:
    for _ in range(60):
        events = [{"action": f"i{random.randrange(2_000)}", "reward": 1.0} for _ in range(500)]
        yield Call("POST", f"{path}/feedback", {"events": events})


def pages_of_new_items(path: str) -> Iterator[Call]:
    """Ask for pages with a filter, and change items in between, so that columns are made again."""
    for k in itertools.count():
        yield Call("POST", f"{path}/recommend", {"user": "u", "n": 5, "filter": {f"n{k % 2000}-1": {"gt": 0.5}}})
        yield Call("PUT", f"{path}/actions", {"put": [{"id": f"i{k % 50}", "features": numbers("x", 50)}]})


def tags_twice(path: str) -> Iterator[Call]:
    for first in range(0, 1_000, 50):
        items = [
            {"id": f"i{k}", "features": {"tags": [f"t{k}-{tag}" for tag in range(996)] + [f"t{k}-0"]}}
            for k in range(first, first + 50)
        ]
        yield Call("PUT", f"{path}/actions", {"put": items})


def erasures_of_nobody(path: str) -> Iterator[Call]:
    for k in itertools.count():
        yield Call("DELETE", f"{path}/users/nobody-{random.random()}-{k}")


def a_very_active_user(path: str) -> Iterator[Call]:
    for _ in range(200):
        events = [{"action": "a", "reward": 1.0, "user": "anonymous"} for _ in range(500)]
        yield Call("POST", f"{path}/feedback", {"events": events})


def erase_and_return(path: str) -> Iterator[Call]:
    """Erase a user of many events, and give this user many again."""
    while True:
        yield Call("DELETE", f"{path}/users/anonymous")
        for _ in range(20):
            events = [{"action": "a", "reward": 1.0, "user": "anonymous"} for _ in range(500)]
            yield Call("POST", f"{path}/feedback", {"events": events})


def refused_calls(path: str) -> Iterator[Call]:
    """Send bodies that are refused, over as many connections as a ranker answers at once."""
    yield from again("PATCH", "/settings", {"epsilonn": 1})(path)


def changes_of_settings(path: str) -> Iterator[Call]:
    for k in itertools.count():
        control = {"share": 0.1, "experiment": f"e{k}"}
        yield Call("PATCH", f"{path}/settings", {"control": control})


def large_what_ifs(path: str) -> Iterator[Call]:
    settings = [{"epsilon": 0.01 * k} for k in range(1, 20)]
    yield from again("POST", "/what-if", {"settings": settings})(path)


ATTACKS = {
    "rank": Attack(again("POST", "/rank", rank(500, 20, 15))),
    "batch": Attack(again("POST", "/rank/batch", {"requests": [rank(100, 40, 4) for _ in range(60)]})),
    "explained": Attack(again("POST", "/rank/batch", {"requests": [rank(500, 250, 0, explain=True)] * 15})),
    "slots": Attack(largest_slots),
    "refused": Attack(again("POST", "/rank", rank(500, 250, 20))),
    "export": Attack(again("GET", "/events"), some_events),
    "report": Attack(again("GET", "/report"), some_events),
    "evaluation": Attack(again("POST", "/evaluations", {"policies": ["uniform"]}), some_events),
    "what-if": Attack(large_what_ifs, some_events),
    "crafted words": Attack(crafted_events),
    "crafted rank": Attack(crafted_rank),
    "heavy feedback": Attack(heavy_feedback, wide_items(800, 900)),
    "seen": Attack(again("POST", "/recommend", {"user": "u", "n": 1, "exclude_seen": 60}), large_ranks_of_one_user),
    "many rewards": Attack(again("POST", "/rank", {"event_id": "event", "actions": ["a", "b"]}), many_rewards),
    "strings": Attack(strings_of_one_name),
    "pending": Attack(pending_of_many_actions),
    "large items": Attack(again("POST", "/rank", {"actions": [f"i{k}" for k in range(500)]}), wide_items(500, 900)),
    "large batch": Attack(
        again("POST", "/rank/batch", {"requests": [{"actions": [f"i{k}" for k in range(500)]}] * 20}),
        wide_items(500, 900),
    ),
    "popular": Attack(popular_of_any_time, many_small_events, connections=50),
    "columns": Attack(pages_of_new_items, wide_items(1_000, 900, own_names=True)),
    "tags twice": Attack(again("POST", "/recommend", {"user": "u", "n": 5}), tags_twice),
    "erase nobody": Attack(erasures_of_nobody, connections=30),
    "erase much": Attack(erase_and_return, a_very_active_user),
    "refused settings": Attack(refused_calls, connections=30),
    "settings": Attack(changes_of_settings),
    "device model": Attack(again("GET", "/federated/model"), some_events),
}


def loop_of(name: str) -> str:
    """Return the loop of an attack: its name, as text that a path can hold."""
    return "noisy-" + name.replace(" ", "-")

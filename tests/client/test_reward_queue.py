"""The queue of rewards by itself, with a service that the test scripts."""

import contextlib
import functools
import json
import operator
import threading

import pytest
from waiting import LIMIT

from fedres_client import rewards as rewards_module
from fedres_client.calls import Calls
from fedres_client.rewards import Rewards
from fedres_client.wire import Answer, Failure


class Script:
    """A service that answers as a function of a request's path and body; it notes what it receives."""

    def __init__(self, answer):
        self.answer = answer
        self.seen = []

    @contextlib.contextmanager
    def connect(self):
        yield self.ask

    def ask(self, request):
        self.seen.append((request.path, json.loads(request.body) if request.body else None))
        return self.answer(request)

    def events(self):
        """Return the events of all batches, each batch as a list."""
        return [[reward["event_id"] for reward in body["rewards"]] for _, body in self.seen]


def stored(request):
    events = [reward["event_id"] for reward in json.loads(request.body)["rewards"]]
    return Answer(200, json.dumps({"results": [{"event_id": event} for event in events]}).encode(), {})


def error(status, code):
    return Answer(status, json.dumps({"error": {"code": code, "message": "no", "target": None}}).encode(), {})


@pytest.fixture
def queue(monkeypatch):
    """Lend a function that makes a queue of a script, and closes it."""
    with contextlib.ExitStack() as stack:

        def make(answer, **options):
            script = Script(answer)
            made = Rewards(script.connect, **{"limit": 10_000, **options})
            stack.callback(made.close, 0)
            return made, script

        yield make


CALLS = Calls("default", timeout=1.0, admin_timeout=1.0, fallback="first", feedback=None)


def put(queue, *events, value=1.0):
    for event in events:
        queue.put(CALLS.reward(event, value, None, None))


def names(n):
    return [f"e{k}" for k in range(n)]


def test_rewards_are_sent_in_batches_in_their_order(queue):
    rewards, script = queue(stored)
    with rewards._changed:  # none leaves before all are there
        put(rewards, *names(1_200))
        rewards.put(CALLS.activate("shown"))
    assert rewards.flush(60)
    assert [len(batch) for batch in script.events()] == [500, 500, 201]
    assert functools.reduce(operator.iadd, script.events(), []) == [*names(1_200), "shown"]
    assert script.seen[0][0] == "/v1/loops/default/events/rewards"
    assert script.seen[-1][1]["rewards"][-1] == {"event_id": "shown", "activate": True}
    assert rewards.status().sent == 1_201


def test_a_batch_has_no_more_bytes_than_a_service_takes(queue):
    rewards, script = queue(stored)
    with rewards._changed:
        for k in range(8):
            rewards.put(CALLS.reward(f"e{k}", None, {f"name {j} {'x' * 90}": j for j in range(1_000)}, None))
    assert rewards.flush(60)
    assert [len(json.dumps(body)) < 700_000 for _, body in script.seen] == [True] * len(script.seen)
    assert functools.reduce(operator.iadd, script.events(), []) == names(8)


def test_one_reward_that_makes_the_service_refuse_a_batch_keeps_no_other(queue):
    def refuses_poison(request):
        return error(422, "invalid") if b"poison" in request.body else stored(request)

    rewards, script = queue(refuses_poison)
    with rewards._changed:
        put(rewards, *names(123), "poison", *names(300))
    assert rewards.flush(60)
    status = rewards.status()
    assert (status.sent, status.refused, status.queued) == (423, 1, 0)
    accepted = [batch for batch in script.events() if "poison" not in batch]
    assert functools.reduce(operator.iadd, accepted, []) == [*names(123), *names(300)]
    assert len(script.seen) < 40


def test_a_refused_reward_of_a_batch_is_counted_and_the_others_are_sent(queue, caplog):
    def answer(request):
        results = [{"event_id": "a"}, {"error": {"code": "invalid", "message": "out of range", "target": "value"}}]
        return Answer(200, json.dumps({"results": results}).encode(), {})

    rewards, _ = queue(answer)
    with rewards._changed:
        put(rewards, "a", "b")
    assert rewards.flush(60)
    assert (rewards.status().sent, rewards.status().refused) == (1, 1)
    assert "refused 1 of the rewards" in caplog.text
    assert "out of range" in caplog.text


@pytest.mark.parametrize("answer", [Failure("lost"), error(503, "starting"), error(429, "too_many_requests")])
def test_rewards_wait_for_what_waiting_can_mend(queue, answer):
    answers = iter([answer, answer])
    rewards, script = queue(lambda request: next(answers, None) or stored(request))
    put(rewards, *names(3))
    assert rewards.flush(60)
    assert (rewards.status().sent, rewards.status().refused) == (3, 0)
    assert len(script.seen) >= 3


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"results":[]}', b"<html>"])
def test_a_reply_that_is_no_result_for_each_is_no_success(queue, body):
    answers = iter([Answer(200, body, {})])
    rewards, _ = queue(lambda request: next(answers, None) or stored(request))
    put(rewards, "a")
    assert rewards.flush(60)
    assert rewards.status().sent == 1


def test_a_service_without_batches_gets_rewards_one_by_one(queue):
    def older(request):
        is_batch = request.path.endswith("/events/rewards")
        return error(404, "unknown_path") if is_batch else Answer(204, b"", {})

    rewards, script = queue(older)
    with rewards._changed:
        put(rewards, "a/b", "..", ".", "c")
        rewards.put(CALLS.activate("d"))
    assert rewards.flush(60)
    status = rewards.status()
    assert (status.sent, status.refused) == (3, 2)
    base = "/v1/loops/default/events"
    assert [path for path, _ in script.seen] == [
        f"{base}/rewards", f"{base}/a%2Fb/reward", f"{base}/c/reward", f"{base}/d/activate",
    ]  # fmt: skip


def test_rewards_have_an_age_and_one_that_waits_for_long_is_logged_once(queue, monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(rewards_module.time, "monotonic", lambda: now[0])
    asked, go_on = threading.Event(), threading.Event()

    def answer(request):
        asked.set()
        go_on.wait(LIMIT)
        return stored(request)

    rewards, _ = queue(answer)
    assert rewards.status().oldest_seconds == 0
    put(rewards, "a")
    assert asked.wait(LIMIT)
    now[0] += 11
    assert rewards.status().oldest_seconds == pytest.approx(11)
    put(rewards, "b", "c")
    assert caplog.text.count("rewards have waited for 10 s to be sent: 2 are queued") == 1
    go_on.set()
    assert rewards.flush(60)
    assert rewards.status().oldest_seconds == 0


def test_a_queue_that_is_closed_while_its_key_is_wrong_ends_after_one_more_try(queue, caplog):
    rewards, script = queue(lambda request: error(401, "unauthorized"))
    put(rewards, *names(3))
    rewards.close(600)
    assert rewards.status().dropped == 3
    assert "3 rewards were not sent" in caplog.text
    assert len(script.seen) <= 3

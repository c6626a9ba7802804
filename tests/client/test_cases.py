"""The table of cases that the clients in Python and in JavaScript both play: clients/cases.json."""

import asyncio
import contextlib
import itertools
import json
import math
from pathlib import Path

import httpx
import pytest

from fedres.client import AsyncClient, Client

CASES = json.loads((Path(__file__).parents[2] / "clients" / "cases.json").read_text(encoding="utf-8"))
WRONG = (TypeError, ValueError, RuntimeError)
TIMEOUTS = {"NaN": math.nan, "text": "1"}


class Script(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Gives a case's answers in turn, the last one again and again, and keeps the requests."""

    def __init__(self, answers):
        self._answers = itertools.chain(answers, itertools.repeat(answers[-1]))
        self.requests = []

    def handle_request(self, request):
        content = request.read()
        path = request.url.raw_path.decode()
        self.requests.append({"path": path, "body": json.loads(content) if content else None})
        answer = next(self._answers)
        if answer == "lost":
            raise httpx.ConnectError("refused", request=request)
        return httpx.Response(answer["status"], json=answer.get("body"))

    async def handle_async_request(self, request):
        return self.handle_request(request)


def holds(part, whole):
    """Return whether all that is expected is in the value."""
    if isinstance(part, dict):
        return all(name in whole and holds(value, whole[name]) for name, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(holds, part, whole))
    return part == whole


def options_of(case):
    return case.get("options", {})


def call(client, step):
    kind = step["call"]
    if kind == "rank":
        fields = {name: step[name] for name in ("actions", "user", "timeout") if name in step}
        if isinstance(fields.get("timeout"), str):
            fields["timeout"] = TIMEOUTS[fields["timeout"]]
        return client.rank(**fields)
    if kind == "reward":
        return client.reward(step["event"], step["value"], id=step.get("id"))
    if kind == "activate":
        return client.activate(step["event"])
    if kind == "flush":
        return client.flush(step.get("seconds", 60))
    return getattr(client, kind)()


def check(step, result):
    if "result" not in step:
        return
    expected = step["result"]
    if isinstance(expected, dict):
        seen = {**result.as_dict(), "code": result.error and result.error.code}
        assert holds(expected, seen), seen
    else:
        assert result is expected


async def play(case, make, script):
    """Play a case; with ``AsyncClient``, calls are awaited."""
    with contextlib.ExitStack() as stack:
        client = make(stack)
        for step in case["calls"]:
            before = len(script.requests)
            if step.get("raises"):
                with pytest.raises(WRONG):
                    await _awaited(call(client, step))
            else:
                check(step, await _awaited(call(client, step)))
            if "requests" in step:
                assert len(script.requests) - before == step["requests"]
            if "requests_at_most" in step:  # none during the rest after a slow try
                assert len(script.requests) - before <= step["requests_at_most"]
        if "requests" in case:
            assert holds(case["requests"], script.requests), script.requests
        if "rewards" in case:
            assert holds(case["rewards"], dict(client.reward_status()))


async def _awaited(result):
    return await result if asyncio.iscoroutine(result) else result


@pytest.mark.parametrize("case", CASES["constructor"], ids=lambda case: case["name"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_arguments_that_are_wrong_are_refused_at_once(case, kind):
    with pytest.raises((TypeError, ValueError)):
        kind("http://127.0.0.1:1", **options_of(case))


@pytest.mark.parametrize("case", CASES["calls"], ids=lambda case: case["name"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_does_with_a_services_answers_what_the_table_says(case, kind, monkeypatch):
    script = Script(case["answers"])
    monkeypatch.setattr(kind, "_new_http", lambda _: httpx.Client(transport=script, base_url="http://a"))
    made = httpx.AsyncClient(transport=script, base_url="http://a")
    if kind is AsyncClient:
        monkeypatch.setattr("httpx.AsyncClient", lambda **_: made)

    def make(stack):
        client = kind("http://127.0.0.1:1", **options_of(case))
        stack.callback(client._rewards.close, 0)
        client._rewards._tried_at = math.inf  # so that rewards gather until somebody flushes
        return client

    asyncio.run(play(case, make, script))

"""Sends drawn requests to a real service, and looks for a 5xx, no answer, another shape of errors, or growth."""

import http.client
import json
import tempfile
from pathlib import Path

from grammar import Grammar
from live import run_service

from service.roles.warm_up import warm_up

SECONDS = 30  # for an answer


def resident_bytes():
    return 4096 * int(Path("/proc/self/statm").read_text().split()[1])


def fuzz(first, n):
    """Return what was wrong with the answers to ``n`` requests of the seed ``first``, and by how much memory grew."""
    warm_up()  # a learner that compiles keeps callers waiting, who are then told so with 503
    grammar, wrong, before = Grammar(first), [], 0
    with tempfile.TemporaryDirectory(prefix="fedres-fuzz-") as folder, run_service(Path(folder)) as live:
        connection = http.client.HTTPConnection(*live.address, timeout=SECONDS)
        for k in range(n):
            request = grammar.request()
            problem = wrong_with(connection, request)
            if problem is not None:
                wrong.append(f"seed {first}, request {k}: {problem}: {request!r}"[:1_000])
            if k == n // 2:
                before = resident_bytes()
        connection.close()
        return wrong, resident_bytes() - before


def wrong_with(connection, request):
    """Return what is wrong with the answer to a request, None if nothing is."""
    method, path, headers, body = request
    try:
        connection.request(method, path, body=body, headers=headers)
        reply = connection.getresponse()
        content = reply.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        return f"no answer ({error!r})"
    if reply.status >= 500:
        return f"status {reply.status}: {content[:300]!r}"
    if reply.status >= 400 and method != "HEAD":
        try:
            if not {"code", "message"} <= json.loads(content)["error"].keys():
                return f"another shape: {content[:300]!r}"
        except (ValueError, KeyError, AttributeError):
            return f"another shape: {content[:300]!r}"
    return None

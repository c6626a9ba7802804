"""How the paths of Azure's API are declared, and what their handlers share.

Below ``/personalizer`` is the loop ``default``, below ``/loops/{loop}/personalizer`` any. Two families of versions
share most handlers: ``/personalizer/v1.0/…`` with its previews, and ``/personalizer/…`` with
``api-version=2022-09-01-preview``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, quote

import msgspec
from msgspec.structs import replace

from service.errors import invalid
from service.http.replies import Reply, json_reply
from service.http.request import decode
from service.http.routes import Call, Routes
from service.plugins.personalizer.errors import PersonalizerErrorResponse, Refusal, failed
from service.plugins.personalizer.features import LONGEST

PREFIXES = ("/personalizer", "/loops/{loop}/personalizer")
OLD, NEW = "/{version}", ""
BOTH = (OLD, NEW)
VERSIONS = ("v1.0", "v1.1-preview.1", "v1.1-preview.2", "v1.1-preview.3")
API_VERSION = "2022-09-01-preview"

Handler = Callable[[Call], Awaitable[Any]]

_encode = msgspec.json.Encoder().encode


class PersonalizerRoutes(Routes):
    """Declares handlers for both families; what a handler refuses is answered in Azure's shape."""

    def add(
        self,
        method: str,
        path: str,
        roles: frozenset[str],
        summary: str,
        code: str,
        handler: Handler,
        families: tuple[str, ...] = BOTH,
        **options: Any,
    ) -> None:
        """Declare a handler of calls, whose bodies are decoded; ``code`` is that of requests which break a rule.

        It returns a reply, or what is answered in JSON, None for nothing.
        """
        paths = [prefix + family + path for prefix in PREFIXES for family in families]
        body, status = options.get("body"), options.get("status", 200)
        decoder = None if body is None or isinstance(body, str) else msgspec.json.Decoder(body)

        async def answer(call: Call) -> Reply:
            try:
                _check_version(call)
                value = await handler(call if decoder is None else replace(call, body=decode(decoder, call.body)))
            except Exception as error:
                return failed(error, code)
            if isinstance(value, Reply):
                return value
            return Reply(status) if value is None else json_reply(_encode(value), status)

        options |= {"hot": True, "of_loop": True, "error": PersonalizerErrorResponse, "takes_subscription_key": True}
        options["choices"] = {"version": VERSIONS}
        self.of_paths(method, paths, roles, f"Azure Personalizer: {summary}", **options)(answer)


def _check_version(call: Call) -> None:
    version = call.parameters.get("version")
    if version is not None:
        if version not in VERSIONS:
            message = f"the version must be one of {', '.join(VERSIONS)}, got {version[:100]!r}"
            raise Refusal("ResourceNotFound", message, "version", 404)
        return
    given = query(call).get("api-version", API_VERSION)
    if given != API_VERSION:
        message = f"api-version must be {API_VERSION}, got {given[:100]!r}"
        raise Refusal("BadRequest", message, "api-version")


def query(call: Call) -> dict[str, str]:
    """Return the parameters of a query, of one that comes twice the last."""
    return {name: values[-1] for name, values in parse_qs(call.query.decode("latin-1")).items()}


def address(call: Call, path: str, root_path: str) -> str:
    """Return the whole address of a path below the loop's ``personalizer``, as the client knows the service."""
    headers = dict(call.scope.get("headers", ()))
    host = headers.get(b"host", b"localhost").decode("latin-1")
    scheme = headers.get(b"x-forwarded-proto", b"").decode("latin-1")
    if scheme not in ("http", "https"):
        scheme = call.scope.get("scheme", "http")
    loop = f"/loops/{quote(call.parameters['loop'], safe='')}" if "loop" in call.parameters else ""
    return f"{scheme}://{host}{root_path}{loop}/personalizer{path}"


def id_in(call: Call, name: str) -> str:
    """Return an id of the path."""
    given = call.parameters[name]
    if len(given) > LONGEST:
        raise invalid(f"{name} must have at most {LONGEST} characters, got {len(given)}", name)
    return given

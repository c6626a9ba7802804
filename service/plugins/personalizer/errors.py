"""Failures in Azure's shape: ``{"error": {code, message, target, details, innerError}}`` and ``x-ms-error-code``.

Messages are the native ones, which name the argument, the rule and the value; their native code is the inner error's.
"""

from __future__ import annotations

import msgspec

from service.errors import ApiError
from service.http.replies import JSON, Headers, Reply, failure
from service.http.replies import Error as NativeError

ERROR_CODE = b"x-ms-error-code"

BY_STATUS = {
    401: "401",  # as the gateway in front of Azure's services sends it
    403: "OperationNotAllowed",
    404: "ResourceNotFound",
    405: "OperationNotAllowed",
    408: "RequestTimeout",
    413: "PayloadSizeExceeded",
    429: "429",
}


class InnerError(msgspec.Struct):
    code: str  # the native one


class PersonalizerError(msgspec.Struct):
    code: str
    message: str
    target: str | None
    details: list[str]
    innerError: InnerError  # noqa: N815


class PersonalizerErrorResponse(msgspec.Struct):
    """What every failure of these paths looks like."""

    error: PersonalizerError


class Refusal(ApiError):  # noqa: N818
    """A refusal with a code of Azure's."""

    def __init__(self, code: str, message: str, target: str | None = None, status: int = 400) -> None:
        super().__init__(status, "invalid", message, target)
        self.azure_code = code


def failed(error: Exception, code: str) -> Reply:
    """Return the reply to an error in a handler; ``code`` is that of invalid requests."""
    if isinstance(error, Refusal):
        return _reply(error.status, error.azure_code, error.message, error.target, error.code)
    return _reshaped(failure(error), code)


def reshape(reply: Reply) -> Reply:
    """Return a native failure in Azure's shape."""
    if any(name == ERROR_CODE for name, _ in reply.headers):
        return reply
    return _reshaped(reply, "BadRequest")


def _reshaped(reply: Reply, code: str) -> Reply:
    native = msgspec.json.decode(reply.body, type=NativeError).error
    status = 400 if reply.status in (409, 422) else reply.status
    if status >= 500:
        code = "InternalServerError"
    headers = tuple(pair for pair in reply.headers if pair != JSON)
    message = native.message
    if status == 401:
        message = f"the key goes into the header Ocp-Apim-Subscription-Key: {message}"
    return _reply(status, BY_STATUS.get(status, code), message, native.target, native.code, headers)


def _reply(status: int, code: str, message: str, target: str | None, native: str, headers: Headers = ()) -> Reply:
    shown = message.encode("utf-8", "backslashreplace").decode()
    body = PersonalizerErrorResponse(PersonalizerError(code, shown, target, [], InnerError(native)))
    return Reply(status, msgspec.json.encode(body), (JSON, (ERROR_CODE, code.encode()), *headers))

"""The one kind of failure that callers of the service see."""

from __future__ import annotations

from service.log.protocol import StoreUnavailable


class ApiError(Exception):
    """A refusal: an HTTP status, a code for programs, a message for people and what it is about."""

    def __init__(self, status: int, code: str, message: str, target: str | None = None) -> None:
        super().__init__(status, code, message, target)
        self.status, self.code, self.message, self.target = status, code, message, target

    def __str__(self) -> str:
        return self.message


def invalid(message: str, target: str | None = None) -> ApiError:
    """Return the refusal of a request that breaks a rule."""
    return ApiError(422, "invalid", message, target)


def unavailable(error: StoreUnavailable) -> ApiError:
    """Return the refusal of a request that could not be stored: nothing was acknowledged."""
    return ApiError(503, f"store_{error.code}", f"the store is unavailable: {error}")

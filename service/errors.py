"""The error type of all replies to callers."""

from __future__ import annotations

LONGEST_MESSAGE, LONGEST_TARGET = 2_000, 300  # characters: both may repeat what was sent


class ApiError(Exception):
    """A refusal: an HTTP status, a code for programs, a message for people, and its target.

    ``wait`` is the number of seconds after which a client that sent too much may try again. A long message is cut.
    """

    def __init__(self, status: int, code: str, message: str, target: str | None = None, wait: int = 1) -> None:
        if len(message) > LONGEST_MESSAGE:
            message = f"{message[:LONGEST_MESSAGE]}..."
        if target is not None and len(target) > LONGEST_TARGET:
            target = f"{target[:LONGEST_TARGET]}..."
        super().__init__(status, code, message, target, wait)
        self.status, self.code, self.message, self.target, self.wait = status, code, message, target, wait

    def __str__(self) -> str:
        return self.message


def invalid(message: str, target: str | None = None) -> ApiError:
    """Return the refusal of a request that breaks a rule."""
    return ApiError(422, "invalid", message, target)

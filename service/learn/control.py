"""What rankers ask of the learner: a few questions over a Unix socket, answered between two steps."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from service.learn.join import Join
from service.learn.learner import Learner
from service.log.client import framed, read_frame, receive_frame
from service.log.protocol import StoreUnavailable

SECONDS = 30.0  # for an answer
REQUEST_BYTES = 1 << 16


class Question(msgspec.Struct, array_like=True):
    """One question; ``since`` is a version for ``changed``."""

    what: str
    loop: str = ""
    since: int = 0


class Answer(msgspec.Struct, array_like=True):
    body: Any = None
    error: str | None = None


def answer(learner: Learner, question: Question) -> Answer:
    """Return what the learner says, with all that was logged before learned."""
    try:
        while learner.step():
            pass
        if question.what != "settle" and question.loop not in learner.loops:
            return Answer(error=f"loop {question.loop!r} does not exist")
        return Answer(_ANSWERS[question.what](learner, question))
    except Exception as error:  # a question must not end the learner
        return Answer(error=f"{type(error).__name__}: {error}")


def _changed(learner: Learner, question: Question) -> tuple[int, list[int]] | None:
    """Return the version and the indices of the weights that changed since another, None where nobody knows."""
    history = learner.weight_histories.of_loop(learner.loops[question.loop])
    version = learner.loops[question.loop].metadata.version
    if question.since == version:
        return version, []
    if history is None or not history.start <= question.since < version:
        return None
    return version, history.since(question.since).tolist()


def _settle(learner: Learner, question: Question) -> None:
    if learner.trouble is not None:
        raise learner.trouble


def _unmatched(join: Join) -> Any:
    """Return rewards that do not count, and those that wait for their event."""
    return msgspec.to_builtins([*join.unmatched, *join.waiting_rewards()])


_ANSWERS: dict[str, Callable[[Learner, Question], Any]] = {
    "settle": _settle,
    "model": lambda learner, question: learner.loops[question.loop].shared.exported(),
    "digest": lambda learner, question: learner.digest(question.loop),
    "unmatched": lambda learner, question: _unmatched(learner.loops[question.loop].join),
    "changed": _changed,
}


def serve_one(listener: socket.socket, learner: Learner) -> None:
    """Answer one client."""
    client, _ = listener.accept()
    with client:
        client.settimeout(SECONDS)
        try:
            question = msgspec.msgpack.decode(receive_frame(client.recv, REQUEST_BYTES), type=Question)
            client.sendall(framed(answer(learner, question)))
        except (OSError, msgspec.MsgspecError, EOFError):
            return


class LearnerClient:
    """A ranker's side."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def ask(self, what: str, loop: str = "", since: int = 0) -> Any:
        """Return the learner's answer, or raise ``StoreUnavailable`` where it gives none."""
        try:
            return await asyncio.wait_for(self._ask(Question(what, loop, since)), SECONDS)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            raise StoreUnavailable(
                "learner", "the learner does not answer; it is started again if it is gone"
            ) from None

    async def _ask(self, question: Question) -> Any:
        reader, writer = await asyncio.open_unix_connection(str(self._path))
        try:
            writer.write(framed(question))
            reply = msgspec.msgpack.decode(await read_frame(reader), type=Answer)
        finally:
            writer.close()
        if reply.error is not None:
            raise StoreUnavailable("learner", reply.error)
        return reply.body

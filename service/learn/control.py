"""Requests of rankers to the learner over a Unix socket, answered between two steps."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from service.learn.learner import Learner
from service.learn.publishing import weight_history
from service.log.client import framed, read_frame, receive_frame
from service.log.protocol import StoreUnavailable

SECONDS = 30.0  # for an answer
REQUEST_BYTES = 1 << 16


class LearnerQuestion(msgspec.Struct, array_like=True):
    """One question; ``since`` is a version for ``changed``."""

    what: str
    loop: str = ""
    since: int = 0


class LearnerAnswer(msgspec.Struct, array_like=True):
    body: Any = None
    error: str | None = None


def answer(learner: Learner, question: LearnerQuestion) -> LearnerAnswer:
    """Return the learner's answer, once its loop has learned all records logged before the question."""
    try:
        ends = {name: head.last for name, head in learner.log.heads().items()}
        names = [*ends] if question.what == "settle" else [question.loop]
        until = time.monotonic() + SECONDS
        while learner.step() and time.monotonic() < until and any(_is_behind(learner, name, ends) for name in names):
            pass
        if question.what != "settle" and question.loop not in learner.loops:
            return LearnerAnswer(error=f"loop {question.loop!r} does not exist")
        return LearnerAnswer(_ANSWERS[question.what](learner, question))
    except Exception as error:  # a question must not end the learner
        return LearnerAnswer(error=f"{type(error).__name__}: {error}")


def _is_behind(learner: Learner, name: str, ends: Mapping[str, int]) -> bool:
    """Return whether a loop has not learned the records up to its end at a time."""
    return learner.positions.get(name, 0) < ends.get(name, 0) or not learner.is_complete(name)


def _changed(learner: Learner, question: LearnerQuestion) -> tuple[int, list[int]] | None:
    """Return the version and the indices of the weights that changed since another, None if that is unknown."""
    state = learner.loops[question.loop]
    history, version = weight_history(state), state.metadata.version
    if question.since == version:
        return version, []
    if history is None or not history.start <= question.since < version:
        return None
    return version, history.since(question.since).tolist()


def _settle(learner: Learner, question: LearnerQuestion) -> None:
    if learner.trouble is not None:
        raise learner.trouble


def _unmatched(learner: Learner, question: LearnerQuestion) -> Any:
    """Return rewards that do not count, and those whose event is still missing."""
    join = learner.loops[question.loop].join
    return msgspec.to_builtins([*join.unmatched, *join.waiting_rewards()])


_ANSWERS: dict[str, Callable[[Learner, LearnerQuestion], Any]] = {
    "settle": _settle,
    "model": lambda learner, question: learner.loops[question.loop].shared.exported(),
    "digest": lambda learner, question: learner.digest(question.loop),
    "unmatched": _unmatched,
    "changed": _changed,
}


def serve_one(listener: socket.socket, learner: Learner) -> None:
    """Answer one client."""
    client, _ = listener.accept()
    with client:
        client.settimeout(SECONDS)
        try:
            question = msgspec.msgpack.decode(receive_frame(client.recv, REQUEST_BYTES), type=LearnerQuestion)
            client.sendall(framed(answer(learner, question)))
        except (OSError, msgspec.MsgspecError, EOFError):
            return


class LearnerClient:
    """A ranker's side."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def ask(self, what: str, loop: str = "", since: int = 0) -> Any:
        """Return the learner's answer; raise ``StoreUnavailable`` if there is none."""
        try:
            async with asyncio.timeout(SECONDS):
                reader, writer = await asyncio.open_unix_connection(str(self._path))
                with contextlib.closing(writer):
                    writer.write(framed(LearnerQuestion(what, loop, since)))
                    reply = msgspec.msgpack.decode(await read_frame(reader), type=LearnerAnswer)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            message = "the learner does not answer; it is started again if it is gone"
            raise StoreUnavailable("learner", message) from None
        if reply.error is not None:
            raise StoreUnavailable("learner", reply.error)
        return reply.body

"""The log writer: the one process of a machine that appends. Rankers and the learner reach it over a Unix socket.

Group commit: whatever arrives while a batch is being synced makes up the next one, so many records share one fsync.
Each request is answered once its records are durable. The process ends when its supervisor does.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from service.log.client import (
    Append,
    Done,
    Erase,
    Failed,
    Frames,
    Ping,
    Prune,
    Reply,
    Request,
    Scrub,
    as_reply,
    framed,
    read_request,
)
from service.log.protocol import NO_EPOCHS, Group, Log, Outcome, Pruning, StoreUnavailable
from service.log.records import ERASE, ErasedBody, decode_erase, encode

READ_BYTES = 1 << 18
MOST_RECORDS = 2_000  # in one transaction
IDLE_SECONDS = 1.0  # between two signs of life where nothing arrives
SEND_SECONDS = 5.0  # after which a client that takes no replies is dropped
PRUNED = "pruned {}"  # the note of the last pruning of a loop that is done, by where it began

log = logging.getLogger("fedres.service")


class Writer:
    """Serves ``listener`` from one thread. If ``open_log`` fails, it is called again later."""

    def __init__(
        self,
        listener: socket.socket,
        open_log: Callable[[], Log],
        committed: Callable[[int, float], None] = lambda n, seconds: None,
    ) -> None:
        self._open_log = open_log
        self._log: Log | None = None
        self._committed = committed  # called with the number of records of a commit and its duration
        self._clients: dict[socket.socket, Frames] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._stopping = False
        self._scrub: Iterator[None] | None = None  # the rest of the work for the ticket
        self._ticket: int | None = None
        self._scrub_failure: Exception | None = None
        self._trouble: str | None = None  # the store's last error

    def watch(self, file: Any, call: Callable[[], object]) -> None:
        """Call ``call`` whenever ``file`` is readable."""
        self._selector.register(file, selectors.EVENT_READ, call)

    def stop(self) -> None:
        """End ``run`` once all received requests are answered."""
        self._stopping = True

    def run(self, beat: Callable[[], None] = lambda: None) -> None:
        """Serve until ``stop``; call ``beat`` every second or so."""
        while not self._stopping:
            beat()
            self._turn(IDLE_SECONDS if self._scrub is None else 0)
            self._scrub_some()
        self._turn(0)
        for client in list(self._clients):
            self._drop(client)
        if self._log is not None:
            self._log.close()

    def _turn(self, timeout: float | None) -> None:
        waiting: list[tuple[socket.socket, Request]] = []
        for key, _ in self._selector.select(timeout):
            if key.data is not None:
                key.data()
            elif key.fileobj is self._listener:
                self._accept()
            else:
                waiting += self._receive(key.fileobj)  # type: ignore[arg-type]
        appends: list[tuple[socket.socket, Append]] = []
        n_records = 0
        for client, request in waiting:
            if isinstance(request, Append) and not request.epochs:
                appends.append((client, request))
                n_records += sum(map(len, request.groups))
                if n_records < MOST_RECORDS:
                    continue
            self._append(appends)
            appends, n_records = [], 0
            if not isinstance(request, Append):
                self._send(client, self._answer(request))
            elif request.epochs:  # alone: it may be refused as a whole
                self._append([(client, request)])
        self._append(appends)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            client, _ = self._listener.accept()
            client.settimeout(SEND_SECONDS)
            self._clients[client] = Frames()
            self._selector.register(client, selectors.EVENT_READ)

    def _receive(self, client: socket.socket) -> list[tuple[socket.socket, Request]]:
        try:
            data = client.recv(READ_BYTES)
            frames = self._clients[client].feed(data) if data else []
            if not data:
                self._drop(client)
            return [(client, read_request(frame)) for frame in frames]
        except (OSError, ValueError, RecursionError, msgspec.MsgspecError):  # not what our clients send
            self._drop(client)
            return []

    def _append(self, appends: list[tuple[socket.socket, Append]]) -> None:
        if not appends:
            return
        groups = [group for _, request in appends for group in request.groups]
        began = time.perf_counter()
        try:
            outcomes = [as_reply(outcome) for outcome in self._opened().append(groups, appends[0][1].epochs)]
        except Exception as error:  # any error: nobody may wait forever
            self._note(error)
            for client, request in appends:
                self._send(client, _failed(request.id, error))
            return
        self._note(None)
        self._committed(sum(map(len, groups)), time.perf_counter() - began)
        first = 0
        for client, request in appends:
            last = first + len(request.groups)
            self._send(client, Done(request.id, outcomes[first:last]))
            first = last

    def _answer(self, request: Erase | Prune | Scrub | Ping) -> Reply:
        try:
            return Done(request.id, self._do(self._opened(), request))
        except Exception as error:
            if isinstance(request, Ping):
                self._note(error)
            return _failed(request.id, error)

    def _do(self, store: Log, request: Erase | Prune | Scrub | Ping) -> list[int | tuple[str, int]]:
        if isinstance(request, Erase):
            n_erased = erase(store, request.loop, request.user, request.base, request.token, request.epoch)
            return [] if n_erased is None else [n_erased]
        if isinstance(request, Prune):
            after = prune(store, request.loop, request.old, request.after, request.epoch)
            return [] if after is None else [after]
        if isinstance(request, Scrub):
            return [int(self._is_scrubbed(store, request.ticket))]
        if not request.write:
            store.append([])
            return []
        store.set_note("tried", str(time.time()))
        self._note(None)
        return [0]

    def _is_scrubbed(self, store: Log, ticket: int) -> bool:
        """Begin to scrub the files for a new ticket; return whether that is done."""
        if ticket != self._ticket:
            self._ticket, self._scrub, self._scrub_failure = ticket, store.scrub(), None
        if self._scrub_failure is not None:
            self._ticket = None  # the next one begins again
            raise self._scrub_failure
        return self._scrub is None

    def _scrub_some(self) -> None:
        """Scrub for a moment; appends come between two moments."""
        if self._scrub is not None:
            try:
                next(self._scrub)
            except StopIteration:
                self._scrub = None
            except Exception as error:
                self._scrub, self._scrub_failure = None, error

    def _note(self, error: Exception | None) -> None:
        """Log the store's failure and its recovery, once each."""
        trouble = None if error is None else str(error)
        if trouble is not None and trouble != self._trouble:
            log.error("the store takes nothing, and requests are refused with 503: %s", trouble)
        elif trouble is None and self._trouble is not None:
            log.warning("the store takes records again")
        self._trouble = trouble

    def _opened(self) -> Log:
        if self._log is None:
            self._log = self._open_log()
        return self._log

    def _send(self, client: socket.socket, reply: Reply) -> None:
        if client in self._clients:
            try:
                client.sendall(framed(reply))
            except OSError:
                self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        if self._clients.pop(client, None) is not None:
            self._selector.unregister(client)
            client.close()


def _failed(request_id: int, error: Exception) -> Failed:
    if isinstance(error, StoreUnavailable):
        return Failed(request_id, error.code, error.message)
    return Failed(request_id, "failed", repr(error))


class DirectWriter:
    """A log writer inside the learner's process, for logs without any other writer."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def append(self, groups: Sequence[Group], epochs: Mapping[str, int] = NO_EPOCHS) -> list[Outcome]:
        return self._log.append(groups, epochs)

    def erase(self, loop: str, user: str, base: int, token: str, epoch: int | None = None) -> int | None:
        return erase(self._log, loop, user, base, token, epoch)

    def prune(self, loop: str, old: Pruning, after: int, epoch: int | None = None) -> int | None:
        return prune(self._log, loop, old, after, epoch)

    def scrub(self, ticket: int) -> bool:
        return not [*self._log.scrub()]


def erase(log: Log, loop: str, user: str, base: int, token: str, epoch: int | None) -> int | None:
    """Erase a user, or some of the records if there are many: then return None. Return how many records went last."""
    if log.erase_some(loop, user, epoch):
        return None
    erasures = [entry for entry in log.of_kind(loop, ERASE) if entry.user == user]
    others = [other for entry in erasures if (other := decode_erase(entry.body).token) != token]
    return log.erase(loop, user, lambda n: encode(ErasedBody(n, base, token, others)), epoch)


def prune(log: Log, loop: str, old: Pruning, after: int, epoch: int | None) -> int | None:
    """Delete some old events, and note when all are deleted, so that a restart need not check again."""
    following = log.prune(loop, old, after, epoch)
    if following is None:
        log.set_note(PRUNED.format(loop), str(old.begun))
    return following


def is_pruned(log: Log, loop: str, begun: int) -> bool:
    """Return whether the pruning that began at a position is done."""
    return log.note(PRUNED.format(loop)) == str(begun)

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
from collections.abc import Callable, Iterator
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
from service.log.direct import erase, prune
from service.log.protocol import Log, StoreUnavailable

READ_BYTES = 1 << 18
MOST_RECORDS = 2_000  # in one transaction
IDLE_SECONDS = 1.0  # between two signs of life where nothing arrives
SEND_SECONDS = 5.0  # after which a client that takes no replies is dropped

log = logging.getLogger("fedres.service")


class Writer:
    """Serves ``listener`` from one thread. ``open_log`` is called again after a failure to open."""

    def __init__(
        self,
        listener: socket.socket,
        open_log: Callable[[], Log],
        committed: Callable[[int, float], None] = lambda n, seconds: None,
    ) -> None:
        self._open_log = open_log
        self._log: Log | None = None
        self._committed = committed  # told how many records a commit had, and how long it took
        self._clients: dict[socket.socket, Frames] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._stopping = False
        self._scrub: Iterator[None] | None = None  # what is left to do of the ticket
        self._ticket: int | None = None
        self._scrub_failure: Exception | None = None
        self._trouble: str | None = None  # why the store took nothing last

    def watch(self, file: Any, call: Callable[[], object]) -> None:
        """Call back whenever ``file`` can be read."""
        self._selector.register(file, selectors.EVENT_READ, call)

    def stop(self) -> None:
        """End ``run`` once what has arrived is answered."""
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
            if isinstance(request, Append) and request.epochs:  # alone: it may be refused as a whole
                self._append([(client, request)])
            if isinstance(request, Erase):
                self._send(client, self._erase(request))
            elif isinstance(request, Prune):
                self._send(client, self._prune(request))
            elif isinstance(request, Scrub):
                self._send(client, self._scrubbed(request))
            elif isinstance(request, Ping):
                self._send(client, self._ping(request))
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
        except Exception as error:  # whatever it is, nobody may wait for ever
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

    def _erase(self, request: Erase) -> Reply:
        try:
            n_erased = erase(self._opened(), request.loop, request.user, request.base, request.token, request.epoch)
            return Done(request.id, [n_erased])
        except Exception as error:
            return _failed(request.id, error)

    def _prune(self, request: Prune) -> Reply:
        try:
            after = prune(self._opened(), request.loop, request.old, request.after, request.epoch)
            return Done(request.id, [] if after is None else [after])
        except Exception as error:
            return _failed(request.id, error)

    def _scrubbed(self, request: Scrub) -> Reply:
        """Begin to clean the files for a new ticket; say whether that is done."""
        try:
            if request.ticket != self._ticket:
                self._ticket, self._scrub, self._scrub_failure = request.ticket, self._opened().scrub(), None
            if self._scrub_failure is not None:
                self._ticket = None  # the next one begins again
                raise self._scrub_failure
            return Done(request.id, [int(self._scrub is None)])
        except Exception as error:
            return _failed(request.id, error)

    def _scrub_some(self) -> None:
        """Clean for a moment; appends come between two moments."""
        if self._scrub is not None:
            try:
                next(self._scrub)
            except StopIteration:
                self._scrub = None
            except Exception as error:
                self._scrub, self._scrub_failure = None, error

    def _ping(self, request: Ping) -> Reply:
        try:
            if request.write:
                self._opened().set_note("tried", str(time.time()))
                self._note(None)
            else:
                self._opened().append([])
            return Done(request.id, [0] if request.write else [])
        except Exception as error:
            self._note(error)
            return _failed(request.id, error)

    def _note(self, error: Exception | None) -> None:
        """Log why the store takes nothing, and when it takes something again, once each."""
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

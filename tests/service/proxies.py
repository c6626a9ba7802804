"""TCP proxies: one that loses, repeats and withholds requests and replies of a service, one that stalls a database."""

import contextlib
import itertools
import select
import socket
import threading

from waiting import LIMIT

PASS = "pass"
DROP = "drop"  # the request does not reach the service
MUTE = "mute"  # the service answers, and the answer is lost
TWICE = "twice"  # the service gets the request twice
REPEAT = "repeat"  # the client gets the reply twice, and its connection is out of step
HANG = "hang"  # the reply is withheld, the connection stays open
TRICKLE = "trickle"  # a head without end, byte by byte


class FaultyProxy:
    """Asks ``fault(request)`` about the bytes of each request."""

    def __init__(self, upstream, fault):
        self._upstream, self._fault = upstream, fault
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.seen = []  # faults, in the order of their requests
        self._open = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._closing.set()
        self._listener.close()
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._open.add(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with contextlib.suppress(OSError, EOFError), client, socket.create_connection(self._upstream) as service:
            self._open.add(service)  # which may wait for the rest of a request that the client gave up
            reads, replies = client.makefile("rb"), service.makefile("rb")
            while True:
                request = message(reads)
                fault = self._fault(request)
                self.seen.append(fault)
                if fault == DROP:
                    break
                for _ in range(2 if fault == TWICE else 1):
                    service.sendall(request)
                    reply = message(replies)
                if fault == MUTE:
                    break
                if fault == HANG:
                    client.recv(1)  # until the client gives up
                    break
                if fault == TRICKLE:
                    self._trickle(client)
                client.sendall(reply * 2 if fault == REPEAT else reply)
            self._open.discard(service)
        self._open.discard(client)

    def _trickle(self, client):
        client.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not self._closing.wait(0.01):
            client.sendall(b"a")


def message(reads):
    """Return one request or reply as it came."""
    head = b"".join(itertools.takewhile(lambda line: line != b"\r\n", iter(lambda: line_of(reads), None))) + b"\r\n"
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        return head + chunks(reads)
    _, has_length, rest = lower.partition(b"content-length: ")
    return head + (reads.read(int(rest.split(b"\r\n")[0])) if has_length else b"")


def chunks(reads):
    body = b""
    while True:
        size = line_of(reads)
        body += size + reads.read(int(size, 16) + 2)
        if int(size, 16) == 0:
            return body


def line_of(reads):
    line = reads.readline()
    if not line:
        raise EOFError
    return line


@contextlib.contextmanager
def no_service():
    """The address of a port at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"


@contextlib.contextmanager
def answering(*replies, seconds=0.0):
    """The address of a port that gives these replies, the last one again and again, each after ``seconds``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = list(replies)

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=serve, args=(client,), daemon=True).start()

        def serve(client):
            with contextlib.suppress(OSError, EOFError), client:
                message(client.makefile("rb"))
                threading.Event().wait(seconds)
                client.sendall(left.pop(0) if len(left) > 1 else left[0])

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def reply(body, *, status=200, headers=b""):
    """Return the bytes of a reply after which the connection is closed."""
    return b"HTTP/1.1 %d X\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n%s" % (status, len(body), headers, body)


class StallingProxy:
    """Forwards TCP connections to a Unix socket, until it is told to stall: then bytes wait, and nobody is told."""

    def __init__(self, path):
        self._path = str(path)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._flowing = threading.Event()
        self._flowing.set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stall(self):
        self._flowing.clear()

    def heal(self):
        self._flowing.set()

    def close(self):
        """End; whoever used it is gone."""
        self._flowing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(LIMIT)
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                thread = threading.Thread(target=self._serve, args=[self._listener.accept()[0]], daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, client):
        with client, socket.socket(socket.AF_UNIX) as server, contextlib.suppress(OSError):
            self._flowing.wait()
            server.connect(self._path)
            other = {client: server, server: client}
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(1 << 16)
                    self._flowing.wait()
                    if not data:
                        return
                    other[source].sendall(data)

"""What a call of the clients costs beside plain httpx or fetch, and what they do with many calls at once.

python benchmarks/client_calls.py overhead [--calls 4000]        # against a stub that answers at once
python benchmarks/client_calls.py burst URL [--calls 300]        # against a running service

Calls take turns with plain ones in one run, so both have the same machine. Times are in µs, of a burst in seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx

from fedres.client import AsyncClient, Client

ACTIONS = [{"id": f"action-{k}", "features": {"k": k, "hot": True}} for k in range(10)]
REQUEST: dict[str, Any] = {"user": "anna", "context": {"hour": 9}, "actions": ACTIONS}
PATH = "/v1/loops/default/rank"
RANKING = [{"id": f"action-{k}", "probability": 0.1, "score": 0.5} for k in range(10)]
DECISION = {"event_id": "e", "action": "action-3", "probability": 0.1, "model_version": 1, "ranking": RANKING}
BLOCK = 20  # calls of one kind in a row
WARM_UP = 10  # blocks


class Stub(asyncio.Protocol):
    """Answers each request with the same decision."""

    body = json.dumps(DECISION).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n" % len(body)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            headers = dict(line.split(b": ", 1) for line in self._received[:end].lower().split(b"\r\n")[1:])
            length = int(headers.get(b"content-length", 0))
            if len(self._received) < end + 4 + length:
                return
            original = self._received[:end].split(b"\r\n")
            ids = [line for line in original if line.lower().startswith(b"x-request-id: ")]
            self._received = self._received[end + 4 + length :]
            self._transport.write(self.head + b"".join(line + b"\r\n" for line in ids) + b"\r\n" + self.body)


def serve_stub(pipe: Connection) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Stub, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


@contextmanager
def stub() -> Iterator[str]:
    """Yield the address of a stub in a process of its own."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve_stub, args=(theirs,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}"
    finally:
        process.terminate()
        process.join()


class Measured:
    """Processor time of a block and times of its calls, by kind of call."""

    def __init__(self) -> None:
        self.cpu: list[float] = []
        self.times: list[float] = []

    def result(self) -> dict[str, float]:
        return {
            "cpu": round(statistics.median(self.cpu) * 1e6, 1),
            "median": round(statistics.median(self.times) * 1e6, 1),
        }


def threads(url: str, calls: int) -> dict[str, dict[str, float]]:
    with httpx.Client(base_url=url) as http, Client(url, timeout=60) as client:
        ways: dict[str, Callable[[], Any]] = {
            "plain": lambda: http.post(PATH, json=REQUEST).raise_for_status().json(),
            "client": lambda: client.rank(**REQUEST),
        }
        measured = {name: Measured() for name in ways}
        for block in range(-WARM_UP, calls // BLOCK):
            for name, call in ways.items():
                cpu = time.process_time()
                times = [_seconds_of(call) for _ in range(BLOCK)]
                if block >= 0:
                    measured[name].cpu.append((time.process_time() - cpu) / BLOCK)
                    measured[name].times += times
    return {name: each.result() for name, each in measured.items()}


def _seconds_of(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


async def event_loop(url: str, calls: int) -> dict[str, dict[str, float]]:
    async with httpx.AsyncClient(base_url=url) as http, AsyncClient(url, timeout=60) as client:

        async def plain() -> Any:
            return (await http.post(PATH, json=REQUEST)).raise_for_status().json()

        async def decide() -> Any:
            return await client.rank(**REQUEST)

        ways: dict[str, Callable[[], Awaitable[Any]]] = {"plain": plain, "client": decide}
        measured = {name: Measured() for name in ways}
        for block in range(-WARM_UP, calls // BLOCK):
            for name, call in ways.items():
                cpu = time.process_time()
                times = []
                for _ in range(BLOCK):
                    began = time.perf_counter()
                    await call()
                    times.append(time.perf_counter() - began)
                if block >= 0:
                    measured[name].cpu.append((time.process_time() - cpu) / BLOCK)
                    measured[name].times += times
    return {name: each.result() for name, each in measured.items()}


async def burst(url: str, calls: int) -> dict[str, list[dict[str, float]]]:
    """Decide so often at once, plain and by the client in turns."""
    limits = httpx.Limits(max_connections=32, max_keepalive_connections=32)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http, AsyncClient(url) as client:

        async def plain() -> bool:
            return (await http.post(PATH, json=REQUEST)).is_error

        async def decide() -> bool:
            return (await client.rank(**REQUEST)).fallback

        ways = {"plain": plain, "client": decide}
        await asyncio.gather(*(call() for call in ways.values()))  # connects
        results: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(3):
            for name, call in ways.items():
                results[name].append(await _at_once(call, calls))
    return results


async def _at_once(call: Callable[[], Awaitable[bool]], calls: int) -> dict[str, float]:
    began = time.perf_counter()

    async def one() -> tuple[bool, float]:
        fallback = await call()
        return fallback, time.perf_counter() - began

    done = await asyncio.gather(*(one() for _ in range(calls)))
    longest = max(seconds for _, seconds in done)
    late = sum(seconds > 1 for _, seconds in done)
    return {"fallbacks": sum(fallback for fallback, _ in done), "after_1_s": late, "longest": round(longest, 3)}


def in_node(measurement: str, url: str, calls: int) -> Any:
    script = Path(__file__).with_suffix(".mjs")
    done = subprocess.run(
        ["node", str(script), measurement, url, str(calls)], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurement", choices=["overhead", "burst"])
    parser.add_argument("url", nargs="?", help="of a running service, for burst")
    parser.add_argument("--calls", type=int)
    options = parser.parse_args()
    if options.measurement == "overhead":
        calls = options.calls or 4000
        with stub() as url:
            print("httpx   ", json.dumps(threads(url, calls)), flush=True)
            print("asyncio ", json.dumps(asyncio.run(event_loop(url, calls))), flush=True)
            print("node    ", json.dumps(in_node("overhead", url, calls)), flush=True)
    else:
        if options.url is None:
            parser.error("burst needs the address of a running service")
        calls = options.calls or 300
        print("asyncio ", json.dumps(asyncio.run(burst(options.url, calls))), flush=True)
        print("node    ", json.dumps(in_node("burst", options.url, calls)), flush=True)


if __name__ == "__main__":
    main()

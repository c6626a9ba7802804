"""Bodies that a fuzzer makes up: each is read, or refused with a 4xx, and what is read is what strict JSON says.

``python tools/hardening/bodies.py -runs=100000 -seed=1`` lets atheris make them up, led by what code they reach;
its options are libFuzzer's. Each body has one byte in front that says what reads it.
"""

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    SERVICE = Path(__file__).parents[2] / "tests" / "service"
    sys.path[1:1] = [str(SERVICE), str(SERVICE / "log")]

import msgspec
from grammar import Grammar
from machine import Engine

from fedres.scoring.flattening import FeatureError, FeatureLimits, action_features, flatten
from service.admin.routes import NewLoop
from service.errors import ApiError
from service.http.hot import Batch, Reward
from service.http.request import decode, gunzip
from service.rank.decide import prepare
from service.rank.requests import RankRequest
from service.rank.slots import SlotsRequest

MOST_BYTES = 1 << 16
RANK = msgspec.json.Decoder(RankRequest)
STRICT = [msgspec.json.Decoder(kind) for kind in (Batch, SlotsRequest, Reward, NewLoop)]
GZIP = len(STRICT) + 1
INSTRUMENTED = (  # modules whose branches lead the fuzzer
    *("service.http.hot", "service.http.request", "service.http.request", "service.rank.requests"),
    *("service.rank.decide", "fedres.scoring.flattening", "fedres.scoring.features"),
)
GRAMMAR = ("rank", "batch", "slots", "reward", "loops")


class WrongBodyError(AssertionError):
    """A body that was read as something else than it says, or refused in a way that it must not be."""


class Reader:
    """Reads bodies as the routes do, and compares with a slower way that is not the product's."""

    def __init__(self, engine):
        self._loop, self._preparer = engine.context.loop("default"), engine.context.preparer

    def check(self, data):
        kind, body = data[:1] or b"\0", data[1:]
        with contextlib.suppress(ApiError):
            try:
                self._read(kind[0] % (GZIP + 1), body)
            except ApiError as error:
                if not 400 <= error.status < 500:
                    raise WrongBodyError(f"{body!r} is refused with {error.status}") from error
                json.dumps([error.message, error.target])
                raise

    def _read(self, kind, body):
        if kind == 0:
            self._rank(body)
        elif kind == GZIP:
            unzipped = gunzip(body, MOST_BYTES)
            if len(unzipped) > MOST_BYTES:
                raise WrongBodyError(f"{body!r} has {len(unzipped)} bytes")
        else:
            decode(STRICT[kind - 1], body)

    def _rank(self, body):
        """Read a rank request; what is taken, Python's own parser must take too, and read the same."""
        request = decode(RANK, body)
        [prepared] = prepare([request], self._loop, self._preparer)
        plain_error = self._features_error(request)
        if isinstance(prepared, ApiError):
            if prepared.status == 422 and prepared.code.startswith("invalid_feature") and plain_error is None:
                raise WrongBodyError(f"{body!r}: compiled code refuses features that plain code takes: {prepared}")
            raise prepared
        if plain_error is not None:
            raise WrongBodyError(f"{body!r}: compiled code takes features that plain code refuses: {plain_error}")
        try:
            said = json.loads(body)
        except ValueError as error:
            raise WrongBodyError(f"{body!r} was read, but is not JSON: {error}") from error
        if [action["id"] for action in said["actions"]] != [action.id for action in request.actions]:
            raise WrongBodyError(f"{body!r} was read with other actions")
        if (said.get("user"), said.get("event_id")) != (request.user, request.event_id):
            raise WrongBodyError(f"{body!r} was read with another user or event")

    @staticmethod
    def _features_error(request):
        try:
            flatten(bytes(request.context) or b"{}", FeatureLimits())
            for action in request.actions:
                action_features(action.id, bytes(action.features), FeatureLimits())
        except FeatureError as error:
            return error
        return None


def drawn(seed, n):
    """Return bodies from the grammar of requests, for the fuzzer to begin with."""
    grammar = Grammar(seed)
    bodies = []
    for k in range(n):
        kind = k % len(GRAMMAR)
        bodies.append(bytes([kind]) + json.dumps(getattr(grammar, f"{GRAMMAR[kind]}_body")()).encode())
    return bodies


@contextlib.contextmanager
def reader():
    with tempfile.TemporaryDirectory(prefix="fedres-bodies-", dir="/dev/shm") as folder:
        engine = Engine(Path(folder))
        engine.learner.step()
        yield Reader(engine)
        asyncio.run(engine.close())


def missing():
    """Return why atheris cannot be used, None if it can."""
    tried = subprocess.run([sys.executable, "-c", "import atheris"], capture_output=True, check=False)
    return (
        None if tried.returncode == 0 else "atheris is not installed (pip install atheris; Linux, Python 3.11 to 3.13)"
    )


def fuzz_bodies(first, n):
    """Let atheris make up ``n`` bodies in a process of its own; what it finds ends that process."""
    with tempfile.TemporaryDirectory(prefix="fedres-corpus-") as corpus:
        for k, body in enumerate(drawn(first, 100)):
            (Path(corpus) / str(k)).write_bytes(body)
        limits = [f"-runs={n}", f"-seed={first + 1}", "-timeout=10", "-rss_limit_mb=2048", "-max_len=2000"]
        command = [sys.executable, __file__, *limits, f"-artifact_prefix={corpus}/found-", corpus]
        ended = subprocess.run(command, capture_output=True, check=False)
        if ended.returncode == 0:
            return [], {}
        crashing = [file.read_bytes() for file in Path(corpus).glob("found-*")]
        return [f"seed {first + 1}: {crashing!r}: {ended.stderr[-1_500:].decode(errors='replace')}"], {}


def main():
    import atheris

    for module in map(sys.modules.get, INSTRUMENTED):
        for function in [*vars(module).values()]:
            if getattr(function, "__module__", None) == module.__name__ and hasattr(function, "__code__"):
                function.__code__ = atheris.instrument_func(function).__code__
    with reader() as bodies:
        atheris.Setup(sys.argv, bodies.check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()

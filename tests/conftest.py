"""Streams and runs that several tests share."""

import functools
import gc
import itertools
import os
import random
import shutil
import ssl
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import typer.testing
from hypothesis import settings
from threadpoolctl import threadpool_limits

from fedres.federation import Example, Federation

HERE = Path(__file__).parent
OF_SERVICE = [f"service/{name}" for name in ("", "log", "ranking", "roles", "simulation")]
sys.path[:0] = [str(HERE / folder) for folder in ("bandits", "client", "papers", *OF_SERVICE)]  # what tests import
sys.path.append(str(HERE.parent))  # for `research`, which is not installed

settings.register_profile("fedres", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("fedres")

threadpool_limits(1)  # pytest-xdist has a process for every core already
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # for libraries not loaded yet, and what tests start
    os.environ.setdefault(name, "1")

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > 4 * 2**30:  # a commit takes 0.03 ms there, on a disk 3
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)

ssl.create_default_context = functools.cache(ssl.create_default_context)  # 60 ms each, which every client of httpx pays
typer.testing._get_command = functools.cache(typer.testing._get_command)  # as long, for every command of a test


@pytest.fixture(autouse=True)
def _usual_umask():
    """Undo what commands do that keep their files private: servers of later tests run as other users."""
    os.umask(0o022)
    yield
    os.umask(0o022)


def pytest_addoption(parser):
    parser.addoption("--shuffle", metavar="SEED", help="run files, and the tests of each, in a random order")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector from looking again and again at what is imported and collected: it stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config, items):
    """Leave out the long tests unless they are asked for with ``-m``, and put the files with slow tests first.

    What is left for the end is short then, and the processes end together.
    """
    if "long" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
    if config.option.shuffle is not None:
        shuffle(items, random.Random(config.option.shuffle))


def shuffle(items, rng):
    """Put files in a random order, and the tests of each file; parts of a file stay together."""
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    for tests in files.values():
        rng.shuffle(tests)
    items[:] = itertools.chain.from_iterable(rng.sample(list(files.values()), len(files)))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # prints behind all other summaries
def pytest_terminal_summary(terminalreporter):
    """Name what this machine lacks, and how many tests that has skipped."""
    yield
    reports = terminalreporter.stats.get("skipped", [])
    counts = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in reports)
    if counts:
        terminalreporter.section("skipped tests, by reason")
    for reason, n_tests in counts.most_common():
        terminalreporter.line(f"{n_tests:5}  {reason}")


def pytest_sessionfinish():
    import forked

    forked.end()


def make_stream(n_rounds, n_clients, dim, *, seed=0, local_dim=None, loss="squared", outputs=0):
    """Return noisy linear examples: a shared part, and a part of each client's own where ``local_dim`` is given."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_rounds, n_clients, dim)) / np.sqrt(dim)
    score = features @ rng.normal(size=(dim, outputs) if outputs else dim)
    local = None
    if local_dim:
        local = rng.normal(size=(n_rounds, n_clients, local_dim)) / np.sqrt(local_dim)
        score = score + np.einsum("tkd,kd->tk", local, rng.normal(size=(n_clients, local_dim)))
    score = score + 0.1 * rng.normal(size=score.shape)
    label = np.sign(score) if loss == "logistic" else score
    if outputs:
        label = score.argmax(axis=-1).astype(float)
    return [Example(features[t], label[t], None if local is None else local[t]) for t in range(n_rounds)]


@pytest.fixture
def stream():
    return make_stream


def play(learner, examples, sites=None, **options):
    """Return all rounds of a run, and the federation as it ended."""
    federation = Federation(learner, sites, **options)
    return list(federation.run(examples)), federation


@pytest.fixture
def run():
    return play

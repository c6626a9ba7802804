"""A kernel that was compiled is compiled again when one that it calls has changed, in whatever file."""

import subprocess
import sys

import pytest
from forked import Forked, run

ONE = """
from fedres.compiling import inner_kernel, kernel

@{decorator}
def one(x):
    return x + {number}
"""
TWO = """
from fedres.compiling import kernel
from parts.one import one

@kernel
def two(x):
    return 2 * one(x)
"""


@pytest.mark.parametrize("decorator", ["kernel", "inner_kernel"])
def test_a_kernel_follows_those_it_calls(tmp_path, decorator):
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "two.py").write_text(TWO)

    def played():
        """Return what two(1) is, and whether it was found in the cache."""
        command = [sys.executable, "-c", "from parts.two import two; print(two(1), len(two.stats.cache_hits))"]
        return run(command, cwd=tmp_path, check=True).stdout.split()

    (package / "one.py").write_text(ONE.format(decorator=decorator, number=1))
    assert [played(), played()] == [["4", "0"], ["4", "1"]]
    (package / "one.py").write_text(ONE.format(decorator=decorator, number=10))
    assert [played(), played()] == [["22", "0"], ["22", "1"]]


PAIR = """
from typing import NamedTuple

class {name}(NamedTuple):
    left: int
    right: int
"""
SUM = """
from fedres.compiling import kernel

@kernel
def total(pair):
    return pair.left + pair.right
"""


def test_a_cache_whose_types_are_gone_is_not_read(tmp_path):
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "total.py").write_text(SUM)
    code = "import parts.pair; from parts.total import total; print(total(parts.pair.{}(1, 2)))"
    for name in ("Pair", "Two"):
        (package / "pair.py").write_text(PAIR.format(name=name))
        assert run([sys.executable, "-c", code.format(name)], cwd=tmp_path, check=True).stdout == "3\n"


def test_processes_that_compile_at_once_do_not_mix_up_their_code(tmp_path):
    package = tmp_path / "parts"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "one.py").write_text(ONE.format(decorator="kernel", number=1))
    values = ("1", "1.5", "True", "1j", "np.float32(2)", "np.int8(3)")
    code = "import numpy as np; from parts.one import one; print({}, len(one.stats.cache_hits))"

    def started(expression):
        words = [sys.executable, "-c", code.format(expression)]
        return Forked(words, cwd=tmp_path, stdout=subprocess.PIPE)

    for process in [started(f"one({value})") for value in values]:
        assert process.wait() == 0
        process.stdout.close()
    with started(", ".join(f"one({value})" for value in values)) as process:
        again = process.stdout.read().split()
    assert again == ["2", "2.5", "2", "(1+1j)", "3.0", "4", str(len(values))]

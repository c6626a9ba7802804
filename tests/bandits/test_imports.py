"""What importing the package costs, and what it offers."""

import subprocess
import sys
from importlib import import_module

import bandits

HEAVY = ("numba", "vowpalwabbit", "scipy")


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, bandits; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_found_where_it_is_said_to_be():
    assert sorted(bandits._HOME) == sorted(bandits.__all__)
    for name in bandits.__all__:
        home = import_module(bandits._HOME[name])
        assert getattr(bandits, name) is getattr(home, name)
        assert getattr(bandits, name).__module__.startswith(home.__name__)


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(bandits, "nothing")

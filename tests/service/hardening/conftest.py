"""Lets the tests of this folder import the campaign that they run a little of."""

import sys
from pathlib import Path

SERVICE, ROOT = Path(__file__).parents[1], Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "tools" / "hardening"), str(SERVICE), str(SERVICE / "log"), str(SERVICE / "simulation")]

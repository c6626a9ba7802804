"""Lets the tests of this folder import what is beside and above them."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "log"), str(HERE.parent / "simulation")]

"""Lets the tests of this folder import the campaign that they run a little of."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "tools" / "hardening"))

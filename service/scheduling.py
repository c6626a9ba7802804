"""Who gets a processor."""

from __future__ import annotations

import contextlib
import os


def yield_to_others() -> None:
    """Have this thread never take a processor from who runs when it wakes: mostly that is the one who answers."""
    if hasattr(os, "SCHED_BATCH"):  # Linux
        with contextlib.suppress(OSError):  # not allowed here: slower, no more
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))

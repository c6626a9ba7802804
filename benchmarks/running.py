"""A real service for as long as a benchmark needs one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """Lend the address of ``fedres serve`` with its store ``fedres.db`` in a folder."""
    command = [str(Path(sys.executable).with_name("fedres")), "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stdout is not None
        try:
            yield next(match[1] for line in process.stdout if (match := re.search(r"dashboard +(http://\S+)/", line)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()

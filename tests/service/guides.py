"""Pages of the documentation, followed to the letter: their files are written, their programs run."""

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from forked import Forked, path, run
from waiting import LIMIT


class Block(NamedTuple):
    file: str | None  # "Save this as `file`"
    language: str
    code: str


def blocks(page):
    """Return the blocks of a page that have a language."""
    listed = []
    before, *rest = re.split(
        r"^```(\w*)\n(.*?)^```\n", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    for language, code, after in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
        name = re.search(r"Save\s+this\s+as\s+`([\w.-]+)`", before.strip().rpartition("\n\n")[2])
        if language:
            listed.append(Block(name and name[1], language, code))
        before = after
    return listed


@contextmanager
def started(command, folder):
    """Start a program that serves, on a port that is free; return its address."""
    words = [*re.sub(r" --port \d+", "", command).split(), "--port", "0"]
    if words[0] == "uvicorn":
        words[:1] = [sys.executable, str(Path(sys.executable).with_name("uvicorn"))]
    with Forked(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder) as process:
        try:
            said = iter(process.stdout.readline, "")
            address = next(match[1] for line in said if (match := re.search(r"(http://127\.0\.0\.1:\d+)", line)))
            rest = Thread(target=process.stdout.read)  # a pipe that nobody reads would stop it once it is full
            rest.start()
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(LIMIT)
            rest.join()


def follow(page, folder, stack, addresses):
    """Do what a page says; return what its commands and examples printed."""
    printed = []
    for block in blocks(page):
        code = block.code
        for port, address in addresses.items():
            code = code.replace(f"http://127.0.0.1:{port}", address)
        if block.file:
            (folder / block.file).write_text(code)
        elif code.startswith(("fedres serve", "uvicorn ")):
            port = re.search(r"--port (\d+)", code)
            addresses[port[1] if port else "8000"] = stack.enter_context(started(code, folder))
        elif block.language == "python":
            done = run([sys.executable, "-c", code], cwd=folder)
            assert done.returncode == 0, f"{page.name}: {block.code}\n{done.stdout}\n{done.stderr}"
            printed.append(done.stdout)
        elif block.language == "sh":
            code = code.replace("curl -s", "curl -sS --fail-with-body")
            command = ["sh", "-e", "-c", code]
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=folder, env={**os.environ, "PATH": path()}, check=False
            )
            assert done.returncode == 0, f"{page.name}: {block.code}\n{done.stdout}\n{done.stderr}"
            printed.append(done.stdout)
    return printed

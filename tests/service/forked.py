"""Commands that start at once: processes forked from one that has imported and compiled what they need.

``fedres serve`` takes seconds to import and to load its kernels, more than most tests take with it. ``Forked`` stands
in for ``subprocess.Popen`` and ``run`` for ``subprocess.run``; ``path`` has a ``fedres`` for shells. What runs is the
command itself, in a process of its own. Run as a script this file is the process that all others are forked from.
"""

import array
import atexit
import contextlib
import functools
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from pathlib import Path
from subprocess import Popen  # itself, wherever Forked stands in for it

FEDRES = str(Path(sys.executable).with_name("fedres"))
SOCKET = "forks.sock"

COMMAND = """#!{python} -IS
# fedres for shells: has the command forked, hands on signals, and ends as it ends.
import array, json, os, signal, socket, sys
forks = socket.socket(socket.AF_UNIX)
forks.connect({socket!r})
order = dict(words=["fedres", *sys.argv[1:]], cwd=os.getcwd(), env=dict(os.environ), own_group=False)
files = array.array("i", [0, 1, 2])
forks.sendmsg([json.dumps(order).encode() + b"\\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
said = forks.makefile()
pid = int(said.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(pid, number))
status = int(said.readline())
sys.exit(status if status >= 0 else 128 - status)
"""


class Forked:
    """A process like those of ``subprocess.Popen``, whose text it reads; ``words`` begin with fedres or Python."""

    def __init__(self, words, *, stdout=None, stderr=None, cwd=None, env=None, start_new_session=False, text=True):
        assert text
        self.args, self.returncode, self.stdout = [str(word) for word in words], None, None
        with contextlib.ExitStack() as files:
            null = files.enter_context(open(os.devnull, "r+b"))
            out = null if stdout is None else stdout
            if stdout == subprocess.PIPE:
                read, write = os.pipe()
                self.stdout, out = open(read), files.enter_context(open(write, "wb"))  # noqa: SIM115
            err = out if stderr == subprocess.STDOUT else sys.__stderr__ if stderr is None else stderr
            order = {
                "words": self.args,
                "cwd": os.fspath(cwd or Path.cwd()),
                "env": dict(os.environ if env is None else env),
                "own_group": start_new_session,  # a process group suffices
            }
            self._forks = socket.socket(socket.AF_UNIX)
            self._forks.connect(str(_origin().folder / SOCKET))
            socket.send_fds(
                self._forks, [json.dumps(order).encode() + b"\n"], [null.fileno(), out.fileno(), err.fileno()]
            )
        self._said = self._forks.makefile()
        self.pid = int(self._said.readline())

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._forks], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            self.returncode = int(self._said.readline())
            self._said.close()
            self._forks.close()
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.stdout:
            self.stdout.close()
        self.wait()


def run(words, *, cwd=None, env=None, check=False):
    """Run a command to its end; return it with what it printed."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        status = Forked(words, stdout=out, stderr=err, cwd=cwd, env=env).wait()
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(words, status, out.read(), err.read())
    if check:
        done.check_returncode()
    return done


def path():
    """Return a PATH on which ``fedres`` is one that is forked, and Python the one that runs the tests."""
    return os.pathsep.join([str(_origin().folder), str(Path(sys.executable).parent), os.environ["PATH"]])


class Origin:
    """The process that others are forked from; it ends with this one."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="fedres-")
        self.folder = Path(self._folder.name)
        command = self.folder / "fedres"
        command.write_text(COMMAND.format(python=sys.executable, socket=str(self.folder / SOCKET)))
        command.chmod(0o755)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = Popen([sys.executable, "-P", __file__, str(self.folder)], **pipes)
        assert self.process.stdout.readline() == b"ready\n"
        self.process.stdout.close()

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self._folder.cleanup()


@functools.cache
def _origin():
    return Origin()


def end():
    """End the process that others are forked from, if there is one."""
    if _origin.cache_info().currsize:
        _origin().close()
        _origin.cache_clear()


# The process that others are forked from


def origin(folder):
    """Fork what is asked for until the input ends; return, in each process that is forked, the words to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / SOCKET))
    listener.listen(128)
    wake, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running = {}  # pid -> the connection on which its end is told
    os.write(1, b"ready\n")
    os.dup2(2, 1)
    while True:
        ready, _, _ = select.select([0, listener, wake], [], [])
        if 0 in ready:
            return None
        if wake in ready:
            wake.recv(4096)
            _reap(running)
        if listener in ready:
            connection, _ = listener.accept()
            order, files = _received(connection)
            own_group = order.pop("own_group")
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (listener, wake, waking, connection, *running.values()):
                    one.close()
                return _become(files, **order)
            if own_group:
                os.setpgid(pid, pid)
            connection.sendall(b"%d\n" % pid)
            running[pid] = connection
            for file in files:
                os.close(file)


def _received(connection):
    data, files = b"", array.array("i")
    while not data.endswith(b"\n"):
        more, passed, _, _ = socket.recv_fds(connection, 1 << 20, 3)
        data += more
        files.extend(passed)
    return json.loads(data), files


def _reap(running):
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with contextlib.suppress(BrokenPipeError), running.pop(ended[0]) as connection:
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(ended[1]))


def _become(files, words, cwd, env):
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    return words


def execute(words):
    """Do what the command does: ``fedres ...``, ``python FILE ...`` or ``python -c CODE ...``."""
    if Path(words[0]).name == "fedres":
        from service.__main__ import main

        sys.argv = words
        main()
    elif words[1] == "-c":
        sys.argv, sys.path[0:0] = words[1:2] + words[3:], [""]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(words[2], "<string>", "exec"), vars(module))
    else:
        sys.argv = words[1:]
        sys.path.insert(0, str(Path(words[1]).parent))
        runpy.run_path(words[1], run_name="__main__")


def executed(words):
    """Execute a command; return the status that Python would end with."""
    try:
        execute(words)
    except SystemExit as end:
        if not isinstance(end.code, str):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    return 0


def prepare(folder):
    """Import and compile; figures of processes are in a folder that is named before the import."""
    from service.roles.config import METRICS_FOLDER

    os.environ[METRICS_FOLDER] = str(folder)
    import typer.main

    import service.cli
    from service.roles import learner, ranker, supervisor, writer
    from service.roles.warm_up import warm_up

    _ = (learner, ranker, supervisor, writer)
    typer.main.get_command = functools.cache(typer.main.get_command)  # all commands are made once, not in every process
    typer.main.get_command(service.cli.app)
    runpy.run_path(str(Path(__file__).with_name("waiting.py")))["be_patient"]()
    warm_up()
    build_app()


def build_app():
    """Build the application once: what every ranker would import, and would find out about routes, is there then.

    The application is thrown away: nothing is asked of it, so stand-ins of its parts are never called.
    """
    from unittest.mock import Mock

    from service.app import create_app

    create_app(Mock(), Mock(), keys=Mock())


def main():
    folder = Path(sys.argv[1])
    metrics = folder / "metrics"
    metrics.mkdir()
    sys.stdout = io.TextIOWrapper(open(1, "wb", buffering=0, closefd=False), write_through=True)  # noqa: SIM115
    prepare(metrics)
    words = origin(folder)
    if words is None:
        shutil.rmtree(metrics, ignore_errors=True)
        status = 0
    else:
        status = executed(words)
        atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # to take all that was imported apart would take longer than most commands


if __name__ == "__main__":
    main()

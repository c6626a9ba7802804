"""Compiles functions by numba, into a cache on the disk: kernels.

A kernel has the kernels that it calls linked into it. Those that nothing else calls are ``inner_kernel``s: they get no
machine code of their own, which would take a third of the time of a first start. A ``bare_kernel`` gets it when Python
first calls it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

Function = TypeVar("Function", bound=Callable[..., Any])

_config: Any = numba.config
_any_value: Any = types.unliteral  # the type of a constant as that of a variable
_OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "no_cfunc_wrapper": True}  # nothing calls from C


def kernel(function: Function) -> Function:
    """Compile ``function`` on its first call; IEEE arithmetic in the order written."""
    return _cached(_compiled(function, _OPTIONS), function)


def free_kernel(function: Function) -> Function:
    """Compile a kernel that takes milliseconds: it releases the interpreter's lock, so that other threads go on."""
    return _cached(njit(**_OPTIONS | {"nogil": True})(function), function)


def bare_kernel(function: Function) -> Function:
    """Compile a kernel that allocates no arrays, makes only views of its arguments, and returns none to Python.

    Numba then skips reference counting, which takes an atomic operation for every view (half the time of a bandit's
    round) and a counter for every array that comes from Python.
    """
    compiled: Any = _cached(_compiled(function, _OPTIONS | {"_nrt": False}), function)
    if hasattr(compiled, "overloads"):  # not if NUMBA_DISABLE_JIT is set
        inner: Any = inner_kernel(function)  # for calls from kernels: the machine code is for calls from Python
        compiled.get_call_template, compiled.get_overload = inner.get_call_template, inner.get_overload
    return cast(Function, compiled)


def inner_kernel(function: Function) -> Function:
    """Compile a bare kernel that only kernels call: it is optimized and translated as a part of them.

    Python cannot call it, and it is cached only as a part of its callers.
    """
    options = _OPTIONS | {"_nrt": False, "cache": False, "no_cpython_wrapper": True, "pipeline_class": _InnerCompiler}
    compiled = njit(**options)(function)
    if hasattr(compiled, "overloads"):  # not if NUMBA_DISABLE_JIT is set
        compiled.add_overload = lambda result: compiled.overloads.update({tuple(result.signature.args): result})
        compiled._compile_for_args = partial(_refuse, function.__name__)
        _take_constants_as_variables(compiled)
    return cast(Function, compiled)


def _refuse(name: str, *_: object, **__: object) -> None:
    raise TypeError(f"{name} is an inner kernel: only kernels can call it")


class _InnerCompiler(Compiler):
    """Numba's compiler, without optimization, for inner kernels."""

    def define_pipelines(self) -> Any:
        self.state.library = _InnerLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return super().define_pipelines()


class _InnerLibrary(JITCodeLibrary):
    """Code to link into other kernels, not optimized; the address that numba requests is 0."""

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """Return the object on which numba sets the environment of machine code: this one, which ignores it."""
        return self

    def set_env(self, name: str, environment: object) -> None:
        pass


def _compiled(function: Function, options: dict[str, Any]) -> Any:
    """Return the function, compiled on its first call; it is cached in any folder that can be written."""
    if not _may_cache:
        return njit(**options | {"cache": False})(function)
    try:
        return njit(**options)(function)
    except RuntimeError as error:  # neither beside the source, nor in the home, nor in NUMBA_CACHE_DIR
        if "cannot cache function" not in str(error):
            raise
    _take_temporary_cache()
    return _compiled(function, options)


_may_cache = True


def _take_temporary_cache() -> None:
    """Let this process and its children cache in a temporary folder; without one, not at all."""
    global _may_cache
    reason = "no folder for compiled code can be written: neither beside the package, nor in the home"
    advice = "set NUMBA_CACHE_DIR to a folder that lasts"
    folder = _temporary_folder()
    if folder is None or folder == _config.CACHE_DIR:
        _may_cache = False
        warnings.warn(f"{reason}; it is compiled again in each process: {advice}", RuntimeWarning, stacklevel=5)
        return
    os.environ["NUMBA_CACHE_DIR"] = folder
    _config.CACHE_DIR = folder
    warnings.warn(f"{reason}; it is in {folder}: {advice}", RuntimeWarning, stacklevel=5)


def _temporary_folder() -> str | None:
    """Return a folder for compiled code that nobody else can write: who writes there runs code in this process."""
    try:
        folder = f"{tempfile.gettempdir()}/fedres-kernels-{os.getuid()}"
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077:
            return folder
        return tempfile.mkdtemp(prefix="fedres-kernels-")
    except OSError:
        return None


def _cached(compiled: Any, function: Function) -> Function:
    """Return it with a cache that is valid for all these sources: numba checks only the function's own file.

    A kernel contains the kernels that it calls, so a change in another file must invalidate it too.
    """
    if hasattr(compiled, "_cache"):  # not if NUMBA_DISABLE_JIT is set
        _take_constants_as_variables(compiled)
    if hasattr(getattr(compiled, "_cache", None), "_cache_file"):  # not without a folder for it
        file = compiled._cache._cache_file
        sources = _sources(function.__module__.partition(".")[0])
        # Numba reads no more of a file of another version: it may name types that do not exist any more.
        file._version, file._source_stamp = f"{file._version} {sources}", sources
        file.save = _one_at_a_time(file.save, Path(file._cache_path))
    return cast(Function, compiled)


def _take_constants_as_variables(compiled: Any) -> None:
    """Compile it once for all constant arguments of kernels' calls: numba would compile it for each value."""
    template = compiled.get_call_template
    compiled.get_call_template = lambda args, kws: template(tuple(map(_any_value, args)), kws)


def _one_at_a_time(save: Callable[[Any, Any], None], folder: Path) -> Callable[[Any, Any], None]:
    """Return a ``save`` that locks the cache against other processes: two would use the same number.

    What cannot be saved, as on a full disk, is compiled again by the next process.
    """

    def saved(key: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            with open(folder / ".lock", "ab") as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)
                save(key, data)

    return saved


@cache
def _sources(package: str) -> str:
    """Return a digest of files of this package and ``fedres``: those of kernels and of the types of their arguments."""
    digest = sha256()
    for name in sorted({"fedres", package}):
        home = Path(getattr(sys.modules[name], "__file__", None) or "")
        for file in sorted(home.parent.rglob("*.py")) if home.name == "__init__.py" else [home]:
            text = file.read_bytes() if file.is_file() else b""
            if b"kernel" in text.lower() or b"NamedTuple" in text:
                digest.update(text)
    return digest.hexdigest()

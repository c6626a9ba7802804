"""Compiles functions by numba, into a cache on the disk: kernels.

A kernel has the kernels that it calls linked into it. Those that nothing else calls are ``inner_kernel``s: they get no
machine code of their own, which would take a third of the time of a first start.
"""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

Function = TypeVar("Function", bound=Callable[..., Any])

_any_value: Any = types.unliteral  # the type of a constant as that of a variable
_OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "no_cfunc_wrapper": True}  # nothing calls from C


def kernel(function: Function) -> Function:
    """Compile ``function`` on its first call; IEEE arithmetic in the order written."""
    return _cached(njit(**_OPTIONS)(function), function)


def bare_kernel(function: Function) -> Function:
    """Compile a kernel in which no array is made, only views of those it is given; Python is returned none.

    Numba then does not count who holds an array. It does so by an atomic operation for every view, which took half the
    time of a bandit's round, and sets up a count for every array that comes from Python.
    """
    return _cached(njit(**_OPTIONS | {"_nrt": False})(function), function)


def inner_kernel(function: Function) -> Function:
    """Compile a bare kernel that only kernels call: it is optimized and translated as a part of them.

    Python cannot call it, and no cache holds it, for the caches of its callers do.
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
    """Numba's compiler, which leaves the code of an inner kernel as it is before optimization."""

    def define_pipelines(self) -> Any:
        self.state.library = _InnerLibrary(self.state.targetctx.codegen(), self.state.func_id.func_qualname)
        return super().define_pipelines()


class _InnerLibrary(JITCodeLibrary):
    """Code to link into others, not optimized and without an address: numba asks for one, and gets none."""

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
        """Return what numba calls to set the environment of machine code: this, as there is none."""
        return self

    def set_env(self, name: str, environment: object) -> None:
        pass


def _cached(compiled: Any, function: Function) -> Function:
    """Return it with a cache that is valid for these sources: numba looks at the file of the function alone.

    A kernel has those it calls compiled into it, so that after an update of one file it would stay what it was.
    """
    if hasattr(compiled, "_cache"):  # not if NUMBA_DISABLE_JIT is set
        file = compiled._cache._cache_file
        file._source_stamp = _sources(function.__module__.partition(".")[0])
        file.save = _one_at_a_time(file.save, Path(file._cache_path))
        _take_constants_as_variables(compiled)
    return cast(Function, compiled)


def _take_constants_as_variables(compiled: Any) -> None:
    """Compile it once for all constants that kernels call it with: numba would compile it for each of their values."""
    template = compiled.get_call_template
    compiled.get_call_template = lambda args, kws: template(tuple(map(_any_value, args)), kws)


def _one_at_a_time(save: Callable[[Any, Any], None], folder: Path) -> Callable[[Any, Any], None]:
    """Return what adds code to a cache while no other process does: two would give it the same number."""

    def saved(key: Any, data: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / ".lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            save(key, data)

    return saved


@cache
def _sources(package: str) -> str:
    """Return a digest of the files of this package and of ``fedres`` that have to do with kernels: that name them."""
    digest = sha256()
    for name in sorted({"fedres", package}):
        home = Path(getattr(sys.modules[name], "__file__", None) or "")
        for file in sorted(home.parent.rglob("*.py")) if home.name == "__init__.py" else [home]:
            text = file.read_bytes() if file.is_file() else b""
            if b"kernel" in text.lower():
                digest.update(text)
    return digest.hexdigest()

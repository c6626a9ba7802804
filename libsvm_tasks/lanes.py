"""Four 32-bit floats at a time inside numba kernels: each lane is rounded as one number alone would be.

Memory is read and written by address: numba counts the references to every array that a function is handed, and
checks each index for being negative, which together take longer than a short row of arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from fedres.local_learners.adagrad import FUSED

LANES = 4

_REAL = ir.FloatType()
_VECTOR = ir.VectorType(_REAL, LANES)
_NOWHERE = ir.Constant(_VECTOR, ir.Undefined)


class Lanes(types.Type):
    """The numba type of four floats; values live inside kernels only."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


lanes = Lanes()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, frontend_type: Any) -> None:
        super().__init__(manager, frontend_type, _VECTOR)  # type: ignore[no-untyped-call]


def _operation(generate: Callable[..., Any], n_arguments: int) -> Any:
    """Return a kernel function from lanes to lanes that ``generate(builder, *values)`` writes."""

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return generate(builder, *values)

    def unary(typing_context: Any, a: Any) -> Any:
        return lanes(lanes), code

    def binary(typing_context: Any, a: Any, b: Any) -> Any:
        return lanes(lanes, lanes), code

    def ternary(typing_context: Any, a: Any, b: Any, c: Any) -> Any:
        return lanes(lanes, lanes, lanes), code

    return intrinsic((unary, binary, ternary)[n_arguments - 1])


def _llvm(builder: Any, name: str, *values: Any) -> Any:
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * len(values))
    insert: Any = cgutils.get_or_insert_function
    return builder.call(insert(builder.module, kind, f"llvm.{name}.v{LANES}f32"), values)


def _constant(number: float) -> Any:
    return ir.Constant(_VECTOR, [ir.Constant(_REAL, float(number))] * LANES)


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return _llvm(builder, "fma", a, b, c) if FUSED else builder.fadd(builder.fmul(a, b), c)


def _inverse_root(builder: Any, a: Any) -> Any:
    return builder.fdiv(_constant(1), _llvm(builder, "sqrt", a))


def _square(builder: Any, a: Any, least: Any) -> Any:
    square = builder.fmul(a, a)
    square = builder.select(builder.fcmp_ordered(">", square, least), square, least)
    return builder.select(builder.fcmp_ordered("==", a, _constant(0)), _constant(0), square)


def _where_positive(builder: Any, condition: Any, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", condition, _constant(0)), a, b)


multiply = _operation(lambda builder, a, b: builder.fmul(a, b), 2)
multiply_add = _operation(_multiply_add, 3)  # a*b + c, rounded as in ``fedres.local_learners.adagrad``
inverse_root = _operation(_inverse_root, 1)  # 1/√a, rounded after the root and after the division
square = _operation(_square, 2)  # max(a², b), but 0 where a is 0
where_positive = _operation(_where_positive, 3)  # b where a > 0, else c


def _access(kind: Any, llvm_kind: Any) -> tuple[Any, Any]:
    """Return kernel functions that read and write a ``kind`` at ``address`` + ``index`` numbers; nothing is checked."""

    def pointer(builder: Any, address: Any, index: Any) -> Any:
        numbers = builder.inttoptr(address, (llvm_kind.element if kind is lanes else llvm_kind).as_pointer())
        return builder.bitcast(builder.gep(numbers, [index]), llvm_kind.as_pointer())

    def read(typing_context: Any, address: Any, index: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.load(pointer(builder, *values), align=LANES)

        return kind(types.intp, types.intp), code

    def write(typing_context: Any, address: Any, index: Any, value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            builder.store(values[2], pointer(builder, *values[:2]), align=LANES)
            return context.get_dummy_value()

        return types.void(types.intp, types.intp, kind), code

    return intrinsic(read), intrinsic(write)


load, store = _access(lanes, _VECTOR)  # four 32-bit floats
get, put = _access(types.float32, _REAL)
get_whole, _ = _access(types.int64, ir.IntType(64))


def _spread(typing_context: Any, number: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        index = ir.IntType(32)
        first = builder.insert_element(_NOWHERE, values[0], ir.Constant(index, 0))
        return builder.shuffle_vector(first, _NOWHERE, ir.Constant(ir.VectorType(index, LANES), [0] * LANES))

    return lanes(types.float32), code


spread: Any = intrinsic(_spread)  # one float32 four times


def width_of(n_features: int) -> int:
    """Return how long a row of features and a constant is, filled up with zeros to whole lanes."""
    return LANES * int(np.ceil((n_features + 1) / LANES))

"""What compiled functions may do."""

import numpy as np
import pytest
from numba.core.errors import TypingError

from fedres.compiling import bare_kernel, inner_kernel, kernel


def test_a_bare_kernel_that_makes_an_array_does_not_compile():
    """Nobody would free it."""

    @bare_kernel
    def twice(n):
        return np.ones(n).sum() * 2

    with pytest.raises(TypingError):
        twice(3)


def test_only_kernels_can_call_an_inner_kernel():
    @inner_kernel
    def add_to(total, x):
        total[0] += x

    @kernel
    def sum_twice(x):
        total = np.zeros(1)
        add_to(total, x)
        add_to(total, x)
        return total[0]

    for _ in range(2):  # before and after it is compiled
        with pytest.raises(TypeError, match="add_to is an inner kernel: only kernels can call it"):
            add_to(np.zeros(1), 1.5)
        assert sum_twice(1.5) == 3.0

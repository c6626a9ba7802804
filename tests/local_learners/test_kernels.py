"""What compiled functions may do."""

import numpy as np
import pytest
from numba.core.errors import TypingError

from fedres.local_learners.adagrad import bare_kernel


def test_a_bare_kernel_that_makes_an_array_does_not_compile():
    """Nobody would free it."""

    @bare_kernel
    def twice(n):
        return np.ones(n).sum() * 2

    with pytest.raises(TypingError):
        twice(3)

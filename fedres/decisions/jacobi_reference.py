"""Eigenvectors that are the same bits everywhere: part of the readable twin of ``residual_kalman``."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np

from fedres.checks import Array
from fedres.decisions.constants import JACOBI_SWEEPS


def eigenvectors(symmetric: Array, n: int) -> Array:
    """Return the n leading ones as columns, by cyclic Jacobi: fixed sweeps in a fixed order, unlike LAPACK's."""
    A, V, d = symmetric.copy(), np.eye(len(symmetric)), len(symmetric)
    for i, j in JACOBI_SWEEPS * [*combinations(range(d), 2)]:
        if abs(A[i, j]) > 1e-14:
            cotangent = (A[j, j] - A[i, i]) / (2 * A[i, j])  # of twice the angle that makes A[i, j] zero
            tangent = (1.0 if cotangent >= 0 else -1.0) / (abs(cotangent) + math.sqrt(cotangent * cotangent + 1))
            cosine = 1 / math.sqrt(tangent * tangent + 1)
            sine = tangent * cosine
            A[:, i], A[:, j] = cosine * A[:, i] - sine * A[:, j], sine * A[:, i] + cosine * A[:, j]
            A[i], A[j] = cosine * A[i] - sine * A[j], sine * A[i] + cosine * A[j]
            V[:, i], V[:, j] = cosine * V[:, i] - sine * V[:, j], sine * V[:, i] + cosine * V[:, j]
    return V[:, np.argsort(-np.diag(A), kind="stable")[:n]]

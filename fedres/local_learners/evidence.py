"""An estimate of how much of the residuals a prediction explains."""

from __future__ import annotations

FORGET = 0.99  # the least share of its weight that older evidence keeps with each new observation
RECENT = 4.0  # later on 1 - 4/n is kept, so that the m-th of n counts (m/n)⁴, and all together as much as n/5


def kept(n: int) -> float:
    """Return the share of its weight that older evidence keeps at the n-th observation."""
    return max(FORGET, 1 - RECENT / n)


class Evidence:
    """Least squares of residuals on one number each, the newest counting most."""

    __slots__ = ("explained", "n", "squares")

    def __init__(self) -> None:
        self.explained = 0.0  # Σ residual · part
        self.squares = 0.0  # Σ part²
        self.n = 0

    def add(self, residual: float, part: float) -> None:
        self.n += 1
        keep = kept(self.n)
        self.explained = keep * self.explained + residual * part
        self.squares = keep * self.squares + part * part

    def ratio(self, explained: float, squares: float) -> float:
        """Return the least-squares ratio within [0, 1], with this much prior evidence."""
        return min(max((self.explained + explained) / (self.squares + squares), 0.0), 1.0)

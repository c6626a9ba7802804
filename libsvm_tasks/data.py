"""A dataset in memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedres.checks import Array


@dataclass(frozen=True, slots=True, repr=False)
class Data:
    """Rows and labels. For classification ``label`` is the place of a row's class in ``classes``."""

    name: str
    features: Array  # (n, d)
    label: Array  # (n,), class numbers from 0, or real values
    classes: Array | None = None  # the labels as they were written, sorted; None for regression

    def __repr__(self) -> str:
        rows, columns = self.features.shape
        return f"Data({self.name!r}, {rows} rows, {columns} features, {self.n_classes or 'no'} classes)"

    @property
    def n_classes(self) -> int:
        return 0 if self.classes is None else len(self.classes)

    def class_sizes(self) -> Array:
        """Return the number of rows of each class."""
        return np.bincount(self.label.astype(np.intp), minlength=self.n_classes)

"""What travels between clients and server, for one client or for many at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedres.checks import Array
from fedres.models import Factored

Kind = Literal["triplet", "gradient", "quantised gradient", "delta", "statistics"]

BITS_PER_REAL = 32


@dataclass(frozen=True, slots=True)
class Triplet:
    """Z = (x^g, f(x^l; w_i), y) of [FedRes, Alg. 3]: all the server is told of a client's own model."""

    features: Array
    local_prediction: Array
    label: Array


@dataclass(frozen=True, slots=True)
class Statistics:
    """x^g, y and the d numbers Σ_s x^g_s (x^l_s·w_i): all that [FedRes, eq. 3] needs of a client for squared loss."""

    features: Array
    label: Array
    coupling: Array


Body = Triplet | Statistics | Factored | Array | tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Up:
    """An upload. Row j of the body comes from client ``who[j]``; ``bits`` is what each row costs.

    A ``Factored`` body saves work here; whether its factors would travel or the dense rows they stand for is the
    learner's choice, and ``bits`` tells it.
    """

    t: int
    who: Array
    kind: Kind
    base_version: int
    body: Body
    bits: int | Array


@dataclass(frozen=True, slots=True)
class Down:
    """A new shared model. Of client k, uploads made in rounds t <= ``covers[k]`` are inside; ``bits`` is per client."""

    version: int
    covers: Array
    weights: Array
    bits: int

"""Clients of a service that decides: ``Client`` for threads, ``AsyncClient`` for event loops.

``calls.py`` has the requests and reads the replies, ``retrying.py`` decides when to try again, ``rewards.py`` sends
rewards in the background, and ``spool.py`` keeps them on disk. The two clients are thin shells around httpx.
``fedres.client`` has the same classes, and uses the other modules here for its devices.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedres_client.async_client import AsyncClient
    from fedres_client.client import Client
    from fedres_client.types import (
        Decision,
        Event,
        Explanation,
        KeyRefusedError,
        LimitError,
        NoAnswerError,
        Observed,
        Ranked,
        RankRequest,
        Recommendation,
        RefusedError,
        RewardStatus,
        ServiceError,
        Slot,
    )

_HOME = {
    "AsyncClient": "async_client",
    "Client": "client",
    "Decision": "types",
    "Event": "types",
    "Explanation": "types",
    "KeyRefusedError": "types",
    "LimitError": "types",
    "NoAnswerError": "types",
    "Observed": "types",
    "RankRequest": "types",
    "Ranked": "types",
    "Recommendation": "types",
    "RefusedError": "types",
    "RewardStatus": "types",
    "ServiceError": "types",
    "Slot": "types",
}

__all__ = [
    "AsyncClient",
    "Client",
    "Decision",
    "Event",
    "Explanation",
    "KeyRefusedError",
    "LimitError",
    "NoAnswerError",
    "Observed",
    "RankRequest",
    "Ranked",
    "Recommendation",
    "RefusedError",
    "RewardStatus",
    "ServiceError",
    "Slot",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: httpx takes a tenth of a second."""
    if name == "__version__":
        from importlib.metadata import version

        return version("fedres-client")
    if name not in _HOME:
        raise AttributeError(f"module 'fedres_client' has no attribute {name!r}")
    return getattr(import_module(f"fedres_client.{_HOME[name]}"), name)

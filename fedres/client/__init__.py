"""Clients of the service.

``Client`` and ``AsyncClient`` ask a service for decisions; they are those of the distribution ``fedres-client``.
``DeviceClient`` and ``AsyncDeviceClient`` decide on the device: they keep private features and a model there, and
upload residuals only. Of those, ``device.py`` decides and learns, ``syncing.py`` is the protocol with the service,
``store.py`` is the device's SQLite file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedres.loading import load

if TYPE_CHECKING:
    from fedres.client.asynchronous import AsyncDeviceClient
    from fedres.client.device import DeviceDecision, Status
    from fedres.client.privacy import Privacy
    from fedres.client.synchronous import DeviceClient
    from fedres.client.syncing import Synced
    from fedres_client import (
        AsyncClient,
        Client,
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
    "AsyncDeviceClient": "asynchronous",
    "DeviceClient": "synchronous",
    "DeviceDecision": "device",
    "Privacy": "privacy",
    "Status": "device",
    "Synced": "syncing",
}

__all__ = [
    "AsyncClient",
    "AsyncDeviceClient",
    "Client",
    "Decision",
    "DeviceClient",
    "DeviceDecision",
    "Event",
    "Explanation",
    "KeyRefusedError",
    "LimitError",
    "NoAnswerError",
    "Observed",
    "Privacy",
    "RankRequest",
    "Ranked",
    "Recommendation",
    "RefusedError",
    "RewardStatus",
    "ServiceError",
    "Slot",
    "Status",
    "Synced",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: VW, numba and httpx take a second of processor time."""
    if name in _HOME:
        return getattr(load(f"fedres.client.{_HOME[name]}"), name)
    if name in __all__:
        return getattr(load("fedres_client"), name)
    raise AttributeError(f"module 'fedres.client' has no attribute {name!r}")

"""Clients of the service.

``Client`` and ``AsyncClient`` ask a service for decisions (``hosted/``). ``DeviceClient`` and ``AsyncDeviceClient``
decide on the device: they keep private features and a model there, and upload residuals only. Of those, ``device.py``
decides and learns, ``syncing.py`` is the protocol with the service, ``store.py`` is the device's SQLite file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedres.loading import load

if TYPE_CHECKING:
    from fedres.client.asynchronous import AsyncDeviceClient
    from fedres.client.device import DeviceDecision, Status
    from fedres.client.hosted.async_client import AsyncClient
    from fedres.client.hosted.client import Client
    from fedres.client.hosted.types import (
        Decision,
        Event,
        Explanation,
        Observed,
        Ranked,
        RankRequest,
        Recommendation,
        RewardStatus,
        ServiceError,
        Slot,
    )
    from fedres.client.privacy import Privacy
    from fedres.client.synchronous import DeviceClient
    from fedres.client.syncing import Synced

_HOME = {
    "AsyncClient": "hosted.async_client",
    "AsyncDeviceClient": "asynchronous",
    "Client": "hosted.client",
    "Decision": "hosted.types",
    "DeviceClient": "synchronous",
    "DeviceDecision": "device",
    "Event": "hosted.types",
    "Explanation": "hosted.types",
    "Observed": "hosted.types",
    "Privacy": "privacy",
    "RankRequest": "hosted.types",
    "Ranked": "hosted.types",
    "Recommendation": "hosted.types",
    "RewardStatus": "hosted.types",
    "ServiceError": "hosted.types",
    "Slot": "hosted.types",
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
    "Observed",
    "Privacy",
    "RankRequest",
    "Ranked",
    "Recommendation",
    "RewardStatus",
    "ServiceError",
    "Slot",
    "Status",
    "Synced",
]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: VW, numba and httpx take a second of processor time."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedres.client' has no attribute {name!r}")
    return getattr(load(f"fedres.client.{_HOME[name]}"), name)

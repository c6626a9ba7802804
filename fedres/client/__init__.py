"""A device that decides by itself: it keeps private features and its own model, and uploads residuals only.

``DeviceClient`` and ``AsyncDeviceClient`` are thin shells with httpx inside; ``device.py`` decides and learns,
``syncing.py`` says what to send and what an answer means, ``store.py`` is the device's SQLite file.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedres.client.asynchronous import AsyncDeviceClient
    from fedres.client.device import Decision, Status
    from fedres.client.privacy import Privacy
    from fedres.client.synchronous import DeviceClient
    from fedres.client.syncing import Synced

_HOME = {
    "AsyncDeviceClient": "asynchronous",
    "Decision": "device",
    "DeviceClient": "synchronous",
    "Privacy": "privacy",
    "Status": "device",
    "Synced": "syncing",
}

__all__ = ["AsyncDeviceClient", "Decision", "DeviceClient", "Privacy", "Status", "Synced"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for: VW, numba and httpx take a second of processor time."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedres.client' has no attribute {name!r}")
    return getattr(import_module(f"fedres.client.{_HOME[name]}"), name)

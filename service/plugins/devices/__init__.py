"""Devices that keep their features: they fetch the shared model, decide locally, and upload residuals or updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.plugins import Core, Plugin

if TYPE_CHECKING:
    from service.http.routes import Route


def _routes(core: Core) -> list[Route]:
    from service.plugins.devices.devices import Devices
    from service.plugins.devices.routes import device_routes

    return device_routes(Devices(core.context), core.limits).all


plugin = Plugin(name="devices", routes=_routes)

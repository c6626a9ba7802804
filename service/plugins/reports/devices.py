"""Devices of a loop, from its log: the time of each one's last upload, and the age of the model it used."""

from __future__ import annotations

from typing import Annotated

import msgspec

from service.hints import about
from service.log.records import RESIDUAL, UPDATE, Entry, decode_update, read_residual
from service.times import DAY, HOUR, iso_time

MOST_LISTED = 100


class SeenDevice(msgspec.Struct):
    """A device that uploaded something, or joined."""

    client: Annotated[str, about("Id of the device.")]
    last: Annotated[str, about("Time of its newest upload, as ISO 8601.")]
    uploads: Annotated[int, about("Number of its uploads.")]
    lag: Annotated[
        int | None,
        about(
            "Records that were logged between the model of its newest upload and that upload; null if it only joined."
        ),
    ]


class DeviceList(msgspec.Struct):
    """The devices that uploaded last, newest first."""

    devices: Annotated[list[SeenDevice], about("The devices, the newest upload first; at most 100.")]


class DeviceSummary(msgspec.Struct):
    """All devices of a loop, up to the last record of its log."""

    devices: Annotated[int, about("Devices that uploaded something or joined.")]
    last_hour: Annotated[int, about("Devices that uploaded in the hour before the last record.")]
    last_day: Annotated[int, about("Devices that uploaded in the day before the last record.")]
    uploads: Annotated[int, about("Uploads of all devices.")]
    median_lag: Annotated[
        int | None,
        about(
            "Median over devices: records between the model of the newest upload and that upload; null if unavailable."
        ),
    ]


class DeviceLog:
    """Collects devices from records of uploads and joins, in order."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int, int | None]] = {}  # time, uploads, lag; the newest device is last

    @property
    def n_devices(self) -> int:
        return len(self._seen)

    def take(self, entry: Entry) -> None:
        if entry.user is None:
            return
        _, n, lag = self._seen.pop(entry.user, (0, 0, None))
        version = _version(entry)
        if version is not None:
            n, lag = n + 1, max(0, entry.position - version)
        self._seen[entry.user] = entry.time, n, lag

    def summary(self, now: int) -> DeviceSummary | None:
        """Return counts, None without devices."""
        seen = [*self._seen.values()]
        lags = sorted(lag for _, _, lag in seen if lag is not None)
        if not seen:
            return None
        return DeviceSummary(
            len(seen),
            sum(time > now - HOUR for time, _, _ in seen),
            sum(time > now - DAY for time, _, _ in seen),
            sum(n for _, n, _ in seen),
            lags[len(lags) // 2] if lags else None,
        )

    def newest(self) -> DeviceList:
        newest = [*reversed(self._seen.items())][:MOST_LISTED]
        return DeviceList([SeenDevice(client, iso_time(time), n, lag) for client, (time, n, lag) in newest])


def _version(entry: Entry) -> int | None:
    """Return the version of the model that an upload was made with."""
    if entry.kind == RESIDUAL and entry.example is not None:
        return read_residual(entry.example).version
    return decode_update(entry.body).version if entry.kind == UPDATE and entry.body else None

"""The report of a loop."""

from __future__ import annotations

import msgspec

from service.plugins.reports.device_figures import DeviceSummary
from service.plugins.reports.drift import Drift
from service.plugins.reports.experiments import LiftReport
from service.plugins.reports.series import Alarm, Delays, Feature, Funnel, Line, PolicyValue, Traffic


class LoopReport(msgspec.Struct):
    """What a loop's log shows, up to a position."""

    position: int
    time: str  # of the last record
    events: int  # finished ones that series and values are about: the newest
    bucket_ends: list[float]  # seconds since 1970
    policy: Line
    control: Line
    uniform: Line  # what uniform picks would have earned until then, by inverse propensity (SNIPS)
    traffic: Traffic
    funnel: Funnel
    delays: Delays
    features: list[Feature]  # the most important first
    drift: Drift | None  # null below 500 events of the policy, or 20 users before or of late
    devices: DeviceSummary | None  # null without any
    lift: LiftReport | None  # null without a control group
    values: list[PolicyValue]  # empty below 100 events whose probabilities are known
    alarms: list[Alarm]
    events_since: str | None = None  # older events were removed from the log; null if none were

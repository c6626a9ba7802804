"""The verdict on a loop: one state, one sentence, and what to do next, by rules that the dashboard's page documents."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

from service.hints import about
from service.plugins.reports.summary import LoopSummary, StandingAlarm
from service.settings import Settings
from service.times import iso_time

State = Literal["held", "alarm", "worse", "unknown", "proven", "learning", "running", "empty"]
STATES: tuple[State, ...] = get_args(State)  # the most urgent first
SMALL_SHARE = 0.05  # of a control group that goes on measuring a policy whose lift is proven

NEXT_STEPS = {
    "guardrail": "Hold the loop, or find out which action harms this outcome.",
    "sample_ratio": "Check that clients send the decisions of both groups; do not trust the lift until then.",
    "collapsed": "Check the rewards of the other actions, and raise the floor if they should be tried more.",
    "drift": "Look at what changed since then: prices, placement, or how rewards are sent.",
    "late_rewards": "Raise wait_time, or send rewards earlier.",
    "unmatched_rewards": "Check the event ids that clients send with rewards.",
}


class Verdict(msgspec.Struct):
    """A judgment on a loop."""

    state: Annotated[State, about("The state of the loop.", "proven")]
    sentence: Annotated[str, about("The state in a sentence.")]
    next_step: Annotated[str, about("What to do next.")]
    since: Annotated[
        str | None,
        about("When the state began, or was noticed first, as ISO 8601; null if unknown.", "2026-11-01T00:00:00+00:00"),
    ] = None


def verdict_of(settings: Settings, decisions: int, summary: LoopSummary | None, error: str | None) -> Verdict:
    """Return the verdict on a loop; without a summary, from what its settings and counts tell."""
    if settings.control.hold:
        since = None if summary is None else summary.held_since
        when = "" if since is None else f" since {since}"
        sentence = f"Held{when}: {settings.control.hold.removesuffix('.')}. The baseline decides for everybody."
        return Verdict("held", sentence, "Read the evidence, mend the cause, then resume.", since)
    if not decisions:
        return Verdict("empty", "No decision yet.", "Send the first decision.")
    if summary is None or error is not None:
        return Verdict("unknown", error or "The report is being computed.", "Wait, or open the loop's page.")
    alarms = [alarm for alarm in summary.alarms if alarm.code != "held"]
    if alarms:
        return _alarmed(alarms)
    return _measured(settings, summary)


def _alarmed(alarms: list[StandingAlarm]) -> Verdict:
    """Return the verdict on a loop with alarms; a broken guardrail comes before all others."""
    worst = min(alarms, key=lambda alarm: alarm.code != "guardrail")
    sentence = f"Do not ship: {worst.message}" if worst.code == "guardrail" else worst.message
    others = len(alarms) - 1
    more = f" And {others} more alarm{'s' if others > 1 else ''}." if others else ""
    since = None if worst.since is None else iso_time(worst.since * 1e6)
    return Verdict("alarm", sentence + more, NEXT_STEPS.get(worst.code, "Open the loop's page."), since)


def _measured(settings: Settings, summary: LoopSummary) -> Verdict:
    """Return the verdict on a loop without alarms: what its control group shows."""
    lift = summary.lift
    if lift is None:
        return Verdict("running", "No control group measures what it earns.", "Start a control group.")
    if lift.absolute is None:
        return Verdict("learning", f"Too early: {lift.missing}.", "Wait, or raise the share of the control group.")
    gain = lift.in_words
    if lift.absolute.high < 0:
        return Verdict(
            "worse", f"Earns less than the control group: {gain}.", "Check rewards and features, or hold it."
        )
    if lift.absolute.low <= 0:
        users = "" if lift.more_users is None else f"; {lift.more_users:,} more users halve the interval"
        return Verdict("learning", f"No difference is proven yet: {gain}.", f"Wait{users}.")
    if settings.control.share > SMALL_SHARE:
        change = f"Lower the control group from {settings.control.share:.0%} to {SMALL_SHARE:.0%} to keep measuring."
        return Verdict("proven", f"Earns more than the control group: {gain}.", change)
    return Verdict("proven", f"Earns more than the control group: {gain}.", "Nothing to do.")

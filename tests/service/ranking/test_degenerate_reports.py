"""Reports on degenerate data are JSON with finite numbers or null, and estimates lie in their intervals."""

import asyncio
import json
import math
from array import array

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import Clock, running
from playing import request

from bandits.evaluation.over_time import snips_by_bucket
from service.outcomes import Guardrail
from service.plugins.reports.lift import Experiment, LiftReport
from service.plugins.reports.reader import _guarded
from service.plugins.reports.report import (
    Drift,
    FinishedDecision,
    LoopReport,
    PolicyValue,
    RewardSeries,
    buckets,
    drift_of,
    reward_series,
    traffic_of,
    values_of,
)
from service.plugins.reports.what_if import WhatIf, what_if
from service.settings import Control, Settings

RANGES = [(0.0, 1.0), (0.0, 1e-9), (-1e9, 1e9), (1e9 - 1, 1e9)]
CHANGES = [
    {"policy": "greedy"},
    {"policy": "squarecb", "gamma": None},
    {"gamma": 1e-300},
    {"gamma": 1e300},
    {"floor": 0.0},
    {"floor": 1.0},
    {"policy": "epsilon-greedy", "epsilon": 0.0},
]


def is_sound(bounds):
    if bounds is not None:
        assert math.isfinite(bounds.value + bounds.low + bounds.high)
        assert bounds.low <= bounds.value <= bounds.high


def again(value, kind):
    """Return a value as its reader gets it."""
    return msgspec.json.decode(msgspec.json.encode(value), type=kind)


@st.composite
def decisions(draw):
    """Return finished decisions of one loop, made of a few kinds of events, and its reward range."""
    span = draw(st.sampled_from(RANGES))
    n = draw(st.sampled_from([0, 1, 99, 100, 130, 520]))
    n_users = draw(st.sampled_from([0, 1, 19, 40]))
    n_actions = draw(st.sampled_from([1, 2, 5]))
    least = draw(st.sampled_from([1e-300, 1e-12, 1e-3, 1 / n_actions]))
    always = draw(st.booleans())  # the likeliest action is taken
    same_time = draw(st.booleans())
    n_kinds = draw(st.integers(1, 4))
    units = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=n_kinds, max_size=n_kinds))
    scores = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 1e9, -1e9]), min_size=n_actions, max_size=n_actions))
    shares = [1 - (n_actions - 1) * least] + [least] * (n_actions - 1)
    events = []
    for k in range(n):
        chosen = 0 if always else k % n_actions
        reward = span[0] + units[k % n_kinds] * (span[1] - span[0])
        events.append(
            FinishedDecision(
                f"e{k}",
                1_700_000_000_000_000 + k * (not same_time),
                f"u{k % n_users}" if n_users else None,
                False,
                f"a{chosen}",
                chosen,
                array("d", shares),
                array("d", scores),
                1,
                k,
                min(max(reward, span[0]), span[1]),
            )
        )
    return events, span


@given(decisions())
@settings(max_examples=60, deadline=None)
def test_all_parts_of_a_report_are_sound(events_and_span):
    events, span = events_and_span
    for value in again(values_of(events, span), list[PolicyValue]):
        is_sound(value.reward)
        is_sound(value.difference)
        assert value.reward is not None or value.warning
    drift = again(drift_of(events), Drift | None)
    for change in () if drift is None else (drift.reward, drift.bias, drift.squared_error):
        is_sound(change.difference)
    ends, bucket = buckets(events)
    json.dumps(ends, allow_nan=False)
    again(traffic_of(events, bucket, len(ends)), dict)
    reward = np.array([event.reward for event in events], float)
    series = reward_series(snips_by_bucket(bucket, reward, np.ones(len(events)), bucket, len(ends)))
    assert again(series, RewardSeries) == series


@given(decisions(), st.sampled_from(["optimistic-squarecb", "squarecb", "greedy", "epsilon-greedy"]))
@settings(max_examples=20, deadline=None)
def test_every_estimate_of_other_settings_is_sound_or_missing(events_and_span, policy):
    events, span = events_and_span
    now = Settings(policy=policy, reward_range=span, default_reward=None)
    estimated = again(what_if(events, {1: now}, now, CHANGES), WhatIf)
    is_sound(estimated.logged)
    assert len(estimated.estimates) == len(CHANGES)
    for estimate in estimated.estimates:
        is_sound(estimate.reward)
        is_sound(estimate.difference)
        assert estimate.reward is not None or estimate.warning


@given(
    st.sampled_from(RANGES),
    st.integers(0, 60),
    st.integers(0, 60),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0.05, 0.95]),
    st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_every_lift_of_two_arms_with_equal_rewards_is_sound(span, n_control, n_treatment, unit0, unit1, share, before):
    low, high = span
    experiment = Experiment()
    if before:
        for k in range(30):
            experiment.add(f"user {k}", {"": low, "clicks": 0.0}, 0.0, 0, False)
    experiment.take_settings(Control(share=share), 5, 1_700_000_000_000_000)
    for is_control, n, unit in ((True, n_control, unit0), (False, n_treatment, unit1)):
        for k in range(n):
            reward = low + unit * (high - low)
            experiment.add(f"user {k}-{is_control}", {"": reward, "clicks": 1e15 * unit}, 0.0, 5, is_control)
    report = again(experiment.report(), LiftReport)
    for lift in (report, *report.outcomes):
        is_sound(lift.absolute)
        is_sound(lift.relative)
    assert (report.absolute is None) == (report.missing is not None)
    assert math.isfinite(report.variance_left)
    for guardrail in (Guardrail(outcome="clicks", rise=0.1), Guardrail(outcome="clicks", fall=0.1)):
        assert len([*_guarded(guardrail, report.outcomes)]) in (0, 1)


@pytest.mark.parametrize("reward", [0.0, 1.0])
@pytest.mark.parametrize("share", [0.5, 0.95])
def test_a_loop_whose_rewards_are_all_equal_has_a_lift_and_a_report(tmp_path, reward, share):
    clock = Clock()

    async def story():
        async with running(tmp_path, clock=clock, control={"share": share}) as engine:
            assert (await engine.lift("default")).absolute is None  # nothing has happened
            for k in range(120):
                result = await engine.rank("default", request(f"u{k % 60}", n_actions=1 + k % 2))
                await engine.reward("default", result.event_id, reward)
            clock.pass_seconds(1_000)
            await engine.settle()
            lift = await engine.lift("default")
            if share == 0.5 and reward:
                assert (lift.absolute.low, lift.absolute.value, lift.absolute.high) == (0, 0, 0)
                assert lift.more_users is None
            report = msgspec.json.decode(await engine.report("default"), type=LoopReport)
            assert report.lift == lift
            await engine.what_if("default", [])
            await engine.personalization("default")

    asyncio.run(story())

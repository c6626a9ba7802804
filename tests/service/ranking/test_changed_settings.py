"""Changes of settings that meet: each is kept or refused, and no change ends a hold that its caller has not seen."""

import asyncio
import tempfile
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import running, tell
from playing import refused

from service.errors import ApiError
from service.learn.loop_state import read_settings_body
from service.log.records import SETTINGS, encode
from service.settings import Settings

HELD = "gone rose"
CHANGES = (  # as admins, guardrails and old forms make them
    {"gamma": 1.0},
    {"gamma": 2.0, "wait_time": 30.0},
    {"floor": 0.02},
    {"annotations": {"a": "b"}},
    {"control": {"share": 0.3}},
    {"control": {"baseline": "uniform", "experiment": "next"}},
    {"control": {"hold": HELD}},
    {"control": {"share": 0.1, "baseline": "first", "experiment": "form", "learn": None, "hold": None}},
    {"control": {"hold": None}},
    {"defences": {"combine": "median"}},
)


class Call(msgspec.Struct, frozen=True):
    """A change, the turn in which it begins, and how old the version is that it names."""

    change: dict
    replaces: bool
    turn: int
    names_version: bool


CALLS = st.lists(
    st.builds(Call, st.sampled_from(CHANGES), st.booleans(), st.integers(0, 12), st.booleans()), min_size=2, max_size=8
)


def changed(before, call):
    """Return what a change makes of settings, field by field: the rule that the service must follow."""
    fields = msgspec.to_builtins(Settings(model=before["model"])) if call.replaces else dict(before)
    for name, value in call.change.items():
        fields[name] = {**fields[name], **value} if name in ("control", "defences") else value
    if call.replaces and "hold" not in call.change.get("control", {}):
        fields["control"] = {**fields["control"], "hold": before["control"]["hold"]}
    control, was = fields["control"], before["control"]
    goes_on = was["share"] > 0 and was["experiment"] == control["experiment"]
    return {**fields, "control": {**control, "by_loop": was["by_loop"] if goes_on else control["share"] > 0}}


async def played(calls, steps):
    """Make the calls while the learner publishes at other moments; return settings before and after, and results."""
    with tempfile.TemporaryDirectory() as folder:
        async with running(Path(folder)) as engine:

            async def until(published, seconds=15.0):
                while not published():
                    await asyncio.sleep(0)

            async def made(call):
                for _ in range(call.turn):
                    await asyncio.sleep(0)
                version = engine.view().settings_version if call.names_version else None
                await asyncio.sleep(0)
                try:
                    change = engine.put_settings if call.replaces else engine.patch_settings
                    return version, await change("default", call.change, version)
                except ApiError as error:
                    return version, (error.status, error.code)

            engine.context.until = until
            first, before = engine.settings("default")
            results = [asyncio.ensure_future(made(call)) for call in calls]
            for pause in steps:
                for _ in range(pause):
                    await asyncio.sleep(0)
                engine.learner.step()
            while not all(result.done() for result in results):
                await asyncio.sleep(0)
                engine.learner.step()
            logged = [entry.position for entry in engine.logged() if entry.kind == SETTINGS]
            assert engine.digest() == engine.rebuilt()
            return first, before, engine.settings("default"), [result.result() for result in results], logged


@settings(max_examples=60, deadline=None)
@given(CALLS, st.lists(st.integers(0, 6), max_size=12))
def test_changes_that_meet_are_as_if_made_one_after_the_other_or_are_refused(calls, steps):
    version, before, (last, after), results, logged = asyncio.run(played(calls, steps))
    accepted = [
        (result, named, call) for call, (named, result) in zip(calls, results, strict=True) if type(result) is int
    ]
    assert sorted(result for result, _, _ in accepted) == logged
    fields = msgspec.to_builtins(before)
    for result, named, call in sorted(accepted, key=lambda each: each[0]):
        assert named in (None, version)
        held = fields["control"]["hold"]
        fields, version = changed(fields, call), result
        assert fields["control"]["hold"] or not held or named is not None  # only who has seen a hold ends it
    assert (last, msgspec.to_builtins(after)) == (version, fields)
    refusals = {result for _, result in results if type(result) is not int}
    assert refusals <= {(412, "settings_changed"), (409, "held")}


def test_a_hold_stays_until_a_change_that_names_the_version_with_it_ends_it(tmp_path):
    async def story(engine, clock):
        await engine.patch_settings("default", {"control": {"share": 0.2}})
        form = msgspec.to_builtins(engine.settings("default")[1])
        old = engine.settings("default")[0]
        held = await engine.patch_settings("default", {"control": {"hold": HELD}})
        for change in (engine.put_settings, engine.patch_settings):
            assert await refused(change("default", form)) == (409, "held")
            assert await refused(change("default", form, old)) == (412, "settings_changed")
            assert await refused(change("default", {"control": {"hold": None}})) == (409, "held")
            await change("default", {"gamma": 5.0})
            await change("default", {"control": {"share": 0.3}})
        assert engine.settings("default")[1].control.hold == HELD
        with pytest.raises(ApiError, match=r'send control.hold null with the header If-Match: "\d+"'):
            await engine.patch_settings("default", {"control": {"hold": None}})
        version, _ = engine.settings("default")
        assert version > held
        await engine.patch_settings("default", {"control": {"hold": None}}, version)
        _, now = engine.settings("default")
        assert (now.control.hold, now.control.share) == (None, 0.3)

    tell(tmp_path, story)


def test_settings_with_a_pinned_model_are_still_read_as_a_uniform_baseline():
    fields = msgspec.to_builtins(Settings())
    old = {**fields, "control": {**fields["control"], "share": 0.5, "baseline": "pinned", "pinned": 17, "learn": False}}
    read = read_settings_body(encode(old))
    assert (read.control.baseline, read.control.share, read.control.learns) == ("uniform", 0.5, False)
    assert read_settings_body(encode({**old, "control": {**old["control"], "learn": None}})).control.learns
    unused = {**fields, "control": {**fields["control"], "pinned": None}}
    assert read_settings_body(encode(unused)) == Settings()
    with pytest.raises(msgspec.ValidationError):
        read_settings_body(encode({**fields, "control": {"unknown": 1}}))
    with pytest.raises(msgspec.ValidationError):
        read_settings_body(b'{"control": 7}')

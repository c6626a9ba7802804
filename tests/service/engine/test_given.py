"""Features of actions that come again and again are in the log once, and everything is as if each decision had them."""

import asyncio
import json
import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from engines import Disk, logged, nowhere, play, rebuilt, refused, running
from hypothesis import given
from hypothesis import strategies as st

from service.engine import Action, RankRequest
from service.engine.deciding import KnownAction, Offer, decide, looked_up
from service.engine.engine import _record
from service.engine.given import GivenFeatures, GivenReader, Recent
from service.engine.slots import PageSlot, SlotsRequest
from service.store import Log, StoreUnavailable, sqlite_file
from service.store.waiting import Awaiting

DOCS = Path(__file__).parents[3] / "docs" / "service.md"
TEA, JUICE, MILK = (Action(name, msgspec.Raw(b'{"kind": "%b"}' % name.encode())) for name in ("tea", "juice", "milk"))


def asked(user, *actions, **more):
    return RankRequest(user=user, actions=list(actions) or [TEA, JUICE], **more)


async def one_by_one(engine, asked, loop="default"):
    await engine.rank(loop, asked)


async def together(engine, asked, loop="default"):
    await engine._models(loop, asked.user)  # else it would have to be awaited
    [written] = engine.decide_at_once(loop, [asked])
    stored = Awaiting()
    engine.store_at_once([written], stored)
    await stored.answer


def of_kind(folder, kind):
    return [entry for entry in logged(folder) if entry.kind == kind]


def body_of(entry):
    return json.loads(entry.body)


def offered(folder):
    """Return the actions of each decision, as the log has them."""
    return [body_of(entry)["actions"] for entry in of_kind(folder, "rank")]


def inline(*actions):
    return [{"id": action.id, "features": json.loads(bytes(action.features))} for action in actions]


def elsewhere(position, *actions):
    return [{"id": action.id, "given": position} for action in actions]


@pytest.mark.parametrize("way", [one_by_one, together])
@pytest.mark.parametrize("kept", [list, Offer])
def test_what_two_users_brought_is_stored_once_and_referred_to(tmp_path, way, kept):
    async def story():
        actions = kept([TEA, JUICE])
        async with running(tmp_path) as engine:
            for user in ("anna", "anna", "ben", "cleo", "anna", None):
                await way(engine, RankRequest(user=user, actions=actions))

    asyncio.run(story())
    [apart] = of_kind(tmp_path, "given")
    assert (apart.loop, apart.event, apart.user) == ("default", None, None)
    assert body_of(apart) == {"given": inline(TEA, JUICE)}
    assert offered(tmp_path) == [inline(TEA, JUICE)] * 3 + [elsewhere(apart.seq, TEA, JUICE)] * 3


def test_requests_of_nobody_are_those_of_one_user(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for user in (None, None, None, "anna"):
                await engine.rank("default", asked(user))
                assert len(of_kind(tmp_path, "given")) == (user == "anna")

    asyncio.run(story())


def test_lists_that_have_actions_in_common_profit_too(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for user, actions in (("anna", [TEA, JUICE]), ("ben", [MILK, TEA]), ("cleo", [JUICE, TEA])):
                await engine.rank("default", asked(user, *actions))
            await engine.rank("default", asked("ben", MILK, TEA, JUICE))

    asyncio.run(story())
    first, second = (entry.seq for entry in of_kind(tmp_path, "given"))
    assert offered(tmp_path)[2] == [*inline(JUICE), *elsewhere(first, TEA)]
    assert offered(tmp_path)[3] == [*inline(MILK), *elsewhere(first, TEA), *elsewhere(second, JUICE)]


def test_a_kept_list_of_one_user_sees_what_others_had_stored(tmp_path):
    async def story():
        own = Offer([TEA, MILK])
        async with running(tmp_path) as engine:
            for user, actions in (("anna", own), ("ben", [TEA]), ("anna", own)):
                await engine.rank("default", RankRequest(user=user, actions=actions))

    asyncio.run(story())
    [apart] = of_kind(tmp_path, "given")
    assert offered(tmp_path)[2] == [*elsewhere(apart.seq, TEA), *inline(MILK)]


def test_short_features_and_those_of_the_catalogue_stay_where_they_are(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            put = await engine.put_actions("default", [TEA])
            for user in ("anna", "ben", "cleo"):
                await engine.rank("default", asked(user, Action("tea"), Action("short", msgspec.Raw(b'{"x":1}')), MILK))
            return put

    put = asyncio.run(story())
    [apart] = of_kind(tmp_path, "given")
    assert body_of(apart)["given"] == inline(MILK)
    registered, short, milk = offered(tmp_path)[2]
    assert (registered, short) == ({"id": "tea", "put": put}, {"id": "short", "features": {"x": 1}})
    assert [milk] == elsewhere(apart.seq, MILK)


def test_features_that_are_refused_are_never_stored(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for user in ("anna", "ben", "cleo"):
                wrong = asked(user, TEA, Action("bad", msgspec.Raw(b'{"x": {"": "no name"}}')))
                assert await refused(engine.rank("default", wrong)) == (422, "invalid_features")
                await engine._models("default", user)
                assert engine.decide_at_once("default", [wrong]) == [None]

    asyncio.run(story())
    assert of_kind(tmp_path, "given") == of_kind(tmp_path, "rank") == []


@pytest.mark.parametrize("kept", [list, Offer])
def test_both_ways_to_decide_write_the_same_references(tmp_path, kept):
    async def story():
        async with running(tmp_path) as engine:
            for user in ("anna", "ben", "cleo"):
                await engine.rank("default", asked(user))
            view = engine.view("default")
            for k, exclude in enumerate(([], ["tea"])):
                both = asked(None, *kept([TEA, MILK, JUICE]), exclude=exclude, event_id=f"e{k}")
                [written] = engine.decide_at_once("default", [both])
                single = decide(both, view, None, engine._preparers[True], engine._given.where)
                assert written.record == _record("default", both, single)
                assert msgspec.json.decode(written.record.body)["actions"][0].keys() == {"id", "given"}

    asyncio.run(story())


def test_what_one_user_alone_brought_is_erased_with_the_user(tmp_path):
    async def story():
        own = Action("own", msgspec.Raw(b'{"secret-taste": 1}'))
        async with running(tmp_path) as engine:
            for user in ("anna", "ben", "anna"):
                await engine.rank("default", asked(user, TEA))
                await engine.rank("default", asked("anna", TEA, own))
            assert await engine.erase_user("default", "anna") == 5
            for file in tmp_path.iterdir():
                assert b"secret-taste" not in file.read_bytes(), file.name
            await engine.rank("default", asked("ben", own))  # the first, as far as anybody knows
            await engine.rank("default", asked("ben", TEA))
            assert engine.digest("default") == rebuilt(tmp_path)

    asyncio.run(story())
    [apart] = of_kind(tmp_path, "given")
    assert body_of(apart) == {"given": inline(TEA)}, "of several users, of whom one is left"
    assert offered(tmp_path)[-1] == elsewhere(apart.seq, TEA)


async def play_all(engine, n=120):
    """Rank and reward with lists of many kinds, some of them referred to; no decision depends on what was learned."""
    await engine.put_settings("default", {"epsilon": 1})
    await engine.put_actions("default", [Action("known", msgspec.Raw(b'{"kind": "known"}'))])
    for k in range(n):
        actions = [TEA, JUICE, MILK, Action("known"), Action(f"own-{k % 7}", msgspec.Raw(b'{"size": %d.5}' % (k % 3)))]
        more = {"exclude": ["tea"] if k % 3 == 0 else [], "context": msgspec.Raw(b'{"hour": %d}' % (k % 4))}
        await engine.rank("default", asked(f"user-{k % 5}", *actions[k % 2 :], event_id=f"e{k}", **more))
        if k % 4:
            await engine.reward("default", f"e{k}", (k % 10) / 10)
    await engine.settle()


def test_models_are_those_of_the_log_after_a_restart_and_from_scratch(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await play_all(engine)
            await play(engine, 60)
            live = engine.digest("default")
            assert live == rebuilt(tmp_path)
        assert any("given" in action for actions in offered(tmp_path) for action in actions)
        async with running(tmp_path) as engine:
            assert engine.digest("default") == live
        (tmp_path / "store.db-models").unlink()
        async with running(tmp_path) as engine:
            assert (engine.digest("default"), engine.status()["rebuilt"]) == (live, 0)

    asyncio.run(story())


def test_models_exports_and_evaluations_are_those_of_features_in_every_record(tmp_path):
    async def story(folder, where):
        folder.mkdir()
        async with running(folder) as engine:
            engine._given.where = where or engine._given.where
            await play_all(engine)
            events = [{**event, "position": 0, "model_version": 0} for event in engine.events("default")]
            return engine.digest("default"), events, await engine.evaluate("default", ["uniform"])

    assert asyncio.run(story(tmp_path / "apart", None)) == asyncio.run(story(tmp_path / "inside", nowhere))
    apart, inside = (Counter(entry.kind for entry in logged(tmp_path / name)) for name in ("apart", "inside"))
    assert apart["given"] > 0
    assert inside["given"] == 0


def test_a_repeated_request_is_told_from_others_wherever_its_features_are(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_actions("default", [TEA, JUICE])
            for user in ("anna", "ben"):
                await engine.rank("default", asked(user))
            answer = await engine.rank("default", asked("cleo", event_id="e"))
            assert await engine.rank("default", asked("cleo", event_id="e")) == answer
            by_id = asked("cleo", Action("tea"), Action("juice"), event_id="e")
            assert await refused(engine.rank("default", by_id)) == (409, "event_exists")
            other = asked("cleo", TEA, Action("juice", msgspec.Raw(b'{"kind": "other"}')), event_id="e")
            assert await refused(engine.rank("default", other)) == (409, "event_exists")
            spaced = asked("cleo", TEA, Action("juice", msgspec.Raw(b'{"kind":"juice"}')), event_id="e")
            assert await refused(engine.rank("default", spaced)) == (409, "event_exists")
            by_id.event_id = "f"
            answer = await engine.rank("default", by_id)
            assert await engine.rank("default", by_id) == answer
            assert await refused(engine.rank("default", asked("cleo", event_id="f"))) == (409, "event_exists")

    asyncio.run(story())
    [put], [apart] = of_kind(tmp_path, "actions"), of_kind(tmp_path, "given")
    assert offered(tmp_path)[2] == elsewhere(apart.seq, TEA, JUICE)
    assert offered(tmp_path)[3] == [{"id": "tea", "put": put.seq}, {"id": "juice", "put": put.seq}]


def test_a_repeated_call_for_slots_is_told_from_others_too(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for user in ("anna", "ben"):
                await engine.rank("default", asked(user, TEA, JUICE, MILK))
            page = [PageSlot(id="top"), PageSlot(id="side")]
            call = SlotsRequest(actions=[TEA, JUICE, MILK], slots=page, user="cleo", event_id="page")
            answer = await engine.rank_slots("default", call)
            assert await engine.rank_slots("default", call) == answer
            call.actions = [TEA, JUICE, Action("milk", msgspec.Raw(b'{"kind": "other"}'))]
            assert await refused(engine.rank_slots("default", call)) == (409, "event_exists")
            await engine.reward("default", "page~2", 1.0)
            await engine.settle()
            assert engine.digest("default") == rebuilt(tmp_path)

    asyncio.run(story())
    [apart] = of_kind(tmp_path, "given")
    assert offered(tmp_path)[2:] == [elsewhere(apart.seq, TEA, JUICE, MILK)] * 2


def test_a_store_that_is_full_has_features_stored_apart_later(tmp_path):
    async def story():
        disk = Disk(tmp_path / "store.db")
        async with running(tmp_path, connect=disk.connect) as engine:
            await engine.rank("default", asked("anna", large))
            disk.fill(True)
            for _ in range(3):
                assert await refused(engine.rank("default", asked("ben", large))) == (503, "store_full")
            disk.fill(False)
            await engine.rank("default", asked("ben", large))
            await engine.rank("default", asked("cleo", large))

    large = Action("large", msgspec.Raw(b'{"_note": "%b"}' % (b"x" * 20_000)))
    asyncio.run(story())
    [apart] = of_kind(tmp_path, "given")
    assert offered(tmp_path) == [inline(large)] * 2 + [elsewhere(apart.seq, large)]


def test_a_decision_does_not_fail_with_the_record_of_features(tmp_path):
    def refuse(record):
        raise StoreUnavailable("overloaded", "10000 records are waiting for the store")

    async def story():
        async with running(tmp_path) as engine:
            engine._given._submit = refuse
            for user in ("anna", "ben", "cleo"):
                await engine.rank("default", asked(user))

    asyncio.run(story())
    assert offered(tmp_path) == [inline(TEA, JUICE)] * 3


@pytest.mark.parametrize("way", [one_by_one, together])
def test_no_reference_leads_into_another_loop_or_one_that_was_deleted(tmp_path, way):
    async def story():
        offer = Offer([TEA, JUICE])
        async with running(tmp_path) as engine:
            for _ in range(2):
                await engine.create_loop("shop")
                for user in ("anna", "ben", "cleo"):
                    for loop in ("default", "shop"):
                        await way(engine, RankRequest(user=user, actions=offer), loop)
                assert engine.digest("shop") == rebuilt(tmp_path, "shop")
                await engine.delete_loop("shop")

    asyncio.run(story())
    everywhere, first, second = of_kind(tmp_path, "given")
    assert [entry.loop for entry in (everywhere, first, second)] == ["default", "shop", "shop"]
    in_shop = [body_of(entry)["actions"] for entry in of_kind(tmp_path, "rank") if entry.loop == "shop"]
    references = [elsewhere(entry.seq, TEA, JUICE) for entry in (first, second)]
    assert in_shop == [*[inline(TEA, JUICE)] * 2, references[0], *[inline(TEA, JUICE)] * 2, references[1]]


def test_a_record_of_a_catalogue_that_repeats_is_a_fraction_of_what_it_was(tmp_path):
    async def story():
        features = [json.dumps({f"feature-{j}": k + j / 7 for j in range(20)}).encode() for k in range(10)]
        actions = [Action(f"action-{k}", msgspec.Raw(features[k])) for k in range(10)]
        async with running(tmp_path) as engine:
            for user in ("anna", "ben", "cleo"):
                await engine.rank("default", asked(user, *actions))

    asyncio.run(story())
    first, _, third = (len(entry.body) for entry in of_kind(tmp_path, "rank"))
    assert first > 5_000
    assert third < 1_000


def test_the_example_in_the_docs_finds_all_features(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            await engine.put_actions("default", [MILK])
            for user in ("anna", "ben", "cleo"):
                own = Action("own", msgspec.Raw(b'{"of": "%b"}' % user.encode()))
                await engine.rank("default", asked(user, TEA, Action("milk"), own, event_id=user))
            return list(engine.events("default"))

    events = asyncio.run(story())
    [example] = re.findall(r"```sql\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    with closing(sqlite3.connect(tmp_path / "store.db")) as tool:
        rows = [(event, action, json.loads(features)) for event, action, features in tool.execute(example)]
    assert rows == [(event["event_id"], a["id"], a["features"]) for event in events for a in event["actions"]]
    assert "given" in offered(tmp_path)[2][0]


def test_what_a_log_does_not_have_is_told(tmp_path):
    async def story():
        async with running(tmp_path) as engine:
            for user in ("anna", "ben"):
                await engine.rank("default", asked(user))

    asyncio.run(story())
    [apart] = of_kind(tmp_path, "given")
    with Log(sqlite_file(tmp_path / "store.db")) as log:
        reader = GivenReader(log)
        assert reader.features(apart.seq, "tea") == bytes(TEA.features)
        with pytest.raises(LookupError, match=f"record {apart.seq} must have the features of 'milk', got others"):
            reader.features(apart.seq, "milk")
        for position in (1, 99):
            with pytest.raises(LookupError, match=f"record {position} must be of features, got none or another"):
                reader.features(position, "tea")


def test_what_was_used_last_is_remembered_up_to_so_many_bytes():
    recent = Recent(20, lambda key, value: 4)
    for key in "abc":
        recent.keep(key, key)  # the third is too many for half of the room
    recent.keep("d", "d")
    assert recent.get("b") == "b"
    recent.keep("b", "B")
    recent.keep("e", "e")
    assert [recent.get(key) for key in "acdbe"] == [None, None, "d", "B", "e"]
    recent.drop(lambda key, value: value in ("d", "B"))
    assert [recent.get(key) for key in "dbe"] == [None, None, "e"]


ACTIONS = [Action(name, msgspec.Raw(b'{"same for all": 1}')) for name in "abcd"]
LISTS = [ACTIONS[:2], ACTIONS[1:], ACTIONS, ACTIONS[3:]]
STEPS = st.one_of(
    st.tuples(st.sampled_from(["anna", "ben", "cleo", None]), st.sampled_from(range(4)), st.sampled_from([1, 2])),
    st.sampled_from(["stored", "failed", "erased"]),
)


@given(st.lists(STEPS, max_size=40), st.booleans(), st.sampled_from([1_000, 10**6]))
def test_references_lead_to_durable_records_of_what_several_users_brought(steps, kept, room):
    events = asyncio.new_event_loop()
    submitted, durable, brought = [], {}, {}

    def submit(record):
        assert all(future.done() for _, future in submitted), "one at a time"
        submitted.append((json.loads(record.body)["given"], events.create_future()))
        return submitted[-1][1]

    memory, known = GivenFeatures(submit, lambda seq: None, room), {one.id: KnownAction.of(one) for one in ACTIONS}
    lists = [Offer.of([known[action.id] for action in one]) if kept else one for one in LISTS]
    for step in steps:
        if step == "erased":
            memory.forget(1, "anna")
            for (since, _), users in brought.items():
                users -= {"anna"} if since == 1 else set()
        elif isinstance(step, str):
            if submitted and not submitted[-1][1].done():
                actions, future = submitted[-1]
                if step == "stored":
                    seq = len(submitted) + 100
                    durable[seq] = {action["id"] for action in actions}
                    future.set_result(seq)
                else:
                    future.set_exception(StoreUnavailable("full", "no room"))
                events.run_until_complete(asyncio.sleep(0))
        else:
            user, number, since = step
            n_before = len(submitted)
            view = SimpleNamespace(since=since, name="shop")
            found = memory.where(lists[number], looked_up(LISTS[number], view), user, view)
            for action, apart in zip(LISTS[number], found or [None] * 4, strict=False):
                assert apart is None or (apart.id == action.id and action.id in durable[apart.given])
                brought.setdefault((since, action.id), set()).add(user)
            for actions, _ in submitted[n_before:]:
                assert all(len(brought[since, action["id"]]) > 1 for action in actions)
    events.close()

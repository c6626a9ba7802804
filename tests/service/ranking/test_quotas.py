"""What callers can grow ends somewhere, and everybody can see where."""

import asyncio

import msgspec
import pytest
from machine import Clock, running
from playing import raw, refused, request

from service.admin.status import MachineStatus
from service.learn.join import LONGEST_DEFERRED, LONGEST_EARLY
from service.plugins.recommend.recommender import Recommender, RecommendRequest
from service.rank import quotas
from service.rank.quotas import Quotas, RewardCounts
from service.rank.requests import Action
from service.rank.rewards import EventReward, Rewards
from service.rank.slots import Slot, SlotsRequest

HOUR = 3_600


def playing(tmp_path, quotas, play, **options):
    async def story():
        async with running(tmp_path, **options) as engine:
            engine.context.quotas = Quotas(**quotas)
            await play(engine)

    asyncio.run(story())


def slots(user):
    return SlotsRequest(user=user, actions=request().actions, slots=[Slot(id="top")])


def test_events_that_wait_for_their_reward(tmp_path):
    async def play(engine):
        first = await engine.rank("default", request())
        await engine.rank("default", request(defer=True))
        await engine.settle()
        code = 429, "too_many_pending_events"
        assert await refused(engine.rank("default", request())) == code
        assert await refused(engine.rank_slots("default", slots("u"))) == code
        [in_batch] = await engine.rank_many("default", [request()])
        assert (in_batch.status, in_batch.code) == code
        await engine.reward("default", first.event_id, 1.0)
        await engine.settle()
        await engine.rank("default", request())

    playing(tmp_path, {"pending_events": 2}, play)


def test_rewards_without_an_event(tmp_path):
    async def play(engine):
        decision = await engine.rank("default", request())
        for k in range(3):
            await engine.reward("default", f"early {k}", 1.0)
            await engine.activate("default", f"early {k}")
        await engine.settle()
        assert engine.view().n_early == 3
        code = 429, "too_many_early_events"
        assert await refused(engine.reward("default", "one more", 1.0)) == code
        assert await refused(engine.activate("default", "one more")) == code
        await engine.reward("default", decision.event_id, 1.0)  # has nothing to do with them
        await engine.rank("default", request(event_id="early 1"))
        await engine.settle()
        assert engine.view().n_early == 2
        await engine.reward("default", "one more", 1.0)

    playing(tmp_path, {"early_events": 3}, play)


def test_rewards_of_one_event(tmp_path):
    async def play(engine):
        decision = await engine.rank("default", request())
        other = await engine.rank("default", request())
        event = decision.event_id
        for k in range(3):
            await engine.reward("default", event, 1.0, f"r{k}")
        code = 429, "too_many_rewards"
        for _ in range(2):  # the second time from memory
            assert await refused(engine.reward("default", event, 1.0, "one more")) == code
            await engine.reward("default", event, 1.0, "r2")  # a repeat is acknowledged, and not stored again
        for _ in range(9):
            await engine.reward("default", other.event_id, 1.0)  # all repeats of one
        stored = [entry.event for entry in engine.logged() if entry.kind == "reward"]
        assert [stored.count(each.event_id) for each in (decision, other)] == [3, 3]

    playing(tmp_path, {"rewards": 3}, play)


def test_rewards_of_one_event_in_batches_count_with_single_ones(tmp_path):
    async def play(engine):
        event = (await engine.rank("default", request())).event_id
        other = (await engine.rank("default", request())).event_id
        await engine.reward("default", event, 1.0, "r0")

        async def batch(*rewards):
            sent = [EventReward(event_id=of, value=1.0, id=name, activate=starts) for of, name, starts in rewards]
            return [getattr(each, "code", "stored") for each in await Rewards(engine.context).store("default", sent)]

        assert await batch((event, "r1", False), (event, "r2", False)) == ["stored"] * 2
        full = [(event, "r3", False), (other, "s0", False), (event, "r1", True), (event, "r4", False)]
        results = ["too_many_rewards", "stored", "stored", "too_many_rewards"]
        for _ in range(2):
            assert await batch(*full) == results
        assert await refused(engine.reward("default", event, 1.0, "r5")) == (429, "too_many_rewards")
        kinds = [(entry.kind, entry.event) for entry in engine.logged() if entry.event == event]
        assert kinds.count(("reward", event)) == 3
        assert kinds.count(("activate", event)) == 2

    playing(tmp_path, {"rewards": 3}, play)


def test_rewards_are_counted_by_the_log_and_not_by_refusals_or_restarts(tmp_path):
    async def play(engine):
        event = (await engine.rank("default", request())).event_id
        counts = engine.context._rewards
        counts.note(engine.view().id, event, 100, (), 1_000)  # as after 100 that were not stored
        for k in range(3):
            await engine.reward("default", event, 1.0, f"r{k}")
        assert await refused(engine.reward("default", event, 1.0, "one more")) == (429, "too_many_rewards")

    playing(tmp_path, {"rewards": 3}, play)


def test_the_events_whose_rewards_are_counted_are_bounded(monkeypatch):
    monkeypatch.setattr(quotas, "COUNTED_EVENTS", 10)
    monkeypatch.setattr(quotas, "FULL_EVENTS", 2)
    counts = RewardCounts()
    assert [counts.add("loop", "often", 1) for _ in range(5)] == [1, 2, 3, 4, 5]
    for k in range(9):
        counts.add("loop", f"e{k}", 1)
        counts.note("loop", f"f{k}", 3, ["a"], 3)
    assert counts.add("loop", "often", 1) == 6  # it was counted among the last 20
    assert len(counts._counts) <= 10
    assert [counts.stored("loop", f"f{k}") for k in (6, 7, 8)] == [None, {"a"}, {"a"}]


def test_bytes_of_events_that_wait_for_their_reward(tmp_path):
    """Their features are kept in memory until then, and a request may have thousands."""
    large = {f"number {k}": k for k in range(1, 900)}

    async def play(engine):
        first = await engine.rank("default", request(context=large, defer=True))
        await engine.settle()
        assert 8 * 899 < engine.view().waiting_bytes < 10_000
        assert await refused(engine.rank("default", request())) == (429, "too_many_pending_bytes")
        await engine.reward("default", first.event_id, 1.0, "kept until then")
        await engine.activate("default", first.event_id)
        await engine.settle()
        assert engine.view().waiting_bytes == 0
        await engine.rank("default", request())

    playing(tmp_path, {"pending_bytes": 5_000}, play)


def test_bytes_of_events_of_all_loops_together(tmp_path):
    async def play(engine):
        await engine.create_loop("other")
        await engine.rank_many("other", [request(), request()])
        await engine.settle()
        # This loop was not published again.
        code = 429, "too_many_all_pending_bytes"
        assert await refused(engine.rank("default", request())) == code
        assert await refused(engine.rank_slots("default", slots("u"))) == code
        recommender = Recommender(engine.context, engine.parts[0])
        assert await refused(recommender.recommend("default", RecommendRequest(n=1))) == code

    playing(tmp_path, {"all_pending_bytes": 1_000}, play)


def test_rewards_are_refused_when_those_of_pending_events_take_too_much(tmp_path):
    async def play(engine):
        await engine.put_settings("default", {"aggregation": "sum"})
        event = (await engine.rank("default", request())).event_id
        for k in range(10):
            await engine.reward("default", event, 0.1, f"reward {k}")
        await engine.settle()
        assert await refused(engine.reward("default", event, 0.1, "one more")) == (429, "too_many_pending_bytes")

    playing(tmp_path, {"pending_bytes": 1_000}, play)


def test_rewards_of_events_that_are_not_decided(tmp_path):
    async def play(engine):
        for k in range(3):
            await engine.reward("default", "early", 1.0, f"reward {k}")
        await engine.settle()
        assert engine.view().n_early_rewards == 3
        assert await refused(engine.reward("default", "early", 1.0, "one more")) == (429, "too_many_early_rewards")
        await engine.rank("default", request(event_id="early"))
        await engine.settle()
        assert engine.view().n_early_rewards == 0
        await engine.reward("default", "other", 1.0)

    playing(tmp_path, {"early_rewards": 3}, play)


def test_bytes_of_the_catalogue(tmp_path):
    """150 actions of 0.95 MB, within a quota of 100,000 actions, took 1.3 GB of the learner and of each ranker."""

    async def play(engine):
        large = raw({"text " + "x" * 500: 1})
        await engine.put_actions("default", [Action("a", large)])
        code = 429, "too_many_catalogue_bytes"
        assert await refused(engine.put_actions("default", [Action("b", large)])) == code
        await engine.put_actions("default", [Action("b", large)], retire=["a"])
        await engine.put_actions("default", [Action("c")])
        engine.context.quotas = Quotas(catalogue_bytes=100)
        await engine.put_actions("default", [Action("b", raw({"text " + "x" * 400: 1}))])  # smaller than it was
        assert await refused(engine.put_actions("default", [Action("b", large)])) == code

    playing(tmp_path, {"catalogue_bytes": 600}, play)


def test_settings_that_events_wait_under(tmp_path):
    async def play(engine):
        await engine.rank("default", request())
        for k in range(3):
            await engine.patch_settings("default", {"gamma": 10.0 + k})
        assert await refused(engine.patch_settings("default", {"gamma": 1.0})) == (429, "too_many_settings")

    playing(tmp_path, {"settings": 4}, play)


def test_users_with_a_model_of_their_own(tmp_path):
    async def play(engine):
        for user in ("a", "b"):
            answer = await engine.rank("default", request(user))
            await engine.reward("default", answer.event_id, 1.0)
        await engine.settle()
        assert engine.view().n_users == 2
        code = 429, "too_many_users"
        assert await refused(engine.rank("default", request("c"))) == code
        assert await refused(engine.rank_slots("default", slots("c"))) == code
        mixed = await engine.rank_many("default", [request("a"), request("c"), request(None)])
        assert [getattr(one, "code", None) for one in mixed] == [None, "too_many_users", None]
        await engine.erase_user("default", "b")
        await engine.settle()
        assert engine.view().n_users == 1
        await engine.rank("default", request("c"))

    playing(tmp_path, {"users": 2}, play, model="adagrad")


def test_users_are_counted_after_a_restart_and_with_a_loop_that_goes(tmp_path):
    async def play(engine):
        answer = await engine.rank("default", request("a"))
        await engine.reward("default", answer.event_id, 1.0)
        await engine.create_loop("shop", {"model": "adagrad"})
        answer = await engine.rank("shop", request("b"))
        await engine.reward("shop", answer.event_id, 1.0)
        await engine.settle()
        before = engine.view("shop").id
        await engine.delete_loop("shop")
        assert engine.learner.personal.n_users[before] == 0

    async def again(engine):
        assert engine.view().n_users == 1

    playing(tmp_path, {}, play, model="adagrad")
    playing(tmp_path, {}, again)


def test_loops_weights_and_actions(tmp_path):
    async def play(engine):
        assert await refused(engine.create_loop("large", {"model": "adagrad", "bits": 20})) == (429, "too_many_weights")
        await engine.create_loop("small", {"model": "adagrad", "bits": 10})
        assert await refused(engine.create_loop("third", {"model": "adagrad", "bits": 10})) == (429, "too_many_loops")
        await engine.put_actions("small", [Action("a"), Action("b")])
        assert await refused(engine.put_actions("small", [Action("c")])) == (429, "too_many_actions")
        await engine.put_actions("small", [Action("c")], retire=["a"])
        await engine.delete_loop("small")
        await engine.create_loop("small", {"model": "adagrad", "bits": 10})

    playing(tmp_path, {"loops": 2, "weights": 2**11, "actions": 2}, play)  # the loop default has no weights


def test_a_deferred_event_that_nobody_activates_is_given_up_and_not_learned_from(tmp_path):
    clock = Clock()

    async def play(engine):
        await engine.rank("default", request(event_id="shown", defer=True))
        await engine.rank("default", request(event_id="hidden", defer=True))
        await engine.reward("default", "hidden", 1.0)
        clock.pass_seconds(LONGEST_DEFERRED / 1e6 - 1)
        await engine.activate("default", "shown")
        await engine.settle()
        assert engine.view().n_waiting == 2
        clock.pass_seconds(2)
        await engine.settle()
        assert engine.view().n_waiting == 1
        await engine.reward("default", "shown", 1.0)
        await engine.activate("default", "hidden")  # too late
        await engine.settle()
        assert engine.view().statistics.settled == 1
        status = {event["event_id"]: event["status"] for event in await engine.events("default")}
        assert status == {"shown": "rewarded", "hidden": "expired"}
        assert engine.digest() == engine.rebuilt()

    playing(tmp_path, {}, play, clock=clock)


def test_a_reward_waits_for_its_event_an_hour_at_most(tmp_path):
    clock = Clock()

    async def play(engine):
        await engine.put_settings("default", {"wait_time": 300 * 24 * HOUR})
        await engine.reward("default", "in time", 1.0)
        await engine.reward("default", "too late", 1.0)
        clock.pass_seconds(LONGEST_EARLY / 1e6 - 1)
        await engine.rank("default", request(event_id="in time"))
        clock.pass_seconds(2)
        await engine.settle()
        assert engine.view().n_early == 0
        assert [one.status for one in await engine.unmatched("default")] == ["unmatched"]
        assert engine.view().statistics.rewarded == 1

    playing(tmp_path, {}, play, clock=clock)


def test_what_is_used_of_the_quotas_is_shown(tmp_path):
    async def play(engine):
        await engine.reward("default", "early", 1.0)
        answer = await engine.rank("default", request("a"))
        await engine.reward("default", answer.event_id, 1.0)
        await engine.rank("default", request("a"))
        await engine.settle()
        shown = await MachineStatus(engine.context, "store.db").status()
        assert shown["quotas"]["users"] == 7
        loop = shown["loops"]["default"]
        assert (loop["users"], loop["early_events"], loop["waiting_events"]) == (1, 1, 1)
        assert msgspec.json.encode(shown["quotas"])

    playing(tmp_path, {"users": 7}, play, model="adagrad")


def test_a_quota_is_a_whole_number():
    with pytest.raises(ValueError, match="users must be"):
        Quotas(users=0)

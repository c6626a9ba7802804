"""The join by itself: times in microseconds, one unit of waiting is 10."""

import gc

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from service.learn import join
from service.learn.join import Decided, Join, Rules
from service.log.records import HashedExample

WAIT = 10
CASE = Decided("u", HashedExample(b"", b"", 0), 1, 0.0)
EARLIEST, SUM = Rules(WAIT, 0.0), Rules(WAIT, 0.0, "sum")


class Play:
    """Feeds a join as the learner does, and notes what is settled."""

    def __init__(self, rules=EARLIEST):
        self.join, self.rules, self.seq, self.settled = Join(), rules, 0, []

    def at(self, time, kind="tick", event="e", *rest):
        self.seq += 1
        self.settled += self.join.expire(time)
        if kind == "rank":
            outcome = self.join.rank(event, self.seq, time, self.rules, CASE, *rest or (False,))
        elif kind == "reward":
            value, key = (*rest, f"={rest[0]!r}")[:2]
            outcome = self.join.reward(event, self.seq, time, value, key, self.rules)
        elif kind == "activate":
            outcome = self.join.activate(event, self.seq, time, self.rules)
        else:
            outcome = None
        self.settled += [] if outcome is None else [outcome]
        return self

    @property
    def rewards(self):
        return [(settled.event, settled.reward) for settled in self.settled]

    @property
    def listed(self):
        return [(entry.event_id, entry.value, entry.why) for entry in self.join.unmatched]


def test_the_earliest_reward_settles_an_event_at_once_and_repeats_change_nothing():
    play = Play().at(0, "rank").at(3, "reward", "e", 0.5).at(4, "reward", "e", 0.5).at(5, "reward", "e", 1.0).at(50)
    assert play.rewards == [("e", 0.5)]
    assert play.settled[0].delay == 3
    assert play.listed == []


def test_rewards_are_summed_until_the_deadline_and_each_id_counts_once():
    play = Play(SUM).at(0, "rank").at(1, "reward", "e", 1.0, "a").at(2, "reward", "e", 1.0, "b")
    play.at(3, "reward", "e", 1.0, "a").at(9, "reward", "e", 0.5)
    assert play.rewards == []
    assert play.at(10).rewards == [("e", 2.5)]


def test_rewards_are_averaged_until_the_deadline():
    play = Play(Rules(WAIT, 0.0, "average")).at(0, "rank").at(1, "reward", "e", 1.0, "a").at(2, "reward", "e", 0.5, "b")
    assert play.rewards == []
    assert play.at(10).rewards == [("e", 0.75)]


def test_the_wait_of_a_deferred_event_may_count_from_its_decision():
    rules = Rules(WAIT, 0.0, from_rank=True)
    play = Play(rules).at(0, "rank", "e", True).at(6, "activate").at(9)
    assert play.rewards == []
    assert play.at(10).rewards == [("e", 0.0)]
    late = Play(rules).at(0, "rank", "e", True).at(3, "reward", "e", 1.0).at(10, "activate").at(50)
    assert late.rewards == [("e", None)]  # nothing is learned
    from_activation = Play().at(0, "rank", "e", True).at(6, "activate").at(15)
    assert from_activation.rewards == []
    assert from_activation.at(16).rewards == [("e", 0.0)]


def test_without_a_reward_the_default_is_learned_when_the_wait_is_over_and_not_before():
    play = Play().at(0, "rank").at(9)
    assert play.rewards == []
    assert play.at(10).rewards == [("e", 0.0)]
    assert play.settled[0].delay is None


def test_a_reward_at_the_deadline_is_late_and_listed_once():
    play = Play().at(0, "rank").at(10, "reward", "e", 1.0).at(11, "reward", "e", 1.0).at(12, "reward", "e", 0.5)
    assert play.rewards == [("e", 0.0)]
    assert play.listed == [("e", 1.0, "late"), ("e", 0.5, "late")]


def test_a_reward_may_come_before_its_event():
    assert Play().at(0, "reward", "e", 1.0).at(5, "rank").rewards == [("e", 1.0)]
    assert Play(SUM).at(0, "reward", "e", 1.0).at(5, "rank").at(6, "reward", "e", 0.5).at(15).rewards == [("e", 1.5)]


def test_a_reward_whose_event_does_not_come_in_time_is_listed_and_does_not_count():
    play = Play().at(0, "reward", "e", 1.0).at(10, "rank").at(20)
    assert play.rewards == [("e", 0.0)]
    assert play.listed == [("e", 1.0, "unmatched")]


def test_a_deferred_event_neither_expires_nor_settles_before_its_activation():
    play = Play().at(0, "rank", "e", True).at(5, "reward", "e", 1.0).at(1_000)
    assert play.rewards == []
    assert play.at(1_001, "activate").rewards == [("e", 1.0)]
    play = Play().at(0, "rank", "e", True).at(1_000, "activate").at(1_005, "activate").at(1_009)
    assert play.rewards == []
    assert play.at(1_010).rewards == [("e", 0.0)]


def test_an_activation_may_come_before_its_event():
    assert Play().at(0, "activate").at(5, "rank", "e", True).at(15).rewards == [("e", 0.0)]


def test_what_expires_together_is_settled_by_deadline_and_then_by_position():
    play = Play().at(0, "rank", "z").at(0, "rank", "a").at(1, "rank", "m").at(99)
    assert [event for event, _ in play.rewards] == ["z", "a", "m"]


def test_the_next_deadline_is_of_an_event_that_still_waits():
    play = Play().at(0, "rank", "a").at(3, "rank", "b").at(4, "reward", "a", 1.0)
    assert play.join.next_deadline() == 13
    assert play.at(5, "reward", "b", 1.0).join.next_deadline() is None


def test_a_user_who_is_forgotten_leaves_nothing():
    play = Play().at(0, "rank", "done").at(1, "reward", "done", 1.0).at(2, "rank", "waits").at(3, "reward", "x", 1.0)
    play.at(12, "reward", "waits", 1.0)
    assert play.join.events_of("u") == {"done", "waits"}
    play.join.forget({"done", "waits", "x", "never heard of"})
    assert play.join.events == {}
    assert play.listed == []
    assert play.join.next_deadline() is None
    assert play.join.n_waiting == 0


def test_only_so_many_finished_events_are_remembered(monkeypatch):
    monkeypatch.setattr(join, "REMEMBERED", 2)
    play = Play()
    for k in range(4):
        play.at(k, "rank", f"e{k}").at(k, "reward", f"e{k}", 1.0)
    assert list(play.join.events) == ["e2", "e3"]


def test_an_event_takes_only_so_many_rewards_and_lists_the_others(monkeypatch):
    monkeypatch.setattr(join, "MOST_REWARDS", 3)
    play = Play(SUM).at(0, "rank")
    for k in range(6):
        play.at(1, "reward", "e", 1.0, f"id {k}")
    play.at(2, "reward", "e", 1.0, "id 0").at(20, "reward", "e", 1.0, "id 9")
    assert play.rewards == [("e", 3.0)]
    assert play.listed == [("e", 1.0, "too many")] * 3 + [("e", 1.0, "late")]
    assert len(play.join.events["e"].reward_hashes) == 8 * 4


def test_an_event_that_is_never_decided_takes_only_so_many_rewards(monkeypatch):
    monkeypatch.setattr(join, "MOST_EARLY", 3)
    play = Play(SUM)
    for k in range(6):
        play.at(k, "reward", "e", 1.0, f"id {k}")
    assert play.at(5, "rank").at(15).rewards == [("e", 3.0)]
    assert [why for _, _, why in play.listed] == ["too many"] * 3


def test_the_oldest_event_that_is_not_finished_is_known_by_its_first_record():
    play = Play().at(0, "rank", "a").at(1, "reward", "early", 1.0).at(2, "rank", "b").at(3, "reward", "a", 1.0)
    assert play.join.oldest() == 2
    assert play.at(4, "rank", "early").join.oldest() == 3
    assert play.at(5, "reward", "b", 1.0).join.oldest() is None


def simply_joined(records, rules, now):
    """Return (settled rewards, list of late and unmatched) of one event, straight from the rules."""
    early, alive, activated, start, waits, settled, listed, keys = [], -1, False, None, False, [], [], set()

    def pass_time(time):
        nonlocal early, alive, activated, start
        if not waits and not settled and alive >= 0 and time >= alive:
            listed.extend((value, "unmatched") for _, value in early)
            early, alive, activated = [], -1, False
            keys.clear()
        if waits and not settled and start is not None and time >= start + rules.wait:
            settled.append(sum(value for _, value in early) if early else rules.default)

    def settle():
        if waits and start is not None and early and rules.aggregation == "earliest" and not settled:
            settled.append(early[0][1])

    for time, kind, *rest in records:
        pass_time(time)
        if kind == "rank":
            waits, start = True, None if rest[0] and not activated else time
        elif kind == "activate" and not activated and not settled and (start is None):
            activated = True
            start, alive = (time, alive) if waits else (None, time + rules.wait)
        elif kind == "reward" and rest[1] not in keys:
            late = settled and time >= start + rules.wait
            if late:
                listed.append((rest[0], "late"))
            if late or not settled:
                keys.add(rest[1])
            if not settled:
                early.append((rest[1], rest[0]))
                alive = max(alive, time + rules.wait)
        settle()
    pass_time(now)
    return settled, listed


class JoinMachine(RuleBasedStateMachine):
    """Events, rewards and activations in any order and at any time, against each event looked at by itself."""

    def __init__(self):
        super().__init__()
        self.play, self.time, self.records = Play(self.rules_of_join), 0, {}

    rules_of_join = EARLIEST

    def log(self, event, kind, *rest):
        self.records.setdefault(event, []).append((self.time, kind, *rest))
        self.play.at(self.time, kind, event, *rest)

    @rule(steps=st.integers(0, 7))
    def time_passes(self, steps):
        self.time += steps
        self.play.at(self.time)

    @rule(event=st.sampled_from("abc"), deferred=st.booleans())
    def rank(self, event, deferred):
        if not any(kind == "rank" for _, kind, *_ in self.records.get(event, [])):  # the store takes one rank an event
            self.log(event, "rank", deferred)

    @rule(event=st.sampled_from("abc"), value=st.sampled_from([0.25, 1.0]), key=st.sampled_from("xyz"))
    def reward(self, event, value, key):
        self.log(event, "reward", value, key)

    @rule(event=st.sampled_from("abc"))
    def activate(self, event):
        self.log(event, "activate")

    @invariant()
    def every_event_is_as_if_alone(self):
        for event, records in self.records.items():
            settled, listed = simply_joined(records, self.rules_of_join, self.time)
            assert [reward for name, reward in self.play.rewards if name == event] == settled
            assert [(value, why) for name, value, why in self.play.listed if name == event] == listed
        ranked = sum(kind == "rank" for records in self.records.values() for _, kind, *_ in records)
        assert self.play.join.n_waiting == ranked - len(self.play.rewards)


class SumMachine(JoinMachine):
    rules_of_join = SUM


@pytest.mark.parametrize("machine", [JoinMachine, SumMachine])
def test_any_history_is_joined_as_the_rules_say(machine):
    test = machine.TestCase
    test.settings = settings(max_examples=60, stateful_step_count=30)
    test("runTest").runTest()


def test_events_that_wait_are_nothing_to_the_garbage_collector():
    """A full collection would stop every request for as long as it looks at them."""
    join = Join()
    gc.collect()
    before = len(gc.get_objects())
    for k in range(2_000):
        join.rank(f"e{k}", k, k, EARLIEST, CASE, False)
    gc.collect()
    assert len(gc.get_objects()) - before < 200


def test_a_finished_event_keeps_hashes_of_its_rewards_and_100_late_ones():
    play = Play().at(0, "rank").at(1, "reward", "e", 0.5, "first")
    for k in range(300):
        play.at(20 + k, "reward", "e", 1.0, f"late {k}")
    for key in ("first", "late 0", "late 99"):
        play.at(400, "reward", "e", 1.0, key)
    assert [why for _, _, why in play.listed] == ["late"] * 100 + ["too many"] * 200
    assert len(play.join.events["e"].reward_hashes) == 8 * 101


def test_an_event_that_is_not_decided_keeps_100_rewards():
    play = Play(SUM)
    for k in range(150):
        play.at(0, "reward", "e", 1.0, f"early {k}")
    assert play.join.n_early_rewards == 100
    play.at(1, "rank").at(2, "reward", "e", 1.0, "another").at(11)
    assert play.rewards == [("e", 101.0)]
    assert play.join.n_early_rewards == play.join.n_bytes == 0


def test_the_rewards_of_finished_events_that_are_known_are_bounded_in_all(monkeypatch):
    monkeypatch.setattr(join, "MOST_KNOWN", 10)
    play = Play()
    for k in range(30):
        play.at(20 * k, "rank", f"e{k}").at(20 * k + 1, "reward", f"e{k}", 1.0)
    assert len(play.join.events) == 10


def test_the_bytes_of_events_that_wait_are_counted():
    play = Play(SUM).at(0, "rank").at(1, "reward", "e", 1.0, "a").at(1, "rank", "deferred", True)
    assert play.join.n_bytes == 2 * 600 + len("e" + "deferred") + 200 + len("a")
    play.join.forget({"deferred"})
    assert play.join.n_bytes == 600 + 1 + 201
    assert play.at(10).join.n_bytes == 0

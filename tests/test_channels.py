from __future__ import annotations

import doctest
from collections import Counter
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedres.channels
from fedres.channels import (
    Channel,
    Faults,
    Fixed,
    Geometric,
    Recorded,
    Uniform,
    group_by_delay,
)

LONGEST = 9
delay_lists = st.lists(st.integers(0, LONGEST), min_size=1)
chances = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])
seeds = st.integers(0, 2**32 - 1)


def arrivals_of(channel: Channel[int], n_messages: int) -> list[tuple[int, int]]:
    """Send message t in round t, receive in every round, and return (message, round of arrival)."""
    for t in range(n_messages):
        channel.send(t, now=t)
    return [(message, now) for now in range(n_messages + LONGEST + 1) for message in channel.receive(now)]


def faulty(seed: int, **chance: float) -> Faults:
    return Faults(rng=np.random.default_rng(seed), **chance)


@given(delay_lists)
def test_without_faults_every_message_arrives_once_and_on_time(delays):
    channel = Channel(iter(delays).__next__)
    arrivals = arrivals_of(channel, len(delays))
    assert sorted(arrivals) == [(t, t + delay) for t, delay in enumerate(delays)]
    assert (len(channel), channel.sent, channel.lost, channel.duplicated) == (0, len(delays), 0, 0)


@given(delay_lists)
def test_in_order_each_message_arrives_with_the_latest_of_it_and_those_before(delays):
    own_times = [t + delay for t, delay in enumerate(delays)]
    arrivals = arrivals_of(Channel(Recorded(delays), in_order=True), len(delays))
    assert arrivals == list(enumerate(np.maximum.accumulate(own_times)))


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, LONGEST))))
def test_late_and_repeated_polling_gives_all_that_is_due_in_order_of_arrival_then_sending(steps):
    delays = [delay for _, delay in steps if delay is not None]
    channel, waiting, number, now = Channel(iter(delays).__next__), [], count(), 0
    for wait, delay in steps:  # a delay is a message to send, None a poll
        now += wait
        if delay is None:
            due = sorted(pair for pair in waiting if pair[0] <= now)
            assert channel.receive(now) == [message for _, message in due]
            waiting = [pair for pair in waiting if pair[0] > now]
        else:
            waiting.append((now + delay, message := next(number)))
            channel.send(message, now)
        assert len(channel) == len(waiting)


@given(delay_lists, chances, chances, st.booleans(), seeds)
def test_with_any_faults_no_message_is_early_or_comes_more_than_twice(delays, loss, twice, in_order, seed):
    faults = faulty(seed, loss=loss, duplication=twice)
    channel = Channel(lambda: delays[t], in_order=in_order, faults=faults)  # a copy is as slow as its message
    for t in range(len(delays)):
        channel.send(t, now=t)
    arrivals = [(m, now) for now in range(len(delays) + LONGEST + 1) for m in channel.receive(now)]
    messages = Counter(message for message, _ in arrivals)
    assert all(now >= message + delays[message] for message, now in arrivals)
    assert all(times <= 2 for times in messages.values())
    if in_order:
        assert [message for message, _ in arrivals] == sorted(messages.elements())


@given(delay_lists, chances, chances, st.integers(0, 20), seeds)
def test_delivered_lost_and_travelling_messages_are_those_sent_and_their_copies(delays, loss, duplication, until, seed):
    channel = Channel(Recorded(delays), faults=faulty(seed, loss=loss, duplication=duplication))
    for t in range(len(delays)):
        channel.send(t, now=0)
    delivered = channel.receive(until)
    copies = sum(times - 1 for times in Counter(delivered).values())
    assert channel.sent == len(delays)
    assert len(delivered) + channel.lost + len(channel) == channel.sent + channel.duplicated
    assert copies <= channel.duplicated <= channel.sent - channel.lost


@given(delay_lists, st.booleans(), chances, seeds)
def test_certain_loss_loses_everything(delays, in_order, duplication, seed):
    faults = faulty(seed, loss=1, duplication=duplication)
    channel = Channel(Recorded(delays), in_order=in_order, faults=faults)
    assert arrivals_of(channel, len(delays)) == []
    assert (channel.lost, channel.duplicated, len(channel)) == (len(delays), 0, 0)


@given(st.lists(st.tuples(st.integers(0, LONGEST), st.integers(0, LONGEST)), min_size=1), seeds)
def test_certain_duplication_brings_two_of_each_with_a_delay_of_their_own(pairs, seed):
    delays = [delay for pair in pairs for delay in pair]
    channel = Channel(Recorded(delays), faults=faulty(seed, duplication=1))
    expected = [(t, t + delay) for t, pair in enumerate(pairs) for delay in pair]
    assert sorted(arrivals_of(channel, len(pairs))) == sorted(expected)
    assert channel.duplicated == len(pairs)


@given(delay_lists, chances, seeds)
def test_what_is_not_lost_keeps_its_own_place_in_a_recording(delays, loss, seed):
    channel = Channel(Recorded(delays), faults=faulty(seed, loss=loss))
    arrivals = arrivals_of(channel, 2 * len(delays))
    assert all(now == t + delays[t % len(delays)] for t, now in arrivals)
    assert len(arrivals) == channel.sent - channel.lost


@given(chances, seeds)
def test_the_chance_of_loss_does_not_change_which_messages_are_duplicated(loss, seed):
    without, some = faulty(seed, duplication=0.5), faulty(seed, loss=loss, duplication=0.5)
    pairs = [(without.copies(), some.copies()) for _ in range(20)]
    assert all(lossy in (0, free) for free, lossy in pairs)


@given(delay_lists, chances, seeds)
def test_in_order_a_lost_message_holds_nobody_up(delays, loss, seed):
    channel = Channel(Recorded(delays), in_order=True, faults=faulty(seed, loss=loss))
    arrivals = arrivals_of(channel, len(delays))
    own_times = [message + delays[message] for message, _ in arrivals]
    assert [now for _, now in arrivals] == [max(own_times[: n + 1]) for n in range(len(own_times))]


def test_a_zero_delay_is_as_good_as_no_channel():
    channel = Channel(Fixed(0))
    for t in range(1, 5):
        channel.send(t, now=t)
        assert channel.receive(t) == [t]
        assert channel.receive(t) == []


def test_messages_are_handed_over_as_they_are_and_never_compared():
    first, second = np.zeros(2), np.ones(2)
    channel = Channel(Fixed(3), faults=faulty(0, duplication=1))
    channel.send(first, now=0)
    channel.send(second, now=0)
    received = channel.receive(3)
    assert [message is first for message in received] == [True, True, False, False]
    assert received[2] is received[3] is second


@pytest.mark.parametrize("uplink_delay", [0, 3])
@pytest.mark.parametrize("downlink_delay", [0, 2])
def test_two_channels_answer_one_round_trip_and_the_hosts_one_round_later(uplink_delay, downlink_delay):
    uplink, downlink = Channel(Fixed(uplink_delay)), Channel(Fixed(downlink_delay))
    answered = {}
    for t in range(1, 20):
        answered |= dict.fromkeys(downlink.receive(t), t)
        uplink.send(t, now=t)
        for message in uplink.receive(t):
            downlink.send(message, now=t + 1)  # used from round t+1+β on
    assert answered == {t: t + 1 + uplink_delay + downlink_delay for t in range(1, len(answered) + 1)}
    assert len(answered) == 19 - 1 - uplink_delay - downlink_delay


def send(channel: Channel[str], now: int) -> None:
    channel.send("message", now)


@pytest.mark.parametrize(("before", "act"), [(send, send), (Channel.receive, send), (Channel.receive,) * 2])
def test_time_does_not_go_back(before, act):
    channel = Channel(Fixed(0))
    before(channel, 5)
    with pytest.raises(ValueError, match="now must be at least 5, the latest round so far, got 4"):
        act(channel, 4)
    act(channel, 5)


def test_a_sender_may_be_ahead_of_its_receiver():
    channel = Channel(Fixed(0))
    channel.send("early", now=5)
    assert channel.receive(4) == []
    with pytest.raises(ValueError, match="now must be at least 5"):
        channel.send("back", now=4)
    assert channel.receive(5) == ["early"]


@pytest.mark.parametrize("delay", [-1, 0.5, 2.0, None, True])
def test_a_delay_that_is_not_a_whole_number_of_rounds_is_refused_and_nothing_is_sent(delay):
    channel = Channel(lambda: delay)
    with pytest.raises(ValueError, match=f"delay must be an integer of at least 0, got {delay}"):
        channel.send("message", now=1)
    assert (len(channel), channel.sent) == (0, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rng: Fixed(-1), "rounds must be an integer of at least 0, got -1"),
        (lambda rng: Fixed(1.5), "rounds must be an integer of at least 0, got 1.5"),
        (lambda rng: Uniform(-2, 3, rng), "low must be an integer of at least 0, got -2"),
        (lambda rng: Uniform(4, 3, rng), "high must be an integer of at least 4, got 3"),
        (lambda rng: Geometric(-0.5, rng), "mean must be at least 0 and finite, got -0.5"),
        (lambda rng: Geometric(np.inf, rng), "mean must be at least 0 and finite, got inf"),
        (lambda rng: Recorded([]), "rounds must hold at least one delay, got none"),
        (lambda rng: Recorded([1, -3]), "rounds must be an integer of at least 0, got -3"),
        (lambda rng: Faults(loss=1.2, rng=rng), r"loss must be in \[0, 1\], got 1.2"),
        (lambda rng: Faults(duplication=np.nan, rng=rng), r"duplication must be in \[0, 1\], got nan"),
        (lambda rng: group_by_delay([0], [-1]), "downlink_delays must be an integer of at least 0, got -1"),
        (
            lambda rng: group_by_delay([0, 1], [0]),
            r"downlink_delays must be as many as uplink_delays \(2\), got 1",
        ),
    ],
)
def test_errors_name_the_argument_the_rule_and_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make(np.random.default_rng(0))


def test_a_recording_repeats_from_its_start():
    recorded = Recorded(np.array([3, 0, 1]))
    assert [recorded() for _ in range(7)] == [3, 0, 1, 3, 0, 1, 3]


def test_the_generator_alone_decides_random_delays():
    first, second = (Geometric(5, np.random.default_rng(7)) for _ in range(2))
    assert [first() for _ in range(50)] == [second() for _ in range(50)]


def near(chance: float, n: int) -> object:
    """A share of n draws that all but one seed in a million come to: five standard deviations."""
    return pytest.approx(chance, abs=5 * np.sqrt(chance * (1 - chance) / n))


def test_uniform_delays_are_equally_likely_from_low_to_high():
    n, delay = 10_000, Uniform(2, 5, np.random.default_rng(1))
    shares = np.bincount([delay() for _ in range(n)]) / n
    assert shares.tolist() == [0, 0, *[near(1 / 4, n)] * 4]


def test_geometric_delays_start_at_zero_and_have_their_mean():
    n, mean, delay = 10_000, 4, Geometric(4, np.random.default_rng(2))
    delays = np.array([delay() for _ in range(n)])
    assert np.mean(delays == 0) == near(1 / (1 + mean), n)
    assert np.mean(delays == 1) == near(mean / (1 + mean) ** 2, n)
    assert delays.mean() == pytest.approx(mean, abs=5 * np.sqrt(mean * (1 + mean) / n))
    assert {Geometric(0, np.random.default_rng(2))() for _ in range(100)} == {0}


def test_losses_and_copies_come_as_often_as_asked():
    n, channel = 10_000, Channel(Fixed(0), faults=faulty(3, loss=0.3, duplication=0.2))
    for t in range(n):
        channel.send(t, now=t)
    assert channel.lost / n == near(0.3, n)
    assert channel.duplicated / (n - channel.lost) == near(0.2, n - channel.lost)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))))
def test_groups_hold_every_client_once_beside_those_with_its_delays(delays):
    groups = group_by_delay([up for up, _ in delays], [down for _, down in delays])
    delays_of = {client: (up, down) for who, up, down in groups for client in who.tolist()}
    assert delays_of == dict(enumerate(delays))
    assert sum(len(who) for who, _, _ in groups) == len(delays)
    assert [(up, down) for _, up, down in groups] == list(dict.fromkeys(delays))


def test_groups_come_in_order_of_their_first_clients():
    groups = group_by_delay(np.array([5, 0, 5, 5]), np.array([1, 0, 1, 2]))
    assert [(g.who.tolist(), g.uplink_delay, g.downlink_delay) for g in groups] == [
        ([0, 2], 5, 1),
        ([1], 0, 0),
        ([3], 5, 2),
    ]
    assert all(np.issubdtype(g.who.dtype, np.integer) for g in groups)


def test_the_example_in_the_documentation_runs():
    assert doctest.testmod(fedres.channels) == (0, 3)

"""The defences of a loop's shared model: what is usual is left alone, what is not is bounded, the state stays small."""

import copy

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.models.guard import MOST_CLIENTS, TURNS, ClientWindow, Defences, Guard, WindowSummary, combine

OFF = Defences(max_norm=None, client_share=None, client_pull=None)
ONE = np.ones(4, dtype=np.float32)

uploads = st.lists(
    st.tuples(st.sampled_from("abcde"), st.floats(-1e30, 1e30), st.floats(-2, 2)), min_size=1, max_size=60
)


def residual(guard, client, values=ONE, error=1.0, defences=None):
    return guard.weigh(client, values, defences or Defences(), lambda clipped: error)


def crowd(guard, n=20, turns=TURNS, error=1.0, scale=1.0):
    """Let n alike clients send as much as makes a window."""
    return [residual(guard, f"honest {i}", ONE * np.float32(scale), error) for _ in range(turns) for i in range(n)]


@settings(max_examples=100)
@given(uploads)
def test_without_defences_nothing_is_changed(sent):
    guard = Guard()
    for client, scale, error in sent:
        values = ONE * np.float32(scale)
        clipped, weight = residual(guard, client, values, error, OFF)
        assert clipped is values
        assert weight == 1
        assert guard.clip(client, values, OFF, 100) is values


def test_clients_that_are_alike_are_left_alone():
    guard = Guard()
    for error in (2.0, 1.0, 0.5):
        for values, weight in crowd(guard, error=error):
            assert np.array_equal(values, ONE)
            assert weight == pytest.approx(1)


def test_a_client_alone_is_left_alone_whatever_it_does():
    guard, rng = Guard(), np.random.default_rng(0)
    for _ in range(100):
        assert residual(guard, "only", error=rng.normal())[1] == 1


@settings(max_examples=100)
@given(uploads)
def test_weights_and_values_stay_bounded_and_finite(sent):
    guard = Guard()
    for client, scale, error in sent:
        values = ONE * np.float32(scale)
        clipped, weight = residual(guard, client, values, error)
        assert 0 <= weight <= 1
        assert clipped.dtype == np.float32
        assert np.isfinite(clipped).all()
        assert np.linalg.norm(clipped.astype(float)) <= np.linalg.norm(values.astype(float)) * (1 + 1e-6)


@settings(max_examples=100)
@given(uploads)
def test_the_state_is_plain_data_and_goes_on_as_if_it_had_never_been_written(sent):
    guard = Guard()
    for client, scale, error in sent:
        for read in (msgspec.msgpack, msgspec.json):
            twin = read.decode(read.encode(guard), type=Guard)
            assert twin == guard
        expected = residual(twin, client, ONE * np.float32(scale), error)
        guarded = residual(guard, client, ONE * np.float32(scale), error)
        assert np.array_equal(guarded[0], expected[0])
        assert guarded[1] == expected[1]
        assert twin == guard


def test_a_new_guard_shares_nothing_with_another():
    residual(Guard(), "a")
    assert Guard() == Guard(sent={}, learned=0, before=WindowSummary())


def test_features_are_scaled_down_to_twice_the_norm_that_most_keep():
    guard = Guard()
    crowd(guard)  # of norm 2
    values, _ = residual(guard, "huge", ONE * np.float32(1e30))
    np.testing.assert_allclose(values, 2 * ONE, rtol=1e-6)
    large = ONE * np.float32(1.9)
    assert residual(guard, "large", large)[0] is large


def test_a_quarter_of_huge_clients_does_not_move_what_is_usual():
    guard = Guard()
    for _ in range(5 * TURNS):
        for i in range(20):
            residual(guard, f"{i}", ONE * np.float32(1e15 if i < 5 else 1))
    assert guard.before.norm == 2
    assert guard.before.pull == pytest.approx(TURNS * np.sqrt(5), rel=1e-6)


def test_a_flood_is_learned_from_up_to_about_twice_the_mean():
    guard = Guard()
    crowd(guard, error=0.0)
    learned = 0
    for _ in range(10 * TURNS):
        learned += sum(residual(guard, "flood", error=0.0)[1] > 0 for _ in range(50))
        crowd(guard, turns=1, error=0.0)
    assert 10 * TURNS < learned <= 2.5 * 10 * TURNS


def test_a_flood_does_not_end_windows_early():
    guard = Guard()
    crowd(guard)
    for _ in range(600):
        residual(guard, "flood")
    assert guard.learned == guard.sent["flood"].uploads == 2 * TURNS + 1


def test_a_client_that_is_left_alone_is_learned_from_again_after_a_while():
    guard = Guard()
    crowd(guard)
    assert sum(residual(guard, "last")[1] for _ in range(600)) < 20
    for _ in range(2000):
        residual(guard, "last")
    assert all(residual(guard, "last")[1] == 1 for _ in range(100))


def test_a_client_whose_error_stays_large_pulls_no_more_than_others():
    guard = Guard()
    crowd(guard, error=0.1)
    honest = TURNS * 0.1 * np.sqrt(5)
    pulled = sum(residual(guard, "hostile", error=2.0)[1] * 2.0 * np.sqrt(5) for _ in range(TURNS))
    assert pulled == pytest.approx(Defences().client_pull * honest, rel=1e-6)


def test_hostile_clients_that_come_first_in_a_window_do_not_pass_for_the_majority():
    guard = Guard()
    crowd(guard, error=0.0)
    assert [residual(guard, f"hostile {i}", error=2.0)[1] for i in range(5)] == [0] * 5


def test_all_clients_may_pull_as_much_as_they_like_together():
    """After a change of the world the budget of the window before is too small: the present one counts as well."""
    guard = Guard()
    crowd(guard, error=0.0)
    assert np.mean([weight for _, weight in crowd(guard, error=1.0)]) > 0.3
    assert all(weight == pytest.approx(1) for _, weight in crowd(guard, error=1.0))


@pytest.mark.parametrize("error", [np.inf, -np.inf, np.nan])
def test_an_error_that_is_no_number_is_not_learned_from_and_not_remembered(error):
    guard = Guard()
    assert residual(guard, "a", error=error)[1] == 0
    assert guard.sent["a"].pull == 0


def test_the_state_stays_small_however_many_clients_come():
    guard = Guard()
    for i in range(3 * MOST_CLIENTS):
        residual(guard, f"{i}")
        assert len(guard.sent) < MOST_CLIENTS
    assert len(msgspec.msgpack.encode(guard)) < 100_000


def test_a_forgotten_client_leaves_no_trace_in_the_window():
    guard = Guard()
    residual(guard, "a")
    without = copy.deepcopy(guard)
    residual(guard, "b")
    guard.forget("b")
    guard.forget("unknown")
    assert guard == without


def test_updates_are_clipped_by_norm_and_pull_and_dropped_beyond():
    guard, defences = Guard(), Defences()
    for _ in range(TURNS):
        for i in range(20):
            assert np.array_equal(guard.clip(f"{i}", ONE.astype(float), defences), ONE)
    clipped = []
    for _ in range(TURNS - 1):
        clipped.append(guard.clip("hostile", -1e20 * ONE.astype(float), defences))
        for i in range(20):
            guard.clip(f"{i}", 0 * ONE, defences)
    np.testing.assert_allclose(clipped[:4], [-2 * ONE] * 4)  # norm 4 each, of a budget of 8 · 2
    assert clipped[4:] == [None] * 3


def test_a_huge_update_that_comes_second_is_clipped_already():
    guard = Guard()
    guard.clip("honest", ONE, Defences())
    np.testing.assert_allclose(guard.clip("hostile", 1e20 * ONE, Defences(client_pull=None)), 2 * ONE, rtol=1e-6)


def test_a_flood_of_updates_is_held_to_its_share_at_all_times():
    guard = Guard(before=WindowSummary(20, 8.0, 2.0, 16.0))
    assert sum(guard.clip("flood", 0 * ONE, OFF) is not None for _ in range(7)) == 7
    guard = Guard(
        sent={f"{i}": ClientWindow(1) for i in range(20)}, learned=20, before=WindowSummary(20, 8.0, 2.0, 16.0)
    )
    assert sum(guard.clip("0", 0 * ONE, Defences()) is not None for _ in range(30)) == 3


@pytest.mark.parametrize("joined", [1, 2, 3])
def test_one_of_up_to_three_clients_is_learned_from_at_once_and_always(joined):
    guard = Guard()
    assert all(guard.clip("first", ONE, Defences(), joined) is ONE for _ in range(200))


@pytest.mark.parametrize("joined", [4, 5, 20, 100])
def test_updates_are_learned_from_when_half_of_the_clients_that_joined_were_heard(joined):
    guard = Guard()
    clipped = [guard.clip(f"{i}", ONE, Defences(client_pull=None), joined) for i in range(joined)]
    assert [vector is not None for vector in clipped] == [i >= joined // 2 - 1 for i in range(joined)]


def test_half_of_the_clients_that_joined_are_learned_from_as_if_they_were_all():
    guard = Guard()
    clipped = [guard.clip(f"{i}", ONE, Defences(), 40) for _ in range(5 * TURNS) for i in range(20)]
    assert clipped[:19] == [None] * 19
    assert all(vector is ONE for vector in clipped[19:])


@pytest.mark.parametrize("n_each", [1, 10, 30])
def test_a_flood_of_huge_updates_before_all_others_passes_for_no_more_than_usual_ones(n_each):
    guard, sums = Guard(), {"hostile": 0.0, "honest": 0.0}
    senders = ["hostile"] * 20 * n_each + ["honest"] * 80
    for k, who in enumerate(senders * 2 * TURNS):
        client = f"{who} {k % len(senders) % 20 if who == 'hostile' else k % len(senders)}"
        taken = guard.clip(client, ONE * np.float32(-1e15 if who == "hostile" else 1), Defences(), 100)
        norm = 0.0 if taken is None else float(np.linalg.norm(taken))
        assert norm <= 4.001
        sums[who] += norm
    assert sums["hostile"] <= 0.3 * sums["honest"]
    assert sums["honest"] > 0.9 * 2 * TURNS * 80 * 2


def test_clients_that_joined_and_never_come_are_not_waited_for_without_end():
    guard = Guard()
    clipped = [guard.clip("only", ONE, Defences(), 10) for _ in range(1000)]
    assert clipped[:200] == [None] * 200
    assert all(vector is ONE for vector in clipped[-100:])


def test_more_clients_than_are_remembered_are_not_all_waited_for():
    guard = Guard()
    clipped = [guard.clip(f"{i}", ONE, Defences(), 10**6) for i in range(MOST_CLIENTS)]
    assert clipped[MOST_CLIENTS // 2 - 2] is None
    assert clipped[-1] is ONE


def test_the_trimmed_mean_is_that_of_the_middle_half():
    vectors = [np.array([x, -x]) for x in (1e9, 1.0, 2.0, -1e9)]
    np.testing.assert_array_equal(combine(vectors, "trimmed-mean"), [1.5, -1.5])
    np.testing.assert_array_equal(combine(vectors, "median"), [1.5, -1.5])
    np.testing.assert_array_equal(combine(vectors[1:3], "mean"), [1.5, -1.5])


@settings(max_examples=100)
@given(st.lists(st.floats(-1, 1), min_size=5, max_size=30), st.sampled_from(["trimmed-mean", "median"]), st.data())
def test_a_quarter_of_hostile_vectors_leaves_the_combination_among_the_honest(honest, how, data):
    n_hostile = len(honest) // 4
    hostile = data.draw(st.lists(st.floats(-1e30, 1e30), min_size=n_hostile, max_size=n_hostile))
    (combined,) = combine([np.array([x]) for x in honest + hostile], how)
    assert min(honest) - 1e-12 <= combined <= max(honest) + 1e-12


@settings(max_examples=100)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9), st.sampled_from(["mean", "trimmed-mean", "median"]))
def test_the_order_of_vectors_hardly_matters_and_equal_ones_combine_to_themselves(numbers, how):
    vectors = [np.array([x]) for x in numbers]
    np.testing.assert_allclose(combine(vectors, how), combine(vectors[::-1], how), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(combine([vectors[0]] * 5, how), vectors[0])


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="combine must be one of mean, median, trimmed-mean, got 'mode'"):
        combine([ONE], "mode")
    with pytest.raises(ValueError, match="vectors must hold at least one"):
        combine([], "mean")
    with pytest.raises(ValueError, match=r"client_share must be None or in \[1, 1e6\], got 0.5"):
        Defences(client_share=0.5)
    with pytest.raises(msgspec.ValidationError, match="max_norm must be None or in"):
        msgspec.convert({"max_norm": float("nan")}, Defences)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"combine": "mode"}, Defences)


def test_users_that_the_service_decides_for_count_as_clients():
    """One device alone has nobody to be compared with; beside hosted users it gets what they have."""
    alone, beside, nameless = Guard(), Guard(), Guard()
    for k in range(400):
        beside.count(f"user {k % 40}", 1.0, 0.4)
        nameless.count(None, 1.0, 0.4)
    learned = [sum(residual(guard, "hostile", ONE, -1.0)[1] for _ in range(200)) for guard in (alone, beside, nameless)]
    assert learned[0] > 100
    assert max(learned[1:]) < 10
    assert len(nameless.sent) <= 1 + 400 // TURNS


def test_a_hosted_user_is_forgotten_by_name():
    guard = Guard()
    guard.count("anna", 1.0, 0.4)
    guard.forget("anna")
    assert (guard.sent, guard.seen, guard.learned) == ({}, 0, 0)

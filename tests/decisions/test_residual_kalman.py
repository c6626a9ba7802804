"""The compiled residual-kalman is its readable twin, whatever the stream and the batches."""

import numpy as np
import pytest

from fedres.decisions.constants import (
    CORE_SIZE,
    CORE_TAU_START,
    FIRST_LOG_TAU,
    HEAD,
    ID_FIELD,
    LEAST_LOG_DRIFT,
    MAX_BLOCKS,
    MAX_FIELDS,
    MOST_KEPT,
    MOST_OWN_VARIANCE,
    MOST_PAIRED,
    OWN_SIZE,
    START_EVENTS,
    own_biases,
    own_slots,
)
from fedres.decisions.kalman_inputs import (
    eigenvectors,
    find_scale,
    rebase,
)
from fedres.decisions.kalman_inputs_reference import KalmanEvent
from fedres.decisions.kalman_kernels import predict
from fedres.decisions.kalman_own import BIASES, COUNT, SLOT_KEY
from fedres.decisions.kalman_rows import Rows, fill_inputs, fill_pair_means, number_features, predict_rows
from fedres.decisions.kalman_state import (
    CONSTANT,
    CORE,
    LOG_DRIFT,
    OWN,
    OWN_BIAS,
    UNIT,
    Events,
    new_shared,
    slot_words,
)
from fedres.decisions.residual_kalman import NO_MODEL, ResidualKalman, events_of, fixed, request_of
from fedres.decisions.residual_kalman_reference import ResidualKalman as Readable
from fedres.key_tables import TAIL, new_table
from fedres.policies import OptimisticSquareCB
from fedres.policies.kernels import explore, pick

TOLERANCE = 1e-6  # personal and tail weights are rounded to 32 bits: sums in another order may fall to either side


def stream(seed, n, n_names=8, n_late=40, n_users=3, n_ids=5):
    """Return (user, context, actions, taken, reward): numbers, categories, repeated and missing features, 0s."""
    rng = np.random.default_rng(seed)
    rounds = []
    for _ in range(n):
        m = int(rng.integers(1, n_names))
        hashes = rng.choice(n_late if rng.random() < 0.3 else n_names, m, replace=False)
        numbers = np.exp(2 * rng.normal(size=m)) * rng.choice([1, 1, 1, -1, 0], m)
        values = np.where(hashes % 2, numbers, 1.0)
        actions = [
            ([100 + rng.integers(n_ids), 200 + rng.integers(3), 50, 60, 60, 70, 80, 90][:size],
             [1.0, 1.0, np.exp(rng.normal()), 0.5, 2.0, 1.0, rng.choice([0, 3]), rng.choice([0, 0, 1, 20])][:size],
             [ID_FIELD, 10, 50, 60, 60, 11, 80, 90][:size])
            for size in rng.integers(9, size=4)
        ]  # fmt: skip
        user = None if rng.random() < 0.1 else int(rng.integers(n_users))
        rounds.append((user, (hashes, np.float32(values)), actions, int(rng.integers(4)), float(rng.random() < 0.3)))
    return rounds


def learned(action):
    """Return an action as the log has it: its values have 32 bits."""
    hashes, values, fields = action
    return hashes, np.float32(values), fields


def learn_all(model, owns, rounds, sizes):
    """Learn rounds in batches of these sizes; return the personal models."""
    first = 0
    for size in sizes:
        batch = rounds[first : first + size]
        users = sorted({user for user, *_ in batch if user is not None})
        events = events_of(
            [(request_of(c, a), k, y, -1 if u is None else users.index(u)) for u, c, a, k, y in batch]
        )  # fmt: skip
        learned = model.learn(events, [owns.get(user, NO_MODEL) for user in users])
        owns |= dict(zip(users, learned, strict=True))
        first += size
    return owns


SETTINGS = [
    ({}, {}),
    ({"choice_events": 60}, {}),  # learned again
    ({"max_blocks": 4, "own_bytes": 300, "tail_bits": 4}, {}),  # blocks make room, tail weights collide
    ({"max_blocks": 4}, {"n_ids": 9}),
    ({"reward_range": (-3.0, 5.0)}, {}),
    ({}, {"n_names": 90, "n_late": 130}),  # more coordinates than the core and personal models take
]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("settings", "shape"), SETTINGS)
def test_predictions_are_those_of_the_readable_twin(settings, shape, seed):
    model, readable, owns = ResidualKalman(**settings), Readable(**settings), {}
    n = CORE_TAU_START + 20 if seed == 0 and not shape else 150  # the twin is slow where there are many coordinates
    for number, (user, context, actions, taken, reward) in enumerate(stream(seed, n, **shape)):
        if number % 3 == 0 or number > n - 10:  # what was learned wrongly is still there
            own = None if user is None else owns.get(user, NO_MODEL)
            prediction, (means, widths) = (
                model.predict(request_of(context, actions), own),
                readable.predict(user, context, actions),
            )
            assert prediction.means == pytest.approx(means, abs=TOLERANCE), number
            assert prediction.widths == pytest.approx(widths, abs=TOLERANCE), number
        learn_all(model, owns, [(user, context, actions, taken, reward)], [1])
        readable.learn(KalmanEvent(user, context, learned(actions[taken]), reward))
    assert model.shared.numbers[0] == pytest.approx(readable.noise, abs=TOLERANCE)
    assert len(readable.bases) == model.shared.counts[2]
    assert (model.shared.log_tau[0, CONSTANT] != 0) == (n > CORE_TAU_START)
    assert (model.first is None) == ("choice_events" in settings)


def test_pairs_are_those_of_the_readable_twin_for_more_features_and_fields_than_have_pairs():
    model, readable, rng = ResidualKalman(choice_events=0), Readable(choice_events=0), np.random.default_rng(5)
    for number in range(80):
        n = int(rng.integers(2, MOST_PAIRED + 8))
        names = 1000 + 2 * np.arange(n) + rng.integers(2, size=n)
        values = np.where(names % 7, 1.0, rng.normal(size=n))
        fields = np.where(np.arange(n) % (MAX_FIELDS + 5), 5000 + np.arange(n), ID_FIELD)
        order = rng.permutation(n)
        action = names[order], values[order], fields[order]
        if number % 10 == 9:
            prediction = model.predict(request_of(([], []), [action]))
            means, widths = readable.predict(None, ([], []), [learned(action)])
            assert prediction.means == pytest.approx(means, abs=TOLERANCE)
            assert prediction.widths == pytest.approx(widths, abs=TOLERANCE)
        reward = float(rng.random() < 0.5)
        model.learn(events_of([(request_of(([], []), [action]), 0, reward, -1)]))
        readable.learn(KalmanEvent(None, ([], []), learned(action), reward))


def test_an_action_is_as_unsure_as_its_id_and_a_mean_of_its_other_features():
    model = ResidualKalman()
    learn_all(model, {}, stream(8, 60), [60])
    features = [(102, ID_FIELD), (7001, 7), (9, 10)]
    alone = [([key], [1.0], [field]) for key, field in features]
    actions = [*alone, ([7001, 9], [1.0, 1.0], [7, 10]), ([102, 7001, 9], [1.0] * 3, [ID_FIELD, 7, 10])]
    identity, one, other, both, every = model.predict(request_of(([3], [1.0]), actions)).widths ** 2
    assert one != pytest.approx(other)
    assert both == pytest.approx((one**2 + other**2) / (one + other))
    assert every == pytest.approx(identity + both)


def test_a_user_is_not_expected_to_differ_by_more_than_rewards_can():
    """Users like some films and not others, and most they have not seen: priors of personal weights become large."""
    model, rng, likes = ResidualKalman(), np.random.default_rng(2), np.random.default_rng(0).random((20, 60)) < 0.3
    owns, films = dict.fromkeys(range(20), NO_MODEL), [([1000 + k], [1.0], [ID_FIELD]) for k in range(60)]
    for _ in range(3000):
        user, film = int(rng.integers(20)), int(rng.integers(60))
        event = (request_of(([], []), [films[film]]), 0, float(likes[user, film]), 0)
        (owns[user],) = model.learn(events_of([event]), [owns[user]])
    place = model.shared.field_keys.tolist().index(ID_FIELD)
    assert np.exp(model.shared.log_tau[place, [OWN, OWN_BIAS]]).sum() > MOST_OWN_VARIANCE
    request = request_of(([], []), films)
    of_all, of_a_user = (model.predict(request, own).widths ** 2 for own in (None, NO_MODEL))
    assert of_a_user - of_all == pytest.approx(np.full(60, MOST_OWN_VARIANCE))


def test_what_two_features_mean_together_is_learned_and_their_prior_alone_grows():
    """A coupon is used where its kind is what the driver likes; the weather means nothing."""
    model, rng = ResidualKalman(), np.random.default_rng(6)

    def driver(kind, taste, weather, name):
        return [name, 100 + kind, 200 + taste, 300 + weather], [1.0] * 4, [ID_FIELD, 10, 20, 30]

    for k in range(1500):
        kind, taste, weather = (int(rng.integers(3)) for _ in range(3))
        request = request_of(([], []), [driver(kind, taste, weather, 10_000 + k)])
        model.learn(events_of([(request, 0, float(kind == taste), -1)]))
    offers = [driver(1, taste, taste, 9_000 + taste) for taste in range(3)]
    means = model.predict(request_of(([], []), offers)).means
    assert means[1] > max(means[0], means[2]) + 0.7
    kinds, tastes, weathers = (model.shared.field_keys.tolist().index(field) for field in (10, 20, 30))
    log_tau = model.shared.pair_log_tau
    assert log_tau[kinds, tastes] > max(log_tau[kinds, weathers], log_tau[tastes, weathers]) + 3


def test_a_number_that_is_0_is_not_the_usual_one():
    """Offers are worth something where their discount is 0; offers that do not say have the usual discount."""
    model, rng, offer, discount = ResidualKalman(), np.random.default_rng(0), [7], [30]
    for _ in range(200):
        share = float(rng.choice([0, 0.1, 0.2, 0.3]))
        request = request_of(([], []), [(offer + discount, [1.0, share], offer + discount)])
        model.learn(events_of([(request, 0, float(share == 0), -1)]), [])
    actions = [(offer + discount, [1.0, share], offer + discount) for share in (0.0, 0.2)]
    free, usual, silent = model.predict(request_of(([], []), [*actions, (offer, [1.0], offer)])).means
    assert free > 0.6 > 0.3 > usual
    assert silent == pytest.approx(0.25, abs=0.1)  # the mean of all


def same(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.parametrize(("settings", "shape"), SETTINGS)
def test_batches_do_not_change_a_bit(settings, shape):
    rounds, rng = stream(2, 200, **shape), np.random.default_rng(0)
    models = [ResidualKalman(**settings) for _ in range(3)]
    split = np.diff([0, *np.sort(rng.choice(200, 9, replace=False)), 200]).tolist()
    owns = [learn_all(m, {}, rounds, sizes) for m, sizes in zip(models, ([1] * 200, [200], split), strict=True)]
    assert all(same(model.to_arrays(), models[0].to_arrays()) for model in models)
    assert all(same(own, owns[0]) for own in owns)


@pytest.mark.parametrize("n", [0, 5, START_EVENTS, 100, 120, 150])
def test_a_saved_model_goes_on_to_the_bit(n):
    rounds, settings = stream(3, 160), {"max_blocks": 6, "choice_events": 120}
    model, saved = ResidualKalman(**settings), ResidualKalman(**settings)
    owns = learn_all(model, {}, rounds[:n], [n])
    saved.load_arrays(model.to_arrays())
    assert saved.learned == model.learned == n
    later = [learn_all(each, dict(owns), rounds[n:], [160 - n]) for each in (model, saved)]
    assert same(model.to_arrays(), saved.to_arrays())
    assert same(*later)


def test_predicting_changes_nothing():
    rounds, model = stream(4, 100), ResidualKalman()
    owns = learn_all(model, {}, rounds, [100])
    before, own = model.to_arrays(), owns[0].copy()
    for _, context, actions, *_ in stream(5, 50, n_late=90):
        model.predict(request_of(context, actions), owns[0])
    assert same(before, model.to_arrays())
    assert own.tobytes() == owns[0].tobytes()


def test_all_actions_are_alike_before_the_start_is_over():
    rounds, model = stream(6, START_EVENTS), ResidualKalman((2.0, 4.0))
    learn_all(model, {}, rounds, [START_EVENTS - 1])
    prediction = model.predict(request_of(*rounds[0][1:3]))
    assert prediction.means.tolist() == [2.0] * 4
    assert prediction.widths.tolist() == [2.0] * 4


def test_rewards_count_as_shares_of_their_range():
    rounds = stream(7, 80)
    moved = [(*rest, 8 * reward - 3) for *rest, reward in rounds]
    models = [ResidualKalman(), ResidualKalman((-3.0, 5.0))]
    owns = [learn_all(model, {}, each, [80]) for model, each in zip(models, (rounds, moved), strict=True)]
    request = request_of(*rounds[0][1:3])
    one, other = (model.predict(request, own[0]) for model, own in zip(models, owns, strict=True))
    assert other.means == pytest.approx(8 * one.means - 3, abs=1e-5)
    assert other.widths == pytest.approx(8 * one.widths, abs=1e-5)


def test_units_do_not_matter():
    def in_units(rounds, unit):
        units = [np.where((c[0] % 2 == 1) | (c[0] == 0), unit, 1) for _, c, *_ in rounds]  # hashes 0 and 1 are one
        return [(u, (c[0], c[1] * by), *rest) for by, (u, c, *rest) in zip(units, rounds, strict=True)]

    rounds, means = stream(8, 80), []
    for unit in (1.0, 1000.0):
        model, scaled = ResidualKalman(), in_units(rounds, unit)
        owns = learn_all(model, {}, scaled, [80])
        means.append(model.predict(request_of(*scaled[-1][1:3]), owns[0]).means)
    assert means[1] == pytest.approx(means[0], abs=1e-4)


def test_the_unit_of_a_number_is_three_medians_in_a_context_and_one_of_an_action():
    values, model = np.arange(1.0, START_EVENTS + 1), ResidualKalman()
    rounds = [(None, ([7], [v]), [([50], [v], [50])], 0, 0.0) for v in values]
    learn_all(model, {}, rounds, [START_EVENTS])
    units = model.shared.scale_stats[:, UNIT]
    assert sorted(units[units > 0]) == [np.median(values), 3 * np.median(values)]
    assert model.shared.scale_stats[find_scale(model.shared, np.uint32(7)), UNIT] == 3 * np.median(values)


@pytest.mark.parametrize("n_context", [3, 20, 90])
def test_a_personal_model_takes_8_kb_at_most(n_context):
    rng, rounds = np.random.default_rng(9), []
    for _ in range(400):
        actions = [([1000 + rng.integers(1000), 2000 + rng.integers(10)], [1.0, 1.0], [1, 2])] * 4
        rounds.append((0, (np.arange(1, n_context + 1), rng.random(n_context)), actions, 0, float(rng.random() < 0.5)))
    model = ResidualKalman(max_blocks=64)
    owns = learn_all(model, {}, rounds, [200, 200])
    k = min(n_context + 1, CORE_SIZE, OWN_SIZE)
    assert model.shared.bases.shape[1:] == (min(n_context + 1, CORE_SIZE), k)
    assert (owns[0][COUNT], owns[0][BIASES]) == (own_slots(k), own_biases())
    assert owns[0].nbytes <= 8192
    assert model.shared.block_keys.size == 64


def test_what_users_share_helps_a_new_one_and_what_is_personal_stays_so():
    """Action 1 is right for all but user 1, for whom it is action 2."""
    rng, model, owns = np.random.default_rng(10), ResidualKalman(), {}
    actions = [([1], [1.0], [9]), ([2], [1.0], [9])]
    rounds = []
    for _ in range(1200):
        user, taken = int(rng.integers(6)), int(rng.integers(2))
        rounds.append((user, ([5], [rng.random()]), actions, taken, float((taken == 0) == (user != 1))))
    learn_all(model, owns, rounds, [100] * 12)
    request = request_of(([5], [0.5]), actions)
    for own, right in [(owns[0], 0), (owns[1], 1), (NO_MODEL, 0)]:
        means = model.predict(request, own).means
        assert means[right] > means[1 - right] + 0.3


def test_what_is_no_reward_range_or_personal_model_is_refused():
    with pytest.raises(ValueError, match="reward_range must be two finite rising numbers"):
        ResidualKalman((1.0, 1.0))
    rounds, model = stream(11, 20), ResidualKalman()
    learn_all(model, {}, rounds, [20])
    with pytest.raises(ValueError, match=r"owns\[0\] must be a personal model or empty, got 2 words"):
        learn_all(model, dict.fromkeys(range(3), np.zeros(2, np.uint32)), rounds, [20])


def test_jacobi_finds_the_leading_eigenvectors():
    rows = np.random.default_rng(12).normal(size=(200, 20)) * np.arange(1, 21)
    moment, basis = rows.T @ rows / 200, np.empty((20, 7))
    eigenvectors(moment.copy(), np.empty((20, 20)), basis)
    assert basis.T @ basis == pytest.approx(np.eye(7), abs=1e-9)
    assert np.diag(basis.T @ moment @ basis) == pytest.approx(np.linalg.eigvalsh(moment)[::-1][:7], rel=1e-6)


@pytest.mark.parametrize("log_tau", [(-6.0, -6.0), (1.5, -2.0)])
def test_a_block_takes_another_prior_as_if_it_had_had_it_from_the_start(log_tau):
    rng, d = np.random.default_rng(13), 7
    rows, rewards = rng.normal(size=(30, d)), rng.normal(size=30)
    shared = new_shared(d, 1.0, 4, 4)

    def posterior(log_tau):
        precisions = np.exp(-np.array([log_tau[0], *[log_tau[1]] * (d - 1)]))
        covariance = np.linalg.inv(np.diag(precisions) + rows.T @ rows)
        return covariance @ rows.T @ rewards, covariance

    shared.means[0], shared.covariances[0] = posterior((0.0, 0.0))
    rebase(shared, 0, *log_tau, np.empty((2, d, d)))
    mean, covariance = posterior(log_tau)
    assert shared.means[0] == pytest.approx(mean, abs=1e-9)
    assert shared.covariances[0] == pytest.approx(covariance, abs=1e-9)
    assert shared.block_log_tau[0].tolist() == [*log_tau]


def test_how_much_contexts_matter_is_learned():
    """Pure noise: the prior variance of the context's weights goes down, further than where one of six decides."""
    log_taus = []
    for noisy in (True, False):
        rng, rounds = np.random.default_rng(14), []
        for _ in range(1000):
            context = rng.normal(size=6)
            reward = float(rng.random() < 0.3 if noisy else context[0] > 0)
            rounds.append((None, (np.arange(1, 7), context), [([20], [1.0], [9])], 0, reward))
        model = ResidualKalman()
        learn_all(model, {}, rounds, [1000])
        log_taus.append(model.shared.log_tau[0, CORE])
    assert log_taus[0] < log_taus[1] - 2


def test_what_an_action_usually_earns_is_told_apart_from_what_contexts_say():
    """Actions differ and contexts are noise: only the prior variance of the context's weights goes down."""
    rng, rounds = np.random.default_rng(15), []
    for k in range(1200):
        context, chance = (np.arange(1, 9), rng.normal(size=8)), (0.1, 0.5, 0.9)[k % 3]
        rounds.append((None, context, [([20 + k % 3], [1.0], [9])], 0, float(rng.random() < chance)))
    model = ResidualKalman()
    learn_all(model, {}, rounds, [1200])
    assert model.shared.log_tau[1, CORE] < -2 < -1 < model.shared.log_tau[1, CONSTANT]


def two_fields(seed, n, n_ids, by_topic):
    """Yield events of an id and a topic, one of which decides the reward together with the context."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        name, topic, named = (int(rng.integers(size)) for size in (n_ids, 3, 3))
        action = [1000 + name, 2000 + topic], [1.0, 1.0], [9, 10]
        yield None, ([1 + named], [1.0]), [action], 0, float(named == (topic if by_topic else name % 3))


@pytest.mark.parametrize("by_topic", [False, True])
def test_of_two_fields_the_one_that_explains_rewards_is_free_and_the_other_held_close(by_topic):
    model = ResidualKalman(choice_events=200)
    learn_all(model, {}, [*two_fields(17, 200, 6, by_topic)], [200])
    ids, topics = model.shared.log_tau[1:3, CORE]
    assert (topics > ids) == by_topic
    assert min(ids, topics) == FIRST_LOG_TAU  # CORE_TAU_START is yet to come
    assert model.learned == 200
    assert model.first is None


def test_what_is_learned_again_errs_less_on_ids_that_are_new():
    """Topics decide. A model that has not chosen has given part of that to ids, which new ones do not have."""
    errors = []
    for choice_events in (300, 0):
        model = ResidualKalman(choice_events=choice_events)
        learn_all(model, {}, [*two_fields(18, 300, 6, by_topic=True)], [300])
        residuals = []
        for _, context, (action,), _, reward in two_fields(19, 60, 6, by_topic=True):
            new = ([5000, action[0][1]], *action[1:])
            residuals.append(model.predict(request_of(context, [new])).means[0] - reward)
        errors.append(np.mean(np.square(residuals)))
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("batch", [1, 50])
def test_large_events_are_learned_again_sooner(batch):
    model, rng, n_features = ResidualKalman(), np.random.default_rng(20), 2_000
    n = -(-MOST_KEPT // (n_features + 2))
    context, action = (np.arange(1, n_features + 1), np.ones(n_features)), ([100, 200], [1.0, 1.0], [9, 10])
    rounds = [(None, context, [action], 0, float(rng.random())) for _ in range(n + 5)]
    learn_all(model, {}, rounds[: n - 1], [batch] * -(-n // batch))
    assert model.first is not None
    learn_all(model, {}, rounds[n - 1 :], [6])
    assert model.first is None
    assert model.shared.log_tau[2, CORE] != model.shared.log_tau[1, CORE]


def test_a_start_that_is_too_large_to_be_kept_chooses_nothing():
    model, n_features = ResidualKalman(), MOST_KEPT // START_EVENTS
    context, action = (np.arange(1, n_features + 1), np.ones(n_features)), ([100, 200], [1.0, 1.0], [9, 10])
    learn_all(model, {}, [(None, context, [action], 0, 1.0)] * START_EVENTS, [START_EVENTS])
    assert model.first is None
    assert model.shared.log_tau[:3, CORE].tolist() == [0.0] * 3


def test_events_that_are_to_be_learned_again_can_be_forgotten():
    rounds, model = stream(21, 150), ResidualKalman(choice_events=120)
    learn_all(model, {}, rounds[:5], [5])
    model.forget_events()
    assert model.learned == 0
    learn_all(model, {}, rounds[:100], [100])
    before = model.shared.means.copy()
    model.forget_events()
    assert not any(name.startswith("first.") for name in model.to_arrays())
    assert model.shared.means.tobytes() == before.tobytes()
    learn_all(model, {}, rounds[100:], [50])
    assert model.learned == 150


def test_no_value_is_kept_once_a_scale_is_settled_or_events_are_forgotten():
    def numbers(model):
        return {float(value) for array in model.to_arrays().values() for value in np.ravel(array)}

    model = ResidualKalman(choice_events=0)
    context = [([1], [1000.5 + k]) for k in range(40)]
    learn_all(model, {}, [(None, each, [([7], [1.0], [9])], 0, 1.0) for each in context], [40])
    assert not {values[0] for _, values in context} & numbers(model)
    learn_all(model, {}, [(None, ([1, 2], [1000.5, 77.25]), [([7], [1.0], [9])], 0, 1.0)], [1])
    scales = model.shared.scale_stats.copy()
    assert 77.25 in numbers(model)
    assert model.forget_events()
    assert 77.25 not in numbers(model)
    assert not model.forget_events()
    learn_all(model, {}, [(None, ([1, 2], [1000.5, 99.25]), [([7], [1.0], [9])], 0, 1.0)], [1])
    assert model.shared.scale_stats.tobytes() == scales.tobytes()


def changing_world(seed, n, change):
    """Yield four actions, a context that names the right one, and which that is: from event ``change`` on another."""
    rng, actions = np.random.default_rng(seed), [([20 + a], [1.0], [9]) for a in range(4)]
    for t in range(n):
        named = int(rng.integers(4))
        yield ([1 + named], [1.0]), actions, named if t < change else (named + 1) % 4


def test_drift_is_that_of_the_readable_twin():
    model, readable, rng = ResidualKalman(), Readable(), np.random.default_rng(0)
    for t, (context, actions, right) in enumerate(changing_world(15, 800, 500)):
        taken = int(rng.integers(4 if t < 600 else 2))  # two actions are not learned any more
        learn_all(model, {}, [(None, context, actions, taken, float(taken == right))], [1])
        readable.learn(KalmanEvent(None, context, actions[taken], float(taken == right)))
    assert model.shared.drift[LOG_DRIFT] == pytest.approx(readable.drift.log_tau, abs=1e-6)
    assert readable.drift.log_tau > LEAST_LOG_DRIFT + 3
    prediction, (means, widths) = model.predict(request_of(context, actions)), readable.predict(None, context, actions)
    assert prediction.means == pytest.approx(means, abs=TOLERANCE)
    assert prediction.widths == pytest.approx(widths, abs=TOLERANCE)


def test_what_nobody_chooses_becomes_uncertain_again_where_the_world_changes():
    def widths(change):
        model, rng = ResidualKalman(), np.random.default_rng(3)
        for t, (context, actions, right) in enumerate(changing_world(17, 1100, change)):
            taken = int(rng.integers(4 if t < 500 else 3))
            learn_all(model, {}, [(None, context, actions, taken, float(taken == right))], [1])
            if t == 700:
                before = model.predict(request_of(context, actions)).widths[3]
        return before, model.predict(request_of(context, actions)).widths[3]

    before, after = widths(change=1100)
    assert after == pytest.approx(before, rel=0.1)
    before, after = widths(change=700)
    assert after > 3 * before


def decide_in(world, drifts):
    """Decide as loops do; return the model, and the share of right decisions among the last 500."""
    model, is_right, rng = ResidualKalman(), [], np.random.default_rng(1)
    allowed, chances, rule = np.ones(4, np.bool_), np.empty(4), OptimisticSquareCB().rule((0.0, 1.0))
    for context, actions, right in world:
        expected = model.predict(request_of(context, actions))
        explore(rule, 0, model.learned, expected.means, expected.widths, allowed, chances)
        taken = pick(chances, rng.random())
        learn_all(model, {}, [(None, context, actions, taken, float(taken == right))], [1])
        is_right.append(taken == right)
        if not drifts and model.shared is not None:
            model.shared.drift[LOG_DRIFT] = -np.inf
    return model, np.mean(is_right[-500:])


def test_a_world_that_changes_is_learned_anew_and_one_that_stays_is_not_forgotten():
    steady, _ = decide_in(changing_world(16, 2500, 2500), drifts=True)
    assert steady.shared.drift[LOG_DRIFT] < LEAST_LOG_DRIFT + 3
    changed, share = decide_in(changing_world(16, 2500, 1500), drifts=True)
    assert changed.shared.drift[LOG_DRIFT] > LEAST_LOG_DRIFT + 6
    assert share > 0.9
    assert decide_in(changing_world(16, 2500, 1500), drifts=False)[1] < 0.5


def test_a_catalogue_of_100_000_ids_takes_32_mb_at_most():
    rng, model, n = np.random.default_rng(23), ResidualKalman(), 100_000
    hashes = np.empty((n, 65), np.uint32)
    hashes[:, :63], hashes[:, 63], hashes[:, 64] = np.arange(1, 64), np.arange(1000, 1000 + n), 7
    fields = np.tile(np.r_[np.zeros(63), 9, 10].astype(np.uint32), n)
    events = Events(
        hashes.ravel(), np.ones(hashes.size, np.float32), fields, np.arange(n + 1) * 65, np.full(n, 63),
        (rng.random(n) < 0.5).astype(np.float32), np.full(n, -1),
    )  # fmt: skip
    model.learn(events)
    kept = model.to_arrays()
    assert model.shared.moment.shape == (CORE_SIZE, CORE_SIZE)
    assert np.unique(kept["block_keys"]).size == MAX_BLOCKS
    assert sum(array.nbytes for array in model.shared) <= 32e6


def test_actions_that_come_and_go_leave_a_model_of_the_same_size():
    model, owns = ResidualKalman(max_blocks=8), {}
    for k in range(60):
        actions = [([1000 + k + a], [1.0], [9]) for a in range(4)]
        learn_all(model, owns, [(0, ([5], [1.0]), actions, k % 4, 1.0)], [1])
    kept = model.to_arrays()
    assert kept["block_keys"].size == 8
    assert 1000 + 59 + 3 in kept["block_keys"]
    assert 1003 not in kept["block_keys"]
    assert model.shared.block_table[:-TAIL].astype(bool).sum() == 8


@pytest.mark.parametrize("n_words", [3, 63, 300])
def test_the_usual_reward_of_an_action_is_learned_soon_however_long_contexts_are(n_words):
    """Contexts say nothing, and one action earns more: sixteen rewards more must tell them apart."""
    rng, actions = np.random.default_rng(22), [([100 + a], [1.0], [9]) for a in range(2)]
    rounds = [
        (None, (rng.choice(2_000, n_words, replace=False) + 1, np.ones(n_words)), actions, k % 2, 0.8 * (k % 2))
        for k in range(2 * START_EVENTS)
    ]
    model = ResidualKalman(choice_events=0)
    learn_all(model, {}, rounds, [2 * START_EVENTS])
    words = rng.choice(2_000, n_words, replace=False) + 1
    means = model.predict(request_of((words, np.ones(n_words)), actions)).means
    assert means[1] - means[0] > 0.4


def test_a_user_keeps_what_hundreds_of_features_have_earned():
    """Each user likes every other of 100 ids: many times more than there is room for with directions."""
    rng, model, owns = np.random.default_rng(18), ResidualKalman(choice_events=0), {}
    rounds = []
    for _ in range(4000):
        user, name = int(rng.integers(4)), int(rng.integers(100))
        liked = float((name // 2 ** (user % 2) + user // 2) % 2)
        rounds.append((user, ([5], [1.0]), [([100 + name], [1.0], [9])], 0, liked))
    learn_all(model, owns, rounds, [4000])
    for user in range(4):
        request = request_of(([5], [1.0]), [([100 + name], [1.0], [9]) for name in range(100)])
        liked = np.array([(name // 2 ** (user % 2) + user // 2) % 2 for name in range(100)], bool)
        means = model.predict(request, owns[user]).means
        assert means[liked].min() > means[~liked].max()


def test_a_feature_that_is_new_to_a_user_takes_no_directions_of_others():
    context, rounds = (np.arange(1, 31), np.ones(30)), []
    for t in range(60):
        rounds.append((0, context, [([100 + t, 200 + t % 2], [1.0, 1.0], [1, 2])], 0, 1.0))
    rounds += [(0, context, [([159], [1.0], [1])], 0, 1.0)]
    model, owns = ResidualKalman(choice_events=0), {}
    stride = slot_words(min(31, OWN_SIZE))

    def keys():
        return {int(owns[0][HEAD + stride * slot + SLOT_KEY]) for slot in range(owns[0][COUNT])}

    learn_all(model, owns, rounds[:60], [60])
    assert len(keys()) == own_slots(OWN_SIZE)
    assert {0, 200, 201} < keys()
    assert 159 not in keys()
    learn_all(model, owns, rounds[60:], [1])
    assert 159 in keys()


def test_the_first_events_are_counted_without_looking_at_them_again():
    """Each of the first events once summed the sizes of all before it, which was quadratic."""

    class Watched(list):
        looked = 0

        def __iter__(self):
            Watched.looked += len(self)
            return super().__iter__()

    model, rounds = ResidualKalman(choice_events=60), stream(3, 60)
    learn_all(model, {}, rounds[:20], [20])
    model.first.parts = Watched(model.first.parts)
    learn_all(model, {}, rounds[20:59], [1] * 39)
    assert (Watched.looked, model.first.n_events, model.learned) == (0, 59, 59)
    learn_all(model, {}, rounds[59:], [1])
    assert (Watched.looked, model.first) == (42, None)


def rows_of(shared, request):
    """Return the actions of a request as rows of a catalogue."""
    first = request.starts[0]
    hashes, fields, n = request.hashes[first:], request.fields[first:], request.hashes.size - first
    keys, key_fields, numbers = np.zeros(n, np.uint32), np.zeros(n, np.uint32), np.zeros(n, np.int32)
    n_keys = number_features(new_table(int(n)), keys, key_fields, 0, hashes, fields, numbers)
    inputs = np.empty(n)
    fill_inputs(shared, hashes.copy(), request.values[first:].copy(), fields.copy(), inputs)  # as a catalogue has them
    pair_means = np.zeros(request.starts.size - 1)
    rows = Rows(request.starts - first, numbers, inputs, keys[:n_keys], key_fields[:n_keys], pair_means)
    fill_pair_means(shared, rows, 0)
    return rows


@pytest.mark.parametrize(("settings", "shape"), SETTINGS)
def test_rows_of_a_catalogue_are_predicted_as_actions_are_to_the_bit(settings, shape):
    rounds, model = stream(4, 240, **shape), ResidualKalman(**settings)
    owns = learn_all(model, {}, rounds[:200], [200])
    actions = [action for _, _, some, _, _ in rounds[200:] for action in some]
    for user, context, _, _, _ in rounds[200:]:
        request, own = fixed(request_of(context, actions)), NO_MODEL if user is None else owns.get(user, NO_MODEL)
        parts, row_parts = np.empty((len(actions), 3)), np.empty((len(actions), 3))
        predict(model.shared, own, user is not None, request, parts)
        hashes, values = request.hashes[: request.starts[0]], request.values[: request.starts[0]]
        predict_rows(model.shared, own, user is not None, hashes, values, rows_of(model.shared, request), row_parts)
        assert row_parts.tobytes() == parts.tobytes()

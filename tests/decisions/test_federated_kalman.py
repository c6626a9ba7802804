"""residual-kalman in two halves: the compiled one beside the readable one, and what sharing is for."""

import numpy as np
import pytest
import safetensors.numpy

from fedres.decisions import federated_kalman_reference as plain
from fedres.decisions.constants import FIRST_LOG_TAU, ID_FIELD, MOST_OWN_VARIANCE
from fedres.decisions.federated_kalman import DeviceKalman, KalmanExample, Part, learn_residual, residual_of
from fedres.decisions.kalman_document import read_document, read_metadata, write_document, write_safetensors
from fedres.decisions.kalman_state import NOISE, OWN, Events
from fedres.decisions.residual_kalman import NO_OWNS, ResidualKalman, request_of
from fedres.decisions.residual_kalman_reference import ResidualKalman as PlainKalman

HOUR, WEEKEND, PRIVATE, RARE, ID, PRICE = 11, 12, 21, 30, 5, 6  # hashes of names


def generated(n, rng, *, private=True):
    """Return examples: an hour, now and then a weekend or something rare, a private number; two kinds of actions."""
    examples = []
    for _ in range(n):
        seen = [(HOUR, float(rng.integers(1, 24))), (RARE + int(rng.integers(40)), 1.0)]
        seen += [(WEEKEND, 1.0)] * int(rng.random() < 0.3)
        own = [(PRIVATE, float(rng.normal(60, 20)))] if private else []
        action = [
            (100 + int(rng.integers(3)), 1.0, ID),
            (PRICE, float(rng.exponential(9)) * rng.choice([1, 1, 1, 0]), PRICE),
        ]
        examples.append((seen, own, action, float(rng.random())))
    return examples


def compiled(row):
    seen, own, action, reward = row
    context = [*seen, *own]
    return KalmanExample(
        np.array([key for key, *_ in [*context, *action]], np.uint32),
        np.array([value for _, value, *_ in [*context, *action]], np.float32),
        np.array([0] * len(context) + [field for *_, field in action], np.uint32),
        len(context),
        len(seen),
        reward,
    )


def readable(row):
    seen, own, action, reward = row
    columns = [[*zip(*rows, strict=True)] for rows in (seen, [*seen, *own], action)]
    as_floats = [(part[0], np.float32(part[1]).tolist(), *part[2:]) for part in columns]
    return plain.KalmanExample(*as_floats, np.float32(reward).item())


def event_of(example):
    keep = np.r_[0 : example.n_seen, example.n_context : example.hashes.size]
    columns = [column[keep] for column in example[:3]]
    numbers = np.array([0, keep.size]), np.array([example.n_seen]), np.array([example.reward], np.float32)
    return Events(*columns, *numbers, np.array([-1]))


def upload(server, example, part):
    event = event_of(example)
    if server.shared is None:
        server.learn_packed(event, NO_OWNS)
    else:
        learn_residual(server, event, part, residual_of(server, event, part))


@pytest.fixture(scope="module")
def server():
    """A server that has learned forty examples."""
    model = ResidualKalman()
    for row in generated(40, np.random.default_rng(3), private=False):
        example = compiled(row)
        upload(model, example, Part(0.0, 0.0, np.zeros(3)))
    return model


def test_both_halves_are_those_of_the_readable_twin():
    rng = np.random.default_rng(0)
    rows = generated(130, rng)
    server, twin = ResidualKalman(), PlainKalman()
    for row in rows[:20]:
        upload(server, compiled(row), Part(0.0, 0.0, np.zeros(3)))
        plain.learn_residual(twin, readable(row), plain.Part(0.0, 0.0, {}))
    device, learned = DeviceKalman(), []
    for first in range(20, 130, 30):
        parts = device.relearn(server.shared, [compiled(row) for row in learned])
        plain_device = plain.DeviceKalman(twin, [readable(row) for row in learned])
        same(parts, plain_device.parts)
        new, new_twins = [], []
        for row in rows[first : first + 30]:
            new.append(device.part(compiled(row)))
            device.learn(compiled(row))
            new_twins.append(plain_device.learn(readable(row)))
        same(new, new_twins)
        for row, part, plain_part in zip(rows[first : first + 30], new, new_twins, strict=True):
            upload(server, compiled(row), part)
            plain.learn_residual(twin, readable(row), plain_part)
        learned += rows[first : first + 30]
    assert server.shared.numbers[NOISE] == pytest.approx(twin.noise, rel=1e-5)
    priors = [field.own.log_tau for field in twin.fields.values()]
    assert server.shared.log_tau[: len(priors), OWN] == pytest.approx(priors, rel=1e-4)


def same(parts, twins):
    for part, twin in zip(parts, twins, strict=True):
        assert part.mean == pytest.approx(twin.mean, abs=1e-5)
        assert part.variance == pytest.approx(twin.variance, rel=1e-4)
        assert part.slopes == pytest.approx([*twin.slopes.values()], abs=1e-5)


def test_a_document_holds_what_predicting_needs(server):
    rows = [compiled(row) for row in generated(30, np.random.default_rng(4))]
    document = read_document(write_document(server.shared, 7, "7-x", server.learned))
    assert (document.metadata.version, document.metadata.tag, document.metadata.learned) == (7, "7-x", 40)
    direct, downloaded = DeviceKalman(), DeviceKalman()
    for one, other in zip(
        direct.relearn(server.shared, rows), downloaded.relearn(document.shared, rows), strict=True
    ):  # fmt: skip
        assert one.mean == pytest.approx(other.mean, abs=1e-5)
    request = request_of(([HOUR, PRIVATE], [9.0, 70.0]), [([100, PRICE], [1.0, 3.0], [ID, PRICE])])
    for one, other in zip(direct.predict(request, 1), downloaded.predict(request, 1), strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_document_before_the_start_is_over_holds_no_model():
    document = read_document(write_document(None, 3, "3-x", 2))
    assert document.shared is None
    assert document.metadata.version == 3


def test_a_document_that_kernels_must_not_see_is_refused(server):
    for name, spoil in (
        ("block_keys", lambda array: np.zeros_like(array)),
        ("scale_core", lambda array: array + 1000),
        ("means", lambda array: array * np.nan),
        ("tail_places", lambda array: array + 2**16),
        ("tail", lambda array: np.zeros((1, 2), np.float32)),
    ):
        with pytest.raises(ValueError, match="payload must"):
            read_document(spoiled(write_document(server.shared, 1, "1-x", 40), name, spoil))
    with pytest.raises(ValueError, match="payload must be a model"):
        read_document(b"not safetensors")


def spoiled(payload, name, spoil):
    arrays = safetensors.numpy.load(payload)
    return write_safetensors({**arrays, name: spoil(arrays[name])}, read_metadata(payload))


def test_the_shared_part_never_sees_what_is_private(server):
    device = DeviceKalman()
    device.relearn(server.shared, [compiled(row) for row in generated(30, np.random.default_rng(5))])
    actions = [([100, PRICE], [1.0, 3.0], [ID, PRICE])]
    predictions = [device.predict(request_of(([HOUR, PRIVATE], [9.0, x]), actions), 1) for x in (20.0, 90.0)]
    assert predictions[0].shared.tolist() == predictions[1].shared.tolist()
    assert predictions[0].personal.tolist() != predictions[1].personal.tolist()


def test_a_device_without_a_shared_model_begins_after_sixteen_examples():
    rows = [compiled(row) for row in generated(20, np.random.default_rng(6))]
    device = DeviceKalman((0.0, 1.0))
    assert all(part.variance == 0 for part in device.relearn(None, rows[:15]))
    assert device.own is None
    device.relearn(None, rows[:16])
    assert device.part(rows[16]).variance > 0


def test_an_upload_cannot_ask_for_more_than_the_range_of_rewards(server):
    example = compiled(generated(1, np.random.default_rng(7), private=False)[0])
    left = residual_of(server, event_of(example), Part(-1e9, 0.0, np.zeros(3)))
    assert left.error == 1.0


def test_the_surer_a_device_is_the_more_its_residual_counts():
    rows, moved = generated(60, np.random.default_rng(8), private=False), []
    for variance in (0.0, 1.0, 1e6):
        model = ResidualKalman()
        for row in rows[:40]:
            upload(model, compiled(row), Part(0.0, 0.0, np.zeros(3)))
        before = model.shared.means.copy()
        upload(model, compiled(rows[50]), Part(-1.0, variance, np.zeros(3)))
        moved.append(np.abs(model.shared.means[: len(before)] - before).sum())
    assert moved[0] > moved[1] > 100 * moved[2]


def test_the_prior_of_devices_goes_down_and_back_to_where_it_began_but_not_beyond():
    model = ResidualKalman()
    for row in generated(40, np.random.default_rng(9), private=False):
        upload(model, compiled(row), Part(0.0, 0.0, np.zeros(3)))
    praised = compiled(([(HOUR, 9.0)], [], [(100, 1.0, ID), (PRICE, 3.0, PRICE)], 1.0))  # the error is above 0

    def after(slope, n):
        for _ in range(n):
            upload(model, praised, Part(0.0, 0.1, np.full(3, slope)))
        return model.shared.log_tau[:3, OWN].tolist()

    assert after(1.0, 3) == [FIRST_LOG_TAU] * 3
    assert max(after(-1.0, 3)) < FIRST_LOG_TAU - 0.3
    assert after(10.0, 30) == [FIRST_LOG_TAU] * 3


def test_a_device_is_as_unsure_of_itself_as_the_server_says_up_to_a_bound(server):
    example, variances = compiled(generated(1, np.random.default_rng(10))[0]), []
    for change in (0.0, -2.0, 2.0):
        log_tau = server.shared.log_tau.copy()
        log_tau[:, OWN] = FIRST_LOG_TAU + change
        device = DeviceKalman()
        device.relearn(server.shared._replace(log_tau=log_tau), [])
        variances.append(device.part(example).variance)
    assert variances == pytest.approx([variances[0], variances[0] * np.exp(-2.0), variances[0]])
    assert variances[0] > 0.1


def test_a_device_is_not_expected_to_differ_by_more_than_rewards_can(server):
    request = request_of(([HOUR], [9.0]), [([7, 8], [1.0, 1.0], [ID_FIELD, ID])])
    devices = [DeviceKalman(personal=personal) for personal in (True, False)]
    for device in devices:
        device.relearn(server.shared, [])
    own, nobody = (device.predict(request, 1).widths[0] ** 2 for device in devices)
    assert own - nobody == pytest.approx(MOST_OWN_VARIANCE)
    devices[0].shared = None
    assert devices[0].predict(request, 1).widths[0] ** 2 > 2 * MOST_OWN_VARIANCE


def test_a_device_that_learns_again_does_not_count_the_shared_effect_twice():
    """A device's rewards are .8 where others' were .2: once others say .8, it is not the device's any more."""
    others, mine = (compiled(([(HOUR, 9.0)], [], [(100, 1.0, ID)], reward)) for reward in (0.2, 0.8))
    server, device = ResidualKalman(), DeviceKalman()
    for _ in range(17):
        upload(server, others, Part(0.0, 0.0, np.zeros(2)))
    device.relearn(server.shared, [mine] * 30)
    stale = device.part(mine).mean
    assert stale == pytest.approx(0.6, abs=0.1)
    for _ in range(200):
        upload(server, mine, Part(0.0, 0.0, np.zeros(2)))
    device.relearn(server.shared, [mine] * 30)
    request = request_of(([HOUR], [9.0]), [([100], [1.0], [ID])])
    assert device.predict(request, 1).means[0] == pytest.approx(0.8, abs=0.01)
    assert abs(device.part(mine).mean) < 0.2 * stale
